"""What is read from a page beyond its facts, because its crawl asked for it: data by a rule set and by hooks, details
for analyses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.extract.details import packed, read_details
from shoal.extract.hooks import Hook, HookFault
from shoal.extract.page_source import Source
from shoal.extract.rule_reader import RuleReader
from shoal.extract.rules import RuleSet

INVALID_DATA = "invalid_data"
HOOK_FAILED = "hook_failed"


@dataclass(slots=True)
class OptionalFacts:
    """What was read. `detail` is packed, as it is stored; the error is the first of what went wrong with the data."""

    data: dict[str, Any] | None = None
    error_code: str | None = None
    error_message: str | None = None
    fingerprint: int | None = None
    detail: bytes | None = None


class OptionalFactsReader:
    """Reads the pages of one crawl. A crawl that asks for nothing has none of these. `timer` gives seconds."""

    def __init__(
        self,
        timer: Callable[[], float],
        *,
        analyze: bool = False,
        rules: RuleSet | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self._timer = timer
        self._analyze = analyze
        self._data = None if rules is None else RuleReader(rules, timer)
        self.hooks = hooks

    def read(self, source: Source, *, html: bool) -> OptionalFacts:
        """All that was asked for; never raises, whatever the page is."""
        further = OptionalFacts()
        if html:
            self._read_by_rules(source, further)
            self._read_by_hooks(source, further)
        if self._analyze:  # last, because it changes the tree
            details = read_details(source, html=html)
            further.detail, further.fingerprint = packed(details), details.fingerprint
        return further

    def _read_by_rules(self, source: Source, further: OptionalFacts) -> None:
        """Rules are for pages that are there: what a server says with its 404 has no price."""
        if self._data is None or not 200 <= source.status < 300 or not self._data.reads(source.url):
            return
        extracted = self._data.read(source)
        further.data = extracted.data
        if extracted.message is not None:
            further.error_code, further.error_message = INVALID_DATA, extracted.message

    def _read_by_hooks(self, source: Source, further: OptionalFacts) -> None:
        for hook in self.hooks:
            source.data = further.data or {}
            try:
                said = hook.run(source, self._timer)
            except HookFault as fault:
                if further.error_code is None:
                    further.error_code, further.error_message = (
                        HOOK_FAILED,
                        f"{str(fault)[:1].upper()}{str(fault)[1:]}.",
                    )
                continue
            if said:
                further.data = {**(further.data or {}), **said}

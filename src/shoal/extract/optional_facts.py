"""Extract what a crawl asks for beyond page facts: data by a rule set and by hooks, and details for analyses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.extract.details import packed, read_details
from shoal.extract.hooks import Hook, HookFault
from shoal.extract.rule_reader import RuleReader
from shoal.extract.rules import RuleSet
from shoal.extract.tree import Source

INVALID_DATA = "invalid_data"
HOOK_FAILED = "hook_failed"


@dataclass(slots=True)
class OptionalFacts:
    """The optional facts of a page. `detail` is in its stored form; the error is the first one of rules and hooks."""

    data: dict[str, Any] | None = None
    error_code: str | None = None
    error_message: str | None = None
    fingerprint: int | None = None
    detail: bytes | None = None


class OptionalFactsReader:
    """Reads the pages of one crawl; only crawls that ask for optional facts have one. `timer` returns seconds."""

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
        """Return the requested optional facts; never raises, whatever the page is."""
        further = OptionalFacts()
        if html:
            self._read_by_rules(source, further)
            self._read_by_hooks(source, further)
        if self._analyze:  # last, because it modifies the tree
            details = read_details(source, html=html)
            further.detail, further.fingerprint = packed(details), details.fingerprint
        return further

    def _read_by_rules(self, source: Source, further: OptionalFacts) -> None:
        """Apply the rule set to 2xx responses only: an error page has no product data."""
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
                data = hook.run(source, self._timer)
            except HookFault as fault:
                if further.error_code is None:
                    further.error_code, further.error_message = (
                        HOOK_FAILED,
                        f"{str(fault)[:1].upper()}{str(fault)[1:]}.",
                    )
                continue
            if data:
                further.data = {**(further.data or {}), **data}

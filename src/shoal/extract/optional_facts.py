"""Extract facts that a crawl requests in addition to the page facts: data by a rule set and by hooks, links with their
texts, and details for analyses."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import orjson

from shoal.base.errors import InvalidInput
from shoal.base.text import DEEPEST, is_nested_too_deeply, shorten
from shoal.extract.details import packed, read_details
from shoal.extract.links import pack_links, read_links
from shoal.extract.rule_reader import RuleReader
from shoal.extract.rules import RuleSet
from shoal.extract.tree import Source

GROUP: Final = "shoal.hooks"
LARGEST: Final = 1_000_000  # bytes of JSON that a hook may return per page


class HookFault(Exception):
    """A hook failed on one page."""


@dataclass(slots=True)
class Hook:
    """A hook function with its call count, failures and run time."""

    name: str
    function: Callable[[Source], Mapping[str, Any] | None]
    calls: int = 0
    failures: int = 0
    seconds: float = 0.0

    def run(self, source: Source, timer: Callable[[], float]) -> dict[str, Any]:
        """Return the hook's data for a page as plain JSON values; raise `HookFault` if it fails."""
        self.calls += 1
        began = timer()
        try:
            return self._call(source)
        except HookFault:
            self.failures += 1
            raise
        finally:
            self.seconds += timer() - began

    def _call(self, source: Source) -> dict[str, Any]:
        try:
            returned = self.function(source)
        except (Exception, SystemExit) as error:
            raise HookFault(f"hook {self.name} raised {type(error).__name__}: {shorten(error, 300)}") from error
        if returned is None:
            return {}
        if not isinstance(returned, Mapping):
            raise HookFault(f"hook {self.name} returned {type(returned).__name__}, not a dict or None")
        try:
            written = orjson.dumps(dict(returned))
        except TypeError as error:
            raise HookFault(f"hook {self.name} returned something that is not JSON ({shorten(error)})") from None
        if len(written) > LARGEST:
            raise HookFault(f"hook {self.name} returned more than {LARGEST // 1000} KB")
        plain: dict[str, Any] = orjson.loads(written)
        if is_nested_too_deeply(plain):
            raise HookFault(f"hook {self.name} returned more than {DEEPEST} levels of data")
        return plain


def find_hooks(names: Iterable[str]) -> list[Hook]:
    """Load the hooks with these names; raise `InvalidInput` if a hook is not installed or does not load."""
    wanted = list(names)
    if not wanted:
        return []
    installed = {point.name: point for point in entry_points(group=GROUP)}
    return [_load(name, installed) for name in wanted]


def _load(name: str, installed: Mapping[str, EntryPoint]) -> Hook:
    point = installed.get(name)
    if point is None:
        known = f"; installed are {', '.join(sorted(installed))}" if installed else ""
        raise InvalidInput(
            "hooks",
            f"names {shorten(name)!r}, which no installed package provides{known}",
            "install the package that provides it",
        )
    try:
        function = point.load()
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {shorten(error, 200)}"
        raise InvalidInput("hooks", f"names {name!r}, which does not load ({why})", "fix the package") from error
    if not callable(function):
        raise InvalidInput("hooks", f"names {name!r}, which is not a function", "fix the package")
    return Hook(name, function)


INVALID_DATA = "invalid_data"
HOOK_FAILED = "hook_failed"


@dataclass(slots=True)
class OptionalFacts:
    """The optional facts of a page. `detail` and `outlinks` are in their stored form; the error is the first error of
    the rule set and the hooks."""

    data: dict[str, Any] | None = None
    error_code: str | None = None
    error_message: str | None = None
    fingerprint: int | None = None
    detail: bytes | None = None
    outlinks: bytes | None = None


class OptionalFactsReader:
    """Reads the optional facts of the pages of one crawl; only crawls that request optional facts have a reader.
    `timer` returns seconds."""

    def __init__(
        self,
        timer: Callable[[], float],
        *,
        analyze: bool = False,
        links: bool = False,
        rules: RuleSet | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self._timer = timer
        self._analyze = analyze
        self._links = links or analyze
        self._data = None if rules is None else RuleReader(rules, timer)
        self.hooks = hooks

    def read(self, source: Source, *, html: bool) -> OptionalFacts:
        """Return the requested optional facts; a bad page never raises."""
        further = OptionalFacts()
        if html:
            self._read_by_rules(source, further)
            self._read_by_hooks(source, further)
            if self._links:
                further.outlinks = pack_links(read_links(source.document))
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

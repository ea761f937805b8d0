"""Hooks: functions of installed packages that read every page of the crawls that name them, and add to its data.

A package registers a hook as an entry point in the group `shoal.hooks`. It runs in the crawling process, page by page;
an exception is recorded with the page and never ends the crawl.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import orjson

from shoal.base.errors import InvalidInput
from shoal.base.text import DEEPEST, is_nested_too_deeply, shorten
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
    """Load the hooks with these names; raise `InvalidInput` if one is not installed or does not load."""
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

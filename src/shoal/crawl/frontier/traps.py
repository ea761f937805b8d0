"""Traps: URL patterns whose pages keep repeating the same content. Pages that differ are never dropped just because
there are many of them.

A pattern is a URL with its digits and the values of its query replaced. Once a hundred pages of a pattern have repeated
a text that the pattern already had, it is quarantined: its URLs wait until a user looks at the pattern and releases it.
"""

import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from shoal.base.database import Tx
from shoal.base.url import Url

REPEATS = 100
MOST_TEXTS = 200_000  # hashes kept in all: about 20 MB
LONGEST_PATTERN = 2_083  # characters: PostgreSQL's index entries have 2,704 bytes at most

_DIGITS = re.compile(r"[0-9]+")
_VALUES = re.compile(r"=[^&]*")


class TrapState(StrEnum):
    QUARANTINED = "quarantined"
    RELEASED = "released"  # a person released it: never quarantined again in this crawl


@dataclass(frozen=True, slots=True)
class Trap:
    """A pattern that was quarantined, with the number of its URLs and a sample."""

    pattern: str
    state: TrapState
    sample: str
    count: int


def pattern_of(url: Url) -> str:
    """Return the pattern of a URL: what it has in common with others of its kind."""
    start = url.index("/", 8)
    path, mark, query = url[start:].partition("?")
    values = _VALUES.sub("=", query) if query else query
    return (url[:start] + _DIGITS.sub("0", path) + mark + values)[:LONGEST_PATTERN]


class TrapWatch:
    """Watches the URL patterns of a crawl for traps, within one walker."""

    def __init__(self) -> None:
        self._texts: dict[str, set[int]] = {}
        self._repeats: dict[str, int] = {}
        self._kept = 0
        self._states: dict[str, TrapState] = {}

    def learn(self, states: dict[str, TrapState]) -> None:
        """Take over the decisions of all walkers and people, as stored."""
        self._states = states

    def holds(self, url: Url) -> bool:
        """Return whether the URL belongs to a pattern in quarantine."""
        if not self._states:
            return False
        return self._states.get(pattern_of(url)) is TrapState.QUARANTINED

    def notice(self, url: Url, text: int) -> str | None:
        """Record a page that was read; return its pattern if this page makes it a trap."""
        pattern = pattern_of(url)
        texts = self._texts.get(pattern)
        if texts is None:
            texts = self._texts[pattern] = set()
        if text not in texts:
            self._keep(texts, text)
            return None
        self._repeats[pattern] = repeats = self._repeats.get(pattern, 0) + 1
        return pattern if repeats >= REPEATS and pattern not in self._states else None

    def forget(self) -> None:
        """Start over: pages may be read again, and a page repeats its own text. A trap shows itself again soon."""
        self._texts.clear()
        self._repeats.clear()
        self._kept = 0

    def _keep(self, texts: set[int], text: int) -> None:
        if self._kept >= MOST_TEXTS:
            self.forget()
        texts.add(text)
        self._kept += 1


async def count_traps(tx: Tx, crawl: int, urls: list[Url]) -> None:
    """Count URLs that went into quarantine, by their patterns."""
    for pattern, more in sorted(Counter(map(pattern_of, urls)).items()):
        await tx.execute("count_trap", crawl=crawl, pattern=pattern, count=more)

"""Fates of URLs, and traps: patterns whose pages keep repeating the same content.

A pattern is a URL with its digits and the values of its query replaced. Once a hundred pages of a pattern have repeated
a text that the pattern already had, it is quarantined: its URLs wait until a user looks at the pattern and releases it.
"""

import re
from collections import Counter
from enum import IntEnum, StrEnum

from msgspec import Struct

from shoal.base.database import Tx
from shoal.base.text import message
from shoal.base.url import Url


class Fate(IntEnum):
    """The fate of a URL. The numbers are stored: never reuse or renumber one."""

    OPEN = 0  # waiting, or being fetched
    FETCHED = 1
    FAILED = 2
    QUARANTINED = 3
    FETCHED_VIA = 4  # fetched as the target of another URL's redirects: it has no page of its own
    SKIPPED_DEPTH = 16
    SKIPPED_SCOPE = 17
    SKIPPED_EXCLUDED = 18
    SKIPPED_NOT_INCLUDED = 19
    SKIPPED_ROBOTS = 20
    SKIPPED_NOFOLLOW = 21
    SKIPPED_URL_TOO_LONG = 22
    SKIPPED_SCHEME = 23
    SKIPPED_CREDENTIALS = 24
    SKIPPED_CONTROL_CHARACTERS = 25
    SKIPPED_BACKSLASH = 26
    SKIPPED_INVALID_URL = 27
    SKIPPED_REPEATING_PATH = 28
    SKIPPED_TOO_MANY_SEGMENTS = 29
    SKIPPED_HOST_BUDGET = 30
    SKIPPED_NOT_IN_SITEMAP = 31

    @property
    def skipped(self) -> bool:
        return self >= Fate.SKIPPED_DEPTH

    @property
    def waits(self) -> bool:
        """Return whether the frontier keeps the URL itself and not only its hash."""
        return self in WAITING

    @property
    def word(self) -> str:
        """The name used in records, summaries and the CLI."""
        return self.name.removeprefix("SKIPPED_").lower()


WAITING = frozenset({Fate.OPEN, Fate.QUARANTINED})
"""The fates whose URLs the frontier keeps."""

REOPENING = frozenset({Fate.SKIPPED_DEPTH, Fate.SKIPPED_NOFOLLOW, Fate.SKIPPED_NOT_IN_SITEMAP})
"""Fates of URLs skipped because of how they were reached: they open when they are found in another way."""

CLAIMABLE = REOPENING | {Fate.SKIPPED_SCOPE}
"""Fates of skipped URLs that a redirect may still lead to, because redirects of seeds widen the scope."""

SKIPS = {
    "depth": message("deeper than the limit"),
    "scope": message("outside the scope"),
    "excluded": message("excluded by a pattern"),
    "not_included": message("not included by a pattern"),
    "robots": message("disallowed by robots.txt"),
    "nofollow": message("marked nofollow"),
    "url_too_long": message("URL too long"),
    "scheme": message("not http or https"),
    "credentials": message("URL with a password"),
    "control_characters": message("URL with control characters"),
    "backslash": message("URL with a backslash"),
    "invalid_url": message("not a valid URL"),
    "repeating_path": message("a path that repeats itself"),
    "too_many_segments": message("a path with too many segments"),
    "host_budget": message("page limit of the host"),
    "not_in_sitemap": message("not in a sitemap"),
    "trap": message("in quarantine as a crawler trap"),
}
"""Texts for why URLs were skipped, by the name in records."""


REPEATS = 100
MOST_TEXTS = 200_000  # hashes kept in all: about 20 MB
LONGEST_PATTERN = 2_083  # characters: PostgreSQL's index entries have 2,704 bytes at most

_DIGITS = re.compile(r"[0-9]+")
_VALUES = re.compile(r"=[^&]*")


class TrapState(StrEnum):
    QUARANTINED = "quarantined"
    RELEASED = "released"  # a person released it: never quarantined again in this crawl


class Trap(Struct, frozen=True):
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

"""Fates of URLs, and the record of a crawler trap."""

from enum import IntEnum, StrEnum

from msgspec import Struct

from shoal.base.text import message


class Fate(IntEnum):
    """The fate of a URL. The numbers are stored, so never reuse or change a number."""

    skipped: bool
    waits: bool  # whether the frontier keeps the URL itself and not only its hash
    word: str  # the name used in records, summaries and the CLI

    OPEN = 0  # waiting, or being fetched
    FETCHED = 1
    FAILED = 2
    QUARANTINED = 3
    FETCHED_VIA = 4  # fetched as the target of a different URL's redirects, so it has no page record
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

    def __init__(self, number: int) -> None:
        self.skipped = number >= 16
        self.waits = self.name in ("OPEN", "QUARANTINED")
        self.word = self.name.removeprefix("SKIPPED_").lower()


REOPENING = frozenset({Fate.SKIPPED_DEPTH, Fate.SKIPPED_NOFOLLOW, Fate.SKIPPED_NOT_IN_SITEMAP})
"""Fates of URLs that were skipped because of the path on which they were found. Such URLs open when they are found on a
different path."""

CLAIMABLE = REOPENING | {Fate.SKIPPED_SCOPE}
"""Fates of skipped URLs that may still be fetched as redirect targets, because redirects of seeds widen the scope."""

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
"""Texts for the reasons why URLs were skipped, by the reason's name in records."""


SKIPPED = {fate.word: fate for fate in Fate if fate.skipped}
"""The fates of skipped URLs, by the reason's name in records."""


class TrapState(StrEnum):
    QUARANTINED = "quarantined"
    RELEASED = "released"  # a user released the pattern; it is never quarantined again in this crawl


class Trap(Struct, frozen=True):
    """A pattern that was quarantined, with the number of its URLs and a sample URL."""

    pattern: str
    state: TrapState
    sample: str
    count: int

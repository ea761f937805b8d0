"""What became of a URL: one byte per URL, so that every URL ever seen can be asked for."""

from enum import IntEnum


class Fate(IntEnum):
    """Numbers are stored: never reuse or renumber one."""

    OPEN = 0  # waiting, or being fetched
    FETCHED = 1
    FAILED = 2
    QUARANTINED = 3
    FETCHED_VIA = 4  # another URL redirects to it, and was fetched there: it has no record of its own
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
        """Whether the frontier keeps the URL itself, not only its hash."""
        return self in WAITING

    @property
    def word(self) -> str:
        """The reason as records, summaries and people name it."""
        return self.name.removeprefix("SKIPPED_").lower()


WAITING = frozenset({Fate.OPEN, Fate.QUARANTINED})
"""Those whose URLs the frontier keeps."""

REOPENING = frozenset({Fate.SKIPPED_DEPTH, Fate.SKIPPED_NOFOLLOW, Fate.SKIPPED_NOT_IN_SITEMAP})
"""Skipped for the way that led there, not for what they are."""

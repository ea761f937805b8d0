"""Ids: a prefix for the kind of object, then 26 characters that sort by creation time."""

import os
from collections.abc import Callable
from typing import NewType

from shoal.base.clock import SystemClock

CrawlId = NewType("CrawlId", str)
JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
EventId = NewType("EventId", str)
AnalysisId = NewType("AnalysisId", str)
GroupId = NewType("GroupId", str)
TokenId = NewType("TokenId", str)

PREFIXES = {
    "crl": "crawl",
    "job": "job",
    "pol": "policy",
    "evt": "event",
    "anl": "analysis",
    "whk": "webhook",
    "tok": "token",
    "grp": "job group",
    "nod": "node session",
    "cmd": "command for a node",
    "seg": "segment of stored bodies",
}
_CLOCK = SystemClock()  # no decision depends on the time in an id, so tests do not need a fake clock here
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford: no I, L, O, U
_PAIRS = tuple(first + second for first in _ALPHABET for second in _ALPHABET)


class _Numbers:
    """Increasing numbers: 48 bits of milliseconds, then 80 random bits."""

    def __init__(self) -> None:
        self._last = 0

    def draw(self) -> int:
        chance = int.from_bytes(os.urandom(10))
        number = _CLOCK.micros() // 1000 << 80 | chance
        if number <= self._last:  # the last number is of the same millisecond, or the clock was set back
            number = self._last + 1 + (chance >> 16)
        self._last = number
        return number


_NUMBERS = _Numbers()


def new_id(prefix: str) -> str:
    """Return a new id, which sorts after all earlier ids of this process."""
    if prefix not in PREFIXES:
        raise KeyError(prefix)
    return f"{prefix}_{_encode(_NUMBERS.draw())}"


def ids_behind(first: str) -> Callable[[int], str]:
    """Return a function that derives the n-th id after `first`. Every process derives the same ids."""
    prefix, _, digits = first.partition("_")
    number = 0
    for digit in digits:
        number = number << 5 | _ALPHABET.index(digit)
    return lambda place: f"{prefix}_{_encode(number + place)}"


def _encode(number: int) -> str:
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])

"""Answers 503 of one host: when they are the trouble of the host, and not that of single pages. Pure.

One page that always answers 503 says nothing about its neighbours. Several of them within a minute do.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import orjson

N = TypeVar("N", int, float)

ENOUGH: Final = 3
"""So many different URLs hold their host."""
WITHIN: Final = 60
"""Seconds."""


def with_refusals(kept: Mapping[int, N], urls: Iterable[int], now: N, within: N) -> dict[int, N]:
    """Add URLs, by their hashes, that were refused now. Return the newest, as many as are `ENOUGH`; what is older than
    `within` is forgotten, and so is what a clock that went back left in the future. (A commit that waited for another
    may have a time before it.)"""
    recent = {url: at for url, at in kept.items() if abs(now - at) <= within} | dict.fromkeys(urls, now)
    return dict(sorted(recent.items(), key=lambda one: one[1])[-ENOUGH:])


def to_text(refusals: Mapping[int, int]) -> str:
    """Write them as a store keeps them."""
    return orjson.dumps(list(refusals.items())).decode()


def from_text(text: str) -> dict[int, int]:
    """Read them back; an empty text has none."""
    return dict(orjson.loads(text)) if text else {}

"""503 responses of one host: when they concern the whole host and not single pages. Pure.

One page that always answers 503 says nothing about other pages. Several of them within a minute do.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import orjson

N = TypeVar("N", int, float)

ENOUGH: Final = 3
"""The number of different URLs that puts their host on hold."""
WITHIN_SECONDS: Final = 60
"""The time within which they count."""


def with_refusals(kept: Mapping[int, N], urls: Iterable[int], now: N, within: N) -> dict[int, N]:
    """Add URLs, by hash, that were refused now, and return the newest `ENOUGH`. Entries older than `within`, which
    has the unit of `now`, are dropped, and so are those that a clock set back left in the future. (A commit that waited
    for another may carry an earlier time.)"""
    recent = {url: at for url, at in kept.items() if abs(now - at) <= within} | dict.fromkeys(urls, now)
    return dict(sorted(recent.items(), key=lambda one: one[1])[-ENOUGH:])


def concern_host(refusals: Mapping[int, object]) -> bool:
    """Return whether recent refusals put their host on hold."""
    return len(refusals) >= ENOUGH


def to_text(refusals: Mapping[int, int]) -> str:
    """Serialize them for the store."""
    return orjson.dumps(list(refusals.items())).decode()


def from_text(text: str) -> dict[int, int]:
    """Parse what `to_text` wrote; an empty text holds none."""
    return dict(orjson.loads(text)) if text else {}

"""Politeness of the requests that a page makes: robots.txt, and concurrent requests per origin.

Which addresses may be reached is not decided here: the browser's proxy does that, and it sees all traffic.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from shoal.base.clock import Clock
from shoal.base.errors import ShoalError
from shoal.base.url import Url
from shoal.hosts.robots import RobotsSource, Rules

FRESH_SECONDS = 600.0  # for which the rules of an origin are kept
MOST_RULES = 2_000


class SubrequestRobots(Protocol):
    """Decides whether robots.txt allows the requests of pages."""

    def known(self, origin: str) -> Rules | None:
        """Return the cached rules of an origin; None if they are not cached."""
        ...

    def load(self, origin: str) -> Awaitable[Rules | None]:
        """Fetch the rules of an origin; None if they cannot be fetched."""
        ...


class SubrequestRobotsCache:
    """A short-lived cache of robots.txt rules; pages that need the same rules share one request."""

    def __init__(self, source: RobotsSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._known: dict[str, tuple[float, Rules]] = {}
        self._loading: dict[str, asyncio.Task[Rules | None]] = {}

    def known(self, origin: str) -> Rules | None:
        at, rules = self._known.get(origin, (0.0, None))
        return None if rules is None or self._clock.monotonic() - at > FRESH_SECONDS else rules

    async def load(self, origin: str) -> Rules | None:
        task = self._loading.get(origin)
        if task is None:
            task = self._loading[origin] = asyncio.create_task(self._load(origin))
            task.add_done_callback(lambda _: self._loading.pop(origin, None))
        return await asyncio.shield(task)

    def close(self) -> None:
        for task in self._loading.values():
            task.cancel()

    async def _load(self, origin: str) -> Rules | None:
        try:
            rules = await self._source.rules_of(origin)
        except ShoalError:
            return None  # the store is not available: the request is refused, and the page continues without it
        if len(self._known) >= MOST_RULES:
            self._known.clear()
        if rules.reachable:
            self._known[origin] = self._clock.monotonic(), rules
        return rules


def allows(rules: Rules | None, url: str) -> bool:
    """Return whether the rules of its origin allow a request."""
    return rules is not None and rules.reachable and rules.allows(Url(url))


class OriginConnections:
    """Counts the requests in flight per origin, over all pages of a renderer, and holds back those above the limit."""

    def __init__(self) -> None:
        self._in_flight: dict[str, int] = {}
        self._waiting: dict[str, deque[tuple[int, Callable[[], None]]]] = {}

    def start(self, origin: str, limit: int, go: Callable[[], None]) -> None:
        """Call `go` now, or when a request to this origin has ended."""
        if self._in_flight.get(origin, 0) < limit:
            self._in_flight[origin] = self._in_flight.get(origin, 0) + 1
            go()
        else:
            self._waiting.setdefault(origin, deque()).append((limit, go))

    def end(self, origin: str) -> None:
        """Record that a request has ended, and start the next one that waits."""
        left = self._in_flight.get(origin, 0) - 1
        if left > 0:
            self._in_flight[origin] = left
        else:
            self._in_flight.pop(origin, None)
        if (waiting := self._waiting.get(origin)) is not None:
            limit, go = waiting.popleft()
            if not waiting:
                del self._waiting[origin]
            self.start(origin, limit, go)

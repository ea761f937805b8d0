"""Politeness of the requests that a page makes: robots.txt, and concurrent requests per origin.

Which addresses may be reached is not decided here: the browser's proxy does that, and it sees all traffic.
"""

from collections import deque
from collections.abc import Callable

from shoal.base.url import Url
from shoal.hosts.robots import Rules


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

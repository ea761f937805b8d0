"""Start positions for leases in large batches, on PostgreSQL: jobs leased since the last vacuum leave dead rows at
the head of a lane, and each query would skip over all of them. Small batches always start at the head."""

from typing import Any

from shoal.queue.job import LeaseRequest

LANE, RANK = 10, 11  # indexes in a granted row
LOWEST = -(1 << 62)
LARGE = 50  # jobs per batch
LOOKS = 9  # queries from there before the next from the head; until then a better-ranked job may be missed


class LeaseStart:
    """Remembers, for one process, how far large batches have advanced."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, ...], int] = {}
        self._looks = 0

    def of(self, request: LeaseRequest, limit: int) -> list[int]:
        """Return the start rank for each lane of a lease request."""
        if limit < LARGE or self._looks >= LOOKS:
            self._ranks.clear()
            self._looks = 0
        elif self._ranks:
            self._looks += 1
        return [self._ranks.get(_queue_key(request, lane), LOWEST) for lane in request.lanes]

    def learn(self, request: LeaseRequest, limit: int, granted: list[Any]) -> None:
        """Learn from a batch: a full one leaves no job before its last rank that could be leased."""
        if limit < LARGE or len(granted) < limit or len(request.kinds) * len(request.capabilities) > 1:
            self._ranks.clear()
            return
        for row in granted:
            key = _queue_key(request, row[LANE])
            self._ranks[key] = max(row[RANK], self._ranks.get(key, LOWEST))


def _queue_key(request: LeaseRequest, lane: str) -> tuple[str, ...]:
    return (lane, *request.kinds, *request.capabilities)

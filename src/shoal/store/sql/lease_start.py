"""Where to begin in a line that is leased from by large batches, on PostgreSQL: what was leased since the last vacuum
stands before it, and each look steps over all of that. Who takes little at a time looks from the beginning."""

from typing import Any

from shoal.queue.job import LeaseRequest

LANE, RANK = 10, 11  # places in a granted row
LOWEST = -(1 << 62)
LARGE = 50  # jobs of a batch
LOOKS = 9  # from a floor before the next from the beginning: so long may a job with a better rank be overlooked


class LeaseStart:
    """Remembers, for one process, how far large batches came."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, ...], int] = {}
        self._looks = 0

    def of(self, taker: LeaseRequest, limit: int) -> list[int]:
        """For each lane of a taker the rank at which to begin."""
        if limit < LARGE or self._looks >= LOOKS:
            self._ranks.clear()
            self._looks = 0
        elif self._ranks:
            self._looks += 1
        return [self._ranks.get(_line(taker, lane), LOWEST) for lane in taker.lanes]

    def learn(self, taker: LeaseRequest, limit: int, granted: list[Any]) -> None:
        """A batch that was full leaves nothing behind it that anybody could take."""
        if limit < LARGE or len(granted) < limit or len(taker.kinds) * len(taker.capabilities) > 1:
            self._ranks.clear()
            return
        for row in granted:
            line = _line(taker, row[LANE])
            self._ranks[line] = max(row[RANK], self._ranks.get(line, LOWEST))


def _line(taker: LeaseRequest, lane: str) -> tuple[str, ...]:
    return (lane, *taker.kinds, *taker.capabilities)

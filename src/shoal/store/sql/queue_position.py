"""The position of a URL in the queue of its host: shallow URLs first, then in order of discovery. One number encodes
both."""

from collections.abc import Sequence

from shoal.base.database import Tx

DEPTH_BITS = 40  # bits below the depth: enough for a trillion URLs
DEEPEST = 32_767
NEVER = 1 << 62  # the due time of a URL in quarantine


def depth_at(place: int) -> int:
    return place >> DEPTH_BITS


class QueuePositions:
    """Allocates positions."""

    def __init__(self, dialect: str) -> None:
        self._numbered_here = dialect == "sqlite"  # on PostgreSQL the queries number the rows, from a sequence

    async def behind(self, tx: Tx, depths: Sequence[int]) -> list[int]:
        """Return positions for URLs of these depths, each behind all earlier ones."""
        first = await tx.value("reserve_seq", count=len(depths)) if self._numbered_here and depths else 0
        step = int(self._numbered_here)
        return [(min(depth, DEEPEST) << DEPTH_BITS) + first + step * order for order, depth in enumerate(depths)]

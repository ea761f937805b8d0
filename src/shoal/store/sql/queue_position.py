"""Where a URL stands in the line of its host: shallow first, then as they were found. One number says both."""

from collections.abc import Sequence

from shoal.base.database import Tx

DEPTH_BITS = 40  # below those that hold the depth: room for a trillion URLs
DEEPEST = 32_767
NEVER = 1 << 62  # when a URL in quarantine is due


def depth_at(place: int) -> int:
    return place >> DEPTH_BITS


class QueuePositions:
    """Gives out places."""

    def __init__(self, dialect: str) -> None:
        self._numbered_here = dialect == "sqlite"  # PostgreSQL has a sequence, and its queries add the numbers

    async def behind(self, tx: Tx, depths: Sequence[int]) -> list[int]:
        """Places for URLs of these depths, each behind all that came before."""
        first = await tx.value("reserve_seq", count=len(depths)) if self._numbered_here and depths else 0
        step = int(self._numbered_here)
        return [(min(depth, DEEPEST) << DEPTH_BITS) + first + step * order for order, depth in enumerate(depths)]

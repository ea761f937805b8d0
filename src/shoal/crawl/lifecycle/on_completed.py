"""What comes after a crawl that asked for it. Who answers is not this room's business."""

from typing import Protocol

from shoal.base.database import Tx


class OnCompleted(Protocol):
    async def begin(self, tx: Tx, crawl: int, crawl_id: str, project: str, priority: int) -> None:
        """The crawl completes in this very commit: write down what has to be done next."""
        ...

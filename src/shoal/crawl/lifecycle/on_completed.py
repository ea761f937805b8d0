"""The hook that is called when a crawl completes. Its implementation is in another package."""

from typing import Protocol

from shoal.base.database import Tx


class OnCompleted(Protocol):
    async def begin(self, tx: Tx, crawl_id: str) -> None:
        """Record the follow-up work in the commit that completes the crawl."""
        ...

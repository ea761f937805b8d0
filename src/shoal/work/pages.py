"""Page jobs: the contract of whoever knows what a page job is. How many run at once, and where, is the worker's."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from shoal.queue.job import Lease

R = TypeVar("R")


class PageWork(Protocol[R]):
    """What a page child is given: it runs single jobs, and settles many at once. Both are called from one loop."""

    async def run(self, lease: Lease) -> R:
        """Work on one job; the result carries its lease. What is wrong with the page is part of the result; what is
        raised counts as a failed attempt of the job. May be cancelled at any time, and then leaves nothing behind."""
        ...

    async def settle(self, results: Sequence[R], holder: str, want: int) -> list[Lease]:
        """In one commit: store the results, end or return their jobs, and lease up to `want` further ones for
        `holder`. A result whose lease was lost is dropped, the others count. If the store fails, nothing is stored and
        the same results come again. With no results it only leases, with `want` 0 it only settles."""
        ...

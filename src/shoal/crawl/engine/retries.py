"""Whether a fetch that failed is tried again, and when. Each try is a settle back to waiting, so a kill loses none."""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from msgspec import Struct

from shoal.base.clock import span
from shoal.fetch.page_fetcher import Fetched
from shoal.hosts.throttle import REFUSED

JITTER: Final = (
    0.3  # how much longer than its time a wait may be, so that what failed together does not return together
)
LONGEST: Final = timedelta(minutes=10)
AFTER_TIMEOUT: Final = 2  # tries in all of a page that takes all the time there is


class Retries(Struct, frozen=True):
    """How often a page is tried in all; the wait doubles with each try."""

    attempts: int
    first: timedelta = timedelta(seconds=1)
    jitter: Callable[[], float] = random.random
    asked: Callable[[str], timedelta | None] = lambda retry_after: (
        None
    )  # for how long a `Retry-After` asks, if we do it

    def again_in(self, failed_before: int, fetched: Fetched) -> int | None:
        """Microseconds until the next try; None if there is none."""
        if not fetched.retryable:
            return None
        timed_out = fetched.failure is not None and fetched.failure.code == "total_timeout"
        if failed_before + 1 >= (min(self.attempts, AFTER_TIMEOUT) if timed_out else self.attempts):
            return None
        wait = min(span(self.first) * 2**failed_before, span(LONGEST))
        return max(int(wait * (1 + JITTER * self.jitter())), self._asked(fetched))

    def _asked(self, fetched: Fetched) -> int:
        """Microseconds that a page asks for by itself: a 503 holds its URL, and not always its host."""
        asked = self.asked(fetched.retry_after) if fetched.status == REFUSED and fetched.retry_after else None
        return 0 if asked is None else span(asked)

"""Decides whether and when a failed fetch is retried. Retries are stored in the frontier, so they survive a killed
worker."""

import random
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from shoal.hosts.throttle import REFUSED
from shoal.web.page_fetcher import Fetched

JITTER: Final = 0.3  # the longest extra wait, as a fraction, so that URLs that failed together spread out
LONGEST_WAIT_SECONDS: Final = 600.0
TIMEOUTS: Final = frozenset({"total_timeout", "render_timeout"})
AFTER_TIMEOUT: Final = 2  # attempts in all for a page that timed out


class Retries(Struct, frozen=True):
    """The retry policy of a page: the total number of attempts, and the wait between them, which doubles each time."""

    attempts: int
    first_wait_seconds: float = 1.0
    jitter: Callable[[], float] = random.random
    asked_seconds: Callable[[str], float | None] = lambda retry_after: None  # parses `Retry-After`; None: ignore it

    def retry_in_seconds(self, failed_before: int, fetched: Fetched) -> float | None:
        """Return the time until the next attempt; None if there is none."""
        if not fetched.retryable:
            return None
        timed_out = fetched.failure is not None and fetched.failure.code in TIMEOUTS
        if failed_before + 1 >= (min(self.attempts, AFTER_TIMEOUT) if timed_out else self.attempts):
            return None
        wait = min(self.first_wait_seconds * (1 << failed_before), LONGEST_WAIT_SECONDS)
        return max(wait * (1 + JITTER * self.jitter()), self._asked_by(fetched))

    def _asked_by(self, fetched: Fetched) -> float:
        """Return the seconds that the `Retry-After` of a 503 asks for: it delays this URL, not always its host."""
        asked = self.asked_seconds(fetched.retry_after) if fetched.status == REFUSED and fetched.retry_after else None
        return asked or 0.0

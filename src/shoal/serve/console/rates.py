"""The crawl rate of the whole installation, sampled while this controller runs."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from shoal.base.clock import Clock
from shoal.base.service import PassResult
from shoal.crawl.lifecycle.crawls import Crawls

KEPT: Final = 720  # samples: an hour
RECENT: Final = 6  # samples that `now` averages: half a minute


@dataclass(frozen=True, slots=True)
class Sample:
    """Pages and errors since the previous sample, and the seconds between the two."""

    pages: int
    errors: int
    seconds: float


class RateSampler:
    """Keeps the rates of the last hour in memory. Hourly statistics in the store reach further back."""

    name = "crawl_rate"

    def __init__(self, crawls: Crawls, clock: Clock) -> None:
        self._crawls = crawls
        self._clock = clock
        self._before: dict[int, tuple[int, int]] | None = None
        self._newest = 0
        self._sampled_at = 0.0
        self.samples: deque[Sample] = deque(maxlen=KEPT)

    async def run_once(self) -> PassResult:
        newest = await self._crawls.last_number()  # first: crawls that start meanwhile are new in the next sample
        counts, now = await self._crawls.live_counts(), self._clock.monotonic()
        if self._before is not None and now > self._sampled_at:
            # A new crawl counts from nothing, one that was resumed or retried from what it had; one that ended is no
            # longer among the live ones.
            before = {number: (0, 0) if number > self._newest else count for number, count in counts.items()}
            before |= self._before
            pairs = [(count, before[number]) for number, count in counts.items()]
            pages = sum(max(0, count[0] - before[0]) for count, before in pairs)
            errors = sum(max(0, count[1] - before[1]) for count, before in pairs)
            self.samples.append(Sample(pages, errors, now - self._sampled_at))
        self._before, self._newest, self._sampled_at = counts, newest, now
        return PassResult()

    @property
    def now(self) -> tuple[float, float] | None:
        """Pages and errors per second over the last half minute; None until it is known."""
        recent = list(self.samples)[-RECENT:]
        seconds = sum(one.seconds for one in recent)
        if not seconds:
            return None
        return sum(one.pages for one in recent) / seconds, sum(one.errors for one in recent) / seconds

    @property
    def history(self) -> list[float]:
        """Pages per second, sample by sample, oldest first."""
        return [one.pages / one.seconds for one in self.samples]

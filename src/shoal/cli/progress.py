"""The progress of a crawl on stderr: a live line on a terminal, else a plain line per second.

The numbers are counted with each commit; the store is polled once a second for the size of the frontier.
"""

import asyncio
import os
import sys
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from msgspec import Struct

from shoal.base.clock import Clock, from_micros
from shoal.base.errors import TimeError
from shoal.base.text import plural
from shoal.cli.output import in_time
from shoal.crawl.crawl import Counts, Crawl
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.failed_urls import MAX_LISTED
from shoal.hosts.rate import HeldHost
from shoal.observe.logs import note
from shoal.pages.page import ResponseClass
from shoal.process.local_crawl import CrawlTally

LOOK_SECONDS = 1.0
DRAW_SECONDS = 0.25
RATE_SAMPLES = 10  # the rate is averaged over this many seconds
STALL_SAMPLES = 5  # seconds without a page: hosts on hold or retries waiting, so no estimate
REFUSALS: tuple[ResponseClass, ...] = ("4xx", "5xx")
MIN_SAMPLES = 3  # before there is an estimate


class ProgressSnapshot(Struct, frozen=True):
    """The progress of a crawl at one moment."""

    pages: int
    errors: int
    depth: int
    hosts: int
    waiting: int
    rate: float
    elapsed_seconds: float
    seconds_left: float | None
    again: int = 0  # waiting URLs that failed before
    held: str | None = None  # hosts on hold, if everything waits for them
    refusals: tuple[tuple[str, int], ...] = ()  # number of 4xx and 5xx pages, without zeros

    @property
    def facts(self) -> tuple[object, ...]:
        """The values whose change makes a new line worth printing."""
        return self.pages, self.errors, self.waiting, self.held, self.refusals

    def words(self) -> list[str]:
        """Return the parts of the line, the most important first: a narrow terminal cuts the rest."""
        left = None if self.seconds_left is None else in_time(max(1, round(self.seconds_left)))
        return [
            plural(self.pages, "page"),
            self.held or (f"{self.rate:,.1f}/s" if self.rate < 100 else f"{self.rate:,.0f}/s"),
            f"{self.waiting:,} waiting",
            plural(self.errors, "error"),
            *(f"{kind} {count:,}" for kind, count in self.refusals),
            in_time(round(self.elapsed_seconds)),
            *([f"about {left} left"] if left else []),
            *([f"{self.again:,} to retry"] if self.again else []),
            f"depth {self.depth}",
            *([plural(self.hosts, "host")] if self.hosts else []),
        ]


class Screen(Protocol):
    """The display of the progress."""

    period_seconds: float

    def show(self, snapshot: ProgressSnapshot) -> None: ...

    def say(self, text: str) -> None:
        """Print a line that stays."""
        ...

    def close(self) -> None: ...


class ProgressSource(Protocol):
    """A crawl that runs here or elsewhere, with its counts."""

    @property
    def crawl(self) -> Crawl: ...

    @property
    def tally(self) -> CrawlTally: ...

    async def status(self) -> CrawlStatus: ...

    async def held(self) -> list[HeldHost]: ...


class Progress:
    """Shows the progress of a crawl while the block runs. `before`: seconds that it ran before."""

    def __init__(self, source: ProgressSource, clock: Clock, screen: Screen, *, before: float = 0.0) -> None:
        self._source = source
        self._clock = clock
        self._screen = screen
        self._began = clock.monotonic() - before
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_SAMPLES + 1)
        self._counts = Counts()
        self._held: str | None = None
        self._named = 0  # seeds that failed and were named, or are too many
        self._task: asyncio.Task[None] | None = None

    @property
    def elapsed_seconds(self) -> float:
        return self._clock.monotonic() - self._began

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        self._screen.close()
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    async def _watch(self) -> None:
        await self._look()
        while True:
            await self._clock.sleep(self._screen.period_seconds)
            if self._clock.monotonic() - self._samples[-1][0] > LOOK_SECONDS - DRAW_SECONDS / 2:
                await self._look()
            self._name_failed_seeds()
            self._screen.show(self.snapshot())

    def _name_failed_seeds(self) -> None:
        """Name the first seeds that failed; the summary counts the rest."""
        failed = self._source.tally.failed_seeds
        for seed in failed[self._named : MAX_LISTED]:
            self._screen.say(f"Seed {seed.words()}")
        if len(failed) > MAX_LISTED >= self._named:
            self._screen.say("More seeds failed; they are counted at the end")
        self._named = len(failed)

    async def _look(self) -> None:
        with suppress(TimeError):  # the store is busy or unavailable, and the walker handles that
            self._counts = (await self._source.status()).counts
            self._held = held_words(await self._source.held()) if self._is_still() and self._counts.queued else None
        self._samples.append((self._clock.monotonic(), self._pages))

    @property
    def _pages(self) -> int:
        """The pages of all walkers: our own count if it is newer, else the count last read from the store."""
        return max(self._source.tally.pages, self._counts.pages)

    def snapshot(self) -> ProgressSnapshot:
        tally, rate = self._source.tally, self._rate()
        return ProgressSnapshot(
            pages=self._pages,
            errors=max(tally.errors, self._counts.errors),
            depth=max(tally.depth, self._counts.depth_reached),
            hosts=len(tally.hosts),
            waiting=self._counts.queued,
            rate=rate,
            elapsed_seconds=self.elapsed_seconds,
            seconds_left=self._seconds_left(rate),
            again=min(tally.again, self._counts.queued),
            held=self._held,
            refusals=tuple((kind, n) for kind in REFUSALS if (n := self._counts.responses[kind])),
        )

    def _rate(self) -> float:
        (began, before), (ended, pages) = self._samples[0], self._samples[-1]
        return (pages - before) / (ended - began) if ended > began else 0.0

    def _is_still(self) -> bool:
        return len(self._samples) > STALL_SAMPLES and self._samples[-1][1] == self._samples[-1 - STALL_SAMPLES][1]

    def _seconds_left(self, rate: float) -> float | None:
        """Estimate the time for the known URLs; URLs not found yet cannot be estimated."""
        waiting, config = self._counts.queued, self._source.crawl.config
        if len(self._samples) <= MIN_SAMPLES or not rate or not waiting or self._is_still():
            return None
        if config.max_pages is not None:
            waiting = min(waiting, config.max_pages - self._pages)
        seconds = waiting / rate
        if config.max_seconds is not None:
            seconds = min(seconds, config.max_seconds - self._counts.walked.total_seconds())
        return max(0.0, seconds)


def held_words(hosts: list[HeldHost]) -> str | None:
    """Describe when the first of these hosts on hold accepts requests again."""
    if not hosts:
        return None
    first = min(hosts, key=lambda host: host.until)
    others = f" and {len(hosts) - 1:,} more" if len(hosts) > 1 else ""
    return f"{first.origin}{others} on hold until {from_micros(first.until):%H:%M:%S} UTC"


class PlainLines:
    """Prints a line per second when something changed."""

    period_seconds = LOOK_SECONDS

    def __init__(self) -> None:
        self._shown: tuple[object, ...] = (0, 0, 0, None, ())

    def show(self, snapshot: ProgressSnapshot) -> None:
        if snapshot.facts != self._shown:
            self._shown = snapshot.facts
            note(", ".join(snapshot.words()))

    def say(self, text: str) -> None:
        note(text)

    def close(self) -> None:
        return


class LiveLine:
    """A line at the bottom of a terminal that is updated in place and removed at the end."""

    period_seconds = DRAW_SECONDS

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        self._spinner = Spinner("dots")
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._live.start()

    def show(self, snapshot: ProgressSnapshot) -> None:
        from rich.text import Text

        first, mark, rest = " · ".join(snapshot.words()).partition(" ")
        dots = str(self._spinner.render(self._live.console.get_time()))
        line = Text.assemble(dots, " ", (first, "bold"), mark, rest, no_wrap=True, overflow="ellipsis")
        self._live.update(line, refresh=True)

    def say(self, text: str) -> None:
        note(text)

    def close(self) -> None:
        self._live.stop()


def screen() -> Screen:
    """Return a live line if stderr is a capable terminal, else plain lines."""
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return LiveLine()
    return PlainLines()

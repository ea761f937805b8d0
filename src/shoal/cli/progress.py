"""The progress of a crawl on stderr: a first line with the request rate, then a live line on a terminal, or else a
plain line per second.

Each commit updates the numbers of pages. The size of the frontier is read from the store once a second.
"""

import asyncio
import os
import sys
from collections import deque
from contextlib import suppress
from itertools import cycle
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from msgspec import Struct

from shoal.base.clock import Clock, from_micros
from shoal.base.errors import TimeError
from shoal.base.parsing import is_loopback
from shoal.base.settings import Settings, Speed
from shoal.base.text import plural, redact_url, shorten
from shoal.base.url import hostname
from shoal.cli.output import in_time
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig
from shoal.crawl.engine.engine import NEXT_URL
from shoal.crawl.engine.fetch_window import window_and_rate
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.failed_urls import MAX_LISTED
from shoal.crawl.scope import seeds_of
from shoal.crawl.states import CrawlState
from shoal.hosts.rate import HeldHost
from shoal.observe.logs import note
from shoal.pages.page import ResponseClass
from shoal.process.local_crawl import CrawlTally

LOOK_SECONDS = 1.0
DRAW_SECONDS = 0.25
RATE_SAMPLES = 10  # the rate is averaged over this many seconds
STALL_SAMPLES = 5  # after so many seconds without a page, hosts are on hold or retries wait: show no estimate
REFUSALS: tuple[ResponseClass, ...] = ("4xx", "5xx")
MIN_SAMPLES = 3  # number of samples before the first estimate
DOTS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ERASE = "\r\x1b[K"


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
    held: str | None = None  # the hosts on hold, if all URLs wait for them
    waits_for: str | None = None  # the reason why the next fetch waits, unless it is a host on hold
    refusals: tuple[tuple[str, int], ...] = ()  # number of 4xx and 5xx pages, without zeros

    @property
    def facts(self) -> tuple[object, ...]:
        """The values that matter to a reader: if one changes, a new line is printed."""
        return self.pages, self.errors, self.waiting, self.held, self.waits_for, self.refusals

    def words(self) -> list[str]:
        """Return the parts of the line, the most important first, because a narrow terminal cuts off the end."""
        left = None if self.seconds_left is None else in_time(max(1, round(self.seconds_left)))
        return [
            plural(self.pages, "page"),
            self.held or (f"{self.rate:,.1f}/s" if self.rate < 100 else f"{self.rate:,.0f}/s"),
            *([f"waiting for {self.waits_for}"] if self.waits_for else []),
            f"{self.waiting:,} queued",
            plural(self.errors, "error"),
            *(f"{kind} {count:,}" for kind, count in self.refusals),
            in_time(round(self.elapsed_seconds)),
            *([f"about {left} left"] if left else []),
            *([f"{self.again:,} to retry"] if self.again else []),
            f"depth {self.depth}",
            *([plural(self.hosts, "host")] if self.hosts else []),
        ]


class Screen:
    """The display of the progress. This base class shows nothing."""

    period_seconds = LOOK_SECONDS

    def show(self, snapshot: ProgressSnapshot) -> None:
        return

    def close(self) -> None:
        return


class PlainLines(Screen):
    """Prints a line per second when something changed."""

    def __init__(self) -> None:
        self._shown: tuple[object, ...] = (0, 0, 0, None, None, ())

    def show(self, snapshot: ProgressSnapshot) -> None:
        if snapshot.facts != self._shown:
            self._shown = snapshot.facts
            note(", ".join(snapshot.words()))


class LiveLine:
    """A line at the bottom of a terminal that is updated in place. Until `close`, this object replaces `sys.stderr`, so
    that other lines, such as warnings, are written above the live line."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._dots = cycle(DOTS)
        self._shown = ""
        self._begun = ""  # the beginning of a line that is not complete and therefore not written yet
        sys.stderr = self

    def show(self, text: str) -> None:
        """Replace the live line. Its first word is bold. Text that does not fit is cut off, because a second line would
        not be erased."""
        first, space, rest = shorten(text, self._columns() - 4).partition(" ")
        self._shown = f"{next(self._dots)} \x1b[1m{first}\x1b[0m{space}{rest}"
        self._put("")

    def write(self, text: str) -> int:
        """Write whole lines above the line."""
        lines, newline, self._begun = (self._begun + text).rpartition("\n")
        self._put(lines + newline)
        return len(text)

    def close(self) -> None:
        """Remove the line."""
        if sys.stderr is self:
            sys.stderr = self._terminal
        self._shown = ""
        self._put(self._begun)

    def _put(self, lines: str) -> None:
        self._terminal.write(f"{ERASE}{lines}{self._shown}")
        self._terminal.flush()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._terminal.fileno()).columns or 80
        except OSError:
            return 80

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)


class LiveScreen(Screen):
    """Shows the progress in a live line at the bottom of a terminal."""

    period_seconds = DRAW_SECONDS

    def __init__(self) -> None:
        self._line = LiveLine(sys.stderr)

    def show(self, snapshot: ProgressSnapshot) -> None:
        self._line.show(" · ".join(snapshot.words()))

    def close(self) -> None:
        self._line.close()


def screen(*, quiet: bool = False) -> Screen:
    """Return a live line if stderr is a capable terminal, else plain lines. If `quiet`, the screen shows nothing."""
    if quiet:
        return Screen()
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return LiveScreen()
    return PlainLines()


class ProgressSource(Protocol):
    """A crawl that runs in this process or in a different one, with its counts."""

    @property
    def crawl(self) -> Crawl: ...

    @property
    def tally(self) -> CrawlTally: ...

    @property
    def waits_for(self) -> str | None: ...

    async def status(self) -> CrawlStatus: ...

    async def held(self) -> list[HeldHost]: ...


class Progress:
    """Shows the progress of a crawl while the block runs. `before`: seconds for which the crawl has already run."""

    def __init__(self, source: ProgressSource, clock: Clock, screen: Screen, *, before: float = 0.0) -> None:
        self._source = source
        self._clock = clock
        self._screen = screen
        self._began = clock.monotonic() - before
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_SAMPLES + 1)
        self._counts = Counts()
        self._held: str | None = None
        self._waits_for: str | None = None
        self._named = 0  # number of failed seeds that were printed, or that need not be printed
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
        await self.look()
        while True:
            await self._clock.sleep(self._screen.period_seconds)
            if self._clock.monotonic() - self._samples[-1][0] > LOOK_SECONDS - DRAW_SECONDS / 2:
                await self.look()
            self._name_failed_seeds()
            self._screen.show(self.snapshot())

    def _name_failed_seeds(self) -> None:
        """Name the first seeds that failed; the summary counts the rest."""
        failed = self._source.tally.failed_seeds
        for seed in failed[self._named : MAX_LISTED]:
            note(f"Seed {seed.words()}")
        if len(failed) > MAX_LISTED >= self._named:
            note("More seeds failed; they are counted at the end")
        self._named = len(failed)

    async def look(self) -> None:
        """Read the counts of the crawl, and the reason why it waits."""
        with suppress(TimeError):  # the store is busy or unavailable, and the walker handles that
            self._counts = (await self._source.status()).counts
            self._waits_for = self._source.waits_for if self._counts.queued else None
            may_be_held = self._is_still() or self._waits_for == NEXT_URL
            self._held = held_words(await self._source.held()) if may_be_held and self._counts.queued else None
        self._samples.append((self._clock.monotonic(), self._pages))

    @property
    def _pages(self) -> int:
        """The number of pages of all walkers: the count of this process if it is higher, else the last count from the
        store."""
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
            waits_for=None if self._held else self._waits_words(),
            refusals=tuple((kind, n) for kind in REFUSALS if (n := self._counts.responses[kind])),
        )

    def _waits_words(self) -> str | None:
        """Describe the reason why the next fetch waits."""
        if self._waits_for != NEXT_URL:
            return self._waits_for
        tally = self._source.tally
        if 0 < self._counts.queued <= tally.again:
            return f"the retry of {plural(tally.again, 'URL')} (last: {tally.retried_after})"
        return "the rate limit"

    def _rate(self) -> float:
        (began, before), (ended, pages) = self._samples[0], self._samples[-1]
        return (pages - before) / (ended - began) if ended > began else 0.0

    def _is_still(self) -> bool:
        return len(self._samples) > STALL_SAMPLES and self._samples[-1][1] == self._samples[-1 - STALL_SAMPLES][1]

    def _seconds_left(self, rate: float) -> float | None:
        """Estimate the time to fetch the known URLs. URLs that are not found yet cannot be included."""
        waiting, config = self._counts.queued, self._source.crawl.config
        if len(self._samples) <= MIN_SAMPLES or not rate or not waiting or self._is_still():
            return None
        if config.max_pages is not None:
            waiting = min(waiting, config.max_pages - self._pages)
        seconds = waiting / rate
        if config.max_seconds is not None:
            seconds = min(seconds, config.max_seconds - self._counts.walked.total_seconds())
        return max(0.0, seconds)


FASTER: dict[Speed, Speed] = {"slow": "normal", "normal": "fast", "fast": "max"}


def first_line(crawl: Crawl, asked: CrawlConfig | None, settings: Settings) -> str:
    """Return the first line: the crawl's id, the site, the request rate, the reason for this rate, and the option that
    changes it.
    `asked`: the options that the user gave, without defaults; None if the crawl is resumed."""
    if crawl.state is CrawlState.COMPLETED:
        return f"Crawl {crawl.id} is complete; its stored pages are read."
    seeds = crawl.config.seeds
    others = len(seeds) - 1 + crawl.config.more_seeds
    more = f" and {others:,} more" if others else ""
    site, scope = f"{shorten(redact_url(seeds[0]))}{more}", f"(scope {crawl.config.scope})"
    begin = f"Crawling {site} as {crawl.id}" if asked is not None else f"Resuming {crawl.id}: {site}"
    return f"{begin} {scope} {_rate_and_why(crawl, asked, settings)}."


def _rate_and_why(crawl: Crawl, asked: CrawlConfig | None, settings: Settings) -> str:
    config, (size, rate) = crawl.config, window_and_rate(crawl, settings)
    speed, at_once = config.speed or "normal", plural(size.per_host, "connection")
    words = rate_words(rate.delay_seconds) if rate.delay_seconds else f"without a delay, over up to {at_once} per host"
    if config.delay_seconds is not None:
        return f"{words} (--delay)"
    if asked is None or asked.speed is not None:
        why = f"--speed {speed}"
    elif speed == "normal":
        why = "the default"
    else:
        is_local = all(is_loopback(hostname(seed)) for seed in seeds_of(config))
        why = "the default for a site on this machine" if is_local else "--concurrency without --speed or --delay"
    if rate.delay_seconds and config.concurrency is None and "max_concurrent_curl" in settings.crawl.given:
        why += f"; MAX_CONCURRENT_CURL allows {at_once}, but keeps the delay"
    other = FASTER.get(speed, "normal")
    delay = settings.crawl.speed_profile(other).delay.total_seconds()
    return f"{words} ({why}); `--speed {other}` " + (f"is {1 / delay:g}/s" if delay else "has no delay")


def rate_words(delay_seconds: float) -> str:
    """Describe the request rate that results from this delay, such as `at 5 requests/s per host`."""
    if delay_seconds > 1:
        return f"at 1 request every {delay_seconds:g} s per host"
    per_second = f"{1 / delay_seconds:,.3g}"
    return f"at {per_second} {'request' if per_second == '1' else 'requests'}/s per host"


def held_words(hosts: list[HeldHost]) -> str | None:
    """Describe until when the first of these hosts is on hold."""
    if not hosts:
        return None
    first = min(hosts, key=lambda host: host.until)
    others = f" and {len(hosts) - 1:,} more" if len(hosts) > 1 else ""
    return f"{first.origin}{others} on hold until {from_micros(first.until):%H:%M:%S} UTC"

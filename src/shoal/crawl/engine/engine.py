"""The engine: keeps a window of fetches in flight, and brings what finished to one commit after another.

It runs on callbacks, without a task per page: a fetch that ends is turned into a settled URL and new links on the spot,
and the next one starts. Commits run beside the fetches; each takes as much as the window will need until the next.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import Protocol

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from shoal.base.clock import Clock
from shoal.base.errors import BackendUnavailable, LeaseLost
from shoal.base.url import Url, origin
from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.budget import Budget
from shoal.crawl.engine.host_queues import HostQueues
from shoal.crawl.engine.not_modified import NotModifiedPages
from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.robots_check import RobotsAnswer, RobotsUnavailable
from shoal.crawl.engine.sitemap_reader import SitemapReader
from shoal.crawl.engine.walker_commits import TurnRequest, WalkerCommits
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import Control, FrontierTask, Settled, Turn, UrlKind, WalkerBatch
from shoal.crawl.journal.reporter import JournalReporter
from shoal.crawl.scope.sitemap_guesses import is_first_guess
from shoal.fetch.page_fetcher import Fetched
from shoal.fetch.redirect_chain import RedirectChain
from shoal.fetch.sitemap_fetcher import FetchedSitemap
from shoal.hosts.throttle import THROTTLED, HostAnswer, HostNews, ThrottleTracker
from shoal.pages.bodies import Captured, Waiting
from shoal.pages.page import Page
from shoal.settings import CrawlSettings

STARVING_SECONDS = 0.02  # a window that runs dry commits sooner, but not all the time
LONGEST_SILENCE = 1.0  # seconds between commits that bring nothing: how fast pause and stop are noticed
OUTAGE_SECONDS = 0.5  # between tries to reach the store again
MOST_URLS = 20_000  # that were found, in one commit: a store that is busy for long extends nobody's lease


class Cancel(Protocol):
    def cancel(self) -> None: ...


class PageSource(Protocol):
    def submit(
        self,
        url: Url,
        done: Callable[[Fetched], None],
        condition: tuple[str | None, str | None] | None = None,
        chain: RedirectChain | None = None,
    ) -> Cancel: ...


class SitemapSource(Protocol):
    def submit(self, url: Url, done: Callable[[FetchedSitemap], None]) -> Cancel: ...

    def go_on(self) -> None: ...


class RobotsRules(Protocol):
    def judge(self, url: Url) -> RobotsAnswer: ...

    def denies(self, url: Url) -> bool: ...

    def knows(self, home: str) -> bool: ...

    def sitemaps(self, url: Url) -> list[str]: ...

    def ask(self, url: Url, then: Callable[[], None]) -> None: ...

    def why(self, url: Url) -> RobotsUnavailable: ...

    def close(self) -> None: ...


class BodySink(Protocol):
    """Brings bodies to their store. `is_full`: no more of them are taken before the next `write`."""

    @property
    def is_full(self) -> bool: ...

    def add(self, page: Page, captured: tuple[Captured, ...], earlier: bytes = b"") -> None: ...

    def recall(self, page: Page, earlier: Page) -> None: ...

    def take(self) -> list[Waiting]: ...

    async def write(self, taken: list[Waiting]) -> None: ...

    def forget(self) -> None: ...


class Ending(Enum):
    """Why a walker came back."""

    DRAINED = "drained"
    PAUSED = "paused"
    STOPPED = "stopped"
    BUDGET = "budget"
    HANDED_BACK = "handed_back"


class FetchWindow(Struct, frozen=True):
    """How much may be in flight: in all, and at one host."""

    size: int
    per_host: int


def silence_after(turn: Turn) -> float:
    """Seconds after which a walker that has nothing to bring asks again."""
    if turn.work or turn.wait_seconds is None:
        return LONGEST_SILENCE
    return max(turn.wait_seconds, STARVING_SECONDS)


class EngineHooks(Struct, frozen=True, kw_only=True):
    """Whom the engine asks and tells on its way."""

    alive: Callable[[], bool]  # false once our lease may have run out: then nothing more is taken
    renew: Callable[[], Awaitable[bool]]  # makes sure of it, where we can; whether it is ours
    settled: Callable[[list[Settled]], None]  # is given what each commit made durable
    hungry: Callable[[], bool]  # false while whoever is told has more than enough: then nothing more is taken
    noticed: Callable[[dict[int, HostNews], dict[int, float]], None]  # what hosts said, and for how long they are held
    changed: Callable[[Crawl], FetchWindow]  # is told of other options of the crawl, and answers with what they mean


class Engine:
    """One walker of one crawl."""

    def __init__(
        self,
        walk: WalkerCommits,
        fetcher: PageSource,
        gate: RobotsRules,
        reader: PageReader,
        watch: ThrottleTracker,
        budget: Budget,
        window: FetchWindow,
        settings: CrawlSettings,
        clock: Clock,
        company: EngineHooks,
        *,
        sitemap_fetcher: SitemapSource,
        sitemap_reader: SitemapReader,
        keeper: BodySink | None = None,
        rejudges: bool = False,
    ) -> None:
        self._walk = walk
        walk.admission = self
        self._fetcher = fetcher
        self._gate = gate
        self._reader = reader
        self._watch = watch
        self._sitemap_fetcher = sitemap_fetcher
        self._sitemap_reader = sitemap_reader
        self._budget = budget
        self._window = window
        self._settings = settings
        self._slice_seconds = settings.slice.total_seconds()
        self._clock = clock
        self._company = company
        self._rejudges = rejudges  # what waits may not belong to the crawl any more
        self._keeper = keeper  # brings the bodies of each commit to their store before it
        self._recaller = None if walk.earlier is None else NotModifiedPages(walk.earlier, reader, keeper)
        self._narrator = JournalReporter(clock)
        self._lines = HostQueues(window.per_host)
        self._set_out(clock.monotonic())

    def _set_out(self, now: float) -> None:
        """Nothing is taken yet, nothing was brought, nobody asked for anything."""
        self._report = WalkerBatch()
        self._reported_at = self._began_at = now
        self._moved_at = now  # when something was settled last, or nothing was due
        self._held = 0  # taken and not yet reported
        self._fetching: dict[int, Cancel] = {}
        self._unread: deque[tuple[FrontierTask, Fetched]] = deque()  # came while the report was laden
        self._going_on: asyncio.Handle | None = None  # with a sitemap, of which a part was read
        self._parked: dict[str, list[FrontierTask]] = {}  # per origin, tasks that wait for its robots.txt
        self._timers: dict[int, tuple[asyncio.TimerHandle, FrontierTask]] = {}  # of what waits for its slot
        self._suspects = 0  # held: while one is, nothing else is taken
        self._broken: Exception | None = None  # what a callback raised; told by the engine's own task
        self._wake = asyncio.Event()
        self._asked: str | None = None
        self._nudged = False

    def hand_back(self, reason: str) -> None:
        """Ask the walker to settle what it has and leave the rest to another."""
        self._asked = reason
        self._wake.set()

    def nudge(self) -> None:
        """Commit soon: the run may have something to say."""
        self._nudged = True
        self._wake.set()

    def stalled_for(self) -> float:
        """Seconds in which nothing was settled although work was due. Waiting for the turn of a host is no stall."""
        return self._clock.monotonic() - self._moved_at

    def verdict(self, task: FrontierTask) -> Fate | None:
        """What becomes of a URL that would not be fetched when its time has come, as far as that is known before."""
        if task.chain is not None or task.kind is UrlKind.SITEMAP:
            return None
        if self._rejudges and (fate := self._reader.judge_again(task)) is not Fate.OPEN:
            return fate
        if self._reader.traps.holds(task.url):
            return Fate.QUARANTINED
        return Fate.SKIPPED_ROBOTS if self._gate.denies(task.url) else None

    def knows(self, origin: str) -> bool:
        """Whether the robots.txt of a host has been read."""
        return self._gate.knows(origin)

    async def run(self) -> Ending:
        try:
            return await self._run()
        finally:
            self._drop_all()
            self._gate.close()

    async def _run(self) -> Ending:
        """Walk; and when the store was out of reach, begin again from what it knows, as long as the job is ours.

        Whether the commit that failed was stored cannot be known, so its report is not brought twice: the store has
        it, or the URLs in it are still ours and are taken again.
        """
        while True:
            try:
                return await self._walk_on()
            except BackendUnavailable:
                if not self._company.alive():
                    raise
                self._forget()
                await self._clock.sleep(OUTAGE_SECONDS)

    async def _walk_on(self) -> Ending:
        await self._walk.attach()
        await self._learn_border()
        turn = await self._commit()
        while True:
            if turn.drained:
                return Ending.DRAINED
            if turn.control is not Control.GO:
                return await self._leave(turn.control)
            if turn.changed is not None:
                self._change(turn.changed)
                turn = await self._commit()
                continue
            if self._budget.spent is not None:
                return await self._end(self._budget.spent)
            if self._asked is not None:
                return await self._hand_back(self._asked)
            if turn.others_wait:
                return await self._step_back()
            if self._walk.has_company and self._reader.is_news(turn.work):
                await self._learn_border()
            self._accept(turn)
            await self._pause(turn)
            turn = await self._commit()

    def _change(self, crawl: Crawl) -> None:
        """Go on by other options; what stands in line here is judged by them, too."""
        self._window = self._company.changed(crawl)
        self._lines.per_host = self._window.per_host
        self._rejudges = True
        for task in self._lines.dissolve_all():
            self._admit(task)

    async def _learn_border(self) -> None:
        """Seeds that others fetched, or we before we were killed, may have led the crawl to other hosts."""
        self._reader.widen(await self._walk.seeds_landed())

    async def _commit(self) -> Turn:
        if not self._company.alive() and not await self._company.renew():
            raise LeaseLost(self._walk.holder.job_id, self._walk.holder.epoch)
        report = self._next_report()
        self._held -= len(report.settled)
        self._budget.reported()
        self._catch_up()
        await self._complete(report, MOST_URLS)
        news = self._narrator.news(report)
        ask = TurnRequest(self._room(), self._held, self._slice_over(), news)
        turn = await self._walk.turn(report, ask)
        if not self._unread and not self._is_laden:
            self._sitemap_fetcher.go_on()
        self._narrator.learn(news, turn)
        self._reader.traps.learn(turn.traps)
        if turn.counts is not None:
            self._budget.learn(turn.counts)
        if report.has_tries or (not report.settled and self._held == len(self._timers)):
            self._moved_at = self._clock.monotonic()
        self._company.settled(report.settled)
        if report.hosts:
            self._watch.learn(turn.holds)
            for host in turn.holds:  # it may take what others heard, too, to hold it
                self._leave_alone(host)
            self._narrator.held(report.hosts, turn.holds)
            self._company.noticed(report.hosts, turn.holds)
        return turn

    async def _complete(self, report: WalkerBatch, most: int) -> None:
        """What has to be done before a commit: what is known of unchanged pages is recalled, and bodies are kept.

        Only those of the report: what comes in meanwhile has not been recalled yet. So are those whose links would make
        more than `most` URLs.
        """
        taken = self._keeper.take() if self._keeper is not None else []
        if report.unchanged and self._recaller is not None:
            self._postpone(await self._recaller.recall(report, most))
        if self._keeper is not None:
            await self._keeper.write(taken)

    def _postpone(self, pages: list[Settled]) -> None:
        """What this commit had no room for goes with the next."""
        self._budget.held_back(pages)
        self._held += len(pages)
        self._report.settled[:0] = pages
        self._report.unchanged[:0] = pages

    def _next_report(self) -> WalkerBatch:
        report, self._report = self._report, WalkerBatch()
        report.hosts = self._watch.news()
        now = self._clock.monotonic()
        report.walked = round((now - self._reported_at) * 1e6)
        self._reported_at = now
        return report

    def _slice_over(self) -> bool:
        return self._clock.monotonic() - self._began_at >= self._slice_seconds

    def _room(self) -> int:
        """How many more URLs to hold: the window, and what will finish while the next commit is made."""
        if self._asked is not None or self._budget.spent is not None or self._suspects or not self._company.hungry():
            return 0
        ahead = self._window.size + self._settings.commit_results
        return max(0, ahead - self._held)

    def _accept(self, turn: Turn) -> None:
        loop = asyncio.get_running_loop()
        self._held += len(turn.work)
        self._suspects += sum(task.is_suspect for task in turn.work)
        for task in turn.work:
            if task.is_wary:
                self._watch.beware(task.host)
            if task.verdict is not None:
                self._add(Settled(task, task.verdict))
            elif task.is_killer:
                self._give_up(task)
            elif task.start_in > 0 and not self._reader.is_out_of_reach:
                self._timers[task.seq] = loop.call_later(task.start_in, self._arrive, task), task
            else:
                self._admit(task)
        self._fill()

    def _arrive(self, task: FrontierTask) -> None:
        self._timers.pop(task.seq, None)
        try:
            self._admit(task)
            self._fill()
        except Exception as error:
            self._break(error)

    def _stop_waiting(self) -> None:
        """The host of the only seed cannot be reached: what waits for a slot there fails now, and the crawl ends."""
        waiting, self._timers = self._timers, {}
        for timer, task in waiting.values():
            timer.cancel()
            self._admit(task)

    def fail(self, error: Exception) -> None:
        """End the walk with this error: it would be no use to go on."""
        self._break(error)

    def _break(self, error: Exception) -> None:
        """An error in what the loop calls ends the walk, instead of leaving a URL that nobody settles."""
        self._broken = self._broken or error
        self._wake.set()

    def _admit(self, task: FrontierTask) -> None:
        """A task whose time has come: in line, settled without a fetch, or parked until its host's rules are known."""
        if self._watch.is_attentive and self._watch.holds(task.host):
            self._put_back(task)
            return
        if task.kind is UrlKind.SITEMAP:
            self._admit_sitemap(task)
            return
        if task.chain is not None:
            self._admit_redirected(task)
            return
        if self._rejudges and (fate := self._reader.judge_again(task)) is not Fate.OPEN:
            self._add(Settled(task, fate))
            return
        if self._reader.traps.holds(task.url):
            self._add(Settled(task, Fate.QUARANTINED))
            return
        match self._gate.judge(task.url):
            case RobotsAnswer.ALLOWED:
                self._lines.join(task)
            case RobotsAnswer.DENIED:
                self._add(Settled(task, Fate.SKIPPED_ROBOTS))
            case RobotsAnswer.UNREACHABLE:
                self._add(self._reader.without_robots(task, self._gate.why(task.url)))
            case RobotsAnswer.UNKNOWN:
                self._park(task)

    def _admit_redirected(self, task: FrontierTask) -> None:
        """A page on its way to where it redirects to: the rules of that host count."""
        fate = self._reader.judge_target_again(task) if self._rejudges else Fate.OPEN
        if fate is Fate.OPEN:
            match self._gate.judge(task.at):
                case RobotsAnswer.ALLOWED:
                    self._lines.join(task)
                    return
                case RobotsAnswer.UNREACHABLE:
                    self._add(self._reader.without_robots(task, self._gate.why(task.at)))
                    return
                case RobotsAnswer.UNKNOWN:
                    self._park(task)
                    return
                case RobotsAnswer.DENIED:
                    fate = Fate.SKIPPED_ROBOTS
        self._add(self._reader.turned_away(task, fate))

    def _admit_sitemap(self, task: FrontierTask) -> None:
        """A sitemap waits for its host's rules, too, because they name others. They forbid only one that we guessed."""
        verdict = self._gate.judge(task.url)
        if verdict is RobotsAnswer.UNKNOWN:
            self._park(task)
            return
        if verdict is RobotsAnswer.UNREACHABLE:
            self._add(self._sitemap_reader.without_robots(task, self._gate.why(task.url)))
            return
        if is_first_guess(task):
            self._sitemap_reader.add_named(self._gate.sitemaps(task.url), self._report)
        if verdict is RobotsAnswer.DENIED and self._sitemap_reader.is_guess(task):
            self._add(Settled(task, Fate.SKIPPED_ROBOTS))
        else:
            self._lines.join(task)

    def _park(self, task: FrontierTask) -> None:
        home = origin(task.at)
        parked = self._parked.setdefault(home, [])
        parked.append(task)
        if len(parked) == 1:
            self._gate.ask(task.at, partial(self._unpark, home))

    def _unpark(self, home: str) -> None:
        try:
            for task in self._parked.pop(home, []):
                self._admit(task)
            self._fill()
        except Exception as error:
            self._break(error)

    def _fill(self) -> None:
        if self._timers and self._reader.is_out_of_reach:
            self._stop_waiting()
        if self._budget.spent is not None or self._is_full:
            return
        while len(self._fetching) < self._window.size and (task := self._lines.next()) is not None:
            self._start(task)

    def _start(self, task: FrontierTask) -> None:
        if task.kind is UrlKind.SITEMAP:
            self._fetching[task.seq] = self._sitemap_fetcher.submit(task.url, partial(self._fetched, task))
            return
        condition = (task.etag, task.last_modified) if task.is_conditional else None
        self._fetching[task.seq] = self._fetcher.submit(task.at, partial(self._fetched, task), condition, task.chain)

    def _fetched(self, task: FrontierTask, fetched: Fetched) -> None:
        if self._fetching.pop(task.seq, None) is None:
            return  # cancelled: the frontier has it back
        self._lines.ended(task.host)
        try:
            if fetched.status in THROTTLED or self._watch.is_attentive:
                self._hear(task, fetched)
            if self._unread or self._is_laden:
                self._unread.append((task, fetched))
            else:
                self._take_in(task, fetched)
                self._catch_up()
        except Exception as error:
            self._break(error)

    def _take_in(self, task: FrontierTask, fetched: Fetched) -> None:
        if self._budget.full:
            return  # too late: the frontier gets it back when we leave
        settled = self._read(task, fetched)
        if settled is None:
            self._unread.appendleft((task, fetched))
            self._going_on = self._going_on or asyncio.get_running_loop().call_soon(self._go_on)
            return
        self._budget.count(settled)
        # The commit may end a redirect here: then its record has a body, else a few bytes are kept in vain.
        page = settled.page if settled.onward is None else settled.onward.page
        if fetched.captured and page is not None and self._keeper is not None:
            self._keeper.add(page, fetched.captured, fetched.earlier)
        self._add(settled)

    def _catch_up(self) -> None:
        """Read what had to wait for a report that was not laden; of a large sitemap one part, before others have their
        turn on the loop: a lease has to be extended meanwhile."""
        while self._unread and self._going_on is None and not self._is_laden:
            self._take_in(*self._unread.popleft())
        if self._is_laden:  # the next commit is due
            self._wake.set()
        self._fill()

    def _go_on(self) -> None:
        self._going_on = None
        try:
            self._catch_up()
        except Exception as error:
            self._break(error)

    def _hear(self, task: FrontierTask, fetched: Fetched) -> None:
        """Take note of what the answer says about its host. One that must wait loses its line at once: waiting here
        would start all of it in one go when the hold ends, and others could not have it."""
        home = origin(task.at)
        if task.kind is UrlKind.SITEMAP and fetched.redirects and not fetched.final_url.startswith(f"{home}/"):
            return  # another host's answer
        error = fetched.failure.code if fetched.failure is not None else None
        page = xxh3_64_intdigest(task.url.encode())
        answer = HostAnswer(
            home, task.host, page, task.attempts, fetched.status, fetched.seconds, error, fetched.retry_after
        )
        if self._watch.hear(answer):
            self._leave_alone(task.host)

    def _leave_alone(self, host: int) -> None:
        for waiting in self._lines.dissolve(host):
            self._put_back(waiting)

    def _put_back(self, task: FrontierTask) -> None:
        self._add(Settled(task, Fate.OPEN, untried=True))

    def _read(self, task: FrontierTask, fetched: Fetched) -> Settled | None:
        """None: the rest of a large sitemap waits for the next commit."""
        try:
            if isinstance(fetched, FetchedSitemap):
                return self._sitemap_reader.read(task, fetched, self._report)
            if fetched.chain is not None:
                return self._reader.redirect(task, fetched, self._report)
            return self._reader.read(task, fetched, self._report)
        except Exception as error:  # one odd page must not end the crawl of all others
            return self._reader_of(task).unexpected(task, error)

    def _give_up(self, task: FrontierTask) -> None:
        self._add(self._reader_of(task).killer(task))

    def _reader_of(self, task: FrontierTask) -> PageReader | SitemapReader:
        return self._sitemap_reader if task.kind is UrlKind.SITEMAP else self._reader

    def _add(self, settled: Settled) -> None:
        results = self._report.settled
        results.append(settled)
        self._suspects -= settled.task.is_suspect
        # The first result begins the wait for the commit; a full report or a window that runs dry ends it.
        if len(results) == 1 or len(results) >= self._settings.commit_results or self._starving() or self._is_full:
            self._wake.set()

    @property
    def _is_full(self) -> bool:
        """So much waits to be written, URLs or bodies, that no more is fetched before the next commit."""
        return self._is_laden or (self._keeper is not None and self._keeper.is_full)

    @property
    def _is_laden(self) -> bool:
        """The report has so many URLs that what else comes waits for the next one."""
        return len(self._report.found) + len(self._report.skipped) >= MOST_URLS

    def _starving(self) -> bool:
        return self._held - len(self._report.settled) < self._window.size

    async def _pause(self, turn: Turn) -> None:
        """Until the next commit is due: enough results, enough time, or nothing left to do."""
        began = self._clock.monotonic()
        longest = min(silence_after(turn), self._budget.seconds_left)
        while self._asked is None and not self._nudged:
            if self._broken is not None:
                raise self._broken
            elapsed = self._clock.monotonic() - began
            left = self._due_in(elapsed, longest)
            if left <= 0:
                return
            self._wake.clear()
            await self._nap(left)
        self._nudged = False

    def _due_in(self, elapsed: float, longest: float) -> float:
        finished = len(self._report.settled)
        if self._budget.spent is not None or self._is_full:
            return 0
        if finished and not self._report.has_tries:  # a commit would only take the same again
            held_for = min(self._watch.held_for(done.task.host) for done in self._report.settled)
            return min(held_for, longest - elapsed)
        if finished >= self._settings.commit_results or (finished and finished == self._held):
            return 0
        if not finished:
            return longest - elapsed
        every = self._settings.commit_every.total_seconds()
        return (min(STARVING_SECONDS, every) if self._starving() else every) - elapsed

    async def _nap(self, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _leave(self, control: Control) -> Ending:
        await self._last(lambda report: self._walk.close(report, control.value))
        return Ending.PAUSED if control is Control.PAUSE else Ending.STOPPED

    async def _end(self, reason: str) -> Ending:
        await self._last(lambda report: self._walk.close(report, reason))
        return Ending.BUDGET

    async def _hand_back(self, reason: str) -> Ending:
        await self._last(lambda report: self._walk.hand_back(report, reason))
        return Ending.HANDED_BACK

    async def _step_back(self) -> Ending:
        await self._last(self._walk.step_back)
        return Ending.HANDED_BACK

    async def _last(self, commit: Callable[[WalkerBatch], Awaitable[None]]) -> None:
        self._drop_all()
        report = self._next_report()
        await self._complete(report, sys.maxsize)  # there is no next one
        await commit(report)
        self._company.settled(report.settled)

    def _forget(self) -> None:
        self._drop_all()
        self._reader.forget()
        self._budget.forget()
        if self._keeper is not None:
            self._keeper.forget()
        self._watch.forget()
        self._report = WalkerBatch()
        self._held = 0
        self._suspects = 0

    def _drop_all(self) -> None:
        """Let go of what is in flight: the frontier gets it back."""
        for timer, _ in self._timers.values():
            timer.cancel()
        for fetch in list(self._fetching.values()):
            fetch.cancel()
        self._timers.clear()
        self._fetching.clear()
        self._unread.clear()
        if self._going_on is not None:
            self._going_on.cancel()
            self._going_on = None
        self._lines.clear()
        self._parked.clear()

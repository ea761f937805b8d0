"""One walker, put together: a crawl's options become scope, pace, window, budget and fetcher; then the engine runs."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.errors import ShoalError, StorageFull
from shoal.base.retry_after import retry_after_seconds
from shoal.base.signals import Signal, Signals
from shoal.base.url import Canonicalizer
from shoal.crawl.crawl import Crawl
from shoal.crawl.credentials import cookies_for
from shoal.crawl.engine.budget import Budget
from shoal.crawl.engine.engine import Engine, EngineHooks, FetchWindow
from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.previous_crawl import PreviousCrawl, is_whole
from shoal.crawl.engine.retries import Retries
from shoal.crawl.engine.robots_check import AllowAll, RobotsCheck
from shoal.crawl.engine.sitemap_reader import SitemapReader
from shoal.crawl.engine.walker_commits import WalkerCommits
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, Settled
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.scope.scope import CrawlScope
from shoal.crawl.scope.seeds import seeds_of
from shoal.crawl.scope.sitemap_guesses import wants_sitemaps
from shoal.crawl.store import FrontierStore, HostRate
from shoal.egress import Egress, Failure, HeaderPairs, Limits
from shoal.egress.custom_headers import split
from shoal.extract.page import ExtractOptions
from shoal.fetch.cookies import CookieJar
from shoal.fetch.crawl_headers import CrawlHeaders, homes_of
from shoal.fetch.page_fetcher import PageFetcher
from shoal.fetch.sitemap_fetcher import SitemapFetcher
from shoal.hosts.robots import product_token
from shoal.hosts.robots_cache import RobotsCache
from shoal.hosts.store import HostStore
from shoal.hosts.throttle import HostNews, ThrottleTracker, emit_holds
from shoal.pages.bodies import BodyStore
from shoal.pages.page_signals import PagesSettled, status_class
from shoal.pages.store import PageStore
from shoal.queue.job import Fence
from shoal.queue.queue import Queue
from shoal.settings import Settings

if TYPE_CHECKING:  # few crawls ask for more than facts
    from shoal.extract.hooks import Hook
    from shoal.extract.optional_facts import OptionalFactsReader
    from shoal.pages.body_recorder import BodyRecorder

ACCEPT = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchBlocked(Signal):
    """An address was refused by rule. The detail is for operators: the page's record does not name the address."""

    crawl_id: str
    url: str
    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRan(Signal):
    """What a hook cost one walker."""

    crawl_id: str
    hook: str
    calls: int
    failures: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SitemapSettled(Signal):
    """A sitemap was asked for. `how`: `read`, `partly`, `failed`, or `absent` if we only guessed where one might be."""

    crawl_id: str
    url: str
    how: str
    listed: int
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotsOutOfReach(Signal):
    """The store did not give or keep the robots.txt of a host, so nothing there is fetched for now."""

    crawl_id: str
    origin: str
    error: str


async def never() -> bool:
    """Whoever holds the lease for us gave it up when it could not be trusted: it is not ours to renew."""
    return False


class Walker:
    """The run of one crawl job in this process."""

    def __init__(
        self,
        database: Database,
        crawls: Crawls,
        frontier: FrontierStore,
        hosts: HostStore,
        queue: Queue,
        egress: Egress,
        settings: Settings,
        clock: Clock,
        signals: Signals,
        pages: PageStore,
        bodies: BodyStore,
        crawl: Crawl,
        holder: Fence,
        alive: Callable[[], bool],
        settled: Callable[[list[Settled]], None] = lambda settled: None,
        hungry: Callable[[], bool] = lambda: True,
        renew: Callable[[], Awaitable[bool]] = never,
    ) -> None:
        self._database = database
        self._crawls = crawls
        self._frontier = frontier
        self._hosts = hosts
        self._egress = egress
        self._settings = settings
        self._clock = clock
        self._signals = signals
        self._pages = pages
        self._crawl = crawl
        self._alive = alive
        self._renew = renew
        self._settled = settled
        self._hungry = hungry
        self._window, self._pace = _window_and_pace(crawl, settings)
        self._budget = Budget(crawl.config, clock)
        self._scope = CrawlScope(crawl.config, seeds_of(crawl.config))
        self._watch = ThrottleTracker(
            settings.hosts, clock, ease=self._pace.ease, delay=self._pace.delay.total_seconds()
        )
        self._walk = WalkerCommits(database, crawls, frontier, hosts, queue, crawl, holder, self._pace, pages)
        self._keeper = _keeper(bodies, crawl) if crawl.config.keep_bodies else None
        self._engine: Engine | None = None
        self._leaving: str | None = None
        self._hooks: Sequence[Hook] = ()
        self._is_guess: Callable[[FrontierTask], bool] = lambda sitemap: False

    async def run(self) -> str:
        """Walk until the job has left our hands; how it ended."""
        try:
            self._walk.earlier = await self._earlier()
            self._engine = self._make_engine()
            if self._leaving is not None:
                self._engine.hand_back(self._leaving)
            return (await self._engine.run()).value
        finally:
            self._egress.close()
            self._tell_hooks()
            if self._keeper is not None:
                await self._keeper.close()

    def leave(self, reason: str) -> None:
        """Settle what finished and hand the job back."""
        self._leaving = reason
        if self._engine is not None:
            self._engine.hand_back(reason)

    def stalled_for(self) -> float:
        """Seconds in which nothing was settled although work was due."""
        return 0.0 if self._engine is None else self._engine.stalled_for()

    def nudge(self) -> None:
        """Something about the run changed: ask the store soon."""
        if self._engine is not None:
            self._engine.nudge()

    async def _earlier(self) -> PreviousCrawl | None:
        """The crawl that this one follows; if it was removed meanwhile, pages are asked for as in any crawl."""
        config = self._crawl.config
        if config.recrawl_of is None:
            return None

        async def look(tx: Tx) -> tuple[Crawl, bool] | None:
            earlier = await self._crawls.store.get(tx, config.recrawl_of or "")
            if earlier is None or earlier.key_seed != self._crawl.key_seed:
                return None
            counts = await self._crawls.store.counts(tx, earlier.number)
            return earlier, is_whole(earlier, counts, await self._frontier.traps(tx, earlier.number))

        found = await self._database.read(look)
        if found is None:
            return None
        earlier, whole = found
        return PreviousCrawl(self._database, self._pages, earlier, config, is_whole=whole)

    def _make_engine(self) -> Engine:
        limits = Limits.of(self._settings.egress)
        token = product_token(self._agent)
        options = ExtractOptions(max_links=self._settings.crawl.max_links, agent=token)
        headers = self._crawl_headers()
        pages, sitemaps = self._make_readers()
        gate = self._make_gate()
        pages.denies = gate.denies
        self._is_guess = sitemaps.is_guess
        return Engine(
            self._walk,
            PageFetcher(
                self._egress,
                headers,
                limits,
                options,
                self._blocked,
                self._make_further(),
                capture=self._keeper is not None,
                token=token,
            ),
            gate,
            pages,
            self._watch,
            self._budget,
            self._window,
            self._settings.crawl,
            self._clock,
            EngineHooks(
                alive=self._alive,
                renew=self._renew,
                settled=self._tell,
                hungry=self._hungry,
                noticed=self._notice,
                changed=self._change,
            ),
            sitemap_fetcher=SitemapFetcher(self._egress, headers, limits, self._blocked),
            sitemap_reader=sitemaps,
            keeper=self._keeper,
            rejudges=self._crawl.changed_at > 0,
        )

    def _change(self, crawl: Crawl) -> FetchWindow:
        """The crawl was given other options: everybody who goes by them learns them."""
        self._crawl = crawl
        self._window, self._pace = _window_and_pace(crawl, self._settings)
        self._walk.change(crawl, self._pace)
        self._scope.change(crawl.config)
        self._budget.change(crawl.config)
        self._watch.change(ease=self._pace.ease, delay=self._pace.delay.total_seconds())
        return self._window

    def _tell_hooks(self) -> None:
        for hook in self._hooks:
            ran = HookRan(
                crawl_id=self._crawl.id,
                hook=hook.name,
                calls=hook.calls,
                failures=hook.failures,
                seconds=hook.seconds,
            )
            self._signals.emit(ran)

    def _tell(self, settled: list[Settled]) -> None:
        pages: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for done in settled:
            page = done.page
            if page is None:
                self._tell_sitemap(done)
                continue
            status = status_class(page.status)
            pages[status] += 1
            sizes[status] += page.received
        if pages:
            self._signals.emit(PagesSettled(pages=dict(pages), bytes=dict(sizes)))
        self._settled(settled)

    def _notice(self, news: dict[int, HostNews], holds: dict[int, float]) -> None:
        emit_holds(self._signals, news, holds, self._crawl.id)

    def _tell_sitemap(self, done: Settled) -> None:
        record = done.sitemap
        if record is None:
            return
        how = "read" if record.problem is None else "partly"
        if done.fate is Fate.FAILED:
            how = "absent" if self._is_guess(done.task) else "failed"
        self._signals.emit(
            SitemapSettled(
                crawl_id=self._crawl.id, url=record.url, how=how, listed=record.listed, problem=record.problem
            )
        )

    def _blocked(self, failure: Failure) -> None:
        detail = failure.operator_detail or failure.message
        self._signals.emit(FetchBlocked(crawl_id=self._crawl.id, url=failure.url, code=failure.code, detail=detail))

    def _make_gate(self) -> RobotsCheck | AllowAll:
        if self._crawl.config.robots == "ignore":
            return AllowAll()
        settings = self._settings.hosts
        desk = RobotsCache(self._database, self._hosts, self._egress, self._agent, settings, self._clock, self._signals)
        return RobotsCheck(desk, settings.robots_ttl, stumbled=self._stumbled)

    def _stumbled(self, home: str, error: ShoalError) -> None:
        if isinstance(error, StorageFull) and self._engine is not None:
            self._engine.fail(error)  # before any URL of that host counts a try
        self._signals.emit(RobotsOutOfReach(crawl_id=self._crawl.id, origin=home, error=str(error)))

    @property
    def _agent(self) -> str:
        return self._crawl.config.user_agent or self._settings.egress.user_agent

    def _make_readers(self) -> tuple[PageReader, SitemapReader]:
        """Of pages and of sitemaps: both judge by one scope, and remember what they found in one place."""
        config, key_seed = self._crawl.config, self._crawl.key_seed
        urls = Canonicalizer(config.url_rules(self._settings.crawl.max_url_length))
        seeds = list(dict.fromkeys(seeds_of(config)))
        longest = self._settings.hosts.longest_retry_after
        retries = Retries(
            self._settings.crawl.page_attempts,
            self._settings.crawl.page_backoff,
            asked=lambda retry_after: retry_after_seconds(retry_after, self._clock.now(), longest),
        )
        pages = PageReader(
            key_seed,
            self._scope,
            urls,
            self._clock,
            retries=retries,
            lone_seed=seeds[0] if len(seeds) == 1 else None,
            obey=config.robots == "obey",
            follow=config.sitemap != "only",
        )
        sitemaps = SitemapReader(key_seed, self._scope, urls, self._clock, pages, retries)
        if wants_sitemaps(config):
            pages.redirected = sitemaps.add_guess
        return pages, sitemaps

    def _make_further(self) -> "OptionalFactsReader | None":
        config = self._crawl.config
        if not config.analyze and config.rules is None and not config.hooks:
            return None
        from shoal.extract.hooks import find_hooks
        from shoal.extract.optional_facts import OptionalFactsReader
        from shoal.extract.rules import read_rules

        rules = None if config.rules is None else read_rules(config.rules)
        hooks = find_hooks(config.hooks)
        self._hooks = hooks
        return OptionalFactsReader(self._clock.monotonic, analyze=config.analyze, rules=rules, hooks=hooks)

    def _headers(self) -> HeaderPairs:
        """What every host is told: our name, and what the caller wants in the place of our wishes."""
        given, _ = split(self._crawl.config.headers)
        ours = {"user-agent": ("User-Agent", self._agent), "accept": ("Accept", ACCEPT)}
        return tuple((ours | {pair[0].lower(): pair for pair in given}).values())

    def _crawl_headers(self) -> CrawlHeaders:
        config = self._crawl.config
        seeds = seeds_of(config)
        _, secret = split(config.headers)
        jar = CookieJar(self._clock, cookies_for(config.cookies, seeds))
        return CrawlHeaders(self._headers(), jar, secret, homes_of(seeds))


def _keeper(bodies: BodyStore, crawl: Crawl) -> "BodyRecorder":
    from shoal.pages.body_recorder import BodyRecorder  # only crawls that keep bodies pay for it

    return BodyRecorder(bodies, crawl.bodies)


def _window_and_pace(crawl: Crawl, settings: Settings) -> tuple[FetchWindow, HostRate]:
    """How many at once in all and at one host, and how far apart; what a person set beats the speed profile."""
    config = crawl.config
    profile = settings.crawl.pace(config.speed, config.concurrency)
    size = config.concurrency or settings.crawl.max_concurrent_curl
    delay = profile.delay if config.delay_seconds is None else timedelta(seconds=config.delay_seconds)
    connections = min(size, profile.connections)
    pace = HostRate(
        delay,
        probe=config.robots == "obey",
        per_host=config.max_pages_per_host,
        walkers=config.workers,
        # A host that is too slow for the delay is kept busy by half of the connections that it may have.
        ease=0.0 if config.speed == "max" else 2 / connections,
        longest_ease=settings.hosts.longest_slow_delay,
    )
    return FetchWindow(size, connections), pace

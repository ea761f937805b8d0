"""One walker: the run of a crawl job in this process. The crawl's options determine the walker's scope, rate limit,
window, budget and fetchers."""

from functools import partial
from typing import TYPE_CHECKING

from shoal.base.clock import Clock
from shoal.base.database import Tx
from shoal.base.errors import ShoalError, StorageFull
from shoal.base.url import Canonicalizer
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.credentials import cookies_for
from shoal.crawl.engine.engine import Engine
from shoal.crawl.engine.fetch_window import Admission, Fetchers, FetchWindow, window_and_rate
from shoal.crawl.engine.known_urls import PreviousCrawl, is_whole
from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.results import BatchBuilder, Budget, NotModifiedPages, ResponseReader
from shoal.crawl.engine.sitemap_reader import SitemapReader
from shoal.crawl.engine.walker_commits import WalkerCommits
from shoal.crawl.engine.walker_context import (
    WalkerCallbacks,
    WalkerRequests,
    WalkerRuntime,
    WalkerSignals,
    WalkerStores,
)
from shoal.crawl.scope import seeds_of
from shoal.egress import Limits
from shoal.egress.exchange import parse_retry_after
from shoal.extract.page import ExtractOptions
from shoal.hosts.rate import FetchRate, SlotTiming, changed
from shoal.hosts.robots import product_token
from shoal.hosts.robots_cache import FRESH_FOR, AllowAll, RobotsCache, RobotsRules
from shoal.hosts.throttle import ThrottleTracker
from shoal.queue.job import Fence
from shoal.web.crawl_headers import CookieJar, CrawlHeaders
from shoal.web.page_fetcher import PageFetcher, Retries
from shoal.web.sitemap_fetcher import SitemapFetcher

if TYPE_CHECKING:  # few crawls need these imports: only those that render, store bodies or read more than page facts
    from shoal.extract.optional_facts import OptionalFactsReader
    from shoal.pages.warc import BodyRecorder
    from shoal.web.rendering import RenderStage


class Walker:
    """The run of one crawl job in this process."""

    def __init__(
        self, stores: WalkerStores, runtime: WalkerRuntime, crawl: Crawl, fence: Fence, callbacks: WalkerCallbacks
    ) -> None:
        self._stores = stores
        self._runtime = runtime
        self._crawl = crawl
        self._fence = fence
        self._callbacks = callbacks
        self._control = WalkerRequests()
        self._signals = WalkerSignals(runtime.signals, crawl.id)
        self._engine: Engine | None = None
        self._rate: FetchRate | None = None

    async def run(self) -> str:
        """Crawl until this walker no longer holds the job; return how it ended."""
        bodies: BodyRecorder | None = None
        optional_facts: OptionalFactsReader | None = None
        try:
            bodies = self._body_recorder()
            previous = await self._previous_crawl()
            optional_facts = self._optional_facts()
            self._engine = self._build(previous, bodies, optional_facts)
            self._engine.limit_rate(self._rate)
            return (await self._engine.run()).value
        finally:
            if self._runtime.renderer is not None:
                await self._runtime.renderer.close()
            self._runtime.egress.close()
            if optional_facts is not None:
                self._signals.hooks_ran(optional_facts.hooks)
            if bodies is not None:
                await bodies.close()

    def leave(self, reason: str) -> None:
        """Settle the finished URLs and return the job to the queue."""
        self._control.hand_back(reason)

    def limit_rate(self, per_second: float | None) -> None:
        """Start at most this many fetches per second; None removes the limit."""
        self._rate = changed(self._rate, per_second, self._runtime.clock)
        if self._engine is not None:
            self._engine.limit_rate(self._rate)

    def nudge(self) -> None:
        """Make a commit soon, because something about the crawl changed."""
        self._control.nudge()

    @property
    def waits_for(self) -> str | None:
        """Return what the next fetch waits for; None if it waits for a response, or before the first fetch."""
        return None if self._engine is None else self._engine.waits_for

    def stalled_seconds(self) -> float:
        """Return for how long no URL has been settled although work was due."""
        return 0.0 if self._engine is None else self._engine.stalled_seconds()

    async def _previous_crawl(self) -> PreviousCrawl | None:
        """Load the previous crawl that this crawl repeats. If the previous crawl was deleted meanwhile, no request is
        conditional."""
        stores, config = self._stores, self._crawl.config
        if config.recrawl_of is None:
            return None

        async def look(tx: Tx) -> tuple[Crawl, bool] | None:
            previous = await stores.crawls.store.get(tx, config.recrawl_of or "")
            if previous is None or previous.key_seed != self._crawl.key_seed:
                return None
            counts = await stores.crawls.store.counts(tx, previous.number)
            return previous, is_whole(previous, counts, await stores.frontiers.of(previous).traps(tx, previous.number))

        found = await stores.database.read(look)
        if found is None:
            return None
        previous, whole = found
        return PreviousCrawl(stores.database, previous, config, is_whole=whole)

    def _body_recorder(self) -> "BodyRecorder | None":
        if not self._crawl.config.keep_bodies:
            return None
        from shoal.pages.warc import BodyRecorder  # imported only by crawls that store bodies

        return BodyRecorder(self._stores.bodies, self._crawl.bodies)

    def _optional_facts(self) -> "OptionalFactsReader | None":
        config = self._crawl.config
        if not (config.analyze or config.links) and config.rules is None and not config.hooks:
            return None
        from shoal.extract.optional_facts import OptionalFactsReader, find_hooks
        from shoal.extract.rules import read_rules

        rules = None if config.rules is None else read_rules(config.rules)
        hooks = find_hooks(config.hooks)
        return OptionalFactsReader(
            self._runtime.clock.monotonic, analyze=config.analyze, links=config.links, rules=rules, hooks=hooks
        )

    def _build(
        self,
        previous: PreviousCrawl | None,
        bodies: "BodyRecorder | None",
        optional_facts: "OptionalFactsReader | None",
    ) -> Engine:
        """Build the engine and all objects that only this walker uses."""
        crawl, control, signals = self._crawl, self._control, self._signals
        settings, clock, egress, config = (
            self._runtime.settings,
            self._runtime.clock,
            self._runtime.egress,
            crawl.config,
        )
        agent = config.user_agent or settings.egress.user_agent
        size, rate = window_and_rate(crawl, settings, SlotTiming(clock))
        throttle = ThrottleTracker(
            settings.hosts, clock, latency_factor=rate.latency_factor, delay_seconds=rate.delay_seconds
        )
        robots = self._robots(agent)

        def asked_seconds(header: str) -> float | None:
            wait = parse_retry_after(header, clock.now(), settings.hosts.longest_retry_after)
            return None if wait is None else wait.total_seconds()

        attempts, backoff = settings.crawl.page_attempts, settings.crawl.page_backoff.total_seconds()
        pages = PageReader(
            crawl,
            Canonicalizer(config.url_rules(settings.crawl.max_url_length)),
            clock,
            retries=Retries(attempts, backoff, asked_seconds=asked_seconds),
            denies=robots.denies,
            # Without a delay, a forbidden URL cannot waste a slot, and checking each link twice costs time.
            checks_links=rate.delay_seconds > 0,
        )
        sitemaps = SitemapReader(pages, keeps_entries=config.analyze)
        admission = Admission(robots, pages, sitemaps, rejudges=crawl.changed_at > 0)
        commits = WalkerCommits(
            self._stores, crawl, self._fence, rate=rate, previous_crawl=previous, admission=admission
        )
        batch = BatchBuilder(
            size.total,
            settings.crawl,
            Budget(config, clock),
            throttle,
            control.wake,
            bodies=bodies,
            not_modified=None if previous is None else NotModifiedPages(previous, pages, bodies),
        )
        hands_on = self._callbacks.with_responses
        responses = ResponseReader(pages, sitemaps, batch, bodies=bodies, hands_on=hands_on)
        headers = headers_of(config, agent, clock)
        keeps_responses = bodies is not None or hands_on
        fetcher = PageFetcher(
            egress,
            headers,
            Limits.of(settings.egress),
            ExtractOptions(max_links=settings.crawl.max_links, agent=product_token(agent)),
            signals.fetch_blocked,
            optional_facts,
            capture=keeps_responses or self._runtime.renderer is not None,
            token=product_token(agent),
        )
        fetchers = Fetchers(fetcher, SitemapFetcher(egress, headers, fetcher.limits, signals.fetch_blocked))
        rendering = self._rendering(fetcher, size.per_host, keeps_responses=keeps_responses)
        has_capacity = self._callbacks.has_capacity
        return Engine(
            commits,
            FetchWindow(size, fetchers, admission, responses, control, has_capacity, rendering),
            batch,
            pages=pages,
            sitemaps=sitemaps,
            control=control,
            callbacks=self._callbacks,
            signals=signals,
            settings=settings,
            clock=clock,
        )

    def _rendering(self, fetcher: PageFetcher, connections: int, *, keeps_responses: bool) -> "RenderStage | None":
        renderer, crawl, settings = self._runtime.renderer, self._crawl, self._runtime.settings
        if renderer is None:
            return None
        from shoal.crawl.engine.render_options import render_options  # few crawls render
        from shoal.web.renderer import save_screenshot
        from shoal.web.rendering import RenderCallbacks, RenderStage

        folder, signals = settings.render.screenshots, self._signals
        screenshots = None if folder is None else partial(save_screenshot, folder / crawl.id)
        return RenderStage(
            renderer,
            fetcher,
            render_options(crawl.config, settings, connections=connections, screenshots=screenshots),
            callbacks=RenderCallbacks(
                unavailable=signals.renderer_refused, missing=signals.rendering_impossible, failed=self._control.fail
            ),
            clock=self._runtime.clock,
            keeps_responses=keeps_responses,
        )

    def _robots(self, agent: str) -> RobotsRules:
        if self._crawl.config.robots == "ignore":
            return AllowAll()
        runtime = self._runtime

        def store_failed(host_origin: str, error: ShoalError) -> None:
            if isinstance(error, StorageFull):
                self._control.fail(error)  # must happen before an attempt is counted for any URL of that host
            self._signals.robots_out_of_reach(host_origin, error)

        cache = RobotsCache(
            self._stores.database, runtime.egress, agent, runtime.settings.hosts, runtime.clock, runtime.signals
        )
        return RobotsRules(cache, FRESH_FOR.total_seconds(), on_store_error=store_failed)


def headers_of(config: CrawlConfig, agent: str, clock: Clock) -> CrawlHeaders:
    """Return the headers and cookies of a crawl's requests."""
    seeds = seeds_of(config)
    return CrawlHeaders.build(agent, config.headers, CookieJar(clock, cookies_for(config.cookies, seeds)), seeds)

"""Construction of a walker's engine: the options of its crawl become scope, rate limit, window, budget and fetchers."""

from typing import TYPE_CHECKING

from shoal.base.clock import Clock
from shoal.base.errors import ShoalError, StorageFull
from shoal.base.settings import Settings
from shoal.base.url import Canonicalizer
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.credentials import cookies_for
from shoal.crawl.engine.admission import Admission
from shoal.crawl.engine.budget import Budget
from shoal.crawl.engine.engine import Engine, EngineHooks
from shoal.crawl.engine.fetch_window import Fetchers, FetchWindow
from shoal.crawl.engine.known_urls import PreviousCrawl
from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.results import BatchBuilder, NotModifiedPages, ResponseReader
from shoal.crawl.engine.sitemap_reader import SitemapReader
from shoal.crawl.engine.walker_commits import WalkerCommits
from shoal.crawl.engine.walker_context import (
    WalkerCallbacks,
    WalkerRequests,
    WalkerRuntime,
    WalkerSignals,
    WalkerStores,
)
from shoal.crawl.frontier.values import Settled
from shoal.crawl.scope import CrawlScope, seeds_of
from shoal.crawl.store import HostRate
from shoal.egress import Limits
from shoal.egress.exchange import parse_retry_after
from shoal.extract.page import ExtractOptions
from shoal.hosts.rate import SlotTiming
from shoal.hosts.robots import product_token
from shoal.hosts.robots_cache import FRESH_FOR, AllowAll, RobotsCache, RobotsRules
from shoal.hosts.throttle import ThrottleTracker
from shoal.queue.job import Fence
from shoal.web.crawl_headers import CookieJar, CrawlHeaders
from shoal.web.fetch_pool import WindowSize
from shoal.web.page_fetcher import PageFetcher, Retries
from shoal.web.sitemap_fetcher import SitemapFetcher

if TYPE_CHECKING:  # few crawls store bodies or read more than facts
    from shoal.extract.optional_facts import OptionalFactsReader
    from shoal.pages.warc import BodyRecorder


def build_engine(
    stores: WalkerStores,
    runtime: WalkerRuntime,
    crawl: Crawl,
    fence: Fence,
    callbacks: WalkerCallbacks,
    *,
    control: WalkerRequests,
    signals: WalkerSignals,
    previous: PreviousCrawl | None,
    bodies: "BodyRecorder | None",
    optional_facts: "OptionalFactsReader | None",
) -> Engine:
    """Build the engine of one walker, with everything that only this walker uses."""
    settings, clock, config = runtime.settings, runtime.clock, crawl.config
    agent = config.user_agent or settings.egress.user_agent
    size, rate = window_and_rate(crawl, settings, SlotTiming(clock))
    budget = Budget(config, clock)
    throttle = ThrottleTracker(
        settings.hosts, clock, latency_factor=rate.latency_factor, delay_seconds=rate.delay_seconds
    )
    robots = _robots(stores, runtime, config, agent, control, signals)

    urls = Canonicalizer(config.url_rules(settings.crawl.max_url_length))

    def asked_seconds(header: str) -> float | None:
        wait = parse_retry_after(header, clock.now(), settings.hosts.longest_retry_after)
        return None if wait is None else wait.total_seconds()

    retries = Retries(
        settings.crawl.page_attempts,
        settings.crawl.page_backoff.total_seconds(),
        asked_seconds=asked_seconds,
    )
    pages = PageReader(
        crawl,
        urls,
        clock,
        retries=retries,
        denies=robots.denies,
        # Without a delay no slot can be lost to a forbidden URL, and checking each link twice takes time.
        checks_links=rate.delay_seconds > 0,
    )
    sitemaps = SitemapReader(pages, keeps_entries=config.analyze)

    admission = Admission(robots, pages, sitemaps, rejudges=crawl.changed_at > 0)
    commits = WalkerCommits(
        stores,
        crawl,
        fence,
        rate=rate,
        previous_crawl=previous,
        admission=admission,
    )
    not_modified = None if previous is None else NotModifiedPages(previous, pages, bodies)
    batch = BatchBuilder(
        size.total, settings.crawl, budget, throttle, control.wake, bodies=bodies, not_modified=not_modified
    )
    responses = ResponseReader(pages, sitemaps, batch, bodies=bodies, hands_on=callbacks.with_responses)
    headers = headers_of(config, agent, clock)
    keeps_responses = bodies is not None or callbacks.with_responses
    fetcher = PageFetcher(
        runtime.egress,
        headers,
        Limits.of(settings.egress),
        ExtractOptions(max_links=settings.crawl.max_links, agent=product_token(agent)),
        signals.fetch_blocked,
        optional_facts,
        capture=keeps_responses or runtime.renderer is not None,
        token=product_token(agent),
    )
    fetchers = Fetchers(fetcher, SitemapFetcher(runtime.egress, headers, fetcher.limits, signals.fetch_blocked))
    rendering = None
    if runtime.renderer is not None:
        from shoal.crawl.engine.render_stage_factory import build_render_stage  # few crawls render

        rendering = build_render_stage(
            runtime.renderer,
            fetcher,
            runtime,
            crawl,
            control,
            signals,
            connections=size.per_host,
            keeps_responses=keeps_responses,
        )
    window = FetchWindow(size, fetchers, admission, responses, control, callbacks.has_capacity, rendering)

    def settled(done: list[Settled]) -> None:
        signals.settled(done, sitemaps.is_guess)
        callbacks.settled(done)

    return Engine(
        commits,
        window,
        batch,
        pages=pages,
        budget=budget,
        throttle=throttle,
        control=control,
        hooks=EngineHooks(
            alive=callbacks.alive,
            renew=callbacks.renew,
            has_capacity=callbacks.has_capacity,
            settled=settled,
            hosts_held=signals.hosts_held,
            interrupted=signals.interrupted,
            options_changed=LiveOptions(settings, commits, pages.scope, budget, throttle).apply,
        ),
        slice_seconds=settings.crawl.slice.total_seconds(),
        clock=clock,
    )


class LiveOptions:
    """Applies options that were changed while a crawl runs to everything that depends on them."""

    def __init__(
        self, settings: Settings, commits: WalkerCommits, scope: CrawlScope, budget: Budget, throttle: ThrottleTracker
    ) -> None:
        self._settings = settings
        self._commits = commits
        self._scope = scope
        self._budget = budget
        self._throttle = throttle

    def apply(self, crawl: Crawl) -> WindowSize:
        """Apply the options of the crawl; return the size of the window that they allow."""
        size, rate = window_and_rate(crawl, self._settings, self._commits.rate.timing)
        self._commits.change(crawl, rate)
        self._scope.change(crawl.config)
        self._budget.change(crawl.config)
        self._throttle.change(latency_factor=rate.latency_factor, delay_seconds=rate.delay_seconds)
        return size


def window_and_rate(crawl: Crawl, settings: Settings, timing: SlotTiming | None = None) -> tuple[WindowSize, HostRate]:
    """Return how many fetches may be in flight and how far apart; explicit options override the speed profile."""
    config = crawl.config
    speed = config.speed or "normal"
    profile = settings.crawl.speed_profile(speed, config.concurrency)
    total = config.concurrency or settings.crawl.max_concurrent_curl
    delay_seconds = profile.delay.total_seconds()
    if config.delay_seconds is not None:
        delay_seconds = round(config.delay_seconds, 6)  # a store counts microseconds: less is no delay
    connections = min(total, profile.connections)
    rate = HostRate(
        delay_seconds,
        probe=config.robots == "obey",
        per_host=config.max_pages_per_host,
        walkers=config.workers,
        # Half of the connections are enough to keep a host busy that is too slow for the delay.
        latency_factor=0.0 if speed == "max" else 2 / connections,
        longest_latency_delay_seconds=settings.hosts.longest_slow_delay.total_seconds(),
        timing=timing,
    )
    return WindowSize(total, connections), rate


def _robots(
    stores: WalkerStores,
    runtime: WalkerRuntime,
    config: CrawlConfig,
    agent: str,
    control: WalkerRequests,
    signals: WalkerSignals,
) -> RobotsRules:
    if config.robots == "ignore":
        return AllowAll()
    settings = runtime.settings.hosts

    def store_failed(host_origin: str, error: ShoalError) -> None:
        if isinstance(error, StorageFull):
            control.fail(error)  # before an attempt is counted for any URL of that host
        signals.robots_out_of_reach(host_origin, error)

    cache = RobotsCache(stores.database, runtime.egress, agent, settings, runtime.clock, runtime.signals)
    return RobotsRules(cache, FRESH_FOR.total_seconds(), on_store_error=store_failed)


def headers_of(config: CrawlConfig, agent: str, clock: Clock) -> CrawlHeaders:
    """Return the headers and cookies of the requests of a crawl."""
    seeds = seeds_of(config)
    return CrawlHeaders.build(agent, config.headers, CookieJar(clock, cookies_for(config.cookies, seeds)), seeds)

"""Construction of the runners that workers execute: for crawls, analyses and page jobs, each with a separate egress.

`shoal.work` decides which jobs run, and for how long.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from shoal.app import App
from shoal.app.address_rule import address_rule_of
from shoal.base.errors import BadConfig
from shoal.base.extras import require
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl
from shoal.crawl.credentials import is_label
from shoal.crawl.frontier.values import Settled
from shoal.crawl.lifecycle.crawls import KIND
from shoal.egress import AddressRule, Egress, Limits, Proxy, endpoint
from shoal.hosts.rate import HostDelay
from shoal.queue.job import HTTP, JS, SCRAPE, SCRAPES, SHARED_LANE, Fence, Lease, local_lane

if TYPE_CHECKING:
    from shoal.audit.prober import Prober
    from shoal.audit.run import AnalysisAttempt
    from shoal.crawl.engine.walker import Walker
    from shoal.hosts.robots_cache import RobotsRules
    from shoal.page_jobs.executor import PageJobExecutor
    from shoal.web.renderer import Renderer
    from shoal.web.single_fetch import SingleFetches
    from shoal.work.child_loop import RunningJob
    from shoal.work.worker import Worker
    from shoal.work.worker_context import StorageWatch


def extra_walkers(app: App, crawl: Crawl, size: int, storage: "StorageWatch") -> "Worker":
    """Build a worker that runs the other walkers of a crawl whose first walker runs in this process."""
    from shoal.work.child_handle import ChildSpawner
    from shoal.work.leases import holder_name
    from shoal.work.worker import Worker
    from shoal.work.worker_context import WorkerContext

    settings = app.settings.work.but(concurrency=size)
    environment = {**os.environ, "DATABASE_URL": app.settings.database.url, "SHOAL_LOG_LEVEL": "warning"}
    if app.settings.render.screenshots is not None:
        environment["SHOAL_SCREENSHOTS"] = str(app.settings.render.screenshots)
    context = WorkerContext(
        node_id="local",
        holder=holder_name(),
        lanes=(local_lane(crawl.id),),
        kinds=(KIND,),
        queue=app.queue,
        settings=settings,
        clock=app.clock,
        signals=app.signals,
        spawner=ChildSpawner(app.clock, app.signals, environment),
        storage=storage,
    )
    return Worker(context, app.wake, with_pages=False)


def storage_of(app: App) -> "StorageWatch":
    """Build the watch over the storage to which the workers of one process write."""
    from shoal.work.worker_context import BODIES, STORE, StorageWatch

    return StorageWatch({STORE: app.check_space, BODIES: app.bodies.check_space}, app.clock, app.signals)


async def crawl_runner(app: App, lease: Lease, alive: Callable[[], bool]) -> "Walker":
    """Build the walker of a leased crawl job."""
    found = await app.crawls.get(lease.run_id or "")
    return make_walker(app, found.crawl, lease.fence, alive)


async def analysis_runner(app: App, lease: Lease, alive: Callable[[], bool]) -> "AnalysisAttempt":
    """Build the run of a leased analysis job, with all analyzers: built-in, installed and external ones."""
    require("audit", "An analysis")
    from shoal.audit.analyzers.registry import built_in, external, installed
    from shoal.audit.loader import SiteLoader
    from shoal.audit.run import AnalysisAttempt, AnalysisContext

    settings = app.settings.audit
    analysis = await app.audit.analyses.get(lease.run_id or "")
    found = await app.crawls.get(analysis.crawl_id)
    loader = SiteLoader(
        app.database,
        app.settings.crawl.max_url_length,
        make_prober(app, found.crawl),
    )
    context = AnalysisContext(
        app.database,
        app.audit.analyses,
        app.queue,
        loader,
        app.clock,
        app.signals,
        app.audit.artifacts,
        settings.findings_per_code,
        settings.remeasured_pages,
        {name.strip() for name in settings.optional_analyzers.split(",")},
    )
    analyzers = [*built_in(), *installed(), *external(settings)]
    return AnalysisAttempt(context, analyzers, lease, alive)


def make_prober(app: App, crawl: Crawl) -> "Prober":
    """Build the prober of an analysis, with the egress, user agent and address rule of its crawl."""
    from shoal.audit.prober import HOSTS_AT_ONCE, Prober
    from shoal.hosts.robots_cache import RobotsCache, RobotsRules

    settings, config, clock = app.settings, crawl.config, app.clock
    egress = egress_of(app, crawl)
    agent = config.user_agent or settings.egress.user_agent
    robots = RobotsRules(RobotsCache(app.database, egress, agent, settings.hosts, clock, app.signals))
    fetches = single_fetches(app, robots, HostDelay.outside_crawls(settings), HOSTS_AT_ONCE)
    return Prober(fetches, egress, agent, clock)


def egress_of(app: App, crawl: Crawl) -> Egress:
    """Build the egress of a crawl, with the crawl's address rule and proxy."""
    named = frozenset(endpoint(Url(url)) for url in crawl.named)
    rule = address_rule_of(app.settings, named, app.controller_addresses)
    return Egress(rule, Limits.of(app.settings.egress), clock=app.clock, proxy=proxy_of(app, crawl))


def single_fetches(app: App, robots: "RobotsRules", delay: HostDelay, hosts_at_once: int) -> "SingleFetches":
    """Build the fetcher that requests single URLs within the rate limits of their hosts."""
    from shoal.hosts.rate import SlotTiming
    from shoal.hosts.rate_limiter import RateLimiter
    from shoal.hosts.throttle import ThrottleTracker
    from shoal.web.fetch_pool import WindowSize
    from shoal.web.single_fetch import SingleFetches

    limiter = RateLimiter(delay, timing=SlotTiming(app.clock))
    throttle = ThrottleTracker(app.settings.hosts, app.clock)
    return SingleFetches(WindowSize(hosts_at_once, 1), app.database, limiter, robots, throttle, app.signals)


def page_job_executor(app: App, lanes: Sequence[str] = (SHARED_LANE,)) -> "PageJobExecutor":
    """Build the executor of a page child. All its jobs share one egress per proxy, with the operator's address rule."""
    from shoal.hosts.rate import SlotTiming
    from shoal.hosts.rate_limiter import RateLimiter
    from shoal.hosts.robots_cache import RobotsCache, RobotsRules
    from shoal.hosts.throttle import ThrottleTracker
    from shoal.page_jobs.executor import PageJobExecutor
    from shoal.page_jobs.leasing import PageLeases
    from shoal.page_jobs.runner import EgressRoute, EgressRoutes, PageJobRunner, PatientRobots
    from shoal.web.browser import has_browser

    settings, clock, signals = app.settings, app.clock, app.signals
    delay, agent, limits = HostDelay.outside_crawls(settings), settings.egress.user_agent, Limits.of(settings.egress)

    def route(label: str | None) -> EgressRoute | None:
        proxy = None if label is None else app.proxies.find(label)
        if label is not None and proxy is None:
            return None
        egress = Egress(
            address_rule_of(settings, controllers=app.controller_addresses), limits, clock=clock, proxy=proxy
        )
        robots = RobotsCache(app.database, egress, agent, settings.hosts, clock, signals)
        return EgressRoute(egress, RobotsRules(PatientRobots(robots, clock)))

    renderer = None
    if has_browser(settings.render):
        from shoal.page_jobs.rendering import PageRenderer

        def new_renderer() -> "Renderer":
            from shoal.app.render import standalone_renderer  # imported for the first page that needs a browser

            return standalone_renderer(settings, clock, signals)

        renderer = PageRenderer(new_renderer, settings.crawl.max_concurrent_chrome)
        app.browsers.add(renderer)
    runner = PageJobRunner(
        EgressRoutes(route),
        agent,
        limits,
        settings.crawl.max_links,
        clock,
        settings.hosts.longest_retry_after,
        renderer,
        settings.bots.max_result_bytes,
    )
    return PageJobExecutor(
        app.database,
        PageLeases(app.queue, RateLimiter(delay, timing=SlotTiming(clock)), runner.denies),
        app.page_jobs.ingest,
        runner,
        ThrottleTracker(settings.hosts, clock, latency_factor=delay.latency_factor, delay_seconds=delay.delay_seconds),
        signals,
        lanes=lanes,
        capabilities=(HTTP, SCRAPE) if renderer is None else (HTTP, JS, *SCRAPES),
        connections=settings.pages.speed_profile.connections,
    )


def proxy_of(app: App, crawl: Crawl) -> Proxy | None:
    """Return the proxy of a crawl.

    As with seeds, the address of the proxy may be private only if the operator configured it or a local user named it.
    """
    wanted = crawl.config.proxy
    if wanted is None:
        return None
    if is_label(wanted):
        found = app.proxies.find(wanted)
        if found is None:
            raise BadConfig(
                "SHOAL_PROXIES", f'has no proxy "{wanted}" for {crawl.id}', "define it on this machine, too"
            )
        return found
    proxy = Proxy.parse(wanted, AddressRule())
    named = frozenset({(proxy.host, proxy.port)}) if crawl.named else frozenset()
    return replace(proxy, rule=address_rule_of(app.settings, named, app.controller_addresses))


def make_walker(
    app: App,
    crawl: Crawl,
    fence: Fence,
    alive: Callable[[], bool],
    *,
    settled: Callable[[list[Settled]], None] = lambda settled: None,
    has_capacity: Callable[[], bool] = lambda: True,
    renew: Callable[[], Awaitable[bool]] | None = None,
    with_responses: bool = False,
) -> "Walker":
    """Build a walker of a crawl in this process, with an egress that has the crawl's address rule."""
    from shoal.crawl.engine.walker import Walker
    from shoal.crawl.engine.walker_context import WalkerCallbacks, WalkerRuntime, WalkerStores, never

    stores = WalkerStores(
        database=app.database,
        crawls=app.crawls,
        frontiers=app.stores.frontiers,
        queue=app.queue,
        bodies=app.bodies,
    )
    egress = egress_of(app, crawl)
    renderer = None
    if crawl.config.render != "never":
        from shoal.app.render import crawl_renderer  # imported here because few crawls render pages

        renderer = crawl_renderer(app, crawl, egress)
    runtime = WalkerRuntime(
        egress=egress, settings=app.settings, clock=app.clock, signals=app.signals, renderer=renderer
    )
    callbacks = WalkerCallbacks(
        alive=alive,
        renew=renew or never,
        settled=settled,
        has_capacity=has_capacity,
        with_responses=with_responses,
    )
    return Walker(stores, runtime, crawl, fence, callbacks)


Runs = Mapping[str, Callable[[App, Lease, Callable[[], bool]], "Awaitable[RunningJob]"]]
RUNNERS: Runs = {KIND: crawl_runner, "analysis": analysis_runner}
"""The runners in a worker's child processes, by kind of job."""

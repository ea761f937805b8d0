"""What a process does when it works: walkers of crawls, analyses, page jobs, each with its way out, put together from
an app's rooms. Which job it does, and whether it still may, is `shoal.work`'s."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.app import App, ease_of, rule_of
from shoal.base.errors import BadConfig
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl
from shoal.crawl.credentials import is_label
from shoal.crawl.engine.walker import Walker
from shoal.crawl.engine.walker_context import WalkerCallbacks, WalkerRuntime, WalkerStores, never
from shoal.crawl.frontier.values import Settled
from shoal.crawl.lifecycle.crawls import KIND
from shoal.egress import AddressRule, Egress, Limits, Proxies, Proxy, endpoint
from shoal.queue.job import SHARED_LANE, Fence, Lease, local_lane

if TYPE_CHECKING:
    from shoal.audit.run import AnalysisRun
    from shoal.page_jobs.batch import PageJobBatch
    from shoal.work.child import Run
    from shoal.work.storage_watch import StorageWatch
    from shoal.work.worker import Worker


def extra_walkers(app: App, crawl: Crawl, size: int, storage: "StorageWatch") -> "Worker":
    """Workers of one process for the other walkers of a crawl that it walks itself."""
    from shoal.work.child_process import ChildSpawner
    from shoal.work.local_lease import holder_name
    from shoal.work.worker import Worker
    from shoal.work.worker_context import WorkerContext

    settings = app.settings.work.but(concurrency=size)
    environment = {**os.environ, "DATABASE_URL": app.settings.database.url, "SHOAL_LOG_LEVEL": "warning"}
    place = WorkerContext(
        node_id="here",
        holder=holder_name(),
        lanes=(local_lane(crawl.id),),
        kinds=(KIND,),
        queue=app.queue,
        settings=settings,
        clock=app.clock,
        signals=app.signals,
        nursery=ChildSpawner(app.clock, app.signals, environment),
        storage=storage,
    )
    return Worker(place, app.wake, with_pages=False)


def storage_of(app: App) -> "StorageWatch":
    """The watch over what the workers of one process write to."""
    from shoal.work.storage_watch import BODIES, STORE, StorageWatch

    return StorageWatch({STORE: app.check_room, BODIES: app.bodies.check_room}, app.clock, app.signals)


async def crawl_runner(app: App, lease: Lease, alive: Callable[[], bool]) -> Walker:
    """A walker of a leased job's crawl, ready to start in this process."""
    seen = await app.crawls.get(lease.run_id or "")
    return make_walker(app, seen.crawl, lease.holder, alive)


async def analysis_runner(app: App, lease: Lease, alive: Callable[[], bool]) -> "AnalysisRun":
    """An attempt at an analysis in this process, with every analyzer there is."""
    from shoal.audit.analyzers import ANALYZERS
    from shoal.audit.run import AnalysisRun

    analyses = app.analyses
    return AnalysisRun(app.database, analyses, app.queue, app.pages, ANALYZERS, app.clock, app.signals, lease, alive)


def page_job_runner(app: App, lanes: Sequence[str] = (SHARED_LANE,)) -> "PageJobBatch":
    """What a page child of this process works with: one way out for all of its jobs, under the operator's rule."""
    from shoal.hosts.rate_limiter import HostConnections, RateLimiter
    from shoal.hosts.robots_cache import RobotsCache
    from shoal.hosts.throttle import ThrottleTracker
    from shoal.page_jobs.batch import PageJobBatch
    from shoal.page_jobs.runner import EgressRoute, EgressRoutes, PageJobRunner, RobotsMemo

    settings, clock, signals = app.settings, app.clock, app.signals
    pace, agent, limits = settings.pages.pace, settings.egress.user_agent, Limits.of(settings.egress)
    ease = ease_of(pace)

    def way(label: str | None) -> EgressRoute | None:
        proxy = None if label is None else Proxies(settings.egress.proxies).find(label)
        if label is not None and proxy is None:
            return None
        egress = Egress(rule_of(settings, listeners=app.listeners), limits, clock=clock, proxy=proxy)
        desk = RobotsCache(app.database, app.hosts, egress, agent, settings.hosts, clock, signals)
        return EgressRoute(egress, RobotsMemo(desk, clock))

    return PageJobBatch(
        app.database,
        app.queue,
        app.ingest,
        app.groups.store,
        app.hosts,
        RateLimiter(app.hosts, pace.delay, ease, settings.hosts.longest_slow_delay),
        HostConnections(pace.connections, clock),
        ThrottleTracker(settings.hosts, clock, ease=ease, delay=pace.delay.total_seconds()),
        PageJobRunner(
            EgressRoutes(way), agent, limits, settings.crawl.max_links, clock, settings.hosts.longest_retry_after
        ),
        clock,
        signals,
        lanes,
    )


def _proxy_of(app: App, crawl: Crawl) -> Proxy | None:
    """The crawl's proxy. It may be inside only if the operator set it up, or whoever asked sat at this machine, as for
    the seeds."""
    wanted = crawl.config.proxy
    if wanted is None:
        return None
    if is_label(wanted):
        found = Proxies(app.settings.egress.proxies).find(wanted)
        if found is None:
            raise BadConfig("SHOAL_PROXIES", f'has no proxy "{wanted}" for {crawl.id}', "name it on this machine too")
        return found
    proxy = Proxy.parse(wanted, AddressRule())
    named = frozenset({(proxy.host, proxy.port)}) if crawl.named else frozenset()
    return replace(proxy, rule=rule_of(app.settings, named, app.listeners))


def make_walker(
    app: App,
    crawl: Crawl,
    fence: Fence,
    alive: Callable[[], bool],
    *,
    settled: Callable[[list[Settled]], None] = lambda settled: None,
    has_capacity: Callable[[], bool] = lambda: True,
    renew: Callable[[], Awaitable[bool]] = never,
) -> Walker:
    """Build a walker of a crawl in this process, with an egress under the crawl's own address rule."""
    named = frozenset(endpoint(Url(url)) for url in crawl.named)
    rule = rule_of(app.settings, named, app.listeners)
    stores = WalkerStores(
        database=app.database,
        crawls=app.crawls,
        frontier=app.frontier,
        hosts=app.hosts,
        queue=app.queue,
        pages=app.pages,
        bodies=app.bodies,
    )
    runtime = WalkerRuntime(
        egress=Egress(rule, Limits.of(app.settings.egress), clock=app.clock, proxy=_proxy_of(app, crawl)),
        settings=app.settings,
        clock=app.clock,
        signals=app.signals,
    )
    callbacks = WalkerCallbacks(alive=alive, renew=renew, settled=settled, has_capacity=has_capacity)
    return Walker(stores, runtime, crawl, fence, callbacks)


Runs = Mapping[str, Callable[[App, Lease, Callable[[], bool]], "Awaitable[Run]"]]
RUNNERS: Runs = {KIND: crawl_runner, "analysis": analysis_runner}
"""What a worker's children run, by kind of job."""

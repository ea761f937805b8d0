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
from shoal.crawl.crawls import KIND
from shoal.crawl.credentials import is_label
from shoal.crawl.frontier import Settled
from shoal.crawl.walker import Walker, never
from shoal.egress import AddressRule, Egress, Limits, Proxies, Proxy, endpoint
from shoal.queue.job import SHARED_LANE, Holder, Lease, local_lane

if TYPE_CHECKING:
    from shoal.audit.run import AnalysisRun
    from shoal.fetch.jobs import PageJobs
    from shoal.work.child import Run
    from shoal.work.storage import StorageWatch
    from shoal.work.worker import Worker


def company_of(app: App, crawl: Crawl, size: int, storage: "StorageWatch") -> "Worker":
    """Workers of one process for the other walkers of a crawl that it walks itself."""
    from shoal.work.local import holder_name
    from shoal.work.nursery import Nursery
    from shoal.work.worker import Worker
    from shoal.work.workplace import Workplace

    settings = app.settings.work.but(concurrency=size)
    environment = {**os.environ, "DATABASE_URL": app.settings.database.url, "SHOAL_LOG_LEVEL": "warning"}
    place = Workplace(
        node_id="here",
        holder=holder_name(),
        lanes=(local_lane(crawl.id),),
        kinds=(KIND,),
        queue=app.queue,
        settings=settings,
        clock=app.clock,
        signals=app.signals,
        nursery=Nursery(app.clock, app.signals, environment),
        storage=storage,
    )
    return Worker(place, app.wake, with_pages=False)


def storage_of(app: App) -> "StorageWatch":
    """The watch over what the workers of one process write to."""
    from shoal.work.storage import BODIES, STORE, StorageWatch

    return StorageWatch({STORE: app.check_room, BODIES: app.bodies.check_room}, app.clock, app.signals)


async def run_of(app: App, lease: Lease, alive: Callable[[], bool]) -> Walker:
    """A walker of a leased job's crawl, ready to start in this process."""
    seen = await app.crawls.get(lease.run_id or "")
    return walker_of(app, seen.crawl, lease.holder, alive)


async def analysis_of(app: App, lease: Lease, alive: Callable[[], bool]) -> "AnalysisRun":
    """An attempt at an analysis in this process, with every analyzer there is."""
    from shoal.audit.analyzers import ANALYZERS
    from shoal.audit.run import AnalysisRun

    analyses = app.analyses
    return AnalysisRun(app.database, analyses, app.queue, app.pages, ANALYZERS, app.clock, app.signals, lease, alive)


def page_work_of(app: App, lanes: Sequence[str] = (SHARED_LANE,)) -> "PageJobs":
    """What a page child of this process works with: one way out for all of its jobs, under the operator's rule."""
    from shoal.fetch.jobs import PageJobs
    from shoal.fetch.page_job import PageRunner, RobotsMemory, Way, Ways
    from shoal.hosts.desk import RobotsDesk
    from shoal.hosts.places import Connections, Places
    from shoal.hosts.watch import HostWatch

    settings, clock, signals = app.settings, app.clock, app.signals
    pace, agent, limits = settings.pages.pace, settings.egress.user_agent, Limits.of(settings.egress)
    ease = ease_of(pace)

    def way(label: str | None) -> Way | None:
        proxy = None if label is None else Proxies(settings.egress.proxies).find(label)
        if label is not None and proxy is None:
            return None
        egress = Egress(rule_of(settings, listeners=app.listeners), limits, clock=clock, proxy=proxy)
        desk = RobotsDesk(app.database, app.hosts, egress, agent, settings.hosts, clock, signals)
        return Way(egress, RobotsMemory(desk, clock))

    return PageJobs(
        app.database,
        app.queue,
        app.ingest,
        app.groups.store,
        app.hosts,
        Places(app.hosts, pace.delay, ease, settings.hosts.longest_slow_delay),
        Connections(pace.connections, clock),
        HostWatch(settings.hosts, clock, ease=ease, delay=pace.delay.total_seconds()),
        PageRunner(Ways(way), agent, limits, settings.crawl.max_links, clock, settings.hosts.longest_retry_after),
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


def walker_of(
    app: App,
    crawl: Crawl,
    holder: Holder,
    alive: Callable[[], bool],
    settled: Callable[[list[Settled]], None] = lambda settled: None,
    hungry: Callable[[], bool] = lambda: True,
    renew: Callable[[], Awaitable[bool]] = never,
) -> Walker:
    """A walker of a crawl in this process, going out under the crawl's own address rule."""
    named = frozenset(endpoint(Url(url)) for url in crawl.named)
    rule = rule_of(app.settings, named, app.listeners)
    egress = Egress(rule, Limits.of(app.settings.egress), clock=app.clock, proxy=_proxy_of(app, crawl))
    return Walker(
        app.database,
        app.crawls,
        app.frontier,
        app.hosts,
        app.queue,
        egress,
        app.settings,
        app.clock,
        app.signals,
        app.pages,
        app.bodies,
        crawl,
        holder,
        alive,
        settled,
        hungry,
        renew,
    )


Runs = Mapping[str, Callable[[App, Lease, Callable[[], bool]], "Awaitable[Run]"]]
RUNS: Runs = {KIND: run_of, "analysis": analysis_of}
"""What a worker's children run, by kind of job."""

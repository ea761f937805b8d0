"""The objects of one process, on one store."""

import os
from functools import cached_property
from typing import TYPE_CHECKING

from shoal.app.address_rule import address_rule_of
from shoal.app.drivers import bodies_of
from shoal.app.stores import Stores
from shoal.audit.job_listener import AnalysisListener
from shoal.base.database import Tx
from shoal.crawl.journal import Journal
from shoal.crawl.lifecycle.crawl_jobs import CrawlJobs
from shoal.crawl.lifecycle.crawls import KIND, Crawls
from shoal.crawl.lifecycle.transitions import CrawlTransitions
from shoal.egress import Proxies
from shoal.hosts.controller_addresses import ControllerAddresses
from shoal.page_jobs.job_listener import PageJobListener
from shoal.plan.policy_runs import PolicyRuns
from shoal.queue.enqueuer import BackPressure, Enqueuer, no_back_pressure
from shoal.queue.lanes import lanes_as_given
from shoal.queue.queue import Queue
from shoal.queue.wake import InProcessWake, Wake, announcing

# Modules that most commands never need are imported where they are used, to keep the start of small crawls fast.
if TYPE_CHECKING:
    from shoal.app.access import Access
    from shoal.app.audit import Audit
    from shoal.app.chores import Chores
    from shoal.app.console import Console
    from shoal.app.drivers import SqlDatabase
    from shoal.app.events import Events
    from shoal.app.fleet import Fleet
    from shoal.app.page_jobs import PageJobs
    from shoal.app.plan import Plan
    from shoal.app.rest_api import RestApi
    from shoal.crawl.dump import CrawlDump
    from shoal.crawl.frontier.admin import CrawlRemovals, FrontierAdmin
    from shoal.crawl.politeness import Politeness
    from shoal.observe.stats import HourlyStatsReader
    from shoal.pages.pages import Pages
    from shoal.queue.job_admin import JobAdmin
    from shoal.serve.stats import StateCounts
    from shoal.web.renderer import LocalBrowsers


class App:
    """The objects of one process. Each is built at most once and shared by everything that uses it.

    The queue and crawls, which every process needs, are built immediately; all other objects are built and imported on
    first use. Each of the other packages has one attribute that holds its objects (`access`, `audit`, `events`,
    `fleet`, `page_jobs`, `plan`).
    """

    def __init__(
        self, stores: Stores, database: "SqlDatabase", wake: Wake | None = None, *, controls: bool = False
    ) -> None:
        """`database` is open, and the caller closes it. Without `wake`, wake-up hints stay in this process. `controls`:
        this process runs the control plane, so it dispatches jobs to nodes, and holds jobs back while no node has a
        free slot for them."""
        self.stores = stores
        settings = self.settings = stores.settings
        clock = self.clock = stores.clock
        signals = self.signals = stores.signals
        self.database = database
        self.wake = wake or InProcessWake(signals)
        signals.subscribe(announcing(self.wake))
        self.bodies = bodies_of(settings, clock, signals)
        self.address_rule = address_rule_of(settings)
        self.proxies = Proxies(settings.egress.proxies)
        self.controller_addresses = ControllerAddresses(database)
        self.controls = controls
        choose_lanes = self.fleet.dispatcher.choose_lanes if controls and self.fleet.dispatches else lanes_as_given
        self.back_pressure: BackPressure = self.fleet.pressure.check if controls else no_back_pressure
        enqueuer = Enqueuer(stores.jobs, stores.lanes, signals, choose_lanes)
        self.policy_runs = PolicyRuns()
        self.analysis_listener = AnalysisListener(
            database,
            enqueuer,
            stores.jobs,
            signals,
            settings.queue.job_attempts,
        )
        journal = Journal(database, settings.crawl.journal_lines)
        transitions = CrawlTransitions(journal, signals)
        crawl_jobs = CrawlJobs(
            stores.frontiers,
            stores.jobs,
            journal,
            transitions,
            signals,
            [self.analysis_listener, self.policy_runs],
        )
        self.queue = Queue(
            database,
            enqueuer,
            settings.queue,
            {
                KIND: crawl_jobs,
                "page": PageJobListener(signals, [self.policy_runs]),
                "analysis": self.analysis_listener,
            },
        )
        self.crawls = Crawls(
            self.queue,
            stores.frontiers,
            transitions,
            rule=self.address_rule,
            proxies=self.proxies,
            settings=settings.crawl,
        )

    @cached_property
    def job_admin(self) -> "JobAdmin":
        from shoal.queue.job_admin import JobAdmin

        return JobAdmin(self.database, self.queue, self.stores.job_admin)

    @cached_property
    def frontier_admin(self) -> "FrontierAdmin":
        from shoal.crawl.frontier.admin import FrontierAdmin

        admins, forget = self.stores.frontier_admins, self._forget_artifacts
        return FrontierAdmin(self.database, self.crawls, self.queue, admins, self.bodies, forget)

    @cached_property
    def crawl_removals(self) -> "CrawlRemovals":
        from shoal.crawl.frontier.admin import CrawlRemovals

        return CrawlRemovals(self.frontier_admin)

    async def _forget_artifacts(self, crawl_id: str) -> None:
        await self.audit.files.forget_crawl(crawl_id)

    @cached_property
    def politeness(self) -> "Politeness":
        from shoal.crawl.politeness import Politeness

        return Politeness(self.database, self.crawls, self.stores.frontier_admins, self.settings)

    @cached_property
    def pages(self) -> "Pages":
        from shoal.pages.pages import Pages

        return Pages(self.database, self.clock)

    @cached_property
    def hourly_stats(self) -> "HourlyStatsReader":
        from shoal.observe.stats import HourlyStatsReader

        return HourlyStatsReader(self.database)

    @cached_property
    def process_name(self) -> str:
        """The name of this process, unique among all controllers."""
        return f"{self.settings.grpc.node_id}/{os.getpid()}"

    @cached_property
    def crawl_dump(self) -> "CrawlDump":
        from shoal.crawl.dump import CrawlDump

        stores = self.stores
        return CrawlDump(
            self.database, self.crawls, stores.frontier_admins, stores.sql_frontier_admin, self.frontier_admin
        )

    @cached_property
    def browsers(self) -> "LocalBrowsers":
        """The browsers that this process has started."""
        from shoal.web.renderer import LocalBrowsers

        return LocalBrowsers()

    @cached_property
    def access(self) -> "Access":
        from shoal.app.access import Access

        return Access(self)

    @cached_property
    def audit(self) -> "Audit":
        from shoal.app.audit import Audit

        return Audit(self)

    @cached_property
    def events(self) -> "Events":
        from shoal.app.events import Events

        return Events(self)

    @cached_property
    def fleet(self) -> "Fleet":
        from shoal.app.fleet import Fleet

        return Fleet(self)

    @cached_property
    def page_jobs(self) -> "PageJobs":
        from shoal.app.page_jobs import PageJobs

        return PageJobs(self)

    @cached_property
    def plan(self) -> "Plan":
        from shoal.app.plan import Plan

        return Plan(self)

    @cached_property
    def chores(self) -> "Chores":
        from shoal.app.chores import Chores

        return Chores(self)

    @cached_property
    def state_counts(self) -> "StateCounts":
        from shoal.serve.stats import Cached, StateCounts

        return StateCounts(Cached(self.crawls.count, self.clock), Cached(self.job_admin.count, self.clock))

    @cached_property
    def console(self) -> "Console":
        from shoal.app.console import Console

        return Console(self)

    @cached_property
    def rest_api(self) -> "RestApi":
        from shoal.app.rest_api import RestApi

        return RestApi(self)

    async def check_store(self) -> None:
        """Raise an error unless the store can be read and written. A full store can still be read, so this method
        writes a row."""

        async def write(tx: Tx) -> None:
            await tx.execute("test_write", name="ready")

        await self.database.run(write, within=self.settings.database.connect_timeout)

    async def check_space(self) -> None:
        """Raise an error unless the store accepts writes and has free space."""
        await self.check_store()
        await self.database.check_space()

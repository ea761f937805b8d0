"""The pages of the console."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final

from shoal.base.settings_loader import LoadedSettings
from shoal.crawl.lifecycle.crawl_status import CrawlSearch
from shoal.crawl.preview import ScopePreviewer
from shoal.egress import Egress, Limits
from shoal.observe.stats import read_store_size
from shoal.pages.pages import LinkCounters, PageComparer, PageSummaries
from shoal.serve.console.analyses import AnalysesPage, AnalysisPage, CrawlAuditPage
from shoal.serve.console.crawl import CrawlFigures, CrawlPage
from shoal.serve.console.crawl_actions import CrawlActions
from shoal.serve.console.crawl_links import CrawlLinksPage
from shoal.serve.console.crawl_pages import CrawlDiffPage, CrawlPagesPage
from shoal.serve.console.crawls import CrawlsPage
from shoal.serve.console.events import EventsPage, WebhookPage
from shoal.serve.console.feed import FeedApi, LivePage
from shoal.serve.console.fleet import BotsPage, FleetPage, NodePage, NodeRateSampler
from shoal.serve.console.jobs import JobPage, JobsPage
from shoal.serve.console.new_crawl import NewCrawlPage
from shoal.serve.console.overview import Overview, OverviewPage, RateSampler
from shoal.serve.console.page import PageCopies, PagePage
from shoal.serve.console.policies import PoliciesPage, PolicyPage
from shoal.serve.console.policy_form import PolicyFormPage, PolicyImportPage
from shoal.serve.console.settings import PreferencesApi, SettingsPage, Storage
from shoal.serve.console.shell import SECTIONS, Shell
from shoal.serve.console.worker_watch import WorkerWatch
from shoal.serve.stats import Cached

if TYPE_CHECKING:
    from shoal.app.app import App

SIZES_SHARE: Final = 0.005  # share of the time that may be spent on reading the sizes of the store
SAMPLE_EVERY: Final = timedelta(seconds=5)


class Console:
    """The pages, and the stream that updates them."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self.sources: Mapping[str, str] = defaultdict(lambda: "default")  # by setting name; filled by `shoal serve`

    @cached_property
    def shell(self) -> Shell:
        return Shell(
            (one.name for one in SECTIONS), self._app.clock, self._app.settings.serve.public_url, self.worker_watch
        )

    @cached_property
    def worker_watch(self) -> WorkerWatch:
        return WorkerWatch(self._app.database, self._app.settings)

    @cached_property
    def rates(self) -> RateSampler:
        return RateSampler(self._app.crawls, self._app.clock)

    @cached_property
    def node_rates(self) -> NodeRateSampler:
        return NodeRateSampler(self._app.fleet.nodes, self._app.clock)

    @property
    def feed(self) -> FeedApi:
        """The stream that updates the pages."""
        return self._groups[0]

    @property
    def endpoint_groups(self) -> list[object]:
        return self._groups[1]

    def settings(self) -> list[tuple[str, str, str]]:
        """Return the name, the value (without secrets) and the source of each setting."""
        return [(one.env, one.value, one.source) for one in LoadedSettings(self._app.settings, self.sources).shown()]

    def _previewer(self) -> ScopePreviewer:
        app, settings = self._app, self._app.settings
        limits = Limits.of(settings.egress)
        return ScopePreviewer(
            lambda: Egress(app.address_rule, limits, clock=app.clock),
            settings.egress.user_agent,
            settings.hosts.longest_crawl_delay,
        )

    @cached_property
    def _groups(self) -> tuple[FeedApi, list[object]]:
        """The stream of updates, and all groups of endpoints in the order in which requests are matched."""
        app, shell, settings = self._app, self.shell, self._app.settings
        nodes, webhooks, policies = app.fleet.nodes, app.events.webhooks, app.plan.policies
        analyses, gates = app.audit.analyses, app.audit.gates
        figures = Overview(app.crawls, app.state_counts, policies, nodes, webhooks, analyses)
        overview = OverviewPage(shell, figures, app.hourly_stats, self.rates, self.worker_watch)
        search = CrawlSearch(app.crawls, app.clock)
        crawls = CrawlsPage(shell, app.crawls, search, app.crawl_removals, app.state_counts.crawls)
        summaries = PageSummaries(app.database, app.clock)
        crawl_figures = CrawlFigures(
            app.crawls, app.frontier_admin, summaries, app.job_admin, app.politeness, app.clock
        )
        crawl = CrawlPage(shell, crawl_figures, app.crawl_removals)
        analysis = AnalysisPage(shell, analyses, app.crawls)
        crawl_audit = CrawlAuditPage(shell, app.crawls, analyses, gates, crawl, analysis)
        jobs, job = JobsPage(shell, app.job_admin, app.state_counts.jobs), JobPage(shell, app.job_admin)
        fleet = FleetPage(shell, nodes, self.node_rates, app.fleet.pressures)
        node = NodePage(shell, nodes, self.node_rates, app.fleet.explainer)
        live: list[LivePage] = [overview, crawls, *crawl.tabs, crawl_audit, jobs, job, fleet, node]
        rest: list[LivePage] = [
            PoliciesPage(shell, policies),
            BotsPage(shell, app.access.tokens, app.hourly_stats),
            PolicyPage(shell, policies, app.page_jobs.history),
            AnalysesPage(shell, analyses, gates),
            analysis,
            EventsPage(shell, webhooks),
            WebhookPage(shell, webhooks, app.events.tester),
        ]
        feed = FeedApi(shell, [*live, *rest], app.clock)
        copies = PageCopies(app.bodies, settings.render.screenshots)
        urls = settings.crawl.max_url_length
        sizes = Cached(lambda: read_store_size(app.database), app.clock, SIZES_SHARE)
        return feed, [
            overview,
            crawls,
            NewCrawlPage(shell, app.crawls, self._previewer),
            CrawlPagesPage(shell, app.crawls, app.pages, LinkCounters(app.database, app.clock), crawl),
            CrawlLinksPage(shell, app.crawls, app.database, app.stores.frontier_admins, urls, crawl),
            CrawlDiffPage(shell, app.crawls, PageComparer(app.database), crawl),
            crawl_audit,
            crawl,
            CrawlActions(shell, app.crawls, app.frontier_admin, app.crawl_removals),
            PagePage(shell, app.crawls, app.frontier_admin, app.pages, copies, analyses),
            jobs,
            job,
            fleet,
            node,
            PolicyFormPage(shell, policies, app.crawls),
            PolicyImportPage(shell, app.plan.importer),
            *rest,
            SettingsPage(shell, app.access.tokens, app.access.audit_log, self.settings, Storage(sizes, settings)),
            feed,
            PreferencesApi(shell),
        ]

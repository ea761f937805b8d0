"""The pages of the console."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final

from shoal.base.settings_loader import LoadedSettings
from shoal.crawl.lifecycle.search import CrawlSearch
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
        self.sources: Mapping[str, str] = defaultdict(lambda: "default")  # by setting; filled by `shoal serve`

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
    def overview(self) -> OverviewPage:
        app = self._app
        figures = Overview(
            app.crawls,
            app.state_counts,
            app.plan.policies,
            app.fleet.nodes,
            app.events.webhooks,
            app.audit.analyses,
        )
        return OverviewPage(self.shell, figures, app.hourly_stats, self.rates, self.worker_watch)

    @cached_property
    def crawls(self) -> CrawlsPage:
        app = self._app
        search = CrawlSearch(app.crawls, app.clock)
        return CrawlsPage(self.shell, app.crawls, search, app.crawl_removals, app.state_counts.crawls)

    @cached_property
    def new_crawl(self) -> NewCrawlPage:
        return NewCrawlPage(self.shell, self._app.crawls, self._previewer)

    @cached_property
    def crawl(self) -> CrawlPage:
        app = self._app
        summaries = PageSummaries(app.database, app.clock)
        figures = CrawlFigures(app.crawls, app.frontier_admin, summaries, app.job_admin, app.politeness, app.clock)
        return CrawlPage(self.shell, figures, app.crawl_removals)

    def _previewer(self) -> ScopePreviewer:
        app, settings = self._app, self._app.settings
        limits = Limits.of(settings.egress)
        return ScopePreviewer(
            lambda: Egress(app.address_rule, limits, clock=app.clock),
            settings.egress.user_agent,
            settings.hosts.longest_crawl_delay,
        )

    @cached_property
    def jobs(self) -> JobsPage:
        return JobsPage(self.shell, self._app.job_admin, self._app.state_counts.jobs)

    @cached_property
    def job(self) -> JobPage:
        return JobPage(self.shell, self._app.job_admin)

    @cached_property
    def node_rates(self) -> NodeRateSampler:
        return NodeRateSampler(self._app.fleet.nodes, self._app.clock)

    @cached_property
    def fleet(self) -> FleetPage:
        return FleetPage(self.shell, self._app.fleet.nodes, self.node_rates, self._app.fleet.pressures)

    @cached_property
    def node(self) -> NodePage:
        fleet = self._app.fleet
        return NodePage(self.shell, fleet.nodes, self.node_rates, fleet.explainer)

    @cached_property
    def policies(self) -> PoliciesPage:
        return PoliciesPage(self.shell, self._app.plan.policies)

    @cached_property
    def policy(self) -> PolicyPage:
        return PolicyPage(self.shell, self._app.plan.policies, self._app.page_jobs.history)

    @cached_property
    def bots(self) -> BotsPage:
        return BotsPage(self.shell, self._app.access.tokens, self._app.hourly_stats)

    @cached_property
    def analyses(self) -> AnalysesPage:
        return AnalysesPage(self.shell, self._app.audit.analyses, self._app.audit.gates)

    @cached_property
    def analysis(self) -> AnalysisPage:
        return AnalysisPage(self.shell, self._app.audit.analyses)

    @cached_property
    def crawl_audit(self) -> CrawlAuditPage:
        app = self._app
        return CrawlAuditPage(self.shell, app.crawls, app.audit.analyses, app.audit.gates, self.crawl, self.analysis)

    @cached_property
    def events(self) -> EventsPage:
        return EventsPage(self.shell, self._app.events.webhooks)

    @cached_property
    def webhook(self) -> WebhookPage:
        return WebhookPage(self.shell, self._app.events.webhooks, self._app.events.tester)

    def settings(self) -> list[tuple[str, str, str]]:
        """Return the name, the value without secrets and the source of each setting."""
        return [(one.env, one.value, one.source) for one in LoadedSettings(self._app.settings, self.sources).shown()]

    @cached_property
    def _storage(self) -> Storage:
        sizes = Cached(lambda: read_store_size(self._app.database), self._app.clock, SIZES_SHARE)
        return Storage(sizes, self._app.settings)

    @cached_property
    def feed(self) -> FeedApi:
        pages: list[LivePage] = [
            self.overview,
            self.crawls,
            *self.crawl.tabs,
            self.crawl_audit,
            self.jobs,
            self.job,
            self.fleet,
            self.node,
        ]
        pages += [self.policies, self.bots, self.policy, self.analyses, self.analysis]
        pages += [self.events, self.webhook]
        return FeedApi(self.shell, pages, self._app.clock)

    @cached_property
    def endpoint_groups(self) -> list[object]:
        app = self._app
        pages = app.pages
        copies = PageCopies(app.bodies, app.settings.render.screenshots)
        return [
            self.overview,
            self.crawls,
            self.new_crawl,
            CrawlPagesPage(self.shell, app.crawls, pages, LinkCounters(app.database, app.clock), self.crawl),
            CrawlLinksPage(
                self.shell,
                app.crawls,
                app.database,
                app.stores.frontier_admins,
                app.settings.crawl.max_url_length,
                self.crawl,
            ),
            CrawlDiffPage(self.shell, app.crawls, PageComparer(app.database), self.crawl),
            self.crawl_audit,
            self.crawl,
            CrawlActions(self.shell, app.crawls, app.frontier_admin, app.crawl_removals),
            PagePage(self.shell, app.crawls, app.frontier_admin, pages, copies, app.audit.analyses),
            self.jobs,
            self.job,
            self.fleet,
            self.node,
            self.policies,
            PolicyFormPage(self.shell, app.plan.policies, app.crawls),
            PolicyImportPage(self.shell, app.plan.importer),
            self.bots,
            self.policy,
            self.analyses,
            self.analysis,
            self.events,
            self.webhook,
            SettingsPage(self.shell, app.access.tokens, app.access.audit_log, self.settings, self._storage),
            self.feed,
            PreferencesApi(self.shell),
        ]

"""The pages of the console."""

from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final

from shoal.crawl.lifecycle.search import CrawlSearch
from shoal.crawl.scope.preview import ScopePreviewer
from shoal.egress import Egress, Limits
from shoal.observe.hourly_stats import HourlyStatsReader
from shoal.pages.comparison import PageComparer
from shoal.pages.pages import Pages
from shoal.pages.summary import PageSummaries
from shoal.serve.console.crawl import CrawlFigures, CrawlPage
from shoal.serve.console.crawl_actions import CrawlActions
from shoal.serve.console.crawl_diff import CrawlDiffPage
from shoal.serve.console.crawl_pages import CrawlPagesPage
from shoal.serve.console.crawls import CrawlsPage
from shoal.serve.console.feed import FeedApi
from shoal.serve.console.new_crawl import NewCrawlPage
from shoal.serve.console.overview import Overview, OverviewPage
from shoal.serve.console.page import PagePage
from shoal.serve.console.page_copies import PageCopies
from shoal.serve.console.page_findings import PageFindings
from shoal.serve.console.preferences import PreferencesApi
from shoal.serve.console.rates import RateSampler
from shoal.serve.console.shell import Shell

if TYPE_CHECKING:
    from shoal.app.app import App

SAMPLE_EVERY: Final = timedelta(seconds=5)
SECTIONS: Final = ("overview", "crawls")  # that have a page


class Console:
    """The pages, and the stream that updates them."""

    def __init__(self, app: "App") -> None:
        self._app = app

    @cached_property
    def shell(self) -> Shell:
        return Shell(SECTIONS, self._app.clock, self._app.settings.serve.public_url)

    @cached_property
    def rates(self) -> RateSampler:
        return RateSampler(self._app.crawls, self._app.clock)

    @cached_property
    def overview(self) -> OverviewPage:
        app = self._app
        hourly = HourlyStatsReader(app.database, app.stores.hourly_stats)
        figures = Overview(
            app.crawls,
            app.job_admin,
            app.plan.policies,
            app.fleet.nodes,
            app.events.webhooks,
            app.audit.analyses,
        )
        return OverviewPage(self.shell, figures, hourly, self.rates)

    @cached_property
    def crawls(self) -> CrawlsPage:
        app = self._app
        return CrawlsPage(self.shell, app.crawls, CrawlSearch(app.crawls, app.clock), app.frontier_admin)

    @cached_property
    def new_crawl(self) -> NewCrawlPage:
        return NewCrawlPage(self.shell, self._app.crawls, self._previewer)

    @cached_property
    def crawl(self) -> CrawlPage:
        app = self._app
        summaries = PageSummaries(app.database, app.stores.pages, app.clock)
        figures = CrawlFigures(app.crawls, app.frontier_admin, summaries, app.job_admin, app.politeness, app.clock)
        return CrawlPage(self.shell, figures)

    def _previewer(self) -> ScopePreviewer:
        app, settings = self._app, self._app.settings
        limits = Limits.of(settings.egress)
        return ScopePreviewer(
            lambda: Egress(app.address_rule, limits, clock=app.clock),
            settings.egress.user_agent,
            settings.hosts.longest_crawl_delay,
        )

    @cached_property
    def feed(self) -> FeedApi:
        return FeedApi(self.shell, [self.overview, self.crawls, *self.crawl.tabs], self._app.clock)

    @cached_property
    def endpoint_groups(self) -> list[object]:
        app = self._app
        pages = Pages(app.database, app.stores.pages, app.clock)
        findings = PageFindings(app.audit.analyses)
        copies = PageCopies(app.bodies, app.settings.render.screenshots)
        return [
            self.overview,
            self.crawls,
            self.new_crawl,
            CrawlPagesPage(self.shell, app.crawls, pages, self.crawl),
            CrawlDiffPage(self.shell, app.crawls, PageComparer(app.database, app.stores.pages), self.crawl),
            self.crawl,
            CrawlActions(self.shell, app.crawls, app.frontier_admin),
            PagePage(self.shell, app.crawls, app.frontier_admin, pages, copies, findings),
            self.feed,
            PreferencesApi(self.shell),
        ]

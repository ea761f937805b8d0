"""The endpoint groups of the REST API."""

from functools import cached_property
from typing import TYPE_CHECKING

from shoal.egress import Limits
from shoal.extract.converter import Converter
from shoal.serve.analyses import AnalysisApi, GateApi
from shoal.serve.api import GROUPS
from shoal.serve.bots import BotApi
from shoal.serve.crawl_feed import CrawlFeeds
from shoal.serve.crawl_parts import JournalApi, LinkApi, PageApi, PolitenessApi
from shoal.serve.crawls import CrawlApi
from shoal.serve.diffs import DiffApi
from shoal.serve.groups import GroupApi, ResultApi
from shoal.serve.jobs import JobApi, QuotaApi
from shoal.serve.nodes import NodeApi
from shoal.serve.openapi import DocsApi
from shoal.serve.policies import PolicyApi
from shoal.serve.scrapes import ScrapeApi
from shoal.serve.stats import StatsApi
from shoal.serve.tokens import AuditLogApi, TokenApi
from shoal.serve.webhooks import WebhookApi

if TYPE_CHECKING:
    from shoal.app.app import App


class RestApi:
    """The endpoints of one process, and its open responses (event streams and long polls)."""

    def __init__(self, app: "App") -> None:
        self._app = app

    @cached_property
    def endpoint_groups(self) -> list[object]:
        app, settings = self._app, self._app.settings
        access, page_jobs, plan = app.access, app.page_jobs, app.plan
        return [
            BotApi(page_jobs.bots, app.clock, settings.bots.max_result_bytes),  # most requested: matched first
            CrawlApi(
                app.crawls,
                app.frontier_admin,
                app.crawl_removals,
                access.idempotency,
                settings.crawl.max_url_length,
                app.audit.gates,
            ),
            PageApi(app.crawls, app.pages, app.bodies, Limits.of(settings.egress), self.converter),
            LinkApi(app.crawls, app.database, settings.crawl.max_url_length, app.stores.frontier_admins),
            PolitenessApi(app.politeness),
            JournalApi(app.crawls, self.crawl_feeds),
            GroupApi(page_jobs.groups, access.idempotency),
            ScrapeApi(page_jobs.scrapes, access.idempotency),
            JobApi(app.job_admin),
            QuotaApi(app.job_admin),
            StatsApi(app.state_counts, app.hourly_stats, app.fleet.pressures),
            AnalysisApi(app.audit.analyses, app.audit.gates, app.audit.files),
            GateApi(app.audit.gates),
            DiffApi(lambda: app.audit.diffs),
            NodeApi(app.fleet.nodes, app.fleet.explainer),
            PolicyApi(
                plan.policies, plan.importer, access.idempotency, app.audit.gates, settings.serve.max_import_bytes
            ),
            ResultApi(plan.policies, page_jobs.history),
            WebhookApi(app.events.webhooks, app.events.tester, access.idempotency),
            TokenApi(access.tokens),
            AuditLogApi(access.audit_log),
            DocsApi(GROUPS, app.console.shell),
        ]

    @cached_property
    def crawl_feeds(self) -> CrawlFeeds:
        return CrawlFeeds(self._app.crawls, self._app.clock)

    @cached_property
    def converter(self) -> Converter:
        return Converter()

    def close(self) -> None:
        """End all event streams and long polls; called when the server stops."""
        self.crawl_feeds.close()
        self.converter.close()
        self._app.console.feed.close()
        self._app.page_jobs.long_poll.close()
        self._app.page_jobs.scrapes.ends.close()

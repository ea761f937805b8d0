"""All endpoint groups of the OpenAPI document and the reference. `shoal.app.rest_api` creates them."""

from shoal.serve.analyses import AnalysisApi, GateApi
from shoal.serve.bots import BotApi
from shoal.serve.crawl_parts import JournalApi, LinkApi, PageApi, PolitenessApi
from shoal.serve.crawls import CrawlApi
from shoal.serve.diffs import DiffApi
from shoal.serve.groups import GroupApi, ResultApi
from shoal.serve.health import HealthApi
from shoal.serve.jobs import JobApi, QuotaApi
from shoal.serve.nodes import NodeApi
from shoal.serve.openapi import DocsApi
from shoal.serve.policies import PolicyApi
from shoal.serve.scrapes import ScrapeApi
from shoal.serve.stats import StatsApi
from shoal.serve.tokens import AuditLogApi, TokenApi
from shoal.serve.webhooks import WebhookApi

GROUPS: tuple[type, ...] = (
    CrawlApi,
    PageApi,
    LinkApi,
    PolitenessApi,
    JournalApi,
    GroupApi,
    ScrapeApi,
    JobApi,
    QuotaApi,
    BotApi,
    AnalysisApi,
    DiffApi,
    NodeApi,
    GateApi,
    PolicyApi,
    ResultApi,
    WebhookApi,
    TokenApi,
    AuditLogApi,
    StatsApi,
    HealthApi,
    DocsApi,
)

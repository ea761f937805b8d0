"""The badges of states. Their labels are worded beside the states; here they get colours."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from shoal.access import token
from shoal.audit import finding, verdict
from shoal.audit import states as analysis
from shoal.crawl import states as crawl
from shoal.crawl.frontier import explain as url
from shoal.events import webhook
from shoal.fleet import states as node
from shoal.plan import policy
from shoal.queue import states as job

LABELS: Final[Mapping[type[StrEnum], Mapping[Any, str]]] = {
    crawl.CrawlState: crawl.LABELS,
    url.UrlState: url.LABELS,
    job.JobState: job.LABELS,
    job.GrantEnd: job.GRANT_LABELS,
    node.NodeState: node.LABELS,
    node.CommandState: node.COMMAND_LABELS,
    policy.PolicyState: policy.LABELS,
    analysis.AnalysisState: analysis.LABELS,
    verdict.Outcome: verdict.LABELS,
    finding.Severity: finding.LABELS,
    webhook.WebhookState: webhook.LABELS,
    webhook.DeliveryState: webhook.DELIVERY_LABELS,
    token.TokenState: token.LABELS,
}
COLOURS: Final[Mapping[type[StrEnum], Mapping[str, str]]] = {
    crawl.CrawlState: {state: state for state in crawl.CrawlState},
    url.UrlState: {
        "refused": "failed",
        "waiting": "queued",
        "taken": "running",
        "fetched": "completed",
        "failed": "failed",
        "quarantined": "warning",
    },
    job.JobState: {
        "pending": "queued",
        "locked": "running",
        "done": "completed",
        "failed": "failed",
        "expired": "failed",
    },
    job.GrantEnd: dict.fromkeys(job.GrantEnd, "error") | {"done": "good", "released": "info", "retried": "warning"},
    node.NodeState: {"connected": "good", "paused": "paused", "draining": "warning", "lost": "failed"},
    node.CommandState: {
        "waiting": "queued",
        "sent": "info",
        "applied": "good",
        "unsupported": "warning",
        "failed": "failed",
        "expired": "failed",
    },
    policy.PolicyState: {"active": "running", "late": "failed", "due": "queued", "planned": "good"},
    analysis.AnalysisState: {
        "pending": "queued",
        "running": "running",
        "success": "completed",
        "failed": "failed",
    },
    verdict.Outcome: {"passed": "good", "failed": "failed", "inconclusive": "warning"},
    finding.Severity: {"error": "error", "warning": "warning", "notice": "info"},
    webhook.WebhookState: {"enabled": "good", "failing": "failed"},
    webhook.DeliveryState: {"waiting": "queued", "delivered": "good", "dead": "failed"},
    token.TokenState: {"valid": "good"},
}


def label_of(state: StrEnum) -> str:
    """Return the label of a state, to be translated."""
    return LABELS[type(state)][state]


def colour_of(state: StrEnum) -> str:
    return COLOURS[type(state)].get(state, "")

"""A crawl as lists show it: badge, reason, progress and counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shoal.base.text import redact_url
from shoal.crawl.journal.messages import REASONS
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.pages.response_counts import CLASSES, ResponseClass
from shoal.serve.console.charts import Part
from shoal.serve.console.format import Formats
from shoal.serve.console.messages import Language, message

BADGES: Final = {
    CrawlState.PENDING: message("Not started"),
    CrawlState.QUEUED: message("In queue"),
    CrawlState.RUNNING: message("Running"),
    CrawlState.PAUSING: message("Pausing"),
    CrawlState.PAUSED: message("Paused"),
    CrawlState.STOPPING: message("Stopping"),
    CrawlState.STOPPED: message("Stopped"),
    CrawlState.COMPLETED: message("Completed"),
    CrawlState.FAILED: message("Failed"),
}
KINDS: Final = {"2xx": "s2", "3xx": "s3", "4xx": "s4", "5xx": "s5", "none": "s0"}
"""The colour class of each class of responses."""
PLAIN_REASONS: Final = frozenset({None, "asked", "drained"})  # the badge already says so
WORKING: Final = frozenset({CrawlState.RUNNING, CrawlState.PAUSING, CrawlState.STOPPING})

PAUSABLE: Final = frozenset({CrawlState.QUEUED, CrawlState.RUNNING})
STOPPABLE: Final = frozenset(
    {CrawlState.PENDING, CrawlState.QUEUED, CrawlState.RUNNING, CrawlState.PAUSING, CrawlState.PAUSED}
)


@dataclass(frozen=True, slots=True)
class CrawlRow:
    """A crawl with the texts and numbers of one row."""

    status: CrawlStatus
    badge: str
    reason: str
    site: str
    more_seeds: int
    share: float | None  # settled share of the known URLs, an estimate
    rate: float | None  # pages per second of work
    seconds: float | None  # seconds of work

    @property
    def id(self) -> str:
        return self.status.crawl.id

    @property
    def state(self) -> CrawlState:
        return self.status.crawl.state

    @property
    def responses(self) -> Mapping[ResponseClass, int]:
        return self.status.counts.responses

    @property
    def is_live(self) -> bool:
        return self.state not in TERMINAL

    @property
    def is_pausable(self) -> bool:
        return self.state in PAUSABLE

    @property
    def is_stoppable(self) -> bool:
        return self.state in STOPPABLE

    @property
    def is_working(self) -> bool:
        return self.state in WORKING


def row_of(status: CrawlStatus, formats: Formats) -> CrawlRow:
    crawl, counts = status.crawl, status.counts
    seconds = counts.walked.total_seconds() or None
    return CrawlRow(
        status=status,
        badge=formats.language(BADGES[crawl.state]),
        reason=reason_of(status, formats.language),
        site=formats.text(redact_url(crawl.config.seeds[0])),
        more_seeds=len(crawl.config.seeds) - 1,
        share=counts.settled / counts.opened if counts.opened else None,
        rate=counts.pages / seconds if seconds and counts.pages else None,
        seconds=seconds,
    )


def reason_of(status: CrawlStatus, language: Language) -> str:
    """Return why the crawl is in its state, if the badge does not say it."""
    crawl = status.crawl
    if crawl.state is CrawlState.QUEUED:
        return language("Waiting for a worker…")
    if crawl.state is CrawlState.FAILED and status.error_message:
        return Formats(language, 0).text(status.error_message)
    if crawl.state_reason in PLAIN_REASONS:
        return ""
    return Formats(language, 0).text(language(REASONS.get(crawl.state_reason or "", crawl.state_reason or "")))


def class_parts(responses: Mapping[ResponseClass, int], formats: Formats) -> list[Part]:
    """Return the shares of the response classes, for a chart."""
    return [
        Part(KINDS[kind], responses[kind], f"{class_name(kind, formats.language)}: {formats.number(responses[kind])}")
        for kind in CLASSES
    ]


def class_name(kind: str, language: Language) -> str:
    return language("No answer") if kind == "none" else kind

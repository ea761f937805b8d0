"""A crawl as lists show it: badge, reason, progress and counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shoal.base.text import message, redact_url
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import (
    DRAINED,
    DRAINED_PARTLY,
    LABELS,
    PAUSABLE,
    RELEASABLE,
    STOPPABLE,
    TERMINAL,
    WALKED,
    CrawlState,
    reason_text,
)
from shoal.pages.page import UNCHANGED, with_unchanged
from shoal.serve.console.charts import Part
from shoal.serve.console.format import Formats
from shoal.serve.console.messages import Language

KINDS: Final = {"2xx": "s2", UNCHANGED: "s1", "3xx": "s3", "4xx": "s4", "5xx": "s5", "none": "s0"}
"""The colour class of each class of responses."""
STATUSES: Final = {UNCHANGED: "304"}
NAMES: Final = {"none": message("No answer"), UNCHANGED: message("Unchanged")}
HELD: Final = (
    message("{count} URL is in quarantine and was not crawled"),
    message("{count} URLs are in quarantine and were not crawled"),
)
RELEASE: Final = (
    message("{count} URL is in quarantine: look at its pattern under Frontier, and release it"),
    message("{count} URLs are in quarantine: look at their patterns under Frontier, and release them"),
)
NEW_CRAWL: Final = (
    message("{count} URL is in quarantine and was not crawled; a new crawl may crawl it"),
    message("{count} URLs are in quarantine and were not crawled; a new crawl may crawl them"),
)
REMOVING: Final = message("Being removed")
PLAIN_REASONS: Final = frozenset({None, "asked", DRAINED})  # the badge already says so


@dataclass(frozen=True, slots=True)
class CrawlRow:
    """A crawl with the texts and numbers of one row."""

    status: CrawlStatus
    badge: str
    reason: str
    site: str
    more_seeds: int
    done: int  # URLs that are settled and not in quarantine
    share: float | None  # of them in the known URLs, an estimate
    rate: float | None  # pages per second of work
    seconds: float | None  # seconds of work
    is_removing: bool = False
    quarantine: str = ""  # how many URLs are in quarantine, and how to crawl them

    @property
    def id(self) -> str:
        return self.status.crawl.id

    @property
    def state(self) -> CrawlState:
        return self.status.crawl.state

    @property
    def responses(self) -> Mapping[str, int]:
        return with_unchanged(self.status.counts.responses, self.status.counts.not_modified)

    @property
    def is_live(self) -> bool:
        return self.state not in TERMINAL

    @property
    def is_releasable(self) -> bool:
        """Return whether patterns can be released from quarantine."""
        return self.state in RELEASABLE

    @property
    def is_pausable(self) -> bool:
        return self.state in PAUSABLE

    @property
    def is_stoppable(self) -> bool:
        return self.state in STOPPABLE

    @property
    def is_working(self) -> bool:
        return self.state in WALKED


def row_of(status: CrawlStatus, formats: Formats, is_removing: bool = False) -> CrawlRow:
    crawl, counts = status.crawl, status.counts
    seconds = counts.walked.total_seconds() or None
    return CrawlRow(
        status=status,
        badge=formats.language(REMOVING if is_removing else LABELS[crawl.state]),
        reason=reason_of(status, formats.language),
        site=formats.text(redact_url(crawl.config.seeds[0])),
        more_seeds=len(crawl.config.seeds) - 1,
        done=counts.settled - counts.held,
        share=(counts.settled - counts.held) / counts.opened if counts.opened else None,
        rate=counts.pages / seconds if seconds and counts.pages else None,
        seconds=seconds,
        is_removing=is_removing,
        quarantine=quarantine_text(counts.held, crawl.state, formats.language) if counts.held else "",
    )


def quarantine_text(urls: int, state: CrawlState, language: Language) -> str:
    return language.plural(*(RELEASE if state in RELEASABLE else NEW_CRAWL), urls)


def reason_of(status: CrawlStatus, language: Language) -> str:
    """Return why the crawl is in its state, if the badge does not say it."""
    crawl = status.crawl
    if crawl.state is CrawlState.QUEUED:
        return language("Waiting for a worker…")
    if crawl.state is CrawlState.FAILED and status.error_message:
        return Formats(language, 0).text(status.error_message)
    if crawl.state_reason in PLAIN_REASONS:
        return ""
    if crawl.state_reason == DRAINED_PARTLY:
        return language.plural(*HELD, status.counts.held)
    return Formats(language, 0).text(language(reason_text(crawl.state_reason)))


def class_parts(row: CrawlRow, formats: Formats) -> dict[str, Part]:
    """Return the shares of the response classes, for a chart, by the status that finds their pages."""
    return {
        STATUSES.get(kind, kind): Part(
            KINDS[kind], count, f"{class_name(kind, formats.language)}: {formats.number(count)}"
        )
        for kind, count in row.responses.items()
        if count or kind != UNCHANGED
    }


def class_name(kind: str, language: Language) -> str:
    return language(NAMES.get(kind, kind))

"""The store contracts of analyses, findings and gates."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

from shoal.audit.analysis import Analysis, AnalysisOptions, Summary
from shoal.audit.commit_status.status import CommitState, CommitStatus
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCount
from shoal.audit.gate import Gate
from shoal.audit.metrics import Metrics
from shoal.audit.states import AnalysisMove
from shoal.audit.verdict import Verdict
from shoal.base.database import Tx
from shoal.base.ids import AnalysisId


@dataclass(frozen=True, slots=True)
class NewAnalysis:
    """An analysis to be stored."""

    id: AnalysisId
    crawl: int
    crawl_id: str
    project: str
    site: str
    options: AnalysisOptions


@dataclass(frozen=True, slots=True)
class FindingPlace:
    """The position of a finding in the list of an analysis, from which to continue reading."""

    code: str
    number: int


@dataclass(frozen=True, slots=True)
class StoredGate:
    """A gate under a name."""

    name: str
    gate: Gate
    created_at: int
    changed_at: int


class GateStore(Protocol):
    async def put(self, tx: Tx, name: str, gate: Gate) -> bool:
        """Store a gate under a name, in place of an earlier one; return whether the name is new."""
        ...

    async def get(self, tx: Tx, name: str) -> StoredGate | None: ...

    async def all(self, tx: Tx) -> list[StoredGate]:
        """Return all gates, ordered by name."""
        ...

    async def delete(self, tx: Tx, name: str) -> bool:
        """Delete a gate; return False if there is none. Analyses keep the rules they were created with."""
        ...


class AnalysisStore(Protocol):
    async def insert(self, tx: Tx, analysis: NewAnalysis) -> None:
        """Store a pending analysis of a crawl; it is deleted with the crawl."""
        ...

    async def get(self, tx: Tx, analysis_id: str) -> Analysis | None: ...

    async def page_of(
        self, tx: Tx, after: int | None, limit: int, state: str | None = None, crawl_id: str | None = None
    ) -> list[Analysis]:
        """Return analyses, newest first, older than number `after`; only those of a state or a crawl, if given."""
        ...

    async def newest_success(self, tx: Tx, project: str, site: str) -> Analysis | None:
        """Return the newest successful analysis of a site in a project; None if there is none."""
        ...

    async def lock(self, tx: Tx, analysis_id: str) -> Analysis | None:
        """Return the analysis, locked against any other change; the lock order is analysis, then job."""
        ...

    async def move(self, tx: Tx, analysis_id: str, move: AnalysisMove) -> bool:
        """Change the state by compare-and-set; return False if the current state does not allow it."""
        ...

    async def summarize(self, tx: Tx, analysis: Analysis, summary: Summary) -> None:
        """Store the summary of the crawl, before the first findings of an attempt. May be repeated."""
        ...

    async def keep(
        self,
        tx: Tx,
        analysis: Analysis,
        outcome: AnalyzerOutcome,
        counts: Sequence[FindingCount],
        findings: Sequence[Finding],
    ) -> None:
        """Store how an analyzer ended, and its findings, in place of those of its earlier attempts. May be repeated.

        Findings of one code are listed in the order in which they come here.
        """
        ...

    async def conclude(
        self, tx: Tx, analysis: Analysis, metrics: Metrics, summary: Summary, verdict: Verdict | None
    ) -> None:
        """Store the metrics, the summary, the verdict and the number of all findings. May be repeated.

        Outcomes and findings of earlier attempts stay, except those that `keep` has replaced since.
        """
        ...

    async def outcomes(self, tx: Tx, analysis: Analysis) -> list[AnalyzerOutcome]:
        """Return how each analyzer ended, ordered by name; empty before the first one has."""
        ...

    async def counts(self, tx: Tx, analysis: Analysis) -> list[FindingCount]:
        """Return the codes with at least one finding, ordered by code."""
        ...

    async def findings(
        self,
        tx: Tx,
        analysis: Analysis,
        after: FindingPlace | None,
        limit: int,
        code: str | None = None,
        severity: str | None = None,
    ) -> list[tuple[FindingPlace, Finding]]:
        """Return stored findings after a position, ordered by code and number; only those of a code or a severity, if
        given. Fewer may be stored than `counts` says."""
        ...

    async def findings_of_page(self, tx: Tx, analysis: Analysis, page: str, limit: int) -> list[Finding]:
        """Return stored findings about one page, ordered by code and number, at most `limit` of each code. An empty
        list does not mean that nothing was found: fewer may be stored than `counts` says."""
        ...


class CommitStatusStore(Protocol):
    """The commit status of each analysis that has one: what a forge should show, and what it shows."""

    async def want(self, tx: Tx, analysis: Analysis, state: CommitState, description: str) -> None:
        """Store the status that the commit of an analysis should show, due at once, in place of an earlier one."""
        ...

    async def take(self, tx: Tx, limit: int, taken_for: timedelta) -> list[CommitStatus]:
        """Return statuses that are due, and keep others from taking them for a while."""
        ...

    async def take_one(self, tx: Tx, analysis_id: str, taken_for: timedelta) -> CommitStatus | None:
        """Take the status of one analysis, even if it is not due yet; None if it is already published, or taken."""
        ...

    async def published(self, tx: Tx, status: CommitStatus) -> None:
        """Record that the forge shows a status that was taken. If another one is wanted by now, that is due at once."""
        ...

    async def failed(self, tx: Tx, status: CommitStatus, error: str, again: timedelta | None) -> None:
        """Record that a status that was taken could not be published, and when to try again (None: never). If another
        one is wanted by now, that is due at once."""
        ...

    async def get(self, tx: Tx, analysis_id: str) -> CommitStatus | None:
        """Return the status of an analysis; None if it has none, or has not started."""
        ...


@dataclass(frozen=True, slots=True)
class AuditStores:
    """The stores of analyses, gates and commit statuses."""

    analyses: AnalysisStore
    gates: GateStore
    statuses: CommitStatusStore


PAGE_COLUMNS: Final = (
    *("number", "key", "status", "depth", "duration_ms", "word_count", "bytes", "flags", "fingerprint"),
    "text_hash",
    *("url", "final_url", "content_type", "title", "description", "canonical", "robots", "lang", "h1"),
    *("content_hash", "redirects", "error_code"),
)
"""The columns of `SiteStore.pages_after`, in this order."""

COMPARED_COLUMNS: Final = (*PAGE_COLUMNS, "data")
"""The columns that a diff reads; `data` is JSON, or None."""


class SiteStore(Protocol):
    """Reads what analyzers get of a crawl, in batches and in storage order."""

    async def pages_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[Sequence[Any]]:
        """Return rows of `PAGE_COLUMNS`, after the page with that number. `redirects` is JSON, or None."""
        ...

    async def compared_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[Sequence[Any]]:
        """Return rows of `COMPARED_COLUMNS`, after the page with that number."""
        ...

    async def pages_numbered(self, tx: Tx, crawl: int, numbers: Sequence[int]) -> list[Sequence[Any]]:
        """Return rows of `COMPARED_COLUMNS` of these pages, ordered by number; fewer if the crawl is gone."""
        ...

    async def links_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, bytes]]:
        """Return number and link blob of pages that were parsed: see `pages.links`."""
        ...

    async def details_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, bytes]]:
        """Return number and packed details of pages that have them."""
        ...

    async def redirect_targets_after(self, tx: Tx, crawl: int, key: int, limit: int) -> list[tuple[int, str, str]]:
        """Return key, URL and the redirecting URL of pages that were fetched only as the target of a redirect, ordered
        by key."""
        ...

    async def blocked_after(
        self, tx: Tx, crawl: int, after: tuple[int, int], limit: int
    ) -> list[tuple[tuple[int, int]]]:
        """Return key and check of URLs that robots.txt forbids, in the order of the index. All calls together read the
        fates of all URLs of the crawl once."""
        ...

    async def sitemaps(self, tx: Tx, crawl: int) -> list[tuple[str, int | None, str | None, bytes | None]]:
        """Return URL, status, problem and packed entries of the sitemaps that were read."""
        ...

    async def robots(self, tx: Tx, origins: Sequence[str]) -> dict[str, str | None]:
        """Return the robots.txt of those of these hosts that are known; None for those that have none."""
        ...

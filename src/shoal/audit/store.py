"""The store contract of analyses and findings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.audit.analysis import Analysis, Finding
from shoal.audit.states import AnalysisMove
from shoal.base.database import Tx
from shoal.base.ids import AnalysisId


@dataclass(frozen=True, slots=True)
class NewAnalysis:
    """An analysis to be stored."""

    id: AnalysisId
    crawl: int
    crawl_id: str
    project: str


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

    async def lock(self, tx: Tx, analysis_id: str) -> Analysis | None:
        """Return the analysis, locked against any other change; the lock order is analysis, then job."""
        ...

    async def move(self, tx: Tx, analysis_id: str, move: AnalysisMove) -> bool:
        """Change the state by compare-and-set; return False if the current state does not allow it."""
        ...

    async def keep(self, tx: Tx, analysis: Analysis, findings: Sequence[Finding]) -> None:
        """Store the findings, replacing those of an earlier attempt."""
        ...

    async def findings(self, tx: Tx, analysis: Analysis) -> list[Finding]:
        """Return all findings, ordered by analyzer and key."""
        ...

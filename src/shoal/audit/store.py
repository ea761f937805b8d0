"""The contract of the store of analyses and findings."""

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
        """Store a pending analysis of a crawl; it goes when the crawl does."""
        ...

    async def get(self, tx: Tx, analysis_id: str) -> Analysis | None: ...

    async def page_of(
        self, tx: Tx, after: int | None, limit: int, state: str | None = None, crawl_id: str | None = None
    ) -> list[Analysis]:
        """Analyses, newest first, older than the one with that number; only those of a state or a crawl, if named."""
        ...

    async def lock(self, tx: Tx, analysis_id: str) -> Analysis | None:
        """The analysis, locked against any other change; the lock order is analysis, then job."""
        ...

    async def move(self, tx: Tx, analysis_id: str, move: AnalysisMove) -> bool:
        """Carry out a move by compare-and-set; False if its state does not allow it."""
        ...

    async def keep(self, tx: Tx, analysis: Analysis, findings: Sequence[Finding]) -> None:
        """Make these its findings, in the place of any that an earlier attempt left."""
        ...

    async def findings(self, tx: Tx, analysis: Analysis) -> list[Finding]:
        """All of them, by analyzer and key."""
        ...

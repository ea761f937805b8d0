"""The findings of a crawl's last analysis about one page."""

from dataclasses import dataclass
from typing import Final

from shoal.audit.analyses import Analyses
from shoal.audit.finding import Finding, FindingCount
from shoal.audit.states import AnalysisState

BATCH: Final = 1000
MOST_BATCHES: Final = 20


@dataclass(frozen=True, slots=True)
class PageFinding:
    """A finding about a page, with what its code means."""

    finding: Finding
    about: FindingCount | None


class PageFindings:
    """Finds what the last successful analysis of a crawl says about a URL."""

    def __init__(self, analyses: Analyses) -> None:
        self._analyses = analyses

    async def of(self, crawl_id: str, url: str) -> list[PageFinding]:
        newest = await self._analyses.newest(limit=1, state=AnalysisState.SUCCESS, crawl_id=crawl_id)
        if not newest:
            return []
        codes = {one.code: one for one in await self._analyses.counts(newest[0].id)}
        found, after = list[PageFinding](), None
        for _ in range(MOST_BATCHES):
            batch = await self._analyses.findings(newest[0].id, after=after, limit=BATCH)
            found += [PageFinding(one, codes.get(one.code)) for _, one in batch if one.page == url]
            if len(batch) < BATCH:
                break
            after = batch[-1][0]
        return found

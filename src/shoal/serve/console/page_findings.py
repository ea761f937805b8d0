"""The findings of a crawl's last analysis about one page."""

from shoal.audit.analyses import Analyses
from shoal.audit.finding import Finding
from shoal.audit.states import AnalysisState


class PageFindings:
    """Finds what the newest analysis of a crawl says about a URL."""

    def __init__(self, analyses: Analyses) -> None:
        self._analyses = analyses

    async def of(self, crawl_id: str, url: str) -> list[Finding]:
        newest = await self._analyses.newest(limit=1, state=AnalysisState.SUCCESS, crawl_id=crawl_id)
        if not newest:
            return []
        return await self._analyses.findings_of_page(newest[0].id, url)

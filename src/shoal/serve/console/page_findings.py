"""The findings of a crawl's last analysis about one page."""

from shoal.audit.analyses import Analyses
from shoal.audit.analysis import Finding
from shoal.audit.states import AnalysisState


class PageFindings:
    """Finds what an analysis says about a URL: findings whose key or whose facts name it."""

    def __init__(self, analyses: Analyses) -> None:
        self._analyses = analyses

    async def of(self, crawl_id: str, url: str) -> list[Finding]:
        newest = await self._analyses.newest(limit=1, state=AnalysisState.SUCCESS, crawl_id=crawl_id)
        if not newest:
            return []
        findings = await self._analyses.findings(newest[0].id)
        return [finding for finding in findings if url in (finding.key, finding.facts.get("url"))]

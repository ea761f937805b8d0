"""REST for analyses: what became of them, and what they found."""

from typing import Annotated

from shoal.access.scopes import TokenScope
from shoal.audit.analyses import Analyses
from shoal.audit.analysis import Analysis
from shoal.audit.states import AnalysisState
from shoal.base.errors import NotFound
from shoal.base.request_form import describe
from shoal.crawl.crawl import Name
from shoal.serve import examples, schemas
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.pagination import Paging, cursor_of, cut, number_of
from shoal.serve.problems import Json


class AnalysesWanted(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[AnalysisState | None, describe("Only analyses in this state.")] = None
    crawl_id: Annotated[Name | None, describe("Only analyses of this crawl.")] = None


class AnalysisApi:
    """`/api/v1/analyses`."""

    def __init__(self, analyses: Analyses) -> None:
        self._analyses = analyses

    @endpoint(
        "GET",
        "/api/v1/analyses",
        scope=TokenScope.READ,
        summary="List analyses, the newest first.",
        query=AnalysesWanted,
        answer=schemas.AnalysisList,
        response_example={"items": [examples.ANALYSIS], "next": "MTI"},
    )
    async def list_analyses(self, ask: EndpointRequest[Nothing, AnalysesWanted]) -> Json:
        """A crawl with `analyze` has one when it is completed."""
        query = ask.query
        found = await self._analyses.newest(
            after=number_of(query.cursor), limit=query.limit + 1, state=query.state, crawl_id=query.crawl_id
        )
        return Json(cut(found, query.limit, Analysis.answer, lambda one: cursor_of(str(one.number))))

    @endpoint(
        "GET",
        "/api/v1/analyses/{analysis_id}",
        scope=TokenScope.READ,
        summary="Show one analysis.",
        answer=schemas.Analysis,
        response_example=examples.ANALYSIS,
        problems=[NotFound],
    )
    async def show_analysis(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        return Json((await self._analyses.get(ask.part("analysis_id"))).answer())

    @endpoint(
        "GET",
        "/api/v1/analyses/{analysis_id}/findings",
        scope=TokenScope.READ,
        summary="List what the analyzers found.",
        answer=schemas.FindingList,
        response_example={"items": [examples.FINDING], "next": None},
        problems=[NotFound],
    )
    async def list_findings(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        """All of them at once; `next` is always null. They are there when the analysis is a success."""
        found = await self._analyses.findings(ask.part("analysis_id"))
        return Json({"items": [finding.answer() for finding in found], "next": None})

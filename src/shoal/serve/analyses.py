"""REST endpoints for analyses and their findings."""

from typing import Annotated

from shoal.access.scopes import TokenScope
from shoal.audit.analyses import Analyses
from shoal.audit.states import AnalysisState
from shoal.base.errors import NotFound
from shoal.base.request_form import describe
from shoal.crawl.crawl import Name
from shoal.serve import examples, schemas, to_api
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.pagination import Paging, number_of, page_of


class AnalysisQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        summary="List analyses, newest first.",
        query=AnalysisQuery,
        response=schemas.AnalysisList,
        response_example={"items": [examples.ANALYSIS], "next": "MTI"},
    )
    async def list_analyses(self, request: EndpointRequest[Nothing, AnalysisQuery]) -> schemas.AnalysisList:
        """A crawl with the option `analyze` is analyzed when it completes."""
        query = request.query
        found = await self._analyses.newest(
            after=number_of(query.cursor), limit=query.limit + 1, state=query.state, crawl_id=query.crawl_id
        )
        analyses, more = page_of(found, query.limit, lambda analysis: analysis.number)
        return schemas.AnalysisList(items=[to_api.analysis(one) for one in analyses], next=more)

    @endpoint(
        "GET",
        "/api/v1/analyses/{analysis_id}",
        scope=TokenScope.READ,
        summary="Show an analysis.",
        response=schemas.Analysis,
        response_example=examples.ANALYSIS,
        problems=[NotFound],
    )
    async def show_analysis(self, request: EndpointRequest[Nothing, Nothing]) -> schemas.Analysis:
        return to_api.analysis(await self._analyses.get(request.path_param("analysis_id")))

    @endpoint(
        "GET",
        "/api/v1/analyses/{analysis_id}/findings",
        scope=TokenScope.READ,
        summary="List the findings of an analysis.",
        response=schemas.FindingList,
        response_example={"items": [examples.FINDING], "next": None},
        problems=[NotFound],
    )
    async def list_findings(self, request: EndpointRequest[Nothing, Nothing]) -> schemas.FindingList:
        """The list is complete; `next` is always null. Findings are available once the analysis has succeeded."""
        found = await self._analyses.findings(request.path_param("analysis_id"))
        return schemas.FindingList(items=[to_api.finding(one) for one in found], next=None)

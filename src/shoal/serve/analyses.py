"""REST endpoints for analyses and their findings."""

import asyncio
from typing import Annotated, Final

from msgspec import Meta
from msgspec.structs import asdict
from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.audit.analyses import Analyses
from shoal.audit.analysis import AnalysisOptions
from shoal.audit.artifacts import Artifacts
from shoal.audit.finding import Severity
from shoal.audit.gate import Gate, Word
from shoal.audit.gates import Gates
from shoal.audit.reports.formats import FORMATS, FormatName
from shoal.audit.reports.html import CONTENT_POLICY
from shoal.audit.reports.report import load_report
from shoal.audit.states import AnalysisState
from shoal.audit.store import FindingPlace
from shoal.base.errors import AlreadyExists, InvalidInput, NotFound, StateConflict
from shoal.base.forge_commit import ForgeCommit
from shoal.base.request_form import Form, describe
from shoal.crawl.crawl import Name
from shoal.serve.endpoint import EndpointRequest, Nothing, always, endpoint
from shoal.serve.problems import Json
from shoal.serve.requests import Paging, number_of, page_of, text_of
from shoal.serve.resources.analysis import (
    Analysis,
    AnalysisDetail,
    AnalysisList,
    Finding,
    FindingList,
    GateList,
    StoredGate,
)

ARTIFACT_TYPE: Final = "application/octet-stream"
File = Annotated[str, Meta(extra_json_schema={"format": "binary"})]


class AnalysisQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[AnalysisState | None, describe("Only analyses in this state.")] = None
    crawl_id: Annotated[Name | None, describe("Only analyses of this crawl.")] = None


class FindingQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    code: Annotated[Word | None, describe("Only findings with this code.")] = None
    severity: Annotated[Severity | None, describe("Only findings of this severity.")] = None


class ReportQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Annotated[FormatName, describe("Format of the report.")] = "html"


class NewAnalysisForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The crawl to analyze, and the gate and commit that use the findings."""

    crawl_id: Annotated[Name, describe("Crawl to analyze; it must have ended.")]
    gate: Annotated[Name | None, describe("Name of the gate that judges the analysis.")] = None
    rules: Annotated[Gate | None, describe("Definition of a gate, instead of the name of a stored gate.")] = None
    baseline: Annotated[
        Name | None,
        describe("Analysis or crawl that the gate compares with; `previous`: the newest analysis of the same site."),
    ] = None
    commit: Annotated[ForgeCommit | None, describe("Commit whose status shows the verdict.")] = None


class AnalysisApi:
    """`/api/v1/analyses`."""

    def __init__(self, analyses: Analyses, gates: Gates, artifacts: Artifacts) -> None:
        self._analyses = analyses
        self._gates = gates
        self._artifacts = artifacts

    @endpoint(
        "POST",
        "/api/v1/analyses",
        scope=TokenScope.WRITE,
        summary="Analyze a crawl.",
        body=NewAnalysisForm,
        status=202,
        response=Analysis,
        request_example={"crawl_id": "crl_01hr2v8k3m4n5p6q", "gate": "release", "baseline": "previous"},
        response_example=Analysis.example | {"state": "pending", "findings": None, "verdict": None},
        problems=[NotFound, StateConflict],
    )
    async def create_analysis(self, request: EndpointRequest[NewAnalysisForm, Nothing]) -> Response:
        """The crawl must have ended and have at least one page. If the crawl did not have the option `analyze`,
        analyzers that need page details are skipped."""
        form = request.body
        if form.gate is not None and form.rules is not None:
            raise InvalidInput("gate", "and rules cannot be combined", "pass one of them")
        gate = None if form.rules is None else form.rules.checked()
        if form.gate is not None:
            gate = (await self._gates.get(form.gate)).gate
        options = AnalysisOptions(gate, form.gate, commit=form.commit)
        analysis = await self._analyses.submit(form.crawl_id, options, form.baseline)
        return Json(Analysis.of(analysis), 202, {"Location": f"/api/v1/analyses/{analysis.id}"})

    @endpoint(
        "GET",
        "/api/v1/analyses",
        scope=TokenScope.READ,
        summary="List analyses, newest first.",
        query=AnalysisQuery,
        response=AnalysisList,
    )
    async def list_analyses(self, request: EndpointRequest[Nothing, AnalysisQuery]) -> AnalysisList:
        """A crawl with the option `analyze` is analyzed when it completes."""
        query = request.query
        found = await self._analyses.newest(
            after=number_of(query.cursor), limit=query.limit + 1, state=query.state, crawl_id=query.crawl_id
        )
        analyses, more = page_of(found, query.limit, lambda analysis: analysis.number)
        return AnalysisList(items=[Analysis.of(one) for one in analyses], next=more)

    @endpoint(
        "GET",
        "/api/v1/analyses/{analysis_id}",
        scope=TokenScope.READ,
        summary="Show an analysis.",
        response=AnalysisDetail,
    )
    async def show_analysis(self, request: EndpointRequest[Nothing, Nothing]) -> AnalysisDetail:
        """The response contains the number of findings by code, the outcome of each analyzer, and the verdict of the
        gate."""
        analysis = await self._analyses.get(request.path_param("analysis_id"))
        counts, outcomes = await self._analyses.counts(analysis.id), await self._analyses.outcomes(analysis.id)
        return AnalysisDetail.with_outcomes(analysis, counts, outcomes, await self._analyses.commit_status(analysis.id))

    @endpoint(
        "GET",
        "/api/v1/analyses/{analysis_id}/findings",
        scope=TokenScope.READ,
        summary="List the findings of an analysis.",
        query=FindingQuery,
        response=FindingList,
    )
    async def list_findings(self, request: EndpointRequest[Nothing, FindingQuery]) -> FindingList:
        """Findings are ordered by code. If a code has very many findings, only some of them are stored; the field
        `codes` of the analysis has the exact numbers. Findings are available once the analysis has succeeded."""
        query = request.query
        found = await self._analyses.findings(
            request.path_param("analysis_id"),
            after=_place_of(query.cursor),
            limit=query.limit + 1,
            code=query.code,
            severity=query.severity,
        )
        shown, more = page_of(found, query.limit, lambda one: f"{one[0].code} {one[0].number}")
        return FindingList(items=[Finding.of(finding) for _, finding in shown], next=more)

    @endpoint(
        "GET",
        "/api/v1/analyses/{analysis_id}/report",
        scope=TokenScope.READ,
        summary="Download the report of an analysis that has ended.",
        query=ReportQuery,
        response=str,
        media_type=" or ".join(sorted({one.media_type.partition(";")[0] for one in FORMATS.values()})),
        problems=[StateConflict],
        expensive=always,
    )
    async def show_report(self, request: EndpointRequest[Nothing, ReportQuery]) -> Response:
        """The HTML report is one file that needs neither a network nor scripts."""
        made = FORMATS[request.query.format]
        report = await load_report(self._analyses, request.path_param("analysis_id"), made.most_per_code)
        text = await asyncio.to_thread(made.write, report)
        policy = {"Content-Security-Policy": f"{CONTENT_POLICY}; sandbox allow-popups"}
        return Response(text, headers=policy, media_type=made.media_type)

    @endpoint(
        "GET",
        "/api/v1/analyses/{analysis_id}/artifacts/{name}",
        scope=TokenScope.READ,
        summary="Download a file that an analyzer wrote.",
        response=File,
        media_type=ARTIFACT_TYPE,
    )
    async def download_artifact(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """The field `analyzers` of the analysis lists the file names. Every file is sent as a binary download, whatever
        it contains."""
        name = request.path_param("name")
        data = await self._artifacts.read(request.path_param("analysis_id"), name)
        headers = {
            # Names of existing artifacts need no escaping.
            "Content-Disposition": f'attachment; filename="{name}"',
            "Content-Security-Policy": "sandbox",
            "Cache-Control": "no-store",
        }
        return Response(data, headers=headers, media_type=ARTIFACT_TYPE)


def _place_of(cursor: str | None) -> FindingPlace | None:
    if cursor is None:
        return None
    code, _, number = text_of(cursor).partition(" ")
    if not number.isdecimal() or len(number) > 18:
        raise InvalidInput("cursor", "is not a cursor of this list", "use `next` of the previous response")
    return FindingPlace(code, int(number))


_RULES = {"rules": [{"metric": "broken_links", "op": "<=", "threshold": 0}], "fail": ["redirect_loop"]}


class NewGate(Gate, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gate with its name."""

    name: Annotated[Name, describe("Name of the gate.")]


class GateApi:
    """`/api/v1/gates`."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    @endpoint(
        "POST",
        "/api/v1/gates",
        scope=TokenScope.WRITE,
        summary="Create a gate.",
        body=NewGate,
        status=201,
        response=StoredGate,
        request_example={"name": "release", **_RULES},
        problems=[AlreadyExists],
    )
    async def create_gate(self, request: EndpointRequest[NewGate, Nothing]) -> Response:
        """Crawls, policies and analyses refer to a gate by its name. A rule with `op` and `threshold` holds if `metric
        op threshold` is true; a rule with `max_increase` holds if the metric has not risen by more than `max_increase`
        since the baseline. A store can have at most 200 gates."""
        fields = asdict(request.body)
        stored = await self._gates.create(fields.pop("name"), Gate(**fields).checked(), audit=request.audit)
        return Json(StoredGate.of(stored), 201, {"Location": f"/api/v1/gates/{stored.name}"})

    @endpoint(
        "GET",
        "/api/v1/gates",
        scope=TokenScope.READ,
        summary="List gates.",
        response=GateList,
    )
    async def list_gates(self, request: EndpointRequest[Nothing, Nothing]) -> GateList:
        return GateList(items=[StoredGate.of(one) for one in await self._gates.all()])

    @endpoint(
        "GET",
        "/api/v1/gates/{name}",
        scope=TokenScope.READ,
        summary="Show a gate.",
        response=StoredGate,
    )
    async def show_gate(self, request: EndpointRequest[Nothing, Nothing]) -> StoredGate:
        return StoredGate.of(await self._gates.get(request.path_param("name")))

    @endpoint(
        "PUT",
        "/api/v1/gates/{name}",
        scope=TokenScope.WRITE,
        summary="Create or replace a gate.",
        body=Gate,
        response=StoredGate,
        request_example=_RULES,
    )
    async def replace_gate(self, request: EndpointRequest[Gate, Nothing]) -> StoredGate:
        """Existing analyses keep the rules with which they were judged."""
        stored = await self._gates.put(request.path_param("name"), request.body.checked(), audit=request.audit)
        return StoredGate.of(stored)

    @endpoint(
        "DELETE",
        "/api/v1/gates/{name}",
        scope=TokenScope.WRITE,
        summary="Remove a gate.",
        status=204,
    )
    async def remove_gate(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """If the gate of a crawl no longer exists, the verdict of its analysis is inconclusive."""
        await self._gates.delete(request.path_param("name"), audit=request.audit)
        return Response(status_code=204)

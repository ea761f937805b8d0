"""Analyses: the list, the page of one analysis with its verdict and findings, and the tab of a crawl with its newest
analysis."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from starlette.responses import Response

from shoal.audit.analyses import Analyses
from shoal.audit.analysis import AnalysisOptions
from shoal.audit.codes import NOT_CHECKED, not_checked_by
from shoal.audit.finding import LABELS as SEVERITIES
from shoal.audit.finding import NO_DETAILS, AnalyzerOutcome, FindingCount, most_serious_first
from shoal.audit.gates import Gates
from shoal.audit.reports.report import MOST_PARTS
from shoal.audit.states import LABELS, TERMINAL, AnalysisState
from shoal.audit.store import FindingPlace
from shoal.audit.verdict import VERDICTS
from shoal.base.errors import InvalidInput, NotFound, ShoalError
from shoal.base.text import message, redact_url
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import SETTLED, CrawlState
from shoal.serve.console.crawl import CrawlPage
from shoal.serve.console.exports import batched, exported, format_of, listed
from shoal.serve.console.feed import LivePage
from shoal.serve.console.forms import (
    AnyQuery,
    Search,
    View,
    form_endpoint,
    page_endpoint,
    parse,
    read_form,
    row_in,
    suggestion,
)
from shoal.serve.console.shell import Notice, Shell, local_path, sentence
from shoal.serve.endpoint import EndpointRequest, Nothing, always
from shoal.serve.resources import analysis as resource

ROWS: Final = 50
BATCH: Final = 500
LAST: Final = 2**31 - 1
LAST_FINDING: Final = 10**15
OTHERS: Final = 20  # maximum number of earlier analyses listed for a crawl
QUALIFIERS: Final = ("state", "crawl")
COLUMNS: Final = {"code": "text", "severity": "text", "page": "text", "evidence": "json"}
STARTED: Final = message("The analysis was created. It will appear on this page once a worker has run it.")


class AnalysesPage(LivePage):
    """`/analyses`."""

    paths = ("/analyses",)
    regions = ("analysis_rows",)
    template, section, query = "analyses.html", "analyses", ("q", "after")

    def __init__(self, shell: Shell, analyses: Analyses, gates: Gates) -> None:
        self._shell = shell
        self._analyses = analyses
        self._gates = gates

    @page_endpoint("/analyses", "Show the analyses.")
    async def show_analyses(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request)

    async def once(self, request: EndpointRequest[Any, Any], view: View, context: Mapping[str, Any]) -> dict[str, Any]:
        language = view.language
        states = [(state.value, language(word)) for state, word in LABELS.items()]
        suggestions = {
            "state": suggestion(language("current state"), states),
            "crawl": suggestion(language("id of a crawl"), [one.crawl_id for one, _ in context["rows"]]),
        }
        return {"suggestions": suggestions, "gates": [stored.name for stored in await self._gates.all()]}

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        search, problem, number = Search(params.get("q", "")), "", row_in(params.get("after"), LAST)
        found = []
        try:
            search = parse(params.get("q", ""), QUALIFIERS)
            state = _state_of(search)
            found = await self._analyses.newest(after=number, limit=ROWS + 1, state=state, crawl_id=search.one("crawl"))
        except InvalidInput as error:
            problem = sentence(error.message)
        return {
            "search": search,
            "problem": problem,
            "rows": [(one, redact_url(one.site)) for one in found[:ROWS]],
            "verdicts": VERDICTS,
            "is_first": number is None,
            "older": found[ROWS - 1].number if len(found) > ROWS else None,
            "is_live": any(one.state not in TERMINAL for one in found),
        }

    @page_endpoint("/analyses.{format}", "Download the analyses that a search finds.", expensive=always)
    async def export_analyses(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        search = parse(request.http.query_params.get("q", ""), QUALIFIERS)
        state, crawl_id = _state_of(search), search.one("crawl")
        found = batched(
            lambda after: self._analyses.newest(after=after, limit=BATCH, state=state, crawl_id=crawl_id),
            lambda one: one.number,
            resource.Analysis.of,
        )
        return listed(request, "analyses", resource.Analysis, found)

    @form_endpoint("/analyses", "Analyze a crawl from the form.")
    async def analyze_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form = await read_form(request.http)
        language, name = self._shell.view(request.http).language, form.get("gate")
        try:
            gate = (await self._gates.get(name)).gate if name else None
            options = AnalysisOptions(gate, name or None)
            analysis = await self._analyses.submit(form.get("crawl_id"), options, form.get("baseline") or None)
        except ShoalError as error:
            return self._shell.refused(local_path(form.get("back", "/analyses")), error)
        return self._shell.redirect(local_path(form.get("back", f"/analyses/{analysis.id}")), Notice(language(STARTED)))


def _state_of(search: Search) -> str | None:
    """Return the state that a search selects; raise if the search is invalid."""
    state = search.one("state")
    if search.text or (state is not None and state not in set(AnalysisState)):
        known = ", ".join(AnalysisState)
        raise InvalidInput("the search", "is not understood", f"use crawl: or state: with one of {known}")
    return state


class AnalysisPage(LivePage):
    """`/analyses/{analysis_id}`."""

    paths = ("/analyses/{analysis_id}",)
    regions = ("analysis_head", "analysis")
    template, section, query = "analysis.html", "analyses", ("code", "after")

    def __init__(self, shell: Shell, analyses: Analyses, crawls: Crawls) -> None:
        self._shell = shell
        self._analyses = analyses
        self._crawls = crawls

    @page_endpoint("/analyses/{analysis_id}", "Show an analysis.")
    async def show_analysis(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request)

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        analysis = await self._analyses.get(params["analysis_id"])
        counts = most_serious_first(await self._analyses.counts(analysis.id))
        before = await self._baseline(analysis.options.baseline)
        earlier = (
            {one.code: before[one.code].count if one.code in before else 0 for one in counts}
            if before is not None
            else {}
        )
        outcomes = await self._analyses.outcomes(analysis.id)
        known, missing = {one.code for one in counts}, {one.analyzer for one in outcomes if one.missing is not None}
        chosen = next((one for one in counts if one.code == params.get("code")), counts[0] if counts else None)
        return {
            "analysis": analysis,
            "path": f"/analyses/{analysis.id}",
            "site": redact_url(analysis.site),
            "verdicts": VERDICTS,
            "groups": [
                (severity, word, [(one, earlier.get(one.code)) for one in counts if one.severity is severity])
                for severity, word in SEVERITIES.items()
            ],
            "resolved": [
                one for one in (before or {}).values() if one.code not in known and one.analyzer not in missing
            ],
            "not_checked": not_checked_by(analysis),
            "kinds": NOT_CHECKED,
            "outcomes": outcomes,
            "skipped": skipped_by_reason(outcomes),
            "no_details": NO_DETAILS,
            "uncrawled": uncrawled(await self._crawls.get(analysis.crawl_id)),
            "most_parts": MOST_PARTS,
            "is_live": analysis.state not in TERMINAL,
            **await self._chosen(analysis.id, chosen, params.get("after", "")),
        }

    async def _chosen(self, analysis_id: str, code: FindingCount | None, after: str) -> dict[str, Any]:
        """Return the findings of one code that follow a position."""
        found, number = [], row_in(after, LAST_FINDING)
        if code is not None:
            place = None if number is None else FindingPlace(code.code, number)
            found = await self._analyses.findings(analysis_id, after=place, limit=ROWS + 1, code=code.code)
        return {
            "code": code,
            "findings": [one for _, one in found[:ROWS]],
            "next": found[ROWS - 1][0].number if len(found) > ROWS else None,
            "is_first": number is None,
        }

    async def _baseline(self, analysis_id: str | None) -> dict[str, FindingCount] | None:
        """Return the finding counts of the baseline by code; None without a baseline, or if it was removed."""
        if analysis_id is None:
            return None
        try:
            return {one.code: one for one in await self._analyses.counts(analysis_id)}
        except NotFound:
            return None

    @page_endpoint("/analyses/{analysis_id}/findings.{format}", "Download the findings.", expensive=always)
    async def download_findings(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        """The file contains all stored findings, or the findings of one code, as CSV or JSON Lines."""
        name, code = request.path_param("format"), request.http.query_params.get("code")
        made = format_of(name, COLUMNS)
        analysis = await self._analyses.get(request.path_param("analysis_id"))
        found = batched(
            lambda after: self._analyses.findings(analysis.id, after=after, limit=BATCH, code=code),
            lambda one: one[0],
            lambda one: {column: getattr(one[1], column) for column in COLUMNS} | {"severity": one[1].severity.value},
        )
        return exported(made, f"{analysis.id}.{name}", found)


def skipped_by_reason(outcomes: Iterable[AnalyzerOutcome]) -> dict[str, list[str]]:
    """Return the names of the skipped analyzers by the reason."""
    found: dict[str, list[str]] = {}
    for one in outcomes:
        if one.skipped is not None:
            found.setdefault(one.skipped, []).append(one.analyzer)
    return found


def uncrawled(status: CrawlStatus) -> int:
    """Return how many known URLs a paused crawl has not crawled; 0 for a crawl that has ended."""
    return status.counts.queued if status.crawl.state is CrawlState.PAUSED else 0


class CrawlAuditPage(LivePage):
    """`/crawls/{crawl_id}/audit`: the newest analysis of a crawl, and the form for a new analysis."""

    paths = ("/crawls/{crawl_id}/audit",)
    regions = ("crawl_head", "crawl_audit")
    template, section, query = "crawl_audit.html", "crawls", ("code", "after")

    def __init__(
        self, shell: Shell, crawls: Crawls, analyses: Analyses, gates: Gates, frame: CrawlPage, shown: AnalysisPage
    ) -> None:
        self._shell = shell
        self._crawls = crawls
        self._analyses = analyses
        self._gates = gates
        self._frame = frame
        self._shown = shown

    @page_endpoint("/crawls/{crawl_id}/audit", "Show the newest analysis of a crawl.")
    async def show_audit(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request, gates=[stored.name for stored in await self._gates.all()])

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        status = await self._crawls.get(params["crawl_id"])
        head, found = (
            self._frame.head(view, status, "audit"),
            await self._analyses.newest(limit=OTHERS + 1, crawl_id=status.crawl.id),
        )
        head |= {"analysis": None, "others": found[1:], "can_audit": status.crawl.state in SETTLED}
        head["uncrawled"] = uncrawled(status)
        if not found:
            return head
        shown = await self._shown.context(view, {**params, "analysis_id": found[0].id})
        is_live = head["is_live"] or shown["is_live"]
        return head | shown | {"path": f"/crawls/{status.crawl.id}/audit", "is_live": is_live}

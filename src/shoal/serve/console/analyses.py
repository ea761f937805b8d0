"""Analyses: the list, and one analysis with its verdict, its findings by severity and code, and its baseline."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import orjson
from starlette.responses import Response, StreamingResponse

from shoal.access.token import TokenScope
from shoal.audit.analyses import Analyses
from shoal.audit.analysis import AnalysisOptions
from shoal.audit.codes import NOT_CHECKED, not_checked_by
from shoal.audit.finding import LABELS as SEVERITIES
from shoal.audit.finding import FindingCount, most_serious_first
from shoal.audit.gates import Gates
from shoal.audit.reports.report import value_in_words
from shoal.audit.states import LABELS, TERMINAL, AnalysisState
from shoal.audit.store import FindingPlace
from shoal.audit.verdict import VERDICTS
from shoal.base.errors import InvalidInput, NotFound, ShoalError
from shoal.base.text import message, redact_url
from shoal.serve.console.feed import LivePage
from shoal.serve.console.forms import AnyQuery, Search, View, form_endpoint, page_endpoint, parse, read_form, suggestion
from shoal.serve.console.shell import Notice, Shell, sentence
from shoal.serve.endpoint import EndpointRequest, Nothing, always, endpoint

ROWS: Final = 50
BATCH: Final = 500
LAST: Final = 2**31 - 1
QUALIFIERS: Final = ("state", "crawl")
STARTED: Final = message("The analysis was created; it appears here as soon as a worker has run it.")


class AnalysesPage(LivePage):
    """`/analyses`."""

    paths = ("/analyses",)
    regions = ("analysis_rows",)

    def __init__(self, shell: Shell, analyses: Analyses, gates: Gates) -> None:
        self._shell = shell
        self._analyses = analyses
        self._gates = gates

    @page_endpoint("/analyses", "Show the analyses.")
    async def show_analyses(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        query = request.http.query_params
        params = {name: query[name] for name in ("q", "after") if query.get(name)}
        context = await self.context(self._shell.view(request.http), params)
        context |= {"topic": self._shell.url("/analyses", **params).removeprefix(self._shell.prefix)}
        context |= {"gates": [stored.name for stored in await self._gates.all()]}
        language = self._shell.view(request.http).language
        states = [(state.value, language(word)) for state, word in LABELS.items()]
        context["suggestions"] = {
            "state": suggestion(language("where it is"), states),
            "crawl": suggestion(language("the id of a crawl"), [one.crawl_id for one, _ in context["rows"]]),
        }
        return self._shell.page(request.http, "analyses.html", context, section="analyses")

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        search, problem, after = Search(params.get("q", "")), "", params.get("after", "")
        number = min(int(after), LAST) if after.isascii() and after.isdecimal() and len(after) < 11 else None
        found = []
        try:
            search = parse(params.get("q", ""), QUALIFIERS)
            state = search.one("state")
            if search.text or (state is not None and state not in set(AnalysisState)):
                known = ", ".join(AnalysisState)
                raise InvalidInput("the search", "is not understood", f"use crawl: or state: with one of {known}")
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

    @form_endpoint("/analyses", "Analyze a crawl from the form.")
    async def analyze_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form = await read_form(request.http)
        language, name = self._shell.view(request.http).language, form.get("gate")
        try:
            gate = (await self._gates.get(name)).gate if name else None
            options = AnalysisOptions(gate, name or None)
            analysis = await self._analyses.submit(form.get("crawl_id"), options, form.get("baseline") or None)
        except ShoalError as error:
            if error.response.http_status >= 500:
                raise
            return self._shell.redirect("/analyses", Notice(sentence(error.message), is_problem=True))
        return self._shell.redirect(f"/analyses/{analysis.id}", Notice(language(STARTED)))


class AnalysisPage(LivePage):
    """`/analyses/{analysis_id}`."""

    paths = ("/analyses/{analysis_id}",)
    regions = ("analysis",)

    def __init__(self, shell: Shell, analyses: Analyses) -> None:
        self._shell = shell
        self._analyses = analyses

    @page_endpoint("/analyses/{analysis_id}", "Show an analysis.")
    async def show_analysis(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        analysis_id, query = request.path_param("analysis_id"), request.http.query_params
        context = await self.context(self._shell.view(request.http), {"analysis_id": analysis_id})
        code, after = query.get("code", "")[:100], query.get("after", "")
        place = FindingPlace(code, int(after)) if after.isascii() and after.isdecimal() and len(after) < 16 else None
        found = []
        if code:
            found = await self._analyses.findings(analysis_id, after=place, limit=ROWS + 1, code=code)
        context |= {
            "code": next((one for one, _ in context["codes"] if one.code == code), None),
            "findings": [one for _, one in found[:ROWS]],
            "in_words": value_in_words,
            "next": found[ROWS - 1][0].number if len(found) > ROWS else None,
            "is_first": place is None,
            "topic": f"/analyses/{analysis_id}",
        }
        return self._shell.page(request.http, "analysis.html", context, section="analyses")

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        analysis = await self._analyses.get(params["analysis_id"])
        counts = most_serious_first(await self._analyses.counts(analysis.id))
        before = await self._baseline(analysis.options.baseline)
        outcomes = await self._analyses.outcomes(analysis.id)
        known, missing = {one.code for one in counts}, {one.analyzer for one in outcomes if one.missing is not None}
        return {
            "analysis": analysis,
            "site": redact_url(analysis.site),
            "verdicts": VERDICTS,
            "codes": [
                (one, None if before is None else before[one.code].count if one.code in before else 0) for one in counts
            ],
            "resolved": [
                one for one in (before or {}).values() if one.code not in known and one.analyzer not in missing
            ],
            "totals": [
                (severity, word, sum(one.count for one in counts if one.severity is severity))
                for severity, word in SEVERITIES.items()
            ],
            "not_checked": not_checked_by(analysis),
            "kinds": NOT_CHECKED,
            "outcomes": outcomes,
            "is_live": analysis.state not in TERMINAL,
        }

    async def _baseline(self, analysis_id: str | None) -> dict[str, FindingCount] | None:
        """Return the findings of the baseline by code; None without one, or if it was removed since."""
        if analysis_id is None:
            return None
        try:
            return {one.code: one for one in await self._analyses.counts(analysis_id)}
        except NotFound:
            return None

    @endpoint(
        "GET",
        "/analyses/{analysis_id}/findings.jsonl",
        scope=TokenScope.READ,
        summary="Download the findings.",
        query=AnyQuery,
        public=False,
        expensive=always,
    )
    async def download_findings(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        """All stored findings, one JSON object per line."""
        analysis = await self._analyses.get(request.path_param("analysis_id"))

        async def lines() -> AsyncIterator[bytes]:
            after = None
            while found := await self._analyses.findings(analysis.id, after=after, limit=BATCH):
                for place, one in found:
                    values = {"code": one.code, "severity": one.severity, "page": one.page, "evidence": one.evidence}
                    yield orjson.dumps(values) + b"\n"
                    after = place

        headers = {"Content-Disposition": f'attachment; filename="{analysis.id}.jsonl"', "Cache-Control": "no-store"}
        return StreamingResponse(lines(), media_type="application/jsonl", headers=headers)

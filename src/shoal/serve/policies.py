"""REST endpoints for policies, signals and priority rules."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from io import TextIOWrapper
from typing import IO, Annotated, Any, Literal

import xxhash
from msgspec import UNSET, to_builtins
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from shoal.access.audit_log import AuditHook
from shoal.access.idempotency import Idempotency
from shoal.access.token import TokenScope
from shoal.audit.gates import Gates
from shoal.base.errors import InvalidInput, TooLarge, WrongMediaType
from shoal.base.request_form import Form, describe
from shoal.base.text import shorten
from shoal.plan import policy as plan
from shoal.plan.importer import MAX_BAD, PolicyImporter
from shoal.plan.policies import Policies, SignalForm
from shoal.plan.policy import PolicyChange, PolicyForm
from shoal.plan.policy_file import PolicyFileRow, lines_of, read_csv, read_json_lines, write_csv, write_json_lines
from shoal.serve.endpoint import EndpointRequest, Nothing, always, endpoint
from shoal.serve.expensive_reads import disconnect
from shoal.serve.problems import Json
from shoal.serve.requests import Paging, number_of, page_of, respond_once
from shoal.serve.resources.policy import (
    POLICY_FORM,
    Boost,
    PoliciesImported,
    Policy,
    PolicyList,
    PolicyRun,
    PriorityRule,
    PriorityRuleList,
)

EXPORT_BATCH = 250  # number of policies that one event-loop callback writes


class PolicyQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    project: Annotated[str | None, describe("Only policies of this project.")] = None
    enabled: Annotated[bool | None, describe("True: only enabled policies. False: only disabled policies.")] = None


class ImportOptions(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bad: Annotated[Literal["refuse", "skip"], describe("On an invalid line: reject the file, or skip the line.")] = (
        "refuse"
    )


class ExportOptions(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Annotated[Literal["csv", "jsonl"], describe("Format of the file.")] = "jsonl"
    project: Annotated[str | None, describe("Only policies of this project.")] = None


READERS: dict[str, Callable[[Iterable[str]], Iterator[PolicyFileRow]]] = {
    "text/csv": read_csv,
    "application/x-ndjson": read_json_lines,
}


class PolicyApi:
    """`/api/v1/policies`, `/api/v1/signals` and `/api/v1/priority-rules`."""

    def __init__(
        self, policies: Policies, importer: PolicyImporter, idempotency: Idempotency, gates: Gates, largest: int
    ) -> None:
        self._policies = policies
        self._gates = gates
        self._importer = importer
        self._idempotency = idempotency
        self._largest = largest

    @endpoint(
        "POST",
        "/api/v1/policies",
        scope=TokenScope.WRITE,
        summary="Create a policy: crawl a page or a site on a schedule.",
        body=PolicyForm,
        status=201,
        response=Policy,
        request_example=POLICY_FORM,
        idempotency_key=True,
    )
    async def create_policy(self, request: EndpointRequest[PolicyForm, Nothing]) -> Response:
        """Its first run is due immediately, or at the first time that matches `cron`."""
        return await respond_once(
            self._idempotency, request, "pol", lambda new: self._create(request.body, new.subject, request.audit)
        )

    @endpoint(
        "GET",
        "/api/v1/policies",
        scope=TokenScope.READ,
        summary="List policies, oldest first.",
        query=PolicyQuery,
        response=PolicyList,
    )
    async def list_policies(self, request: EndpointRequest[Nothing, PolicyQuery]) -> PolicyList:
        query = request.query
        after = number_of(query.cursor) or 0
        now, found = await self._policies.page_of(
            after=after, limit=query.limit + 1, project=query.project, enabled=query.enabled
        )
        policies, more = page_of(found, query.limit, lambda policy: policy.number)
        return PolicyList(items=[Policy.of(one, now) for one in policies], next=more)

    @endpoint(
        "POST",
        "/api/v1/policies/import",
        scope=TokenScope.WRITE,
        summary="Create policies from a CSV or JSON Lines file.",
        file=("text/csv", "application/x-ndjson"),
        query=ImportOptions,
        response=PoliciesImported,
        response_example={
            "made": 199_999,
            "bad": 1,
            "problems": [{"line": 150_000, "problem": "url is missing; give text."}],
        },
        problems=[InvalidInput],
        idempotency_key=True,
    )
    async def import_policies(self, request: EndpointRequest[Nothing, ImportOptions]) -> Response:
        """The file is CSV with a header line, or one JSON object per line. All policies are created in one commit. If a
        line is invalid, the whole file is rejected, unless `bad=skip` is set."""
        kind = request.http.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in READERS:
            raise WrongMediaType(shorten(kind) or "no type", " or ".join(READERS))
        with tempfile.TemporaryFile() as file:
            digest = await self._stream_to_file(request.http, file)
            # Bytes that are not UTF-8 are kept as surrogates, so that the reader can reject their line.
            lines = TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")

            gone = asyncio.ensure_future(disconnect(request.http))
            try:
                return await respond_once(
                    self._idempotency,
                    request,
                    "pol",
                    lambda new: self._import(request, READERS[kind](lines_of(lines)), new.subject, gone),
                    lambda: f"{kind} {request.query.bad} {digest}",
                )
            finally:
                gone.cancel()

    async def _import(
        self,
        request: EndpointRequest[Nothing, ImportOptions],
        rows: Iterator[PolicyFileRow],
        first: str,
        gone: asyncio.Future[None],
    ) -> Json:
        def check_caller() -> None:
            if gone.done():
                raise ClientDisconnect

        skip = request.query.bad == "skip"
        summary = await self._importer.take(
            rows, skip_bad=skip, first=first, audit=request.audit, check_caller=check_caller
        )
        is_cut = summary.bad >= MAX_BAD
        if summary.bad and (is_cut or not skip):
            line, problem = summary.problems[-1 if is_cut and skip else 0]
            fix = "correct the file" if is_cut else "correct it, or skip invalid lines with bad=skip"
            refusal = InvalidInput(f"line {line}:", problem.rstrip("."), fix)
            refusal.facts |= {"field": f"line {line}"} | to_builtins(PoliciesImported.of(summary))
            raise refusal
        return Json(PoliciesImported.of(summary))

    @endpoint(
        "GET",
        "/api/v1/policies/export",
        scope=TokenScope.ADMIN,
        summary="Export policies as a file.",
        query=ExportOptions,
        response=str,
        media_type="application/x-ndjson or text/csv",
        expensive=always,
    )
    async def export_policies(self, request: EndpointRequest[Nothing, ExportOptions]) -> Response:
        """The file can be imported again. Therefore it contains headers, cookies and proxies in clear text."""
        await request.audit_alone("policies.exported", "")
        as_csv = request.query.format == "csv"
        kind = "text/csv; charset=utf-8" if as_csv else "application/x-ndjson"
        name = {"Content-Disposition": f'attachment; filename="policies.{request.query.format}"'}
        return StreamingResponse(self._lines(request.query.project, as_csv), media_type=kind, headers=name)

    @endpoint(
        "GET",
        "/api/v1/policies/{policy_id}",
        scope=TokenScope.READ,
        summary="Show a policy.",
        response=Policy,
    )
    async def show_policy(self, request: EndpointRequest[Nothing, Nothing]) -> Policy:
        return await self._shown(await self._policies.get(request.path_param("policy_id")))

    @endpoint(
        "PUT",
        "/api/v1/policies/{policy_id}",
        scope=TokenScope.WRITE,
        summary="Replace the definition of a policy.",
        body=PolicyForm,
        response=Policy,
        request_example=POLICY_FORM,
    )
    async def replace_policy(self, request: EndpointRequest[PolicyForm, Nothing]) -> Policy:
        """The status of the policy is kept. A new schedule applies immediately."""
        await self._check_gate(request.body.crawl_config)
        return await self._shown(
            await self._policies.rewrite(request.path_param("policy_id"), request.body, audit=request.audit)
        )

    @endpoint(
        "PATCH",
        "/api/v1/policies/{policy_id}",
        scope=TokenScope.WRITE,
        summary="Change fields of a policy.",
        body=PolicyChange,
        needs_body=True,
        response=Policy,
        request_example={"frequency": "1h", "priority_base": 80},
        response_example=Policy.example | {"frequency": "1h", "priority_base": 80},
    )
    async def change_policy(self, request: EndpointRequest[PolicyChange, Nothing]) -> Policy:
        """Fields that are absent do not change, including secrets. `frequency` replaces `cron` and vice versa. A new
        schedule applies immediately."""
        if request.body.crawl_config is not UNSET:
            await self._check_gate(request.body.crawl_config)
        return await self._shown(
            await self._policies.change(request.path_param("policy_id"), request.body, audit=request.audit)
        )

    @endpoint(
        "DELETE",
        "/api/v1/policies/{policy_id}",
        scope=TokenScope.WRITE,
        summary="Remove a policy.",
        status=204,
    )
    async def remove_policy(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """A run in progress is not cancelled."""
        await self._policies.remove(request.path_param("policy_id"), audit=request.audit)
        return Response(status_code=204)

    @endpoint(
        "POST",
        "/api/v1/policies/{policy_id}/run",
        scope=TokenScope.WRITE,
        summary="Run a policy now.",
        status=202,
        response=PolicyRun,
        response_example={"job_id": "job_01hr2v8k3m4n5p6q", "crawl_id": None, "duplicate": False},
    )
    async def run_policy(self, request: EndpointRequest[Nothing, Nothing]) -> PolicyRun:
        """If the policy fetches a page, a job is created; if it crawls a site, a crawl is created. The schedule does
        not change."""
        run = await self._policies.run_now(request.path_param("policy_id"), audit=request.audit)
        job_id, crawl_id = (None, run.id) if run.is_crawl else (run.id, None)
        return PolicyRun(job_id=job_id, crawl_id=crawl_id, duplicate=run.duplicate)

    @endpoint(
        "POST",
        "/api/v1/policies/{policy_id}/enable",
        scope=TokenScope.WRITE,
        summary="Enable a policy.",
        response=Policy,
    )
    async def enable_policy(self, request: EndpointRequest[Nothing, Nothing]) -> Policy:
        return await self._shown(
            await self._policies.enable(request.path_param("policy_id"), True, audit=request.audit)
        )

    @endpoint(
        "POST",
        "/api/v1/policies/{policy_id}/disable",
        scope=TokenScope.WRITE,
        summary="Disable a policy.",
        response=Policy,
        response_example=Policy.example | {"enabled": False, "next_run_at": None},
    )
    async def disable_policy(self, request: EndpointRequest[Nothing, Nothing]) -> Policy:
        return await self._shown(
            await self._policies.enable(request.path_param("policy_id"), False, audit=request.audit)
        )

    @endpoint(
        "POST",
        "/api/v1/signals",
        scope=TokenScope.WRITE,
        summary="Temporarily raise or lower the priority of a URL or a label.",
        body=SignalForm,
        response=Boost,
        request_example={"label": "team=prices", "boost": 30, "lasts": "6h"},
        response_example={"subject": "label:team=prices", "boost": 30.0, "until": "2026-03-01T15:00:00Z"},
    )
    async def push_signal(self, request: EndpointRequest[SignalForm, Nothing]) -> Boost:
        """The signal (boost) applies only to jobs that are created after this request."""
        signal = await self._policies.signal(request.body)
        return Boost.of(signal)

    @endpoint(
        "GET",
        "/api/v1/priority-rules",
        scope=TokenScope.READ,
        summary="List the rules that determine the priority of policies' jobs.",
        response=PriorityRuleList,
        response_example={"items": [{"fact": "staleness", "per": 5.0, "limit": 20.0, "most": 20.0}]},
    )
    async def list_priority_rules(self, request: EndpointRequest[Nothing, Nothing]) -> PriorityRuleList:
        """The priority is the sum of the points of all rules, limited to 0 to 100. The operator sets the rules with
        `SHOAL_PRIORITY_RULES`."""
        return PriorityRuleList(items=[PriorityRule.of(rule) for rule in self._policies.rules])

    async def _check_gate(self, options: dict[str, Any]) -> None:
        """Reject a gate that does not exist. A value that is not text is rejected later, with the other options."""
        if isinstance(options.get("gate"), str):
            await self._gates.check(options["gate"], "crawl_config.gate")

    async def _create(self, form: PolicyForm, policy_id: str, audit: AuditHook) -> Json:
        await self._check_gate(form.crawl_config)
        policy = await self._policies.make(form, policy_id, audit=audit)
        headers = {"Location": f"/api/v1/policies/{policy.id}"}
        return Json(Policy.of(policy, policy.created_at), 201, headers)

    async def _stream_to_file(self, request: Request, file: IO[bytes]) -> str:
        """Write the upload to a file and return its digest."""
        size, digest = 0, xxhash.xxh3_128()
        async for chunk in request.stream():
            size += len(chunk)
            if size > self._largest:
                raise TooLarge("the file", f"{self._largest} bytes", "split it, or raise SHOAL_MAX_IMPORT")
            file.write(chunk)
            digest.update(chunk)
        file.seek(0)
        return digest.hexdigest()

    async def _lines(self, project: str | None, as_csv: bool) -> AsyncIterator[bytes]:
        after = 0
        while True:
            _, found = await self._policies.page_of(after=after, limit=EXPORT_BATCH, project=project)
            yield write_csv(found, head=not after) if as_csv else write_json_lines(found)
            if not found:
                return
            after = found[-1].number

    async def _shown(self, policy: plan.Policy) -> Policy:
        now, _ = await self._policies.page_of(limit=1)
        return Policy.of(policy, now)

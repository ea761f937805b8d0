"""REST for policies and business signals."""

import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import asdict
from io import TextIOWrapper
from typing import IO, Annotated, Any, Literal

import xxhash
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.access.idempotency import Idempotency
from shoal.access.scopes import TokenScope
from shoal.base.clock import moment
from shoal.base.errors import InvalidInput, NotFound, TooLarge, WrongMediaType
from shoal.base.request_form import Form, describe
from shoal.base.text import shorten
from shoal.plan.change import PolicyChange
from shoal.plan.importer import PolicyImporter
from shoal.plan.policies import Policies, SignalForm
from shoal.plan.policy import Policy, PolicyForm
from shoal.plan.policy_file import PolicyRow, lines_of, read_csv, read_json_lines, write_csv, write_json_lines
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.idempotency import respond_once
from shoal.serve.pagination import Paging, cursor_of, cut, number_of
from shoal.serve.problems import Json
from shoal.serve.schemas import Moment

FORM: dict[str, Any] = {
    "url": "https://shop.example.com/item/17",
    "frequency": "6h",
    "priority_base": 60,
    "labels": {"team": "prices"},
    "rule_set": {"fields": {"price": {"css": ".price", "type": "float", "required": True}}},
}
EXAMPLE: dict[str, Any] = {
    "id": "pol_01hr2v8k3m4n5p6q",
    "seeds": [],
    "cron": None,
    "timezone": "UTC",
    "windows": [],
    "jitter": "0s",
    "crawl_config": {},
    "lock_ttl": "10m",
    "max_retry": 3,
    "queue": None,
    "overlap": "skip",
    "adaptive": None,
    "not_after": None,
    "project": "default",
    "enabled": True,
    **FORM,
    "next_run_at": "2026-03-01T15:00:00Z",
    "last_run_at": "2026-03-01T09:00:00Z",
    "last_success_at": "2026-03-01T09:00:02Z",
    "live_job_id": None,
    "last_crawl_id": None,
    "freshness": {"age_seconds": 1800, "stale": False},
    "created_at": "2026-02-01T09:00:00Z",
}


class Freshness(Struct, kw_only=True):
    age_seconds: Annotated[int | None, describe("Since the last success; null if there was none.")]
    stale: Annotated[bool, describe("Older than its frequency, or its next time by cron has come.")]


class PolicyShape(Struct, kw_only=True):
    """A policy, and how it stands."""

    id: str
    url: str | None
    seeds: list[str]
    frequency: str | None
    cron: str | None
    timezone: str
    windows: list[str]
    jitter: str
    priority_base: int
    crawl_config: Annotated[dict[str, Any], describe("Secrets are hidden.")]
    rule_set: dict[str, Any] | None
    lock_ttl: str
    max_retry: int
    queue: str | None
    overlap: str
    adaptive: dict[str, str] | None
    not_after: Moment | None
    labels: dict[str, str]
    project: str
    enabled: bool
    next_run_at: Annotated[Moment | None, describe("Null: disabled, or over.")]
    last_run_at: Moment | None
    last_success_at: Moment | None
    live_job_id: str | None
    last_crawl_id: Annotated[str | None, describe("The last crawl of a site.")]
    freshness: Freshness
    created_at: Moment


class PolicyList(Struct, kw_only=True):
    items: list[PolicyShape]
    next: Annotated[str | None, describe("The cursor of the next page; null on the last one.")]


class Made(Struct, kw_only=True):
    job_id: Annotated[str | None, describe("Of the policy of a page.")]
    crawl_id: Annotated[str | None, describe("Of the policy of a site.")]
    duplicate: Annotated[bool, describe("A run of this policy lives already: this is its id.")]


class SignalShape(Struct, kw_only=True):
    subject: str
    boost: float
    until: Moment


class RuleShape(Struct, kw_only=True):
    fact: Annotated[str, describe("What it looks at: importance, staleness, error_rate, signal or overdue_seconds.")]
    per: Annotated[float, describe("Points for each unit of the fact.")]
    most: Annotated[float, describe("It gives, or takes, no more points than these.")]


class RuleList(Struct, kw_only=True):
    items: list[RuleShape]


class PolicyFilter(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    project: Annotated[str | None, describe("Only policies of this project.")] = None
    enabled: Annotated[bool | None, describe("Only policies that are enabled, or that are not.")] = None


class ImportOptions(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bad: Annotated[
        Literal["refuse", "skip"], describe("What one bad line does: nothing is kept, or only it is not.")
    ] = "refuse"


class ExportOptions(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Annotated[Literal["csv", "jsonl"], describe("The form of the file.")] = "jsonl"
    project: Annotated[str | None, describe("Only policies of this project.")] = None


class BadLine(Struct, kw_only=True):
    line: int
    problem: str


class ImportReport(Struct, kw_only=True):
    made: int
    bad: Annotated[int, describe("Lines that cannot be taken.")]
    problems: Annotated[list[BadLine], describe("The first hundred of them.")]


READERS: dict[str, Callable[[Iterable[str]], Iterator[PolicyRow]]] = {
    "text/csv": read_csv,
    "application/x-ndjson": read_json_lines,
}


class PolicyApi:
    """`/api/v1/policies`, `/api/v1/signals` and `/api/v1/priority-rules`."""

    def __init__(self, policies: Policies, intake: PolicyImporter, once: Idempotency, largest: int) -> None:
        self._policies = policies
        self._intake = intake
        self._once = once
        self._largest = largest

    @endpoint(
        "POST",
        "/api/v1/policies",
        scope=TokenScope.WRITE,
        summary="Have a page or a site crawled again and again.",
        body=PolicyForm,
        status=201,
        answer=PolicyShape,
        request_example=FORM,
        response_example=EXAMPLE,
        once=True,
    )
    async def create_policy(self, ask: EndpointRequest[PolicyForm, Nothing]) -> Response:
        """It is due at once, or by cron at the first minute that matches."""
        return await respond_once(self._once, ask, "pol", lambda policy_id: self._make(ask.body, policy_id))

    @endpoint(
        "GET",
        "/api/v1/policies",
        scope=TokenScope.READ,
        summary="List policies, the oldest first.",
        query=PolicyFilter,
        answer=PolicyList,
        response_example={"items": [EXAMPLE], "next": None},
    )
    async def list_policies(self, ask: EndpointRequest[Nothing, PolicyFilter]) -> Json:
        query = ask.query
        after = number_of(query.cursor) or 0
        now, found = await self._policies.page_of(
            after=after, limit=query.limit + 1, project=query.project, enabled=query.enabled
        )

        def answer(policy: Policy) -> dict[str, Any]:
            return policy.answer(now)

        return Json(cut(found, query.limit, answer, lambda one: cursor_of(str(one.number))))

    @endpoint(
        "POST",
        "/api/v1/policies/import",
        scope=TokenScope.WRITE,
        summary="Make many policies from a file.",
        file=("text/csv", "application/x-ndjson"),
        query=ImportOptions,
        answer=ImportReport,
        response_example={
            "made": 199_999,
            "bad": 1,
            "problems": [{"line": 150_000, "problem": "url is missing; give text."}],
        },
        problems=[InvalidInput],
        once=True,
    )
    async def import_policies(self, ask: EndpointRequest[Nothing, ImportOptions]) -> Response:
        """CSV with the names of fields in its first line, or JSON objects line by line. All of it is kept in one
        commit; with a bad line nothing is, unless bad lines are to be skipped."""
        kind = ask.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in READERS:
            raise WrongMediaType(shorten(kind) or "no type", " or ".join(READERS))
        with tempfile.TemporaryFile() as file:
            digest = await self._spool(ask.request, file)
            # What is not UTF-8 stays to be seen, and its line is refused.
            lines = TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")

            async def make(first: str) -> Json:
                return await self._take(READERS[kind](lines_of(lines)), ask.query.bad == "skip", first)

            return await respond_once(self._once, ask, "pol", make, lambda: f"{kind} {ask.query.bad} {digest}")

    async def _take(self, rows: Iterator[PolicyRow], skip: bool, first: str) -> Json:
        report = await self._intake.take(rows, skip_bad=skip, first=first)
        if report.bad and not skip:
            line, problem = report.problems[0]
            refusal = InvalidInput(f"line {line}:", problem.rstrip("."), "correct it, or skip bad lines with bad=skip")
            refusal.facts |= {"field": f"line {line}"} | report.answer()
            raise refusal
        return Json(report.answer())

    @endpoint(
        "GET",
        "/api/v1/policies/export",
        scope=TokenScope.ADMIN,
        summary="Get all policies as a file.",
        act="policies.exported",
        query=ExportOptions,
        answer=str,
        media_type="application/x-ndjson or text/csv",
    )
    async def export_policies(self, ask: EndpointRequest[Nothing, ExportOptions]) -> Response:
        """What it gives can be imported again, so headers, cookies and proxies are in it as they were given."""
        await ask.note_alone("")
        as_csv = ask.query.format == "csv"
        kind = "text/csv; charset=utf-8" if as_csv else "application/x-ndjson"
        name = {"Content-Disposition": f'attachment; filename="policies.{ask.query.format}"'}
        return StreamingResponse(self._lines(ask.query.project, as_csv), media_type=kind, headers=name)

    @endpoint(
        "GET",
        "/api/v1/policies/{policy_id}",
        scope=TokenScope.READ,
        summary="Show one policy.",
        answer=PolicyShape,
        response_example=EXAMPLE,
        problems=[NotFound],
    )
    async def show_policy(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        return await self._shown(await self._policies.get(ask.part("policy_id")))

    @endpoint(
        "PUT",
        "/api/v1/policies/{policy_id}",
        scope=TokenScope.WRITE,
        summary="Replace what is said of a policy.",
        body=PolicyForm,
        answer=PolicyShape,
        request_example=FORM,
        response_example=EXAMPLE,
        problems=[NotFound],
    )
    async def replace_policy(self, ask: EndpointRequest[PolicyForm, Nothing]) -> Json:
        """How it stands stays; another rhythm begins now."""
        return await self._shown(await self._policies.rewrite(ask.part("policy_id"), ask.body))

    @endpoint(
        "PATCH",
        "/api/v1/policies/{policy_id}",
        scope=TokenScope.WRITE,
        summary="Change some of a policy.",
        body=PolicyChange,
        needs_body=True,
        answer=PolicyShape,
        request_example={"frequency": "1h", "priority_base": 80},
        response_example=EXAMPLE | {"frequency": "1h", "priority_base": 80},
        problems=[NotFound],
    )
    async def change_policy(self, ask: EndpointRequest[PolicyChange, Nothing]) -> Json:
        """What is not named stays as it is, secrets too; another frequency takes the place of cron, and the other way
        round. Another rhythm begins now."""
        return await self._shown(await self._policies.change(ask.part("policy_id"), ask.body))

    @endpoint(
        "DELETE",
        "/api/v1/policies/{policy_id}",
        scope=TokenScope.WRITE,
        summary="Remove a policy.",
        status=204,
        problems=[NotFound],
    )
    async def remove_policy(self, ask: EndpointRequest[Nothing, Nothing]) -> Response:
        """A job of it that lives is run to its end."""
        await self._policies.remove(ask.part("policy_id"))
        return Response(status_code=204)

    @endpoint(
        "POST",
        "/api/v1/policies/{policy_id}/run",
        scope=TokenScope.WRITE,
        summary="Run a policy now.",
        status=202,
        answer=Made,
        response_example={"job_id": "job_01hr2v8k3m4n5p6q", "crawl_id": None, "duplicate": False},
        problems=[NotFound],
    )
    async def run_policy(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        """A page gets a job, a site a crawl. Its plan stays as it is."""
        made = await self._policies.run_now(ask.part("policy_id"))
        job_id, crawl_id = (None, made.id) if made.is_crawl else (made.id, None)
        return Json({"job_id": job_id, "crawl_id": crawl_id, "duplicate": made.duplicate}, status_code=202)

    @endpoint(
        "POST",
        "/api/v1/policies/{policy_id}/enable",
        scope=TokenScope.WRITE,
        summary="Let a policy run.",
        answer=PolicyShape,
        response_example=EXAMPLE,
        problems=[NotFound],
    )
    async def enable_policy(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        return await self._shown(await self._policies.enable(ask.part("policy_id"), True))

    @endpoint(
        "POST",
        "/api/v1/policies/{policy_id}/disable",
        scope=TokenScope.WRITE,
        summary="Keep a policy from running.",
        answer=PolicyShape,
        response_example=EXAMPLE | {"enabled": False, "next_run_at": None},
        problems=[NotFound],
    )
    async def disable_policy(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        return await self._shown(await self._policies.enable(ask.part("policy_id"), False))

    @endpoint(
        "POST",
        "/api/v1/signals",
        scope=TokenScope.WRITE,
        summary="Say that a URL or a label matters more, or less, for a while.",
        body=SignalForm,
        answer=SignalShape,
        request_example={"label": "team=prices", "boost": 30, "lasts": "6h"},
        response_example={"subject": "label:team=prices", "boost": 30.0, "until": "2026-03-01T15:00:00Z"},
    )
    async def push_signal(self, ask: EndpointRequest[SignalForm, Nothing]) -> Json:
        """It counts for jobs that are made from now on."""
        signal = await self._policies.signal(ask.body)
        return Json({"subject": signal.subject, "boost": signal.boost, "until": moment(signal.until)})

    @endpoint(
        "GET",
        "/api/v1/priority-rules",
        scope=TokenScope.READ,
        summary="Show the rules that make the priorities of policies' jobs.",
        answer=RuleList,
        response_example={"items": [{"fact": "staleness", "per": 5.0, "most": 20.0}]},
    )
    async def list_priority_rules(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        """The sum of what they give, kept from 0 to 100, is the priority; the operator changes them by
        SHOAL_PRIORITY_RULES."""
        return Json({"items": [asdict(rule) for rule in self._policies.rules]})

    async def _make(self, form: PolicyForm, policy_id: str) -> Json:
        policy = await self._policies.make(form, policy_id)
        headers = {"Location": f"/api/v1/policies/{policy.id}"}
        return Json(policy.answer(policy.created_at), status_code=201, headers=headers)

    async def _spool(self, request: Request, file: IO[bytes]) -> str:
        """Keep what is sent in a file; its digest."""
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
            _, found = await self._policies.page_of(after=after, limit=1000, project=project)
            yield write_csv(found, head=not after) if as_csv else write_json_lines(found)
            if not found:
                return
            after = found[-1].number

    async def _shown(self, policy: Policy) -> Json:
        now, _ = await self._policies.page_of(limit=1)
        return Json(policy.answer(now))

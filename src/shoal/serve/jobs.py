"""REST for jobs: look, explain, cancel, replay and purge, one or many; quotas; how many there are. Making page jobs is
`groups.py`'s."""

from datetime import timedelta
from typing import Annotated

from msgspec import Meta
from starlette.responses import Response

from shoal.access.scopes import TokenScope
from shoal.base.errors import InvalidInput, NotFound, StateConflict
from shoal.base.request_form import Form, describe
from shoal.queue.job_admin import MOST, JobAdmin
from shoal.queue.job_admin_store import JobFilter, Quota
from shoal.queue.states import JobState
from shoal.serve import examples, schemas
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.pagination import Paging, cursor_of, text_of
from shoal.serve.problems import Json

Word = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^[^\x00]*\Z")]
Most = Annotated[int, Meta(ge=1, le=10_000_000)]
Age = Annotated[float, Meta(ge=0, le=10**9)]


OfKind = Annotated[Word | None, describe("Only jobs of this kind: page, crawl or analysis.")]
InState = Annotated[JobState | None, describe("Only jobs in this state.")]
OfRun = Annotated[Word | None, describe("Only jobs of this crawl, analysis or group.")]
InLane = Annotated[Word | None, describe("Only jobs of this lane.")]
AtMost = Annotated[Most | None, describe("At most so many.")]


class JobsWanted(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: OfKind = None
    state: InState = None
    run_id: OfRun = None
    lane: InLane = None
    dead: Annotated[bool | None, describe("True: only dead letters, failed or expired; false: all others.")] = None


class RetryForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: OfKind = None
    state: InState = None
    run_id: OfRun = None
    lane: InLane = None
    limit: AtMost = None


class PurgeForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: OfKind = None
    state: InState = None
    dead: Annotated[bool, describe("Only dead letters; false: all that ended.")] = True
    older_than_seconds: Annotated[Age, describe("Only jobs that ended so long ago.")] = 0
    limit: AtMost = None


class QuotaForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    most: Annotated[int, describe("How many of its jobs may run at once.", ge=0, le=MOST)]


class JobApi:
    """`/api/v1/jobs`."""

    def __init__(self, jobs: JobAdmin) -> None:
        self._jobs = jobs

    @endpoint(
        "GET",
        "/api/v1/jobs",
        scope=TokenScope.READ,
        summary="List jobs, the newest first.",
        query=JobsWanted,
        answer=schemas.JobList,
        response_example={"items": [examples.JOB], "next": None},
    )
    async def list_jobs(self, ask: EndpointRequest[Nothing, JobsWanted]) -> Json:
        """A page may be short, or empty, and yet not be the last: `next` says."""
        query = ask.query
        before = None if query.cursor is None else text_of(query.cursor)
        page = await self._jobs.newest(
            JobFilter(query.state, query.kind, query.run_id, query.lane, query.dead), before=before, limit=query.limit
        )
        more = None if page.next is None else cursor_of(page.next)
        return Json({"items": [job.answer() for job in page.items], "next": more})

    @endpoint(
        "POST",
        "/api/v1/jobs/retry",
        scope=TokenScope.WRITE,
        summary="Let dead letters run again.",
        body=RetryForm,
        answer=schemas.JobsRetried,
        response_example={"retried": 12},
        request_example={"kind": "page", "limit": 1000},
    )
    async def retry_jobs(self, ask: EndpointRequest[RetryForm, Nothing]) -> Json:
        """Those that fit, or all without a body; each with all its attempts. Jobs of crawls and analyses are retried
        with these."""
        body = ask.body
        which = JobFilter(body.state, body.kind, body.run_id, body.lane, dead=True)
        return Json({"retried": await self._jobs.retry_dead(which, body.limit)})

    @endpoint(
        "POST",
        "/api/v1/jobs/purge",
        scope=TokenScope.ADMIN,
        summary="Remove jobs that have ended.",
        body=PurgeForm,
        act="jobs.purged",
        answer=schemas.JobsPurged,
        response_example={"purged": 12},
        request_example={"kind": "page", "older_than_seconds": 86400},
    )
    async def purge_jobs(self, ask: EndpointRequest[PurgeForm, Nothing]) -> Json:
        """Their history and results go with them. Never one that lives, nor one of a crawl or an analysis, nor one
        whose group is not over."""
        body = ask.body
        if body.state in (JobState.PENDING, JobState.LOCKED):
            raise InvalidInput("state", f"cannot be {body.state.value}", "only jobs that have ended are removed")
        which = JobFilter(body.state, body.kind, dead=True if body.dead else None)
        older = timedelta(seconds=body.older_than_seconds)
        return Json({"purged": await self._jobs.purge(which, older, body.limit, noting=ask.note)})

    @endpoint(
        "GET",
        "/api/v1/jobs/{job_id}",
        scope=TokenScope.READ,
        summary="Show one job and its history.",
        answer=schemas.JobDetail,
        response_example=examples.JOB | {"history": [examples.GRANT]},
        problems=[NotFound],
    )
    async def show_job(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        job = await self._jobs.get(ask.part("job_id"))
        history = await self._jobs.history(job.id)
        return Json(job.answer() | {"history": [grant.answer() for grant in history]})

    @endpoint(
        "GET",
        "/api/v1/jobs/{job_id}/explain",
        scope=TokenScope.READ,
        summary="Explain why a job is where it is.",
        answer=schemas.JobExplained,
        response_example=examples.EXPLAINED,
        problems=[NotFound],
    )
    async def explain_job(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        return Json((await self._jobs.explain(ask.part("job_id"))).answer())

    @endpoint(
        "POST",
        "/api/v1/jobs/{job_id}/cancel",
        scope=TokenScope.WRITE,
        summary="Cancel a job.",
        answer=schemas.Job,
        response_example=examples.JOB | {"state": "cancelled", "state_reason": "asked"},
        problems=[NotFound, StateConflict],
    )
    async def cancel_job(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        """At once; what comes of it if somebody works on it is refused. Jobs of crawls and analyses end with these."""
        return Json((await self._jobs.cancel(ask.part("job_id"))).answer())

    @endpoint(
        "POST",
        "/api/v1/jobs/{job_id}/retry",
        scope=TokenScope.WRITE,
        summary="Let a dead letter run again, with all its attempts.",
        answer=schemas.Job,
        response_example=examples.JOB | {"state": "pending"},
        problems=[NotFound, StateConflict],
    )
    async def retry_job(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        return Json((await self._jobs.retry(ask.part("job_id"))).answer())


class QuotaApi:
    """`/api/v1/quotas`."""

    def __init__(self, jobs: JobAdmin) -> None:
        self._jobs = jobs

    @endpoint(
        "GET",
        "/api/v1/quotas",
        scope=TokenScope.READ,
        summary="List quotas by their scopes.",
        query=Paging,
        answer=schemas.QuotaList,
        response_example={"items": [examples.QUOTA], "next": None},
    )
    async def list_quotas(self, ask: EndpointRequest[Nothing, Paging]) -> Json:
        after = "" if ask.query.cursor is None else text_of(ask.query.cursor)
        found = await self._jobs.quotas(after=after, limit=ask.query.limit + 1)
        shown = found[: ask.query.limit]
        more = cursor_of(shown[-1].scope) if len(found) > ask.query.limit else None
        return Json({"items": [Quota.answer(quota) for quota in shown], "next": more})

    @endpoint(
        "PUT",
        "/api/v1/quotas/{scope:path}",
        scope=TokenScope.ADMIN,
        summary="Let at most so many jobs of a scope run at once.",
        body=QuotaForm,
        act="quota.set",
        answer=schemas.Quota,
        response_example=examples.QUOTA,
        request_example={"most": 5},
    )
    async def set_quota(self, ask: EndpointRequest[QuotaForm, Nothing]) -> Json:
        """A scope is `project:NAME`, `label:NAME=VALUE` or `key:ANYTHING`. What runs already goes on."""
        return Json((await self._jobs.set_quota(ask.part("scope"), ask.body.most, noting=ask.note)).answer())

    @endpoint(
        "DELETE",
        "/api/v1/quotas/{scope:path}",
        scope=TokenScope.ADMIN,
        summary="Limit a scope no more.",
        act="quota.removed",
        status=204,
        problems=[NotFound],
    )
    async def remove_quota(self, ask: EndpointRequest[Nothing, Nothing]) -> Response:
        await self._jobs.remove_quota(ask.part("scope"), noting=ask.note)
        return Response(status_code=204)

"""REST endpoints for jobs (list, explain, cancel, retry, purge) and quotas. The endpoint that creates page jobs is in
`groups.py`."""

from datetime import timedelta
from typing import Annotated, Any, ClassVar

from msgspec import Meta
from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.base.errors import InvalidInput, StateConflict
from shoal.base.request_form import Form, describe
from shoal.queue.job_admin import MOST, JobAdmin
from shoal.queue.job_admin_store import JobFilter
from shoal.queue.states import JobState
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.requests import Paging, cursor_of, page_of, text_of
from shoal.serve.resources.job import (
    Grant,
    Job,
    JobDetail,
    JobExplained,
    JobList,
    JobsPurged,
    JobsRetried,
    Quota,
    QuotaList,
)

Word = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^[^\x00]*\Z")]
Most = Annotated[int, Meta(ge=1, le=10_000_000)]
Age = Annotated[float, Meta(ge=0, le=10**9)]


OfKind = Annotated[Word | None, describe("Only jobs of this kind: page, crawl or analysis.")]
InState = Annotated[JobState | None, describe("Only jobs in this state.")]
OfRun = Annotated[Word | None, describe("Only jobs of this crawl, analysis or group.")]
InLane = Annotated[Word | None, describe("Only jobs in this lane.")]
AtMost = Annotated[Most | None, describe("Maximum number of jobs.")]


class JobQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: OfKind = None
    state: InState = None
    run_id: OfRun = None
    lane: InLane = None
    dead: Annotated[
        bool | None,
        describe("True: only dead letters (failed or expired). False: only jobs that are not dead letters."),
    ] = None


class RetryForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: OfKind = None
    state: InState = None
    run_id: OfRun = None
    lane: InLane = None
    limit: AtMost = None


class PurgeForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: OfKind = None
    state: InState = None
    dead: Annotated[bool, describe("True: only dead letters. False: all jobs that have ended.")] = True
    older_than_seconds: Annotated[Age, describe("Only jobs that ended at least this many seconds ago.")] = 0
    limit: AtMost = None


class QuotaForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Annotated[int, describe("Maximum number of jobs that run at the same time.", ge=0, le=MOST)]

    other_names: ClassVar = {"most": "limit"}


class JobApi:
    """`/api/v1/jobs`."""

    def __init__(self, jobs: JobAdmin) -> None:
        self._jobs = jobs

    @endpoint(
        "GET",
        "/api/v1/jobs",
        scope=TokenScope.READ,
        summary="List jobs, newest first.",
        query=JobQuery,
        response=JobList,
    )
    async def list_jobs(self, request: EndpointRequest[Nothing, JobQuery]) -> JobList:
        """A response may have fewer items than `limit`, or none, although more items follow; only a `next` of null
        marks the end."""
        query = request.query
        before = None if query.cursor is None else text_of(query.cursor)
        page = await self._jobs.newest(
            JobFilter(query.state, query.kind, query.run_id, query.lane, query.dead), before=before, limit=query.limit
        )
        more = None if page.next is None else cursor_of(page.next)
        return JobList(items=[Job.of(one) for one in page.items], next=more)

    @endpoint(
        "POST",
        "/api/v1/jobs/retry",
        scope=TokenScope.WRITE,
        summary="Retry dead letters.",
        body=RetryForm,
        response=JobsRetried,
        response_example={"retried": 12},
        request_example={"kind": "page", "limit": 1000},
    )
    async def retry_jobs(self, request: EndpointRequest[RetryForm, Nothing]) -> JobsRetried:
        """All dead letters that match are retried, or all dead letters if there is no body. Their attempt counts start
        at zero. To retry the job of a crawl or an analysis, retry the crawl or the analysis."""
        body = request.body
        which = JobFilter(body.state, body.kind, body.run_id, body.lane, dead=True)
        return JobsRetried(retried=await self._jobs.retry_dead(which, body.limit, audit=request.audit))

    @endpoint(
        "POST",
        "/api/v1/jobs/purge",
        scope=TokenScope.ADMIN,
        summary="Remove jobs that have ended.",
        body=PurgeForm,
        response=JobsPurged,
        response_example={"purged": 12},
        request_example={"kind": "page", "older_than_seconds": 86400},
    )
    async def purge_jobs(self, request: EndpointRequest[PurgeForm, Nothing]) -> JobsPurged:
        """Their history and results are removed too. Jobs that are waiting or running, jobs of crawls and analyses, and
        jobs of unfinished groups are kept."""
        body = request.body
        if body.state in (JobState.PENDING, JobState.LOCKED):
            raise InvalidInput(
                "state",
                f"cannot be {body.state.value}",
                "only jobs that have ended can be removed",
            )
        which = JobFilter(body.state, body.kind, dead=True if body.dead else None)
        older = timedelta(seconds=body.older_than_seconds)
        return JobsPurged(purged=await self._jobs.purge(which, older, body.limit, audit=request.audit))

    @endpoint(
        "GET",
        "/api/v1/jobs/{job_id}",
        scope=TokenScope.READ,
        summary="Show a job and its history.",
        response=JobDetail,
    )
    async def show_job(self, request: EndpointRequest[Nothing, Nothing]) -> JobDetail:
        job = await self._jobs.get(request.path_param("job_id"))
        return JobDetail.of(job, history=[Grant.of(one) for one in await self._jobs.history(job.id)])

    @endpoint(
        "GET",
        "/api/v1/jobs/{job_id}/explain",
        scope=TokenScope.READ,
        summary="Explain the state of a job.",
        response=JobExplained,
    )
    async def explain_job(self, request: EndpointRequest[Nothing, Nothing]) -> dict[str, Any]:
        """For example, the response explains that a pending job has not started because of a quota, a rate limit, or
        jobs of higher priority."""
        return JobExplained.with_facts(await self._jobs.explain(request.path_param("job_id")))

    @endpoint(
        "POST",
        "/api/v1/jobs/{job_id}/cancel",
        scope=TokenScope.WRITE,
        summary="Cancel a job.",
        response=Job,
        response_example=Job.example | {"state": "cancelled", "state_reason": "asked"},
        problems=[StateConflict],
    )
    async def cancel_job(self, request: EndpointRequest[Nothing, Nothing]) -> Job:
        """The cancellation takes effect immediately. If the job is running, its result will be rejected. To cancel the
        job of a crawl or an analysis, stop the crawl or the analysis."""
        return Job.of(await self._jobs.cancel(request.path_param("job_id"), audit=request.audit))

    @endpoint(
        "POST",
        "/api/v1/jobs/{job_id}/retry",
        scope=TokenScope.WRITE,
        summary="Retry a dead letter; its attempt count starts at zero.",
        response=Job,
        response_example=Job.example | {"state": "pending"},
        problems=[StateConflict],
    )
    async def retry_job(self, request: EndpointRequest[Nothing, Nothing]) -> Job:
        return Job.of(await self._jobs.retry(request.path_param("job_id"), audit=request.audit))


class QuotaApi:
    """`/api/v1/quotas`."""

    def __init__(self, jobs: JobAdmin) -> None:
        self._jobs = jobs

    @endpoint(
        "GET",
        "/api/v1/quotas",
        scope=TokenScope.READ,
        summary="List quotas, sorted by key.",
        query=Paging,
        response=QuotaList,
    )
    async def list_quotas(self, request: EndpointRequest[Nothing, Paging]) -> QuotaList:
        after = "" if request.query.cursor is None else text_of(request.query.cursor)
        found = await self._jobs.quotas(after=after, limit=request.query.limit + 1)
        quotas, more = page_of(found, request.query.limit, lambda quota: quota.key)
        return QuotaList(items=[Quota.of(one) for one in quotas], next=more)

    @endpoint(
        "PUT",
        "/api/v1/quotas/{scope:path}",
        scope=TokenScope.ADMIN,
        summary="Set the maximum number of concurrent jobs of a quota key.",
        body=QuotaForm,
        response=Quota,
        request_example={"limit": 5},
    )
    async def set_quota(self, request: EndpointRequest[QuotaForm, Nothing]) -> Quota:
        """The key is `project:NAME`, `label:NAME=VALUE` or `key:ANYTHING`. Jobs that are running are not stopped."""
        scope = request.path_param("scope")
        return Quota.of(await self._jobs.set_quota(scope, request.body.limit, audit=request.audit))

    @endpoint(
        "DELETE",
        "/api/v1/quotas/{scope:path}",
        scope=TokenScope.ADMIN,
        summary="Remove a quota.",
        status=204,
    )
    async def remove_quota(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        await self._jobs.remove_quota(request.path_param("scope"), audit=request.audit)
        return Response(status_code=204)

"""REST for jobs: look, explain, cancel, replay and purge, one or many; quotas; how many there are. Making page jobs is
`groups.py`'s."""

from datetime import timedelta
from typing import Annotated

from msgspec import Meta
from starlette.responses import Response

from shoal.access.scopes import Scope
from shoal.base.errors import InvalidInput, NotFound, StateConflict
from shoal.base.form import Form, says
from shoal.queue.book import JobFilter, Quota
from shoal.queue.jobs import MOST, Jobs
from shoal.queue.states import JobState
from shoal.serve import examples, shapes
from shoal.serve.cursor import Paging, cursor_of, text_of
from shoal.serve.endpoint import Ask, Nothing, endpoint
from shoal.serve.problems import Json

Word = Annotated[str, Meta(min_length=1, max_length=300, pattern=r"^[^\x00]*\Z")]
Most = Annotated[int, Meta(ge=1, le=10_000_000)]
Age = Annotated[float, Meta(ge=0, le=10**9)]


OfKind = Annotated[Word | None, says("Only jobs of this kind: page, crawl or analysis.")]
InState = Annotated[JobState | None, says("Only jobs in this state.")]
OfRun = Annotated[Word | None, says("Only jobs of this crawl, analysis or group.")]
InLane = Annotated[Word | None, says("Only jobs of this lane.")]
AtMost = Annotated[Most | None, says("At most so many.")]


class JobsWanted(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: OfKind = None
    state: InState = None
    run_id: OfRun = None
    lane: InLane = None
    dead: Annotated[bool | None, says("True: only dead letters, failed or expired; false: all others.")] = None


class Retrying(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: OfKind = None
    state: InState = None
    run_id: OfRun = None
    lane: InLane = None
    limit: AtMost = None


class Purging(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: OfKind = None
    state: InState = None
    dead: Annotated[bool, says("Only dead letters; false: all that ended.")] = True
    older_than_seconds: Annotated[Age, says("Only jobs that ended so long ago.")] = 0
    limit: AtMost = None


class Limiting(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    most: Annotated[int, says("How many of its jobs may run at once.", ge=0, le=MOST)]


class JobApi:
    """`/api/v1/jobs`."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    @endpoint(
        "GET",
        "/api/v1/jobs",
        scope=Scope.READ,
        says="List jobs, the newest first.",
        query=JobsWanted,
        answer=shapes.JobList,
        answers={"items": [examples.JOB], "next": None},
    )
    async def list_jobs(self, ask: Ask[Nothing, JobsWanted]) -> Json:
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
        scope=Scope.WRITE,
        says="Let dead letters run again.",
        body=Retrying,
        answer=shapes.JobsRetried,
        answers={"retried": 12},
        asks={"kind": "page", "limit": 1000},
    )
    async def retry_jobs(self, ask: Ask[Retrying, Nothing]) -> Json:
        """Those that fit, or all without a body; each with all its attempts. Jobs of crawls and analyses are retried
        with these."""
        body = ask.body
        which = JobFilter(body.state, body.kind, body.run_id, body.lane, dead=True)
        return Json({"retried": await self._jobs.retry_dead(which, body.limit)})

    @endpoint(
        "POST",
        "/api/v1/jobs/purge",
        scope=Scope.ADMIN,
        says="Remove jobs that have ended.",
        body=Purging,
        act="jobs.purged",
        answer=shapes.JobsPurged,
        answers={"purged": 12},
        asks={"kind": "page", "older_than_seconds": 86400},
    )
    async def purge_jobs(self, ask: Ask[Purging, Nothing]) -> Json:
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
        scope=Scope.READ,
        says="Show one job and its history.",
        answer=shapes.JobDetail,
        answers=examples.JOB | {"history": [examples.GRANT]},
        problems=[NotFound],
    )
    async def show_job(self, ask: Ask[Nothing, Nothing]) -> Json:
        job = await self._jobs.get(ask.part("job_id"))
        history = await self._jobs.history(job.id)
        return Json(job.answer() | {"history": [grant.answer() for grant in history]})

    @endpoint(
        "GET",
        "/api/v1/jobs/{job_id}/explain",
        scope=Scope.READ,
        says="Explain why a job is where it is.",
        answer=shapes.JobExplained,
        answers=examples.EXPLAINED,
        problems=[NotFound],
    )
    async def explain_job(self, ask: Ask[Nothing, Nothing]) -> Json:
        return Json((await self._jobs.explain(ask.part("job_id"))).answer())

    @endpoint(
        "POST",
        "/api/v1/jobs/{job_id}/cancel",
        scope=Scope.WRITE,
        says="Cancel a job.",
        answer=shapes.Job,
        answers=examples.JOB | {"state": "cancelled", "state_reason": "asked"},
        problems=[NotFound, StateConflict],
    )
    async def cancel_job(self, ask: Ask[Nothing, Nothing]) -> Json:
        """At once; what comes of it if somebody works on it is refused. Jobs of crawls and analyses end with these."""
        return Json((await self._jobs.cancel(ask.part("job_id"))).answer())

    @endpoint(
        "POST",
        "/api/v1/jobs/{job_id}/retry",
        scope=Scope.WRITE,
        says="Let a dead letter run again, with all its attempts.",
        answer=shapes.Job,
        answers=examples.JOB | {"state": "pending"},
        problems=[NotFound, StateConflict],
    )
    async def retry_job(self, ask: Ask[Nothing, Nothing]) -> Json:
        return Json((await self._jobs.retry(ask.part("job_id"))).answer())


class QuotaApi:
    """`/api/v1/quotas`."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    @endpoint(
        "GET",
        "/api/v1/quotas",
        scope=Scope.READ,
        says="List quotas by their scopes.",
        query=Paging,
        answer=shapes.QuotaList,
        answers={"items": [examples.QUOTA], "next": None},
    )
    async def list_quotas(self, ask: Ask[Nothing, Paging]) -> Json:
        after = "" if ask.query.cursor is None else text_of(ask.query.cursor)
        found = await self._jobs.quotas(after=after, limit=ask.query.limit + 1)
        shown = found[: ask.query.limit]
        more = cursor_of(shown[-1].scope) if len(found) > ask.query.limit else None
        return Json({"items": [Quota.answer(quota) for quota in shown], "next": more})

    @endpoint(
        "PUT",
        "/api/v1/quotas/{scope:path}",
        scope=Scope.ADMIN,
        says="Let at most so many jobs of a scope run at once.",
        body=Limiting,
        act="quota.set",
        answer=shapes.Quota,
        answers=examples.QUOTA,
        asks={"most": 5},
    )
    async def set_quota(self, ask: Ask[Limiting, Nothing]) -> Json:
        """A scope is `project:NAME`, `label:NAME=VALUE` or `key:ANYTHING`. What runs already goes on."""
        return Json((await self._jobs.set_quota(ask.part("scope"), ask.body.most, noting=ask.note)).answer())

    @endpoint(
        "DELETE",
        "/api/v1/quotas/{scope:path}",
        scope=Scope.ADMIN,
        says="Limit a scope no more.",
        act="quota.removed",
        status=204,
        problems=[NotFound],
    )
    async def remove_quota(self, ask: Ask[Nothing, Nothing]) -> Response:
        await self._jobs.remove_quota(ask.part("scope"), noting=ask.note)
        return Response(status_code=204)

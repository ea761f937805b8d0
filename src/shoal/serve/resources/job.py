"""Jobs, their leases and explanations, and quotas."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Self

from msgspec.structs import asdict

from shoal.access.token import TokenScope
from shoal.base.clock import moment
from shoal.base.request_form import describe
from shoal.base.text import message
from shoal.queue import job as queue
from shoal.queue.job_admin import JobExplanation
from shoal.queue.job_admin_store import Quota as StoredQuota
from shoal.queue.states import JobState
from shoal.serve.resources.resource import Moment, NextPage, Resource, Verb


class Grant(Resource, kw_only=True):
    """One lease of a job from start to end."""

    epoch: Annotated[int, describe("Number of the lease, from 1.")]
    holder: Annotated[str, describe("Lease holder: a worker process, or a bot as `bot/TOKEN/NAME`.")]
    node: Annotated[str | None, describe("Node of the worker.")]
    pid: Annotated[int | None, describe("Process id of the child process that ran the job.")]
    granted_at: Annotated[Moment, describe("Start of the lease.")]
    ended_at: Annotated[Moment | None, describe("End of the lease; null while it lasts.")]
    ended: Annotated[str | None, describe("How the lease ended.")]
    error: Annotated[str | None, describe("Error of this attempt, if it failed.")]

    example: ClassVar = {
        "epoch": 2,
        "holder": "crawler-1/4711",
        "node": "crawler-1",
        "pid": 4711,
        "granted_at": "2026-03-01T09:00:06Z",
        "ended_at": "2026-03-01T09:00:06Z",
        "ended": "failed",
        "error": "connect: refused",
    }


class Job(Resource, kw_only=True):
    """A job: the unit of work that workers and bots lease."""

    id: Annotated[str, describe("Id of the job.")]
    kind: Annotated[str, describe("page, crawl or analysis.")]
    state: JobState
    state_reason: str | None
    url: Annotated[str | None, describe("The URL of a page job.")]
    run_id: Annotated[str | None, describe("Crawl, analysis or group that the job belongs to.")]
    lane: Annotated[str, describe("Queue in which the job waits: `shared`, or the private queue of a node.")]
    capability: Annotated[
        str,
        describe(
            "Capability that a worker or bot needs to run the job: `http`, `js` or `special`; for a "
            "scrape, `scrape` or `scrape_js`."
        ),
    ]
    priority: int
    scopes: Annotated[list[str], describe("Quota keys that the job counts against.")]
    dedupe_key: Annotated[str | None, describe("No second job with this key is created while this job waits or runs.")]
    attempts: Annotated[int, describe("Number of failed attempts.")]
    max_attempts: Annotated[int, describe("Number of failed attempts after which the job fails.")]
    crash_count: Annotated[
        int, describe("Number of workers that were lost while they ran the job, since it last made progress.")
    ]
    lease_epoch: Annotated[int, describe("Number of the current or last lease.")]
    locked_by: Annotated[str | None, describe("Lease holder: a worker process, or a bot as `bot/TOKEN/NAME`.")]
    locked_at: Annotated[Moment | None, describe("Start of the current lease.")]
    lease_until: Annotated[Moment | None, describe("When the lease expires, unless a heartbeat renews it.")]
    not_before: Annotated[Moment, describe("The job is not leased before this time.")]
    error: Annotated[str | None, describe("Error of the last attempt, if it failed.")]
    created_at: Moment
    finished_at: Moment | None

    example: ClassVar = {
        "id": "job_01hr2v8k3m4n5p6q",
        "kind": "page",
        "state": "failed",
        "state_reason": "attempts_exhausted",
        "url": "https://example.com/a",
        "run_id": "grp_01hr2v8k3m4n5p6q",
        "lane": "shared",
        "capability": "http",
        "priority": 50,
        "scopes": ["project:shop"],
        "dedupe_key": None,
        "attempts": 2,
        "max_attempts": 2,
        "crash_count": 0,
        "lease_epoch": 2,
        "locked_by": None,
        "locked_at": None,
        "lease_until": None,
        "not_before": "2026-03-01T09:00:05Z",
        "error": "connect: refused",
        "created_at": "2026-03-01T09:00:00Z",
        "finished_at": "2026-03-01T09:00:06Z",
    }

    @classmethod
    def of(cls, job: queue.Job, **more: Any) -> Self:
        """Build the resource from a job. Of its payload, only the URL is shown, because headers may contain secrets."""
        holder = job.lease_holder
        return super().of(
            job,
            scopes=list(job.quota_keys),
            locked_by=holder,
            locked_at=None if holder is None else moment(job.granted_at),
            **more,
        )


class JobDetail(Job, kw_only=True):
    """A job with its history."""

    history: Annotated[list[Grant], describe("All leases of the job, oldest first.")]

    example: ClassVar = Job.example | {"history": [Grant.example]}


class JobList(Resource, kw_only=True):
    items: list[Job]
    next: NextPage

    example: ClassVar = {"items": [Job.example], "next": None}


class JobExplained(Resource, kw_only=True):
    """The state of a job, and the reason. Further fields depend on the reason."""

    open_fields: ClassVar = True
    job_id: str
    state: JobState
    reason: Annotated[str, describe("Stable name of the reason.")]
    explanation: Annotated[str, describe("The reason in one sentence.")]
    capability: Annotated[
        str, describe("Capability that a worker or bot needs to run the job: `http`, `js` or `special`.")
    ]

    example: ClassVar = {
        "job_id": Job.example["id"],
        "state": "pending",
        "reason": "quota",
        "explanation": "project:shop is limited to 5 running jobs and has 5; the job waits for one to end.",
        "capability": "http",
    }

    @classmethod
    def with_facts(cls, found: JobExplanation) -> dict[str, Any]:
        """Return the fields of the explanation with the details of its reason."""
        explained = cls.of(found, found.job, job_id=found.job.id, explanation=str(found.sentence))
        parts = found.job.priority_parts
        return asdict(explained) | found.facts | ({"priority_parts": parts} if parts else {})


class JobsRetried(Resource, kw_only=True):
    retried: Annotated[int, describe("Number of jobs that are queued again.")]


class JobsPurged(Resource, kw_only=True):
    purged: Annotated[int, describe("Number of jobs that were removed.")]


class Quota(Resource, kw_only=True):
    """The concurrency limit of a quota key, and its current use."""

    scope: Annotated[str, describe("The quota key, such as `project:NAME`.")]
    limit: Annotated[int, describe("Maximum number of jobs that run at the same time.")]
    most: Annotated[int, describe("Older name of `limit`, with the same value.")]
    locked: Annotated[int, describe("Jobs that are running.")]
    parked: Annotated[int, describe("Jobs that wait for the quota.")]

    example: ClassVar = {"scope": "project:shop", "limit": 5, "most": 5, "locked": 5, "parked": 120}

    @classmethod
    def of(cls, quota: StoredQuota) -> Self:
        return super().of(quota, scope=quota.key, limit=quota.most)


class QuotaList(Resource, kw_only=True):
    items: list[Quota]
    next: NextPage

    example: ClassVar = {"items": [Quota.example], "next": None}


VERBS: Final[Mapping[str, Verb]] = {
    "retry": Verb(message("Retry"), message("The job waits for a worker again, with all its attempts.")),
    "cancel": Verb(
        message("Cancel the job"),
        message("The job was cancelled; later results will be rejected."),
        message("Cancel this job?"),
        message(
            "The cancellation takes effect immediately. If a worker is running the job, its result will be rejected."
        ),
    ),
}
DEAD_LETTER_VERBS: Final[Mapping[str, Verb]] = {
    "retry": Verb(message("Retry all that match"), question=message("Retry all dead letters that match?")),
    "purge": Verb(
        message("Remove all that match"),
        question=message("Remove all dead letters that match?"),
        explanation=message(
            "Their history and results are removed too. Jobs of crawls and analyses are kept. This cannot be undone."
        ),
        scope=TokenScope.ADMIN,
    ),
}
"""The actions on all dead letters that match a search."""

"""Groups of page jobs, their results, and the changes between two results."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from shoal.base.request_form import describe
from shoal.page_jobs import spec as page_jobs
from shoal.page_jobs.groups import MOST_CHANGES, Diff
from shoal.page_jobs.result import Status, StoredResult
from shoal.page_jobs.spec import GroupState
from shoal.queue.states import JobState
from shoal.serve.resources.resource import Moment, NextLater, NextPage, Resource

RULE_SET: dict[str, Any] = {"fields": {"name": {"css": "h1", "required": True}, "price": {"css": ".price"}}}


class Group(Resource, kw_only=True):
    """A group of page jobs that were created together."""

    id: Annotated[str, describe("Id of the group.")]
    state: GroupState
    state_reason: str | None
    project: str
    labels: dict[str, str]
    priority: int
    total: Annotated[int, describe("Number of jobs; a URL that was sent twice has one job.")]
    jobs: Annotated[dict[str, int], describe("Number of jobs by state.")]
    created_at: Moment
    finished_at: Moment | None
    crawl_config: Annotated[dict[str, Any], describe("Fetch options; secrets are masked.")]
    rules: Annotated[dict[str, Any] | None, describe("Rule set with the data to extract from each page.")]
    rule_set: Annotated[dict[str, Any] | None, describe("Older name of `rules`, with the same value.")]

    example: ClassVar = {
        "id": "grp_01hr2v8k3m4n5p6q",
        "state": "open",
        "state_reason": None,
        "project": "default",
        "labels": {},
        "priority": 50,
        "total": 2,
        "jobs": {"done": 1, "pending": 1},
        "created_at": "2026-03-01T09:00:00Z",
        "finished_at": None,
        "crawl_config": {"headers": {}, "js_required": False, "timeout_hint": None, "proxy": None},
        "rules": RULE_SET,
        "rule_set": RULE_SET,
    }

    @classmethod
    def of(cls, group: page_jobs.Group) -> Self:
        spec = {"crawl_config": {}, "rule_set": None} if group.spec is None else group.spec.shown()
        return super().of(group, **spec, rules=spec["rule_set"])


class GroupList(Resource, kw_only=True):
    items: list[Group]
    next: NextPage

    example: ClassVar = {"items": [Group.example], "next": "MTI"}


class ResultError(Resource, kw_only=True):
    code: Annotated[str, describe("Stable code of the error.")]
    message: Annotated[str | None, describe("The error in one sentence.")]


class ResultMeta(Resource, kw_only=True):
    crawl_duration: Annotated[float | None, describe("Duration of the fetch in seconds.")]
    error: Annotated[ResultError | None, describe("Why the page could not be fetched, if it failed.")]
    html_hash: Annotated[str | None, describe("Content hash; stable until the page changes.")]


class Result(Resource, kw_only=True):
    """The result of a page job."""

    job_id: str
    group: Annotated[str | None, describe("Group of the job, if it has one.")]
    policy: Annotated[str | None, describe("Policy of the job, if it has one.")]
    attempt: Annotated[int, describe("Epoch of the lease that produced the result.")]
    state: Annotated[JobState, describe("State of the job after this result.")]
    status: Annotated[Status, describe("Outcome of the fetch; `fail` also if the data lacks a required field.")]
    url: Annotated[str, describe("The requested URL.")]
    final_url: Annotated[str | None, describe("URL after redirects.")]
    http_status: Annotated[int | None, describe("HTTP status of the last response; null if there was none.")]
    data: Annotated[
        Any, describe("Data extracted by the rule set; without one, the title and other fields of the page.")
    ]
    meta: Annotated[ResultMeta, describe("Duration, error and content hash of the fetch.")]
    fetched_at: Annotated[Moment, describe("When the page was fetched.")]

    example: ClassVar = {
        "job_id": "job_01hr2v8k3m4n5p6q",
        "group": "grp_01hr2v8k3m4n5p6q",
        "policy": None,
        "attempt": 1,
        "state": "done",
        "status": "success",
        "url": "https://example.com/a",
        "final_url": "https://example.com/a",
        "http_status": 200,
        "data": {"name": "Anchor", "price": "3.50"},
        "meta": {"crawl_duration": 0.21, "error": None, "html_hash": "9f2c"},
        "fetched_at": "2026-03-01T09:00:02Z",
    }

    @classmethod
    def of(cls, stored: StoredResult) -> Self:
        result = stored.result
        error = None
        if result.error_code is not None:
            error = ResultError(code=result.error_code, message=result.error_message)
        return super().of(
            stored,
            result,
            group=stored.group_id,
            attempt=stored.epoch,
            meta=ResultMeta(crawl_duration=result.duration_seconds, error=error, html_hash=result.html_hash),
        )


class ResultList(Resource, kw_only=True):
    items: list[Result]
    next: NextLater

    example: ClassVar = {"items": [Result.example], "next": "MTIw"}

    @classmethod
    def of(cls, found: Sequence[StoredResult], following: str | None) -> Self:
        """List one page of results. Call this in a thread, because results may have megabytes."""
        return cls(items=[Result.of(one) for one in found], next=following)


class DiffSide(Resource, kw_only=True):
    job_id: str
    status: Annotated[Status, describe("Whether the result is a success.")]
    html_hash: Annotated[str | None, describe("Content hash; stable until the page changes.")]
    fetched_at: Annotated[Moment, describe("When the page was fetched.")]

    example: ClassVar = {
        "job_id": "job_01hr2v8k3m4n5p6q",
        "status": "success",
        "html_hash": "9f2c",
        "fetched_at": "2026-03-01T09:00:02Z",
    }


class DataChange(Resource, kw_only=True, rename={"before": "from", "after": "to"}):
    path: Annotated[str, describe("Location in the data: `price`, `offers[2].name`.")]
    before: Annotated[Any, describe("Old value; null if it was absent.")]
    after: Annotated[Any, describe("New value; null if it is absent.")]


class ResultDiff(Resource, kw_only=True, rename={"before": "from", "after": "to"}):
    """The changes between two results of a policy."""

    policy_id: str
    before: Annotated[DiffSide, describe("The earlier result.")]
    after: Annotated[DiffSide, describe("The later result.")]
    html_changed: Annotated[bool | None, describe("Whether the page changed; null if a hash is missing.")]
    changes: Annotated[list[DataChange], describe("Changes of the extracted data.")]
    more_changes: Annotated[int, describe("Number of changes that are not listed.")]

    example: ClassVar = {
        "policy_id": "pol_01hr2v8k3m4n5p6q",
        "from": DiffSide.example,
        "to": DiffSide.example
        | {"job_id": "job_01hr2v8k3m4n5p6r", "html_hash": "77aa", "fetched_at": "2026-03-01T15:00:02Z"},
        "html_changed": True,
        "changes": [{"path": "price", "from": "3.50", "to": "3.20"}],
        "more_changes": 0,
    }

    @classmethod
    def of(cls, policy_id: str, diff: Diff) -> Self:
        changes = diff.changes()
        listed = [DataChange.of(change) for change in changes[:MOST_CHANGES]]
        return super().of(
            diff,
            policy_id=policy_id,
            before=DiffSide.of(diff.before, diff.before.result),
            after=DiffSide.of(diff.after, diff.after.result),
            changes=listed,
            more_changes=len(changes) - len(listed),
        )

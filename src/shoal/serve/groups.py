"""REST endpoints for job groups (page jobs that were created together) and their results."""

import asyncio
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace
from starlette.responses import Response

from shoal.access.idempotency import Idempotency, IdempotencyKey, StoredResponse
from shoal.access.token import TokenScope
from shoal.base.database import Tx
from shoal.base.errors import AlreadyExists, HeldBack
from shoal.base.request_form import Form, describe
from shoal.page_jobs.groups import Groups, History
from shoal.page_jobs.spec import Group as JobGroup
from shoal.page_jobs.spec import GroupConfig, GroupState
from shoal.plan.policies import Policies
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.problems import Json
from shoal.serve.requests import (
    LOCATION,
    Paging,
    cursor_of,
    growing_page_of,
    id_once,
    key_of,
    number_of,
    page_of,
    replay,
    stored,
)
from shoal.serve.resources.group import RULE_SET, Group, GroupList, Result, ResultDiff, ResultList


class GroupQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[GroupState | None, describe("Only groups in this state.")] = None


class GroupApi:
    """`POST /api/v1/jobs` and `/api/v1/groups`."""

    def __init__(self, groups: Groups, idempotency: Idempotency) -> None:
        self._groups = groups
        self._idempotency = idempotency

    @endpoint(
        "POST",
        "/api/v1/jobs",
        scope=TokenScope.WRITE,
        summary="Create a page job for each URL, in one group.",
        body=GroupConfig,
        status=202,
        response=Group,
        request_example={"urls": ["https://example.com/a", "https://example.com/b"], "rule_set": RULE_SET},
        problems=[AlreadyExists, HeldBack],
        idempotency_key=True,
    )
    async def create_jobs(self, request: EndpointRequest[GroupConfig, Nothing]) -> Response:
        """If a URL is invalid, no job is created, and the error names the position of the URL. An event is sent when a
        job ends, and the event `crawl.group.completed` when all jobs have ended. While the workers are overloaded, no
        jobs are created, and `Retry-After` contains the number of seconds to wait."""
        async with id_once(self._idempotency, request, "grp") as record:
            return replay(record.answer or await self._create(request.body, key_of(request), record.subject))

    @endpoint(
        "GET",
        "/api/v1/groups",
        scope=TokenScope.READ,
        summary="List job groups, newest first.",
        query=GroupQuery,
        response=GroupList,
    )
    async def list_groups(self, request: EndpointRequest[Nothing, GroupQuery]) -> GroupList:
        query = request.query
        after, most = number_of(query.cursor), query.limit + 1
        found = await self._groups.newest(after=after, limit=most, state=query.state)
        groups, more = page_of(found, query.limit, lambda group: group.number)
        return GroupList(items=[Group.of(one) for one in groups], next=more)

    @endpoint(
        "GET",
        "/api/v1/groups/{group_id}",
        scope=TokenScope.READ,
        summary="Show a job group and the number of its jobs by state.",
        response=Group,
    )
    async def show_group(self, request: EndpointRequest[Nothing, Nothing]) -> Group:
        return Group.of(await self._groups.get(request.path_param("group_id")))

    @endpoint(
        "GET",
        "/api/v1/groups/{group_id}/results",
        scope=TokenScope.READ,
        summary="List the results of a group's jobs, in the order in which they ended.",
        query=Paging,
        response=ResultList,
    )
    async def list_group_results(self, request: EndpointRequest[Nothing, Paging]) -> Response:
        """Until the group has ended, `next` is set: use this cursor later to get the results that follow. If results
        are large, a response may have fewer items than `limit`. A job has no result while it is being retried, or if it
        was cancelled or lost its workers."""
        group = await self._groups.get(request.path_param("group_id"))
        query, after = request.query, number_of(request.query.cursor) or 0
        found = await self._groups.results(group.id, after=after, limit=query.limit)
        more = found and await self._groups.results(group.id, after=found[-1].number, limit=1)
        growing = bool(more) or group.state is GroupState.OPEN
        results, following = growing_page_of(found, query.limit, after, lambda one: one.number, growing=growing)
        return await asyncio.to_thread(lambda: Json(ResultList.of(results, following)))

    @endpoint(
        "GET",
        "/api/v1/jobs/{job_id}/results",
        scope=TokenScope.READ,
        summary="List the results of a page job's attempts, oldest first.",
        response=ResultList,
        response_example={"items": [Result.example], "next": None},
    )
    async def list_job_results(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """The list is complete; `next` is always null. An attempt whose worker was lost has no result."""
        found = await self._groups.results_of_job(request.path_param("job_id"))
        return await asyncio.to_thread(lambda: Json(ResultList.of(found, None)))

    @endpoint(
        "POST",
        "/api/v1/groups/{group_id}/cancel",
        scope=TokenScope.WRITE,
        summary="Cancel the unfinished jobs of a group.",
        response=Group,
        response_example=Group.example
        | {"state": "cancelled", "state_reason": "asked", "jobs": {"done": 1, "cancelled": 1}},
    )
    async def cancel_group(self, request: EndpointRequest[Nothing, Nothing]) -> Group:
        """Fetches in progress are aborted. If the group has ended, nothing changes."""
        return Group.of(await self._groups.cancel(request.path_param("group_id"), audit=request.audit))

    async def _create(self, config: GroupConfig, key: IdempotencyKey | None, subject: str) -> StoredResponse:
        """Create a group, and store the response in the same commit. If the group exists, its creator was a request
        with this key only if the key has the response."""

        async def keep_response(tx: Tx, group: JobGroup) -> None:
            if key is not None:
                await self._idempotency.end_in(tx, key, subject, _created(group))

        try:
            return _created(await self._groups.make(replace(config, group=config.group or subject), keep_response))
        except AlreadyExists:
            if key is None:
                raise
            if (answer := await self._idempotency.answer(key, subject)) is not None:
                return answer
            if config.group is not None:
                raise
            # The id belongs to this key. An earlier version of Shoal, which stored the response later, made the group.
            return await self._idempotency.end(key, subject, _created(await self._groups.get(subject)))


def _created(group: JobGroup) -> StoredResponse:
    return stored(Json(Group.of(group), 202, {LOCATION: f"/api/v1/groups/{group.id}"}))


JobName = Annotated[str, Meta(min_length=1, max_length=300)]


class ResultDiffQuery(Form, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    before: Annotated[
        JobName | None, describe("Job with the older result. Default: the last success before the newer result.")
    ] = None
    after: Annotated[JobName | None, describe("Job with the newer result. Default: the last success.")] = None


class ResultApi:
    """`/api/v1/policies/{id}/results` and `/diff`."""

    def __init__(self, policies: Policies, history: History) -> None:
        self._policies = policies
        self._history = history

    @endpoint(
        "GET",
        "/api/v1/policies/{policy_id}/results",
        scope=TokenScope.READ,
        summary="List the results of a policy, newest first.",
        query=Paging,
        response=ResultList,
        response_example={
            "items": [Result.example | {"group": None, "policy": "pol_01hr2v8k3m4n5p6q"}],
            "next": "MTIw",
        },
    )
    async def list_policy_results(self, request: EndpointRequest[Nothing, Paging]) -> Response:
        """The list has the final result of each finished run. Results are kept longer than their jobs, and the last
        success is always kept. If results are large, a response may have fewer items than `limit`."""
        policy = await self._policies.get(request.path_param("policy_id"))
        found = await self._history.of_policy(
            policy.id, before=number_of(request.query.cursor), limit=request.query.limit
        )
        more = found and await self._history.of_policy(policy.id, before=found[-1].number, limit=1)
        following = cursor_of(str(found[-1].number)) if more else None
        return await asyncio.to_thread(lambda: Json(ResultList.of(found, following)))

    @endpoint(
        "GET",
        "/api/v1/policies/{policy_id}/diff",
        scope=TokenScope.READ,
        summary="Compare two results of a policy.",
        query=ResultDiffQuery,
        response=ResultDiff,
    )
    async def diff_policy_results(self, request: EndpointRequest[Nothing, ResultDiffQuery]) -> ResultDiff:
        """By default the last two successes are compared; `from` and `to` select the results of other jobs."""
        policy = await self._policies.get(request.path_param("policy_id"))
        diff = await self._history.diff(policy.id, request.query.before, request.query.after)
        return ResultDiff.of(policy.id, diff)

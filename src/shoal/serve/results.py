"""REST endpoints for the results of policies and their changes."""

import asyncio
from typing import Annotated

from msgspec import Meta
from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.base.errors import NotFound
from shoal.base.request_form import Form, describe
from shoal.page_jobs.groups import History
from shoal.plan.policies import Policies
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.pagination import Paging, cursor_of, number_of
from shoal.serve.problems import Json
from shoal.serve.resources.group import Result, ResultDiff, ResultList

JobName = Annotated[str, Meta(min_length=1, max_length=300)]


class ResultDiffQuery(Form, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    before: Annotated[JobName | None, describe("Job with the older result; default: the success before `to`.")] = None
    after: Annotated[JobName | None, describe("Job with the newer result; default: the last success.")] = None


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
        problems=[NotFound],
    )
    async def list_policy_results(self, request: EndpointRequest[Nothing, Paging]) -> Response:
        """The final result of each finished run. Results are kept longer than their jobs, and the last success is
        always kept. A page of large results may have fewer items than `limit`."""
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
        problems=[NotFound],
    )
    async def diff_policy_results(self, request: EndpointRequest[Nothing, ResultDiffQuery]) -> ResultDiff:
        """By default the last two successes are compared; `from` and `to` select the results of other jobs."""
        policy = await self._policies.get(request.path_param("policy_id"))
        diff = await self._history.diff(policy.id, request.query.before, request.query.after)
        return ResultDiff.of(policy.id, diff)

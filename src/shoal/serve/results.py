"""REST for what policies gave: their results over time, and what changed."""

from typing import Annotated

from msgspec import Meta

from shoal.access.scopes import TokenScope
from shoal.base.errors import NotFound
from shoal.base.request_form import Form, describe
from shoal.page_jobs.history import History
from shoal.plan.policies import Policies
from shoal.serve import examples, schemas
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.pagination import Paging, cursor_of, number_of
from shoal.serve.problems import Json

JobName = Annotated[str, Meta(min_length=1, max_length=300)]


class DiffWanted(Form, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    before: Annotated[JobName | None, describe("The job whose result comes first; without it, the success before.")] = (
        None
    )
    after: Annotated[
        JobName | None, describe("The job whose result is compared with it; without it, the last success.")
    ] = None


class ResultApi:
    """`/api/v1/policies/{id}/results` and `/diff`."""

    def __init__(self, policies: Policies, history: History) -> None:
        self._policies = policies
        self._history = history

    @endpoint(
        "GET",
        "/api/v1/policies/{policy_id}/results",
        scope=TokenScope.READ,
        summary="List what a policy gave, the newest first.",
        query=Paging,
        answer=schemas.ResultList,
        response_example={
            "items": [examples.RESULT | {"group": None, "policy": "pol_01hr2v8k3m4n5p6q"}],
            "next": "MTIw",
        },
        problems=[NotFound],
    )
    async def list_policy_results(self, ask: EndpointRequest[Nothing, Paging]) -> Json:
        """The last word on each run that has ended. They are kept longer than their jobs are, and the last success
        always. A page of large ones has fewer of them."""
        policy = await self._policies.get(ask.part("policy_id"))
        found = await self._history.of_policy(policy.id, before=number_of(ask.query.cursor), limit=ask.query.limit)
        more = found and await self._history.of_policy(policy.id, before=found[-1].number, limit=1)
        place = cursor_of(str(found[-1].number)) if more else None
        return Json({"items": [one.answer() for one in found], "next": place})

    @endpoint(
        "GET",
        "/api/v1/policies/{policy_id}/diff",
        scope=TokenScope.READ,
        summary="Say what changed between two results of a policy.",
        query=DiffWanted,
        answer=schemas.ResultDiff,
        response_example=examples.DIFF,
        problems=[NotFound],
    )
    async def diff_policy_results(self, ask: EndpointRequest[Nothing, DiffWanted]) -> Json:
        """By default between the last two that succeeded; else of the jobs that `from` and `to` name."""
        policy = await self._policies.get(ask.part("policy_id"))
        diff = await self._history.diff(policy.id, ask.query.before, ask.query.after)
        return Json({"policy_id": policy.id} | diff.answer())

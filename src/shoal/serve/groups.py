"""REST for job groups: single URLs made into page jobs together, and what they gave."""

from typing import Annotated

from msgspec.structs import replace
from starlette.responses import Response

from shoal.access.idempotency import Idempotency
from shoal.access.scopes import TokenScope
from shoal.base.errors import AlreadyExists, NotFound
from shoal.base.request_form import describe
from shoal.page_jobs.group import Group, GroupConfig, GroupState
from shoal.page_jobs.groups import Groups
from shoal.serve import examples, schemas
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.idempotency import respond_once
from shoal.serve.pagination import Paging, cursor_of, cut, number_of, so_far
from shoal.serve.problems import Json


class GroupsWanted(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[GroupState | None, describe("Only groups in this state.")] = None


class GroupApi:
    """`POST /api/v1/jobs` and `/api/v1/groups`."""

    def __init__(self, groups: Groups, once: Idempotency) -> None:
        self._groups = groups
        self._once = once

    @endpoint(
        "POST",
        "/api/v1/jobs",
        scope=TokenScope.WRITE,
        summary="Make a page job for each of these URLs, all of them one group.",
        body=GroupConfig,
        status=202,
        answer=schemas.Group,
        response_example=examples.GROUP,
        request_example={"urls": ["https://example.com/a", "https://example.com/b"], "rule_set": examples.RULE_SET},
        problems=[AlreadyExists],
        once=True,
    )
    async def create_jobs(self, ask: EndpointRequest[GroupConfig, Nothing]) -> Response:
        """All of them or none: URLs that cannot be fetched are named by their places, and nothing is stored. One event
        tells of each job's end, and one, `crawl.group.completed`, of the end of all."""
        config = ask.body
        return await respond_once(
            self._once,
            ask,
            "grp",
            lambda group_id: self._make(config, config.group or group_id, own=config.group is None),
            again=lambda group_id: self._make(config, config.group or group_id, own=True),
        )

    @endpoint(
        "GET",
        "/api/v1/groups",
        scope=TokenScope.READ,
        summary="List job groups, the newest first.",
        query=GroupsWanted,
        answer=schemas.GroupList,
        response_example={"items": [examples.GROUP], "next": "MTI"},
    )
    async def list_groups(self, ask: EndpointRequest[Nothing, GroupsWanted]) -> Json:
        query = ask.query
        after, most = number_of(query.cursor), query.limit + 1
        found = await self._groups.newest(after=after, limit=most, state=query.state)
        return Json(cut(found, query.limit, Group.answer, lambda group: cursor_of(str(group.number))))

    @endpoint(
        "GET",
        "/api/v1/groups/{group_id}",
        scope=TokenScope.READ,
        summary="Show a job group, and how many of its jobs are in which state.",
        answer=schemas.Group,
        response_example=examples.GROUP,
        problems=[NotFound],
    )
    async def show_group(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        return Json((await self._groups.get(ask.part("group_id"))).answer())

    @endpoint(
        "GET",
        "/api/v1/groups/{group_id}/results",
        scope=TokenScope.READ,
        summary="List what the jobs of a group gave, in the order in which they ended.",
        query=Paging,
        answer=schemas.ResultList,
        response_example={"items": [examples.RESULT], "next": "MTIw"},
        problems=[NotFound],
    )
    async def list_results(self, ask: EndpointRequest[Nothing, Paging]) -> Json:
        """What is there so far: until the group is over, `next` is where to go on later. A page of large ones has
        fewer of them. A job that is tried again, was
        cancelled, or lost its workers too often has no result."""
        group = await self._groups.get(ask.part("group_id"))
        query, after = ask.query, number_of(ask.query.cursor) or 0
        found = await self._groups.results(group.id, after=after, limit=query.limit)
        more = found and await self._groups.results(group.id, after=found[-1].number, limit=1)
        rows = [(one.number, one.answer()) for one in found]
        return Json(so_far(rows, query.limit, after, goes_on=bool(more) or group.state is GroupState.OPEN))

    @endpoint(
        "GET",
        "/api/v1/jobs/{job_id}/results",
        scope=TokenScope.READ,
        summary="List what each attempt at a page job gave, the oldest first.",
        answer=schemas.ResultList,
        response_example={"items": [examples.RESULT], "next": None},
        problems=[NotFound],
    )
    async def list_results_of_job(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        """All of them at once; `next` is always null. An attempt whose worker was lost gave nothing."""
        found = await self._groups.results_of_job(ask.part("job_id"))
        return Json({"items": [one.answer() for one in found], "next": None})

    @endpoint(
        "POST",
        "/api/v1/groups/{group_id}/cancel",
        scope=TokenScope.WRITE,
        summary="Cancel those jobs of a group that have not ended.",
        answer=schemas.Group,
        response_example=examples.GROUP
        | {"state": "cancelled", "state_reason": "asked", "jobs": {"done": 1, "cancelled": 1}},
        problems=[NotFound],
    )
    async def cancel_group(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        """What is being fetched is dropped. A group that is over stays as it is."""
        return Json((await self._groups.cancel(ask.part("group_id"))).answer())

    async def _make(self, config: GroupConfig, group_id: str, *, own: bool) -> Json:
        """`own`: if there is such a group, a request with the same key made it."""
        try:
            await self._groups.make(replace(config, group=group_id))
        except AlreadyExists:
            if not own:
                raise
        group = await self._groups.get(group_id)
        return Json(group.answer(), status_code=202, headers={"Location": f"/api/v1/groups/{group.id}"})

"""Job groups on SQL."""

from typing import Any

import orjson
from msgspec import DecodeError, ValidationError

from shoal.base.database import Tx
from shoal.base.ids import GroupId, JobId
from shoal.page_jobs.group import Group, GroupState
from shoal.page_jobs.spec import PageSpec
from shoal.page_jobs.store import NewGroup
from shoal.queue.job import Fence

_PLAIN = ("number", "state_reason", "project", "priority", "total", "created_at", "finished_at")
_NEWEST = (1 << 62) - 1


class SqlGroupStore:
    """Implements `page_jobs.store.GroupStore`."""

    async def insert(self, tx: Tx, group: NewGroup) -> Group | None:
        values = {name: getattr(group, name) for name in NewGroup.__slots__}
        values |= {"labels": orjson.dumps(group.labels).decode(), "spec": group.spec.text()}
        row = await tx.one("insert_group", **values)
        return None if row is None else _group(row)

    async def get(self, tx: Tx, group_id: str) -> Group | None:
        row = await tx.one("group_by_id", id=group_id)
        return None if row is None else _group(row, await self._jobs(tx, row))

    async def page_of(self, tx: Tx, after: int | None, limit: int, state: str | None) -> list[Group]:
        states = {each.value: state or each.value for each in GroupState}
        rows = await tx.all("groups_before", before=_NEWEST if after is None else after, limit=limit, **states)
        return [_group(row, await self._jobs(tx, row)) for row in rows]

    async def lock(self, tx: Tx, group_id: str) -> Group | None:
        row = await tx.one("lock_group", id=group_id)
        return None if row is None else _group(row)

    async def specs(self, tx: Tx, group_ids: list[str]) -> dict[str, PageSpec | None]:
        rows = await tx.all("specs_of_groups", ids=group_ids) if group_ids else []
        return {row["id"]: _spec(row["spec"]) for row in rows}

    async def has_live_jobs(self, tx: Tx, group_id: str) -> bool:
        return await tx.one("group_lives", run_id=group_id) is not None

    async def held(self, tx: Tx, group_id: str) -> list[Fence]:
        rows = await tx.all("held_of_group", run_id=group_id)
        return [Fence(JobId(row["id"]), row["lease_epoch"]) for row in rows]

    async def prune(self, tx: Tx, before: int, limit: int) -> int:
        return await tx.execute("prune_groups", before=before, limit=limit)

    async def end(self, tx: Tx, group_id: str, state: GroupState, reason: str | None) -> dict[str, int]:
        counts = await self._count(tx, group_id)
        jobs = orjson.dumps(counts).decode()
        await tx.execute("end_group", id=group_id, state=state, reason=reason, jobs=jobs)
        return counts

    async def _jobs(self, tx: Tx, row: Any) -> dict[str, int]:
        if row["jobs"] is not None:
            return dict(orjson.loads(row["jobs"]))
        return await self._count(tx, row["id"])

    async def _count(self, tx: Tx, group_id: str) -> dict[str, int]:
        rows = await tx.all("states_of_group", run_id=group_id)
        return {row["state"]: row["count"] for row in rows}


def _group(row: Any, jobs: dict[str, int] | None = None) -> Group:
    return Group(
        id=GroupId(row["id"]),
        state=GroupState(row["state"]),
        labels=orjson.loads(row["labels"]),
        spec=_spec(row["spec"]),
        jobs=jobs or {},
        **{name: row[name] for name in _PLAIN},
    )


def _spec(text: str) -> PageSpec | None:
    try:
        return PageSpec.stored(text)
    except (ValidationError, DecodeError):
        return None

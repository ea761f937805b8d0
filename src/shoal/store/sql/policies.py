"""Policies on SQL."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.plan.policy import BACKLOG_QUEUES, Policy
from shoal.plan.store import NewPolicy, PolicyCounts, PriorityBoost, RunNote, ScheduleStep

_FIELDS = tuple(field.name for field in fields(Policy))


class SqlPolicies:
    """Implements `plan.store.PolicyStore`."""

    async def insert(self, tx: Tx, policies: Sequence[NewPolicy]) -> None:
        await tx.many("insert_policies", [_row(policy) for policy in policies])

    async def get(self, tx: Tx, policy_id: str) -> Policy | None:
        return _found(await tx.one("policy", id=policy_id))

    async def lock(self, tx: Tx, policy_id: str) -> Policy | None:
        return _found(await tx.one("lock_policy", id=policy_id))

    async def save(self, tx: Tx, policy: Policy) -> None:
        await tx.execute(
            "save_policy",
            id=policy.id,
            project=policy.form.project,
            line=policy.form.backlog_queue,
            spec=policy.spec,
            enabled=int(policy.enabled),
            planned_at=policy.planned_at,
            next_run_at=policy.next_run_at,
            queued=int(policy.queued),
            frequency_now=None if policy.frequency_now is None else span(policy.frequency_now),
        )

    async def remove(self, tx: Tx, policy_id: str) -> bool:
        return await tx.execute("remove_policy", id=policy_id) == 1

    async def page_of(self, tx: Tx, after: int, limit: int, project: str | None, enabled: bool | None) -> list[Policy]:
        wanted = None if enabled is None else int(enabled)
        if project is None:
            rows = await tx.all("policies_after", after=after, limit=limit, enabled=wanted)
        else:
            rows = await tx.all("policies_of_project", after=after, limit=limit, project=project, enabled=wanted)
        return [_policy(row) for row in rows]

    async def list_due(self, tx: Tx, limit: int) -> list[Policy]:
        rows = [row for queue in BACKLOG_QUEUES for row in await tx.all("due_in_queue", line=queue, limit=limit)]
        return sorted(map(_policy, rows), key=lambda policy: (policy.next_run_at, policy.number))[:limit]

    async def is_ready(self, tx: Tx, queue: str) -> bool:
        return await tx.one("ready_in_queue", line=queue) is not None

    async def due(self, tx: Tx, queue: str, limit: int) -> list[Policy]:
        return [_policy(row) for row in await tx.all("due_policies", line=queue, limit=limit)]

    async def owed(self, tx: Tx, queue: str, limit: int) -> list[Policy]:
        return [_policy(row) for row in await tx.all("owed_policies", line=queue, limit=limit)]

    async def due_sites(self, tx: Tx, limit: int) -> tuple[int, list[Policy]]:
        rows = await tx.all("due_sites", limit=limit) + await tx.all("owed_sites", limit=limit)
        found = {row["id"]: _policy(row) for row in rows}
        return await tx.value("now"), list(found.values())

    async def advance(self, tx: Tx, steps: Sequence[ScheduleStep]) -> None:
        rows = [{name: _plain(getattr(step, name)) for name in ScheduleStep.__slots__} for step in steps]
        await tx.many("advance_policies", sorted(rows, key=lambda row: row["id"]))

    async def note(self, tx: Tx, notes: Sequence[RunNote]) -> None:
        rows = [{name: _plain(getattr(note, name)) for name in RunNote.__slots__} for note in notes]
        await tx.many("note_policies", sorted(rows, key=lambda row: row["id"]))

    async def live_jobs(self, tx: Tx, keys: Sequence[str]) -> dict[str, str]:
        return {row["dedupe_key"]: row["id"] for row in await tx.all("live_jobs_of_keys", keys=list(keys))}

    async def of_ids(self, tx: Tx, ids: Sequence[str]) -> dict[str, Policy]:
        return {row["id"]: _policy(row) for row in await tx.all("policies_of_ids", ids=list(ids))}

    async def boosts(self, tx: Tx, subjects: Sequence[str]) -> dict[str, float]:
        rows = await tx.all("boosts", subjects=list(subjects))
        return {row["subject"]: row["boost"] for row in rows}

    async def put_boost(self, tx: Tx, boost: PriorityBoost) -> None:
        await tx.execute("put_boost", subject=boost.subject, boost=boost.boost, until=boost.until)

    async def forget_boosts(self, tx: Tx, before: int, limit: int) -> int:
        return await tx.execute("forget_boosts", before=before, limit=limit)

    async def counts(self, tx: Tx, late: int) -> PolicyCounts:
        row = await tx.one("count_policies", late=late)
        assert row is not None
        return PolicyCounts(int(row["total"]), int(row["due"]), int(row["late"]))

    async def now(self, tx: Tx) -> int:
        now: int = await tx.value("now")
        return now


def _row(new: NewPolicy) -> tuple[Any, ...]:
    times = new.planned_at, new.next_run_at, new.created_at
    return (new.id, new.project, new.backlog_queue, new.spec, int(new.enabled), *times)


def _found(row: Any) -> Policy | None:
    return None if row is None else _policy(row)


def _policy(row: Any) -> Policy:
    values = {name: row[name] for name in _FIELDS}
    now = values["frequency_now"]
    frequency = None if now is None else timedelta(microseconds=now)
    flags = {"enabled": bool(values["enabled"]), "queued": bool(values["queued"])}
    return Policy(**(values | flags | {"frequency_now": frequency}))


def _plain(value: Any) -> Any:
    """Convert a boolean or a duration to a number: both databases store them as integers."""
    if isinstance(value, timedelta):
        return span(value)
    return int(value) if isinstance(value, bool) else value

"""The store of policies."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from msgspec import Struct

from shoal.base.clock import span
from shoal.base.database import Database, Tx
from shoal.plan.policy import BACKLOG_QUEUES, Policy

SCAN = 5_000  # policies that one query reads
_FIELDS = tuple(field.name for field in fields(Policy))


class NewPolicy(Struct, frozen=True):
    """A policy to insert, with everything that can be computed before the transaction."""

    id: str
    project: str
    backlog_queue: str
    spec: str
    enabled: bool
    planned_at: int
    next_run_at: int | None
    created_at: int


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """The next schedule state of a policy, applied by compare-and-set on `next_run_at` and `runs`."""

    id: str
    seen: int  # `next_run_at` as it was read
    seen_runs: int
    planned_at: int
    next_run_at: int | None
    queued: bool
    begun: bool  # whether a job or crawl was created now
    crawl: str | None = None  # the id of the crawl, if the policy is for a site

    @classmethod
    def of(
        cls, policy: Policy, next_run_at: int | None, *, queued: bool, begun: bool, planned_at: int | None = None
    ) -> "ScheduleStep":
        """Return the step of a policy that was read in this state."""
        seen, planned = policy.next_run_at or 0, policy.planned_at if planned_at is None else planned_at
        return cls(policy.id, seen, policy.runs, planned, next_run_at, queued, begun)


@dataclass(frozen=True, slots=True)
class RunNote:
    """The outcome of a run, to be recorded in its policy."""

    id: str
    success: bool
    at: int | None  # `None` for now
    hash: str | None
    frequency_now: timedelta | None  # the adapted frequency
    shift: timedelta  # by how much the adapted frequency moves the next run


@dataclass(frozen=True, slots=True)
class PriorityBoost:
    """A temporary boost of a URL or a label: points and an expiry."""

    subject: str  # `url:https://…` or `label:team=search`
    boost: float
    until: int


@dataclass(frozen=True, slots=True)
class PolicyCounts:
    """How many policies exist, how many are due, and how many are late."""

    total: int
    due: int
    late: int


class PolicyStore:
    """Policies, and the boosts of business systems."""

    async def insert(self, tx: Tx, policies: Sequence[NewPolicy]) -> None:
        """Insert policies and assign their `number`; an existing id is left unchanged."""
        await tx.many("insert_policies", [_row(policy) for policy in policies])

    async def get(self, tx: Tx, policy_id: str) -> Policy | None:
        """Return a policy with the id of its active job."""
        return _found(await tx.one("policy", id=policy_id))

    async def lock(self, tx: Tx, policy_id: str) -> Policy | None:
        return _found(await tx.one("lock_policy", id=policy_id))

    async def save(self, tx: Tx, policy: Policy) -> None:
        """Store what a user may change: spec, enabled, times, adapted frequency."""
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
        """Return policies in order of creation, after a number. Each query reads a limited number of policies, even if
        few of them are enabled."""
        wanted, scan = (None, limit) if enabled is None else (int(enabled), SCAN)
        listed, following, which = "policies_after", "policy_number_after", dict[str, str]()
        if project is not None:
            listed, following, which = "policies_of_project", "policy_number_of_project_after", {"project": project}
        rows = await tx.all(listed, **which, after=after, enabled=wanted, scan=scan, limit=limit)
        while enabled is not None and len(rows) < limit:
            last = await tx.value(following, **which, after=after, skip=scan - 1)
            if last is None:
                break
            after = last
            rows += await tx.all(listed, **which, after=after, enabled=wanted, scan=scan, limit=limit - len(rows))
        return [_policy(row) for row in rows]

    async def list_due(self, tx: Tx, limit: int) -> list[Policy]:
        """Return due policies of all queues, the longest due first, without locking them. The query uses an index, so
        policies that are not due cost nothing."""
        rows = [row for queue in BACKLOG_QUEUES for row in await tx.all("due_in_queue", line=queue, limit=limit)]
        return sorted(map(_policy, rows), key=lambda policy: (policy.next_run_at, policy.number))[:limit]

    async def is_ready(self, tx: Tx, queue: str) -> bool:
        """Return whether a queue has a policy that is due or has a queued run; another scheduler may run it first."""
        return await tx.one("ready_in_queue", line=queue) is not None

    async def due(self, tx: Tx, queue: str, limit: int) -> list[Policy]:
        """Return due policies of a queue, longest due first. The query uses an index, so policies that are not due cost
        nothing. Policies are not locked here, because jobs must be locked before policies (see `advance`)."""
        return [_policy(row) for row in await tx.all("due_policies", line=queue, limit=limit)]

    async def owed(self, tx: Tx, queue: str, limit: int) -> list[Policy]:
        """Return policies whose queued run can start, because the previous run has ended. Like `due`, this locks
        nothing."""
        return [_policy(row) for row in await tx.all("owed_policies", line=queue, limit=limit)]

    async def due_sites(self, tx: Tx, limit: int) -> tuple[int, list[Policy]]:
        """Return the store's time, and site policies that are due or have a queued run."""
        rows = await tx.all("due_sites", limit=limit) + await tx.all("owed_sites", limit=limit)
        found = {row["id"]: _policy(row) for row in rows}
        return await tx.value("now"), list(found.values())

    async def advance(self, tx: Tx, steps: Sequence[ScheduleStep]) -> int:
        """Apply steps to policies that nobody has changed since they were read; return the number of these policies.
        Locks the policies in the order of their ids."""
        rows = [{name: _plain(getattr(step, name)) for name in ScheduleStep.__slots__} for step in steps]
        return await tx.many("advance_policies", sorted(rows, key=lambda row: row["id"]))

    async def note(self, tx: Tx, notes: Sequence[RunNote]) -> None:
        """Record the outcomes of runs. Locks the policies in the order of their ids."""
        rows = [{name: _plain(getattr(note, name)) for name in RunNote.__slots__} for note in notes]
        await tx.many("note_policies", sorted(rows, key=lambda row: row["id"]))

    async def live_jobs(self, tx: Tx, keys: Sequence[str]) -> dict[str, str]:
        """Return the active jobs with these dedupe keys."""
        return {row["dedupe_key"]: row["id"] for row in await tx.all("live_jobs_of_keys", keys=list(keys))}

    async def of_ids(self, tx: Tx, ids: Sequence[str]) -> dict[str, Policy]:
        """Return these policies, locked against changes until the transaction ends, in the order of their ids."""
        return {row["id"]: _policy(row) for row in await tx.all("policies_of_ids", ids=list(ids))}

    async def boosts(self, tx: Tx, subjects: Sequence[str]) -> dict[str, float]:
        """Return the boosts that are valid now, by subject."""
        rows = await tx.all("boosts", subjects=list(subjects))
        return {row["subject"]: row["boost"] for row in rows}

    async def put_boost(self, tx: Tx, boost: PriorityBoost) -> None:
        await tx.execute("put_boost", subject=boost.subject, boost=boost.boost, until=boost.until)

    async def forget_boosts(self, tx: Tx, before: int, limit: int) -> int:
        """Remove boosts that had expired by that time; return how many."""
        return await tx.execute("forget_boosts", before=before, limit=limit)

    async def counts(self, tx: Tx, late: int) -> PolicyCounts:
        """Count all policies, those that are due, and those that are overdue by more than `late` microseconds."""
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


@dataclass(slots=True)
class BoostRetention:
    """Remove boosts that expired long ago. Implements `queue.pruner.RetentionRule`."""

    keep: timedelta
    name: str = "priority boosts"

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        removed = await database.run(lambda tx: PolicyStore().forget_boosts(tx, before, limit))
        return removed, removed == limit

"""The stores of job groups and of page job results, and their retention rules."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import orjson
from msgspec import DecodeError, Struct, ValidationError

from shoal.base.database import Conflict, Database, Tx, readable
from shoal.base.ids import GroupId, JobId
from shoal.base.text import json_of, storable
from shoal.page_jobs.result import LONGEST_MESSAGE, Result, Status, StoredResult
from shoal.page_jobs.spec import Group, GroupState, PageSpec
from shoal.queue.job import Fence, owner_of
from shoal.queue.states import JobState

_NEWEST = (1 << 62) - 1
_GROUP_FIELDS = ("number", "state_reason", "project", "priority", "total", "created_at", "finished_at")
_RESULT_FIELDS = ("url", "final_url", "http_status", "fetched_at", "error_code", "error_message", "html_hash")
_PAYLOAD_FIELDS = {"url": str, "rule_set": dict, "policy": str, "labels": dict, "max_retry": int, "formats": list}


class HeldJob(Struct, frozen=True):
    """The fields of a leased job that are needed to ingest its result. The spec comes from the job itself or from its
    group."""

    id: JobId
    kind: str
    run_id: str | None
    epoch: int
    owner: str
    attempts: int
    max_attempts: int
    has_own_limit: bool  # `max_attempts` comes from a policy or was given with the job, so workers do not change it
    is_scrape: bool  # a caller waits for the result, so there is no event
    url: str
    rule_set: dict[str, Any] | None
    policy: str | None
    labels: dict[str, str]


class NewResult(Struct, frozen=True):
    """A result to insert."""

    job_id: JobId
    epoch: int
    group_id: str | None
    policy: str | None
    state: JobState
    digest: str
    result: Result


class ScrapeResult(Struct, frozen=True):
    """The final result of a scrape. `data` is JSON text: it is passed on without parsing, and may have several
    megabytes."""

    state: str
    url: str
    epoch: int
    fetched_at: int
    error_code: str | None
    error_message: str | None
    data: str | None


class NewGroup(Struct, frozen=True):
    """A group to insert."""

    id: GroupId
    project: str
    labels: dict[str, str]
    priority: int
    total: int
    spec: PageSpec


class GroupStore:
    """Job groups. Their jobs are in the queue's store."""

    async def insert(self, tx: Tx, group: NewGroup) -> Group | None:
        """Insert an open group; return None if its id is taken."""
        values = {name: getattr(group, name) for name in NewGroup.__struct_fields__}
        values |= {"labels": orjson.dumps(group.labels).decode(), "spec": group.spec.text()}
        row = await tx.one("insert_group", **values)
        return None if row is None else _group(row)

    async def get(self, tx: Tx, group_id: str) -> Group | None:
        """Return the group with the number of its jobs by state: current, or as of its end."""
        row = await tx.one("group_by_id", id=group_id)
        return None if row is None else _group(row, await self._jobs(tx, row))

    async def page_of(self, tx: Tx, after: int | None, limit: int, state: str | None) -> list[Group]:
        """Return groups, newest first, that come after the group with the number `after`; optionally only groups in one
        state."""
        states = {each.value: state or each.value for each in GroupState}
        rows = await tx.all("groups_before", before=_NEWEST if after is None else after, limit=limit, **states)
        return [_group(row, await self._jobs(tx, row)) for row in rows]

    async def lock(self, tx: Tx, group_id: str) -> Group | None:
        """Return the group without its jobs, locked; the lock order is group, then jobs."""
        row = await tx.one("lock_group", id=group_id)
        return None if row is None else _group(row)

    async def lock_all(self, tx: Tx, *, groups: Sequence[str] = (), jobs: Sequence[JobId] = ()) -> None:
        """Lock these groups, and the groups of these jobs, for a commit that ends or returns jobs. While a job of the
        group waits, such commits share the lock on the group; once no job waits, they wait for each other (decision
        0050)."""
        await tx.all("lock_groups", groups=list(groups), jobs=list(jobs))

    async def lock_ended(self, tx: Tx, group_id: str) -> Group | None:
        """Return the group, now locked exclusively, if it is open and its last job has ended; None if jobs are left.
        Call this under `lock_all`, after the jobs have ended: if several commits end the last jobs, exactly one of them
        gets the group. Raise `Conflict` if other commits that share the lock may be ending the last jobs, too."""
        row = await tx.one("group_to_end", id=group_id)
        if row is None or not row["is_due"]:
            return None
        if row["id"] is None:
            raise Conflict  # other commits may be ending the last jobs now: after a conflict, we see their result
        # We lock the row exclusively: commits that ended other jobs are complete, and a new statement sees them (0050).
        lives = await tx.one("group_lives", run_id=group_id) is not None
        return None if lives else _group(row)

    async def specs(self, tx: Tx, group_ids: list[str]) -> dict[str, PageSpec | None]:
        """Return the page specs of these groups; None for a spec that this version cannot read."""
        rows = await tx.all("specs_of_groups", ids=group_ids) if group_ids else []
        return {row["id"]: _spec(row["spec"]) for row in rows}

    async def held(self, tx: Tx, group_id: str) -> list[Fence]:
        """Return the grants under which jobs of the group are running, by id."""
        rows = await tx.all("held_of_group", run_id=group_id)
        return [Fence(JobId(row["id"]), row["lease_epoch"]) for row in rows]

    async def end(self, tx: Tx, group_id: str, state: GroupState, reason: str | None) -> dict[str, int]:
        """End an open group and store the number of its jobs by final state; return these numbers."""
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


class ResultStore:
    """The results of page jobs, and the leased jobs that they belong to."""

    async def lock(self, tx: Tx, job_ids: list[JobId]) -> list[HeldJob]:
        """Return and lock the jobs among these that are leased now; they stay leased until this transaction ends or
        moves them. Jobs are locked in the order of their ids, after their groups."""
        return await self._read(tx, await tx.all("lock_held_jobs", ids=job_ids))

    async def ended(self, tx: Tx, job_ids: list[JobId]) -> list[HeldJob]:
        """Return jobs that have just lost their last lease, in their state at that time; nobody holds them now."""
        return await self._read(tx, await tx.all("ended_jobs", ids=job_ids))

    async def answers(self, tx: Tx, owner: str, fences: list[Fence]) -> dict[Fence, tuple[str, JobState]]:
        """For each of these grants that belonged to this owner and has a result, return the digest of the result and
        the job state to which it led."""
        ids = sorted({fence.job_id for fence in fences})
        rows = await tx.all("answers_to_results", ids=ids)
        ours = [row for row in rows if row["holder"] and owner_of(row["holder"]) == owner_of(owner)]
        return {Fence(JobId(row["job_id"]), row["epoch"]): (row["digest"], JobState(row["state"])) for row in ours}

    async def holders(self, tx: Tx, fences: Sequence[Fence]) -> dict[Fence, str]:
        """Return who held each of these grants, as far as they are known."""
        rows = await tx.all("holders_of_grants", ids=sorted({fence.job_id for fence in fences}))
        found = {Fence(JobId(row["job_id"]), row["epoch"]): row["holder"] for row in rows}
        return {fence: found[fence] for fence in fences if fence in found}

    async def insert(self, tx: Tx, results: Sequence[NewResult]) -> None:
        """Insert results, at most one for each grant."""
        await tx.many("insert_results", [_row(one) for one in results])

    async def of_group(self, tx: Tx, group_id: str, after: int, limit: int) -> list[StoredResult]:
        """Return the final result of each ended job of a group, in storage order, after the number `after`; jobs that
        will be retried have none. The list is shorter than `limit` if results are large, and empty only at the end."""
        heads = readable(await tx.all("sizes_of_group", group_id=group_id, after=after, limit=limit), decoded=True)
        last = heads[-1]["number"] if heads else after
        rows = await tx.all("results_of_group", group_id=group_id, after=after, last=last) if heads else []
        return [_stored(row) for row in rows]

    async def of_policy(self, tx: Tx, policy: str, before: int | None, limit: int) -> list[StoredResult]:
        """Return the final result of each ended job of a policy, newest first, before the number `before`, including
        pruned jobs. The list is shorter than `limit` if results are large, and empty only at the end."""
        newest = _NEWEST if before is None else before
        heads = readable(await tx.all("sizes_of_policy", policy=policy, before=newest, limit=limit), decoded=True)
        last = heads[-1]["number"] if heads else newest
        rows = await tx.all("results_of_policy", policy=policy, before=newest, last=last) if heads else []
        return [_stored(row) for row in rows]

    async def success_of_policy(self, tx: Tx, policy: str, before: int | None) -> StoredResult | None:
        """Return the last success of a policy, optionally before the number `before`, even if many failures came after
        it."""
        row = await tx.one("success_of_policy", policy=policy, before=_NEWEST if before is None else before)
        return None if row is None else _stored(row)

    async def one_of_policy(self, tx: Tx, policy: str, job_id: str) -> StoredResult | None:
        """Return the final result of one job of a policy."""
        row = await tx.one("result_of_policy", policy=policy, job_id=job_id)
        return None if row is None else _stored(row)

    async def of_job(self, tx: Tx, job_id: JobId) -> list[StoredResult]:
        """Return every result of a job, oldest first."""
        return [_stored(row) for row in await tx.all("results_of_job", job_id=job_id)]

    async def of_scrape(self, tx: Tx, job_id: str) -> ScrapeResult | None:
        """Return the final result of a scrape, also if its job has been pruned."""
        row = await tx.one("result_of_scrape", job_id=job_id)
        return None if row is None else ScrapeResult(**{name: row[name] for name in ScrapeResult.__struct_fields__})

    async def _read(self, tx: Tx, rows: list[Any]) -> list[HeldJob]:
        groups = sorted({row["run_id"] for row in rows if row["run_id"]})
        specs = await tx.all("specs_of_groups", ids=groups) if groups else []
        common = {row["id"]: _readable(row["spec"]) | {"labels": orjson.loads(row["labels"])} for row in specs}
        return [_held(row, common.get(row["run_id"])) for row in rows]


class GroupRetention(Struct):
    """Removes ended groups whose jobs are gone, with their results. Implements `queue.pruner.RetentionRule`."""

    keep: timedelta
    name: str = "job groups"

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        removed = await database.run(lambda tx: tx.execute("prune_groups", before=before, limit=limit))
        return removed, removed == limit


class ResultRetention(Struct):
    """Removes old results of scrapes and policies, in order of age, except the last success of each policy."""

    keep: timedelta
    name: str = "results of policies and scrapes"
    _fetched_at: int = 0  # position up to which rows were kept; they are not read again until the end is reached
    _number: int = 0

    async def prune(self, database: Database, before: int, limit: int) -> tuple[int, bool]:
        since, number = self._fetched_at, self._number

        async def commit(tx: Tx) -> tuple[int, list[Any]]:
            rows = await tx.all("old_results", before=before, since=since, number=number, limit=limit)
            numbers = [row["number"] for row in rows]
            return await tx.execute("forget_results", numbers=numbers) if rows else 0, rows

        removed, rows = await database.run(commit)
        is_full = len(rows) == limit
        self._fetched_at, self._number = (rows[-1]["fetched_at"], rows[-1]["number"]) if is_full else (0, 0)
        return removed, is_full


def _group(row: Any, jobs: dict[str, int] | None = None) -> Group:
    return Group(
        id=GroupId(row["id"]),
        state=GroupState(row["state"]),
        labels=orjson.loads(row["labels"]),
        spec=_spec(row["spec"]),
        jobs=jobs or {},
        **{name: row[name] for name in _GROUP_FIELDS},
    )


def _spec(text: str) -> PageSpec | None:
    try:
        return PageSpec.stored(text)
    except (ValidationError, DecodeError):
        return None


def _held(row: Any, spec: dict[str, Any] | None) -> HeldJob:
    """Build a held job. The spec of a group applies to all of its jobs; a job without a group has its own."""
    own = _readable(row["payload"])
    shared = own if spec is None else spec
    job_id, kind, run_id, epoch, owner, attempts, max_attempts = row[:7]
    has_own_limit = "policy" in own or "max_retry" in own
    known = (own.get("url", ""), shared.get("rule_set"), own.get("policy"), shared.get("labels", {}))
    is_scrape = bool(own.get("formats"))
    return HeldJob(job_id, kind, run_id, epoch, owner, attempts, max_attempts, has_own_limit, is_scrape, *known)


def _readable(payload: str) -> dict[str, Any]:
    """Return the known, well-typed fields of a job's payload, so that a job with an unreadable payload can still be
    ended."""
    with suppress(orjson.JSONDecodeError):
        decoded = orjson.loads(payload)
        if isinstance(decoded, dict):
            return {name: value for name, value in decoded.items() if isinstance(value, _PAYLOAD_FIELDS.get(name, ()))}
    return {}


def _row(new: NewResult) -> tuple[Any, ...]:
    """Return the columns in the order that `insert_results` names."""
    result = new.result
    message = None if result.error_message is None else storable(result.error_message)[:LONGEST_MESSAGE]
    data = None if result.data is None else json_of(result.data).decode()
    return (
        *(new.job_id, new.epoch, new.group_id, new.policy, new.state, result.status, result.http_status),
        *(result.fetched_at, result.duration_seconds, new.digest, _text(result.url), _text(result.final_url)),
        *(_text(result.html_hash), _text(result.error_code), message, data),
    )


def _text(value: str | None) -> str | None:
    return None if value is None else storable(value)


def _stored(row: Any) -> StoredResult:
    data = None if row["data"] is None else orjson.loads(row["data"])
    plain = {name: row[name] for name in _RESULT_FIELDS}
    result = Result(status=Status(row["status"]), data=data, duration_seconds=row["duration"], **plain)
    ids = (row["number"], JobId(row["job_id"]), row["epoch"], row["group_id"], row["policy"])
    return StoredResult(*ids, JobState(row["state"]), result)

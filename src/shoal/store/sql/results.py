"""The results of page jobs on SQL."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import orjson

from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.base.text import encodable, json_of
from shoal.page_jobs.result import LONGEST_MESSAGE, Result, Status, StoredResult
from shoal.page_jobs.store import HeldJob, NewResult, Place
from shoal.queue.job import Fence, owner_of
from shoal.queue.states import JobState
from shoal.store.sql.read_limits import readable

_PAYLOAD_FIELDS = {"url": str, "rule_set": dict, "policy": str, "labels": dict}
_NEWEST = (1 << 62) - 1
_PLAIN = ("url", "final_url", "http_status", "fetched_at", "error_code", "error_message", "html_hash")


class SqlResultStore:
    """Implements `page_jobs.store.ResultStore`."""

    async def runs_of(self, tx: Tx, job_ids: list[JobId]) -> list[str | None]:
        return [row["run_id"] for row in await tx.all("runs_of_jobs", ids=job_ids)]

    async def lock(self, tx: Tx, job_ids: list[JobId]) -> list[HeldJob]:
        return await self._read(tx, await tx.all("lock_held_jobs", ids=job_ids))

    async def _read(self, tx: Tx, rows: list[Any]) -> list[HeldJob]:
        groups = sorted({row["run_id"] for row in rows if row["run_id"]})
        specs = await tx.all("specs_of_groups", ids=groups) if groups else []
        common = {row["id"]: _common(row) for row in specs}
        return [_held(row, common.get(row["run_id"])) for row in rows]

    async def ended(self, tx: Tx, job_ids: list[JobId]) -> list[HeldJob]:
        return await self._read(tx, await tx.all("ended_jobs", ids=job_ids))

    async def answers(self, tx: Tx, owner: str, fences: list[Fence]) -> dict[Fence, tuple[str, JobState]]:
        ids = sorted({fence.job_id for fence in fences})
        rows = await tx.all("answers_to_results", ids=ids)
        ours = [row for row in rows if owner_of(row["holder"]) == owner_of(owner)]
        return {Fence(JobId(row["job_id"]), row["epoch"]): (row["digest"], JobState(row["state"])) for row in ours}

    async def holders(self, tx: Tx, fences: Sequence[Fence]) -> dict[Fence, str]:
        rows = await tx.all("holders_of_grants", ids=sorted({fence.job_id for fence in fences}))
        found = {Fence(JobId(row["job_id"]), row["epoch"]): row["holder"] for row in rows}
        return {fence: found[fence] for fence in fences if fence in found}

    async def insert(self, tx: Tx, results: Sequence[NewResult]) -> None:
        await tx.many("insert_results", [_row(one) for one in results])

    async def of_group(self, tx: Tx, group_id: str, after: int, limit: int) -> list[StoredResult]:
        heads = readable(await tx.all("sizes_of_group", group_id=group_id, after=after, limit=limit))
        last = heads[-1]["number"] if heads else after
        rows = await tx.all("results_of_group", group_id=group_id, after=after, last=last) if heads else []
        return [_stored(row) for row in rows]

    async def of_policy(self, tx: Tx, policy: str, before: int | None, limit: int) -> list[StoredResult]:
        newest = _NEWEST if before is None else before
        heads = readable(await tx.all("sizes_of_policy", policy=policy, before=newest, limit=limit))
        last = heads[-1]["number"] if heads else newest
        rows = await tx.all("results_of_policy", policy=policy, before=newest, last=last) if heads else []
        return [_stored(row) for row in rows]

    async def success_of_policy(self, tx: Tx, policy: str, before: int | None) -> StoredResult | None:
        row = await tx.one("success_of_policy", policy=policy, before=_NEWEST if before is None else before)
        return None if row is None else _stored(row)

    async def one_of_policy(self, tx: Tx, policy: str, job_id: str) -> StoredResult | None:
        row = await tx.one("result_of_policy", policy=policy, job_id=job_id)
        return None if row is None else _stored(row)

    async def forget(self, tx: Tx, before: int, after: Place, limit: int) -> tuple[int, Place | None]:
        rows = await tx.all("old_results", before=before, since=after[0], number=after[1], limit=limit)
        if not rows:
            return 0, None
        count = await tx.execute("forget_results", numbers=[row["number"] for row in rows])
        return count, (rows[-1]["fetched_at"], rows[-1]["number"]) if len(rows) == limit else None

    async def of_job(self, tx: Tx, job_id: JobId) -> list[StoredResult]:
        return [_stored(row) for row in await tx.all("results_of_job", job_id=job_id)]


def _held(row: Any, spec: dict[str, Any] | None) -> HeldJob:
    """Build a held job. The spec of a group applies to all of its jobs; a job without a group has its own."""
    own = _readable(row["payload"])
    shared = own if spec is None else spec
    job_id, kind, run_id, epoch, owner, attempts, max_attempts = row[:7]
    known = (own.get("url", ""), shared.get("rule_set"), own.get("policy"), shared.get("labels", {}))
    return HeldJob(job_id, kind, run_id, epoch, owner, attempts, max_attempts, *known)


def _readable(payload: str) -> dict[str, Any]:
    """Return the known, well-typed fields of a job's payload, so that a job with an unreadable payload can still be
    ended."""
    with suppress(orjson.JSONDecodeError):
        decoded = orjson.loads(payload)
        if isinstance(decoded, dict):
            return {name: value for name, value in decoded.items() if isinstance(value, _PAYLOAD_FIELDS.get(name, ()))}
    return {}


def _common(row: Any) -> dict[str, Any]:
    return {**_readable(row["spec"]), "labels": orjson.loads(row["labels"])}


def _row(new: NewResult) -> tuple[Any, ...]:
    """Return the columns in the order that `insert_results` names."""
    result = new.result
    message = None if result.error_message is None else _text(result.error_message)[:LONGEST_MESSAGE]
    data = None if result.data is None else json_of(result.data).decode()
    return (
        *(new.job_id, new.epoch, new.group_id, new.policy, new.state, result.status, result.http_status),
        *(result.fetched_at, result.duration_seconds, new.digest, _text(result.url), _text(result.final_url)),
        *(_text(result.html_hash), _text(result.error_code), message, data),
    )


def _text(value: Any) -> Any:
    """Remove NUL, which PostgreSQL rejects in text, and replace lone surrogates, which cannot be encoded."""
    return value if value is None or (value.isascii() and "\x00" not in value) else encodable(value).replace("\x00", "")


def _stored(row: Any) -> StoredResult:
    data = None if row["data"] is None else orjson.loads(row["data"])
    plain = {name: row[name] for name in _PLAIN}
    result = Result(status=Status(row["status"]), data=data, duration_seconds=row["duration"], **plain)
    ids = (row["number"], JobId(row["job_id"]), row["epoch"], row["group_id"], row["policy"])
    return StoredResult(*ids, JobState(row["state"]), result)

"""Quotas: count the locked jobs of each quota key, park granted jobs that are over quota, and unpark jobs when the
quota allows it. A row of the table `job_seat` (a seat) is one locked job that counts towards one key."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from msgspec import Struct, field

from shoal.base.database import Tx
from shoal.queue.job import quota_limit
from shoal.queue.lanes import Availability


class QuotaSplit(Struct):
    """Jobs within and over their quotas."""

    seats: list[tuple[str, str]] = field(default_factory=list)  # quota key and job, for the granted jobs
    parked: dict[str, str] = field(default_factory=dict)  # the parked jobs, each with its full quota key


def split_by_quota(
    jobs: Iterable[str], keys_of: Mapping[str, Sequence[str]], capacity: Mapping[str, int | None]
) -> QuotaSplit:
    """Grant jobs in their order, each if all of its quota keys have room. `capacity`: how many more jobs a key may
    have; None if it has no limit."""
    left = {key: most for key, most in capacity.items() if most is not None}
    split = QuotaSplit()
    for job in jobs:
        limited = [key for key in keys_of.get(job, ()) if key in left]
        full = next((key for key in limited if left[key] <= 0), None)
        if full is not None:
            split.parked[job] = full
            continue
        for key in limited:
            split.seats.append((key, job))
            left[key] -= 1
    return split


ID, KIND, QUOTA_KEYS, LANE, CAPABILITY = 0, 2, 9, 10, 12  # indexes in a granted row
AHEAD = 1000  # jobs at the head of a lane among which further jobs with a full quota key are searched
LAST = 1 << 62  # a rank behind all others
UNPARK_AT_ONCE = 1000


class QuotaCounts:
    """Counts locked jobs per quota key. While it is locked, a job has a seat in each of its limited quota keys."""

    def __init__(self, available: Availability) -> None:
        self._available = available
        self._last_checked = ""  # so that each quota key gets its turn, however many keys are full

    async def settle(
        self,
        tx: Tx,
        left: Collection[str],
        granted: list[Any],
        *,
        quotas: bool,
        waits: bool = True,
    ) -> tuple[list[Any], int]:
        """Free the seats of the jobs in `left`. Give seats to the granted jobs that are within their quotas, and return
        these jobs; park and count the other granted jobs. `quotas`: whether any key may have a limit. If `waits` is
        False, a key that a different transaction is counting is treated as full; the janitor later unparks those jobs.

        Only a grant locks quota keys, after its jobs and before hosts. It locks only keys with a limit: all jobs of a
        project share a key, so leases would otherwise wait for each other. Freeing a seat needs no lock: a concurrent
        lease merely counts one job too many. Parked jobs are unparked in a separate commit: this commit may have to
        wait for other jobs, and these jobs for a transaction that counts the same key.
        """
        if left:
            # Delete the seats in a separate statement: the statement that moved the jobs may have waited for `repair`,
            # and cannot see the seats that `repair` added.
            freed = {row["scope"] for row in await tx.all("delete_job_seats", ids=sorted(left))}
            for key in sorted(freed):
                # Unpark jobs in a later commit. If the process dies before that commit, the janitor's next sweep
                # unparks them (0019).
                tx.afterwards(partial(self.unpark, key=key))
        keys_of = {row[ID]: _limited(row[QUOTA_KEYS], quotas) for row in granted if row[QUOTA_KEYS] is not None}
        keys = sorted({key for limited in keys_of.values() for key in limited})
        rows = await tx.all("lock_limited_keys", keys=keys, waits=int(waits)) if keys else []
        if not rows:
            return granted, 0
        counted = {row["scope"] for row in rows if row["locked"]}
        # Count only after the keys are locked: a lease that locked them before us has committed its seats by now
        # (0019).
        capacity = await self._capacity(tx, [row["scope"] for row in rows])
        capacity |= {key: 0 for key in capacity if key not in counted}
        split = split_by_quota((row[ID] for row in granted), keys_of, capacity)
        await tx.many("insert_job_seats", split.seats)
        if not split.parked:
            return granted, 0
        # These grants were made in this same commit: no worker has seen them, so they leave no history (0018).
        await tx.many("park_jobs", list(split.parked.items()))
        queues = {row[ID]: (row[LANE], row[KIND], row[CAPABILITY]) for row in granted}
        full = sorted({(key, *queues[one]) for one, key in split.parked.items() if key in counted})
        ahead = [await self._park_ahead(tx, *queue) for queue in full]
        return [row for row in granted if row[ID] not in split.parked], len(split.parked) + sum(ahead)

    async def unpark(self, tx: Tx, key: str) -> int:
        """Unpark as many jobs of a quota key as its limit allows; return how many. Call this in a separate commit: it
        locks the quota key, and after that, a commit may wait only for locks on hosts."""
        await tx.value("lock_quota_keys", keys=[key])
        capacity = (await self._capacity(tx, [key]))[key]
        limit = UNPARK_AT_ONCE if capacity is None else min(capacity, UNPARK_AT_ONCE)
        rows = await tx.all("unpark_jobs", scope=key, limit=limit) if limit > 0 else []
        at_hosts = [row["id"] for row in rows if row["host"] is not None]
        await self._available.note(tx, [row["id"] for row in rows], at_hosts)
        return len(rows)

    async def next_with_capacity(self, tx: Tx, limit: int) -> list[str]:
        """Read the next `limit` quota keys with parked jobs; return the keys that seem to be below their limit.
        `unpark` counts again, under the lock of each key. Each call continues where the last one stopped, and starts
        over at the end."""
        keys = list[str]()
        while len(keys) < limit:
            self._last_checked = await tx.value("first_parked", after=self._last_checked) or ""
            if not self._last_checked:
                break
            keys.append(self._last_checked)
        capacity = await self._capacity(tx, keys) if keys else {}
        return [key for key in keys if (left := capacity[key]) is None or left > 0]

    async def repair(self, tx: Tx) -> None:
        """Drop the seats of jobs that are not locked, and give locked jobs a seat in each limited quota key: seats may
        be wrong if a quota is set while jobs are being leased or ended. A job that a different transaction is moving is
        skipped, because its seat would outlive its lease."""
        await tx.execute("delete_stale_job_seats")
        await tx.execute("insert_missing_job_seats")

    async def _park_ahead(self, tx: Tx, key: str, lane: str, kind: str, capability: str) -> int:
        """Park other jobs at the head of a lane that have the same full quota key, so that they do not hide the next
        jobs."""
        queue = {"lane": lane, "kind": kind, "capability": capability}
        end = await tx.value("rank_ahead", **queue, ahead=AHEAD)
        needle = orjson.dumps(key).decode()
        rank = LAST if end is None else end
        rows = await tx.all("park_ahead", **queue, scope=key, rank=rank, needle=needle, limit=AHEAD)
        await self._available.forget(tx, [row["id"] for row in rows])
        return len(rows)

    async def _capacity(self, tx: Tx, keys: list[str]) -> dict[str, int | None]:
        """Return how many more jobs each quota key may have; None: unlimited."""
        rows = await tx.all("count_job_seats", keys=keys)
        most = {row["scope"]: quota_limit(row["scope"], row["most"]) for row in rows}
        taken = {row["scope"]: row["taken"] for row in rows}
        return {key: None if limit is None else limit - taken[key] for key, limit in most.items()}


def _limited(keys: str, quotas: bool) -> list[str]:
    """Return the quota keys of a job that may be limited."""
    if not quotas and '"key:' not in keys:
        return []
    return [key for key in orjson.loads(keys) if quotas or quota_limit(key, None) is not None]

"""Record on policies how their runs ended, and adapt their frequency.

A run is recorded in the commit that ends the run. Older versions of Shoal did not do this; runs that ended then are
read from events, once.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import msgspec

from shoal.base.database import Database, Tx
from shoal.base.parsing import read_duration
from shoal.base.service import PassResult
from shoal.events.event import EventReceipt
from shoal.events.store import EventStore
from shoal.plan.policy import Policy
from shoal.plan.store import PolicyStore, RunNote
from shoal.queue.job import EndedRun

BATCH = 1_000
SINK, UNTIL = "policies", "policies until"  # cursors: the last event that was read, and the last one to read
FASTER, SLOWER = 0.5, 1.5  # factors for the interval of an adaptive frequency: after a change, and without a change
ENDS = {
    "crawl.job.completed": True,
    "crawl.job.failed": False,
    "crawl.completed": True,
    "crawl.failed": False,
}


async def record_ends(tx: Tx, runs: Sequence[EndedRun]) -> None:
    """Record policy runs, in the order in which they ended; other runs are ignored. This call locks the policies in the
    order of their ids, and should be the last one in its transaction."""
    store, left = PolicyStore(), [(run.policy_id, run) for run in runs if run.policy_id is not None]
    while left:
        first = dict(reversed(left))  # a policy's next run must see what its previous run recorded
        known = await store.of_ids(tx, sorted(first))
        await store.note(tx, [_note(policy, first[policy.id]) for policy in known.values()])
        left = [(policy_id, run) for policy_id, run in left if run is not first[policy_id]]


def _note(policy: Policy, run: EndedRun) -> RunNote:
    try:
        step = adapted(policy, run.html_hash)
        shift = timedelta(0) if step is None else step - (policy.schedule.frequency or timedelta(0))
    except Exception:  # an unreadable policy must not roll back the end of its run; the scheduler reports such a policy
        step, shift = None, timedelta(0)
    return RunNote(policy.id, run.is_success, run.at, run.html_hash, step, shift)


def adapted(policy: Policy, digest: str | None) -> timedelta | None:
    """Return the new frequency: shorter if the page changed, longer if it did not, within the bounds."""
    if digest is None or policy.last_hash is None:
        return None
    bounds = policy.form.adaptive
    step = policy.schedule.frequency
    if bounds is None or step is None:
        return None
    wanted = step * (SLOWER if digest == policy.last_hash else FASTER)
    shortest, longest = read_duration(bounds.min), read_duration(bounds.max)
    return max(shortest, min(longest, wanted))


class RunRecorder:
    """Records the runs that ended before the store was upgraded. The commit that records runs also moves the cursor, so
    each event counts exactly once, even after a crash. Several recorders may run at the same time."""

    name = "run recorder"

    def __init__(self, database: Database) -> None:
        self._database = database
        self._events = EventStore()
        self._has_read_all = False

    async def run_once(self) -> PassResult:
        if self._has_read_all:
            return PassResult()
        seen, until, events = await self._database.read(self._look)
        if events:
            await self._database.run(partial(self._record, seen, events))
            return PassResult(again_in=timedelta(0))
        if await self._database.read(self._events.last) >= until:  # otherwise, some events have no number yet
            await self._database.run(self._end)
            self._has_read_all = True
        return PassResult()

    async def _look(self, tx: Tx) -> tuple[int, int, list[EventReceipt]]:
        seen, until = await self._events.cursor(tx, SINK), await self._events.cursor(tx, UNTIL)
        events = await self._events.after(tx, seen, BATCH) if seen < until else []
        return seen, until, [event for event in events if event.sequence <= until]

    async def _end(self, tx: Tx) -> None:
        for sink in (SINK, UNTIL):
            await self._events.drop_cursor(tx, sink)

    async def _record(self, seen: int, events: list[EventReceipt], tx: Tx) -> None:
        if await self._events.move_cursor(tx, SINK, seen, events[-1].sequence):
            await record_ends(tx, [_ended(event) for event in events if event.type in ENDS])


class _Meta(msgspec.Struct, frozen=True):
    html_hash: str | None = None


class _Body(msgspec.Struct, frozen=True):
    """The fields of an event that are recorded. Other fields are skipped without decoding them, because results may be
    large."""

    policy: str | None = None
    meta: _Meta = _Meta()


_read = msgspec.json.Decoder(_Body).decode


def _ended(event: EventReceipt) -> EndedRun:
    success, body = ENDS[event.type], _read(event.body)
    return EndedRun(
        id=event.subject,
        is_success=success,
        policy_id=body.policy or policy_of(event.subject),
        html_hash=body.meta.html_hash if success else None,
        at=event.created_at,
    )


def policy_of(crawl_id: str) -> str | None:
    """Return the policy of a crawl by its id."""
    return crawl_id.rpartition("-")[0] if crawl_id.startswith("pol_") else None

"""Record on each policy how its runs ended, from job and crawl events, and adapt its frequency.

The event cursor moves in the commit that records the runs, so each event counts exactly once, even after a crash.
"""

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import orjson
from msgspec import DecodeError

from shoal.base.database import Database, Tx
from shoal.base.parsing import read_duration
from shoal.base.service import PassResult
from shoal.events.event import EventReceipt
from shoal.events.store import EventStore
from shoal.plan.policy import Policy
from shoal.plan.site_scheduler import policy_of
from shoal.plan.store import PolicyStore, RunNote

BATCH = 1_000
SINK = "policies"
FASTER, SLOWER = 0.5, 1.5  # factors for an adaptive frequency after a change, or without one
ENDS = {
    "crawl.job.completed": True,
    "crawl.job.failed": False,
    "crawl.completed": True,
    "crawl.failed": False,
}


class RunRecorder:
    """Record run outcomes. Several may run at once: one that finds the cursor moved writes nothing and retries
    later."""

    name = "run recorder"

    def __init__(self, database: Database, events: EventStore, policies: PolicyStore) -> None:
        self._database = database
        self._events = events
        self._policies = policies

    async def run_once(self) -> PassResult:
        seen = await self._database.read(lambda tx: self._events.cursor(tx, SINK))
        events = await self._database.read(lambda tx: self._events.after(tx, seen, BATCH))
        if not events:
            return PassResult()
        await self._database.run(partial(self._note, seen, events))
        return PassResult(again_in=timedelta(0))

    async def _note(self, seen: int, events: list[EventReceipt], tx: Tx) -> None:
        if not await self._events.move_cursor(tx, SINK, seen, events[-1].sequence):
            return
        ends = [(one, orjson.loads(one.body)) for one in events if one.type in ENDS]
        known = await self._policies.of_ids(tx, sorted({_policy_of(one, data) for one, data in ends}))
        notes: dict[str, RunNote] = {}
        for one, data in ends:
            policy = known.get(_policy_of(one, data))
            if policy is not None:
                if policy.id in notes:
                    # If a batch has two ended runs of a policy, the second one must see the result of the first. Reload
                    # every policy recorded so far, because the next event may be another ended run of any of them.
                    await self._policies.note(tx, list(notes.values()))
                    known |= await self._policies.of_ids(tx, sorted(notes))
                    policy, notes = known[policy.id], {}
                with suppress(DecodeError):  # the scheduler reports policies that cannot be read
                    notes[policy.id] = note_of(policy, one, data)
        await self._policies.note(tx, list(notes.values()))


def _policy_of(event: EventReceipt, data: dict[str, Any]) -> str:
    """Return the policy of a run, or an empty string."""
    return policy_of(event.subject) if event.type in ("crawl.completed", "crawl.failed") else data.get("policy") or ""


def note_of(policy: Policy, event: EventReceipt, data: dict[str, Any]) -> RunNote:
    success = ENDS[event.type]
    digest = data.get("meta", {}).get("html_hash") if success else None
    step = adapted(policy, digest)
    shift = timedelta(0) if step is None else step - (policy.schedule.frequency or timedelta(0))
    return RunNote(policy.id, success, event.created_at, digest, step, shift)


def adapted(policy: Policy, digest: str | None) -> timedelta | None:
    """Return the new frequency: shorter if the page changed, longer if it did not, within the bounds."""
    bounds = policy.form.adaptive
    step = policy.schedule.frequency
    if bounds is None or step is None or digest is None or policy.last_hash is None:
        return None
    wanted = step * (SLOWER if digest == policy.last_hash else FASTER)
    shortest, longest = read_duration(bounds.min), read_duration(bounds.max)
    return max(shortest, min(longest, wanted))

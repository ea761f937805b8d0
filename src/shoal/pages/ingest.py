"""The one way in for results of page jobs, from nodes and from bots: who sends it, for which grant, and what it does to
the job, all in one commit with the event that tells of it. Fetching is left to others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from shoal.base.database import Database, Tx
from shoal.base.errors import LeaseLost
from shoal.base.ids import JobId
from shoal.events.event import Event
from shoal.events.store import OutboxStore
from shoal.extract.required import lacking
from shoal.pages.result import INVALID_DATA, Delivery, Receipt, Result, Status
from shoal.pages.store import HeldJob, NewResult, ResultStore
from shoal.queue import states
from shoal.queue.job import Holder
from shoal.queue.queue import Queue
from shoal.queue.states import JobState, Move

EVENTS = {JobState.DONE: "crawl.job.completed", JobState.FAILED: "crawl.job.failed"}


@dataclass(frozen=True, slots=True)
class Accepted:
    """A delivery whose grant still holds, and what becomes of its job."""

    job: HeldJob
    result: Result
    digest: str
    move: Move


class Ingest:
    """Takes results in. `owner` is whoever the jobs were leased to: a node's process, or a bot's token."""

    def __init__(self, database: Database, queue: Queue, store: ResultStore, outbox: OutboxStore) -> None:
        self._database = database
        self._queue = queue
        self._store = store
        self._outbox = outbox

    async def settle(self, owner: str, deliveries: Sequence[Delivery]) -> list[Receipt]:
        """Store these results, end or return their jobs. Each is judged by itself: one that comes too late, or from
        somebody else, changes nothing; one that came before gets the answer that it got then."""
        receipts, accepted = await self._database.run(lambda tx: self.settle_in(tx, owner, deliveries))
        await self.tell(accepted)
        return receipts

    async def settle_one(self, owner: str, delivery: Delivery) -> JobState:
        """The same for a single result; raises `LeaseLost` if it is not taken."""
        [receipt] = await self.settle(owner, [delivery])
        if receipt.state is None:
            raise LeaseLost(delivery.holder.job_id, delivery.holder.epoch)
        return receipt.state

    async def settle_in(
        self, tx: Tx, owner: str, deliveries: Sequence[Delivery]
    ) -> tuple[list[Receipt], list[Accepted]]:
        """The same as part of a larger commit; `tell` what was accepted once that is through."""
        if not deliveries:
            return [], []
        held = await self._locked(tx, {delivery.holder.job_id for delivery in deliveries})
        answers: dict[Holder, tuple[str, JobState]] = {}
        accepted: list[Accepted] = []
        late = [one for one in deliveries if not _holds(held.get(one.holder.job_id), owner, one.holder)]
        if late:
            answers |= await self._store.answers(tx, owner, [one.holder for one in late])
        for delivery in deliveries:
            job, digest = held.get(delivery.holder.job_id), delivery.result.digest()
            if job is None or delivery.holder in answers or not _holds(job, owner, delivery.holder):
                continue
            accepted.append(self._judge(job, delivery.result, digest))
            answers[delivery.holder] = (digest, accepted[-1].move.to)
        await self._carry_out(tx, accepted)
        return [_receipt(one, answers.get(one.holder)) for one in deliveries], accepted

    async def tell(self, accepted: Iterable[Accepted]) -> None:
        """The commit is through: say what became of the jobs."""
        for one in accepted:
            await self._queue.tell_moved(one.move, one.job.kind, one.job.run_id)

    async def _locked(self, tx: Tx, job_ids: set[JobId]) -> dict[JobId, HeldJob]:
        """The jobs, locked after their runs: whatever ends a job locks in that order."""
        runs = {(kind, run_id) for kind, run_id in await self._store.runs_of(tx, sorted(job_ids)) if run_id}
        for kind, run_id in sorted(runs):
            await self._queue.lock_run(tx, kind, run_id)
        return {job.id: job for job in await self._store.lock(tx, sorted(job_ids))}

    def _judge(self, job: HeldJob, result: Result, digest: str) -> Accepted:
        result = _checked(job, result)
        return Accepted(job, result, digest, self._move(job, result))

    def _move(self, job: HeldJob, result: Result) -> Move:
        if result.status is Status.SUCCESS:
            return states.finish(job.id, job.epoch)
        error = f"{result.error_code}: {result.error_message}"
        if not result.retryable:
            return replace(states.fail(job.id, job.epoch, error), reason=result.error_code)
        if job.attempts + 1 < job.max_attempts:
            return states.retry(job.id, job.epoch, error, self._queue.backoff(job.attempts + 1))
        return states.fail(job.id, job.epoch, error)

    async def _carry_out(self, tx: Tx, accepted: list[Accepted]) -> None:
        rows = [
            NewResult(one.job.id, one.job.epoch, one.job.run_id, one.move.to, one.digest, one.result)
            for one in accepted
        ]
        await self._store.insert(tx, rows)
        for one in sorted(accepted, key=attrgetter("job.id")):
            await self._queue.move_in(tx, one.move, one.job.kind, one.job.run_id)
        await self._outbox.append(tx, *[_event(one) for one in accepted if one.move.to in EVENTS])


def _holds(job: HeldJob | None, owner: str, holder: Holder) -> bool:
    return job is not None and job.owner == owner and job.epoch == holder.epoch


def _checked(job: HeldJob, result: Result) -> Result:
    """A success that lacks a required field is none: only valid data is told."""
    if result.status is not Status.SUCCESS:
        return result
    problem = lacking(job.rule_set, result.final_url or result.url, result.data)
    if problem is None:
        return result
    return replace(result, status=Status.FAIL, error_code=INVALID_DATA, error_message=problem)


def _receipt(delivery: Delivery, answer: tuple[str, JobState] | None) -> Receipt:
    """What was answered to this very result, now or when it came first; to another for the same grant, nothing."""
    known = answer is not None and answer[0] == delivery.result.digest()
    return Receipt(delivery.holder, answer[1] if answer is not None and known else None)


def _event(one: Accepted) -> Event:
    about = {"job_id": one.job.id, "group": one.job.run_id, "attempt": one.job.attempts + 1}
    return Event(EVENTS[one.move.to], one.job.id, about | one.result.told())

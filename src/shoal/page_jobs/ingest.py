"""The single entry point for results of page jobs, from workers and bots: check the sender and the grant, update the
job and write its event, all in one commit. Does not fetch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from shoal.base.database import Database, Tx
from shoal.base.ids import JobId
from shoal.base.signals import Signals
from shoal.events.store import OutboxStore
from shoal.extract.required_fields import missing_fields
from shoal.page_jobs.job_events import job_event
from shoal.page_jobs.result import INVALID_DATA, Receipt, Result, ResultDelivery, Status
from shoal.page_jobs.spec import KIND
from shoal.page_jobs.store import HeldJob, NewResult, ResultStore
from shoal.pages.page_signals import ResultsTaken
from shoal.queue import states
from shoal.queue.job import Fence, Lease, LeaseRequest, RunListener, TurnResult, owner_of
from shoal.queue.queue import Queue
from shoal.queue.states import TERMINAL, JobState, Move


class Accepted(Struct, frozen=True):
    """A delivery whose grant is still valid, and the move of its job."""

    job: HeldJob
    result: Result
    digest: str
    move: Move


@dataclass(slots=True)
class IngestResult:
    """The outcome of one commit: a receipt for each delivery, in order, and the jobs leased in it."""

    request: LeaseRequest
    receipts: list[Receipt] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)


class Ingest:
    """Ingest results. `owner` is the lease holder: a worker process or a bot's token; `listener` is notified once for
    each group of a batch in which jobs ended."""

    def __init__(
        self,
        database: Database,
        queue: Queue,
        store: ResultStore,
        outbox: OutboxStore,
        listener: RunListener,
        signals: Signals,
    ) -> None:
        self._database = database
        self._queue = queue
        self._store = store
        self._outbox = outbox
        self._listener = listener
        self._signals = signals

    async def settle(self, owner: str, deliveries: Sequence[ResultDelivery]) -> IngestResult:
        """Store results, and end or return their jobs. Each result is handled independently: one that is late or from
        another owner changes nothing; a duplicate gets the same receipt again."""
        request = LeaseRequest(owner, [KIND])
        return await self._database.run(lambda tx: self.settle_in(tx, request, deliveries))

    async def holders(self, fences: Sequence[Fence]) -> dict[Fence, str]:
        """Return who held each of these grants, as far as they are known."""
        return await self._database.read(lambda tx: self._store.holders(tx, fences))

    async def settle_in(
        self,
        tx: Tx,
        request: LeaseRequest,
        deliveries: Sequence[ResultDelivery],
        want: int = 0,
        put_off: Sequence[Move] = (),
    ) -> IngestResult:
        """Like `settle`, as part of a larger commit. `put_off`: jobs that are only returned. The caller may replace
        `IngestResult.leases` before the commit: the signals describe the leases that are left then."""
        settlement = IngestResult(request)
        tx.on_commit(lambda: self._emit(settlement))
        await self._lock_runs(tx, {*(one.fence.job_id for one in deliveries), *(move.job_id for move in put_off)})
        held = await self._held(tx, owner_of(request.holder), deliveries)
        late = [one.fence for one in deliveries if one.fence not in held]
        answers = await self._store.answers(tx, request.holder, late) if late else {}
        digests = [one.result.digest() for one in deliveries]
        for delivery, digest in zip(deliveries, digests, strict=True):
            job = held.pop(delivery.fence, None)  # a second delivery for the same grant gets the receipt of the first
            if job is not None:
                one = self._judge(job, delivery.result, digest)
                settlement.accepted.append(one)
                answers[delivery.fence] = (digest, one.move.to)
        settlement.receipts = [
            _receipt(one.fence, digest, answers.get(one.fence)) for one, digest in zip(deliveries, digests, strict=True)
        ]
        settlement.leases = (await self._carry_out(tx, settlement.accepted, request, want, put_off)).leases
        return settlement

    def _emit(self, settlement: IngestResult) -> None:
        results = [one.result for one in settlement.accepted]
        durations = [one.duration_seconds for one in results if one.duration_seconds is not None]
        if settlement.accepted:
            taken, seconds = len(settlement.accepted), sum(durations)
            self._signals.emit(ResultsTaken(kind=KIND, count=taken, timed=len(durations), seconds=seconds))
        moves = [one.move for one in settlement.accepted]
        self._queue.emit_turn(settlement.request, moves, TurnResult([], settlement.leases))

    async def _lock_runs(self, tx: Tx, job_ids: set[JobId]) -> None:
        """Lock the groups of these jobs before the jobs, which is the lock order of every job move."""
        runs = await self._store.runs_of(tx, sorted(job_ids)) if job_ids else []
        for run_id in sorted({run_id for run_id in runs if run_id}):
            await self._listener.lock(tx, run_id)

    async def _held(self, tx: Tx, owner: str, deliveries: Sequence[ResultDelivery]) -> dict[Fence, HeldJob]:
        """Return the jobs of those deliveries whose grants are still valid."""
        ids = sorted({one.fence.job_id for one in deliveries})
        jobs = await self._store.lock(tx, ids) if ids else []
        return {Fence(job.id, job.epoch): job for job in jobs if owner_of(job.owner) == owner}

    def _judge(self, job: HeldJob, given: Result, digest: str) -> Accepted:
        result = _checked(job, given if given.url else replace(given, url=job.url))
        return Accepted(job, result, digest, self._move(job, result))

    def _move(self, job: HeldJob, result: Result) -> Move:
        if result.status is Status.SUCCESS:
            return states.finish(job.id, job.epoch)
        error = f"{result.error_code}: {result.error_message}"
        if not result.retryable:
            failed = states.fail(job.id, job.epoch, error)
            failed.reason = result.error_code
            return failed
        if job.attempts + 1 < job.max_attempts:
            wait = max(self._queue.backoff(job.attempts + 1), timedelta(seconds=result.retry_after_seconds))
            return states.retry(job.id, job.epoch, error, wait)
        return states.fail(job.id, job.epoch, error)

    async def _carry_out(
        self, tx: Tx, accepted: list[Accepted], request: LeaseRequest, want: int, put_off: Sequence[Move]
    ) -> TurnResult:
        await self._store.insert(tx, [_row(one) for one in accepted])
        moves = sorted([*(one.move for one in accepted), *put_off], key=lambda move: move.job_id)
        result = await self._queue.finish_and_lease_in(tx, moves, request, want)
        await self._outbox.append(tx, *[job_event(one.job, one.result) for one in accepted if one.move.to in TERMINAL])
        for run_id, move in _ended_in(accepted).items():  # the event of a group's end comes after those of its jobs
            await self._listener.job_moved(tx, run_id, move)
        return result


def _ended_in(accepted: list[Accepted]) -> dict[str, Move]:
    """Return the groups in which a job ended, each with the last such move."""
    return {one.job.run_id: one.move for one in accepted if one.job.run_id and one.move.to in TERMINAL}


def _checked(job: HeldJob, result: Result) -> Result:
    """Turn a success that lacks a required field into a failure, so that only valid data is published."""
    if result.status is not Status.SUCCESS:
        return result
    problem = missing_fields(job.rule_set, result.final_url or result.url, result.data)
    if problem is None:
        return result
    return replace(result, status=Status.FAIL, error_code=INVALID_DATA, error_message=problem)


def _receipt(fence: Fence, digest: str, answer: tuple[str, JobState] | None) -> Receipt:
    """Return the receipt of this result, even if it is a duplicate; reject a different result for the same grant."""
    return Receipt(fence, answer[1] if answer is not None and answer[0] == digest else None)


def _row(one: Accepted) -> NewResult:
    job = one.job
    return NewResult(job.id, job.epoch, job.run_id, job.policy, one.move.to, one.digest, one.result)

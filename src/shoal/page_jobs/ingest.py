"""The single entry point for results of page jobs, from workers and bots: check the sender and the grant, update the
job and write its event, all in one commit. Nothing is fetched here."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from shoal.base.database import Database, Tx
from shoal.base.errors import ShoalError
from shoal.base.signals import Signal, Signals
from shoal.base.text import shorten
from shoal.events.event import Event, append_events
from shoal.page_jobs.groups import end_groups_without_jobs
from shoal.page_jobs.result import INVALID_DATA, Receipt, Result, ResultDelivery, Status
from shoal.page_jobs.spec import KIND
from shoal.page_jobs.store import GroupStore, HeldJob, NewResult, ResultStore
from shoal.pages.page import ResultsTaken
from shoal.queue import states
from shoal.queue.job import EndedRun, Fence, Lease, LeaseRequest, RunEndHook, TurnResult, owner_of
from shoal.queue.queue import Queue
from shoal.queue.states import TERMINAL, JobState, Move

EVENTS: Final = {Status.SUCCESS: "crawl.job.completed", Status.FAIL: "crawl.job.failed"}

UNSTORABLE: Final = "unstorable_result"
NOT_STORED: Final = "The result could not be stored; the server's log says why."
LONGEST_ERROR: Final = 1000


class ResultRefused(Signal, frozen=True, kw_only=True):
    """The store refused the result of a page job because of an unexpected error. Other jobs are not affected."""

    job_id: str
    error: str


class Accepted(Struct, frozen=True):
    """A delivery whose grant is still valid, and the move of its job."""

    job: HeldJob
    result: Result
    digest: str
    move: Move
    max_attempts: int  # the maximum that decided whether a failed job is retried


class IngestResult(Struct):
    """The outcome of one commit: a receipt for each delivery, in order, and the jobs leased in it."""

    request: LeaseRequest
    receipts: list[Receipt] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    error: Exception | None = None  # why neither a result nor the failure in its place could be stored


class Ingest:
    """Ingests results. `owner` is the lease holder: a worker process or a bot's token."""

    def __init__(
        self,
        database: Database,
        queue: Queue,
        signals: Signals,
        hooks: Sequence[RunEndHook],
    ) -> None:
        self._database = database
        self._queue = queue
        self._store = ResultStore()
        self._group_store = GroupStore()
        self._signals = signals
        self._hooks = hooks

    async def settle(self, owner: str, deliveries: Sequence[ResultDelivery]) -> IngestResult:
        """Store results, and end or return their jobs. Each result is handled independently. A result that is late or
        from a different owner changes nothing; a duplicate gets the same receipt again. If the store refuses a result
        and the failure in its place, raise its error after the other results: a receipt would tell the sender that its
        lease is lost, and to discard the result. The sender should send all results again."""
        try:
            return await self._settle_together(owner, deliveries)
        except ShoalError:
            raise
        except Exception:
            settlement = await self.settle_apart(owner, deliveries)
        if settlement.error is not None:
            raise settlement.error
        return settlement

    async def settle_apart(
        self,
        owner: str,
        deliveries: Sequence[ResultDelivery],
        attempts: int | None = None,
        within: timedelta | None = None,
    ) -> IngestResult:
        """Like `settle`, but with a separate commit for each result, after an unexpected error in their common commit.
        A job whose result causes the error fails. If the store refuses the failure, too, the job is left until its
        lease expires, and `error` is set. `attempts`: as for `settle_in`. `within`: as for `Database.run`."""
        whole = IngestResult(LeaseRequest(owner, [KIND]))
        for delivery in deliveries:
            settled = await self._settle_alone(owner, delivery, attempts, within)
            if settled.error is not None:
                settled = await self._settle_alone(owner, _refused(delivery), attempts, within)
            whole.receipts += settled.receipts
            whole.accepted += settled.accepted
            whole.error = whole.error or settled.error
        return whole

    async def _settle_alone(
        self, owner: str, delivery: ResultDelivery, attempts: int | None, within: timedelta | None
    ) -> IngestResult:
        try:
            return await self._settle_together(owner, [delivery], attempts, within)
        except ShoalError:
            raise
        except Exception as error:
            reason = shorten(f"{type(error).__name__}: {error}", LONGEST_ERROR)
            self._signals.emit(ResultRefused(job_id=delivery.fence.job_id, error=reason))
            return IngestResult(LeaseRequest(owner, [KIND]), [Receipt(delivery.fence, None)], error=error)

    async def _settle_together(
        self,
        owner: str,
        deliveries: Sequence[ResultDelivery],
        attempts: int | None = None,
        within: timedelta | None = None,
    ) -> IngestResult:
        request = LeaseRequest(owner, [KIND])

        async def commit(tx: Tx) -> IngestResult:
            settlement = await self.settle_in(tx, request, deliveries, attempts=attempts)
            await self.call_hooks(tx, settlement)
            return settlement

        return await self._database.run(commit, within=within)

    async def holders(self, fences: Sequence[Fence]) -> dict[Fence, str]:
        """Return the holder of each of these grants, if it is known."""
        return await self._database.read(lambda tx: self._store.holders(tx, fences))

    async def settle_in(
        self,
        tx: Tx,
        request: LeaseRequest,
        deliveries: Sequence[ResultDelivery],
        want: int = 0,
        put_off: Sequence[Move] = (),
        attempts: int | None = None,
    ) -> IngestResult:
        """Like `settle`, as part of a larger commit, which ends with `call_hooks`. `put_off`: jobs that are only
        returned to their lanes. `attempts`: the worker's maximum number of attempts, for jobs whose number of attempts
        is only a default. The caller may replace `IngestResult.leases` before the commit; the signals describe the
        leases at the time of the commit."""
        settlement = IngestResult(request)
        tx.on_commit(lambda: self._emit(settlement))
        job_ids = {*(one.fence.job_id for one in deliveries), *(move.job_id for move in put_off)}
        if job_ids:  # lock groups before their jobs: the lock order of every job move (0050)
            await self._group_store.lock_all(tx, jobs=sorted(job_ids))
        held = await self._held(tx, owner_of(request.holder), deliveries)
        late = [one.fence for one in deliveries if one.fence not in held]
        # A commit that stores the same result holds the job's lock, so after our lock its receipt can be read (0022).
        answers = await self._store.answers(tx, request.holder, late) if late else {}
        digests = [one.digest or one.result.digest() for one in deliveries]
        for delivery, digest in zip(deliveries, digests, strict=True):
            job = held.pop(delivery.fence, None)  # a second delivery gets the first one's receipt
            if job is not None:
                one = self._judge(job, delivery.result, digest, attempts)
                settlement.accepted.append(one)
                answers[delivery.fence] = (digest, one.move.to)
        settlement.receipts = [
            _receipt(one.fence, digest, answers.get(one.fence)) for one, digest in zip(deliveries, digests, strict=True)
        ]
        settlement.leases = (await self._carry_out(tx, settlement.accepted, request, want, put_off)).leases
        return settlement

    async def call_hooks(self, tx: Tx, settlement: IngestResult) -> None:
        """Report the policy runs that ended. Call this last in the commit, because it locks the rows of policies."""
        runs = [
            _ended_run(one.job, one.result)
            for one in settlement.accepted
            if one.job.policy is not None and one.move.to in TERMINAL
        ]
        for hook in self._hooks if runs else ():
            await hook.ended(tx, runs)

    def _emit(self, settlement: IngestResult) -> None:
        results = [one.result for one in settlement.accepted]
        durations = [one.duration_seconds for one in results if one.duration_seconds is not None]
        if settlement.accepted:
            taken, seconds = len(settlement.accepted), sum(durations)
            self._signals.emit(ResultsTaken(kind=KIND, count=taken, timed=len(durations), seconds=seconds))
        moves = [one.move for one in settlement.accepted]
        self._queue.emit_turn(settlement.request, moves, TurnResult([], settlement.leases))

    async def _held(self, tx: Tx, owner: str, deliveries: Sequence[ResultDelivery]) -> dict[Fence, HeldJob]:
        """Return the jobs of the deliveries whose grants are still valid."""
        ids = sorted({one.fence.job_id for one in deliveries})
        jobs = await self._store.lock(tx, ids) if ids else []
        return {Fence(job.id, job.epoch): job for job in jobs if owner_of(job.owner) == owner}

    def _judge(self, job: HeldJob, given: Result, digest: str, attempts: int | None) -> Accepted:
        result = _checked(job, given if given.url else replace(given, url=job.url))
        decides = job.max_attempts if attempts is None or job.has_own_limit else max(attempts, job.attempts + 1)
        return Accepted(job, result, digest, self._move(job, result, decides), decides)

    def _move(self, job: HeldJob, result: Result, max_attempts: int) -> Move:
        if result.status is Status.SUCCESS:
            return states.finish(job.id, job.epoch)
        error = f"{result.error_code}: {result.error_message}"
        if not result.retryable:
            failed = states.fail(job.id, job.epoch, error)
            failed.reason = result.error_code
            return failed
        if job.attempts + 1 < max_attempts:
            wait = max(self._queue.recovery.backoff(job.attempts + 1), timedelta(seconds=result.retry_after_seconds))
            return states.retry(job.id, job.epoch, error, wait)
        return states.fail(job.id, job.epoch, error)

    async def _carry_out(
        self, tx: Tx, accepted: list[Accepted], request: LeaseRequest, want: int, put_off: Sequence[Move]
    ) -> TurnResult:
        for one in accepted:
            if one.max_attempts != one.job.max_attempts and one.result.status is not Status.SUCCESS:
                await self._queue.jobs.set_attempts(tx, Fence(one.job.id, one.job.epoch), one.max_attempts)
        await self._store.insert(tx, [_row(one) for one in accepted])
        moves = sorted([*(one.move for one in accepted), *put_off], key=lambda move: move.job_id)
        result = await self._queue.finish_and_lease_in(tx, moves, request, want)
        ended_jobs = [one for one in accepted if one.move.to in TERMINAL and not one.job.is_scrape]
        await append_events(tx, *[_event(one.job, one.result) for one in ended_jobs])
        # The end event of a group comes after the events of its jobs. If this commit leased a job of a group, the group
        # has not ended. There is no need to start over when other commits share the lock on the group: we would only
        # lease the same job again (decision 0050).
        going_on = {lease.run_id for lease in result.leases}
        ended = {one.job.run_id: None for one in accepted if one.job.run_id and one.move.to in TERMINAL}
        await end_groups_without_jobs(tx, self._signals, [group for group in ended if group not in going_on])
        return result


async def report_dead_letters(tx: Tx, moves: Sequence[Move]) -> list[EndedRun]:
    """Write results and events for page jobs that ended without a result because their workers were lost too often or
    raised. Call this in the commit that ends the jobs. Return the policy runs among them."""
    why = {move.job_id: move for move in moves}
    now: int = await tx.value("now")
    results, rows, events, runs = ResultStore(), [], [], []
    for job in await results.ended(tx, sorted(why)):
        move = why[job.id]
        result = Result(Status.FAIL, job.url, now, error_code=move.reason, error_message=move.error)
        # No real result has an empty digest: nobody sent this result, so nobody can send it again.
        rows.append(NewResult(job.id, job.epoch, job.run_id, job.policy, move.to, digest="", result=result))
        # The attempts of the job already include a failed attempt, but never a lost one.
        if not job.is_scrape:
            events.append(_event(job, result, max(1, job.attempts + (not move.counts_attempt))))
        if job.policy is not None:
            runs.append(_ended_run(job, result))
    await results.insert(tx, rows)
    await append_events(tx, *events)
    return runs


def _refused(delivery: ResultDelivery) -> ResultDelivery:
    """Return a failure for a job whose result the store refuses. It has the digest of the refused result, so that its
    sender gets the same receipt again. The store's error is for operators, so the failure omits it."""
    error_code = UNSTORABLE
    result = Result(Status.FAIL, "", delivery.result.fetched_at, error_code=error_code, error_message=NOT_STORED)
    digest = ""
    with suppress(Exception):  # perhaps the digest caused the error
        digest = delivery.result.digest()
    return ResultDelivery(delivery.fence, result, digest=digest)


def _event(job: HeldJob, result: Result, attempt: int | None = None) -> Event:
    """Return the event of an ended job. `attempt`: the number of the attempt, if it differs from the number in the
    job's row."""
    about: dict[str, Any] = {
        "job_id": job.id,
        "group": job.run_id,
        "policy": job.policy,
        "labels": job.labels,
        "attempt": attempt or job.attempts + 1,
    }
    return Event(EVENTS[result.status], job.id, about | result.event_data())


def _ended_run(job: HeldJob, result: Result) -> EndedRun:
    """Return an ended job as a policy run."""
    success = result.status is Status.SUCCESS
    html_hash = result.html_hash if success else None
    return EndedRun(id=job.id, is_success=success, policy_id=job.policy, html_hash=html_hash)


def _checked(job: HeldJob, result: Result) -> Result:
    """Turn a success that lacks a required field into a failure, so that only valid data is published."""
    if result.status is not Status.SUCCESS or not job.rule_set:
        return result
    from shoal.extract.rules import missing_fields  # few jobs have a rule set

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

"""Bots: they pull page jobs, keep them with heartbeats, and push results."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from shoal.access.tokens import Tokens
from shoal.base.clock import Clock
from shoal.base.database import Tx
from shoal.base.errors import LeaseLost, RateLimited, Unauthenticated
from shoal.base.ids import TokenId
from shoal.base.settings import BotSettings
from shoal.base.signals import Signal
from shoal.page_jobs.ingest import Ingest, IngestResult
from shoal.page_jobs.leasing import PageLeases, PageTask, PutOff
from shoal.page_jobs.result import INVALID_DATA, Receipt, ResultDelivery, Status
from shoal.page_jobs.spec import KIND
from shoal.queue import states
from shoal.queue.job import SHARED_LANE, Fence, HeartbeatAnswer, LeaseRequest, TurnResult, bot_holder, bot_of, owner_of
from shoal.queue.queue import Queue
from shoal.queue.wake import Wake

SHORTEST_LOOK_SECONDS: Final = 0.1  # how long an empty result is reused, unless a hint comes

Query = Callable[[], Awaitable[list[PageTask]]]
GiveBack = Callable[[list[PageTask]], Awaitable[None]]


@dataclass(slots=True)
class _Waiter:
    query: Query
    give_back: GiveBack
    got: "asyncio.Future[list[PageTask]]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_asking: bool = False  # its query is in progress
    is_late: bool = False


@dataclass(slots=True)
class _Queue:
    """The clients that wait for the same key."""

    waiters: deque[_Waiter] = field(default_factory=deque)
    hint: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


class LongPoll:
    """Long polling with one queue of clients per key. `poll_seconds`: how long a queue waits without a hint before it
    queries the store again."""

    def __init__(self, wake: Wake, clock: Clock, poll_seconds: float) -> None:
        self._wake = wake
        self.clock = clock
        self._poll_seconds = poll_seconds
        self._queues: dict[Hashable, _Queue] = {}
        self._empty_at: dict[Hashable, float] = {}  # when a query last found nothing, if no hint came since
        self._unsubscribe: Callable[[], None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """The number of waiting clients."""
        return sum(len(queue.waiters) for queue in self._queues.values())

    async def look(self, what: Hashable, query: Query) -> list[PageTask]:
        """Return the jobs that are available now, without waiting; none while other clients already wait for the same
        key."""
        if what in self._queues or self.clock.monotonic() - self._empty_at.get(what, -1.0) < SHORTEST_LOOK_SECONDS:
            return []
        self._listen()
        found = await query()
        if not found:
            self._empty_at[what] = self.clock.monotonic()
        return found

    async def wait(self, what: Hashable, query: Query, give_back: GiveBack, longest_seconds: float) -> list[PageTask]:
        """Wait up to `longest_seconds` for jobs. If the caller is cancelled after its query found jobs, `give_back`
        gets them."""
        if self._closed or longest_seconds <= 0:
            return []
        self._listen()
        waiter = _Waiter(query, give_back)
        queue = self._queues.setdefault(what, _Queue())
        queue.waiters.append(waiter)
        if queue.task is None:
            queue.task = asyncio.create_task(self._serve_queue(what, queue))
        try:
            await asyncio.wait({waiter.got}, timeout=longest_seconds)
            waiter.is_late = True
            return await waiter.got if waiter.is_asking or waiter.got.done() else []
        finally:
            waiter.got.cancel()

    def close(self) -> None:
        """Release all waiting clients, because this process stops."""
        self._closed = True
        for queue in self._queues.values():
            for waiter in queue.waiters:
                if not waiter.got.done() and not waiter.is_asking:
                    waiter.got.set_result([])
            queue.hint.set()
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    def _listen(self) -> None:
        if self._unsubscribe is None and not self._closed:
            self._unsubscribe = self._wake.subscribe(self._on_hint, lambda: bool(self._queues))

    def _on_hint(self) -> None:
        self._empty_at.clear()
        for queue in self._queues.values():
            queue.hint.set()

    async def _serve_queue(self, what: Hashable, queue: _Queue) -> None:
        try:
            while queue.waiters:
                await self._serve(queue)
                queue.hint.clear()
                if queue.waiters:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._poll_seconds):
                            await queue.hint.wait()
        finally:
            self._queues.pop(what, None)

    async def _serve(self, queue: _Queue) -> None:
        """Serve the waiting clients in order until nothing is left."""
        while queue.waiters:
            waiter = queue.waiters[0]
            if not waiter.got.done() and not await self._give(waiter):
                return
            queue.waiters.popleft()

    async def _give(self, waiter: _Waiter) -> bool:
        waiter.is_asking = True
        try:
            found = await waiter.query()
            if found and waiter.got.done():  # the client disconnected during the query
                await waiter.give_back(found)
        except Exception as error:  # only this client fails; the other clients keep waiting
            if not waiter.got.done():
                waiter.got.set_exception(error)
            return True
        finally:
            waiter.is_asking = False
        if not waiter.got.done() and (found or waiter.is_late):
            waiter.got.set_result(found)
        return bool(found)


COUNT_EVERY_SECONDS: Final = 10.0  # after this time, the jobs that a token holds are counted again in the store
UNREADABLE_SECONDS: Final = 60.0  # pause before a job that this version cannot read may be leased again
MOST_TOKENS: Final = 10_000  # tokens remembered


class BotAsked(Signal, frozen=True, kw_only=True):
    """A bot asked for jobs."""

    token: str
    bot_id: str


class BotPulled(Signal, frozen=True, kw_only=True):
    """A bot received jobs."""

    token: str
    bot_id: str
    jobs: int


class BotReported(Signal, frozen=True, kw_only=True):
    """A bot sent heartbeats or results; `counts` has the numbers of accepted and of refused ones."""

    token: str
    bot_id: str
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Pull:
    """A bot's request for jobs."""

    token: str
    bot_id: str
    capabilities: tuple[str, ...]
    most: int

    @property
    def holder(self) -> str:
        return bot_holder(self.token, self.bot_id)


@dataclass(slots=True)
class _Meter:
    """The usage of one token: pulls in this second, the jobs that the token holds as far as this process knows, and the
    name of its only bot (empty if several bots use the token)."""

    second: int = -1
    pulls: int = 0
    held: int = 0
    counted_at: float = float("-inf")
    only_bot: str | None = None


class Bots:
    """The operations of bots. Rate limits apply per token and process; the number of held jobs comes from the store."""

    def __init__(
        self,
        queue: Queue,
        ingest: Ingest,
        leases: PageLeases,
        *,
        long_poll: LongPoll,
        tokens: Tokens,
        settings: BotSettings,
    ) -> None:
        self._database = queue.database
        self._queue = queue
        self._ingest = ingest
        self._leases = leases
        self._long_poll = long_poll
        self._tokens = tokens
        self._settings = settings
        self._clock = long_poll.clock
        self._signals = queue.signals
        self._meters: dict[str, _Meter] = {}

    async def look(self, pull: Pull) -> list[PageTask]:
        """Lease jobs that are available now. Raises `RateLimited` if the token pulls too often or holds its maximum."""
        self._count_pull(pull.token)
        meter = self._meter(pull.token)
        meter.only_bot = pull.bot_id if meter.only_bot in (None, pull.bot_id) else ""
        self._signals.emit(BotAsked(token=pull.token, bot_id=pull.bot_id))
        return await self._unless_ended(pull, await self._long_poll.look(pull.capabilities, lambda: self._lease(pull)))

    async def wait(self, pull: Pull, longest_seconds: float) -> list[PageTask]:
        """Wait up to `longest_seconds` for jobs, after `look` found none. A token that was revoked or expired meanwhile
        gets no jobs."""
        tasks = await self._long_poll.wait(
            pull.capabilities, lambda: self._lease(pull), lambda tasks: self.hand_back(pull, tasks), longest_seconds
        )
        return await self._unless_ended(pull, tasks)

    async def _unless_ended(self, pull: Pull, tasks: list[PageTask]) -> list[PageTask]:
        """Return the leased jobs; if the token has ended, release them and raise instead, because a revocation that was
        committed before this lease did not see these jobs."""
        if tasks and await self._tokens.ended({TokenId(pull.token)}):
            await self.hand_back(pull, tasks)
            raise Unauthenticated("the token was revoked or has expired; create a new token")
        return tasks

    async def hand_back(self, pull: Pull, tasks: Sequence[PageTask]) -> None:
        """Release jobs leased for a bot that disconnected before it received them."""
        moves = [states.release(task.lease.fence.job_id, task.lease.fence.epoch, "not_taken") for task in tasks]
        request = LeaseRequest(pull.holder, [KIND])

        async def commit(tx: Tx) -> None:
            result = TurnResult(await self._queue.jobs.move(tx, moves), [])
            tx.on_commit(lambda: self._queue.emit_turn(request, moves, result))

        await self._database.run(commit, within=self._queue.answer_within)
        self._meter(pull.token).held -= len(tasks)

    async def beat(self, token: str, fence: Fence) -> HeartbeatAnswer:
        """Renew the lease of a job; raise `LeaseLost` if the lease does not belong to this token, or was held too
        long."""
        owner, settings = owner_of(bot_holder(token, "")), self._settings
        try:
            beat = await self._queue.beat(owner, fence, settings.lock_ttl, settings.longest_lock)
        except LeaseLost:
            await self._report_late(token, [fence], "late_heartbeats")
            raise
        self._report(token, beat.holder, {"heartbeats": 1})
        return beat

    async def settle(self, token: str, deliveries: Sequence[ResultDelivery]) -> list[Receipt]:
        """Ingest results, each independently; return a receipt for each, in order."""
        settlement = await self._ingest.settle(bot_holder(token, ""), deliveries)
        self._meter(token).held -= len(settlement.accepted)
        await self._report_results(token, settlement)
        return settlement.receipts

    async def _report_results(self, token: str, settlement: IngestResult) -> None:
        """Report separately what each bot with this token sent, because tokens may be shared."""
        done: dict[str, Counter[str]] = {}
        for one in settlement.accepted:
            counts = done.setdefault(one.job.owner, Counter())
            counts["results"] += 1
            if one.result.error_code == INVALID_DATA:
                counts["invalid_data"] += 1
            elif one.result.status is not Status.SUCCESS:
                counts["failures"] += 1
        for holder, counts in done.items():
            self._report(token, holder, counts)
        if late := [receipt.fence for receipt in settlement.receipts if receipt.state is None]:
            await self._report_late(token, late, "late_results")

    async def _report_late(self, token: str, fences: Sequence[Fence], name: str) -> None:
        """Report which bots with this token sent something without a valid lease. If the holder of a grant is not
        known, the report names the token's only bot; if several bots use the token, it names only the token."""
        holders = await self._ingest.holders(fences)
        unknown = bot_holder(token, self._meter(token).only_bot or "")
        known = [holders.get(fence, "") for fence in fences]
        ours = [holder if owner_of(holder) == owner_of(unknown) else unknown for holder in known]
        for holder, count in Counter(ours).items():
            self._report(token, holder, {name: count})

    def _report(self, token: str, holder: str, counts: Mapping[str, int]) -> None:
        bot = bot_of(holder)
        self._signals.emit(BotReported(token=token, bot_id=bot[1] if bot else "", counts=dict(counts)))

    async def _lease(self, pull: Pull) -> list[PageTask]:
        want = min(pull.most, await self._capacity_of(pull.token))
        request = self._leases.by_host(
            LeaseRequest(pull.holder, [KIND], (SHARED_LANE,), pull.capabilities, self._settings.lock_ttl)
        )
        within = self._queue.answer_within
        tasks = await self._database.run(lambda tx: self._commit(tx, request, want), within=within)
        self._meter(pull.token).held += len(tasks)
        if tasks:
            self._signals.emit(BotPulled(token=pull.token, bot_id=pull.bot_id, jobs=len(tasks)))
        return tasks

    async def _commit(self, tx: Tx, request: LeaseRequest, want: int) -> list[PageTask]:
        first = await self._queue.finish_and_lease_in(tx, [], request, want)
        leased = await self._leases.reserve(tx, first.leases)
        tasks = [task for task in leased if task.work is not None]
        unreadable = [
            PutOff(one.lease.fence, UNREADABLE_SECONDS, "unreadable_job").move for one in leased if one.work is None
        ]
        if unreadable:
            await self._queue.jobs.move(tx, unreadable)
        kept = TurnResult([], [task.lease for task in tasks])
        tx.on_commit(lambda: self._queue.emit_turn(request, (), kept))
        return tasks

    def _count_pull(self, token: str) -> None:
        meter, second = self._meter(token), int(self._clock.monotonic())
        if meter.second != second:
            meter.second, meter.pulls = second, 0
        meter.pulls += 1
        if meter.pulls > self._settings.pulls:
            raise RateLimited(f"This token sent {self._settings.pulls} pull requests within a second", 1.0)

    async def _capacity_of(self, token: str) -> int:
        """Return how many more jobs a token may hold."""
        meter, now, most = self._meter(token), self._clock.monotonic(), self._settings.most_jobs
        age = now - meter.counted_at
        if age >= COUNT_EVERY_SECONDS or (meter.held >= most and age >= 1.0):
            owner = owner_of(bot_holder(token, ""))
            meter.held = await self._database.read(
                lambda tx: self._queue.jobs.held_by_owner(tx, owner), within=self._queue.answer_within
            )
            meter.counted_at = now
        if meter.held >= most:
            raise RateLimited(f"This token holds {meter.held} jobs, and the limit is {most}", 1.0)
        return most - meter.held

    def _meter(self, token: str) -> _Meter:
        if len(self._meters) >= MOST_TOKENS and token not in self._meters:
            self._meters.clear()
        return self._meters.setdefault(token, _Meter())

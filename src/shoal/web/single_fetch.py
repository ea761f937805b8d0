"""Single requests through the fetch pool, for callers that wait for each response, such as the probes of an
analysis."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final, TypeVar

from msgspec import Struct

from shoal.base.database import Database, Tx
from shoal.base.signals import Signals
from shoal.base.url import Url, origin
from shoal.egress import Cancellable, Failure
from shoal.hosts.rate_limiter import RateLimiter, SlotGrant
from shoal.hosts.robots_cache import RobotsAnswer, RobotsRules, objection
from shoal.hosts.store import HostStore
from shoal.hosts.throttle import ThrottleTracker, emit_holds
from shoal.web.fetch_pool import Admitted, FetchPool, WindowSize
from shoal.web.page_fetcher import Fetched

LONGEST_WAIT_SECONDS: Final = 60.0  # for a slot
NO_SLOT: Final = "no_slot"

T = TypeVar("T")
Done = Callable[[Fetched], None]
Send = Callable[[Url, float, Done], Cancellable]
"""A function that sends the request for a URL before a deadline and calls back with the outcome."""


class SingleFetch(Struct, eq=False):
    """One request (`shoal.web.fetch_pool.PoolTask`)."""

    seq: int
    at: Url
    send: Send
    outcome: "asyncio.Future[Fetched | None]"  # None if its slot has passed, so that it needs a new slot
    host: int = 0
    start_in_seconds: float = 0.0
    slot_at: float = 0.0
    delay_seconds: float = 0.0
    attempts: int = 0


class SingleFetches:
    """Requests single URLs as robots.txt and the slots of their hosts allow. Implements
    `shoal.web.fetch_pool.PoolCaller` and has a separate throttle tracker."""

    is_closed = False
    is_out_of_reach = False

    def __init__(
        self,
        size: WindowSize,
        database: Database,
        limiter: RateLimiter,
        robots: RobotsRules,
        throttle: ThrottleTracker,
        signals: Signals,
    ) -> None:
        self._database = database
        self._limiter = limiter
        self._robots = robots
        self._throttle = throttle
        self._signals = signals
        self._clock = throttle.clock
        self._hosts = HostStore()
        self._pool: FetchPool[SingleFetch] = FetchPool(size, self, throttle)
        self._numbers = count()
        self._one_commit = asyncio.Lock()  # only one commit at a time stores host updates

    async def fetch(self, url: Url, send: Send) -> Fetched:
        """Request one URL. Return a failure if robots.txt forbids the URL or is unreachable, or if no slot came in
        time."""
        give_up_at = self._clock.monotonic() + LONGEST_WAIT_SECONDS
        while True:
            grant = await self._find_slot(origin(url))
            if self._clock.monotonic() + grant.wait_seconds > give_up_at:
                why = f"{origin(url)} had no free slot within {LONGEST_WAIT_SECONDS:g} s: the host is on hold or busy."
                return _failed(Failure(NO_SLOT, why, retryable=True, url=url))
            if not grant.granted:
                await self._clock.sleep(grant.wait_seconds)
                continue
            outcome = asyncio.get_running_loop().create_future()
            slot = (grant.host, grant.wait_seconds, grant.slot_at, grant.delay_seconds)
            task = SingleFetch(next(self._numbers), url, send, outcome, *slot)
            if self._limiter.timing is not None:
                self._limiter.timing.usable([task])
            self._pool.accept([task])
            try:
                fetched = await task.outcome
            finally:
                self._pool.withdraw({task.seq})
                self._pool.cancel(task.seq)
            if fetched is not None:
                return fetched

    async def _find_slot(self, host_origin: str) -> SlotGrant:
        """Reserve the next slot of a host. In the same commit, store the host updates from earlier responses."""
        async with self._one_commit:
            return await self._record(lambda tx: self._limiter.next_slot(tx, host_origin, LONGEST_WAIT_SECONDS))

    async def settle(self) -> None:
        """Store the host updates from the last responses. Each fetch already stores the updates from earlier
        responses."""

        async def nothing(tx: Tx) -> None: ...

        async with self._one_commit:
            if self._throttle.has_updates:
                await self._record(nothing)

    async def _record(self, then: Callable[[Tx], Awaitable[T]]) -> T:
        updates = self._throttle.updates()

        async def commit(tx: Tx) -> tuple[T, dict[int, float]]:
            hold_seconds = await self._hosts.record(tx, updates) if updates else {}
            return await then(tx), hold_seconds

        try:
            result, hold_seconds = await self._database.run(commit)
        except BaseException:
            self._throttle.forget()
            raise
        self._throttle.learn(hold_seconds)
        emit_holds(self._signals, updates, hold_seconds)
        return result

    def close(self) -> None:
        """Cancel everything, including robots.txt requests."""
        self._pool.drop()
        self._robots.close()

    # Called by the pool

    def admit(self, task: SingleFetch) -> Admitted | None:
        match self._robots.judge(task.at):
            case RobotsAnswer.ALLOWED:
                return Admitted.NOW
            case RobotsAnswer.UNKNOWN:
                return Admitted.AFTER_ROBOTS
            case RobotsAnswer.DENIED | RobotsAnswer.UNREACHABLE:
                _end(task, _failed(objection(self._robots.known(origin(task.at)), task.at)))
                return None

    def robots_of(self, task: SingleFetch) -> RobotsRules:
        return self._robots

    def start(self, task: SingleFetch, send_by: float, done: Done) -> Cancellable:
        return task.send(task.at, send_by, done)

    def fetched(self, task: SingleFetch, fetched: Fetched) -> None:
        _end(task, fetched)

    def hand_back(self, task: SingleFetch, wait_seconds: float) -> None:
        _end(task, None)

    def failed(self, task: SingleFetch | None, error: Exception) -> None:
        if task is None:
            raise error
        if not task.outcome.done():
            task.outcome.set_exception(error)


def _failed(failure: Failure) -> Fetched:
    return Fetched(failure.url, 0.0, failure=failure)


def _end(task: SingleFetch, fetched: Fetched | None) -> None:
    if not task.outcome.done():
        task.outcome.set_result(fetched)

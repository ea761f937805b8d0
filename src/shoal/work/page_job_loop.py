"""Page jobs in one process: leased in batches, many at once, settled together. Their leases are kept from outside, and
what a page job is, the craft that they are given knows."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from shoal.base.clock import Clock
from shoal.base.errors import BackendUnavailable, LeaseLost, ShoalError, StorageFull
from shoal.base.parsing import show_duration
from shoal.queue.job import Fence, Lease
from shoal.queue.queue import Queue
from shoal.queue.states import STALLED
from shoal.work.lease_validity import LeaseValidity

R = TypeVar("R")

BATCH = 100  # results that are settled at once, however short ago the last ones were
BATCH_SECONDS = 0.05  # the longest that a result waits for company, while other jobs run
MOST_AHEAD = 500  # jobs that are held beyond the slots
AHEAD_SECONDS = 2.0  # what nobody has begun so long after it could be is handed back: another worker may be free
STORE_PAUSE = 0.5  # after a commit that did not reach the store
LEAVE_SECONDS = 2.0  # for what runs when it is time to leave


def holder_of(worker: str, pid: int) -> str:
    """How the leases of a page child name it: known to its parent, also when the child has died."""
    return f"{worker}/pages/{pid}"


class PageJobHandler(Protocol[R]):
    """What a page child is given: it runs single jobs, and settles many at once. Both are called from one loop."""

    async def run(self, lease: Lease) -> R:
        """Work on one job; the result carries its lease. What is wrong with the page is part of the result; what is
        raised counts as a failed attempt of the job. May be cancelled at any time, and then leaves nothing behind."""
        ...

    async def settle(self, results: Sequence[R], holder: str, want: int) -> list[Lease]:
        """In one commit: store the results, end or return their jobs, and lease up to `want` further ones for
        `holder`. A result whose lease was lost is dropped, the others count. If the store fails, nothing is stored and
        the same results come again. With no results it only leases, with `want` 0 it only settles."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class PageJobLoop(Generic[R]):
    """Keeps the slots full. What finishes quickly is leased further ahead, so that a commit covers more of it.

    `holds` is called whenever there is more in hand. A job that lost a worker before runs alone, with nothing begun
    beside it: if it takes this process with it, `alone` has named it, and nothing else is blamed.
    """

    def __init__(
        self,
        work: PageJobHandler[R],
        queue: Queue,
        slots: int,
        holder: str,
        clock: Clock,
        holds: Callable[[], None],
        alone: Callable[[Fence | None], None],
        trouble: Callable[[str, Exception], None],
    ) -> None:
        self._work = work
        self._queue = queue
        self._slots = slots
        self._holder = holder
        self._clock = clock
        self._holds = holds
        self._alone = alone
        self._trouble = trouble
        self._running: dict[Fence, asyncio.Task[None]] = {}
        self._since: dict[Fence, float] = {}  # when it was begun
        self._ahead: deque[tuple[float, Lease]] = deque()  # with since when it may be begun
        self._waiting: list[tuple[float, Lease]] = []  # with when it may be begun, the next one first
        self._suspects: deque[Lease] = deque()
        self._suspect: Fence | None = None
        self._results: list[tuple[Fence, R]] = []
        self._settling: list[tuple[Fence, R]] = []  # in the commit under way
        self._first_result_at = 0.0
        self._stirred = asyncio.Event()
        self._trust = LeaseValidity(queue.settings.lease, clock)
        self._batch = 0  # how many the last commit settled
        self._look_at = 0.0  # when it is time to ask for jobs, told or not
        self._nudged = False  # since we asked last
        self._leave_at: float | None = None
        self._patient = False
        self._verbs: set[asyncio.Task[None]] = set()
        self._stalled: set[Fence] = set()

    async def run(self) -> None:
        """Until it is to leave and nothing is in hand."""
        while True:
            await self._turn()
            self._fill()
            self._look_after()
            if self._leave_at is not None and not (self.held or self._verbs):
                return
            await self._rest()

    @property
    def held(self) -> list[Fence]:
        """What is leased to us, also what has finished and is not stored yet: a slow commit must not cost it."""
        unsettled = [holder for holder, _ in (*self._settling, *self._results)]
        unbegun = [lease.holder for _, lease in (*self._ahead, *self._waiting)]
        return [*unsettled, *self._running, *unbegun, *(lease.holder for lease in self._suspects)]

    def nudge(self) -> None:
        """A job may wait."""
        self._look_at = 0.0
        self._nudged = True
        self._stirred.set()

    def renewed(self) -> None:
        self._trust.renew()

    def drop(self, lost: Sequence[Fence]) -> None:
        """These are no longer ours."""
        gone = set(lost)
        for holder in gone & self._running.keys():
            self._running[holder].cancel()
        self._ahead = deque(one for one in self._ahead if one[1].holder not in gone)
        self._waiting = [one for one in self._waiting if one[1].holder not in gone]
        self._suspects = deque(lease for lease in self._suspects if lease.holder not in gone)

    def leave(self, *, patient: bool) -> None:
        """Take nothing more. What runs may finish, for a moment or as long as it takes; the rest is handed back."""
        self._patient = patient
        if self._leave_at is None:
            self._leave_at = self._clock.monotonic() + LEAVE_SECONDS
        if not patient:
            unbegun = [lease for _, lease in (*self._ahead, *self._waiting)]
            self._hand_back(unbegun + list(self._suspects), "shutdown")
            self._ahead.clear()
            self._waiting.clear()
            self._suspects.clear()
        self._stirred.set()

    async def _turn(self) -> None:
        """Settle what has finished and lease as much as there is room for, in one commit."""
        if min(self._settle_in(), self._ask_in()) > 0:
            return
        want = self._want()
        self._settling, self._results = self._results, []
        settled = len(self._settling)
        self._nudged = False
        try:
            leases = await self._work.settle([result for _, result in self._settling], self._holder, want)
        except ShoalError as error:
            self._results = self._settling + self._results
            self._settling = []
            self._trouble("settling page jobs", error)
            await self._clock.sleep(STORE_PAUSE)
            return
        self._settling = []
        now = self._clock.monotonic()
        if not self.held:
            self._trust.renew(now)  # what we have was leased just now; of anything else only our parent knows
        self._batch = max(settled, self._batch // 2)
        empty = len(leases) < want and not self._nudged  # a job may have come after the store looked
        self._look_at = now + self._queue.settings.poll_every.total_seconds() if empty else 0.0
        for lease in leases:
            if lease.crash_count:
                self._suspects.append(lease)
            elif lease.start_in > 0:
                self._waiting.append((now + lease.start_in, lease))
            else:
                self._ahead.append((now, lease))
        self._waiting.sort(key=itemgetter(0))
        if leases:
            self._holds()  # before any of them is begun: one that blocks this loop must not cost them their leases

    def _want(self) -> int:
        if self._leave_at is not None or self._suspects or self._suspect is not None:
            return 0
        if not self._trust.holds() and self.held:
            return 0
        room = self._slots + min(MOST_AHEAD, 2 * self._batch)
        late = max(0, len(self._waiting) - room)  # as many again may wait for their hosts: they hold no slot meanwhile
        return max(0, room - len(self._running) - len(self._ahead) - late)

    def _settle_in(self) -> float:
        """Seconds until what has finished is to be settled."""
        if not self._results:
            return float("inf")
        settle_at = self._first_result_at + BATCH_SECONDS
        coming = bool(self._waiting) and self._waiting[0][0] < settle_at
        idle = not (self._running or self._ahead or self._suspects or coming)
        if idle or len(self._results) >= BATCH:
            return 0.0
        return settle_at - self._clock.monotonic()

    def _ask_in(self) -> float:
        """Seconds until it is time to ask for jobs: not while there are some for every slot."""
        if self._ahead or len(self._running) >= self._slots or not self._want():
            return float("inf")
        return self._look_at - self._clock.monotonic()

    def _fill(self) -> None:
        now = self._clock.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            self._ahead.append(self._waiting.pop(0))
        if self._suspect is not None or not self._trust.holds():
            return
        if self._suspects:
            if not self._running:
                lease = self._suspects.popleft()
                self._suspect = lease.holder
                self._alone(lease.holder)
                self._begin(lease)
            return
        while self._ahead and len(self._running) < self._slots:
            self._begin(self._ahead.popleft()[1])

    def _begin(self, lease: Lease) -> None:
        self._running[lease.holder] = asyncio.create_task(self._carry_out(lease))
        self._since[lease.holder] = self._clock.monotonic()

    async def _carry_out(self, lease: Lease) -> None:
        try:
            result = await self._work.run(lease)
        except asyncio.CancelledError:
            self._cancelled(lease)
        except (BackendUnavailable, StorageFull) as error:  # the store's trouble, not the job's
            self._trouble("working on a page job", error)
            self._hand_back([lease], error.code)
        except Exception as error:
            why = (
                f"{error.code}: {error.message}"
                if isinstance(error, ShoalError)
                else f"{type(error).__name__}: {error}"
            )
            self._soon(self._queue.fail(lease, why))
        else:
            if not self._results:
                self._first_result_at = self._clock.monotonic()
            self._results.append((lease.holder, result))
        self._running.pop(lease.holder, None)
        self._since.pop(lease.holder, None)
        if self._suspect == lease.holder:
            self._suspect = None
            self._alone(None)
        self._fill()
        self._stirred.set()

    def _cancelled(self, lease: Lease) -> None:
        if lease.holder in self._stalled:
            self._stalled.discard(lease.holder)
            deadline = show_duration(self._queue.settings.stall_deadline)
            self._soon(self._queue.lose(lease, f"it did not end within {deadline}", STALLED))
        elif self._leave_at is not None:
            self._hand_back([lease], "shutdown")

    def _look_after(self) -> None:
        """Whoever took too long: a job that runs, one that waits for a slot, and all when it is time to go."""
        now = self._clock.monotonic()
        deadline = self._queue.settings.stall_deadline.total_seconds()
        for holder, since in self._since.items():
            if now - since > deadline:
                self._stalled.add(holder)
                self._running[holder].cancel()
        stale: list[Lease] = []
        while self._ahead and now - self._ahead[0][0] > AHEAD_SECONDS and not self._patient:
            stale.append(self._ahead.popleft()[1])
        self._hand_back(stale, "no_slot")
        if self._leave_at is not None and not self._patient and now > self._leave_at:
            for task in list(self._running.values()):
                task.cancel()

    def _hand_back(self, leases: Sequence[Lease], reason: str) -> None:
        for lease in leases:
            self._soon(self._queue.release(lease, reason))

    def _soon(self, verb: Awaitable[object]) -> None:
        async def carry_out() -> None:
            try:
                await verb
            except LeaseLost:
                return
            except ShoalError as error:
                self._trouble("settling a page job", error)  # its lease runs out

        task = asyncio.create_task(carry_out())
        self._verbs.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._verbs.discard(task)
            self._stirred.set()

        task.add_done_callback(ended)

    async def _rest(self) -> None:
        """Until something finishes, or it is time to settle, to ask, to begin, or to look after those who take long."""
        begin_in = self._waiting[0][0] - self._clock.monotonic() if self._waiting else 1.0
        seconds = min(self._settle_in(), self._ask_in(), begin_in, 1.0)
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stirred.wait()
        else:
            await self._clock.sleep(0)  # whoever is ready comes first
        self._stirred.clear()

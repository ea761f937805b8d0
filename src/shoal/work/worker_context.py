"""Objects that the parts of a worker share: its context, its recent tasks, and a watch over its storage."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from shoal.base.clock import Clock
from shoal.base.errors import LeaseLost, ShoalError, StorageFull
from shoal.base.settings import CrawlSettings, WorkSettings
from shoal.base.signals import Signal, Signals
from shoal.queue.job import Lease
from shoal.queue.queue import Queue
from shoal.work.child_handle import ChildSpawner

RECENT_SECONDS = 300.0
STEP_SECONDS = 1.0  # tasks that end within this time are one entry


class RecentTasks:
    """Counts the tasks that ended within the last five minutes, and all tasks since the start. A task is a job that
    ended; a returned job does not count."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: deque[list[float]] = deque()  # time, done, failed, timed, seconds
        self.total = 0

    def record(self, *, done: int = 0, failed: int = 0, timed: int = 0, seconds: float = 0.0) -> None:
        """Count tasks that ended now; `timed` of them took `seconds` in total."""
        now = self._clock.monotonic()
        self.total += done + failed
        if not self._entries or now - self._entries[-1][0] >= STEP_SECONDS:
            self._entries.append([now, 0, 0, 0, 0.0])
        for place, value in enumerate((done, failed, timed, seconds), 1):
            self._entries[-1][place] += value
        self._forget(now)

    def recent(self) -> tuple[int, float, float]:
        """Return the number of recent tasks, the share of successful tasks (1 if there are no tasks), and the mean
        duration in seconds of the tasks with a known duration (0 if there are none)."""
        self._forget(self._clock.monotonic())
        done, failed, timed, seconds = (sum(entry[place] for entry in self._entries) for place in range(1, 5))
        count = int(done + failed)
        return count, done / count if count else 1.0, seconds / timed if timed else 0.0

    def _forget(self, now: float) -> None:
        while self._entries and now - self._entries[0][0] > RECENT_SECONDS:
            self._entries.popleft()


STORE = "store"
BODIES = "bodies"
KINDS = {BODIES: frozenset({"crawl"})}  # job kinds that need a storage; all kinds need the store
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 15.0  # pause before a full storage is tried again


class StorageFilled(Signal, frozen=True, kw_only=True):
    """A storage has no space left; jobs that need it are not leased."""

    storage: str
    error: str


class StorageFreed(Signal, frozen=True, kw_only=True):
    """A storage that was full has space again."""

    storage: str
    full_seconds: float


Check = Callable[[], Awaitable[None]]


class StorageWatch:
    """The full storage, shared by all workers of one process. `checks` has one function per storage, which raises while
    the storage has no space. A storage that is full again soon after it was freed is tried less and less often, so that
    a job does not start over and over if it needs more space than the storage has."""

    def __init__(self, checks: Mapping[str, Check], clock: Clock, signals: Signals) -> None:
        self._checks = checks
        self._clock = clock
        self._signals = signals
        self._full: dict[str, str] = {}  # storage: error message
        self._pause_seconds: dict[str, float] = {}
        self._freed_at: dict[str, float] = {}
        self._waiting: set[asyncio.Task[None]] = set()

    @property
    def full(self) -> Mapping[str, str]:
        """Each full storage, with a sentence about it."""
        return self._full

    def allows(self, kind: str) -> bool:
        """Return whether jobs of this kind may be leased now."""
        return not any(kind in KINDS.get(storage, (kind,)) for storage in self._full)

    def filled(self, storage: str, error: str) -> None:
        """Record that a storage is full. May be called many times; the signal is emitted once."""
        storage = storage if storage in self._checks else STORE
        if storage in self._full:
            return
        self._full[storage] = error
        now = self._clock.monotonic()
        if now - self._freed_at.get(storage, -LONGEST_PAUSE_SECONDS) >= 2 * LONGEST_PAUSE_SECONDS:
            self._pause_seconds[storage] = FIRST_PAUSE_SECONDS
        self._signals.emit(StorageFilled(storage=storage, error=error))
        waiting = asyncio.create_task(self._wait_for_space(storage, now), name=f"storage:{storage}")
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)

    def close(self) -> None:
        for waiting in self._waiting:
            waiting.cancel()

    async def _wait_for_space(self, storage: str, full_since: float) -> None:
        while not await self._has_space_after_pause(storage):
            pass
        del self._full[storage]
        now = self._freed_at[storage] = self._clock.monotonic()
        self._signals.emit(StorageFreed(storage=storage, full_seconds=now - full_since))

    async def _has_space_after_pause(self, storage: str) -> bool:
        seconds = self._pause_seconds.get(storage, FIRST_PAUSE_SECONDS)
        self._pause_seconds[storage] = min(2 * seconds, LONGEST_PAUSE_SECONDS)
        await self._clock.sleep(seconds)
        try:
            if storage in self._checks:
                await self._checks[storage]()
        except ShoalError:  # still full, or unreachable
            return False
        return True


class ChildLost(Signal, frozen=True, kw_only=True):
    """A child died, or was killed for its silence, while it held a job."""

    node_id: str
    pid: int
    job_id: str
    kind: str
    run_id: str | None
    attempt: int
    max_attempts: int
    how: str


class ChildGone(Signal, frozen=True, kw_only=True):
    """A child without a job ended: it could not start, or it died while it waited for work."""

    node_id: str
    how: str
    had_begun: bool


class StoreOutOfReach(Signal, frozen=True, kw_only=True):
    """The worker could not reach the store; it keeps trying."""

    node_id: str
    doing: str
    error: str


class WorkerContext(Struct, frozen=True):
    """The identity of one worker and the objects that it uses. Its leases are held under the name `holder`; `config` is
    the configuration recorded with each job; `page_slots` is the number of page jobs that it runs at the same time;
    `connections` describes the connections of its crawls."""

    node_id: str
    holder: str
    lanes: Sequence[str]
    kinds: Sequence[str]
    queue: Queue
    settings: WorkSettings
    clock: Clock
    signals: Signals
    spawner: ChildSpawner
    storage: StorageWatch
    config: str = "{}"
    page_slots: int = CrawlSettings().max_concurrent_curl
    connections: str = CrawlSettings().connections_words

    async def settle(self, change: Awaitable[object]) -> None:
        """Await an operation on a job. If it fails, the lease expires and the janitor returns the job."""
        try:
            await change
        except LeaseLost:
            return  # a different worker already has the job
        except ShoalError as error:
            self.report_error("recording the end of a job", error)

    def report_error(self, doing: str, error: Exception) -> None:
        """Report that the store cannot be reached. A full storage is reported only once, even if many jobs run into
        it."""
        if isinstance(error, StorageFull):
            self.storage.filled(error.storage, error.message)
            return
        self.signals.emit(StoreOutOfReach(node_id=self.node_id, doing=doing, error=str(error)))

    def report_gone(self, how: str, *, had_begun: bool = False) -> None:
        self.signals.emit(ChildGone(node_id=self.node_id, how=how, had_begun=had_begun))

    def report_lost(self, pid: int, lease: Lease, how: str) -> None:
        self.signals.emit(
            ChildLost(
                node_id=self.node_id,
                pid=pid,
                job_id=lease.fence.job_id,
                kind=lease.kind,
                run_id=lease.run_id,
                attempt=lease.attempts + 1,
                max_attempts=lease.max_attempts,
                how=how,
            )
        )

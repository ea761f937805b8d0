"""Watches full storage: jobs that need it are not leased until it has space again. Jobs that were stopped by it are
handed back without a counted attempt."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from shoal.base.clock import Clock
from shoal.base.errors import ShoalError
from shoal.base.signals import Signal, Signals

STORE = "store"
BODIES = "bodies"
KINDS = {BODIES: frozenset({"crawl"})}  # job kinds that need a storage; all kinds need the store
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 15.0  # before full storage is tried again


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
    it has no space. A storage that is full again soon after it was freed is tried less and less often, so that a job
    which needs more space than there is does not start over and over."""

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

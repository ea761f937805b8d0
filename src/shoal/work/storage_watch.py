"""Storage that is full: what needs it is not taken until there is room again. Jobs that met it are handed back at no
cost by the slots that had them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from shoal.base.clock import Clock
from shoal.base.errors import ShoalError
from shoal.base.signals import Signal, Signals

STORE = "store"
BODIES = "bodies"
KINDS = {BODIES: frozenset({"crawl"})}  # that need a storage; without the store there is no work at all
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0  # seconds before storage that was full is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFilled(Signal):
    """A storage has no room left: what needs it is not taken."""

    storage: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFreed(Signal):
    """A storage that was full has room again."""

    storage: str
    full_seconds: float


Check = Callable[[], Awaitable[None]]


class StorageWatch:
    """What is full, for all workers of one process. `checks` try the storage by its name: each raises while it has no
    room. One that is full again soon after it was freed is tried less and less often, so that work which needs more
    room than there is does not begin again and again."""

    def __init__(self, checks: Mapping[str, Check], clock: Clock, signals: Signals) -> None:
        self._checks = checks
        self._clock = clock
        self._signals = signals
        self._full: dict[str, str] = {}  # and why
        self._pauses: dict[str, float] = {}
        self._freed_at: dict[str, float] = {}
        self._waiting: set[asyncio.Task[None]] = set()

    @property
    def full(self) -> Mapping[str, str]:
        """The storage that is full, each with a sentence about it."""
        return self._full

    def allows(self, kind: str) -> bool:
        """Whether jobs of this kind may be taken now."""
        return not any(kind in KINDS.get(storage, (kind,)) for storage in self._full)

    def filled(self, storage: str, error: str) -> None:
        """Somebody found no room. May be said any number of times; it is told once."""
        storage = storage if storage in self._checks else STORE
        if storage in self._full:
            return
        self._full[storage] = error
        now = self._clock.monotonic()
        if now - self._freed_at.get(storage, -LONGEST_PAUSE) >= 2 * LONGEST_PAUSE:
            self._pauses[storage] = FIRST_PAUSE
        self._signals.emit(StorageFilled(storage=storage, error=error))
        waiting = asyncio.create_task(self._wait_for_room(storage, now), name=f"storage:{storage}")
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)

    def close(self) -> None:
        for waiting in self._waiting:
            waiting.cancel()

    async def _wait_for_room(self, storage: str, since: float) -> None:
        while not await self._has_room(storage):
            pass
        del self._full[storage]
        now = self._freed_at[storage] = self._clock.monotonic()
        self._signals.emit(StorageFreed(storage=storage, full_seconds=now - since))

    async def _has_room(self, storage: str) -> bool:
        pause = self._pauses.get(storage, FIRST_PAUSE)
        self._pauses[storage] = min(2 * pause, LONGEST_PAUSE)
        await self._clock.sleep(pause)
        try:
            if storage in self._checks:
                await self._checks[storage]()
        except ShoalError:  # still full, or away
            return False
        return True

"""What all slots of one worker share: who it is, its queue, where its children come from, how it tells of trouble."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from shoal.base.clock import Clock
from shoal.base.errors import LeaseLost, ShoalError, StorageFull
from shoal.base.signals import Signal, Signals
from shoal.queue.job import Lease
from shoal.queue.queue import Queue
from shoal.settings import WorkSettings
from shoal.work.child_process import ChildSpawner
from shoal.work.storage_watch import StorageWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLost(Signal):
    """A child died, or was killed for its silence, with a job in its hands."""

    node_id: str
    pid: int
    job_id: str
    run_id: str | None
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildGone(Signal):
    """A child ended with nothing in its hands: it could not begin, or it died while it waited for work."""

    node_id: str
    how: str
    had_begun: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOutOfReach(Signal):
    """The worker could not reach the store; it goes on trying."""

    node_id: str
    doing: str
    error: str


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One worker's own things. `holder` is how its leases name it, `config` how it was set up, to be read later."""

    node_id: str
    holder: str
    lanes: Sequence[str]
    kinds: Sequence[str]
    queue: Queue
    settings: WorkSettings
    clock: Clock
    signals: Signals
    nursery: ChildSpawner
    storage: StorageWatch
    config: str = "{}"

    async def settle(self, verb: Awaitable[object]) -> None:
        """Wait for a verb of the queue. Whatever it cannot do now, time does: leases run out."""
        try:
            await verb
        except LeaseLost:
            return  # somebody else has the job already
        except ShoalError as error:
            self.tell_unreachable("settling a job", error)  # its lease runs out, and the janitor puts it back

    def tell_unreachable(self, doing: str, error: Exception) -> None:
        if isinstance(error, StorageFull):  # told once, however many find it so
            self.storage.filled(error.storage, error.message)
            return
        self.signals.emit(StoreOutOfReach(node_id=self.node_id, doing=doing, error=str(error)))

    def tell_gone(self, how: str, *, had_begun: bool = False) -> None:
        self.signals.emit(ChildGone(node_id=self.node_id, how=how, had_begun=had_begun))

    def tell_lost(self, pid: int, lease: Lease, how: str) -> None:
        job_id, run_id = lease.holder.job_id, lease.run_id
        self.signals.emit(ChildLost(node_id=self.node_id, pid=pid, job_id=job_id, run_id=run_id, how=how))

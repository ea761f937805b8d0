"""The context shared by the parts of one worker: its identity, queue, settings, child spawner and error reporting."""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from shoal.base.clock import Clock
from shoal.base.errors import LeaseLost, ShoalError, StorageFull
from shoal.base.settings import CrawlSettings, WorkSettings
from shoal.base.signals import Signal, Signals
from shoal.queue.job import Lease
from shoal.queue.queue import Queue
from shoal.work.child_handle import ChildSpawner
from shoal.work.storage_watch import StorageWatch


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
    """A child ended without a job: it could not start, or it died while it waited for work."""

    node_id: str
    how: str
    had_begun: bool


class StoreOutOfReach(Signal, frozen=True, kw_only=True):
    """The worker could not reach the store; it keeps trying."""

    node_id: str
    doing: str
    error: str


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The identity and the collaborators of one worker. Its leases are held under the name `holder`; `config` is the
    configuration recorded with each job; `page_slots` is how many page jobs it runs at once."""

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

    async def settle(self, change: Awaitable[object]) -> None:
        """Await an operation on a job. If it fails, the lease expires and the janitor returns the job."""
        try:
            await change
        except LeaseLost:
            return  # another worker has the job already
        except ShoalError as error:
            self.report_error("recording the end of a job", error)

    def report_error(self, doing: str, error: Exception) -> None:
        """Report that the store cannot be reached. A full storage is reported once, however many jobs run into it."""
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

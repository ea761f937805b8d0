"""A worker as a node of the fleet: measures its status for the control plane, and applies commands to it."""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from shoal import __version__
from shoal.base.clock import Clock
from shoal.base.errors import ShoalError
from shoal.base.machine import ProcessUsage, usage
from shoal.base.settings import WorkSettings
from shoal.fleet.node import CommandAck, NodeCommand, NodeStatus
from shoal.fleet.states import CommandState, NodeState
from shoal.queue.job import HTTP, JS
from shoal.work.worker import Worker, WorkerState

_STATES = {
    WorkerState.RUNNING: NodeState.CONNECTED,
    WorkerState.PAUSED: NodeState.PAUSED,
    WorkerState.DRAINING: NodeState.DRAINING,
    WorkerState.DRAINED: NodeState.DRAINED,
    WorkerState.STOPPING: NodeState.DRAINING,
}


class BrowserSource(StrEnum):
    """The place where a node renders pages. The value is the reason why its browsers cannot be restarted."""

    LOCAL = ""  # in browsers that its children start
    SERVICE = "this node has no local browsers: the service at RENDERER_URL renders its pages"
    NONE = "this node has no browser: neither Chromium nor RENDERER_URL"


@dataclass(frozen=True, slots=True)
class NodeRendering:
    """The place where a node renders pages, and how many at the same time."""

    source: BrowserSource = BrowserSource.NONE
    slots: int = 0

    @property
    def capabilities(self) -> tuple[str, ...]:
        return (HTTP,) if self.source is BrowserSource.NONE else (HTTP, JS)


NO_RENDERING = NodeRendering()


class NodeAgent:
    """The node of one worker. `worker` returns the current worker, because a failed worker is replaced; `lane_depth`
    returns the number of jobs in the node's private lane."""

    def __init__(
        self,
        worker: Callable[[], Worker],
        lane_depth: Callable[[], Awaitable[int]],
        settings: WorkSettings,
        *,
        clock: Clock,
        is_proxy_mode: bool = False,
        rendering: NodeRendering = NO_RENDERING,
    ) -> None:
        self._worker = worker
        self._lane_depth = lane_depth
        self._settings = settings
        self._clock = clock
        self._is_proxy_mode = is_proxy_mode
        self._rendering = rendering
        self.on_change: Callable[[], None] = lambda: None  # called if the worker's state changes without a command
        self._instance = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._started_at = clock.monotonic()
        self._used: tuple[float, ProcessUsage] = (self._started_at, usage())
        self._depth = 0
        self._draining: asyncio.Task[None] | None = None

    @property
    def is_stopping(self) -> bool:
        return self._worker().status.state is WorkerState.STOPPING

    async def measure(self) -> NodeStatus:
        """Return the status of the worker now."""
        with suppress(ShoalError):  # without the store, keep the last depth; the outage is reported elsewhere
            self._depth = await self._lane_depth()
        worker, now = self._worker(), self._clock.monotonic()
        status, (recent, success_rate, latency) = worker.status, worker.tasks.recent()
        cpu_percent, memory = await asyncio.to_thread(self._usage, now)
        return NodeStatus(
            max_concurrency=status.run_capacity,
            active_tasks=status.active_runs,
            queue_depth=self._depth,
            success_rate=success_rate,
            avg_latency_seconds=latency,
            is_proxy_mode=self._is_proxy_mode,
            uptime_seconds=int(now - self._started_at),
            total_processed=worker.tasks.total,
            sent_at=int(self._clock.now().timestamp()),
            instance=self._instance,
            state=_STATES[status.state],
            version=__version__,
            capabilities=self._rendering.capabilities,
            page_slots=status.page_capacity,
            active_pages=status.active_pages,
            cpu_percent=cpu_percent,
            memory_bytes=memory,
            browsers=status.browsers,
            browser_pages=status.browser_pages,
            browser_slots=self._rendering.slots,
            held_leases=tuple((fence.job_id, fence.epoch) for fence in worker.held()),
            recent_tasks=recent,
            rate_limit=worker.rate or 0.0,
        )

    async def apply(self, command: NodeCommand) -> CommandAck:
        """Apply a command to the worker."""
        try:
            state, detail = await self._apply(command)
        except ShoalError as error:
            state, detail = CommandState.FAILED, error.message
        return CommandAck(command.id, state, detail)

    async def _apply(self, command: NodeCommand) -> tuple[CommandState, str]:
        worker = self._worker()
        match command.command:
            case "pause":
                worker.pause()
            case "resume":
                worker.resume()
            case "drain":
                if self._draining is None or self._draining.done():
                    self._draining = asyncio.create_task(self._drain(worker))
            case "config_update":
                worker.resize(runs=command.max_concurrency, pages=command.page_slots)
                if command.rate_limit is not None:
                    worker.set_rate(command.rate_limit or None)
            case "restart_browser":
                return await self._restart_browsers(worker)
        return CommandState.APPLIED, ""

    async def _restart_browsers(self, worker: Worker) -> tuple[CommandState, str]:
        source, count = self._rendering.source, worker.status.browsers
        if source is not BrowserSource.LOCAL:
            return CommandState.UNSUPPORTED, source.value
        if problems := await worker.restart_browsers():
            return CommandState.FAILED, "; ".join(problems)
        return CommandState.APPLIED, "" if count else "no browser was running: the next page that needs one starts it"

    async def _drain(self, worker: Worker) -> None:
        """Drain the worker within the grace period of a shutdown; if jobs have not ended by then, the worker continues
        to drain."""
        await worker.drain(self._settings.shutdown_grace)
        self.on_change()

    def _usage(self, now: float) -> tuple[float, int]:
        """Return the percentage of one core that was used since the last report, and the memory in use."""
        (since, before), used = self._used, usage()
        self._used = now, used
        # A child whose exit is being collected may be missing from both sums for a moment.
        seconds = max(0.0, used.cpu_seconds - before.cpu_seconds)
        return 100 * seconds / (now - since) if now > since else 0.0, used.memory_bytes

"""Translation between wire messages of the control plane and the values of this package. What a node reports is
untrusted: it is checked here, and nowhere else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from shoal.base.errors import InvalidInput
from shoal.base.ids import NodeId
from shoal.base.text import storable
from shoal.fleet.node import MOST_PAGES, MOST_RUNS, CommandAck, NodeCommand, NodeStatus
from shoal.fleet.nodes import check_node_id
from shoal.fleet.states import CommandState, NodeState
from shoal.fleet.wire.control_pb2 import (
    Acknowledgement,
    ConfigUpdate,
    ControlCommand,
    CrawlerStatus,
    DrainCommand,
    HeldLease,
    PauseCommand,
    RestartBrowserCommand,
    ResumeCommand,
)
from shoal.queue.job import HTTP

INFINITY = float("inf")
LONGEST_TEXT = 100  # characters of any text but a detail
LONGEST_DETAIL = 500
MOST_CAPABILITIES = 100
LONGEST_HEARTBEAT = 600.0  # seconds
LISTED = 1000  # held leases that a status message lists at most, to stay below the size limit of a message

_COUNTS = (
    "active_tasks",
    "queue_depth",
    "uptime_sec",
    "total_processed",
    "timestamp",
    "page_slots",
    "active_pages",
    "memory_bytes",
    "browsers",
    "browser_pages",
    "browser_slots",
    "recent_tasks",
)
_MEASURES = ("success_rate", "avg_latency_sec", "cpu_percent", "rate_limit", "heartbeat_seconds")
# By the names that workers use for their own states; one that is about to exit takes no more jobs.
_STATES = {
    "running": NodeState.CONNECTED,
    "paused": NodeState.PAUSED,
    "draining": NodeState.DRAINING,
    "drained": NodeState.DRAINED,
    "stopping": NodeState.DRAINING,
}
_NAMES = {
    NodeState.CONNECTED: "running",
    NodeState.PAUSED: "paused",
    NodeState.DRAINING: "draining",
    NodeState.DRAINED: "drained",
    NodeState.LOST: "running",
}
_RESULTS = {state.value: state for state in (CommandState.APPLIED, CommandState.UNSUPPORTED, CommandState.FAILED)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusUpdate:
    """One status message of a node. `heartbeat_every` is the node's own interval; None: it did not say."""

    node_id: NodeId
    status: NodeStatus
    acks: Sequence[CommandAck] = ()
    heartbeat_every: timedelta | None = None


def read_status_update(message: CrawlerStatus) -> StatusUpdate:
    """Check a status message; raise `InvalidInput` with the name of the field that is wrong."""
    node_id = check_node_id(message.node_id)
    for name in _COUNTS:
        if (count := getattr(message, name)) < 0:
            raise InvalidInput(name, f"is {count}", "report a number that is not negative")
    for name in _MEASURES:
        if not 0 <= (measure := getattr(message, name)) < INFINITY:  # also refuses NaN
            raise InvalidInput(name, f"is {measure}", "report a finite number that is not negative")
    if not 1 <= message.max_concurrency <= MOST_RUNS:
        problem = f"is {message.max_concurrency}"
        raise InvalidInput(
            "max_concurrency", problem, f"report how many runs it takes at the same time, 1 to {MOST_RUNS}"
        )
    if message.page_slots > MOST_PAGES:
        raise InvalidInput("page_slots", f"is {message.page_slots}", f"report at most {MOST_PAGES}")
    if len(message.capabilities) > MOST_CAPABILITIES:
        raise InvalidInput("capabilities", f"has {len(message.capabilities)} items", f"use {MOST_CAPABILITIES}")
    _check_texts("instance", [message.instance])
    _check_texts("version", [message.version])
    _check_texts("state", [message.state])
    _check_texts("capabilities", message.capabilities)
    _check_texts("held_leases.job_id", [lease.job_id for lease in message.held_leases])
    _check_texts("acknowledged.command_id", [ack.command_id for ack in message.acknowledged])
    every = message.heartbeat_seconds
    return StatusUpdate(
        node_id=node_id,
        status=_status(message),
        acks=[_ack(ack) for ack in message.acknowledged],
        heartbeat_every=timedelta(seconds=min(every, LONGEST_HEARTBEAT)) if every > 0 else None,
    )


def _check_texts(name: str, texts: Iterable[str]) -> None:
    """Refuse text that not every store can hold. Protocol buffers refuse lone surrogates themselves."""
    for text in texts:
        if len(text) > LONGEST_TEXT:
            raise InvalidInput(name, "is too long", f"use at most {LONGEST_TEXT} characters")
        if "\0" in text:
            raise InvalidInput(name, "contains a NUL character", "leave it out")


def _status(message: CrawlerStatus) -> NodeStatus:
    state = _STATES.get(message.state, NodeState.CONNECTED)
    if message.is_draining and state is not NodeState.DRAINED:
        state = NodeState.DRAINING
    return NodeStatus(
        max_concurrency=message.max_concurrency,
        active_tasks=message.active_tasks,
        queue_depth=message.queue_depth,
        # Nothing is known about a node before its first task: it counts as good.
        success_rate=min(message.success_rate, 1.0) if message.total_processed else 1.0,
        avg_latency_seconds=message.avg_latency_sec,
        is_proxy_mode=message.is_proxy_mode,
        uptime_seconds=message.uptime_sec,
        total_processed=message.total_processed,
        sent_at=message.timestamp,
        instance=message.instance,
        state=state,
        version=message.version,
        capabilities=tuple(message.capabilities) or (HTTP,),
        page_slots=message.page_slots,
        active_pages=message.active_pages,
        cpu_percent=message.cpu_percent,
        memory_bytes=message.memory_bytes,
        browsers=message.browsers,
        browser_pages=message.browser_pages,
        browser_slots=message.browser_slots,
        held_leases=tuple([(lease.job_id, lease.epoch) for lease in message.held_leases[:LISTED]]),
        recent_tasks=message.recent_tasks,
        rate_limit=message.rate_limit,
    )


def _ack(ack: Acknowledgement) -> CommandAck:
    state = _RESULTS.get(ack.result)
    if state is None:
        raise InvalidInput("acknowledged.result", f"is {ack.result[:80]!r}", f"use one of {', '.join(_RESULTS)}")
    return CommandAck(ack.command_id, state, storable(ack.detail[:LONGEST_DETAIL]))


def status_message(update: StatusUpdate, *, stopping: bool = False) -> CrawlerStatus:
    """Return the status message of a node."""
    status, every = update.status, update.heartbeat_every
    return CrawlerStatus(
        node_id=update.node_id,
        max_concurrency=status.max_concurrency,
        active_tasks=status.active_tasks,
        queue_depth=status.queue_depth,
        success_rate=status.success_rate,
        avg_latency_sec=status.avg_latency_seconds,
        is_proxy_mode=status.is_proxy_mode,
        is_draining=status.is_draining or stopping,
        uptime_sec=status.uptime_seconds,
        total_processed=status.total_processed,
        timestamp=status.sent_at,
        instance=status.instance,
        state="stopping" if stopping else _NAMES[status.state],
        version=status.version,
        capabilities=status.capabilities,
        page_slots=status.page_slots,
        active_pages=status.active_pages,
        cpu_percent=status.cpu_percent,
        memory_bytes=status.memory_bytes,
        browsers=status.browsers,
        browser_pages=status.browser_pages,
        browser_slots=status.browser_slots,
        held_leases=[HeldLease(job_id=job_id, epoch=epoch) for job_id, epoch in status.held_leases[:LISTED]],
        acknowledged=[
            Acknowledgement(command_id=ack.command_id, result=ack.state.value, detail=ack.detail[:LONGEST_DETAIL])
            for ack in update.acks
        ],
        recent_tasks=status.recent_tasks,
        rate_limit=status.rate_limit,
        heartbeat_seconds=0.0 if every is None else every.total_seconds(),
    )


def command_message(command: NodeCommand) -> ControlCommand:
    """Return the message of a command. On the wire, zero means unchanged."""
    message = ControlCommand(command_id=command.id)
    match command.command:
        case "config_update":
            message.config_update.CopyFrom(
                ConfigUpdate(
                    max_concurrency=command.max_concurrency or 0,
                    rate_limit=command.rate_limit or 0.0,
                    page_slots=command.page_slots or 0,
                    unlimited_rate=command.rate_limit == 0,
                )
            )
        case "pause":
            message.pause.CopyFrom(PauseCommand(reason=command.reason))
        case "resume":
            message.resume.CopyFrom(ResumeCommand())
        case "drain":
            message.drain.CopyFrom(DrainCommand(reason=command.reason))
        case "restart_browser":
            message.restart_browser.CopyFrom(RestartBrowserCommand(reason=command.reason))
    return message


def read_command(node_id: NodeId, message: ControlCommand) -> NodeCommand | None:
    """Return the command of a message; None if it has none, or one that this version does not know."""
    match message.WhichOneof("command"):
        case "config_update":
            update = message.config_update
            return NodeCommand(
                id=message.command_id,
                node_id=node_id,
                command="config_update",
                max_concurrency=update.max_concurrency or None,
                page_slots=update.page_slots or None,
                rate_limit=0.0 if update.unlimited_rate else update.rate_limit or None,
            )
        case "pause":
            return NodeCommand(id=message.command_id, node_id=node_id, command="pause", reason=message.pause.reason)
        case "resume":
            return NodeCommand(id=message.command_id, node_id=node_id, command="resume")
        case "drain":
            return NodeCommand(id=message.command_id, node_id=node_id, command="drain", reason=message.drain.reason)
        case "restart_browser":
            reason = message.restart_browser.reason
            return NodeCommand(id=message.command_id, node_id=node_id, command="restart_browser", reason=reason)
        case _:
            return None

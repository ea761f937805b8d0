"""Translation between wire messages of the control plane and the values of this package. Reports of nodes are
untrusted, and are checked only here."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

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
    HeldLease,
)
from shoal.queue.job import HTTP

INFINITY = float("inf")
LONGEST_TEXT = 100  # maximum length, in characters, of all texts except `detail`
LONGEST_DETAIL = 500
MOST_CAPABILITIES = 100
LONGEST_HEARTBEAT = 600.0  # seconds
LISTED = 1000  # maximum number of held leases in a status message, to stay below the size limit of messages

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
_OUR_NAMES = {"avg_latency_sec": "avg_latency_seconds", "uptime_sec": "uptime_seconds", "timestamp": "sent_at"}
_OTHERS = ("max_concurrency", "avg_latency_sec", "cpu_percent", "rate_limit", "is_proxy_mode", "instance", "version")
_PLAIN = {name: _OUR_NAMES.get(name, name) for name in (*_COUNTS, *_OTHERS)}  # fields that are passed on unchanged
# Node states by the names that workers use for their own states. A worker that is about to exit counts as draining,
# because it takes no more jobs.
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
    """One status message of a node. `heartbeat_every` is the node's own interval; None if the node did not report
    it."""

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
        if not 0 <= (measure := getattr(message, name)) < INFINITY:  # this condition also refuses NaN
            raise InvalidInput(name, f"is {measure}", "report a finite number that is not negative")
    if not 1 <= message.max_concurrency <= MOST_RUNS:
        problem = f"is {message.max_concurrency}"
        raise InvalidInput(
            "max_concurrency", problem, f"report how many runs the node accepts at the same time, from 1 to {MOST_RUNS}"
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
    """Refuse texts that some stores cannot hold. Lone surrogates are already refused by Protocol Buffers."""
    for text in texts:
        if len(text) > LONGEST_TEXT:
            raise InvalidInput(name, "is too long", f"use at most {LONGEST_TEXT} characters")
        if "\0" in text:
            raise InvalidInput(name, "contains a NUL character", "leave it out")


def _status(message: CrawlerStatus) -> NodeStatus:
    state = _STATES.get(message.state, NodeState.CONNECTED)
    if message.is_draining and state is not NodeState.DRAINED:
        state = NodeState.DRAINING
    plain: dict[str, Any] = {ours: getattr(message, theirs) for theirs, ours in _PLAIN.items()}
    return NodeStatus(
        **plain,
        # Before its first task, nothing is known about a node, so its success rate counts as 1.
        success_rate=min(message.success_rate, 1.0) if message.total_processed else 1.0,
        state=state,
        capabilities=tuple(message.capabilities) or (HTTP,),
        held_leases=tuple([(lease.job_id, lease.epoch) for lease in message.held_leases[:LISTED]]),
    )


def _ack(ack: Acknowledgement) -> CommandAck:
    state = _RESULTS.get(ack.result)
    if state is None:
        raise InvalidInput("acknowledged.result", f"is {ack.result[:80]!r}", f"use one of {', '.join(_RESULTS)}")
    return CommandAck(ack.command_id, state, storable(ack.detail[:LONGEST_DETAIL]))


def status_message(update: StatusUpdate, *, stopping: bool = False) -> CrawlerStatus:
    """Return the status message of a node."""
    status, every = update.status, update.heartbeat_every
    plain: dict[str, Any] = {theirs: getattr(status, ours) for theirs, ours in _PLAIN.items()}
    return CrawlerStatus(
        **plain,
        node_id=update.node_id,
        success_rate=status.success_rate,
        is_draining=status.is_draining or stopping,
        state="stopping" if stopping else _NAMES[status.state],
        capabilities=status.capabilities,
        held_leases=[HeldLease(job_id=job_id, epoch=epoch) for job_id, epoch in status.held_leases[:LISTED]],
        acknowledged=[
            Acknowledgement(command_id=ack.command_id, result=ack.state.value, detail=ack.detail[:LONGEST_DETAIL])
            for ack in update.acks
        ],
        heartbeat_seconds=0.0 if every is None else every.total_seconds(),
    )


def command_message(command: NodeCommand) -> ControlCommand:
    """Return the message for a command. In the message, zero means unchanged."""
    message = ControlCommand(command_id=command.id)
    if command.command == "config_update":
        message.config_update.CopyFrom(
            ConfigUpdate(
                max_concurrency=command.max_concurrency or 0,
                rate_limit=command.rate_limit or 0.0,
                page_slots=command.page_slots or 0,
                unlimited_rate=command.rate_limit == 0,
            )
        )
        return message
    part = getattr(message, command.command)
    part.SetInParent()
    if command.command != "resume":
        part.reason = command.reason
    return message


def read_command(node_id: NodeId, message: ControlCommand) -> NodeCommand | None:
    """Return the command in a message; None if the message has no command, or a command that this version does not
    know."""
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
        case "pause" | "drain" | "restart_browser" as name:
            reason = getattr(message, name).reason
            return NodeCommand(id=message.command_id, node_id=node_id, command=name, reason=reason)
        case "resume":
            return NodeCommand(id=message.command_id, node_id=node_id, command="resume")
        case _:
            return None

"""The values that describe nodes: their reports, their health, and their commands."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from msgspec import Struct, structs

from shoal.base.errors import InvalidInput
from shoal.base.ids import NodeId, new_id
from shoal.fleet.states import CommandState, NodeState
from shoal.queue.job import HTTP

SUCCESS, LOAD, LATENCY, DEPTH = 0.4, 0.3, 0.2, 0.1  # the weights of the parts
SLOWEST_SECONDS = 300.0  # an average latency of this or more scores 0
DEEPEST = 20  # this number of waiting jobs or more scores 0


@dataclass(frozen=True, slots=True)
class HealthScore:
    """The parts of a health score before they are weighted, and the score itself. A node that is draining or lost
    scores 0, whatever its parts are."""

    success: float
    load: float
    latency: float
    depth: float
    scores: bool = True

    @property
    def weighted(self) -> dict[str, float]:
        """The weighted parts, whose sum is the score."""
        parts = {
            "success": SUCCESS * self.success,
            "load": LOAD * self.load,
            "latency": LATENCY * self.latency,
            "depth": DEPTH * self.depth,
        }
        return parts if self.scores else dict.fromkeys(parts, 0.0)

    @property
    def value(self) -> float:
        if not self.scores:
            return 0.0
        return SUCCESS * self.success + LOAD * self.load + LATENCY * self.latency + DEPTH * self.depth


def score(
    *,
    success_rate: float,
    active: int,
    most: int,
    latency_seconds: float,
    depth: int,
    draining: bool = False,
) -> HealthScore:
    """Rate a node that runs `active` of `most` tasks and has `depth` jobs waiting in its lane."""
    return HealthScore(
        success=_part(success_rate),
        load=_part(1 - active / most) if most > 0 else 0.0,
        latency=_part(1 - latency_seconds / SLOWEST_SECONDS),
        depth=_part(1 - depth / DEEPEST),
        scores=not draining,
    )


def _part(value: float) -> float:
    """Clamp a part to [0, 1]. NaN counts as 0, because then nothing good is known about that part."""
    return min(max(value, 0.0), 1.0) if value == value else 0.0


MOST_HALVED = 20  # the share of a node is halved at most this many times; it then gets one of a million jobs
MISSED = 3  # number of missed heartbeats after which a node is lost

CommandName = Literal["config_update", "pause", "resume", "drain", "restart_browser"]
DesiredStateName = Literal["connected", "paused", "drained"]


class NodeStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last status that a node reported. A client that knows only the oldest fields reports no `instance` and no
    `page_slots`, and acknowledges no commands."""

    max_concurrency: int
    active_tasks: int = 0
    queue_depth: int = 0
    success_rate: float = 1.0
    avg_latency_seconds: float = 0.0
    is_proxy_mode: bool = False
    uptime_seconds: int = 0
    total_processed: int = 0
    sent_at: int = 0  # Unix seconds, by the node's clock
    instance: str = ""
    state: NodeState = NodeState.CONNECTED
    version: str = ""
    capabilities: tuple[str, ...] = (HTTP,)
    page_slots: int = 0
    active_pages: int = 0
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    browsers: int = 0
    browser_pages: int = 0
    browser_slots: int = 0  # number of pages that its browsers can render at the same time
    held_leases: tuple[tuple[str, int], ...] = ()  # job id and epoch
    recent_tasks: int = 0
    rate_limit: float = 0.0

    @property
    def is_draining(self) -> bool:
        return self.state in (NodeState.DRAINING, NodeState.DRAINED)

    @property
    def acknowledges(self) -> bool:
        """Return whether the node acknowledges commands. Clients that report their instance do."""
        return bool(self.instance)

    def health(self, depth: int) -> HealthScore:
        """Rate the node, given the number of jobs in its lane. Its load is the load of its busier kind of slots."""
        active, most = self.active_tasks, self.max_concurrency
        if self.page_slots and self.active_pages * most > active * self.page_slots:
            active, most = self.active_pages, self.page_slots
        return score(
            success_rate=self.success_rate,
            active=active,
            most=most,
            latency_seconds=self.avg_latency_seconds,
            depth=depth,
            draining=self.is_draining,
        )


class DesiredState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state and limits that operators want a node to have. They are stored, and sent again whenever the node
    connects. A field is None if the node keeps the value with which it was started."""

    state: DesiredStateName = "connected"
    reason: str = ""
    max_concurrency: int | None = None
    page_slots: int | None = None
    rate_limit: float | None = None  # pages per second; 0 means unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as stored. Times are UTC microseconds by the store's clock; `seen_at` is the store's time when the node
    was read."""

    id: NodeId
    state: NodeState
    session_epoch: int  # increases with each session
    controller: str | None  # the controller that has the node's session; None if the node has no session
    address: str
    status: NodeStatus
    desired: DesiredState
    heartbeat_every: timedelta
    connected_at: int
    heartbeat_at: int
    lost_at: int | None
    seen_at: int
    run_depth: int = 0  # due runs in its lane
    page_depth: int = 0  # due page jobs in its lane
    browser_depth: int = 0  # due page jobs in its lane that need a browser
    # Sweeps, since the node's last lease, that found an offer which the node had not taken in time.
    lapsed_offers: int = 0

    @property
    def depth(self) -> int:
        return self.run_depth + self.page_depth

    @property
    def health(self) -> HealthScore:
        """The health score according to the node's last report; 0 once the node is lost."""
        found = self.status.health(self.depth)
        return replace(found, scores=False) if self.state is NodeState.LOST else found

    @property
    def trust(self) -> float:
        """The fraction of its dispatch share that the node gets. It is halved each time that the node lets offers
        lapse."""
        return 0.5 ** min(self.lapsed_offers, MOST_HALVED)

    @property
    def takes_jobs(self) -> bool:
        """Return whether jobs may be dispatched to the node: it is connected and has a session, and no operator has
        paused or drained it. A pause or drain counts even before the command has reached the node."""
        return self.state is NodeState.CONNECTED and self.controller is not None and self.desired.state == "connected"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session that begins: the node, the controller that has the session, and the node's first report."""

    node_id: NodeId
    controller: str
    address: str
    heartbeat_every: timedelta
    status: NodeStatus


def is_same_process(instance: str, earlier: str) -> bool:
    """Return whether the process that registers now also had the earlier session. A client without an instance may be
    the same process, but two such clients cannot be distinguished."""
    return bool(instance) and instance == earlier


@dataclass(frozen=True, slots=True)
class SessionBegun:
    """The outcome of a registration: the epoch of the session, the desired state of the node, and whether a session of
    a different instance was displaced."""

    epoch: int
    desired: DesiredState
    displaced: bool


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The newest status of a session, which is to be stored."""

    node_id: NodeId
    epoch: int
    status: NodeStatus
    heartbeat_every: timedelta


class NodeCommand(Struct, frozen=True, kw_only=True):
    """A command for a node. `result` is the node's response."""

    id: str
    node_id: NodeId
    command: CommandName
    reason: str = ""
    max_concurrency: int | None = None
    page_slots: int | None = None
    rate_limit: float | None = None
    state: CommandState = CommandState.WAITING
    detail: str = ""
    created_at: int = 0
    created_by: str = ""
    sent_at: int | None = None
    ended_at: int | None = None


@dataclass(frozen=True, slots=True)
class CommandAck:
    """A node's response to a command."""

    command_id: str
    state: CommandState
    detail: str = ""


MOST_RUNS = 1000  # maximum number of runs at the same time on one node
MOST_PAGES = 10_000
HIGHEST_RATE = 1_000_000.0  # pages per second
LONGEST_REASON = 500

_STATE_AFTER: dict[CommandName, DesiredStateName] = {"pause": "paused", "resume": "connected", "drain": "drained"}


class CommandRequest(Struct, frozen=True, kw_only=True):
    """A request to send a command. Only `config_update` has values, and it needs at least one value."""

    command: CommandName
    reason: str = ""
    max_concurrency: int | None = None
    page_slots: int | None = None
    rate_limit: float | None = None  # pages per second
    unlimited_rate: bool = False  # whether to remove the rate limit

    def check(self) -> None:
        """Raise `InvalidInput` if a value cannot be applied. Here, an explicit 0 never means unchanged."""
        values = (self.max_concurrency, self.page_slots, self.rate_limit, self.unlimited_rate or None)
        given = any(value is not None for value in values)
        if self.command != "config_update" and given:
            raise InvalidInput("command", f"`{self.command}` takes no values", "send them with `config_update`")
        if self.command == "config_update" and not given:
            fix = "set max_concurrency, page_slots, rate_limit or unlimited_rate"
            raise InvalidInput("command", "`config_update` changes nothing", fix)
        _within("max_concurrency", self.max_concurrency, 1, MOST_RUNS)
        _within("page_slots", self.page_slots, 1, MOST_PAGES)
        if self.rate_limit is not None and not 0 < self.rate_limit <= HIGHEST_RATE:  # also refuses NaN
            fix = f"use more than 0 and at most {HIGHEST_RATE:g} pages per second, or remove the limit"
            raise InvalidInput("rate_limit", f"cannot be {self.rate_limit:g}", fix)
        if self.unlimited_rate and self.rate_limit is not None:
            raise InvalidInput("rate_limit", "contradicts unlimited_rate", "set one of the two")
        if len(self.reason) > LONGEST_REASON:
            raise InvalidInput("reason", f"is longer than {LONGEST_REASON} characters", "shorten it")

    def for_node(self, node_id: NodeId, by: str) -> NodeCommand:
        """Return this command for one node, with a new id."""
        return NodeCommand(
            id=new_id("cmd"),
            node_id=node_id,
            command=self.command,
            reason=self.reason,
            max_concurrency=self.max_concurrency,
            page_slots=self.page_slots,
            rate_limit=0.0 if self.unlimited_rate else self.rate_limit,
            created_by=by,
        )


def _within(field: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise InvalidInput(field, f"cannot be {value}", f"use a number from {least} to {most}")


def desired_after(desired: DesiredState, command: NodeCommand) -> DesiredState:
    """Return the desired state of a node after this command. A browser restart is not a state, so it does not become
    part of the desired state."""
    if command.command == "config_update":
        names = ("max_concurrency", "page_slots", "rate_limit")
        values = {name: getattr(command, name) for name in names if getattr(command, name) is not None}
        return structs.replace(desired, **values)
    state = _STATE_AFTER.get(command.command)
    return desired if state is None else structs.replace(desired, state=state, reason=command.reason)


def commands_to_reach(node_id: NodeId, desired: DesiredState) -> list[NodeCommand]:
    """Return the commands that bring a node into its desired state. They are sent when a session begins, and have no
    id, so they are not acknowledged. The command for the state comes last, because a node should know its limits before
    it takes jobs."""
    commands = []
    if (desired.max_concurrency, desired.page_slots, desired.rate_limit) != (None, None, None):
        commands.append(
            NodeCommand(
                id="",
                node_id=node_id,
                command="config_update",
                max_concurrency=desired.max_concurrency,
                page_slots=desired.page_slots,
                rate_limit=desired.rate_limit,
            )
        )
    if desired.state != "connected":
        name: CommandName = "pause" if desired.state == "paused" else "drain"
        commands.append(NodeCommand(id="", node_id=node_id, command=name, reason=desired.reason))
    return commands

"""Nodes: what they report, what operators want of them, and what is stored about them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

from msgspec import Struct

from shoal.base.ids import NodeId
from shoal.fleet.health import HealthScore, score
from shoal.fleet.states import CommandState, NodeState
from shoal.queue.job import HTTP

MOST_HALVED = 20  # times that the share of a node is halved: then it gets one job of a million
MISSED = 3  # heartbeats after which a node is lost

CommandName = Literal["config_update", "pause", "resume", "drain", "restart_browser"]
DesiredStateName = Literal["connected", "paused", "drained"]


class NodeStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status that a node reported last. A client that knows only the oldest fields has no `instance`, no
    `page_slots` and acknowledges nothing."""

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
    browser_slots: int = 0  # pages in browsers at once
    held_leases: tuple[tuple[str, int], ...] = ()  # job id and epoch
    recent_tasks: int = 0
    rate_limit: float = 0.0

    @property
    def is_draining(self) -> bool:
        return self.state in (NodeState.DRAINING, NodeState.DRAINED)

    @property
    def acknowledges(self) -> bool:
        """Return whether it acknowledges commands: clients that name their instance do."""
        return bool(self.instance)

    def health(self, depth: int) -> HealthScore:
        """Rate the node, given the number of jobs in its lane. Its load is that of the busier kind of its slots."""
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
    """The state and limits that operators want a node to have: stored, and sent again whenever the node connects; None:
    as it was started."""

    state: DesiredStateName = "connected"
    reason: str = ""
    max_concurrency: int | None = None
    page_slots: int | None = None
    rate_limit: float | None = None  # pages per second; 0: unlimited


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as stored. Times are UTC microseconds by the store's clock; `seen_at` is that clock when it was read."""

    id: NodeId
    state: NodeState
    session_epoch: int  # rises with each session
    controller: str | None  # the controller that has the node's session; None without one
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
    browser_depth: int = 0  # those of them that need a browser
    lapsed_offers: int = 0  # sweeps that found offers which it did not take in time, since it last leased a job

    @property
    def depth(self) -> int:
        return self.run_depth + self.page_depth

    @property
    def health(self) -> HealthScore:
        """Its score by its last report; 0 once it is lost."""
        found = self.status.health(self.depth)
        return replace(found, scores=False) if self.state is NodeState.LOST else found

    @property
    def trust(self) -> float:
        """How much of its share of the dispatch it gets: half as much for each time that it let offers lapse."""
        return 0.5 ** min(self.lapsed_offers, MOST_HALVED)

    @property
    def takes_jobs(self) -> bool:
        """Return whether jobs may be dispatched to it: it is connected, has a session, and no operator has paused or
        drained it, even if the command has not reached it yet."""
        return self.state is NodeState.CONNECTED and self.controller is not None and self.desired.state == "connected"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session that begins: the node, the controller that has it, and what the node reported first."""

    node_id: NodeId
    controller: str
    address: str
    heartbeat_every: timedelta
    status: NodeStatus


@dataclass(frozen=True, slots=True)
class EarlierSession:
    """The last session of a node before a new one: which process had it, and on which controller; None if it was
    over."""

    instance: str
    controller: str | None

    def is_displaced_by(self, instance: str) -> bool:
        """Return whether a process that registers now takes the node away from another one. A client without an
        instance may be the same process again, but two of them cannot be told apart."""
        return self.controller is not None and (not instance or self.instance != instance)


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as the store began it: its epoch, what operators want of the node, and the session before it."""

    epoch: int
    desired: DesiredState
    earlier: EarlierSession | None


@dataclass(frozen=True, slots=True)
class SessionBegun:
    """The outcome of a registration: the epoch of the session, what operators want of the node, and whether a
    session of another instance was displaced."""

    epoch: int
    desired: DesiredState
    displaced: bool


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The newest status of a session, to be stored."""

    node_id: NodeId
    epoch: int
    status: NodeStatus
    heartbeat_every: timedelta


class NodeCommand(Struct, frozen=True, kw_only=True):
    """A command for a node. `result` is what the node said about it."""

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
    """A node's answer to a command."""

    command_id: str
    state: CommandState
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DispatchCandidate:
    """A node that was considered for a job, and why it was not eligible (empty: it was)."""

    node_id: NodeId
    score: float
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class DispatchDecision:
    """Why a job went to a lane: the node (None: the shared lane), `weighted_random` by health score, `no_room` on any
    node, how many nodes took jobs, and the best candidates."""

    node_id: NodeId | None
    reason: str
    nodes: int
    candidates: Sequence[DispatchCandidate] = ()

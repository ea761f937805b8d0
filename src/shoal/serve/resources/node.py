"""Nodes, the commands for them, and the reasons why they get jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Self

from shoal.base.request_form import describe
from shoal.base.text import message
from shoal.fleet import node as fleet
from shoal.fleet.explain import NodeExplanation
from shoal.fleet.states import CommandState, NodeState
from shoal.serve.resources.resource import Moment, NextPage, Resource, Verb


class HealthParts(Resource, kw_only=True):
    """The parts of a health score, each from 0 to 1; the weights are 0.4, 0.3, 0.2 and 0.1."""

    success: Annotated[float, describe("Success rate of recent tasks; 1 before the first one.")]
    load: Annotated[float, describe("Share of free slots, for the busier of the two kinds (runs or page jobs).")]
    latency: Annotated[float, describe("1 if recent tasks took no time, 0 if they took 300 s or more on average.")]
    depth: Annotated[float, describe("1 if the lane is empty, 0 if 20 or more jobs wait in it.")]

    @classmethod
    def of(cls, success: float, load: float, latency: float, depth: float) -> Self:
        return cls(success=round(success, 4), load=round(load, 4), latency=round(latency, 4), depth=round(depth, 4))


class DesiredState(Resource, kw_only=True):
    """The state and limits that operators have set for a node. They also apply after a restart. If a value is null, the
    node uses the value it was started with."""

    state: Annotated[str, describe("connected, paused or drained.")]
    reason: Annotated[str, describe("Reason that the operator gave.")]
    max_concurrency: Annotated[int | None, describe("Crawls and analyses to run at the same time.")]
    page_slots: Annotated[int | None, describe("Page jobs to run at the same time.")]
    rate_limit: Annotated[float | None, describe("Pages per second; 0: unlimited.")]


class Node(Resource, kw_only=True):
    """A worker connected to a control plane, with the values it last reported."""

    id: Annotated[str, describe("Name of the node.")]
    state: NodeState
    health_score: Annotated[float, describe("Weighted sum of the parts; 0 while the node is draining.")]
    health: Annotated[HealthParts, describe("The parts of the health score.")]
    max_concurrency: Annotated[int, describe("Maximum number of crawls and analyses at the same time.")]
    active_tasks: Annotated[int, describe("Crawls and analyses that the node is running now.")]
    page_slots: Annotated[int, describe("Maximum number of page jobs at the same time.")]
    active_pages: Annotated[int, describe("Page jobs that the node holds now.")]
    queue_depth: Annotated[int, describe("Jobs that wait in the private lane (queue) of the node.")]
    success_rate: Annotated[float, describe("Share of recent tasks that succeeded.")]
    avg_latency_seconds: Annotated[float, describe("Average duration of recent tasks, in seconds.")]
    rate_limit: Annotated[float | None, describe("Maximum number of pages per second; null: unlimited.")]
    is_proxy_mode: Annotated[bool, describe("Whether the node has proxies.")]
    capabilities: Annotated[list[str], describe("Capabilities of the node; `js` if it can render pages.")]
    cpu_percent: Annotated[float, describe("CPU use of all processes of the node, in percent of one core.")]
    memory_bytes: Annotated[
        int, describe("Memory use of all processes of the node; of child processes, only private memory.")
    ]
    browsers: Annotated[int, describe("Browsers that run on the node.")]
    browser_pages: Annotated[int, describe("Pages in these browsers.")]
    browser_slots: Annotated[
        int, describe("Maximum number of pages that the node renders at the same time; 0 if it cannot render.")
    ]
    uptime_seconds: Annotated[int, describe("Seconds since the start of the node.")]
    total_processed: Annotated[int, describe("Number of tasks since the start of the node.")]
    version: Annotated[str, describe("Version of Shoal that the node runs.")]
    address: Annotated[str, describe("IP address from which the node connected.")]
    controller: Annotated[str | None, describe("Controller that the node is connected to; null without a session.")]
    session_epoch: Annotated[int, describe("Session number; it rises with each new session.")]
    connected_at: Annotated[Moment, describe("Start of the session.")]
    heartbeat_at: Annotated[Moment, describe("Time of its last heartbeat.")]
    lost_at: Annotated[Moment | None, describe("When the node was declared lost, if it was.")]
    desired: Annotated[DesiredState, describe("The state and limits that operators have set.")]
    wish: Annotated[DesiredState, describe("Older name of `desired`, with the same value.")]

    example: ClassVar = {
        "id": "crawler-1",
        "state": "connected",
        "health_score": 0.87,
        "health": {"success": 0.98, "load": 0.6, "latency": 0.99, "depth": 1.0},
        "max_concurrency": 2,
        "active_tasks": 1,
        "page_slots": 15,
        "active_pages": 6,
        "queue_depth": 0,
        "success_rate": 0.98,
        "avg_latency_seconds": 1.84,
        "rate_limit": None,
        "is_proxy_mode": False,
        "capabilities": ["http"],
        "cpu_percent": 42.5,
        "memory_bytes": 210_000_000,
        "browsers": 0,
        "browser_pages": 0,
        "browser_slots": 0,
        "uptime_seconds": 86_400,
        "total_processed": 120_000,
        "version": "0.1.0",
        "address": "10.0.0.12:41502",
        "controller": "controller-1/4711",
        "session_epoch": 3,
        "connected_at": "2026-03-01T09:00:00Z",
        "heartbeat_at": "2026-03-02T09:00:00Z",
        "lost_at": None,
        "desired": {
            "state": "connected",
            "reason": "",
            "max_concurrency": None,
            "page_slots": None,
            "rate_limit": None,
        },
        "wish": {"state": "connected", "reason": "", "max_concurrency": None, "page_slots": None, "rate_limit": None},
    }

    @classmethod
    def of(cls, node: fleet.Node, **more: Any) -> Self:
        status, health = node.status, node.health
        return super().of(
            node,
            status,
            health_score=round(health.value, 4),
            health=HealthParts.of(health.success, health.load, health.latency, health.depth),
            queue_depth=node.depth,
            success_rate=round(status.success_rate, 4),
            avg_latency_seconds=round(status.avg_latency_seconds, 3),
            rate_limit=status.rate_limit or None,
            capabilities=list(status.capabilities),
            cpu_percent=round(status.cpu_percent, 1),
            desired=DesiredState.of(node.desired),
            wish=DesiredState.of(node.desired),
            **more,
        )


class NodeList(Resource, kw_only=True):
    items: list[Node]
    next: NextPage

    example: ClassVar = {"items": [Node.example], "next": None}


class NodeCommand(Resource, kw_only=True):
    """A command for a node, and its progress."""

    id: Annotated[str, describe("Id of the command.")]
    node_id: str
    command: Annotated[str, describe("pause, resume, drain, config_update or restart_browser.")]
    reason: Annotated[str, describe("Reason that the operator gave.")]
    max_concurrency: Annotated[
        int | None, describe("Crawls and analyses to run at the same time, for `config_update`.")
    ]
    page_slots: Annotated[int | None, describe("Page jobs to run at the same time, for `config_update`.")]
    rate_limit: Annotated[float | None, describe("Pages per second; 0: unlimited.")]
    state: Annotated[CommandState, describe("State of the command; `applied` once the node has acknowledged it.")]
    detail: Annotated[str, describe("Result that the node reported.")]
    created_by: Annotated[str, describe("Id of the token that sent the command, or `local`.")]
    created_at: Moment
    sent_at: Annotated[Moment | None, describe("When the command was sent to the node.")]
    ended_at: Annotated[Moment | None, describe("When the command reached its final state.")]

    example: ClassVar = {
        "id": "cmd_01hr2v8k3m4n5p6q",
        "node_id": "crawler-1",
        "command": "config_update",
        "reason": "",
        "max_concurrency": 4,
        "page_slots": None,
        "rate_limit": 20.0,
        "state": "applied",
        "detail": "",
        "created_by": "local",
        "created_at": "2026-03-01T09:00:00Z",
        "sent_at": "2026-03-01T09:00:00Z",
        "ended_at": "2026-03-01T09:00:01Z",
    }


class NodeCommandList(Resource, kw_only=True):
    items: list[NodeCommand]

    example: ClassVar = {"items": [NodeCommand.example]}


class HeldLease(Resource, kw_only=True):
    """A job that a node holds."""

    job_id: str
    epoch: Annotated[int, describe("Number of the lease.")]


class NodeDetail(Node, kw_only=True):
    """A node with the leases it holds and its newest commands."""

    held_leases: Annotated[list[HeldLease], describe("Jobs that the node holds.")]
    commands: Annotated[list[NodeCommand], describe("The newest commands to the node, newest first.")]

    example: ClassVar = Node.example | {
        "held_leases": [{"job_id": "job_01hr2v8k3m4n5p6q", "epoch": 1}],
        "commands": [NodeCommand.example],
    }

    @classmethod
    def with_commands(cls, node: fleet.Node, commands: Sequence[fleet.NodeCommand]) -> Self:
        return cls.of(
            node,
            held_leases=[HeldLease(job_id=job_id, epoch=epoch) for job_id, epoch in node.status.held_leases],
            commands=[NodeCommand.of(one) for one in commands],
        )


class NodeExplained(Resource, kw_only=True):
    """The reason why a node gets jobs, or why it gets none."""

    node_id: str
    state: NodeState
    reason: Annotated[str, describe("Stable name of the reason.")]
    explanation: Annotated[str, describe("The reason in one sentence.")]
    score: Annotated[float, describe("Health score of the node.")]
    parts: Annotated[HealthParts, describe("The weighted parts of the health score; they add up to it.")]
    dispatch_share: Annotated[float, describe("Share of new jobs that the node gets while it has free slots.")]
    rank: Annotated[
        int | None, describe("Rank of the node among the healthy nodes, by score; null if it is not healthy.")
    ]
    healthy_nodes: Annotated[int, describe("Number of healthy nodes.")]
    waiting_runs: Annotated[int, describe("Crawls and analyses in the lane of the node.")]
    waiting_pages: Annotated[int, describe("Page jobs in the lane of the node.")]
    waiting_browser_pages: Annotated[int, describe("Page jobs in the lane of the node that need a browser.")]

    example: ClassVar = {
        "node_id": "crawler-1",
        "state": "connected",
        "reason": "dispatched",
        "explanation": "It gets about 52% of new jobs, in proportion to its health score.",
        "score": 0.87,
        "parts": {"success": 0.392, "load": 0.18, "latency": 0.198, "depth": 0.1},
        "dispatch_share": 0.52,
        "rank": 1,
        "healthy_nodes": 2,
        "waiting_runs": 0,
        "waiting_pages": 0,
        "waiting_browser_pages": 0,
    }

    @classmethod
    def of(cls, found: NodeExplanation) -> Self:
        node = found.node
        return super().of(
            found,
            node,
            node_id=node.id,
            explanation=str(found.sentence),
            score=round(node.health.value, 4),
            parts=HealthParts.of(**node.health.weighted),
            dispatch_share=round(found.dispatch_share, 4),
            waiting_runs=node.run_depth,
            waiting_pages=node.page_depth,
            waiting_browser_pages=node.browser_depth,
        )


_GIVEN: Final = message("The command was stored. The list below shows when the node has acknowledged it.")
VERBS: Final[Mapping[str, Verb]] = {
    "pause": Verb(message("Pause"), _GIVEN),
    "resume": Verb(message("Resume"), _GIVEN),
    "drain": Verb(
        message("Drain"),
        _GIVEN,
        message("Drain this node?"),
        message("The node returns its crawls to the queue and accepts no jobs until it is resumed."),
    ),
    "restart_browser": Verb(message("Restart the browser"), _GIVEN),
    "config_update": Verb(message("Change its limits"), _GIVEN),
}
"""The commands to a node."""


def given_to_all(name: str) -> Verb:
    """Return the verb for a command to all nodes, with a confirmation question."""
    verb = VERBS[name]
    return replace(verb, question=message("Send this command to every node?"), explanation=verb.label)

"""Explain in words why a node gets jobs, or why it gets none. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.fleet.health import DEPTH, LATENCY, LOAD, SUCCESS
from shoal.fleet.node import Node
from shoal.fleet.states import NodeState

FULL = 2  # times its slots: jobs in the lane of a node at which it gets no more


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """What a node gets and why: a reason with a stable name, a sentence, and the facts behind it."""

    node: Node
    reason: str
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)


def explain_node(node: Node, fleet: Sequence[Node], *, private: bool) -> NodeExplanation:
    """Explain a node among all nodes. `private`: jobs are dispatched to private lanes at all."""
    facts = _facts(node, fleet)
    if node.state is NodeState.LOST:
        silent = (node.seen_at - node.heartbeat_at) / 1e6
        says = f"It has sent no heartbeat for {silent:.0f} s, so it is lost, and its lane went to the shared one."
        return NodeExplanation(node, "lost", says, facts)
    if node.controller is None:
        says = (
            "Its session broke off; it gets jobs again when it reconnects, and is lost after three missed heartbeats."
        )
        return NodeExplanation(node, "disconnected", says, facts)
    if node.state is not NodeState.CONNECTED:
        why = f": {node.wish.reason}" if node.wish.reason else ""
        says = f"It is {node.state}{why}, so it leases nothing; `shoal nodes resume {node.id}` changes that."
        return NodeExplanation(node, node.state.value, says, facts)
    if not private:
        says = "SHOAL_DISPATCH is shared: it takes jobs from the shared lane, as every worker does."
        return NodeExplanation(node, "shared", says, facts)
    full = [kind for kind, depth, most in _lanes(node) if depth >= FULL * most]
    if full:
        says = f"Its lane holds {' and '.join(full)} for twice its slots, so new ones go to other nodes or are shared."
        return NodeExplanation(node, "full", says, facts)
    share = facts["dispatch_share"]
    says = f"It gets about {share:.0%} of the jobs: its health score is {node.health.value:.2f}."
    return NodeExplanation(node, "dispatched", says, facts)


def _facts(node: Node, fleet: Sequence[Node]) -> dict[str, Any]:
    health = node.health
    healthy = sorted((one for one in fleet if one.takes_jobs), key=lambda one: (-one.health.value, one.id))
    total = sum(one.health.value for one in healthy)
    mine = health.value if node.takes_jobs else 0.0
    return {
        "score": health.value,
        "parts": {
            "success": SUCCESS * health.success,
            "load": LOAD * health.load,
            "latency": LATENCY * health.latency,
            "depth": DEPTH * health.depth,
        },
        "dispatch_share": mine / total if total else 0.0,
        "rank": next((place for place, one in enumerate(healthy, 1) if one.id == node.id), None),
        "healthy_nodes": len(healthy),
        "waiting_runs": node.run_depth,
        "waiting_pages": node.page_depth,
    }


def _lanes(node: Node) -> list[tuple[str, int, int]]:
    status = node.status
    return [
        ("runs", node.run_depth, status.max_concurrency),
        ("page jobs", node.page_depth, status.page_slots or status.max_concurrency),
    ]

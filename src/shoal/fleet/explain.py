"""Explains in words why a node gets jobs, or why it gets no jobs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from shoal.base.ids import NodeId
from shoal.base.text import Sentence, Share, message
from shoal.fleet.node import Node
from shoal.fleet.nodes import Nodes
from shoal.fleet.states import NodeState
from shoal.fleet.view import CLASSES, MOST_RECONNECTS, FleetView, NodeSlots

FLAPPING = message(
    "It connected more than {count} times within a minute. It takes jobs from the shared lane, and gets its own lane "
    "again once it stays connected."
)
LOST = message("It has sent no heartbeat for {silent}. The jobs of its lane are now in the shared lane.")
DISCONNECTED = message("Its session broke off. It gets jobs again as soon as it reconnects.")
TOLD = message("It has received the command to be {state} and will report that soon.")
IDLE = message("It is {state}{because} and leases nothing until `shoal nodes resume {id}`.")
SHARED = message(
    "Jobs are not dispatched to nodes (SHOAL_DISPATCH=shared): like every worker, this node takes jobs from the shared "
    "lane."
)
FULL = message("Its lane holds twice as many {jobs} as it has slots for, so new jobs go to other nodes.")
LAPSED = message(
    "It did not take jobs that were offered to it ({times} times in a row), so it gets only {share} of new jobs, until "
    "it leases one."
)
DISPATCHED = message("It gets about {share} of new jobs, in proportion to its health score.")
STATES = {"paused": message("paused"), "draining": message("draining"), "drained": message("drained")}
JOBS = {
    ("runs",): message("runs"),
    ("pages",): message("pages"),
    ("runs", "pages"): message("runs and pages"),
}


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """The explanation of which jobs a node gets: a reason with a stable name, a sentence, the node's share of new jobs,
    and its rank among the healthy nodes (None if it is not healthy)."""

    node: Node
    reason: str
    sentence: Sentence
    dispatch_share: float
    rank: int | None
    healthy_nodes: int


class NodeExplainer:
    """Explains the stored nodes. Only a controller with the control plane knows which nodes are flapping. `private`:
    whether jobs are dispatched to private lanes at all."""

    def __init__(self, nodes: Nodes, view: FleetView, *, private: bool) -> None:
        self._nodes = nodes
        self._view = view
        self._private = private

    async def explain(self, node_id: str) -> NodeExplanation:
        node, fleet = await self._nodes.get(node_id), await self._nodes.list_all()
        return explain_node(node, fleet, private=self._private, is_flapping=self._view.is_flapping)


def explain_node(
    node: Node, fleet: Sequence[Node], *, private: bool, is_flapping: Callable[[NodeId], bool]
) -> NodeExplanation:
    """Explain a node, given all nodes."""
    healthy = [one for one in fleet if one.takes_jobs and not is_flapping(one.id)]
    healthy.sort(key=lambda one: (-one.health.value, one.id))
    total = sum(one.health.value * one.trust for one in healthy)
    trusted = max((one.trust for one in healthy), default=1.0)  # the rest of the jobs goes to the shared lane
    rank = next((place for place, one in enumerate(healthy, 1) if one.id == node.id), None)
    share = trusted * node.health.value * node.trust / total if rank is not None and total and private else 0.0
    if private and node.takes_jobs and is_flapping(node.id):
        reason, sentence = "flapping", Sentence(FLAPPING, {"count": MOST_RECONNECTS})
    else:
        reason, sentence = _why(node, share, private=private)
    return NodeExplanation(node, reason, sentence, share, rank, len(healthy))


def _why(node: Node, share: float, *, private: bool) -> tuple[str, Sentence]:
    if node.state is NodeState.LOST:
        return "lost", Sentence(LOST, {"silent": timedelta(microseconds=node.seen_at - node.heartbeat_at)})
    if node.controller is None:
        return "disconnected", Sentence(DISCONNECTED)
    wanted = node.desired.state
    if node.state is NodeState.CONNECTED and wanted != "connected":
        return wanted, Sentence(TOLD, {"state": Sentence(STATES[wanted])})
    if node.state is not NodeState.CONNECTED:
        because = f" ({node.desired.reason})" if node.desired.reason else ""
        state = Sentence(STATES[node.state.value])
        return node.state.value, Sentence(IDLE, {"state": state, "because": because, "id": node.id})
    if not private:
        return "shared", Sentence(SHARED)
    slots = NodeSlots(node)
    if full := tuple(name for name in CLASSES if slots.is_full(name)):
        return "full", Sentence(FULL, {"jobs": Sentence(JOBS[full])})
    if node.lapsed_offers:
        return "offers_lapsed", Sentence(LAPSED, {"times": node.lapsed_offers, "share": Share(share)})
    return "dispatched", Sentence(DISPATCHED, {"share": Share(share)})

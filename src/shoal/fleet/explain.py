"""Explain in words why a node gets jobs, or why it gets none. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.base.ids import NodeId
from shoal.fleet.node import Node
from shoal.fleet.states import NodeState
from shoal.fleet.view import CLASSES, MOST_RECONNECTS, NodeSlots

FLAPPING = (
    f"It connected more than {MOST_RECONNECTS} times within a minute. It takes jobs from the shared lane, and gets its "
    "own again once it stays connected."
)


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """The explanation of which jobs a node gets: a reason with a stable name, a sentence, its share of new jobs, and
    its rank among the healthy nodes (None: it is not one of them)."""

    node: Node
    reason: str
    sentence: str
    dispatch_share: float
    rank: int | None
    healthy_nodes: int


def explain_node(
    node: Node, fleet: Sequence[Node], *, private: bool, is_flapping: Callable[[NodeId], bool] = lambda node_id: False
) -> NodeExplanation:
    """Explain a node among all nodes. `private`: jobs are dispatched to private lanes at all."""
    healthy = [one for one in fleet if one.takes_jobs and not is_flapping(one.id)]
    healthy.sort(key=lambda one: (-one.health.value, one.id))
    total = sum(one.health.value for one in healthy)
    rank = next((place for place, one in enumerate(healthy, 1) if one.id == node.id), None)
    share = node.health.value / total if rank is not None and total and private else 0.0
    if private and node.takes_jobs and is_flapping(node.id):
        reason, sentence = "flapping", FLAPPING
    else:
        reason, sentence = _why(node, share, private=private)
    return NodeExplanation(node, reason, sentence, share, rank, len(healthy))


def _why(node: Node, share: float, *, private: bool) -> tuple[str, str]:
    if node.state is NodeState.LOST:
        silent = (node.seen_at - node.heartbeat_at) / 1e6
        return "lost", f"It has sent no heartbeat for {silent:.0f} s. The jobs of its lane are in the shared one."
    if node.controller is None:
        return "disconnected", "Its session broke off. It gets jobs again as soon as it reconnects."
    if node.state is NodeState.CONNECTED and node.desired.state != "connected":
        return node.desired.state, f"It has been told to be {node.desired.state} and will report that soon."
    if node.state is not NodeState.CONNECTED:
        because = f" ({node.desired.reason})" if node.desired.reason else ""
        return node.state.value, f"It is {node.state}{because} and leases nothing until `shoal nodes resume {node.id}`."
    if not private:
        return "shared", "SHOAL_DISPATCH is shared: like every worker, it takes jobs from the shared lane."
    slots = NodeSlots(node)
    if full := [name for name in CLASSES if slots.is_full(name)]:
        return "full", f"Its lane holds twice as many {' and '.join(full)} as it has slots for, so others get new ones."
    return "dispatched", f"It gets about {share:.0%} of new jobs, in proportion to its health score."

"""Nodes without their processes: registered as a controller does when a stream begins."""

from datetime import timedelta
from typing import Any

from shoal.base.ids import NodeId
from shoal.fleet.node import NewSession, NodeStatus, SessionBegun
from shoal.fleet.nodes import Nodes

EVERY = timedelta(seconds=10)


async def register(nodes: Nodes, node_id: str, *, every: timedelta = EVERY, **status: Any) -> SessionBegun:
    """Begin a session of a node that reports this."""
    usual: dict[str, Any] = {"max_concurrency": 2, "page_slots": 15, "instance": f"{node_id}-1"}
    reported = NodeStatus(**(usual | status))
    session = NewSession(
        node_id=NodeId(node_id),
        controller=nodes.controller,
        address="127.0.0.1:4000",
        heartbeat_every=every,
        status=reported,
    )
    return await nodes.register(session)

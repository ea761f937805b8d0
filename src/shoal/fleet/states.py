"""The state machine of nodes. A node reports its own state; only the janitor declares one lost."""

from enum import StrEnum

from shoal.base.text import message


class NodeState(StrEnum):
    CONNECTED = "connected"  # leases jobs
    PAUSED = "paused"  # leases nothing; the jobs it holds continue
    DRAINING = "draining"  # leases nothing; runs return to the queue, page jobs finish
    DRAINED = "drained"  # leases nothing and holds nothing
    LOST = "lost"  # missed three heartbeats: its lane was returned


REPORTED = frozenset({NodeState.CONNECTED, NodeState.PAUSED, NodeState.DRAINING, NodeState.DRAINED})
"""The states that a node reports about itself."""

MOVES: dict[NodeState, frozenset[NodeState]] = {
    NodeState.CONNECTED: frozenset({NodeState.PAUSED, NodeState.DRAINING, NodeState.DRAINED, NodeState.LOST}),
    NodeState.PAUSED: frozenset({NodeState.CONNECTED, NodeState.DRAINING, NodeState.DRAINED, NodeState.LOST}),
    NodeState.DRAINING: frozenset({NodeState.CONNECTED, NodeState.PAUSED, NodeState.DRAINED, NodeState.LOST}),
    NodeState.DRAINED: frozenset({NodeState.CONNECTED, NodeState.PAUSED, NodeState.DRAINING, NodeState.LOST}),
    NodeState.LOST: REPORTED,
}
TERMINAL: frozenset[NodeState] = frozenset()
LABELS = {
    NodeState.CONNECTED: message("Connected"),
    NodeState.PAUSED: message("Paused"),
    NodeState.DRAINING: message("Draining"),
    NodeState.DRAINED: message("Drained"),
    NodeState.LOST: message("Lost"),
}


class CommandState(StrEnum):
    WAITING = "waiting"  # not sent yet, or sent to a session that ended before it was acknowledged
    SENT = "sent"  # on its way to the node's session
    APPLIED = "applied"
    UNSUPPORTED = "unsupported"  # the node does not know the command, or lacks what it is about
    FAILED = "failed"  # the node could not apply it
    UNCONFIRMED = "unconfirmed"  # sent to a client that acknowledges nothing
    EXPIRED = "expired"  # the node did not come back in time


COMMAND_LABELS = {
    CommandState.WAITING: message("Waiting for the node"),
    CommandState.SENT: message("Sent, not acknowledged yet"),
    CommandState.APPLIED: message("Applied"),
    CommandState.UNSUPPORTED: message("Not supported by the node"),
    CommandState.FAILED: message("Failed"),
    CommandState.UNCONFIRMED: message("Sent; this node does not acknowledge commands"),
    CommandState.EXPIRED: message("Expired before the node came back"),
}
COMMANDS_ENDED = frozenset(CommandState) - {CommandState.WAITING, CommandState.SENT}

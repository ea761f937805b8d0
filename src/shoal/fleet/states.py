"""The state machine of nodes. A node reports its own state; only the janitor declares a node lost."""

from enum import StrEnum

from shoal.base.text import message


class NodeState(StrEnum):
    CONNECTED = "connected"  # leases jobs
    PAUSED = "paused"  # leases no new jobs; the jobs it holds continue
    DRAINING = "draining"  # leases no new jobs; its runs return to the queue, and its page jobs finish
    DRAINED = "drained"  # leases no jobs and holds no jobs
    LOST = "lost"  # missed three heartbeats, so the jobs of its lane were returned


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
    SENT = "sent"  # written to the node's session, but not acknowledged yet
    APPLIED = "applied"
    UNSUPPORTED = "unsupported"  # the node does not know the command, or lacks the feature that the command needs
    FAILED = "failed"  # the node could not apply it
    UNCONFIRMED = "unconfirmed"  # sent to a client that acknowledges no commands
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

"""The store contract of nodes, their sessions and commands. Each change of a session is a compare-and-set on
`(node_id, session_epoch)`; an absent result means that a newer session exists."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from shoal.base.database import Tx
from shoal.base.ids import NodeId
from shoal.fleet.node import CommandAck, DesiredState, Heartbeat, NewSession, Node, NodeCommand, StoredSession


class NodeStore(Protocol):
    async def register(self, tx: Tx, session: NewSession) -> StoredSession:
        """Begin a session: create or update the node, raise its epoch, and make this controller its own. Any earlier
        session of the node is over. The commands that it did not acknowledge wait again."""
        ...

    async def heartbeat(self, tx: Tx, controller: str, heartbeats: Sequence[Heartbeat]) -> set[NodeId]:
        """Store the newest status of many sessions of one controller in one batch; returns the nodes whose session is
        still that one. The state of a node becomes the one it reports, even if it was declared lost meanwhile."""
        ...

    async def disconnect(self, tx: Tx, node_id: NodeId, epoch: int) -> bool:
        """Record that a session broke off: the node keeps its state, and is lost unless it comes back in time."""
        ...

    async def deregister(self, tx: Tx, node_id: NodeId, epoch: int) -> bool:
        """Remove a node that said goodbye. What operators wanted of it is kept for its return."""
        ...

    async def overdue(self, tx: Tx, limit: int) -> list[Node]:
        """Return nodes that missed three heartbeats and are not lost yet, the longest silent first. They are
        candidates: `lose` checks each one again."""
        ...

    async def lose(self, tx: Tx, node_id: NodeId, epoch: int) -> bool:
        """Declare a node lost if that session is still its last one and is still overdue. May be repeated."""
        ...

    async def all(self, tx: Tx) -> list[Node]:
        """Return every node with the depths of its lane, ordered by id. An empty list does not mean that no worker
        runs: workers without a control plane are not nodes."""
        ...

    async def get(self, tx: Tx, node_id: NodeId) -> Node | None: ...

    async def count(self, tx: Tx) -> int:
        """Return how many nodes are not lost."""
        ...

    async def abandoned_lanes(self, tx: Tx, limit: int) -> list[str]:
        """Return private lanes where jobs are offered although their node leases nothing, because it is gone, lost,
        paused or drained; found among the `limit` oldest offers. An empty list does not mean that there are no
        others."""
        ...

    async def forget_lapses(self, tx: Tx) -> None:
        """Set `lapsed_offers` to 0 for nodes that have leased a job since their last offer lapsed and still hold it.
        Reads every locked job, if there are such nodes."""
        ...

    async def lock_desired_states(self, tx: Tx, node_ids: Sequence[NodeId]) -> dict[NodeId, DesiredState]:
        """Return what operators want of these nodes, locked against changes until this transaction ends. Nodes that do
        not exist are absent."""
        ...

    async def save_desired_states(self, tx: Tx, desired_states: Mapping[NodeId, DesiredState]) -> None:
        """Store what operators want of these nodes, which are locked."""
        ...

    async def forget_lost(self, tx: Tx, older_than: timedelta, keep_desired_states: timedelta, limit: int) -> int:
        """Remove nodes that were lost longer ago than `older_than`; returns how many. What operators want of nodes that
        are gone is kept for `keep_desired_states`."""
        ...

    async def add_commands(self, tx: Tx, commands: Sequence[NodeCommand]) -> None: ...

    async def waiting_commands(self, tx: Tx, controller: str, limit: int) -> list[NodeCommand]:
        """Return the commands that wait for nodes whose session is on this controller, in the order they were made."""
        ...

    async def mark_sent(self, tx: Tx, command_ids: Collection[str], *, unconfirmed: bool = False) -> None:
        """Record that commands were sent; with `unconfirmed` they end with that, because their node acknowledges
        nothing."""
        ...

    async def acknowledge(self, tx: Tx, node_id: NodeId, acks: Sequence[CommandAck]) -> set[str]:
        """Record what a node said about its commands, one answer for each; returns the ids of those that ended with it.
        An answer about a command that has ended, or that is another node's, changes nothing."""
        ...

    async def commands_of(self, tx: Tx, node_id: NodeId, limit: int) -> list[NodeCommand]:
        """Return the newest commands of a node, newest first."""
        ...

    async def command(self, tx: Tx, command_id: str) -> NodeCommand | None: ...

    async def expire_commands(
        self, tx: Tx, older_than: timedelta, keep: timedelta, limit: int
    ) -> list[tuple[str, NodeId]]:
        """End commands that waited longer than `older_than`, and remove those that ended longer ago than `keep`;
        returns which ended, and their nodes."""
        ...

"""The store of nodes, their sessions and commands. Each change of a session is a compare-and-set on `(node_id,
session_epoch)`. A change that affects no row means that a newer session exists."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.ids import NodeId
from shoal.fleet.node import (
    MISSED,
    CommandAck,
    DesiredState,
    Heartbeat,
    NewSession,
    Node,
    NodeCommand,
    NodeStatus,
    SessionBegun,
    is_same_process,
)
from shoal.fleet.states import CommandState, NodeState
from shoal.queue.job import JS, RUN_KINDS, node_lane


class _CommandForm(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reason and the values of a command, as stored."""

    reason: str = ""
    max_concurrency: int | None = None
    page_slots: int | None = None
    rate_limit: float | None = None


_encode = msgspec.json.Encoder().encode
_status = msgspec.json.Decoder(NodeStatus).decode
_desired = msgspec.json.Decoder(DesiredState).decode
_form = msgspec.json.Decoder(_CommandForm).decode


class NodeStore:
    """Nodes, their sessions and commands."""

    async def register(self, tx: Tx, session: NewSession) -> SessionBegun:
        """Begin a session: create or update the node, raise its epoch, and record this controller as the owner of the
        session. This ends any earlier session of the node, and commands that it did not acknowledge wait again."""
        earlier = await tx.one("lock_node", id=session.node_id)
        kept = None if earlier is not None else await tx.one("return_departed", id=session.node_id)
        # If two controllers find no row to lock, the second insert waits for the first insert and then raises the epoch
        # (0043).
        begun = await tx.one(
            "begin_session",
            id=session.node_id,
            state=session.status.state.value,
            epoch=1 if kept is None else kept["session_epoch"] + 1,
            instance=session.status.instance,
            controller=session.controller,
            address=session.address,
            status=_text(session.status),
            wish=_text(DesiredState()) if kept is None else kept["wish"],
            heartbeat_every=span(session.heartbeat_every),
        )
        assert begun is not None
        await tx.execute("wait_for_commands_again", node_id=session.node_id)
        displaced = False
        if earlier is not None and earlier["controller"] is not None:
            displaced = not is_same_process(session.status.instance, earlier["instance"])
        return SessionBegun(begun["session_epoch"], _desired(begun["wish"]), displaced)

    async def heartbeat(self, tx: Tx, controller: str, heartbeats: Sequence[Heartbeat]) -> set[NodeId]:
        """Store the newest status of many sessions of one controller in one batch; return the nodes whose sessions are
        still current. The node's state becomes the reported state, even if the node was declared lost meanwhile."""
        rows = sorted(
            (one.node_id, one.epoch, one.status.state.value, _text(one.status), span(one.heartbeat_every), controller)
            for one in heartbeats
        )
        return {NodeId(row["id"]) for row in await tx.batch("store_heartbeats", rows)}

    async def disconnect(self, tx: Tx, node_id: NodeId, epoch: int) -> bool:
        """Record that a session broke off. The node keeps its state, and is declared lost unless it comes back in
        time."""
        return await tx.execute("disconnect_node", id=node_id, epoch=epoch) == 1

    async def deregister(self, tx: Tx, node_id: NodeId, epoch: int) -> bool:
        """Remove a node that ended its session regularly. Its desired state is kept in case the node comes back."""
        return await self._depart(tx, await tx.all("remove_node", id=node_id, epoch=epoch)) == 1

    async def overdue(self, tx: Tx, limit: int) -> list[Node]:
        """Return nodes that missed three heartbeats and are not lost yet, the longest silent node first. These nodes
        are only candidates: `lose` checks each node again."""
        return [_node(row) for row in await tx.all("overdue_nodes", missed=MISSED, limit=limit)]

    async def lose(self, tx: Tx, node_id: NodeId, epoch: int) -> bool:
        """Declare a node lost if this session is still its newest session and is still overdue. The call may be
        repeated."""
        return await tx.execute("lose_node", id=node_id, epoch=epoch, missed=MISSED) == 1

    async def all(self, tx: Tx) -> list[Node]:
        """Return every node with the depths of its lane, ordered by id. An empty list does not mean that no worker
        runs: workers without a control plane are not nodes."""
        depths: dict[str, list[int]] = {}
        for row in await tx.all("private_lane_depths"):
            _count(depths.setdefault(row["lane"], [0, 0, 0]), row)
        return [_node(row, *depths.get(node_lane(row["id"]), ())) for row in await tx.all("all_nodes")]

    async def get(self, tx: Tx, node_id: NodeId) -> Node | None:
        row = await tx.one("node", id=node_id)
        if row is None:
            return None
        depths = [0, 0, 0]
        for found in await tx.all("lane_depth_by_kind", lane=node_lane(node_id)):
            _count(depths, found)
        return _node(row, *depths)

    async def count(self, tx: Tx) -> int:
        """Return how many nodes are not lost."""
        return int(await tx.value("count_nodes"))

    async def abandoned_lanes(self, tx: Tx, limit: int) -> list[str]:
        """Return private lanes in which jobs are offered although the lane's node leases no jobs, because it is gone,
        lost, paused or drained. Only the `limit` oldest offers are examined, so more such lanes may exist, even if the
        list is empty."""
        return [row["lane"] for row in await tx.all("abandoned_lanes", limit=limit)]

    async def forget_lapses(self, tx: Tx) -> None:
        """Set `lapsed_offers` to 0 for nodes that have leased a job since their last offer lapsed and still hold that
        job. If any node has lapsed offers, this reads every locked job."""
        await tx.execute("forget_lapses")

    async def lock_desired_states(self, tx: Tx, node_ids: Sequence[NodeId]) -> dict[NodeId, DesiredState]:
        """Return the desired states of these nodes, locked against changes until this transaction ends. Nodes that do
        not exist are missing in the result."""
        rows = await tx.all("lock_desired_states", ids=sorted(node_ids))
        return {NodeId(row["id"]): _desired(row["wish"]) for row in rows}

    async def save_desired_states(self, tx: Tx, desired_states: Mapping[NodeId, DesiredState]) -> None:
        """Store the desired states of these nodes, which must be locked."""
        if desired_states:
            await tx.many(
                "save_desired_states", [(node_id, _text(desired)) for node_id, desired in desired_states.items()]
            )

    async def forget_lost(self, tx: Tx, older_than: timedelta, keep_desired_states: timedelta, limit: int) -> int:
        """Remove nodes that were lost longer ago than `older_than`; return the number of removed nodes. The desired
        states of removed nodes are kept for `keep_desired_states`."""
        gone = await self._depart(tx, await tx.all("forget_lost_nodes", age=span(older_than), limit=limit))
        await tx.execute("forget_departed", age=span(older_than), longest=span(keep_desired_states), limit=limit)
        return gone

    async def add_commands(self, tx: Tx, commands: Sequence[NodeCommand]) -> None:
        if commands:
            await tx.many("insert_commands", [_command_row(one) for one in commands])

    async def waiting_commands(self, tx: Tx, controller: str, limit: int) -> list[NodeCommand]:
        """Return the commands that wait for nodes whose session is on this controller, in the order in which they were
        given."""
        return [_command(row) for row in await tx.all("waiting_commands", controller=controller, limit=limit)]

    async def mark_sent(self, tx: Tx, command_ids: Collection[str], *, unconfirmed: bool = False) -> None:
        """Record that commands were sent. With `unconfirmed`, the commands also end, because their node acknowledges no
        commands."""
        if command_ids:
            await tx.execute("mark_commands_sent", ids=sorted(command_ids), ended=int(unconfirmed))

    async def acknowledge(self, tx: Tx, node_id: NodeId, acks: Sequence[CommandAck]) -> set[str]:
        """Record a node's responses to its commands; return the ids of the commands that ended with these responses. A
        response to a command that has already ended, or that belongs to a different node, changes nothing."""
        rows = sorted((ack.command_id, node_id, ack.state.value, ack.detail) for ack in acks)
        return {row["id"] for row in await tx.batch("end_commands", rows)}

    async def commands_of(self, tx: Tx, node_id: NodeId, limit: int) -> list[NodeCommand]:
        """Return the newest commands of a node, newest first."""
        return [_command(row) for row in await tx.all("commands_of_node", node_id=node_id, limit=limit)]

    async def command(self, tx: Tx, command_id: str) -> NodeCommand | None:
        row = await tx.one("command", id=command_id)
        return None if row is None else _command(row)

    async def expire_commands(
        self, tx: Tx, older_than: timedelta, keep: timedelta, limit: int
    ) -> list[tuple[str, NodeId]]:
        """End commands that waited longer than `older_than`, and remove commands that ended longer ago than `keep`.
        Return the commands that ended now, and their nodes."""
        await tx.execute("forget_commands", keep=span(keep), limit=limit)
        rows = await tx.all("expire_commands", age=span(older_than), limit=limit)
        return [(row["id"], NodeId(row["node_id"])) for row in rows]

    async def _depart(self, tx: Tx, rows: Sequence[Any]) -> int:
        """Keep the desired states and epochs of removed nodes; return the number of nodes."""
        if rows:
            await tx.many("insert_departed", [(row["id"], row["wish"], row["session_epoch"]) for row in rows])
        return len(rows)


def _text(value: msgspec.Struct) -> str:
    return _encode(value).decode()


def _count(depths: list[int], row: Any) -> None:
    """Add the job count of a row to a lane's counts of runs, page jobs, and page jobs that need a browser."""
    is_page = row["kind"] not in RUN_KINDS
    depths[is_page] += row["jobs"]
    depths[2] += row["jobs"] * (is_page and row["capability"] == JS)


def _node(row: Any, run_depth: int = 0, page_depth: int = 0, browser_depth: int = 0) -> Node:
    return Node(
        id=NodeId(row["id"]),
        state=NodeState(row["state"]),
        session_epoch=row["session_epoch"],
        controller=row["controller"],
        address=row["address"],
        status=_status(row["status"]),
        desired=_desired(row["wish"]),
        heartbeat_every=timedelta(microseconds=row["heartbeat_every"]),
        connected_at=row["connected_at"],
        heartbeat_at=row["heartbeat_at"],
        lost_at=row["lost_at"],
        seen_at=row["seen_at"],
        run_depth=run_depth,
        page_depth=page_depth,
        browser_depth=browser_depth,
        lapsed_offers=row["lapsed_offers"],
    )


def _command_row(command: NodeCommand) -> tuple[Any, ...]:
    form = _CommandForm(command.reason, command.max_concurrency, command.page_slots, command.rate_limit)
    return (command.id, command.node_id, command.command, _text(form), command.created_by)


def _command(row: Any) -> NodeCommand:
    form = _form(row["form"])
    return NodeCommand(
        id=row["id"],
        node_id=NodeId(row["node_id"]),
        command=row["command"],
        reason=form.reason,
        max_concurrency=form.max_concurrency,
        page_slots=form.page_slots,
        rate_limit=form.rate_limit,
        state=CommandState(row["state"]),
        detail=row["detail"],
        created_at=row["created_at"],
        created_by=row["created_by"],
        sent_at=row["sent_at"],
        ended_at=row["ended_at"],
    )

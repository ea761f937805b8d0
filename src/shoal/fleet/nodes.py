"""The registry of nodes: sessions, health and commands. The registry is stored, so every controller sees the whole
fleet.

A process without sessions can still list nodes and give commands: the controller that has the node's session finds the
command in the store.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from shoal.access.audit_log import AuditHook, no_audit
from shoal.base.database import Database, Tx
from shoal.base.errors import InvalidInput, NotFound
from shoal.base.ids import NodeId
from shoal.base.parsing import read_node_id
from shoal.base.signals import Signal, Signals
from shoal.events.event import Event, append_events
from shoal.fleet.node import (
    CommandAck,
    CommandRequest,
    DesiredState,
    Heartbeat,
    NewSession,
    Node,
    NodeCommand,
    SessionBegun,
    desired_after,
)
from shoal.fleet.states import CommandState, NodeState
from shoal.fleet.store import NodeStore
from shoal.queue.job import NODE, node_lane
from shoal.queue.queue import Queue

if TYPE_CHECKING:
    from shoal.fleet.sessions import Sessions

AT_ONCE = 500  # maximum number of commands that one pass sends
BATCH = 1_000
EMITTED_AT_ONCE = 100  # maximum number of signals in one callback of the event loop
COMMAND_TTL = timedelta(hours=1)
KEEP_COMMANDS = timedelta(days=7)
KEEP_DESIRED_STATES = timedelta(days=90)  # how long the desired states of removed nodes are kept
SHOWN = 50  # number of newest commands shown per node


class NodeRegistered(Signal, frozen=True, kw_only=True):
    """A session of a node began. `displaced`: this ended a session of a different instance."""

    node_id: str
    epoch: int
    address: str
    version: str
    displaced: bool


class HeartbeatReceived(Signal, frozen=True, kw_only=True):
    """A status message of a node arrived. Emitted by the server for each message, so listeners must be quick.
    `repeated`: the last signal of this node without `repeated` is less than a minute old."""

    node_id: str
    score: float
    repeated: bool


class NodeDisconnected(Signal, frozen=True, kw_only=True):
    """The session of a node broke off. Unless the node comes back in time, it will be declared lost."""

    node_id: str
    epoch: int


class NodeLeft(Signal, frozen=True, kw_only=True):
    """A node ended its session regularly. `returned`: the number of jobs moved from its lane to the shared lane."""

    node_id: str
    returned: int


class NodeLost(Signal, frozen=True, kw_only=True):
    """A node missed three heartbeats and was declared lost. `returned`: the number of jobs moved from its lane to the
    shared lane."""

    node_id: str
    silent_seconds: float
    returned: int


class LaneReturned(Signal, frozen=True, kw_only=True):
    """Jobs were moved to the shared lane because they were offered to a node that leases no jobs."""

    node_id: str
    returned: int


class CommandMade(Signal, frozen=True, kw_only=True):
    """Somebody gave a node a command. The command is stored and waits to be sent."""

    node_id: str
    command_id: str
    command: str
    by: str
    reason: str


class CommandSent(Signal, frozen=True, kw_only=True):
    """A command was written to the stream of its node. It may be sent again if the stream breaks off."""

    node_id: str
    command_id: str
    command: str


class CommandEnded(Signal, frozen=True, kw_only=True):
    """A command ended. The node responded (`applied`, `unsupported`, `failed`), cannot respond (`unconfirmed`), or did
    not respond in time (`expired`)."""

    node_id: str
    command_id: str
    state: CommandState
    detail: str


def check_node_id(node_id: str) -> NodeId:
    """Return the node id if it is valid. Node ids become part of lane names, keys and metrics."""
    try:
        return NodeId(read_node_id(node_id))
    except ValueError:
        shown = node_id if len(node_id) <= 80 else f"{node_id[:80]}…"
        raise InvalidInput("node_id", f"cannot be {shown!r}", "use 1 to 63 letters, digits and hyphens") from None


class Nodes:
    """The nodes of the fleet. `sessions`: the sessions of this process; `controller`: the name of this process, unique
    among all controllers."""

    def __init__(
        self,
        database: Database,
        queue: Queue,
        signals: Signals,
        sessions: "Sessions",
        *,
        controller: str,
    ) -> None:
        self._database = database
        self._store = NodeStore()
        self._queue = queue
        self._signals = signals
        self._sessions = sessions
        self.controller = controller

    async def register(self, session: NewSession) -> SessionBegun:
        """Begin a session. The newest session of a node id wins, even if the earlier session is on a different
        controller. After this call, send the node the commands that `commands_to_reach(...)` returns for the result.
        Raises `InvalidInput` for a bad node id."""
        check_node_id(session.node_id)

        async def commit(tx: Tx) -> SessionBegun:
            begun = await self._store.register(tx, session)
            signal = NodeRegistered(
                node_id=session.node_id,
                epoch=begun.epoch,
                address=session.address,
                version=session.status.version,
                displaced=begun.displaced,
            )
            tx.on_commit(lambda: self._signals.emit(signal))
            return begun

        return await self._database.run(commit)

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> set[NodeId]:
        """Store the newest status of many sessions in one commit; return the nodes whose sessions are still current. If
        a node is missing in the result, it was registered again, here or on a different controller, or it was removed.
        Look up such a node with `find`: if its instance is different, the session was displaced; otherwise the node
        must register again."""
        if not heartbeats:
            return set()
        return await self._database.run(lambda tx: self._store.heartbeat(tx, self.controller, heartbeats))

    async def disconnect(self, node_id: NodeId, epoch: int) -> bool:
        """Record that a session broke off. No jobs are dispatched to the node until it is back, and it is declared lost
        after three missed heartbeats. Return False if a newer session exists."""

        async def commit(tx: Tx) -> bool:
            done = await self._store.disconnect(tx, node_id, epoch)
            if done:
                tx.on_commit(lambda: self._signals.emit(NodeDisconnected(node_id=node_id, epoch=epoch)))
            return done

        return await self._database.run(commit)

    async def deregister(self, node_id: NodeId, epoch: int) -> bool:
        """Remove a node that ended its session, and return the jobs of its lane, in one commit. The desired state is
        kept in case the node comes back. Return False if a newer session exists."""

        async def commit(tx: Tx) -> bool:
            if not await self._store.deregister(tx, node_id, epoch):
                return False
            returned = await self._queue.recovery.hand_back_in(tx, node_lane(node_id))
            tx.on_commit(lambda: self._signals.emit(NodeLeft(node_id=node_id, returned=returned)))
            return True

        return await self._database.run(commit)

    async def overdue(self, limit: int) -> list[Node]:
        """Return nodes that missed three heartbeats, the longest silent node first. They are candidates for `lose`."""
        return await self._database.read(lambda tx: self._store.overdue(tx, limit))

    async def lose(self, node: Node) -> bool:
        """Declare a node lost, return the jobs of its lane and store the event `node.lost`, in one commit. Return False
        if the node came back or a different controller was first."""
        silent = (node.seen_at - node.heartbeat_at) / 1e6

        async def commit(tx: Tx) -> bool:
            # Compare-and-set: if several controllers try, only one of them returns the jobs and writes the event
            # (0043).
            if not await self._store.lose(tx, node.id, node.session_epoch):
                return False
            returned = await self._queue.recovery.hand_back_in(tx, node_lane(node.id))
            data = {
                "node_id": node.id,
                "address": node.address,
                "silent_seconds": silent,
                "returned_jobs": returned,
                "held_leases": len(node.status.held_leases),
            }
            await append_events(tx, Event("node.lost", node.id, data))
            signal = NodeLost(node_id=node.id, silent_seconds=silent, returned=returned)
            tx.on_commit(lambda: self._signals.emit(signal))
            return True

        return await self._database.run(commit)

    async def list_all(self) -> list[Node]:
        """Return every node, including lost nodes, ordered by id."""
        return await self._database.read(self._store.all)

    async def count(self) -> int:
        """Return how many nodes are not lost."""
        return await self._database.read(self._store.count)

    async def find(self, node_id: str) -> Node | None:
        return await self._database.read(lambda tx: self._store.get(tx, NodeId(node_id)))

    async def get(self, node_id: str) -> Node:
        """Return a node; raise `NotFound` if there is no node with this id."""
        return _found(await self.find(node_id), node_id)

    async def send(self, node_id: str, request: CommandRequest, by: str, *, audit: AuditHook = no_audit) -> NodeCommand:
        """Give a node a command. Store the command and the node's new desired state in one commit, then send the
        command if the session is here. A node without a session gets the command when it comes back, unless the command
        has expired. `by`: the token or user that gave the command."""
        request.check()

        async def commit(tx: Tx) -> NodeCommand:
            _found(await self._store.get(tx, NodeId(node_id)), node_id)
            await audit(tx, "node.command", node_id)
            return (await self._make_in(tx, [NodeId(node_id)], request, by))[0]

        # Store the command before sending it: if we die in between, the controller with the session sends it (0043).
        command = await self._database.run(commit)
        await self._send([command])
        return command

    async def broadcast(self, request: CommandRequest, by: str, *, audit: AuditHook = no_audit) -> list[NodeCommand]:
        """Give the same command to every node that is not lost; return the command of each node."""
        request.check()

        async def commit(tx: Tx) -> list[NodeCommand]:
            nodes = [node.id for node in await self._store.all(tx) if node.state is not NodeState.LOST]
            await audit(tx, "node.commands", "all nodes")
            return await self._make_in(tx, nodes, request, by)

        commands = await self._database.run(commit)
        await self._send(commands)
        return commands

    async def forget_lapses(self) -> None:
        """Forget the lapsed offers of nodes that lease jobs again, so that these nodes get their full share of jobs."""
        await self._database.run(self._store.forget_lapses)

    async def waiting_commands(self) -> list[NodeCommand]:
        """Return the commands that wait for nodes whose session is on this controller, in the order in which they were
        given."""
        return await self._database.read(lambda tx: self._store.waiting_commands(tx, self.controller, AT_ONCE))

    async def send_waiting(self) -> int:
        """Send the commands that other controllers stored for this controller's sessions; return their number."""
        return await self._send(await self.waiting_commands())

    async def acknowledge(self, node_id: NodeId, acks: Sequence[CommandAck]) -> None:
        """Record a node's responses to commands. A response may be repeated: only the first response counts."""
        if not acks:
            return

        first = {ack.command_id: ack for ack in reversed(acks)}

        async def commit(tx: Tx) -> None:
            ended = await self._store.acknowledge(tx, node_id, list(first.values()))
            for ack in [first[command_id] for command_id in sorted(ended)]:
                signal = CommandEnded(node_id=node_id, command_id=ack.command_id, state=ack.state, detail=ack.detail)
                tx.on_commit(partial(self._signals.emit, signal))

        await self._database.run(commit)

    async def commands_of(self, node_id: str, limit: int = SHOWN) -> list[NodeCommand]:
        """Return the newest commands of a node, newest first."""
        return await self._database.read(lambda tx: self._store.commands_of(tx, NodeId(node_id), limit))

    async def command(self, command_id: str) -> NodeCommand:
        """Return a command with its state; raise `NotFound` if there is no command with this id."""
        command = await self._database.read(lambda tx: self._store.command(tx, command_id))
        if command is None:
            raise NotFound("command", command_id, "it may have been removed a week after it ended")
        return command

    async def return_lanes(self) -> int:
        """Move jobs to the shared lane if they were offered to nodes that lease no jobs; return the number of jobs.
        Such nodes were paused or drained after the offer, or they are gone and some controller did not know that
        yet."""
        returned = 0
        for lane in await self._database.read(lambda tx: self._store.abandoned_lanes(tx, BATCH)):
            # If the node has resumed since the lanes were read, it loses offers, but no job is lost (0043).
            count = await self._queue.recovery.hand_back(lane)
            if count:
                self._signals.emit(LaneReturned(node_id=lane.removeprefix(NODE), returned=count))
            returned += count
        return returned

    async def forget(self, keep_lost: timedelta) -> None:
        """Remove nodes that were lost long ago, end commands that waited too long, and remove old commands."""
        keep_desired_states = max(KEEP_DESIRED_STATES, keep_lost)
        await self._database.run(lambda tx: self._store.forget_lost(tx, keep_lost, keep_desired_states, BATCH))

        async def expire(tx: Tx) -> None:
            for command_id, node_id in await self._store.expire_commands(tx, COMMAND_TTL, KEEP_COMMANDS, BATCH):
                ended = CommandState.EXPIRED
                signal = CommandEnded(node_id=node_id, command_id=command_id, state=ended, detail="")
                tx.on_commit(partial(self._signals.emit, signal))

        await self._database.run(expire)

    async def _make_in(self, tx: Tx, node_ids: Sequence[NodeId], request: CommandRequest, by: str) -> list[NodeCommand]:
        """Store a command for each node, and the node's new desired state."""
        commands = [request.for_node(node_id, by) for node_id in sorted(node_ids)]
        # Read the states under the lock: if two commands are given at the same time, the second must build on the first
        # (0043).
        desired_states = await self._store.lock_desired_states(tx, [command.node_id for command in commands])
        changed: dict[NodeId, DesiredState] = {}
        for command in commands:
            if command.node_id in desired_states:
                changed[command.node_id] = desired_after(desired_states[command.node_id], command)
        await self._store.save_desired_states(tx, changed)
        await self._store.add_commands(tx, commands)
        made = [
            CommandMade(
                node_id=one.node_id, command_id=one.id, command=one.command, by=one.created_by, reason=one.reason
            )
            for one in commands
        ]
        tx.on_commit(lambda: self._emit(made))
        return commands

    async def _send(self, commands: Sequence[NodeCommand]) -> int:
        """Send the commands whose sessions are here, and afterwards record them as sent. A command that was recorded
        but never sent would be lost, while a command that is sent twice is applied only once."""
        sent = [command for command in commands if self._sessions.send(command.node_id, command)]
        if not sent:
            return 0
        silent, others = list[NodeCommand](), list[NodeCommand]()
        for command in sent:
            (others if self._sessions.acknowledges(command.node_id) else silent).append(command)

        async def commit(tx: Tx) -> None:
            await self._store.mark_sent(tx, [command.id for command in others])
            await self._store.mark_sent(tx, [command.id for command in silent], unconfirmed=True)
            tx.on_commit(lambda: self._emit_sent(others, silent))

        await self._database.run(commit)
        return len(sent)

    def _emit_sent(self, others: Sequence[NodeCommand], silent: Sequence[NodeCommand]) -> None:
        sent = [CommandSent(node_id=one.node_id, command_id=one.id, command=one.command) for one in (*others, *silent)]
        state = CommandState.UNCONFIRMED
        ended = [CommandEnded(node_id=one.node_id, command_id=one.id, state=state, detail="") for one in silent]
        self._emit([*sent, *ended])

    def _emit(self, signals: Sequence[Signal]) -> None:
        """Emit signals. Each signal is logged, so if there are many signals, emit only the first ones now, and the
        others in later callbacks of the event loop."""
        for signal in signals[:EMITTED_AT_ONCE]:
            self._signals.emit(signal)
        if len(signals) > EMITTED_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._emit, signals[EMITTED_AT_ONCE:])


def _found(node: Node | None, node_id: str) -> Node:
    if node is None:
        raise NotFound("node", node_id, "list the nodes with `shoal nodes ls`")
    return node

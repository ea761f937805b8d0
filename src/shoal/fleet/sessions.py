"""The sessions of this controller: which node is connected here, what it reported last, and the way to send to it.

They are kept in memory; a chore mirrors them to the store in one batch per second, however often nodes report.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec import structs

from shoal.access.tokens import Tokens
from shoal.base.clock import Clock
from shoal.base.errors import BackendUnavailable, InvalidInput, NodeDisplaced, ShoalError, Unauthenticated
from shoal.base.ids import NodeId, TokenId
from shoal.base.service import PassResult
from shoal.base.signals import Signal, Signals
from shoal.fleet.node import CommandAck, Heartbeat, NodeCommand, NodeStatus, is_same_process
from shoal.fleet.nodes import HeartbeatReceived, Nodes
from shoal.fleet.states import NodeState

if TYPE_CHECKING:
    from shoal.fleet.control_server import SessionStream

HEARTBEATS_PER_SECOND = 200  # from all nodes together; if there are more nodes, each reports less often
RENAME_FROM = 1.25  # nodes are asked for another interval when it has changed by this factor
LOG_EVERY_SECONDS = 60.0  # seconds between two logged heartbeats of a node
CLOCK_TOLERANCE = 60  # seconds by which a node's clock may be ahead before it is reported
SAVE_EVERY = timedelta(seconds=1)


class NodeClockOff(Signal, frozen=True, kw_only=True):
    """The clock of a node is ahead of ours. Nothing depends on it, but its logs will be misleading."""

    node_id: str
    ahead_seconds: int


class SessionRefused(Signal, frozen=True, kw_only=True):
    """The report of a node cannot be stored, so its session is ended; the sessions of other nodes continue."""

    node_id: str
    error: str


@dataclass(slots=True, eq=False)
class Session:
    """One session of a node. `own_interval`: at which the node reports unless it was asked to report less often."""

    node_id: NodeId
    epoch: int
    status: NodeStatus
    own_interval: timedelta
    stream: "SessionStream"
    heartbeat_every: timedelta
    token_id: TokenId | None = None  # with which it registered
    logged_at: float = -LOG_EVERY_SECONDS
    clock_checked: bool = False
    desired: NodeState = NodeState.CONNECTED  # for clients that do not report their state
    acks: list[CommandAck] = field(default_factory=list)  # not stored yet

    @property
    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self.node_id, self.epoch, self.status, stored_interval(self.heartbeat_every))


def stored_interval(every: timedelta) -> timedelta:
    """Return the heartbeat interval to store for a node: at least the interval at which heartbeats are written, because
    live nodes would otherwise be declared lost between two writes."""
    return max(every, SAVE_EVERY)


_STATE_AFTER = {"pause": NodeState.PAUSED, "resume": NodeState.CONNECTED, "drain": NodeState.DRAINING}


class Sessions:
    """The sessions of this process by node id; the newest of a node wins."""

    def __init__(self, clock: Clock, signals: Signals) -> None:
        self.clock = clock
        self.signals = signals
        self._sessions: dict[NodeId, Session] = {}
        self._unsaved: dict[NodeId, Session] = {}
        self._spread = timedelta(0)  # when nodes were last asked to report at another interval

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def send(self, node_id: NodeId, command: NodeCommand) -> bool:
        """Put a command on the stream of a node's current session; False if this process does not have it. Never waits.
        It may be lost with the stream, so a command counts as received only once it is acknowledged."""
        session = self._sessions.get(node_id)
        if session is None:
            return False
        session.desired = _STATE_AFTER.get(command.command, session.desired)
        session.stream.send(command)
        return True

    def acknowledges(self, node_id: NodeId) -> bool:
        session = self._sessions.get(node_id)
        return session is not None and session.status.acknowledges

    def begin(self, session: Session) -> bool:
        """Add a session and end the one that it replaces; False if a newer one is here already."""
        previous = self._sessions.get(session.node_id)
        # The store orders sessions; their registrations may return to us in another order (0043).
        if previous is not None and previous.epoch > session.epoch:
            return False
        self._sessions[session.node_id] = session
        session.heartbeat_every = max(session.own_interval, self.spread)
        self.received(session, session.status)
        if previous is not None:
            previous.stream.end(displacement(previous, session.status.instance))
        return True

    def received(self, session: Session, status: NodeStatus, acks: Sequence[CommandAck] = ()) -> None:
        """Process a status message of a session."""
        now = self.clock.monotonic()
        repeated = now - session.logged_at < LOG_EVERY_SECONDS
        if not repeated:
            session.logged_at = now
        if not session.clock_checked:
            self._check_clock(session, status)
        if not status.acknowledges:
            status = structs.replace(status, state=_state_of(session, status))
        session.status = status
        self._unsaved[session.node_id] = session
        score = status.health(status.queue_depth).value
        self.signals.emit(HeartbeatReceived(node_id=session.node_id, score=score, repeated=repeated))
        session.acks += acks

    def end(self, session: Session) -> bool:
        """Remove a session whose stream has ended; False if another one has taken its place."""
        if self._unsaved.get(session.node_id) is session:
            del self._unsaved[session.node_id]
        if self._sessions.get(session.node_id) is not session:
            return False
        del self._sessions[session.node_id]
        return True

    @property
    def spread(self) -> timedelta:
        """The shortest interval at which this many nodes may report."""
        return timedelta(seconds=len(self._sessions) / HEARTBEATS_PER_SECOND)

    def name_heartbeats(self) -> None:
        """Tell all nodes the interval that their number requires, if it has changed much."""
        spread = self.spread
        if self._spread / RENAME_FROM <= spread <= self._spread * RENAME_FROM:
            return
        self._spread = spread
        for session in self._sessions.values():
            every = max(session.own_interval, spread)
            if every != session.heartbeat_every:
                session.heartbeat_every = every
                session.stream.name_heartbeat(every)

    def take_unsaved(self) -> list[Session]:
        unsaved, self._unsaved = list(self._unsaved.values()), {}
        return unsaved

    def put_unsaved(self, sessions: Sequence[Session]) -> None:
        """Save these again: the store did not take them. A newer status of the same session is kept."""
        for session in sessions:
            if self._sessions.get(session.node_id) is session:
                self._unsaved.setdefault(session.node_id, session)

    def refuse(self, session: Session, error: Exception) -> None:
        """End a session whose data the store refuses."""
        session.acks.clear()
        self.signals.emit(SessionRefused(node_id=session.node_id, error=repr(error)))
        session.stream.end(InvalidInput("the status", "cannot be stored", "register again with valid values"))

    def end_all(self, error: ShoalError) -> None:
        for session in self.all():
            session.stream.end(error)

    def _check_clock(self, session: Session, status: NodeStatus) -> None:
        ahead = status.sent_at - int(self.clock.now().timestamp())
        if ahead > CLOCK_TOLERANCE:
            session.clock_checked = True
            self.signals.emit(NodeClockOff(node_id=session.node_id, ahead_seconds=ahead))


def displacement(session: Session, instance: str) -> ShoalError | None:
    """Return the error with which a session ends because its node has a newer one; None if the same process opened the
    newer one, and therefore knows."""
    return None if is_same_process(instance, session.status.instance) else NodeDisplaced(session.node_id)


def _state_of(session: Session, status: NodeStatus) -> NodeState:
    """Return the state of a client that reports only whether it drains: that of the last command it was sent."""
    if status.is_draining or session.desired is NodeState.DRAINING:
        return NodeState.DRAINING if status.active_tasks else NodeState.DRAINED
    return session.desired


class SessionSaver:
    """A chore that stores what the nodes of this controller reported, and ends sessions that are no longer current."""

    name = "node_sessions"

    def __init__(self, sessions: Sessions, nodes: Nodes, tokens: Tokens) -> None:
        self._sessions = sessions
        self._nodes = nodes
        self._tokens = tokens

    async def run_once(self) -> PassResult:
        self._sessions.name_heartbeats()
        await self._end_without_token()
        sessions = self._sessions.take_unsaved()
        try:
            current = await self._heartbeat(sessions)
            for session in sessions:
                if session.node_id not in current:
                    await self._end(session)
                elif session.acks:
                    await self._acknowledge(session)
        except Exception:
            self._sessions.put_unsaved(sessions)
            raise
        return PassResult()

    async def _end_without_token(self) -> None:
        """End the sessions whose tokens were revoked, by whichever process, or have expired."""
        sessions = self._sessions.all()
        ended = await self._tokens.ended({one.token_id for one in sessions if one.token_id is not None})
        for session in sessions:
            if session.token_id in ended:
                session.stream.end(Unauthenticated("the token was revoked or has expired; create another one"))

    async def _heartbeat(self, sessions: Sequence[Session]) -> set[NodeId]:
        """Store statuses, but for those of sessions whose data the store refuses. If it refuses all, the fault is not
        in their data, and the sessions continue."""
        refused: list[tuple[Session, Exception]] = []
        current = await self._store(sessions, refused)
        if len(refused) == len(sessions) > 1:
            raise refused[0][1]
        for session, error in refused:
            self._sessions.refuse(session, error)
        return current | {session.node_id for session, _ in refused}

    async def _store(self, sessions: Sequence[Session], refused: list[tuple[Session, Exception]]) -> set[NodeId]:
        """Store statuses in one batch; halve a batch that the store refuses, until only refused sessions are left."""
        try:
            return await self._nodes.heartbeat([session.heartbeat for session in sessions])
        except ShoalError:
            raise
        except Exception as error:
            if len(sessions) == 1:
                refused.append((sessions[0], error))
                return set()
            middle = len(sessions) // 2
            return await self._store(sessions[:middle], refused) | await self._store(sessions[middle:], refused)

    async def _acknowledge(self, session: Session) -> None:
        acks = list(session.acks)
        try:
            await self._nodes.acknowledge(session.node_id, acks)
            del session.acks[: len(acks)]  # others may have arrived during the commit (0043)
        except ShoalError:
            raise
        except Exception as error:
            self._sessions.refuse(session, error)

    async def _end(self, session: Session) -> None:
        """End a session that the store does not know any more: another controller has the node, or it was lost."""
        node = await self._nodes.find(session.node_id)
        if node is None or node.session_epoch == session.epoch:
            error: ShoalError | None = BackendUnavailable("the session", "it has ended", "register again")
        else:
            error = displacement(session, node.status.instance)
        session.stream.end(error)

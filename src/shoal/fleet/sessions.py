"""The sessions of this controller: the connected nodes, their last reports, and their streams for sending.

Sessions are kept in memory. A chore copies them to the store in one batch per second, no matter how often nodes report.
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

HEARTBEATS_PER_SECOND = 200  # total for all nodes; if there are more nodes, each node reports less often
RENAME_FROM = 1.25  # nodes are asked to use a new interval when it has changed by this factor
LOG_EVERY_SECONDS = 60.0  # seconds between two logged heartbeats of a node
CLOCK_TOLERANCE = 60  # seconds by which a node's clock may be ahead before it is reported
SAVE_EVERY = timedelta(seconds=1)


class NodeClockOff(Signal, frozen=True, kw_only=True):
    """The clock of a node is ahead of ours. Shoal does not depend on a node's clock, but the node's logs will be
    misleading."""

    node_id: str
    ahead_seconds: int


class SessionRefused(Signal, frozen=True, kw_only=True):
    """The report of a node cannot be stored, so the node's session is ended. The sessions of other nodes continue."""

    node_id: str
    error: str


@dataclass(slots=True, eq=False)
class Session:
    """One session of a node. `own_interval`: the interval at which the node reports unless it was asked to report less
    often."""

    node_id: NodeId
    epoch: int
    status: NodeStatus
    own_interval: timedelta
    stream: "SessionStream"
    heartbeat_every: timedelta
    token_id: TokenId | None = None  # the token with which the node registered
    logged_at: float = -LOG_EVERY_SECONDS
    clock_checked: bool = False
    desired: NodeState = NodeState.CONNECTED  # last commanded state, for clients that do not report their state
    acks: list[CommandAck] = field(default_factory=list)  # acknowledgements that are not stored yet

    @property
    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self.node_id, self.epoch, self.status, stored_interval(self.heartbeat_every))


def stored_interval(every: timedelta) -> timedelta:
    """Return the heartbeat interval to store for a node. It is at least the interval at which heartbeats are written to
    the store, because otherwise live nodes would be declared lost between two writes."""
    return max(every, SAVE_EVERY)


_STATE_AFTER = {"pause": NodeState.PAUSED, "resume": NodeState.CONNECTED, "drain": NodeState.DRAINING}


class Sessions:
    """The sessions of this process by node id. The newest session of a node wins."""

    def __init__(self, clock: Clock, signals: Signals) -> None:
        self.clock = clock
        self.signals = signals
        self._sessions: dict[NodeId, Session] = {}
        self._unsaved: dict[NodeId, Session] = {}
        self._spread = timedelta(0)  # the interval at which nodes were last asked to report

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def send(self, node_id: NodeId, command: NodeCommand) -> bool:
        """Write a command to the stream of a node's current session; return False if this process does not have the
        session. This method never waits. The command may be lost with the stream, so it counts as received only once it
        is acknowledged."""
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
        """Add a session and end the session that it replaces. Return False if a newer session is already here."""
        previous = self._sessions.get(session.node_id)
        # The store orders sessions, but their registrations may return to us in a different order (0043).
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
        """Remove a session whose stream has ended. Return False if a newer session has taken its place."""
        if self._unsaved.get(session.node_id) is session:
            del self._unsaved[session.node_id]
        if self._sessions.get(session.node_id) is not session:
            return False
        del self._sessions[session.node_id]
        return True

    @property
    def spread(self) -> timedelta:
        """The shortest interval at which the current number of nodes may report."""
        return timedelta(seconds=len(self._sessions) / HEARTBEATS_PER_SECOND)

    def name_heartbeats(self) -> None:
        """If the interval that the number of nodes requires has changed much, tell all nodes the new interval."""
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
        """Mark these sessions as unsaved again, because the store did not accept them. If a session has a newer status,
        keep the newer status."""
        for session in sessions:
            if self._sessions.get(session.node_id) is session:
                self._unsaved.setdefault(session.node_id, session)

    def refuse(self, session: Session, error: Exception) -> None:
        """End a session because the store refuses its data."""
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
    """Return the error with which a session ends because its node has a newer session. Return None if the same process
    opened the newer session and therefore knows about it."""
    return None if is_same_process(instance, session.status.instance) else NodeDisplaced(session.node_id)


def _state_of(session: Session, status: NodeStatus) -> NodeState:
    """Return the state of a client that reports no state, but only whether it is draining. If it is not draining, its
    state follows from the last command that was sent to it."""
    if status.is_draining or session.desired is NodeState.DRAINING:
        return NodeState.DRAINING if status.active_tasks else NodeState.DRAINED
    return session.desired


class SessionSaver:
    """A chore that stores the reports of this controller's nodes, and ends sessions that are no longer current."""

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
        """End the sessions whose tokens have expired or were revoked, by this or any other process."""
        sessions = self._sessions.all()
        ended = await self._tokens.ended({one.token_id for one in sessions if one.token_id is not None})
        for session in sessions:
            if session.token_id in ended:
                session.stream.end(Unauthenticated("the token was revoked or has expired; create another one"))

    async def _heartbeat(self, sessions: Sequence[Session]) -> set[NodeId]:
        """Save the status of each session, except those whose data the store rejects. If the store rejects all of them,
        the data is not the cause, and the sessions continue."""
        refused: list[tuple[Session, Exception]] = []
        current = await self._store(sessions, refused)
        if len(refused) == len(sessions) > 1:
            raise refused[0][1]
        for session, error in refused:
            self._sessions.refuse(session, error)
        return current | {session.node_id for session, _ in refused}

    async def _store(self, sessions: Sequence[Session], refused: list[tuple[Session, Exception]]) -> set[NodeId]:
        """Save statuses in one batch. If the store rejects a batch, split it in half and try again, until only rejected
        sessions are left."""
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
            del session.acks[: len(acks)]  # more acknowledgements may have arrived during the commit (0043)
        except ShoalError:
            raise
        except Exception as error:
            self._sessions.refuse(session, error)

    async def _end(self, session: Session) -> None:
        """End a session that is no longer in the store, because a different controller has the node or the node was
        declared lost."""
        node = await self._nodes.find(session.node_id)
        if node is None or node.session_epoch == session.epoch:
            error: ShoalError | None = BackendUnavailable("the session", "it has ended", "register again")
        else:
            error = displacement(session, node.status.instance)
        session.stream.end(error)

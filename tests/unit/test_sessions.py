"""The sessions of a controller: what is logged, what is stored, and how often nodes report."""

from datetime import timedelta

import pytest

from shoal.base.clock import FakeClock
from shoal.base.errors import ShoalError
from shoal.base.ids import NodeId
from shoal.base.signals import Signal, Signals
from shoal.fleet.node import CommandAck, NodeCommand, NodeStatus
from shoal.fleet.nodes import HeartbeatReceived
from shoal.fleet.sessions import HEARTBEATS_PER_SECOND, Session, Sessions
from shoal.fleet.states import CommandState

TEN = timedelta(seconds=10)


class Stream:
    """Records what is sent on it."""

    def __init__(self) -> None:
        self.sent: list[NodeCommand] = []
        self.named: list[float] = []
        self.ended: list[ShoalError | None] = []

    def send(self, command: NodeCommand) -> None:
        self.sent.append(command)

    def name_heartbeat(self, every: timedelta) -> None:
        self.named.append(every.total_seconds())

    def end(self, error: ShoalError | None) -> None:
        self.ended.append(error)


class Bench:
    def __init__(self) -> None:
        self.clock, self.seen = FakeClock(), list[Signal]()
        signals = Signals()
        signals.subscribe(self.seen.append)
        self.sessions = Sessions(self.clock, signals)

    def begin(self, name: str = "node-1", epoch: int = 1, instance: str = "one") -> tuple[Session, Stream]:
        stream = Stream()
        status = NodeStatus(max_concurrency=2, instance=instance)
        session = Session(NodeId(name), epoch, status, TEN, stream, TEN)
        self.sessions.begin(session)
        return session, stream


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_heartbeat_is_logged_at_most_once_a_minute_per_node(bench: Bench) -> None:
    first, second = bench.begin("node-1")[0], bench.begin("node-2")[0]
    for _ in range(60):
        bench.clock.jump(2)
        for session in (first, second):
            bench.sessions.received(session, session.status)
    heartbeats = [signal for signal in bench.seen if isinstance(signal, HeartbeatReceived)]
    assert len(heartbeats) == 2 * 61
    for name in ("node-1", "node-2"):
        logged = [one for one in heartbeats if one.node_id == name and not one.repeated]
        assert len(logged) == 3  # at 0, 60 and 120 seconds


def test_the_newest_session_wins_whichever_begins_last(bench: Bench) -> None:
    _, old = bench.begin(epoch=1)
    newest, new = bench.begin(epoch=3, instance="two")
    [error] = old.ended
    assert error is not None
    assert error.code == "node_displaced"
    late = Session(NodeId("node-1"), 2, newest.status, TEN, Stream(), TEN)
    assert not bench.sessions.begin(late)
    assert bench.sessions.all() == [newest]
    assert not new.ended


def test_a_session_that_was_replaced_does_not_remove_its_successor(bench: Bench) -> None:
    old, stream = bench.begin(epoch=1)
    new, _ = bench.begin(epoch=2)
    assert stream.ended == [None]  # the same instance: it knows
    assert not bench.sessions.end(old)
    assert bench.sessions.all() == [new]
    assert bench.sessions.end(new)
    assert len(bench.sessions) == 0


def test_many_nodes_report_less_often(bench: Bench) -> None:
    fleet = [bench.begin(f"node-{number}") for number in range(20 * HEARTBEATS_PER_SECOND)]
    bench.sessions.name_heartbeats()
    assert {session.heartbeat_every for session, _ in fleet} == {timedelta(seconds=20)}
    first = fleet[0][1]
    assert first.named == [20]
    bench.begin("one-more")
    bench.sessions.name_heartbeats()
    assert first.named == [20]  # not for every change
    for session, _ in fleet[100:]:
        bench.sessions.end(session)
    bench.sessions.name_heartbeats()
    assert first.named == [20, 10]  # its own interval again


def test_a_session_that_could_not_be_stored_is_stored_later_in_its_newest_state(bench: Bench) -> None:
    session, _ = bench.begin()
    [taken] = bench.sessions.take_unsaved()
    assert taken is session
    assert bench.sessions.take_unsaved() == []
    bench.sessions.received(session, session.status, [CommandAck("cmd_1", CommandState.APPLIED)])
    bench.sessions.put_unsaved([taken])
    assert bench.sessions.take_unsaved() == [session]
    assert [ack.command_id for ack in session.acks] == ["cmd_1"]
    bench.sessions.end(session)
    bench.sessions.put_unsaved([taken])
    assert bench.sessions.take_unsaved() == []  # it is gone


def test_a_command_for_a_node_that_is_elsewhere_is_not_sent(bench: Bench) -> None:
    _, stream = bench.begin()
    command = NodeCommand(id="cmd_1", node_id=NodeId("node-1"), command="pause")
    assert bench.sessions.send(NodeId("node-1"), command)
    assert not bench.sessions.send(NodeId("node-2"), command)
    assert stream.sent == [command]
    assert bench.sessions.acknowledges(NodeId("node-1"))
    assert not bench.sessions.acknowledges(NodeId("node-2"))

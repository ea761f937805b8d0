"""The control plane over real connections: clients of the oldest protocol, our own client, and bad ones."""

import asyncio
import math
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from shoal.access.limits import AuthThrottle, ConnectionLimits, ConnectionsCut
from shoal.access.token import local_caller, mint
from shoal.base.clock import FakeClock, SystemClock
from shoal.base.errors import BackendUnavailable, BadConfig, NodeDisplaced, Unauthenticated
from shoal.base.ids import NodeId
from shoal.base.parsing import Address
from shoal.base.settings import ServeSettings
from shoal.base.signals import Signal, Signals
from shoal.fleet import control_port, control_server
from shoal.fleet.channel import KeepAlive, NodeAuthenticator
from shoal.fleet.control_client import CommandApplied, ControlConnected, ControlLost
from shoal.fleet.control_server import StreamFailed
from shoal.fleet.node import CommandRequest, NewSession, SessionBegun
from shoal.fleet.nodes import HeartbeatReceived, NodeDisconnected, NodeLeft, NodeRegistered, Nodes
from shoal.fleet.sessions import NodeClockOff
from shoal.fleet.states import CommandState, NodeState
from tests.support.control_plane import (
    PATIENCE,
    TLS,
    ControlPlane,
    CuttableProxy,
    ScriptedNode,
    connected,
    control_plane,
)
from tests.support.oldest_control_client import messages, open_session, status

Code = grpc.StatusCode
COMMANDS: list[dict[str, Any]] = [
    {"command": "config_update", "max_concurrency": 3, "rate_limit": 1.5},
    {"command": "pause", "reason": "upgrade"},
    {"command": "resume"},
    {"command": "drain", "reason": "move"},
    {"command": "restart_browser", "reason": "leak"},
]


@pytest.fixture
async def plane(sqlite_url: str) -> AsyncIterator[ControlPlane]:
    async with control_plane(sqlite_url) as plane:
        yield plane


async def refusal(call: Any, *sent: Any) -> tuple[grpc.StatusCode, str]:
    """Send messages, and return the status with which the server ends the stream."""
    try:
        for message in sent:
            await call.write(message)
        while await call.read() is not grpc.aio.EOF:
            pass
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    async with asyncio.timeout(PATIENCE):
        return await call.code(), await call.details()


async def test_a_client_of_the_oldest_protocol_registers_sends_heartbeats_and_gets_every_command(
    store_url: str,
) -> None:
    async with control_plane(store_url) as plane, plane.channel() as channel:
        call = open_session(channel)
        await call.write(status(active_tasks=1, success_rate=0.5, total_processed=10))
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
        await call.write(status(active_tasks=2, success_rate=0.75, total_processed=12))
        await plane.until(lambda: len(plane.of(HeartbeatReceived)) == 2)
        await plane.save()
        node = await plane.node("seed-1")
        assert node is not None
        assert (node.state, node.status.active_tasks, node.status.success_rate) == (NodeState.CONNECTED, 2, 0.75)
        for command in COMMANDS:
            given = await plane.app.fleet.nodes.send("seed-1", CommandRequest(**command), "me")
            got = await call.read()
            assert isinstance(got, messages()["ControlCommand"])
            assert got.WhichOneof("command") == command["command"]
            said = getattr(got, command["command"])
            assert {name: getattr(said, name) for name in command if name != "command"} == {
                name: value for name, value in command.items() if name != "command"
            }
            assert (await plane.app.fleet.nodes.command(given.id)).state is CommandState.UNCONFIRMED
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is Code.OK
        assert await plane.node("seed-1") is None
        assert len(plane.of(NodeLeft)) == 1
        assert plane.of(StreamFailed) == []


async def test_a_client_of_the_oldest_protocol_counts_as_what_it_was_told_to_be(plane: ControlPlane) -> None:
    async with plane.channel() as channel:
        call = open_session(channel)
        await call.write(status(active_tasks=1))
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
        for command, state in (("pause", "paused"), ("resume", "connected"), ("drain", "draining")):
            await plane.app.fleet.nodes.send("seed-1", CommandRequest(command=command), "me")  # type: ignore[arg-type]
            await call.write(status(active_tasks=1))
            await plane.until_node("seed-1", lambda node, state=state: node is not None and node.state == state)
        await call.write(status(active_tasks=0))
        await plane.until_node("seed-1", lambda node: node is not None and node.state is NodeState.DRAINED)


async def test_each_command_is_applied_once_and_acknowledged(plane: ControlPlane) -> None:
    nodes = plane.app.fleet.nodes
    async with connected(plane.address) as there:
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
        for place, command in enumerate(COMMANDS, 1):
            given = await nodes.send("node-1", CommandRequest(**command), "me")
            await there.node.applied.at_least(place)
            assert there.node.applied[-1].command == command["command"]
            plane.app.fleet.sessions.send(given.node_id, given)  # once more
            async with asyncio.timeout(PATIENCE):
                while (await nodes.command(given.id)).state is not CommandState.APPLIED:
                    await plane.save()
        assert len(there.node.applied) == len(COMMANDS)
        assert len([signal for signal in there.seen if type(signal) is CommandApplied]) == len(COMMANDS)


async def test_a_command_of_another_controller_reaches_the_node(sqlite_url: str) -> None:
    async with (
        control_plane(sqlite_url, controller="a/1") as first,
        control_plane(sqlite_url, controller="b/2") as other,
        connected(first.address) as there,
    ):
        await first.until(lambda: len(first.of(NodeRegistered)) == 1)
        given = await other.app.fleet.nodes.send("node-1", CommandRequest(command="pause"), "me")
        assert not there.node.applied
        await first.save()
        await there.node.applied.at_least(1)
        async with asyncio.timeout(PATIENCE):
            while (await other.app.fleet.nodes.command(given.id)).state is not CommandState.APPLIED:
                await first.save()


async def test_an_acknowledgement_that_was_lost_is_given_again_after_a_reconnect(plane: ControlPlane) -> None:
    nodes, proxy = plane.app.fleet.nodes, CuttableProxy(plane.address)
    async with proxy.listening() as address, connected(address) as there:
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
        given = await nodes.send("node-1", CommandRequest(command="pause"), "me")
        await there.node.applied.at_least(1)
        await plane.until(lambda: len(plane.app.fleet.sessions.all()[0].acks) == 1)
        plane.app.fleet.sessions.all()[0].acks.clear()  # the controller dies before it has stored it
        plane.app.fleet.sessions.end_all(BackendUnavailable("the controller", "it died", "try again"))
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 2)
        async with asyncio.timeout(PATIENCE):
            while (await nodes.command(given.id)).state is not CommandState.APPLIED:
                await plane.save()
        assert [command.id for command in there.node.applied if command.id] == [given.id]


async def test_commands_of_operators_are_sent_again_when_a_node_connects(plane: ControlPlane) -> None:
    nodes = plane.app.fleet.nodes
    async with connected(plane.address) as there:
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
        await nodes.send("node-1", CommandRequest(command="config_update", max_concurrency=7), "me")
        await nodes.send("node-1", CommandRequest(command="pause", reason="night"), "me")
        await there.node.applied.at_least(2)
    async with connected(plane.address, instance="two") as there:
        await there.node.applied.at_least(2)
        said = [(one.command, one.max_concurrency, one.reason) for one in there.node.applied]
        assert said == [("config_update", 7, ""), ("pause", None, "night")]


async def test_a_node_that_missed_a_resume_is_told_when_it_connects(plane: ControlPlane) -> None:
    node = ScriptedNode()
    async with plane.channel() as channel:
        call = open_session(channel)  # a client that reports its state as ours does
        await call.write(status("node-1"))
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
    async with connected(plane.address) as there:
        there.node.status = node.status.__class__(max_concurrency=1, instance="one", state=NodeState.PAUSED)
        plane.app.fleet.sessions.end_all(BackendUnavailable("the controller", "it died", "try again"))
        await there.node.applied.at_least(1)
        assert there.node.applied[0].command == "resume"


async def test_a_worker_is_displaced_by_another_instance_and_does_not_come_back(plane: ControlPlane) -> None:
    async with connected(plane.address) as first:
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
        async with connected(plane.address, instance="two"):
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(NodeDisplaced, match='as node "node-1"'):
                    await first.running
            node = await plane.until_node("node-1", lambda node: node is not None)
            assert node is not None
            assert node.status.instance == "two"
            [failed] = plane.of(StreamFailed)
            assert (failed.node_id, failed.type) == ("node-1", "node_displaced")
            assert plane.of(NodeRegistered)[1].displaced


async def test_a_worker_is_displaced_by_an_instance_on_another_controller(sqlite_url: str) -> None:
    async with (
        control_plane(sqlite_url, controller="a/1") as one,
        control_plane(sqlite_url, controller="b/2") as two,
        connected(one.address) as first,
    ):
        await one.until(lambda: len(one.of(NodeRegistered)) == 1)
        async with connected(two.address, instance="two"):
            await two.until(lambda: len(two.of(NodeRegistered)) == 1)
            first.client.nudge()
            await one.until(lambda: len(one.of(HeartbeatReceived)) >= 2)
            await one.save()
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(NodeDisplaced):
                    await first.running
            node = await two.node("node-1")
            assert node is not None
            assert node.controller == "b/2"


async def test_the_same_instance_replaces_its_own_stream_silently(plane: ControlPlane) -> None:
    proxy = CuttableProxy(plane.address)
    async with proxy.listening() as address, connected(address) as there:
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
        async with connected(plane.address) as again:  # the same process over another connection
            await plane.until(lambda: len(plane.of(NodeRegistered)) == 2)
            await plane.until(lambda: any(type(signal) is ControlLost for signal in there.seen))
            assert not there.running.done()
            assert plane.of(StreamFailed) == []
            await there.goodbye()
            assert not again.running.done()


async def test_a_node_connects_again_and_its_controller_may_have_restarted(sqlite_url: str) -> None:
    async with control_plane(sqlite_url) as plane:
        address = plane.address
        proxy = CuttableProxy(address)
        async with proxy.listening() as outside, connected(outside) as there:
            await plane.until(lambda: len(plane.app.fleet.sessions) == 1)
            plane.app.fleet.sessions.end_all(BackendUnavailable("the controller", "it died", "try again"))
            await plane.until(lambda: len(plane.of(NodeRegistered)) == 2)
            epochs = [signal.epoch for signal in there.seen if isinstance(signal, ControlConnected)]
            assert epochs == sorted(set(epochs))
            lost = [signal for signal in there.seen if isinstance(signal, ControlLost)]
            assert "UNAVAILABLE" in lost[0].error
            node = await plane.node("node-1")
            assert node is not None
            assert node.controller is not None


@pytest.mark.parametrize(("interval", "stored"), [("100ms", 1.0), ("900ms", 1.0), ("5s", 5.0)])
async def test_a_node_that_reports_more_often_than_is_stored_is_not_lost_between_two_writes(
    plane: ControlPlane, interval: str, stored: float
) -> None:
    async with connected(plane.address, GRPC_HEARTBEAT_INTERVAL=interval) as there:
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
        for _ in range(2):
            node = await plane.node("node-1")
            assert node is not None
            assert node.heartbeat_every == timedelta(seconds=stored)
            there.client.nudge()
            await plane.until(lambda: len(plane.of(HeartbeatReceived)) >= 2)
            await plane.save()


async def test_a_half_open_stream_is_noticed(sqlite_url: str) -> None:
    """With the usual settings a ping is sent after 15 s and must be answered within 10 s; here both are shorter."""
    usual = KeepAlive()
    assert usual.every + usual.timeout < timedelta(seconds=30)
    short = KeepAlive(timedelta(milliseconds=200), timedelta(milliseconds=200))
    async with control_plane(sqlite_url, short) as plane:
        proxy = CuttableProxy(plane.address)
        async with proxy.listening() as address, connected(address) as there:
            await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
            proxy.cut()
            there.running.cancel()  # a clean deregistration would wait for an answer
            await plane.until(lambda: bool(plane.of(NodeDisconnected) and plane.of(StreamFailed)))
            [failed] = plane.of(StreamFailed)
            assert (failed.node_id, failed.type) == ("node-1", "broken")
            node = await plane.node("node-1")
            assert node is not None
            assert node.controller is None


async def test_a_goodbye_removes_the_node_and_a_broken_stream_does_not(plane: ControlPlane) -> None:
    async with plane.channel() as channel:
        broken, polite = open_session(channel), open_session(channel)
        await broken.write(status("broken"))
        await polite.write(status("polite"))
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 2)
        broken.cancel()
        await polite.done_writing()
        await plane.until(lambda: bool(plane.of(NodeDisconnected) and plane.of(NodeLeft)))
    assert await plane.node("polite") is None
    node = await plane.node("broken")
    assert node is not None
    assert node.controller is None


@pytest.mark.parametrize(
    "first", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"], ids=["silent", "settings"]
)
async def test_idle_strangers_make_room_for_a_node_with_a_token(sqlite_url: str, first: bytes) -> None:
    limits = {"SHOAL_MAX_CONNECTIONS": "80", "SHOAL_MAX_PEER_CONNECTIONS": "80"}
    async with control_plane(sqlite_url, **limits) as plane:
        token = await plane.token(node_id="node-1")
        strangers = []
        for _ in range(100):
            strangers.append(await asyncio.open_connection("127.0.0.1", plane.address.port))
            strangers[-1][1].write(first)
        try:
            async with asyncio.timeout(5), connected(plane.address, SHOAL_NODE_TOKEN=token):
                await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
                for _ in range(20):  # newer strangers do not displace the node
                    strangers.append(await asyncio.open_connection("127.0.0.1", plane.address.port))
                await asyncio.gather(*(reader.read() for reader, _ in strangers[:100]), return_exceptions=True)
                assert len(plane.app.fleet.sessions) == 1
                assert len(plane.of(ConnectionsCut)) == 1
        finally:
            for _, writer in strangers:
                writer.close()


async def test_a_stranger_that_sends_nothing_is_closed(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_port, "FIRST_BYTE_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", plane.address.port)
    async with asyncio.timeout(PATIENCE):
        assert await reader.read() == b""
    writer.close()


async def test_a_peer_that_reads_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_port, "UNREAD_SECONDS", 0.2)
    limits, left = ConnectionLimits(ServeSettings(), SystemClock(), Signals()), asyncio.Event()
    monkeypatch.setattr(limits, "leave", lambda _: left.set())
    port = control_port.ControlPort(limits, Signals())

    async def end_in_the_middle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(bytes(30_000_000))
        writer.close()

    server = await asyncio.start_unix_server(end_in_the_middle, port.target().removeprefix("unix:"))
    address = await port.open(Address("127.0.0.1", 0))
    try:
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.connect(("127.0.0.1", address.port))
            peer.send(b"x")
            async with asyncio.timeout(PATIENCE):
                await left.wait()
    finally:
        await port.close()
        server.close()


async def test_connections_that_cannot_reach_grpc_are_one_warning_per_minute() -> None:
    clock, signals, seen = FakeClock(), Signals(), list[Signal]()
    signals.subscribe(seen.append)
    port = control_port.ControlPort(ConnectionLimits(ServeSettings(), clock, signals), signals)
    port.target()  # nobody listens there
    address = await port.open(Address("127.0.0.1", 0))

    async def connect_in_vain() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", address.port)
        writer.write(b"x")
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionResetError):
                await reader.read()
        writer.close()

    try:
        for _ in range(3):
            await connect_in_vain()
        clock.jump(60)
        await connect_in_vain()
    finally:
        await port.close()
    warned = [(one.closed, one.peer, one.error) for one in seen if isinstance(one, control_port.NodesNotForwarded)]
    assert warned == [(closed, "127.0.0.1", "no such file or directory") for closed in (1, 3)]


async def test_a_connection_that_is_reset_at_once_is_no_error(plane: ControlPlane) -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    for _ in range(20):
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.connect(("127.0.0.1", plane.address.port))
    async with plane.channel() as channel:
        await open_session(channel).write(status("later"))
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
    assert not problems


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose name leaves room for that of a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


async def test_the_folder_of_the_sockets_may_have_any_name(
    sqlite_url: str, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = short_folder / "50%20 é"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    async with control_plane(sqlite_url) as plane, plane.channel() as channel:  # without a token, only from loopback
        await open_session(channel).write(status("node-1"))
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
    assert not list(folder.iterdir())
    long = folder / ("x" * 100)
    long.mkdir()
    for unusable in (long, folder / "missing"):
        monkeypatch.setattr(tempfile, "tempdir", str(unusable))
        with pytest.raises(BadConfig, match="TMPDIR"):
            async with control_plane(sqlite_url):
                pass


async def test_health_checks_that_watch_and_reflection_are_counted(sqlite_url: str) -> None:
    async with control_plane(sqlite_url, SHOAL_GRPC_PEER_STREAMS="20") as plane, plane.channel() as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        watching = [watch(health_pb2.HealthCheckRequest()) for _ in range(10)]
        for call in watching:
            assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        reflecting = [reflect() for _ in range(10)]
        for call in reflecting:
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            await call.read()
        assert (await refusal(watch(health_pb2.HealthCheckRequest())))[0] is Code.RESOURCE_EXHAUSTED
        one_more = reflect()
        assert (await refusal(one_more, reflection_pb2.ServerReflectionRequest()))[0] is Code.RESOURCE_EXHAUSTED
        for call in (*watching, *reflecting):
            call.cancel()
        await plane.until(lambda: not plane.server._service._streams)


async def test_more_streams_of_one_peer_than_allowed_are_refused(sqlite_url: str) -> None:
    async with control_plane(sqlite_url, SHOAL_GRPC_PEER_STREAMS="50") as plane, plane.channel() as channel:
        calls = [open_session(channel) for _ in range(1000)]
        ends = [asyncio.create_task(refusal(call, status(f"node-{place}"))) for place, call in enumerate(calls)]
        await plane.until(lambda: sum(end.done() for end in ends) == 950)
        ended = [end.result() for end in ends if end.done()]
        # A client whose write fails because its stream has just ended makes up a status of its own.
        assert {code for code, said in ended if said != "Internal error from Core"} == {Code.RESOURCE_EXHAUSTED}
        assert len(plane.app.fleet.sessions) == 50
        assert [failed.type for failed in plane.of(StreamFailed)] == ["rate_limited"] * 950
        assert [failed.repeated for failed in plane.of(StreamFailed)].count(False) == 1
        for call in calls:
            call.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        await plane.until(lambda: not plane.server._service._streams)
        again = open_session(channel)
        await again.write(status("later"))
        await plane.until(lambda: plane.of(NodeRegistered)[-1].node_id == "later")


@pytest.mark.parametrize("at_first", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
async def test_a_message_of_a_hundred_megabytes_is_refused(plane: ControlPlane, at_first: bool) -> None:
    huge = status("x" * 100_000_000)
    async with plane.channel(**{"grpc.max_send_message_length": -1}) as channel:
        call = open_session(channel)
        assert (await refusal(call, *([huge] if at_first else [status(), huge])))[0] is Code.RESOURCE_EXHAUSTED
        await plane.until(lambda: len(plane.of(StreamFailed)) == 1)
        again = open_session(channel)
        await again.write(status("later"))
        await plane.until(lambda: bool(plane.of(NodeRegistered)) and plane.of(NodeRegistered)[-1].node_id == "later")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"node_id": "a/b"}, "node_id"),
        ({"node_id": "a" * 300}, "node_id"),
        ({"node_id": ""}, "node_id"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": -3}, "max_concurrency"),
        ({"success_rate": math.nan}, "success_rate"),
        ({"avg_latency_sec": math.inf}, "avg_latency_sec"),
        ({"queue_depth": -1}, "queue_depth"),
    ],
)
async def test_a_bad_first_message_is_refused_with_its_field_and_one_log_line(
    plane: ControlPlane, fields: dict[str, Any], named: str
) -> None:
    async with plane.channel() as channel:
        code, said = await refusal(open_session(channel), status(**{"node_id": "bad", **fields}))
    assert code is Code.INVALID_ARGUMENT
    assert named in said
    [failed] = plane.of(StreamFailed)
    assert (failed.node_id, failed.type, failed.repeated) == ("", "invalid_input", False)
    assert await plane.app.fleet.nodes.list_all() == []


async def test_a_bad_heartbeat_ends_the_stream_and_the_node_may_come_back(plane: ControlPlane) -> None:
    async with plane.channel() as channel:
        for second in (status(success_rate=math.nan), status("another")):
            code, _ = await refusal(open_session(channel), status(), second)
            assert code is Code.INVALID_ARGUMENT
        await plane.until(lambda: len(plane.of(NodeDisconnected)) == 2)
        assert [failed.node_id for failed in plane.of(StreamFailed)] == ["seed-1"] * 2


async def test_bytes_that_are_no_message_are_refused(plane: ControlPlane) -> None:
    async with plane.channel() as channel:
        call = channel.stream_stream("/control.CrawlerControl/Session")()
        assert (await refusal(call, b"\xff\xff\xff\xff"))[0] is Code.INVALID_ARGUMENT


async def test_an_unexpected_error_names_nothing_of_ours(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin(*given: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(control_server.ControlService, "_begin", begin)
    async with plane.channel() as channel:
        code, said = await refusal(open_session(channel), status())
    assert (code, said) == (Code.INTERNAL, "unexpected error; see the log of the controller")
    [failed] = plane.of(StreamFailed)
    assert (failed.type, failed.error) == ("unexpected", "ZeroDivisionError('a secret')")


async def test_a_stream_without_a_message_is_ended(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    async with plane.channel() as channel:
        silent = open_session(channel)
        await silent.done_writing()
        assert (await refusal(silent))[0] is Code.INVALID_ARGUMENT
        monkeypatch.setattr(control_server, "FIRST_MESSAGE_SECONDS", 0.05)
        assert (await refusal(open_session(channel)))[0] is Code.DEADLINE_EXCEEDED


async def test_a_clock_that_is_ahead_is_noted_once(plane: ControlPlane) -> None:
    async with plane.channel() as channel:
        call = open_session(channel)
        for _ in range(3):
            await call.write(status(timestamp=9_999_999_999))
        await plane.until(lambda: len(plane.of(HeartbeatReceived)) == 3)
        [noted] = plane.of(NodeClockOff)
        assert noted.ahead_seconds > 1_000_000


async def test_a_node_elsewhere_is_told_to_create_an_admin_token_first(plane: ControlPlane) -> None:
    authenticator = NodeAuthenticator(plane.app.access.tokens, AuthThrottle(SystemClock()))
    with pytest.raises(Unauthenticated, match=r"(?s)--role admin.*--role node"):
        await authenticator.admit(NodeId("seed-1"), [], "192.0.2.7")


async def test_only_the_token_of_a_node_lets_it_in(plane: ControlPlane) -> None:
    token, other = await plane.token(node_id="seed-1"), await plane.token(node_id="seed-2")
    admin = await plane.token("admin")
    async with plane.channel() as channel:
        for shown, code in (
            (None, Code.UNAUTHENTICATED),
            ("shl_nonsense", Code.UNAUTHENTICATED),
            (mint()[1], Code.UNAUTHENTICATED),
            (other, Code.PERMISSION_DENIED),
            (admin, Code.PERMISSION_DENIED),
        ):
            got, said = await refusal(open_session(channel, shown), status())
            assert (shown, got) == (shown, code)
            assert "shoal tokens create --role node" in said
        assert plane.of(NodeRegistered) == []
        assert {failed.node_id for failed in plane.of(StreamFailed)} == {""}
        await open_session(channel, token).write(status())
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
        for _ in range(12):
            await refusal(open_session(channel, mint()[1]), status())
        assert (await refusal(open_session(channel, mint()[1]), status()))[0] is Code.RESOURCE_EXHAUSTED
        lines = [failed for failed in plane.of(StreamFailed) if not failed.repeated]
        assert sorted(failed.type for failed in lines) == ["not_allowed", "rate_limited", "unauthenticated"]


async def test_a_revoked_token_ends_the_session(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await plane.token(node_id="seed-1")
    await plane.token("admin")
    monkeypatch.setattr(control_server, "ADMIT_EVERY_SECONDS", 0.0)
    async with plane.channel() as channel:
        call = open_session(channel, token)
        for heartbeats in (1, 2, 3):
            await call.write(status())
            await plane.until(lambda expected=heartbeats: len(plane.of(HeartbeatReceived)) == expected)
        [of_node] = [one for one in await plane.app.access.tokens.newest() if one.node_id == "seed-1"]
        await plane.app.access.tokens.revoke(of_node.id, local_caller())
        assert (await refusal(call, status()))[0] is Code.UNAUTHENTICATED


async def test_a_token_that_another_process_revokes_ends_the_session_without_a_heartbeat(store_url: str) -> None:
    async with control_plane(store_url) as plane, control_plane(store_url) as other, plane.channel() as channel:
        call = open_session(channel, await plane.token(node_id="seed-1"))
        await call.write(status())
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
        await plane.save()
        assert len(plane.app.fleet.sessions) == 1
        [of_node] = [one for one in await other.app.access.tokens.newest() if one.node_id == "seed-1"]
        await other.app.access.tokens.revoke(of_node.id, local_caller())
        await plane.save()  # a chore, every second
        code, said = await refusal(call)
        assert code is Code.UNAUTHENTICATED
        assert "revoked" in said


async def test_metadata_of_a_megabyte_is_refused(plane: ControlPlane) -> None:
    async with plane.channel(**{"grpc.max_metadata_size": 1 << 24}) as channel:
        code, _ = await refusal(open_session(channel, "x" * 1_000_000), status())
        assert code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE, Code.INTERNAL)
        await open_session(channel).write(status())
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)


async def test_our_client_shows_its_token(plane: ControlPlane) -> None:
    token = await plane.token(node_id="node-1")
    async with connected(plane.address) as there:
        await plane.until(lambda: len(plane.of(StreamFailed)) >= 2)  # it keeps trying: a token may be created later
        assert not there.running.done()
    async with connected(plane.address, SHOAL_NODE_TOKEN=token):
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)


async def test_nodes_connect_over_tls_and_a_replaced_certificate_is_used(sqlite_url: str, tmp_path: Path) -> None:
    pair = tmp_path / "pair.pem"
    pair.write_bytes((TLS / "loopback_self_signed.pem").read_bytes())
    given = {"SHOAL_TLS_CERT": str(pair), "SHOAL_TLS_KEY": str(pair)}
    async with control_plane(sqlite_url, **given) as plane:
        authority = str(TLS / "loopback_authority.pem")
        async with connected(plane.address) as there:  # without TLS
            await plane.until(lambda: len(there.seen) >= 1)
            assert isinstance(there.seen[0], ControlLost)
        async with connected(plane.address, SHOAL_GRPC_CA=authority) as there:
            await plane.until(lambda: len(there.seen) >= 2)
            assert {type(signal) for signal in there.seen} == {ControlLost}
            pair.write_bytes((TLS / "loopback.pem").read_bytes())
            await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)


async def test_health_and_reflection_are_answered_without_a_token(plane: ControlPlane) -> None:
    await plane.token("admin")
    async with plane.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "control.CrawlerControl"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        asking = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await asking.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = await asking.read()
        await asking.done_writing()
        names = {service.name for service in listed.list_services_response.service}
        assert {"control.CrawlerControl", "grpc.health.v1.Health"} <= names


async def test_a_graceful_stop_tells_every_node_and_stores_it(sqlite_url: str) -> None:
    async with control_plane(sqlite_url) as plane:
        channel = plane.channel()
        call = open_session(channel)
        await call.write(status())
        await plane.until(lambda: len(plane.app.fleet.sessions) == 1)
        await plane.server.stop()
        code, said = await refusal(call)
        assert code is Code.UNAVAILABLE
        assert "connect again" in said
        assert plane.of(StreamFailed) == []
        node = await plane.node("seed-1")
        assert node is not None
        assert node.controller is None
        await channel.close()


async def test_a_node_that_registers_during_a_stop_is_told_too(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with control_plane(sqlite_url) as plane:
        register = Nodes.register

        async def register_during_stop(nodes: Nodes, new: NewSession) -> SessionBegun:
            begun = await register(nodes, new)
            await plane.server._service.stop()
            return begun

        monkeypatch.setattr(Nodes, "register", register_during_stop)
        async with plane.channel() as channel:
            call = open_session(channel)
            await call.write(status())
            code, said = await asyncio.wait_for(refusal(call), PATIENCE)
        assert code is Code.UNAVAILABLE
        assert "connect again" in said
        node = await plane.node("seed-1")
        assert node is not None
        assert node.controller is None


async def test_a_taken_port_is_an_error_and_not_shared(plane: ControlPlane) -> None:
    with pytest.raises(BackendUnavailable, match="GRPC_LISTEN_ADDR"):
        await plane.app.fleet.control_server().start(Address("127.0.0.1", plane.address.port))

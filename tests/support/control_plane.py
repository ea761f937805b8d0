"""A control plane that listens in this process, nodes for it, and a connection that can be cut silently."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from shoal.access.token import TokenRequest, local_caller
from shoal.app import App, opened
from shoal.base.clock import SystemClock
from shoal.base.ids import NodeId
from shoal.base.parsing import Address
from shoal.base.settings_loader import load
from shoal.base.signals import Signal, Signals
from shoal.fleet.channel import KeepAlive
from shoal.fleet.control_client import ControlClient
from shoal.fleet.control_server import ControlServer
from shoal.fleet.node import CommandAck, Node, NodeCommand, NodeStatus
from shoal.fleet.states import CommandState
from tests.support.recorder import Told

PATIENCE = 30.0
CLOCK = SystemClock()


@dataclass
class ControlPlane:
    """A controller's end, on a store of its own or one that others share."""

    app: App
    server: ControlServer
    address: Address
    seen: list[Signal] = field(default_factory=list)

    def channel(self, **options: Any) -> grpc.aio.Channel:
        given = [("grpc.use_local_subchannel_pool", 1), *options.items()]
        return grpc.aio.insecure_channel(str(self.address), given)

    def of(self, kind: type[Signal]) -> list[Any]:
        return [signal for signal in self.seen if type(signal) is kind]

    async def save(self) -> None:
        """Do what the chores of a controller do every second."""
        await self.app.fleet.session_saver.run_once()
        await self.app.fleet.nodes.send_waiting()

    async def node(self, node_id: str) -> Node | None:
        return await self.app.fleet.nodes.find(node_id)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await CLOCK.sleep(0.01)

    async def until_node(self, node_id: str, condition: Callable[[Node | None], bool]) -> Node | None:
        async with asyncio.timeout(PATIENCE):
            while not condition(node := await self.node(node_id)):
                await self.save()
                await CLOCK.sleep(0.01)
        return node

    async def token(self, role: str = "node", **more: Any) -> str:
        tokens = self.app.access.tokens
        if role != "admin" and not await tokens.any_made():
            await tokens.create(TokenRequest(name="first", role="admin"), local_caller())
        wish = TokenRequest.read({"name": "test", "role": role, **more})
        return (await tokens.create(wish, local_caller())).text


@asynccontextmanager
async def control_plane(
    store_url: str, keepalive: KeepAlive | None = None, controller: str = "", **given: str
) -> AsyncIterator[ControlPlane]:
    settings = load({"DATABASE_URL": store_url, "GRPC_ENABLED": "true", **given}, env={}).settings
    signals, seen = Signals(), list[Signal]()
    signals.subscribe(seen.append)
    async with opened(settings, signals, controls=True) as app:
        if controller:
            app.process_name = controller
        server = app.fleet.control_server(keepalive)
        address = await server.start(Address("127.0.0.1", 0))
        try:
            yield ControlPlane(app, server, address, seen)
        finally:
            await server.stop()


class ScriptedNode:
    """A node that reports what the test says, and records the commands that it applied."""

    def __init__(self, instance: str = "one") -> None:
        self.status = NodeStatus(max_concurrency=2, instance=instance, page_slots=4)
        self.is_stopping = False
        self.applied: Told[NodeCommand] = Told()

    async def measure(self) -> NodeStatus:
        return self.status

    async def apply(self, command: NodeCommand) -> CommandAck:
        self.applied(command)
        return CommandAck(command.id, CommandState.APPLIED)


@dataclass
class Connected:
    """A client of the control plane in this process, with a record of its events."""

    node: ScriptedNode
    client: ControlClient
    running: "asyncio.Task[None]"
    seen: list[Signal]

    async def goodbye(self) -> None:
        self.client.close()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(self.running, return_exceptions=True)


@asynccontextmanager
async def connected(
    address: Address, node_id: str = "node-1", instance: str = "one", **given: str
) -> AsyncIterator[Connected]:
    quick = {"GRPC_RECONNECT_BACKOFF": "50ms", "GRPC_MAX_RECONNECT_BACKOFF": "100ms", "GRPC_HEARTBEAT_INTERVAL": "1m"}
    settings = load({"GRPC_ANALYZER_ADDR": str(address), **quick, **given}, env={}).settings.grpc
    signals, seen = Signals(), list[Signal]()
    signals.subscribe(seen.append)
    node = ScriptedNode(instance)
    client = ControlClient(NodeId(node_id), node, settings, CLOCK, signals)
    there = Connected(node, client, asyncio.create_task(client.run()), seen)
    try:
        yield there
    finally:
        await there.goodbye()


class CuttableProxy:
    """Forwards one port to another until it is cut: then both ends stay open and nothing arrives any more."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._is_cut = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Address]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        try:
            yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in self._writers:
                writer.close()

    def cut(self) -> None:
        self._is_cut = True

    def mend(self) -> None:
        """Forward again. Existing connections are reset."""
        self._is_cut = False
        self.reset()

    def reset(self) -> None:
        """Reset all connections; new ones are forwarded."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def lead_to(self, target: Address) -> None:
        """Forward new connections to another address."""
        self._target = target

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:  # nobody listens there
            writer.close()
            return
        self._writers.append(back)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._forward(source, sink))
            self._tasks.add(task)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                if not self._is_cut:
                    sink.write(data)
                    await sink.drain()
        if not self._is_cut:
            sink.close()


TLS = Path(__file__).parent / "tls"

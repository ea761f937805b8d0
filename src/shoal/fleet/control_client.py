"""The worker's end of the control plane. It registers the worker's node with a controller, reports the node's status,
applies commands, and reconnects when the stream breaks off."""

import asyncio
import random
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import grpc

from shoal.base.clock import Clock
from shoal.base.errors import BadConfig, NodeDisplaced
from shoal.base.ids import NodeId
from shoal.base.settings import GrpcSettings
from shoal.base.signals import Signal, Signals
from shoal.fleet.channel import AUTHORIZATION, DISPLACED, LARGEST_MESSAGE, KeepAlive
from shoal.fleet.messages import StatusUpdate, read_command, status_message
from shoal.fleet.node import CommandAck, NodeCommand, NodeStatus
from shoal.fleet.wire.control_pb2 import ControlCommand
from shoal.fleet.wire.control_pb2_grpc import CrawlerControlStub

REMEMBERED = 1000  # number of commands whose acknowledgements are kept, in case the commands are sent again
GOODBYE_SECONDS = 5.0  # time for the controller to record the end of the session
STEADY_SECONDS = 60.0  # a session that lasted this long was a success, no matter how it ended
JITTER = 0.9  # heartbeats are sent after at least this fraction of the interval


class ControlConnected(Signal, frozen=True, kw_only=True):
    """A controller has registered this node."""

    node_id: str
    controller: str
    epoch: int


class ControlLost(Signal, frozen=True, kw_only=True):
    """The node has no session with a controller. Its jobs continue, and it reconnects after a while."""

    node_id: str
    controller: str
    error: str
    retry_in_seconds: float


class CommandApplied(Signal, frozen=True, kw_only=True):
    """This node has processed a command. `result`: `applied`, `unsupported` or `failed`."""

    node_id: str
    command_id: str
    command: str
    reason: str
    result: str
    detail: str


class ControlledNode(Protocol):
    """The methods of a worker that the control plane needs."""

    async def measure(self) -> NodeStatus: ...

    @property
    def is_stopping(self) -> bool: ...

    async def apply(self, command: NodeCommand) -> CommandAck:
        """Apply a command and return the result. This method returns soon and never raises: it only begins a drain, and
        it gives up a restart of the browsers after a minute."""
        ...


class ControlClient:
    """Keeps a session with a controller. `nudge` makes the client report immediately, after an important change."""

    def __init__(
        self,
        node_id: NodeId,
        node: ControlledNode,
        settings: GrpcSettings,
        clock: Clock,
        signals: Signals,
        keepalive: KeepAlive | None = None,
    ) -> None:
        self._node_id = node_id
        self._node = node
        self._settings = settings
        self._clock = clock
        self._signals = signals
        self._keepalive = keepalive or KeepAlive()
        self._credentials = _credentials(settings.ca)
        self._controller = str(settings.controller)
        self._answers: OrderedDict[str, CommandAck] = OrderedDict()  # acknowledgements of applied commands, by id
        self._acks: list[CommandAck] = []  # acknowledgements that are not sent yet
        self._named_seconds = 0.0
        self._registered = False  # whether the node is registered in this session
        self._due = asyncio.Event()
        self._closing = asyncio.Event()

    def nudge(self) -> None:
        """Report now."""
        self._due.set()

    def close(self) -> None:
        """End the session regularly; `run` returns soon."""
        self._closing.set()
        self._due.set()

    async def run(self) -> None:
        """Stay connected until `close`. Raise `NodeDisplaced` if a different worker has taken over the node id."""
        failures = 0
        while not self._closing.is_set():
            self._registered, self._named_seconds = False, 0.0
            error, began = "the controller ended the session", self._clock.monotonic()
            try:
                await self._session()
            except grpc.aio.AioRpcError as failed:
                if failed.code() is grpc.StatusCode.ABORTED and DISPLACED in list(failed.trailing_metadata() or ()):
                    raise NodeDisplaced(self._node_id) from None
                error = f"{failed.code().name}: {failed.details()}"
            except Exception as unexpected:  # a worker continues to work without a control plane
                error = repr(unexpected)
            if self._closing.is_set():
                return
            is_good = self._registered or self._clock.monotonic() - began > STEADY_SECONDS
            failures = 0 if is_good else failures + 1
            pause = self._backoff(failures)
            self._signals.emit(
                ControlLost(node_id=self._node_id, controller=self._controller, error=error, retry_in_seconds=pause)
            )
            await self._wait(self._closing, pause)

    def _backoff(self, failures: int) -> float:
        """Return the seconds until the next attempt, given the number of failed attempts in a row. Jitter prevents all
        nodes of a dead controller from reconnecting at the same time."""
        first = self._settings.reconnect_backoff.total_seconds()
        longest = self._settings.max_reconnect_backoff.total_seconds()
        delay = first * 2.0 ** min(max(failures - 1, 0), 30)
        return random.uniform(min(delay, longest / 1.5), min(1.5 * delay, longest))

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait for an event, but no longer than this."""
        waiting = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._clock.sleep(seconds))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    async def _session(self) -> None:
        """Hold one session. Each session has a separate connection, so that a new attempt resolves the controller's
        name again."""
        async with self._channel() as channel:
            metadata = [(AUTHORIZATION, f"Bearer {self._settings.token}")] if self._settings.token else []
            call: Any = CrawlerControlStub(channel).Session(metadata=metadata)
            reporting, receiving = asyncio.create_task(self._report(call)), asyncio.create_task(self._receive(call))
            try:
                await asyncio.wait({reporting, receiving}, return_when=asyncio.FIRST_COMPLETED)
                if reporting.done():
                    reporting.result()  # re-raises errors that do not concern the stream
                with suppress(TimeoutError):
                    async with asyncio.timeout(GOODBYE_SECONDS):
                        await receiving
            finally:
                reporting.cancel()
                receiving.cancel()
                await asyncio.gather(reporting, receiving, return_exceptions=True)
                call.cancel()

    def _channel(self) -> grpc.aio.Channel:
        options: list[tuple[str, Any]] = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", LARGEST_MESSAGE),
            *self._keepalive.options(),
        ]
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._controller, options)
        return grpc.aio.secure_channel(self._controller, self._credentials, options)

    async def _report(self, call: Any) -> None:
        """Send the status: first to register, then at intervals and after important changes. At the end, half-close the
        stream."""
        own = self._settings.heartbeat_interval
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the receiver reports the end of the stream
            while True:
                self._due.clear()
                closing, acks = self._closing.is_set(), self._acks
                status = await self._node.measure()
                self._acks = []
                update = StatusUpdate(node_id=self._node_id, status=status, acks=acks, heartbeat_every=own)
                await call.write(status_message(update, stopping=closing or self._node.is_stopping))
                if closing:
                    await call.done_writing()
                    return
                seconds = max(own.total_seconds(), self._named_seconds) * random.uniform(JITTER, 1)
                await self._wait(self._due, seconds)

    async def _receive(self, call: Any) -> None:
        """Process the messages of the controller until the stream ends."""
        while isinstance(message := await call.read(), ControlCommand):
            await self._take_in(message)

    async def _take_in(self, message: ControlCommand) -> None:
        if not self._registered:
            self._registered = True
            self._signals.emit(
                ControlConnected(node_id=self._node_id, controller=self._controller, epoch=message.session_epoch)
            )
        if message.next_heartbeat_seconds > 0:
            self._named_seconds = message.next_heartbeat_seconds
        command = read_command(self._node_id, message)
        if command is None:
            return
        ack = self._answers.get(command.id) if command.id else None
        if ack is None:
            ack = await self._node.apply(command)
            self._signals.emit(
                CommandApplied(
                    node_id=self._node_id,
                    command_id=command.id,
                    command=command.command,
                    reason=command.reason,
                    result=ack.state.value,
                    detail=ack.detail,
                )
            )
        if command.id:
            self._answers[command.id] = ack
            while len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
            self._acks.append(ack)
        self.nudge()


def _credentials(ca: Path | None) -> grpc.ChannelCredentials | None:
    if ca is None:
        return None
    try:
        return grpc.ssl_channel_credentials(ca.read_bytes())
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise BadConfig("SHOAL_GRPC_CA", f"names {ca}, which cannot be read ({why})", "use a PEM file") from None

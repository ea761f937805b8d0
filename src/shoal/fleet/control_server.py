"""The gRPC server of the control plane. A node's first message registers the node, later messages are heartbeats, and
the end of the stream deregisters the node. Health checks and reflection need no token."""

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

from shoal.base.errors import BackendUnavailable, InvalidInput, RateLimited, ShoalError, WaitTimedOut
from shoal.base.ids import NodeId, TokenId
from shoal.base.parsing import Address
from shoal.base.settings import GrpcSettings
from shoal.base.signals import Signal
from shoal.fleet.channel import DISPLACED, LARGEST_MESSAGE, KeepAlive, NodeAuthenticator
from shoal.fleet.control_port import ControlPort
from shoal.fleet.messages import StatusUpdate, command_message, read_status_update
from shoal.fleet.node import NewSession, NodeCommand, SessionBegun, commands_to_reach
from shoal.fleet.nodes import Nodes
from shoal.fleet.sessions import Session as NodeSession
from shoal.fleet.sessions import Sessions, displacement, stored_interval
from shoal.fleet.states import NodeState
from shoal.fleet.wire.control_pb2 import DESCRIPTOR, ControlCommand, CrawlerStatus
from shoal.fleet.wire.control_pb2_grpc import CrawlerControlServicer, add_CrawlerControlServicer_to_server

LARGEST_METADATA = 8 * 1024
HANDSHAKE_SECONDS = 10  # for the TLS and HTTP/2 handshakes
IDLE_SECONDS = 60  # time after which a connection without a stream is closed
FIRST_MESSAGE_SECONDS = 10.0  # time for a node to register after it has opened a stream
# The server cannot immediately distinguish a half-close from a broken stream: only a broken stream is cancelled
# afterwards.
HALF_CLOSE_SECONDS = 0.1
# Seconds after which a node's credentials are checked again, because a token may be required by now.
ADMIT_EVERY_SECONDS = 300.0
STOP_SECONDS = 2.0  # time for streams to end when the server stops
MOST_UNREAD = 1000  # maximum number of commands that a node has not read yet
LOG_EVERY_SECONDS = 60.0  # seconds between two logged failures of the same kind from the same peer
MOST_REMEMBERED = 10_000
SERVICE = DESCRIPTOR.services_by_name["CrawlerControl"].full_name


StreamContext: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class StreamFailed(Signal, frozen=True, kw_only=True):
    """A node's stream was refused, broke off or was ended. `type` is an error code, `broken` or `unexpected`. `node_id`
    is empty if the peer did not prove that it is a node. `repeated`: a failure of this type was logged for this peer
    less than a minute ago."""

    node_id: str
    type: str
    address: str
    error: str
    repeated: bool


class SessionStream:
    """The server's end of one stream. No method waits: commands are written one after the other by a task. This task
    exists only while there are commands, because thousands of streams are idle."""

    __slots__ = ("_context", "_task", "_unwritten", "_writing", "epoch", "error", "is_ended", "names_heartbeats")

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._task = asyncio.current_task()
        self._unwritten: list[ControlCommand] = []  # rarely more than one command
        self._writing: asyncio.Task[None] | None = None
        self.epoch = 0
        self.names_heartbeats = False  # whether the client understands messages without a command
        self.is_ended = False
        self.error: ShoalError | None = None

    def send(self, command: NodeCommand) -> None:
        self._put(command_message(command))

    def name_heartbeat(self, every: timedelta) -> None:
        """Ask the node to report at this interval, if it is longer than the node's own interval."""
        if self.names_heartbeats:
            self._put(ControlCommand(next_heartbeat_seconds=every.total_seconds()))

    def end(self, error: ShoalError | None) -> None:
        """End the stream: with this error, or without an error because the node already has a newer stream."""
        if not self.is_ended and self._task is not None:
            self.is_ended, self.error = True, error
            self._task.cancel()

    def _put(self, message: ControlCommand) -> None:
        if len(self._unwritten) >= MOST_UNREAD:
            self.end(RateLimited(f"the node has not read the last {MOST_UNREAD} commands", 1))
            return
        message.session_epoch = self.epoch
        self._unwritten.append(message)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._unwritten and not self.is_ended:
                await self._context.write(self._unwritten.pop(0))
        except Exception:  # the stream is gone; the stream's reader notices that, too, and reports it
            self._unwritten.clear()
        finally:
            self._writing = None


class ControlService(CrawlerControlServicer):
    """The sessions of nodes, from their first message to their end."""

    def __init__(
        self,
        nodes: Nodes,
        sessions: Sessions,
        authenticator: NodeAuthenticator,
        *,
        port: ControlPort,
        settings: GrpcSettings,
    ) -> None:
        self._nodes = nodes
        self._sessions = sessions
        self._authenticator = authenticator
        self._port = port
        self._settings = settings
        self._clock = sessions.clock
        self._signals = sessions.signals
        self._streams: dict[str, int] = {}  # per address
        self._logged_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._storing: set[asyncio.Task[None]] = set()  # ends of sessions
        self._stopping = False

    # The method name is given by the protocol.
    async def Session(  # type: ignore[override]  # noqa: N802
        self, request_iterator: object, context: StreamContext
    ) -> None:
        stream, address = SessionStream(context), self._port.address_of(context.peer())
        node_id = ""
        try:
            self._enter(address)
            try:
                update = await self._first(context)
                token_id = await self._admit(update.node_id, context)
                node_id = update.node_id
                session = await self._begin(update, stream, address, token_id)
                del update  # this frame lives as long as the stream, and there are thousands of streams
                await self._receive(session, context)
            finally:
                self._leave(address)
            return
        except asyncio.CancelledError:
            if not stream.is_ended:  # we did not end it, so the peer is gone
                self._failed(node_id, address, "broken", "the stream broke off, or a message was too large")
                raise
            asyncio.current_task().uncancel()  # type: ignore[union-attr]
            error = stream.error
        except ShoalError as refusal:
            error = refusal
        except Exception as unexpected:
            self._failed(node_id, address, "unexpected", repr(unexpected))
            await context.abort(grpc.StatusCode.INTERNAL, "unexpected error; see the log of the controller")
        await self._abort(context, node_id, address, error)

    async def stop(self) -> None:
        """End all sessions. Their nodes connect again, to this controller or to a different one."""
        self._stopping = True
        self._sessions.end_all(_stop_error())

    async def settled(self) -> None:
        """Wait until the end of each session is stored."""
        while self._storing:
            await asyncio.wait(set(self._storing))

    @asynccontextmanager
    async def counted(self, context: StreamContext) -> AsyncIterator[None]:
        """Count a stream that needs no credential against its peer's limit; refuse streams above the limit."""
        address = self._port.address_of(context.peer())
        try:
            self._enter(address)
        except RateLimited as refusal:
            await self._abort(context, "", address, refusal)
        try:
            yield
        finally:
            self._leave(address)

    def _enter(self, address: str) -> None:
        """Count a stream; raise if its peer has too many streams."""
        most, count = self._settings.peer_streams, self._streams.get(address, 0)
        if count >= most:
            raise RateLimited(f"{address} already has {most} streams (SHOAL_GRPC_PEER_STREAMS)", 5)
        self._streams[address] = count + 1

    def _leave(self, address: str) -> None:
        self._streams[address] -= 1
        if not self._streams[address]:
            del self._streams[address]

    async def _admit(self, node_id: NodeId, context: StreamContext) -> TokenId | None:
        metadata = list(context.invocation_metadata() or ())
        token_id = await self._authenticator.admit(node_id, metadata, self._port.address_of(context.peer()))
        self._port.prove(context.peer())
        return token_id

    async def _first(self, context: StreamContext) -> StatusUpdate:
        try:
            async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
                update = await self._read(context)
        except TimeoutError:
            raise WaitTimedOut("the node sent no message", FIRST_MESSAGE_SECONDS) from None
        if update is None:
            raise InvalidInput("the first message", "is missing", "send a status to register")
        return update

    async def _read(self, context: StreamContext) -> StatusUpdate | None:
        """Read and check the next message; None if the node has half-closed the stream."""
        try:
            message = await context.read()
        except DecodeError:
            raise InvalidInput("the message", "is not a CrawlerStatus", "use proto/control.proto") from None
        if isinstance(message, CrawlerStatus):
            return read_status_update(message)
        await self._clock.sleep(HALF_CLOSE_SECONDS)  # if the stream is broken, this sleep is cancelled
        return None

    async def _begin(
        self, update: StatusUpdate, stream: SessionStream, address: str, token_id: TokenId | None
    ) -> NodeSession:
        own, status = update.heartbeat_every or self._settings.heartbeat_interval, update.status
        every = max(own, self._sessions.spread)
        begun = await self._nodes.register(
            NewSession(
                node_id=update.node_id,
                controller=self._nodes.controller,
                address=address,
                heartbeat_every=stored_interval(every),
                status=status,
            )
        )
        session = NodeSession(update.node_id, begun.epoch, status, own, stream, every, token_id)
        stream.epoch, stream.names_heartbeats = begun.epoch, status.acknowledges
        if not self._sessions.begin(session):  # the node registered again while this registration was in progress
            raise displacement(session, "") or AssertionError(session)
        if self._stopping:  # the other sessions were ended while this session was registered
            stream.end(_stop_error())
        stream.name_heartbeat(session.heartbeat_every)
        for command in commands_for(session, begun):
            self._sessions.send(update.node_id, command)
        return session

    async def _receive(self, session: NodeSession, context: StreamContext) -> None:
        """Process heartbeats until the node deregisters."""
        end: Callable[..., Awaitable[bool]] = self._nodes.disconnect
        admitted_at = self._clock.monotonic()
        try:
            while (update := await self._read(context)) is not None:
                if update.node_id != session.node_id:
                    problem = f'is "{update.node_id}" on the stream of "{session.node_id}"'
                    raise InvalidInput("node_id", problem, "open a separate stream for each node")
                self._sessions.received(session, update.status, update.acks)
                if self._clock.monotonic() - admitted_at > ADMIT_EVERY_SECONDS:
                    await self._admit(session.node_id, context)
                    admitted_at = self._clock.monotonic()
            end = self._nodes.deregister
        finally:
            if self._sessions.end(session):
                storing = asyncio.create_task(self._store(end, session))
                self._storing.add(storing)
                storing.add_done_callback(self._storing.discard)
                # Shielded, because cancelling the stream must not undo the store operation, and a deregistration waits
                # for it.
                await asyncio.shield(storing)

    async def _store(self, end: Callable[..., Awaitable[bool]], session: NodeSession) -> None:
        try:
            if session.acks:
                await self._nodes.acknowledge(session.node_id, session.acks)
            await end(session.node_id, session.epoch)
        except ShoalError as error:  # the node counts as lost after three missed heartbeats
            self._failed(session.node_id, "", error.code, f"the session end could not be stored: {error.message}")

    async def _abort(
        self,
        context: StreamContext,
        node_id: str,
        address: str,
        error: ShoalError | None,
    ) -> None:
        """End the stream with the status of an error. The error is None if the node already knows why the stream
        ends."""
        if error is None:
            return
        if not (self._stopping and isinstance(error, BackendUnavailable)):
            self._failed(node_id, address, error.code, error.message)
        trailing = (DISPLACED,) if error.code == "node_displaced" else ()
        await context.abort(grpc.StatusCode[error.response.grpc_status], error.message, trailing)

    def _failed(self, node_id: str, address: str, kind: str, error: str) -> None:
        now, key = self._clock.monotonic(), (node_id or address, kind)
        repeated = now - self._logged_at.get(key, -LOG_EVERY_SECONDS) < LOG_EVERY_SECONDS
        if not repeated:
            self._logged_at[key] = now
            self._logged_at.move_to_end(key)
            while len(self._logged_at) > MOST_REMEMBERED:
                self._logged_at.popitem(last=False)
        self._signals.emit(StreamFailed(node_id=node_id, type=kind, address=address, error=error, repeated=repeated))


def _stop_error() -> ShoalError:
    return BackendUnavailable("the controller", "it is stopping", "connect again")


def commands_for(session: NodeSession, begun: SessionBegun) -> Sequence[NodeCommand]:
    """Return the commands for a node that has just connected: they put the node into the state that operators want."""
    commands = commands_to_reach(session.node_id, begun.desired)
    if begun.desired.state == "connected" and session.status.state is not NodeState.CONNECTED:
        commands.append(NodeCommand(id="", node_id=session.node_id, command="resume"))  # the node missed that command
    return commands


class CountedHealth(health.aio.HealthServicer):
    """Health checks. Watch streams stay open, so they are counted."""

    def __init__(self, service: ControlService) -> None:
        super().__init__()
        self._service = service

    async def Watch(self, request: Any, context: StreamContext) -> None:  # noqa: N802
        async with self._service.counted(context):
            await super().Watch(request, context)


class CountedReflection(reflection.aio.ReflectionServicer):
    """The reflection service, whose streams are counted, too."""

    def __init__(self, service: ControlService, names: Sequence[str]) -> None:
        super().__init__(names)
        self._service = service

    async def ServerReflectionInfo(  # type: ignore[override]  # noqa: N802
        self, request_iterator: Any, context: StreamContext
    ) -> AsyncIterator[Any]:
        async with self._service.counted(context):
            responses: Any = super().ServerReflectionInfo(request_iterator, context)
            async for response in responses:
                yield response


class ControlServer:
    """Listens for nodes until it is stopped. `certificate` holds the paths of a certificate chain and its key."""

    def __init__(
        self,
        service: ControlService,
        port: ControlPort,
        settings: GrpcSettings,
        certificate: tuple[Path, Path] | None = None,
        keepalive: KeepAlive | None = None,
    ) -> None:
        self._service = service
        self._port = port
        self._health = CountedHealth(service)
        self._server = grpc.aio.server(
            options=[
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
                ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
                ("grpc.max_receive_message_length", LARGEST_MESSAGE),
                ("grpc.max_metadata_size", LARGEST_METADATA),
                # This gRPC limit applies per connection and is far above our own limit, because gRPC refuses streams
                # beyond it without a proper status.
                ("grpc.max_concurrent_streams", 10 * settings.peer_streams + 1000),
                *(keepalive or KeepAlive()).options(),
            ]
        )
        add_CrawlerControlServicer_to_server(service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        add_ServerReflectionServicer_to_server(CountedReflection(service, names), self._server)  # type: ignore[no-untyped-call]
        self._credentials = None if certificate is None else credentials_of(*certificate)

    async def start(self, listen: Address) -> Address:
        """Listen on an address and return it. If its port was 0, the returned address has the chosen port."""
        if self._credentials is None:
            self._server.add_insecure_port(self._port.target())
        else:
            self._server.add_secure_port(self._port.target(), self._credentials)
        await self._server.start()
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        try:
            return await self._port.open(listen)
        except BackendUnavailable:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Refuse new streams, end the open streams, and wait until the ends of their sessions are stored."""
        self._port.close_listener()
        await self._health.enter_graceful_shutdown()
        await self._service.stop()
        await self._server.stop(STOP_SECONDS)
        await self._port.close()
        await self._service.settled()


def credentials_of(cert: Path, key: Path) -> grpc.ServerCredentials:
    """Return credentials that are reloaded from the files: if the certificate is replaced, new connections use the new
    certificate."""

    def look() -> list[tuple[int, int, int]]:
        files = [path.stat() for path in (cert, key)]
        return [(file.st_mtime_ns, file.st_ino, file.st_size) for file in files]

    def read() -> grpc.ServerCertificateConfiguration:
        # Raises if the certificate and the key cannot be used.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
        return grpc.ssl_server_certificate_configuration([(key.read_bytes(), cert.read_bytes())])

    known = look()

    def fetch() -> Any:
        """Return the certificate and key if they have changed, otherwise None."""
        nonlocal known
        try:
            found = look()
            if found == known:
                return None
            fresh = read()
        except OSError:
            # Only one of the two files was replaced so far; if that lasts, the `certificate` chore reports it.
            return None
        known = found
        return fresh

    return grpc.dynamic_ssl_server_credentials(read(), fetch, require_client_authentication=False)

"""The public port of the control plane. gRPC's own listener cannot limit connections in a way that prefers nodes with a
token. So connections are accepted here and forwarded to gRPC over a socket file that only this user can reach.

A connection that has sent no data yet uses one file descriptor, a forwarded connection three.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from itertools import count
from typing import Final, cast
from urllib.parse import quote, unquote

from shoal.access.limits import UNREAD_SECONDS, WARN_EVERY_SECONDS, ConnectionLimits, client_network
from shoal.base.errors import BackendUnavailable, BadConfig
from shoal.base.parsing import Address
from shoal.base.signals import Signal, Signals
from shoal.base.temporary_folder import TemporaryFolder

FIRST_BYTE_SECONDS: Final = 10.0
BACKLOG: Final = 1000
LONGEST_FOLDER: Final = 90  # bytes; the path of a socket may have at most 107 bytes
TMPDIR_FIX: Final = "set it to a folder with a short name that this user can write to"
UNKNOWN: Final = "unknown"  # stands in for the address of a connection that has already ended


class NodesNotForwarded(Signal, frozen=True, kw_only=True):
    """Connections of nodes were closed because gRPC could not be reached. Emitted at most once a minute."""

    closed: int  # number of connections closed since the last signal
    peer: str  # address of the last closed connection
    error: str


class _End(asyncio.Protocol):
    """One end of a forwarded connection. Data that this end receives is written to the other end."""

    transport: asyncio.Transport
    other: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.close()
            if self.other.get_write_buffer_size():
                asyncio.get_running_loop().call_later(UNREAD_SECONDS, self.other.abort)

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.resume_reading()


class PeerConnection(_End):
    """A peer's connection, which is forwarded once its first bytes have arrived."""

    def __init__(self, limits: ConnectionLimits, forward: "Callable[[PeerConnection, bytes], None]") -> None:
        self._limits = limits
        self._forward = forward
        self._is_in = False
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self.address = self.peer = ""
        self.name = ""  # name of the socket that forwards this connection

    @property
    def is_waiting(self) -> bool:
        return True

    def cut(self) -> None:
        self.transport.abort()
        self._leave()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.address = (transport.get_extra_info("peername") or (UNKNOWN,))[0].removeprefix("::ffff:")
        self.peer = client_network(self.address)
        self._is_in = self._limits.enter(self)
        if not self._is_in:
            self.transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(FIRST_BYTE_SECONDS, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._timer is None:
            super().data_received(data)
            return
        self._stop_timer()
        self.transport.pause_reading()
        self._forward(self, data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = asyncio.get_running_loop().call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_unread()
        self._leave()
        super().connection_lost(exc)

    def _leave(self) -> None:
        self._stop_timer()
        if self._is_in:
            self._is_in = False
            self._limits.leave(self)

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ControlPort:
    """Listens for nodes. gRPC knows a peer only by the name of the forwarding socket; this class maps that name to the
    peer's address and connection."""

    def __init__(self, limits: ConnectionLimits, signals: Signals) -> None:
        self._limits = limits
        self._signals = signals
        self._closed = 0  # number of connections closed since the last signal
        self._warned_at = -WARN_EVERY_SECONDS
        self._folder: TemporaryFolder | None = None
        self._numbers = count(1)
        self._peers: dict[str, PeerConnection] = {}
        self._forwarding: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def target(self) -> str:
        """Create the folder for the sockets; return the address on which gRPC has to listen."""
        try:
            folder = self._folder = TemporaryFolder()
        except OSError as error:
            raise BadConfig("TMPDIR", f"cannot be used for sockets ({error.strerror})", TMPDIR_FIX) from None
        if len(os.fsencode(folder.path)) > LONGEST_FOLDER:
            folder.remove()
            raise BadConfig("TMPDIR", "is too long for the names of sockets", TMPDIR_FIX)
        return f"unix:{quote(str(folder.path))}/grpc"

    async def open(self, listen: Address) -> Address:
        """Listen on an address and return it. If its port was 0, the returned address has the chosen port."""
        loop = asyncio.get_running_loop()

        def connection() -> PeerConnection:
            return PeerConnection(self._limits, self._forward)

        try:
            if listen.host:
                self._server = await loop.create_server(connection, listen.host, listen.port, backlog=BACKLOG)
            else:
                both = socket.has_dualstack_ipv6()
                family = socket.AF_INET6 if both else socket.AF_INET
                listener = socket.create_server(("", listen.port), family=family, dualstack_ipv6=both)
                self._server = await loop.create_server(connection, sock=listener, backlog=BACKLOG)
        except OSError as error:
            fix = "stop the process that uses it, or choose a different port with GRPC_LISTEN_ADDR"
            raise BackendUnavailable(f"port {listen.port}", os.strerror(error.errno or 0).lower(), fix) from None
        return Address(listen.host, self._server.sockets[0].getsockname()[1])

    def address_of(self, peer: str) -> str:
        """Return the address of a peer, given the name that gRPC has for the peer."""
        found = self._peers.get(unquote(peer))
        return UNKNOWN if found is None else found.address

    def prove(self, peer: str) -> None:
        """Mark a peer's connection as trusted, because the peer has shown a valid credential. Such a connection is not
        closed to make room for other connections."""
        if (found := self._peers.get(unquote(peer))) is not None:
            self._limits.prove(found)

    def close_listener(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        self.close_listener()
        for connection in list(self._peers.values()):
            connection.transport.close()
        for task in self._forwarding:
            task.cancel()
        await asyncio.gather(*self._forwarding, return_exceptions=True)
        if self._folder is not None:
            self._folder.remove()

    def _forward(self, connection: PeerConnection, first: bytes) -> None:
        task = asyncio.create_task(self._connect(connection, first))
        self._forwarding.add(task)
        task.add_done_callback(self._forwarding.discard)

    async def _connect(self, connection: PeerConnection, first: bytes) -> None:
        """Connect to gRPC from a socket whose name identifies this connection."""
        assert self._folder is not None
        folder = self._folder.path
        path = folder / str(next(self._numbers))
        peer = f"unix:{path}"
        forwarding = None
        try:
            forwarding = socket.socket(socket.AF_UNIX)
            forwarding.setblocking(False)
            forwarding.bind(str(path))
            loop = asyncio.get_running_loop()
            await loop.sock_connect(forwarding, str(folder / "grpc"))
            path.unlink()
            self._peers[peer] = connection
            end = _ForwardingEnd(lambda: self._peers.pop(peer, None))
            end.other = connection.transport
            connection.other, _ = await loop.create_unix_connection(lambda: end, sock=forwarding)
        except BaseException as error:
            if forwarding is not None:
                forwarding.close()
            self._peers.pop(peer, None)
            connection.transport.abort()
            if not isinstance(error, OSError):
                raise
            self._warn(connection.address, error)
            return
        connection.other.write(first)
        if connection.transport.is_closing():
            connection.other.close()
        else:
            connection.transport.resume_reading()

    def _warn(self, peer: str, error: OSError) -> None:
        self._closed += 1
        now = self._limits.clock.monotonic()
        if now - self._warned_at >= WARN_EVERY_SECONDS:
            reason = (error.strerror or str(error)).lower()
            self._signals.emit(NodesNotForwarded(closed=self._closed, peer=peer, error=reason))
            self._warned_at, self._closed = now, 0


class _ForwardingEnd(_End):
    """The end of a forwarded connection that is connected to gRPC."""

    def __init__(self, forget: Callable[[], object]) -> None:
        self._forget = forget

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

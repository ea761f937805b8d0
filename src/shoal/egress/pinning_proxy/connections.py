"""Limits on what a browser may do through the proxy: time, size, and the connections of a session, in total and per
host, in use and idle."""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from shoal.egress.address import Endpoint
from shoal.egress.exchange import Failure
from shoal.egress.pinning_proxy.byte_stream import ByteStream

if TYPE_CHECKING:
    from shoal.base.settings import EgressSettings


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Limits on time, size and connections; each session may have its own."""

    head_timeout: timedelta = timedelta(seconds=20)  # for a whole request head, and between two requests
    slot_timeout: timedelta = timedelta(seconds=10)  # for a free connection to a host
    connect_timeout: timedelta = timedelta(seconds=10)
    idle_timeout: timedelta = timedelta(seconds=20)  # without a byte in either direction
    total_timeout: timedelta = timedelta(seconds=60)  # for one request
    tunnel_timeout: timedelta = timedelta(minutes=5)  # a tunnel carries many requests, or a WebSocket
    yield_after: timedelta = timedelta(seconds=1)  # an idle tunnel is closed after this time if a request waits
    max_head_bytes: int = 64_000
    max_headers: int = 100
    max_message_bytes: int = 50_000_000  # size of one response, or of one direction of a tunnel
    max_session_bytes: int = 200_000_000  # received in all
    host_connections: int = 6
    session_connections: int = 64
    client_connections: int = 1024  # for the whole proxy

    @classmethod
    def of(cls, settings: "EgressSettings") -> "ProxyLimits":
        return cls(
            connect_timeout=settings.connect_timeout,
            idle_timeout=settings.idle_timeout,
            total_timeout=settings.total_timeout,
            max_head_bytes=settings.max_header_bytes,
            max_headers=settings.max_headers,
        )


class Yielding(Protocol):
    """A connection that may be closed in favour of another one while it is idle."""

    def idle_seconds(self) -> float:
        """Return how long it has been idle, in seconds; 0 while it is in use."""
        ...

    def abort(self) -> None: ...


class ConnectionSlots:
    """The slots of one session. A request waits for a slot of its host; a tunnel that is idle gives up its slot.

    A browser keeps the connection of a finished request open for minutes. With few connections per host, those that
    wait would otherwise wait as long.
    """

    def __init__(self, limits: ProxyLimits) -> None:
        self._limits = limits
        self._used: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._tunnels: dict[str, set[Yielding]] = {}

    async def acquire(self, host: str) -> Failure | None:
        """Take a slot, or return the failure to get one in time."""
        if self._used.total() >= self._limits.session_connections:
            return Failure("too_many_connections", "The page has too many connections.", retryable=True)
        if self._used[host] < self._limits.host_connections and not self._waiting.get(host):
            self._used[host] += 1
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(host, deque())
        queue.append(turn)
        try:
            async with asyncio.timeout(self._limits.slot_timeout.total_seconds()):
                await self._wait(host, turn)
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn.done():
                self.release(host)  # it was given a slot at the last moment
            else:
                queue.remove(turn)
            if isinstance(error, asyncio.CancelledError):
                raise
            return Failure("too_many_connections", "All connections to the host are in use.", retryable=True)
        return None

    def release(self, host: str) -> None:
        """Give a slot back, to the request that has waited longest."""
        queue = self._waiting.get(host)
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._used[host] -= 1
        if not self._used[host]:
            del self._used[host]
            self._waiting.pop(host, None)

    def add_tunnel(self, host: str, tunnel: Yielding) -> None:
        self._tunnels.setdefault(host, set()).add(tunnel)

    def remove_tunnel(self, host: str, tunnel: Yielding) -> None:
        self._tunnels[host].discard(tunnel)
        if not self._tunnels[host]:
            del self._tunnels[host]

    async def _wait(self, host: str, turn: "asyncio.Future[None]") -> None:
        yield_after = self._limits.yield_after.total_seconds()
        while not turn.done():
            idlest = max(self._tunnels.get(host, ()), key=lambda tunnel: tunnel.idle_seconds(), default=None)
            if idlest is not None and idlest.idle_seconds() >= yield_after:
                idlest.abort()
            await asyncio.wait([turn], timeout=yield_after)


class IdleConnections:
    """The idle connections of one session, a few per origin."""

    def __init__(self, per_origin: int) -> None:
        self._per_origin = per_origin
        self._idle: dict[Endpoint, list[ByteStream]] = {}
        self._is_closed = False

    def take(self, origin: Endpoint) -> ByteStream | None:
        """Return the connection that was used last and is still open."""
        waiting = self._idle.get(origin, [])
        while waiting:
            stream = waiting.pop()
            if stream.is_reusable:
                return stream
            stream.close()
        return None

    def put(self, origin: Endpoint, stream: ByteStream) -> None:
        waiting = self._idle.setdefault(origin, [])
        if self._is_closed or not stream.is_reusable or len(waiting) >= self._per_origin:
            stream.close()
        else:
            waiting.append(stream)

    def close(self) -> None:
        self._is_closed = True
        for waiting in self._idle.values():
            for stream in waiting:
                stream.abort()
        self._idle.clear()

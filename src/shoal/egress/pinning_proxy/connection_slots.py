"""Limits on the connections of a session, in total and per host."""

import asyncio
from collections import Counter, deque
from typing import Protocol

from shoal.egress.exchange import Failure
from shoal.egress.pinning_proxy.limits import ProxyLimits


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

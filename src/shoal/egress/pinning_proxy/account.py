"""An account of the proxy: one credential, one policy, one set of counts. Each browser context has its own."""

import asyncio
import hmac
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from msgspec.structs import replace

from shoal.base.url import Url
from shoal.egress.address import endpoint
from shoal.egress.exchange import BLOCKED, Failure
from shoal.egress.pinning_proxy.connections import ConnectionSlots, IdleConnections, PinnedDialer, ProxyLimits

Allow = Callable[[str], Awaitable[str | None]]
"""Called with the URL of each plain request and the `host:port` of each tunnel; returns the reason for a refusal."""

_REFUSALS_KEPT: Final = 100
_LIMITS: Final = frozenset({"too_many_connections", "body_too_large", "session_too_large", "not_allowed"})


@dataclass(slots=True)
class ProxyCounts:
    """The counts of an account so far."""

    refused: int = 0  # refused by a rule or a limit
    failed: int = 0  # failed because of the network or the server
    bytes_received: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    """How many requests ended with each code of a refusal or failure."""


class Abortable(Protocol):
    def abort(self) -> None: ...


class ProxyAccount:
    """The rights and counts of one browser context. Closing it ends its connections and voids its credential."""

    def __init__(
        self,
        dialer: PinnedDialer,
        limits: ProxyLimits,
        allow: Allow | None = None,
        on_close: Callable[["ProxyAccount"], object] = lambda _account: None,
    ) -> None:
        self.username = secrets.token_hex(8)
        self.password = secrets.token_urlsafe(24)
        self.counts = ProxyCounts()
        self.limits = limits
        self.dialer = dialer
        self.slots = ConnectionSlots(limits)
        self.idle = IdleConnections(limits.host_connections)
        self._allow = allow
        self._on_close = on_close
        self._refusals: deque[Failure] = deque(maxlen=_REFUSALS_KEPT)
        self._open: set[Abortable] = set()
        self.is_closed = False

    @property
    def refusals(self) -> tuple[Failure, ...]:
        """The refusals and failures of the newest requests, in the order in which they happened. `url` is the host and
        port for a tunnel."""
        return tuple(self._refusals)

    def failure_of(self, url: Url) -> Failure | None:
        """Return why a canonical URL got no response: the newest refusal of the URL, or of a tunnel to its host and
        port. The failure has the same form as a failure of the egress."""
        host, port = endpoint(url)
        targets = (url, f"{host}:{port}")
        found = next((refusal for refusal in reversed(self._refusals) if refusal.url in targets), None)
        return None if found is None else replace(found, url=url)

    def close(self) -> None:
        """Abort all connections; later requests with this credential are refused."""
        self.is_closed = True
        self._on_close(self)
        self.idle.close()
        for connection in list(self._open):
            connection.abort()

    # Called by the proxy

    def accepts(self, password: str) -> bool:
        return hmac.compare_digest(self.password.encode(), password.encode())

    async def admit(self, target: str, host: str) -> Failure | None:
        """Ask the owner of the account whether this URL or endpoint is allowed, then take a slot of the host."""
        if self._allow is not None:
            try:
                async with asyncio.timeout(self.limits.total_timeout.total_seconds()):
                    reason = await self._allow(target)
            except TimeoutError:
                return Failure("timeout", "The crawl did not decide in time about this request.", retryable=True)
            if reason:
                return Failure("not_allowed", f"The crawl does not allow this request: {reason}.", retryable=False)
        return await self.slots.acquire(host)

    def refuse(self, target: str, failure: Failure) -> None:
        """Count and remember a request that gets no response."""
        self.counts.codes[failure.code] += 1
        if failure.code in BLOCKED or failure.code in _LIMITS:
            self.counts.refused += 1
        else:
            self.counts.failed += 1
        self._refusals.append(replace(failure, url=target))

    def received(self, count: int) -> Failure | None:
        """Count bytes from a server; return a failure if the total exceeds the limit of the account."""
        self.counts.bytes_received += count
        if self.counts.bytes_received > self.limits.max_account_bytes:
            return Failure("session_too_large", "The page has received more than the limit.", retryable=False)
        return None

    @contextmanager
    def holding(self, connection: Abortable) -> Iterator[None]:
        """Register a connection, so that `close` aborts it."""
        if self.is_closed:
            connection.abort()
        self._open.add(connection)
        try:
            yield
        finally:
            self._open.discard(connection)

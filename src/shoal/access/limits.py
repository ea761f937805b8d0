"""Protection of the ports: limits of connections, and a throttle for failed authentication."""

from collections import OrderedDict
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address, ip_network
from itertools import islice
from math import ceil
from typing import Final, Protocol

from shoal.base.clock import Clock
from shoal.base.errors import RateLimited
from shoal.base.settings import ServeSettings
from shoal.base.signals import Signal, Signals

MOST_FAILURES = 10  # failures allowed in a burst; after that, one more per `SECONDS_EACH`
SECONDS_EACH = 6.0
MOST_PLACES = 10_000


class AuthThrottle:
    """A leaky bucket per client network. If a client's bucket is full, the client has to wait until the bucket has
    drained a little."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._empty_at: OrderedDict[str, float] = OrderedDict()  # when the bucket of a network will be empty

    def check(self, address: str) -> None:
        """Raise `RateLimited` if logins from this client network have failed too many times."""
        over = self._level(client_network(address)) - (MOST_FAILURES - 1) * SECONDS_EACH
        if over > 0:
            raise RateLimited("Too many failed logins from your address", ceil(over))

    def count(self, address: str) -> bool:
        """Count a failure; return whether the bucket is full now."""
        place = client_network(address)
        level = self._level(place) + SECONDS_EACH
        self._empty_at[place] = self._clock.monotonic() + level
        self._empty_at.move_to_end(place)
        while len(self._empty_at) > MOST_PLACES:
            self._empty_at.popitem(last=False)
        return level > (MOST_FAILURES - 1) * SECONDS_EACH

    def _level(self, place: str) -> float:
        return max(0.0, self._empty_at.get(place, 0.0) - self._clock.monotonic())


def client_network(address: str) -> str:
    """Return the address, or its /64 network for IPv6, because a client usually controls the whole network."""
    try:
        found = ip_address(address)
    except ValueError:
        return address[:100]
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
    return str(found)


UNPROVEN_SHARE: Final = 0.75  # share of the connections of the HTTP port
WARN_EVERY_SECONDS: Final = 60.0
UNREAD_SECONDS: Final = 30.0  # a peer that reads nothing for so long is disconnected, so that it cannot stay forever
LOOKED_AT: Final = 100  # number of oldest connections among which one to close is searched


class ConnectionsCut(Signal, frozen=True, kw_only=True):
    """There were too many connections without a credential. This signal is emitted at most once a minute."""

    cut: int  # connections closed since the last signal
    open: int
    peer: str  # address of the last client


class Connection(Protocol):
    """A connection that is counted and may be closed."""

    peer: str

    @property
    def is_waiting(self) -> bool:
        """Return whether the connection is open and has no response in progress, so that it may be closed."""
        ...

    def cut(self) -> None:
        """Close the connection immediately. The connection then calls `leave` itself."""
        ...


class ConnectionLimits:
    """Counts the open connections of a server, and chooses which to close when there are too many."""

    def __init__(self, settings: ServeSettings, clock: Clock, signals: Signals, share: float = UNPROVEN_SHARE) -> None:
        """The fraction `share` of the connections may be without a credential; the rest is reserved for callers with a
        credential."""
        self._most = settings.max_connections
        self._most_unproven = max(1, int(self._most * share))
        self._most_of_peer = settings.max_peer_connections
        self._proxies = settings.trusted_proxies
        self.clock = clock
        self._signals = signals
        self._open = 0
        self._unproven: dict[Connection, None] = {}  # in order of arrival
        self._by_peer: dict[str, dict[Connection, None]] = {}  # the connections in `_unproven`, by peer
        self._cut = 0
        self._warned_at = -WARN_EVERY_SECONDS

    def enter(self, connection: Connection) -> bool:
        """Count a new connection, closing an older one at the limit; return False if none can be closed."""
        peers = self._by_peer.get(connection.peer, {})
        if len(peers) >= self._most_of_peer and not self._is_proxy(connection.peer):
            fits = self._cut_one(connection.peer, peers)
        elif len(self._unproven) >= self._most_unproven or self._open >= self._most:
            fits = self._cut_one(connection.peer, self._unproven)
        else:
            fits = True
        if fits:
            self._open += 1
            self._unproven[connection] = None
            self._by_peer.setdefault(connection.peer, {})[connection] = None
        return fits

    def prove(self, connection: Connection) -> None:
        """Mark this connection as proven: a request on it had a valid credential."""
        if connection in self._unproven:
            del self._unproven[connection]
            peers = self._by_peer[connection.peer]
            del peers[connection]
            if not peers:
                del self._by_peer[connection.peer]

    def leave(self, connection: Connection) -> None:
        self._open -= 1
        self.prove(connection)

    def _cut_one(self, peer: str, among: Iterable[Connection]) -> bool:
        self._cut += 1
        self._warn(peer)
        found = next((one for one in islice(among, LOOKED_AT) if one.is_waiting), None)
        if found is not None:
            found.cut()
        return found is not None

    def _is_proxy(self, peer: str) -> bool:
        """Return whether the peer is a trusted proxy. A trusted proxy forwards the connections of many clients and
        limits them itself."""
        try:
            address = ip_address(peer.partition("/")[0])
        except ValueError:
            return False
        return any(address in network for network in self._proxies)

    def _warn(self, peer: str) -> None:
        now = self.clock.monotonic()
        if now - self._warned_at >= WARN_EVERY_SECONDS:
            self._signals.emit(ConnectionsCut(cut=self._cut, open=self._open, peer=peer))
            self._warned_at, self._cut = now, 0

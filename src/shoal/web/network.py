"""Network access of the browsers. They use the pinning proxy of egress, with one account per page. The requests of a
page obey robots.txt and the limit of concurrent requests per origin.

The proxy sees all traffic and decides which addresses may be reached.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shoal.base.url import Url
from shoal.egress import AddressRule, Failure, Proxy
from shoal.egress.pinning_proxy import PinningProxy, ProxyAccount, chromium_network_flags
from shoal.hosts.robots import Rules
from shoal.hosts.robots_cache import RobotsRules

# Disable the browser's own address checks: the proxy decides which addresses may be reached, and the browser sees only
# the address of the proxy.
DISABLED_FEATURES = ("LocalNetworkAccessChecks",)


class PinnedNetwork:
    """The only network access of a browser pool, under one address rule; `find_proxy` returns a configured proxy by
    label."""

    def __init__(
        self,
        proxy: PinningProxy,
        rule: AddressRule,
        find_proxy: Callable[[str], Proxy | None] = lambda label: None,
        *,
        upstream: Proxy | None = None,
        robots: RobotsRules | None = None,
    ) -> None:
        self._proxy = proxy
        self._rule = rule
        self._find_proxy = find_proxy
        self._upstream = upstream  # proxy for pages that name no proxy
        self.robots = robots

    async def start(self) -> Sequence[str]:
        """Start the proxy; return the flags that make a browser use the proxy."""
        await self._proxy.start()
        return chromium_network_flags(self._proxy.address, DISABLED_FEATURES)

    def open(self, label: str | None) -> ProxyAccount | Failure:
        """Return the network access for one page, through the configured proxy with this label."""
        upstream = self._upstream if label is None else self._find_proxy(label)
        if label is not None and upstream is None:
            return Failure("unknown_proxy", f'There is no proxy "{label}" here; define it in SHOAL_PROXIES.', True)
        return self._proxy.open_account(self._rule, proxy=upstream)

    def abort(self) -> None:
        """Close the network access without waiting."""
        self._proxy.abort()

    async def close(self) -> None:
        await self._proxy.aclose()


def allows(rules: Rules | None, url: str) -> bool:
    """Return whether the rules of the URL's origin allow a request."""
    return rules is not None and rules.reachable and rules.allows(Url(url))


class WaitingRequest(NamedTuple):
    """A request that waits until its origin has fewer than `limit` requests in flight. `go` continues the request and
    returns whether `end` will be called for it."""

    page: object
    limit: int
    go: Callable[[], bool]


class OriginConnections:
    """Counts the requests in flight per origin, over all pages of a renderer, and holds back requests above the
    limit."""

    def __init__(self) -> None:
        self._in_flight: Counter[str] = Counter()
        self._waiting: dict[str, deque[WaitingRequest]] = {}

    def start(self, origin: str, request: WaitingRequest) -> None:
        """Continue a request now, or when enough requests to this origin have ended."""
        if self._in_flight[origin] < request.limit:
            self._in_flight[origin] += request.go()
        else:
            self._waiting.setdefault(origin, deque()).append(request)

    def end(self, origin: str) -> None:
        """Record that a request has ended, and continue the waiting requests that the limit now allows."""
        self._in_flight[origin] -= 1
        waiting = self._waiting.get(origin, deque())
        while waiting and self._in_flight[origin] < waiting[0].limit:
            self._in_flight[origin] += waiting.popleft().go()
        if not waiting:
            self._waiting.pop(origin, None)
        if not self._in_flight[origin]:
            del self._in_flight[origin]

    def drop(self, page: object) -> None:
        """Forget the waiting requests of a page."""
        for origin, waiting in list(self._waiting.items()):
            kept = deque(request for request in waiting if request.page is not page)
            if kept:
                self._waiting[origin] = kept
            else:
                del self._waiting[origin]

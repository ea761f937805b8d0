"""Network access of the browsers: the pinning proxy of egress, with one account per page, and the politeness of the
requests that a page makes: robots.txt, and concurrent requests per origin.

Which addresses may be reached is decided by the proxy, which sees all traffic.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shoal.base.url import Url
from shoal.egress import AddressRule, Failure, Proxy
from shoal.egress.pinning_proxy import PinningProxy, ProxyAccount, chromium_network_flags
from shoal.hosts.robots import Rules
from shoal.hosts.robots_cache import RobotsRules

# The proxy decides which addresses may be reached; for the browser, all of them have the address of the proxy.
DISABLED_FEATURES = ("LocalNetworkAccessChecks",)


class PinnedNetwork:
    """The only network access of the browsers of a pool, under one address rule; `find_proxy` returns a configured
    proxy by label."""

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
        self._upstream = upstream  # for pages that name no proxy
        self.robots = robots

    async def start(self) -> Sequence[str]:
        """Return the flags that make a browser use it."""
        await self._proxy.start()
        return chromium_network_flags(self._proxy.address, DISABLED_FEATURES)

    def open(self, label: str | None) -> ProxyAccount | Failure:
        """Return the network access for one page, through the proxy with that label."""
        upstream = self._upstream if label is None else self._find_proxy(label)
        if label is not None and upstream is None:
            return Failure("unknown_proxy", f'There is no proxy "{label}" here; define it in SHOAL_PROXIES.', True)
        return self._proxy.open_account(self._rule, proxy=upstream)

    def abort(self) -> None:
        """Close it without waiting."""
        self._proxy.abort()

    async def close(self) -> None:
        await self._proxy.aclose()


def allows(rules: Rules | None, url: str) -> bool:
    """Return whether the rules of its origin allow a request."""
    return rules is not None and rules.reachable and rules.allows(Url(url))


class WaitingRequest(NamedTuple):
    """A request that waits until its origin has fewer than `limit` in flight. `go` continues it; it returns whether
    somebody will call `end` for it."""

    page: object
    limit: int
    go: Callable[[], bool]


class OriginConnections:
    """Counts the requests in flight per origin, over all pages of a renderer, and holds back those above the limit."""

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
        """Record that a request has ended, and continue those that wait and have room now."""
        self._in_flight[origin] -= 1
        waiting = self._waiting.get(origin, deque())
        while waiting and self._in_flight[origin] < waiting[0].limit:
            self._in_flight[origin] += waiting.popleft().go()
        if not waiting:
            self._waiting.pop(origin, None)
        if not self._in_flight[origin]:
            del self._in_flight[origin]

    def drop(self, page: object) -> None:
        """Forget the requests of a page that wait."""
        for origin, waiting in list(self._waiting.items()):
            kept = deque(request for request in waiting if request.page is not page)
            if kept:
                self._waiting[origin] = kept
            else:
                del self._waiting[origin]

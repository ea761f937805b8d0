"""Network access of the browsers: the pinning proxy of egress, with one session per page."""

from collections.abc import Callable, Sequence

from shoal.base.url import Url
from shoal.egress import AddressRule, Failure, Proxy
from shoal.egress.pinning_proxy import PinningProxy, ProxySession, chromium_network_flags

# The proxy decides which addresses may be reached; for the browser, all of them have the address of the proxy.
DISABLED_FEATURES = ("LocalNetworkAccessChecks",)


class PinnedSession:
    """The network access of one page."""

    def __init__(self, session: ProxySession) -> None:
        self._session = session
        self.username = session.username
        self.password = session.password

    @property
    def bytes_received(self) -> int:
        return self._session.counts.bytes_received

    @property
    def refused(self) -> int:
        """The number of requests that a rule or a limit refused."""
        return self._session.counts.refused

    def refusal_of(self, url: Url) -> Failure | None:
        """Return why a URL got no response, as egress would for a request of ours."""
        found = self._session.refusal_of(url)
        if found is None:
            return None
        return Failure(found.code, found.message, found.retryable, found.operator_detail, url)

    def close(self) -> None:
        self._session.close()


class PinnedNetwork:
    """The only network access of the browsers of a pool, under one address rule; `find_proxy` returns a configured
    proxy by label."""

    def __init__(
        self,
        proxy: PinningProxy,
        rule: AddressRule,
        find_proxy: Callable[[str], Proxy | None] = lambda label: None,
        upstream: Proxy | None = None,
    ) -> None:
        self._proxy = proxy
        self._rule = rule
        self._find_proxy = find_proxy
        self._upstream = upstream  # for pages that name no proxy

    async def start(self) -> Sequence[str]:
        """Return the flags that make a browser use it."""
        await self._proxy.start()
        return chromium_network_flags(self._proxy.address, DISABLED_FEATURES)

    def open(self, label: str | None) -> PinnedSession | Failure:
        """Return the network access for one page, through the proxy with that label."""
        upstream = self._upstream if label is None else self._find_proxy(label)
        if label is not None and upstream is None:
            return Failure("unknown_proxy", f'There is no proxy "{label}" here; define it in SHOAL_PROXIES.', True)
        return PinnedSession(self._proxy.open_session(self._rule, proxy=upstream))

    def abort(self) -> None:
        """Close it without waiting."""
        self._proxy.abort()

    async def close(self) -> None:
        await self._proxy.aclose()

"""The forward proxy: it accepts connections of browsers on loopback and finds the account of each request. Also the
command-line flags that leave Chromium no other way to the network."""

import asyncio
import contextlib
from collections.abc import Iterable
from ipaddress import IPv4Address
from typing import Final

from msgspec.structs import replace

from shoal.base.clock import Clock, SystemClock
from shoal.egress.address import AddressRule, Proxy
from shoal.egress.pinning_proxy.account import Allow, ProxyAccount
from shoal.egress.pinning_proxy.browser_connection import BrowserConnection
from shoal.egress.pinning_proxy.connections import PinnedDialer, ProxyLimits
from shoal.egress.pinning_proxy.messages import ByteStream
from shoal.egress.resolver import Resolver

_HOST: Final = "127.0.0.1"


class PinningProxy:
    """A proxy for browsers of this process. Every request needs the credential of an open account.

    The proxy connects only to addresses that the account's rule allows, as the egress does for Shoal's own requests:
    names are resolved here, every address is checked, and the checked address is dialled. The rule therefore applies to
    everything the browser does: redirects, frames, service workers, WebSockets, preconnects.
    """

    def __init__(
        self,
        limits: ProxyLimits = ProxyLimits(),  # noqa: B008 - frozen
        *,
        clock: Clock | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        self._limits = limits
        self._clock = clock or SystemClock()
        self._resolver = resolver or Resolver(self._clock, timeout=limits.connect_timeout)
        self._server: asyncio.Server | None = None
        self._accounts: dict[str, ProxyAccount] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def address(self) -> str:
        """Host and port, for `--proxy-server`."""
        return f"{_HOST}:{self.port}"

    async def start(self) -> None:
        """Listen on a free port of loopback."""
        self._server = await asyncio.start_server(self._accept, _HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def open_account(
        self,
        rule: AddressRule,
        *,
        proxy: Proxy | None = None,
        allow: Allow | None = None,
        limits: ProxyLimits | None = None,
    ) -> ProxyAccount:
        """Return an account for one browser context. `proxy`: an upstream proxy. `allow` is called with the
        URL of each plain request and with the `host:port` of each tunnel."""
        limits = limits or self._limits
        # A page must not reach the proxy itself, whatever the operator allowed.
        rule = replace(rule, own=rule.own | {(IPv4Address(_HOST), self.port)})
        dialer = PinnedDialer(rule, self._resolver, limits, proxy)
        account = ProxyAccount(dialer, limits, allow, lambda closed: self._accounts.pop(closed.username, None))
        self._accounts[account.username] = account
        return account

    def find_account(self, credential: tuple[str, str] | None) -> ProxyAccount | None:
        """Return the open account with this username and password."""
        account = self._accounts.get(credential[0]) if credential else None
        if account is not None and credential is not None and account.accepts(credential[1]):
            return account
        return None

    def abort(self) -> None:
        """End every account and connection without waiting for their tasks."""
        if self._server is not None:
            self._server.close()
        for account in list(self._accounts.values()):
            account.close()
        for task in self._serving:
            task.cancel()

    async def aclose(self) -> None:
        """End every account and connection."""
        self.abort()
        await asyncio.gather(*self._serving, return_exceptions=True)
        self._resolver.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        browser = ByteStream(reader, writer, self._limits.idle_timeout.total_seconds())
        task = asyncio.current_task()
        assert task is not None
        if len(self._serving) >= self._limits.client_connections:
            browser.abort()
            return
        self._serving.add(task)
        try:
            connection = BrowserConnection(browser, self.find_account, self._limits, self._clock)
            # The browser may disconnect at any moment, and then nobody receives the error. Python 3.11 logs an error if
            # the task of a connection is cancelled, and `aclose` cancels these tasks.
            with contextlib.suppress(ConnectionError, TimeoutError, asyncio.CancelledError):
                await connection.serve()
        finally:
            self._serving.discard(task)
            browser.close()


CHROMIUM_NETWORK_FLAGS: Final[tuple[str, ...]] = (
    # Without this flag, requests to loopback addresses bypass every proxy.
    "--proxy-bypass-list=<-loopback>",
    # The browser resolves no name, not even for a preconnect. Requests are not affected, because the proxy resolves
    # their names. The address of the proxy itself is an exception to the rule.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--dns-prefetch-disable",
    # QUIC is UDP, which an HTTP proxy does not carry.
    "--disable-quic",
    # Without these flags, WebRTC sends UDP past every proxy. The headless shell knows only the first flag, full
    # Chromium only the second.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    # Requests that the browser makes for itself: updates, metrics, lists of bad sites, reports, synchronization. The
    # proxy refuses these requests, because they carry no credential.
    "--disable-background-networking",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-pings",
)
"""Flags that close the ways around the proxy."""

CHROMIUM_DISABLED_FEATURES: Final[tuple[str, ...]] = (
    # Casting looks for devices by multicast, and WebRTC announces names by multicast DNS.
    "DialMediaRouteProvider",
    "MediaRouter",
    "WebRtcHideLocalIpsWithMdns",
    # A resolver inside the browser would bypass the system's resolver.
    "AsyncDns",
    "DnsOverHttps",
    # Requests that the browser makes for itself.
    "AutofillServerCommunication",
    "OptimizationHints",
    "Translate",
)


def chromium_network_flags(proxy_address: str, disabled_features: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the flags for a browser whose only way out is the proxy at `host:port`.

    Chromium obeys only the last `--disable-features`, so pass further features here. A browser context that has its own
    `proxyServer` needs `proxyBypassList="<-loopback>"` too.
    """
    features = ",".join([*CHROMIUM_DISABLED_FEATURES, *disabled_features])
    return (f"--proxy-server=http://{proxy_address}", *CHROMIUM_NETWORK_FLAGS, f"--disable-features={features}")

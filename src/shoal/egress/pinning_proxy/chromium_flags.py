"""The command line with which Chromium has no way to the network but the proxy."""

from collections.abc import Iterable
from typing import Final

CHROMIUM_NETWORK_FLAGS: Final[tuple[str, ...]] = (
    # Without it, requests to loopback addresses bypass every proxy.
    "--proxy-bypass-list=<-loopback>",
    # The browser resolves no name, not even for a preconnect. Requests carry the name to the proxy, so they are not
    # affected; the address of the proxy itself is excepted.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--dns-prefetch-disable",
    # QUIC is UDP, which an HTTP proxy does not carry.
    "--disable-quic",
    # WebRTC sends UDP past every proxy unless told otherwise. The headless shell knows only the first of these flags,
    # full Chromium only the second.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    # Requests on the browser's own account: updates, metrics, lists of bad sites, reports, synchronization. The proxy
    # refuses them, since they carry no credential.
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
    # A resolver inside the browser would not ask the system's.
    "AsyncDns",
    "DnsOverHttps",
    # Requests on the browser's own account.
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

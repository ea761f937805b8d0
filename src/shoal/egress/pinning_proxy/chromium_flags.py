"""The command line with which Chromium has no way to the network but the proxy."""

from typing import Final

CHROMIUM_NETWORK_FLAGS: Final[tuple[str, ...]] = (
    # Without it loopback addresses bypass every proxy.
    "--proxy-bypass-list=<-loopback>",
    # No name is resolved by the browser, not even for a preconnect or a DNS prefetch. Requests through the proxy carry
    # the name, so they are not affected. Literal addresses pass, or the browser would not find the proxy.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--dns-prefetch-disable",
    # QUIC is UDP, which does not go through an HTTP proxy.
    "--disable-quic",
    # WebRTC: no UDP that is not proxied, and no connection for which no proxy was asked.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    # What a browser does on its own account: updates, metrics, safe browsing lists, field trials, reports, guesses.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-pings",
    "--no-first-run",
    "--no-service-autorun",
    # Cast and DIAL discovery are multicast; the hints of the optimization guide, translation and autofill are requests;
    # names of WebRTC candidates would be announced by multicast DNS.
    "--disable-features="
    "AutofillServerCommunication,CertificateTransparencyComponentUpdater,DialMediaRouteProvider,InterestFeedContentSuggestions,"
    "MediaRouter,OptimizationHints,Translate,WebRtcHideLocalIpsWithMdns,AsyncDns,DnsOverHttps,DnsHttpsSvcb",
)
"""Flags that close every way around the proxy; `chromium_network_flags` adds the proxy itself."""


def chromium_network_flags(proxy_address: str) -> tuple[str, ...]:
    """Return the flags for a browser whose only way out is the proxy at `host:port`.

    A browser context with its own `proxyServer` needs `proxyBypassList="<-loopback>"` too.
    """
    return (f"--proxy-server=http://{proxy_address}", *CHROMIUM_NETWORK_FLAGS)

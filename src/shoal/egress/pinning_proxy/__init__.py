"""A forward proxy on loopback. It is a browser's only way to the network, and applies the rules that apply to all of
Shoal's requests."""

from shoal.egress.pinning_proxy.account import Allow, ProxyAccount, ProxyCounts
from shoal.egress.pinning_proxy.connections import ProxyLimits
from shoal.egress.pinning_proxy.server import CHROMIUM_NETWORK_FLAGS, PinningProxy, chromium_network_flags

__all__ = [
    "CHROMIUM_NETWORK_FLAGS",
    "Allow",
    "PinningProxy",
    "ProxyAccount",
    "ProxyCounts",
    "ProxyLimits",
    "chromium_network_flags",
]

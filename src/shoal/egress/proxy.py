"""Proxies for requests, and those that the operator configured: callers refer to them by label and never see their
addresses. The egress checks the address of a proxy and connects to it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote, urlsplit

from shoal.base.errors import BadConfig, InvalidInput
from shoal.base.parsing import LabelledProxy
from shoal.base.url import UrlRefusal, canonical, hostname
from shoal.egress.address import AddressRule, literal

_PORTS: Final = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy. `rule` decides which addresses it may have: a private address is allowed for an operator's proxy, but
    not for that of a crawl."""

    url: str
    host: str
    port: int
    rule: AddressRule
    login: str = ""

    @classmethod
    def parse(cls, text: str, rule: AddressRule) -> "Proxy":
        """Parse `scheme://[user:password@]host[:port]`, with scheme http, https, socks5 or socks5h."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        if not host or parts.scheme not in _PORTS:
            raise BadConfig("proxy", "is not a proxy URL", "write it as http://host:port")
        if literal(host) is None and _means_address(host):
            raise BadConfig("proxy", "has an address in an unusual notation", "write it as 192.0.2.1")
        host = f"[{host}]" if ":" in host else host
        port = port or _PORTS[parts.scheme]
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        return cls(f"{parts.scheme}://{host}:{port}", host, port, rule, login)


def _means_address(host: str) -> bool:
    """Return whether a host that looks like a name is parsed as an address: 2130706433, 0177.0.0.1, 0x7f.1, 127.1."""
    url = canonical(f"http://{host}/")
    if isinstance(url, UrlRefusal):  # numbers that are not a valid address
        return host.rstrip(".").rpartition(".")[2][:1].isdigit()
    return literal(hostname(url)) is not None


class Proxies:
    def __init__(self, labelled: Iterable[LabelledProxy] = ()) -> None:
        self._urls = {one.label: one.url for one in labelled}

    def check(self, label: str | None, field: str) -> None:
        """Reject a label that is not configured."""
        if label is None or label in self._urls:
            return
        known = f"use {', '.join(sorted(self._urls))}, or" if self._urls else "leave it out, or"
        raise InvalidInput(
            field, f"{label!r} is not the label of a configured proxy", f"{known} define it in SHOAL_PROXIES"
        )

    def find(self, label: str) -> Proxy | None:
        """Return the proxy with that label; any address is allowed, since the operator configured it. None if only bots
        know its address, or the label is unknown."""
        if not self._urls.get(label):
            return None
        proxy = Proxy.parse(self._urls[label], AddressRule())
        return replace(proxy, rule=AddressRule(named=frozenset({(proxy.host, proxy.port)})))

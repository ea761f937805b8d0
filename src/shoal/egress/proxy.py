"""A proxy for requests. The egress checks its address and connects to it."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from shoal.base.errors import BadConfig
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

"""A proxy that requests go through. Dialling it, after the address rule was asked, is left to the egress."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from shoal.base.errors import BadConfig
from shoal.egress.address import AddressRule

_PORTS: Final = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


@dataclass(frozen=True, slots=True)
class Proxy:
    """`rule` says where the proxy may be: an operator's proxy is named in it, a crawl's is not."""

    url: str
    host: str
    port: int
    rule: AddressRule
    login: str = ""

    @classmethod
    def parse(cls, text: str, rule: AddressRule) -> "Proxy":
        """`scheme://[user:password@]host[:port]`, with scheme http, https, socks5 or socks5h."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        if not host or parts.scheme not in _PORTS:
            raise BadConfig("proxy", "is not a proxy address", "write it as http://host:port")
        host = f"[{host}]" if ":" in host else host
        port = port or _PORTS[parts.scheme]
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        return cls(f"{parts.scheme}://{host}:{port}", host, port, rule, login)

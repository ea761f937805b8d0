"""SURT keys, by which web archives sort and look up URLs: `com,example)/path?query`, without session ids.

The rules are those of the Wayback Machine, because replay tools use them for lookups. They are coarser than our own
canonicalization (lower case, no `www.`) and are used only for the index.
"""

import re
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlsplit

_WWW: Final = re.compile(r"^www\d*\.")
_PORTS: Final = {"http": 80, "https": 443}
_KEPT: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "").replace("#", "")
_SESSION_IN_QUERY: Final = re.compile(
    r"(?:^|(?<=&))(?:(?:jsessionid|phpsessid|sid)=[0-9a-z]{32}|aspsessionid[a-z]{8}=[a-z]{24}|cfid=[^&]+&cftoken=[^&]+)"
    r"(?:&|$)"
)
_SESSION_IN_PATH: Final = re.compile(
    r"/\((?:[a-z]\([0-9a-z]{24}\))+\)(?=/[^?]+\.aspx)|/\([0-9a-z]{24}\)(?=/[^?]+\.aspx)"
)
_MOST_ROUNDS: Final = 8


def surt(url: str) -> str:
    parts = urlsplit(url)
    return f"{_host(parts.hostname or '')}{_port(parts.scheme, parts.port)}){_path(parts.path)}{_query(parts.query)}"


def _host(host: str) -> str:
    host = _WWW.sub("", host.lower().rstrip("."))
    return host if ":" in host else ",".join(reversed(host.split(".")))


def _port(scheme: str, port: int | None) -> str:
    return "" if port is None or port == _PORTS.get(scheme) else f":{port}"


def _path(path: str) -> str:
    steps: list[str] = []
    for step in _plainest(path).split("/"):
        if step == "..":
            del steps[-1:]
        elif step not in ("", "."):
            steps.append(step)
    return _SESSION_IN_PATH.sub("", ("/" + "/".join(steps)).lower())


def _query(query: str) -> str:
    query = _SESSION_IN_QUERY.sub("", _plainest(query).lower())
    pairs = sorted(part.partition("=") for part in query.split("&"))
    query = "&".join("".join(pair) for pair in pairs)
    return f"?{query}" if query else ""


def _plainest(text: str) -> str:
    """Undo repeated percent-encoding, then escape only what must be escaped."""
    plain = text.encode("utf-8", "replace")
    for _ in range(_MOST_ROUNDS):
        before, plain = plain, unquote_to_bytes(plain)
        if plain == before:
            break
    return quote_from_bytes(plain, _KEPT)

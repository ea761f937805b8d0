"""The headers, cookies and proxy that a caller passes to a crawl. They are validated on input and masked in every
output."""

import re
from typing import Annotated, Any, Final

from msgspec import Struct
from msgspec.structs import force_setattr

from shoal.base.errors import BadConfig
from shoal.base.parsing import PROXY_LABEL
from shoal.base.request_form import describe
from shoal.base.text import HIDDEN, redact_url
from shoal.base.url import Url, UrlRefusal, canonical, hostname
from shoal.egress import AddressRule, Proxy
from shoal.egress.address import literal
from shoal.egress.exchange import hidden_headers
from shoal.web.crawl_headers import LONGEST, Cookie, is_public_suffix

SECRET_FIELDS: Final = frozenset({"headers", "cookies", "proxy"})
"""Options whose values appear neither in responses nor in error messages."""

_COOKIE_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f;\ud800-\udfff]")


class CrawlCookie(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cookie that the crawl starts with. A cookie without a domain is sent only to the hosts of the seeds."""

    name: Annotated[str, describe("Name of the cookie.", min_length=1, max_length=256)]
    value: Annotated[str, describe("Value of the cookie.", max_length=LONGEST)] = ""
    domain: (
        Annotated[str, describe("Domain of the cookie. Default: the hosts of the seeds.", min_length=1, max_length=253)]
        | None
    ) = None
    path: Annotated[str, describe("Path prefix to which the cookie is sent.", max_length=1024)] = "/"
    secure: Annotated[bool, describe("Whether the cookie is sent only over HTTPS.")] = False

    def __post_init__(self) -> None:
        if any(_COOKIE_UNSAFE.search(text) for text in (self.name, self.value, self.path)):
            raise ValueError("must not contain control characters or a semicolon")
        if "=" in self.name or self.name != self.name.strip():
            raise ValueError("must have a name without = and without a space at its start or end")
        if not self.path.startswith("/"):
            raise ValueError("must have a path that begins with /")
        if self.domain is not None:
            force_setattr(self, "domain", _domain(self.domain))


def _domain(written: str) -> str:
    url = canonical(f"http://{written.removeprefix('.')}/")
    if isinstance(url, UrlRefusal) or any(mark in written for mark in "/@:?#"):
        raise ValueError("must have a host name such as example.com as its domain")
    domain = hostname(url)
    if literal(domain) is None and is_public_suffix(domain):
        raise ValueError("must not have a public suffix as its domain: omit the domain to send it to the seeds' hosts")
    return domain


def check_proxy(text: str | None) -> str | None:
    """Raise ValueError unless the text is a proxy URL or a proxy label."""
    if text is None or is_label(text):
        return text
    if not text.isprintable() or " " in text:
        raise ValueError("must be one word of printable text")
    try:
        Proxy.parse(text, AddressRule())
    except BadConfig:
        raise ValueError(
            "is not a proxy URL: write it as http://[user:password@]host:port, or use the label of a proxy"
        ) from None
    return text


def is_label(proxy: str) -> bool:
    """Return whether the value is the label of a proxy that the operator configured, rather than a proxy URL."""
    return re.match(PROXY_LABEL, proxy) is not None


def cookies_for(given: list[CrawlCookie], seeds: list[Url]) -> list[Cookie]:
    """Return the cookies in the form of a cookie jar. A cookie without a domain is set for each seed's host, and is
    secure if the seed uses https."""
    kept = []
    for one in given:
        if one.domain is not None:
            kept.append(Cookie(one.name, one.value, one.domain, one.path, one.secure, host_only=False))
            continue
        plain = {hostname(seed) for seed in seeds if not seed.startswith("https:")}
        hosts = dict.fromkeys(hostname(seed) for seed in seeds)
        kept += [Cookie(one.name, one.value, host, one.path, one.secure or host not in plain) for host in hosts]
    return kept


def hidden(config: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a crawl with secrets masked."""
    shown = dict(config)
    if shown.get("headers"):
        shown["headers"] = hidden_headers(shown["headers"])
    if shown.get("cookies"):
        shown["cookies"] = [{**cookie, "value": HIDDEN} for cookie in shown["cookies"]]
    if shown.get("proxy"):
        shown["proxy"] = redact_url(shown["proxy"])
    return shown


def hides(config: dict[str, Any]) -> bool:
    """Return whether some values are masks instead of real values."""
    values = [*config.get("headers", {}).values(), *(cookie["value"] for cookie in config.get("cookies", []))]
    return HIDDEN in values or f":{HIDDEN}@" in (config.get("proxy") or "")

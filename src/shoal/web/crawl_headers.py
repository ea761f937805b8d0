"""The request headers of a crawl: headers for every host, headers only for the seeds' origins, and cookies.

A custom header may be a secret, so only content-negotiation headers are sent to every host. The cookie jar (RFC 6265)
has a limited size and is kept only in memory. Input from sites never raises an error: an invalid cookie is ignored, as
a browser would do.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from shoal.base.clock import Clock, to_micros
from shoal.base.url import Url, hostname, origin, registrable_domain
from shoal.egress import HeaderPairs, Request, Response
from shoal.egress.exchange import split
from shoal.extract.page import as_sent

ACCEPT: Final = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"
LONGEST: Final = 4096  # characters of one cookie, including its attributes
MOST_PER_HOST: Final = 50
MOST: Final = 3000
LONGEST_HEADER: Final = 8192  # characters of a `Cookie` header; servers reject longer headers

NEVER: Final = 1 << 62
_MOST_KEPT: Final = 1000  # maximum number of cached headers with cookies
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NUMBER_HOST: Final = re.compile(r"[\d.]+\Z|\[")
_MAX_AGE: Final = re.compile(r"-?[0-9]+")

# RFC 6265, 5.1.1: a date is any text whose tokens include a time, a day, a month and a year, in any order.
_WORD: Final = re.compile(r"[^\t -/;-@\[-`{-~]+")
_TIME: Final = re.compile(r"(\d{1,2}):(\d{1,2}):(\d{1,2})(?!\d)", re.ASCII)
_DAY: Final = re.compile(r"(\d{1,2})(?!\d)", re.ASCII)
_YEAR: Final = re.compile(r"(\d{2,4})(?!\d)", re.ASCII)
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


class Cookie(Struct):
    """One cookie. A cookie that is `host_only` is sent only to the host `domain`, not to the host's subdomains."""

    name: str
    value: str
    domain: str
    path: str = "/"
    secure: bool = False
    host_only: bool = True
    expires_at: int = NEVER
    number: int = 0  # creation order
    is_given: bool = False  # given by the user, so never evicted

    @property
    def text(self) -> str:
        return f"{self.name}={self.value}"


class CookieJar:
    """The cookies of one walker's crawl. An empty jar is false, so that callers can skip the lookup."""

    def __init__(self, clock: Clock, given: Iterable[Cookie] = ()) -> None:
        self._clock = clock
        self._by_domain: dict[str, dict[tuple[str, str], Cookie]] = {}
        self._of_sites: dict[tuple[str, str, str], Cookie] = {}  # cookies set by sites, oldest first
        self._count = 0
        self._number = 0
        for cookie in given:
            cookie.is_given = True
            self._put(cookie)

    def __bool__(self) -> bool:
        return self._count > 0

    def __len__(self) -> int:
        return self._count

    def take(self, url: Url, fields: Iterable[str]) -> None:
        """Store the cookies that a response from this URL sets, and delete those that it expires."""
        now = self._clock.micros()
        for text in fields:
            cookie = read_cookie(as_sent(text), url, now)
            if cookie is None:
                continue
            if cookie.expires_at <= now:
                self._drop(cookie)
            elif not self._is_overwritten_from_outside(cookie, url):
                self._put(cookie)

    def header(self, url: Url) -> str:
        """Return the `Cookie` header of a request for this URL; empty if no cookie matches."""
        found = self._matching(url)
        if not found:
            return ""
        if len(found) > 1:
            found.sort(key=lambda cookie: (-len(cookie.path), cookie.number))
        text = "; ".join([cookie.text for cookie in found])
        return text if len(text) <= LONGEST_HEADER else _within(found)

    def _matching(self, url: Url) -> list[Cookie]:
        host, is_safe, now = hostname(url), url.startswith("https:"), self._clock.micros()
        path, found = _path(url), []
        for domain in _domains(host):
            for cookie in self._by_domain.get(domain, {}).values():
                if (
                    (not cookie.host_only or domain == host)
                    and (is_safe or not cookie.secure)
                    and cookie.expires_at > now
                    and (cookie.path == "/" or _is_below(path, cookie.path))
                ):
                    found.append(cookie)
        return found

    def _is_overwritten_from_outside(self, cookie: Cookie, url: Url) -> bool:
        """Return whether a response over plain HTTP would overwrite a `Secure` cookie, which is not allowed."""
        if url.startswith("https:"):
            return False
        there = self._by_domain.get(cookie.domain, {}).get((cookie.name, cookie.path))
        return there is not None and there.secure

    def _put(self, cookie: Cookie) -> None:
        kept = self._by_domain.setdefault(cookie.domain, {})
        key = (cookie.name, cookie.path)
        old = kept.get(key)
        if old is not None:
            cookie.number, cookie.is_given = old.number, old.is_given
        else:
            self._number += 1
            cookie.number = self._number
            self._count += 1
        kept[key] = cookie
        if not cookie.is_given:
            self._of_sites[cookie.domain, *key] = cookie
            self._evict(kept)

    def _evict(self, kept: dict[tuple[str, str], Cookie]) -> None:
        if len(kept) > MOST_PER_HOST:
            now = self._clock.micros()  # evict an expired cookie if there is one, otherwise the oldest cookie
            evictable = (cookie for cookie in kept.values() if not cookie.is_given)
            self._drop(min(evictable, key=lambda cookie: (cookie.expires_at > now, cookie.number)))
        if len(self._of_sites) > MOST:
            self._drop(next(iter(self._of_sites.values())))

    def _drop(self, cookie: Cookie) -> None:
        kept = self._by_domain.get(cookie.domain, {})
        self._of_sites.pop((cookie.domain, cookie.name, cookie.path), None)
        if kept.pop((cookie.name, cookie.path), None) is not None:
            self._count -= 1
            if not kept:
                del self._by_domain[cookie.domain]


def read_cookie(text: str, url: Url, now: int) -> Cookie | None:
    """Parse a `Set-Cookie` field from this URL; None if the cookie is invalid or not allowed."""
    if len(text) > LONGEST or _CONTROL.search(text):
        return None
    pair, _, rest = text.partition(";")
    name, mark, value = pair.partition("=")
    name, value = name.strip(" \t"), value.strip(" \t")
    if not mark or not name:
        return None
    attributes = _attributes(rest)
    host = hostname(url)
    domain = _domain(attributes.get("domain", ""), host)
    if domain is None:
        return None
    path = attributes.get("path", "")
    cookie = Cookie(
        name,
        value,
        domain or host,
        path if path.startswith("/") else _default_path(url),
        "secure" in attributes,
        not domain,
        _expiry(attributes, now),
    )
    return cookie if _prefix_is_valid(cookie, url, attributes) else None


def is_public_suffix(domain: str) -> bool:
    """Return whether this is a public suffix, such as `co.uk`, `com` or `localhost`."""
    below = f"x.{domain}"
    return registrable_domain(below) == below


def _attributes(text: str) -> dict[str, str]:
    """Parse cookie attributes. If a name occurs several times, the last attribute with that name wins."""
    found = {}
    for part in text.split(";"):
        name, _, value = part.partition("=")
        found[name.strip(" \t").lower()] = value.strip(" \t")
    return found


def _domain(written: str, host: str) -> str | None:
    """Return the domain of a cookie: empty if the cookie is host-only, None if this host may not set a cookie for the
    domain."""
    domain = written.removeprefix(".").lower()
    if not domain:
        return ""
    if domain == host:
        return "" if _NUMBER_HOST.match(host) or is_public_suffix(host) else domain
    if not host.endswith(f".{domain}") or _NUMBER_HOST.match(host) or is_public_suffix(domain):
        return None
    return domain


def _prefix_is_valid(cookie: Cookie, url: Url, attributes: dict[str, str]) -> bool:
    """Check `Secure` and the name prefixes `__Secure-` and `__Host-`."""
    is_safe = url.startswith("https:")
    if cookie.secure and not is_safe:
        return False
    prefix = cookie.name[:9].lower()
    if prefix == "__secure-":
        return cookie.secure
    if prefix.startswith("__host-"):
        return cookie.secure and cookie.host_only and attributes.get("path") == "/"
    return True


def _expiry(attributes: dict[str, str], now: int) -> int:
    age = attributes.get("max-age", "")
    if _MAX_AGE.fullmatch(age):
        seconds = int(age[:12])
        return now + seconds * 1_000_000 if seconds > 0 else 0
    if "expires" not in attributes:
        return NEVER
    moment = read_date(attributes["expires"])
    return NEVER if moment is None else to_micros(moment)


def read_date(text: str) -> datetime | None:
    """Parse a cookie date, whose tokens may be in any order; None if it is invalid."""
    time = day = month = year = None
    for word in _WORD.findall(text):
        if time is None and (found := _TIME.match(word)):
            time = (int(found[1]), int(found[2]), int(found[3]))
        elif day is None and (found := _DAY.match(word)):
            day = int(found[1])
        elif month is None and word[:3].lower() in _MONTHS:
            month = _MONTHS.index(word[:3].lower()) + 1
        elif year is None and (found := _YEAR.match(word)):
            year = int(found[1])
    if time is None or day is None or month is None or year is None:
        return None
    if year < 100:
        year += 1900 if year >= 70 else 2000
    try:
        return datetime(year, month, day, *time, tzinfo=UTC)
    except ValueError:
        return None


def _domains(host: str) -> Iterable[str]:
    """Yield the host and each of its parent domains."""
    yield host
    if _NUMBER_HOST.match(host):
        return
    dot = host.find(".")
    while dot >= 0:
        host = host[dot + 1 :]
        yield host
        dot = host.find(".")


def _path(url: Url) -> str:
    query = url.find("?")
    return url[url.index("/", 8) : query if query > 0 else None]


def _default_path(url: Url) -> str:
    return _path(url).rpartition("/")[0] or "/"


def _is_below(path: str, start: str) -> bool:
    return path.startswith(start) and (len(path) == len(start) or start.endswith("/") or path[len(start)] == "/")


def _within(cookies: list[Cookie]) -> str:
    """Join as many cookies as fit into one request header."""
    text = ""
    for cookie in cookies:
        longer = f"{text}; {cookie.text}" if text else cookie.text
        if len(longer) <= LONGEST_HEADER:
            text = longer
    return text


class CrawlHeaders:
    """The headers of one walker. `restricted` headers are sent only to the origins in `origins`."""

    def __init__(
        self, everywhere: HeaderPairs, jar: CookieJar, restricted: HeaderPairs = (), origins: Iterable[str] = ()
    ) -> None:
        self._jar = jar
        self._everywhere = everywhere
        self._cookie = "; ".join(value for name, value in restricted if name.lower() == "cookie")
        self._with_restricted = everywhere + tuple(pair for pair in restricted if pair[0].lower() != "cookie")
        self._origins = frozenset(origins) if restricted else frozenset()
        self._with_cookie: dict[tuple[bool, str], HeaderPairs] = {}

    @classmethod
    def build(cls, agent: str, custom: Mapping[str, str], jar: CookieJar, seeds: Iterable[Url]) -> "CrawlHeaders":
        """Return the request headers. Custom headers replace ours, and secret headers are sent only to the seeds'
        hosts."""
        given, secret = split(custom)
        ours = {"user-agent": ("User-Agent", agent), "accept": ("Accept", ACCEPT)}
        pairs: HeaderPairs = tuple((ours | {pair[0].lower(): pair for pair in given}).values())
        return cls(pairs, jar, secret, seed_origins(seeds))

    def to(self, url: Url) -> HeaderPairs:
        """Return the headers for this URL. Equal headers are returned as the same object, because switching to
        different headers costs time."""
        if not self._origins and not self._jar:
            return self._everywhere
        is_allowed = origin(url) in self._origins if self._origins else False
        cookies = self._jar.header(url)
        if is_allowed and self._cookie:
            cookies = f"{self._cookie}; {cookies}" if cookies else self._cookie
        if not cookies:
            return self._with_restricted if is_allowed else self._everywhere
        return self._cookied(is_allowed, cookies)

    def learn(self, response: Response) -> None:
        """Store the cookies that a response sets."""
        if fields := response.headers.all("set-cookie"):
            self._jar.take(Url(response.url), fields)

    def learn_again(self, url: str, field: str) -> None:
        """Store a cookie that another walker received in an earlier redirect of the chain."""
        self._jar.take(Url(url), (field,))

    def at_hop(self, request: Request, response: Response) -> Request:
        """Store the cookies of a redirect and return the next request with the headers for its URL."""
        self.learn(response)
        return request._replace(headers=self.to(Url(request.url)))

    def _cookied(self, is_allowed: bool, cookies: str) -> HeaderPairs:
        kept = self._with_cookie.get((is_allowed, cookies))
        if kept is None:
            if len(self._with_cookie) >= _MOST_KEPT:
                self._with_cookie.clear()
            pairs = self._with_restricted if is_allowed else self._everywhere
            kept = self._with_cookie[is_allowed, cookies] = (*pairs, ("Cookie", cookies))
        return kept


def seed_origins(seeds: Iterable[Url]) -> set[str]:
    """Return the origins that may receive a crawl's secrets: the origins of its seeds, and the same hosts over
    HTTPS."""
    origins = {origin(seed) for seed in seeds}
    plain = {one[7:] for one in origins if one.startswith("http://")}
    # Hosts on the default port.
    return origins | {f"https://{host}" for host in plain if ":" not in host.rpartition("]")[2]}

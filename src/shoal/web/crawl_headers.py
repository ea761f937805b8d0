"""The request headers of a crawl: those for every host, those for the seeds' origins only, and cookies.

A custom header may be a secret, so only content-negotiation headers are sent to every host.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from shoal.base.url import Url, origin
from shoal.egress import HeaderPairs, Request, Response
from shoal.egress.exchange import split
from shoal.web.cookies import CookieJar

ACCEPT: Final = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"
_MOST_KEPT: Final = 1000


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
        """Return the headers of requests: custom ones replace ours, and secret ones go only to the hosts of the
        seeds."""
        given, secret = split(custom)
        ours = {"user-agent": ("User-Agent", agent), "accept": ("Accept", ACCEPT)}
        pairs: HeaderPairs = tuple((ours | {pair[0].lower(): pair for pair in given}).values())
        return cls(pairs, jar, secret, seed_origins(seeds))

    def to(self, url: Url) -> HeaderPairs:
        """Return the headers for this URL; equal headers are the same object, because changing them costs time."""
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
        fields = response.headers.all("set-cookie")
        if fields:
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
    """Return the origins that may receive a crawl's secrets: those of its seeds, and the same hosts over HTTPS."""
    origins = {origin(seed) for seed in seeds}
    return origins | {
        f"https://{host_origin.removeprefix('http://')}" for host_origin in origins if _is_plain(host_origin)
    }


def _is_plain(host_origin: str) -> bool:
    """Return whether the origin is HTTP on the default port; HTTPS on its default port is then the same host."""
    return host_origin.startswith("http://") and ":" not in host_origin[7:].rpartition("]")[2]

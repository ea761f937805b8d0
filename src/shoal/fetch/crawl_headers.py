"""What each request of a crawl says in its headers: some to every host, secrets only where they belong, and cookies.

A header that somebody gave may be a secret, so only those that say what kind of answer is wanted go to every host.
"""

from collections.abc import Iterable
from typing import Final

from shoal.base.url import Url, origin
from shoal.egress import HeaderPairs, Request, Response
from shoal.fetch.cookies import CookieJar

_MOST_KEPT: Final = 1000


class CrawlHeaders:
    """The headers of one walker. `at_home` go only to the origins of the seeds, and there only over what was named."""

    def __init__(
        self, everywhere: HeaderPairs, jar: CookieJar, at_home: HeaderPairs = (), homes: Iterable[str] = ()
    ) -> None:
        self._jar = jar
        self._everywhere = everywhere
        self._cookie = "; ".join(value for name, value in at_home if name.lower() == "cookie")
        self._at_home = everywhere + tuple(pair for pair in at_home if pair[0].lower() != "cookie")
        self._homes = frozenset(homes) if at_home else frozenset()
        self._with_cookie: dict[tuple[bool, str], HeaderPairs] = {}

    def to(self, url: Url) -> HeaderPairs:
        """The headers of a request for this URL; the same object for the same headers, since a change costs time."""
        if not self._homes and not self._jar:
            return self._everywhere
        is_home = origin(url) in self._homes if self._homes else False
        cookies = self._jar.header(url)
        if is_home and self._cookie:
            cookies = f"{self._cookie}; {cookies}" if cookies else self._cookie
        if not cookies:
            return self._at_home if is_home else self._everywhere
        return self._cookied(is_home, cookies)

    def learn(self, response: Response) -> None:
        """Keep the cookies that an answer sets."""
        fields = response.headers.all("set-cookie")
        if fields:
            self._jar.take(Url(response.url), fields)

    def learn_again(self, url: str, field: str) -> None:
        """Keep a cookie that somebody else was given on the way to a page."""
        self._jar.take(Url(url), (field,))

    def at_hop(self, request: Request, response: Response) -> Request:
        """A redirect may set cookies, and lead to where other headers belong."""
        self.learn(response)
        return request._replace(headers=self.to(Url(request.url)))

    def _cookied(self, is_home: bool, cookies: str) -> HeaderPairs:
        kept = self._with_cookie.get((is_home, cookies))
        if kept is None:
            if len(self._with_cookie) >= _MOST_KEPT:
                self._with_cookie.clear()
            pairs = self._at_home if is_home else self._everywhere
            kept = self._with_cookie[is_home, cookies] = (*pairs, ("Cookie", cookies))
        return kept


def homes_of(seeds: Iterable[Url]) -> set[str]:
    """Where the secrets of a crawl may go: the origins of its seeds, and the same hosts with encryption."""
    homes = {origin(seed) for seed in seeds}
    return homes | {f"https://{home.removeprefix('http://')}" for home in homes if _is_plain(home)}


def _is_plain(home: str) -> bool:
    """Whether it is http at its own port: then https at its own port is the same host, only safer."""
    return home.startswith("http://") and ":" not in home[7:].rpartition("]")[2]

"""Fetches sitemaps: requests a sitemap, follows redirects, and parses the entries. Failures are returned, not
raised."""

from collections import deque
from collections.abc import Callable
from copy import copy
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from shoal.base.url import Url
from shoal.egress import Cancellable, Egress, Failure, Limits, Outcome, Request, Response
from shoal.egress.exchange import NO_DEADLINE, asked_wait
from shoal.hosts.throttle import THROTTLED
from shoal.web.crawl_headers import CrawlHeaders
from shoal.web.page_fetcher import Fetched, unexpected

if TYPE_CHECKING:
    from shoal.extract.sitemap import Sitemap


MAX_BYTES: Final = 50 * 1024 * 1024
SMALL_BYTES: Final = 2 * 1024 * 1024  # memory limit per concurrent sitemap fetch
TOO_LARGE: Final = "body_too_large"
TOTAL_TIMEOUT: Final = timedelta(minutes=5)  # for up to 50 MB
GZIPPED: Final = ("gzip", "x-gzip")


class FetchedSitemap(Fetched):
    """The result of one fetch: a sitemap or a failure. The body stays compressed until `open` is called, because a
    small response may expand to 50 MB and many results may be waiting."""

    sitemap: "Sitemap | None" = None
    body: Callable[[], bytes | Failure] | None = None  # returns the raw body; set until the body is opened
    listed: int = 0

    def open(self) -> None:
        """Decompress and parse the body, once."""
        if self.body is None:
            return
        from shoal.extract.sitemap import read_sitemap

        body, self.body = self.body(), None
        if isinstance(body, Failure):
            self.failure = body
        else:
            self.sitemap = read_sitemap(body)
            self.listed = len(self.sitemap.entries)
            self.sitemap.entries.reverse()  # so that taking the first entries is cheap

    def take(self, most: int) -> list[str]:
        """Remove the next URLs and return them, as written and in order."""
        if self.sitemap is None:
            return []
        entries = self.sitemap.entries
        taken = [entry.url for entry in entries[: -most - 1 : -1]]
        del entries[-most:]
        return taken

    @property
    def has_more(self) -> bool:
        return self.sitemap is not None and bool(self.sitemap.entries)

    @property
    def problem(self) -> str | None:
        """Return a description of the problem, worded to follow the sitemap's name; None if the whole sitemap was
        read."""
        if self.failure is not None:
            return f"could not be fetched ({self.failure.message.rstrip('.')})"
        if self.sitemap is None:
            return f"could not be fetched (the server answered {self.status})"
        return self.sitemap.problem


class _SitemapFetch(Struct, eq=False):
    """One sitemap fetch in progress."""

    url: Url
    done: Callable[[FetchedSitemap], None]
    in_flight: Cancellable | None = None
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.in_flight is not None:
            self.in_flight.cancel()


class SitemapFetcher:
    """Fetches sitemaps for one walker. Sitemaps may be much larger than pages; a sitemap over the limit is truncated.
    Large sitemaps are fetched one at a time, because together with their entries they would exhaust memory: a sitemap
    that turns out to be large is requested again when no other large sitemap is in progress. The next large sitemap
    starts only after `go_on`."""

    def __init__(
        self,
        egress: Egress,
        headers: CrawlHeaders,
        limits: Limits,
        blocked: Callable[[Failure], None] = lambda failure: None,
    ) -> None:
        self._egress = egress
        self._headers = headers
        self._limits = replace(
            limits, max_body_bytes=MAX_BYTES, max_decoded_bytes=MAX_BYTES, cut_body=True, total_timeout=TOTAL_TIMEOUT
        )
        self._small = replace(self._limits, max_body_bytes=SMALL_BYTES, cut_body=False)
        self._blocked = blocked
        self._large: deque[_SitemapFetch] = deque()  # large sitemaps, fetched one at a time
        self._is_busy = False  # whether a large sitemap is being fetched
        self._is_read = True  # whether the last large sitemap has been read and its entries are stored

    def submit(self, url: Url, done: Callable[[FetchedSitemap], None], send_by: float = NO_DEADLINE) -> Cancellable:
        """Start a fetch; `done` is called once, unless the handle is cancelled first. `send_by`: see `Request`."""
        fetch = _SitemapFetch(url, done)
        self._send(fetch, self._small, self._look, send_by)
        return fetch

    def go_on(self) -> None:
        """Start the next large sitemap, because the entries of the previous large sitemap have been stored."""
        self._is_read = True
        if self._large:
            self._begin_next()

    def _send(
        self,
        fetch: _SitemapFetch,
        limits: Limits,
        then: Callable[[_SitemapFetch, Outcome], None],
        send_by: float = NO_DEADLINE,
    ) -> None:
        request = Request(fetch.url, headers=self._headers.to(fetch.url), limits=limits, send_by=send_by)
        fetch.in_flight = self._egress.follow(request, partial(then, fetch), self._headers.at_hop)

    def _look(self, fetch: _SitemapFetch, outcome: Outcome) -> None:
        if isinstance(outcome, Failure) and outcome.code == TOO_LARGE:
            self._large.append(fetch)
            self._begin_next()
        else:
            fetch.done(self._fetched(fetch.url, outcome))

    def _finish_large(self, fetch: _SitemapFetch, outcome: Outcome) -> None:
        self._is_busy = self._is_read = False
        fetch.done(self._fetched(fetch.url, outcome))

    def _begin_next(self) -> None:
        while self._large and self._is_read and not self._is_busy:
            fetch = self._large.popleft()
            if not fetch.is_cancelled:
                self._is_busy = True
                self._send(fetch, self._limits, self._finish_large)

    def _fetched(self, url: str, outcome: Outcome) -> FetchedSitemap:
        try:
            return self._read(url, outcome)
        except Exception as error:  # if the exception escaped, the sitemap would never be settled
            return FetchedSitemap(url, 0.0, failure=unexpected(url, error))

    def _read(self, url: str, outcome: Outcome) -> FetchedSitemap:
        if isinstance(outcome, Failure):
            if outcome.is_blocked:
                self._blocked(outcome)
            return FetchedSitemap(outcome.url or url, 0.0, redirects=outcome.redirects, failure=outcome)
        self._headers.learn(outcome)
        fetched = FetchedSitemap(
            final_url=outcome.url,
            seconds=outcome.seconds,
            status=outcome.status,
            redirects=outcome.redirects,
            content_type=outcome.headers.get("content-type"),
            bytes=len(outcome.raw),
        )
        if 200 <= outcome.status < 300:
            fetched.body = partial(self._body, outcome)
        elif outcome.status in THROTTLED:
            fetched.retry_after = asked_wait(outcome.headers.get)
        return fetched

    def _body(self, response: Response) -> bytes | Failure:
        """Move the body out of the response: other code refers to the response while the body is parsed, and would keep
        the body in memory."""
        taken = copy(response)
        response.raw = b""
        encodings = [value.strip().lower() for value in taken.headers.all("content-encoding")]
        if len(encodings) == 1 and encodings[0] in GZIPPED:
            return taken.raw  # the parser decompresses it in chunks, like a .gz file
        return taken.body(self._limits)

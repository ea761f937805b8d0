"""One sitemap: ask for it, follow its redirects, read what it lists. Failures are values."""

from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from shoal.base.retry_after import asked_wait
from shoal.base.url import Url
from shoal.egress import Cancellable, Egress, Failure, Limits, Outcome, Request, Response
from shoal.fetch.crawl_headers import CrawlHeaders
from shoal.fetch.page_fetcher import Fetched, unexpected
from shoal.hosts.throttle import THROTTLED

if TYPE_CHECKING:  # most hosts have no sitemap where one is looked for
    from shoal.extract.sitemap import Sitemap

MAX_BYTES: Final = 50 * 1024 * 1024
SMALL_BYTES: Final = 2 * 1024 * 1024  # so many may be in memory for each that is under way
TOO_LARGE: Final = "body_too_large"
PATIENCE: Final = timedelta(minutes=5)  # for up to 50 MB
GZIPPED: Final = ("gzip", "x-gzip")


class FetchedSitemap(Fetched):
    """What one fetch gave: what the sitemap lists, or a failure. It stays as it was sent until somebody opens it: what
    is small on its way may list 50 MB of URLs, and many may wait for their turn."""

    sitemap: "Sitemap | None" = None
    body: Callable[[], bytes | Failure] | None = None  # what was sent, if it was not opened yet
    listed: int = 0

    def open(self) -> None:
        """Unpack and read what was sent, once."""
        if self.body is None:
            return
        from shoal.extract.sitemap import read_sitemap

        body, self.body = self.body(), None
        if isinstance(body, Failure):
            self.failure = body
        else:
            self.sitemap = read_sitemap(body)
            self.listed = len(self.sitemap.entries)
            self.sitemap.entries.reverse()  # so that the first ones are cheap to take

    def take(self, most: int) -> list[str]:
        """The next URLs as they are written, in order; they are not kept."""
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
        """What went wrong, to follow the name of the sitemap; None if all of it was read."""
        if self.failure is not None:
            return f"could not be had ({self.failure.message.rstrip('.')})"
        if self.sitemap is None:
            return f"could not be had (the server answered {self.status})"
        return self.sitemap.problem


class _Errand(Struct, eq=False):
    """One sitemap on its way."""

    url: Url
    done: Callable[[FetchedSitemap], None]
    under_way: Cancellable | None = None
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.under_way is not None:
            self.under_way.cancel()


class SitemapFetcher:
    """Fetches sitemaps for one walker. They may be much larger than pages, and of what is too large the first part is
    read. One that proves to be large is asked for once more when it is the only one, and the next of them after
    `go_on`: all at once, they and what they list would take more memory than there is."""

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
            limits, max_body_bytes=MAX_BYTES, max_decoded_bytes=MAX_BYTES, cut_body=True, total_timeout=PATIENCE
        )
        self._small = replace(self._limits, max_body_bytes=SMALL_BYTES, cut_body=False)
        self._blocked = blocked
        self._large: deque[_Errand] = deque()  # those that wait until they are alone
        self._is_busy = False  # with a large one
        self._is_read = True  # the last large one, and what it lists is out of the way

    def submit(self, url: Url, done: Callable[[FetchedSitemap], None]) -> Cancellable:
        """Start; `done` is called once, unless the handle is cancelled first."""
        errand = _Errand(url, done)
        self._send(errand, self._small, self._look)
        return errand

    def go_on(self) -> None:
        """What the last large one lists is stored: the next may come."""
        self._is_read = True
        if self._large:
            self._begin_next()

    def _send(self, errand: _Errand, limits: Limits, then: Callable[[_Errand, Outcome], None]) -> None:
        request = Request(errand.url, headers=self._headers.to(errand.url), limits=limits)
        errand.under_way = self._egress.follow(request, partial(then, errand), self._headers.at_hop)

    def _look(self, errand: _Errand, outcome: Outcome) -> None:
        if isinstance(outcome, Failure) and outcome.code == TOO_LARGE:
            self._large.append(errand)
            self._begin_next()
        else:
            errand.done(self._fetched(errand.url, outcome))

    def _finish_large(self, errand: _Errand, outcome: Outcome) -> None:
        self._is_busy = self._is_read = False
        errand.done(self._fetched(errand.url, outcome))

    def _begin_next(self) -> None:
        while self._large and self._is_read and not self._is_busy:
            errand = self._large.popleft()
            if not errand.is_cancelled:
                self._is_busy = True
                self._send(errand, self._limits, self._finish_large)

    def _fetched(self, url: str, outcome: Outcome) -> FetchedSitemap:
        try:
            return self._read(url, outcome)
        except Exception as error:  # raised in here, it would leave a sitemap that nobody ever settles
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
        """What was sent, taken out of the response, which others still hold while it is read."""
        taken = copy(response)
        response.raw = b""
        encodings = [value.strip().lower() for value in taken.headers.all("content-encoding")]
        if len(encodings) == 1 and encodings[0] in GZIPPED:
            return taken.raw  # unpacked piece by piece by whoever reads it, as a .gz file is
        return taken.body(self._limits)

"""One sitemap: ask for it, follow its redirects, read what it lists. Failures are values."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from shoal.base.url import Url
from shoal.egress import Cancellable, Egress, Failure, Limits, Outcome, Request, Response
from shoal.fetch.fetch import Fetched
from shoal.fetch.headers import CrawlHeaders

if TYPE_CHECKING:  # most hosts have no sitemap where one is looked for
    from shoal.extract.sitemap import Sitemap

MAX_BYTES: Final = 50 * 1024 * 1024
PATIENCE: Final = timedelta(minutes=5)  # for up to 50 MB
GZIPPED: Final = ("gzip", "x-gzip")


@dataclass(slots=True)
class FetchedSitemap(Fetched):
    """What one fetch gave: what the sitemap lists, or a failure."""

    sitemap: "Sitemap | None" = None

    @property
    def problem(self) -> str | None:
        """What went wrong, to follow the name of the sitemap; None if all of it was read."""
        if self.failure is not None:
            return f"could not be had ({self.failure.message.rstrip('.')})"
        if self.sitemap is None:
            return f"could not be had (the server answered {self.status})"
        return self.sitemap.problem


class SitemapFetcher:
    """Fetches sitemaps for one walker. They may be much larger than pages, and of what is too large the first part is
    read."""

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
        self._blocked = blocked

    def submit(self, url: Url, done: Callable[[FetchedSitemap], None]) -> Cancellable:
        """Start; `done` is called once, unless the handle is cancelled first."""
        request = Request(url, headers=self._headers.to(url), limits=self._limits)
        return self._egress.follow(request, lambda outcome: done(self._read(url, outcome)), self._headers.at_hop)

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
            self._read_body(fetched, outcome)
        return fetched

    def _read_body(self, fetched: FetchedSitemap, response: Response) -> None:
        from shoal.extract.sitemap import read_sitemap

        body = self._body(response)
        if isinstance(body, Failure):
            fetched.failure = body
        else:
            fetched.sitemap = read_sitemap(body)

    def _body(self, response: Response) -> bytes | Failure:
        encodings = [value.strip().lower() for value in response.headers.all("content-encoding")]
        if len(encodings) == 1 and encodings[0] in GZIPPED:
            return response.raw  # unpacked piece by piece by whoever reads it, as a .gz file is
        return response.body(self._limits)

"""Fetches a page once: request, redirects, decoding, extraction. Failures are returned as values. `Retries` decides
whether the fetch is repeated."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from shoal.base.url import Canonicalizer, Url
from shoal.egress import (
    PLAIN_URLS,
    REDIRECTS,
    Cancellable,
    Egress,
    Failure,
    HeaderPairs,
    Hop,
    Limits,
    Outcome,
    Request,
    Response,
    circular,
    endless,
    leads_to,
)
from shoal.egress.exchange import NO_DEADLINE, asked_wait
from shoal.extract.flags import PageFlag
from shoal.extract.page import ExtractOptions, PageFacts, canonical_of, extract, of_headers, refresh_of
from shoal.hosts.throttle import REFUSED, THROTTLED
from shoal.pages.bodies import CapturedExchange
from shoal.pages.page import NOT_MODIFIED, Page, RenderWait
from shoal.web.crawl_headers import CrawlHeaders
from shoal.web.detect import is_shell

if TYPE_CHECKING:
    from shoal.extract.optional_facts import OptionalFacts, OptionalFactsReader


MOST_COOKIES = 8_000  # maximum total length, in characters, of the cookies in a redirect chain
Blob = bytes  # alias, because `RedirectChain` and `Fetched` have a field named `bytes`


class RedirectStep(Struct, frozen=True):
    """A request whose response was a redirect. `asked`: a hash of the request headers, to distinguish a loop from a
    page that is requested again with a cookie that it has set."""

    url: str
    status: int
    asked: int


class RedirectChain(Struct, frozen=True, omit_defaults=True):
    """The redirects so far. `key` and `chk` identify the current target in the frontier. The other values describe the
    last response, in case its target is never fetched. `page` is set while the next target belongs to a different URL:
    it becomes the page record unless the redirects turn out to form a loop."""

    steps: tuple[RedirectStep, ...]
    key: int = 0
    chk: int = 0
    content_type: str | None = None
    bytes: int = 0
    seconds: float = 0.0
    # Id of the fetcher that got the last response. If a different fetcher continues, it must first store the cookies.
    fetcher_id: int = 0
    cookies: tuple[tuple[str, str], ...] = ()  # URL and `Set-Cookie`
    members: Blob = b""  # the responses so far as WARC records, if bodies are kept
    page: Page | None = None

    @property
    def hops(self) -> tuple[Hop, ...]:
        return tuple(Hop(step.url, step.status) for step in self.steps)

    def has_asked(self, url: str, headers: HeaderPairs) -> bool:
        asked = headers_hash(headers)
        return any(step.url == url and step.asked == asked for step in self.steps)


def headers_hash(headers: HeaderPairs) -> int:
    """Return a hash of the headers that is the same in every process."""
    return xxh3_64_intdigest(repr(headers).encode())


RETRYABLE_STATUS = frozenset({408, 429, *range(500, 600)})
HTML_TYPES = ("text/html", "application/xhtml+xml")
LONGEST_CONTENT_TYPE = 300
LONGEST_VALIDATOR = 500
# The maximum random addition to a wait, as a fraction of the wait. It spreads out the retries of URLs that failed
# together.
JITTER = 0.3
LONGEST_WAIT_SECONDS = 600.0
TIMEOUTS = frozenset({"total_timeout", "render_timeout"})
TIMED_OUT_ATTEMPTS = 2  # total number of attempts for a page that times out


class Fetched(Struct):
    """The result of one fetch: a response (`status`), a failure, or both if the body could not be read. If `chain` is
    set, the response was a redirect to `final_url`, which has not been requested yet."""

    final_url: str
    seconds: float
    status: int | None = None
    redirects: tuple[Hop, ...] = ()
    content_type: str | None = None
    etag: str | None = None
    last_modified: str | None = None
    bytes: int = 0
    facts: PageFacts | None = None
    further: "OptionalFacts | None" = None
    failure: Failure | None = None
    captured: tuple[CapturedExchange, ...] = ()  # the raw response, if capture is on
    earlier: Blob = b""  # the redirects that led to the response, as WARC records
    retry_after: str | None = None
    robots: str | None = None  # directives of `X-Robots-Tag` that apply to us
    canonical: str | None = None  # canonical URL of the `Link` header
    chain: RedirectChain | None = None
    rendered: bool = False  # whether the facts describe the page after its scripts have run
    render_wait: RenderWait | None = None
    loops_to: str | None = None  # the earlier URL to which the redirects lead back

    @property
    def retryable(self) -> bool:
        """Return whether a retry may help, because the network or the server failed and not the page."""
        return self.status in RETRYABLE_STATUS or (self.failure is not None and self.failure.retryable)


class Retries(Struct, frozen=True):
    """The rules for retrying a failed fetch: the number of attempts, and the wait between them, which doubles each
    time. Retries are stored in the frontier, so they survive a killed worker."""

    attempts: int
    first_wait_seconds: float = 1.0
    jitter: Callable[[], float] = random.random
    # Parses `Retry-After`; returns None to ignore the header.
    asked_seconds: Callable[[str], float | None] = lambda retry_after: None

    def retry_in_seconds(self, failed_before: int, fetched: Fetched) -> float | None:
        """Return the time until the next attempt; None if there is no further attempt."""
        if not fetched.retryable:
            return None
        timed_out = fetched.failure is not None and fetched.failure.code in TIMEOUTS
        if failed_before + 1 >= (min(self.attempts, TIMED_OUT_ATTEMPTS) if timed_out else self.attempts):
            return None
        wait = min(self.first_wait_seconds * (1 << failed_before), LONGEST_WAIT_SECONDS)
        return max(wait * (1 + JITTER * self.jitter()), self._asked_by(fetched))

    def _asked_by(self, fetched: Fetched) -> float:
        """Return the delay in the `Retry-After` header of a 503 response. The delay applies to this URL, and not always
        to the whole host."""
        asked = self.asked_seconds(fetched.retry_after) if fetched.status == REFUSED and fetched.retry_after else None
        return asked or 0.0


class PageFetcher:
    """Fetches pages for one walker, all with the same limits. With `capture`, raw responses are returned as well."""

    def __init__(
        self,
        egress: Egress,
        headers: CrawlHeaders,
        limits: Limits,
        options: ExtractOptions,
        blocked: Callable[[Failure], None] = lambda failure: None,
        further: "OptionalFactsReader | None" = None,
        *,
        capture: bool = False,
        token: str = "shoal",
    ) -> None:
        self._egress = egress
        self._blocked = blocked  # called for blocked requests and protocol errors, with details for operators
        self.headers = headers
        self.limits = limits
        self._options = options
        self._further = further
        self._capture = capture
        self._token = token  # our product token, to find directives for specific robots
        self._urls = Canonicalizer(PLAIN_URLS)
        self._id = random.getrandbits(63)

    def submit(
        self,
        url: Url,
        done: Callable[[Fetched], None],
        condition: tuple[str | None, str | None] | None = None,
        chain: RedirectChain | None = None,
        send_by: float = NO_DEADLINE,
    ) -> Cancellable:
        """Start a fetch; `done` is called once, unless the handle is cancelled first. `condition`: ETag and
        Last-Modified for a conditional request; at least one of them is set. `chain`: the redirects so far. `send_by`:
        see `Request`."""
        if chain is not None and chain.fetcher_id != self._id:
            for place, field in chain.cookies:
                self.headers.learn_again(place, field)
        request = Request(url, headers=self.headers.to(url), limits=self.limits, send_by=send_by)
        if condition is not None:
            request = request._replace(headers=request.headers + _conditions(*condition))
        return self._egress.submit(request, lambda outcome: done(self._fetched(request, outcome, chain)))

    def _fetched(self, request: Request, outcome: Outcome, chain: RedirectChain | None) -> Fetched:
        try:
            fetched = None
            if isinstance(outcome, Response) and outcome.status in REDIRECTS:
                fetched = self._redirected(request, outcome, chain)
            if fetched is None:
                fetched = self._read(request.url, outcome)
                if chain is not None:
                    fetched.redirects = chain.hops
        except Exception as error:  # if the exception escaped, the page would never be settled
            return Fetched(request.url, 0.0, failure=unexpected(request.url, error))
        if self._capture and isinstance(outcome, Response):
            fetched.captured = (CapturedExchange(request, outcome),)
            fetched.earlier = b"" if chain is None else chain.members
        return fetched

    def _redirected(self, request: Request, response: Response, chain: RedirectChain | None) -> Fetched | None:
        """Return the target of a redirect, or a failure if the redirect cannot be followed; None if the response has no
        `Location`."""
        target = leads_to(response, self._urls)
        if target is None:
            return None
        self.headers.learn(response)
        before = () if chain is None else chain.steps
        steps = (*before, RedirectStep(response.url, response.status, headers_hash(request.headers)))
        content_type = response.headers.get("content-type")
        onward = RedirectChain(
            steps,
            content_type=content_type and content_type[:LONGEST_CONTENT_TYPE],
            bytes=len(response.raw),
            seconds=response.seconds,
            fetcher_id=self._id,
            cookies=_cookies(response, chain),
        )
        loops_to = None
        if len(before) >= self.limits.max_redirects:
            target = endless(response.url)
        elif not isinstance(target, Failure) and onward.has_asked(target, self.headers.to(target)):
            loops_to, target = target, circular(response.url)
        if isinstance(target, Failure):
            failed = self._read(response.url, target)
            failed.redirects = onward.hops
            failed.loops_to = loops_to
            return failed
        return Fetched(
            final_url=target,
            seconds=response.seconds,
            status=response.status,
            redirects=onward.hops,
            content_type=onward.content_type,
            bytes=onward.bytes,
            chain=onward,
        )

    def _read(self, url: str, outcome: Outcome) -> Fetched:
        if isinstance(outcome, Failure):
            if outcome.is_blocked or outcome.code == "protocol_error":
                self._blocked(outcome)
            return Fetched(outcome.url or url, 0.0, redirects=outcome.redirects, failure=outcome)
        self.headers.learn(outcome)
        content_type = outcome.headers.get("content-type")
        fetched = Fetched(
            final_url=outcome.url,
            seconds=outcome.seconds,
            status=outcome.status,
            redirects=outcome.redirects,
            content_type=content_type and content_type[:LONGEST_CONTENT_TYPE],
            bytes=len(outcome.raw),
        )
        if outcome.status in (200, NOT_MODIFIED):
            fetched.etag = _validator(outcome.headers.get("etag"))
            fetched.last_modified = _validator(outcome.headers.get("last-modified"))
        elif outcome.status in THROTTLED:
            fetched.retry_after = asked_wait(outcome.headers.get)
        if tags := outcome.headers.all("x-robots-tag"):
            fetched.robots = of_headers(tags, self._token) or None
        if links := outcome.headers.all("link"):
            fetched.canonical = canonical_of(links, outcome.url)
        if may_be_html(fetched.content_type) and outcome.status // 100 != 3:
            self._read_html(fetched, outcome)
        elif self._further is not None:
            self._read_further(self._further, fetched, outcome, b"", fetched.content_type)
        return fetched

    def read_rendered(self, fetched: Fetched, response: Response, html: bytes, content_type: str) -> None:
        """Replace the facts of a page with the facts of its rendered form."""
        self._read_body(fetched, response, html, content_type)

    def _read_html(self, fetched: Fetched, response: Response) -> None:
        body = response.body(self.limits)
        if isinstance(body, Failure):
            fetched.failure = body
        else:
            self._read_body(fetched, response, body, fetched.content_type)
            facts = fetched.facts
            if fetched.status == 200 and facts is not None and is_shell(body, facts):
                # Set until a browser has rendered the page, which replaces the facts.
                facts.flags |= PageFlag.NOT_RENDERED

    def _read_body(self, fetched: Fetched, response: Response, body: bytes, content_type: str | None) -> None:
        facts = fetched.facts = extract(body, content_type, self._options)
        facts.canonical = facts.canonical or fetched.canonical
        refresh = response.headers.get("refresh")
        if refresh and (target := refresh_of(refresh, response.url)):
            facts.links.append(target)
        if self._further is not None:
            self._read_further(self._further, fetched, response, body, content_type)

    def _read_further(
        self,
        further: "OptionalFactsReader",
        fetched: Fetched,
        response: Response,
        body: bytes,
        content_type: str | None,
    ) -> None:
        from shoal.extract.tree import Source

        source = Source(
            response.url,
            body,
            content_type,
            status=response.status,
            headers=response.headers.pairs(),
            http_version=response.http_version,
        )
        html = fetched.facts is not None and not fetched.facts.flags & PageFlag.NOT_HTML
        fetched.further = further.read(source, html=html)


def unexpected(url: str, error: Exception) -> Failure:
    """Return the failure for an unexpected exception while reading a response."""
    return Failure("unexpected", f"{type(error).__name__}: {error}"[:500], retryable=False, url=url)


def _conditions(etag: str | None, last_modified: str | None) -> HeaderPairs:
    validators = (("If-None-Match", etag), ("If-Modified-Since", last_modified))
    return tuple((name, value) for name, value in validators if value is not None)


def _cookies(response: Response, chain: RedirectChain | None) -> tuple[tuple[str, str], ...]:
    """Return the cookies set so far, for a different walker that continues the chain; empty if they exceed the
    limit."""
    fields = response.headers.all("set-cookie")
    if chain is None and not fields:
        return ()
    cookies = (*(() if chain is None else chain.cookies), *((response.url, field) for field in fields))
    return cookies if sum(len(url) + len(field) for url, field in cookies) <= MOST_COOKIES else ()


def _validator(value: str | None) -> str | None:
    """Return the validator (ETag or Last-Modified) if it can be sent back in a header, else None."""
    return value if value and len(value) <= LONGEST_VALIDATOR and value.isascii() and value.isprintable() else None


def may_be_html(content_type: str | None) -> bool:
    """Return whether the body may be HTML. A body without a declared content type may be HTML."""
    return not content_type or content_type.lstrip().lower().startswith(HTML_TYPES)

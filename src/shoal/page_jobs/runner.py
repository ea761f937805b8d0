"""Fetches one page job with its own headers, limits and egress route, and builds its result. Failures are returned, not
raised."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec import Struct
from msgspec.structs import replace

from shoal.base.clock import Clock
from shoal.base.errors import StorageFull, TimeError
from shoal.base.text import json_of
from shoal.base.url import Url
from shoal.egress import Egress, Failure, Limits
from shoal.egress.exchange import parse_retry_after
from shoal.extract.converter import Converter
from shoal.extract.page import ExtractOptions, PageFacts
from shoal.hosts.robots import RobotsSource, Rules, product_token
from shoal.hosts.robots_cache import RobotsRules
from shoal.hosts.throttle import REFUSED
from shoal.page_jobs.result import Result, Status
from shoal.page_jobs.scraped_page import add_content, document_of
from shoal.page_jobs.spec import PageWork
from shoal.web.crawl_headers import CookieJar, CrawlHeaders
from shoal.web.page_fetcher import RETRYABLE_STATUS, Fetched, PageFetcher

if TYPE_CHECKING:
    from shoal.extract.optional_facts import OptionalFactsReader
    from shoal.page_jobs.rendering import PageRenderer


STORE_PAUSE_SECONDS: Final = 1.0  # pause before the store is asked again for a robots.txt
MOST_READERS: Final = 64  # rule sets with a cached reader
SHOWN_FACTS: Final = ("title", "description", "canonical", "robots", "lang", "h1", "word_count")

Blocked = Callable[[Failure], None]


class NotRendered(Exception):
    """The renderer is busy, not available or being restarted, which is not the page's fault. Try again after
    `wait_seconds`."""

    def __init__(self, message: str, wait_seconds: float, reason: str = "renderer_unavailable") -> None:
        super().__init__(message)
        self.message = message
        self.wait_seconds = wait_seconds
        self.reason = reason


class PatientRobots:
    """Implements `RobotsSource`: waits while the store is unavailable or full, which is not the page's fault."""

    def __init__(self, source: RobotsSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock

    async def rules_of(self, origin: str) -> Rules:
        while True:
            try:
                return await self._source.rules_of(origin)
            except (TimeError, StorageFull):
                await self._clock.sleep(STORE_PAUSE_SECONDS)


class EgressRoute(Struct, frozen=True):
    """An egress, and the robots.txt rules fetched through it."""

    egress: Egress
    robots: RobotsRules

    def close(self) -> None:
        self.robots.close()
        self.egress.close()


class EgressRoutes:
    """The egress routes: the direct route (None), and one route per proxy label. Each is opened on first use by
    `open_route`, which returns None for a label that is not configured."""

    def __init__(self, open_route: Callable[[str | None], EgressRoute | None]) -> None:
        self._open = open_route
        self._routes: dict[str | None, EgressRoute | None] = {}

    def by(self, label: str | None) -> EgressRoute | None:
        if label not in self._routes:
            self._routes[label] = self._open(label)
        return self._routes[label]

    def close(self) -> None:
        for route in self._routes.values():
            if route is not None:
                route.close()
        self._routes.clear()


class PageJobRunner:
    """Fetches pages for page jobs, each with its own headers, cookies, limits, rule set and egress route."""

    def __init__(
        self,
        routes: EgressRoutes,
        agent: str,
        limits: Limits,
        max_links: int,
        clock: Clock,
        longest_retry_after: timedelta = timedelta(hours=1),
        renderer: "PageRenderer | None" = None,
        max_content: int = 10_000_000,
    ) -> None:
        self._renderer = renderer
        self._routes = routes
        self._agent = agent
        self._limits = limits
        self._token = product_token(agent)
        self._options = ExtractOptions(max_links=max_links, agent=self._token)
        self._clock = clock
        self._longest_retry_after = longest_retry_after
        self._max_content = max_content  # bytes of the content of a scrape, as JSON
        self._converter = Converter()
        self._readers: dict[bytes, OptionalFactsReader] = {}

    def robots_of(self, work: PageWork) -> RobotsRules | None:
        """Return the robots.txt rules of a job's egress route; None if this worker does not have its proxy."""
        route = self._routes.by(work.crawl_config.proxy)
        return None if route is None else route.robots

    def denies(self, work: PageWork) -> bool:
        """Return whether the rules of a job's host are known and forbid its page."""
        robots = self.robots_of(work)
        return robots is not None and robots.denies(Url(work.url))

    def fetcher(self, work: PageWork, url: Url, blocked: Blocked, *, capture: bool = False) -> PageFetcher:
        """Return the fetcher of a job. This worker must have the job's proxy. `blocked` is called with each request
        that the address rule blocks."""
        route = self._routes.by(work.crawl_config.proxy)
        assert route is not None
        return PageFetcher(
            route.egress,
            self.headers_of(work, url),
            self.limits_of(work),
            self._options,
            blocked,
            self._reader(work),
            capture=capture or work.crawl_config.js_required or bool(work.formats),
            token=self._token,
        )

    def renders(self, work: PageWork, fetched: Fetched) -> bool:
        """Return whether the page needs a browser and this worker has one."""
        if self._renderer is None:
            return False
        return work.crawl_config.js_required or (work.render == "auto" and _needs_browser(fetched, self._limits))

    async def render(self, work: PageWork, fetcher: PageFetcher, at: Url, fetched: Fetched) -> bytes | None:
        """Replace the facts of a page by the facts of the rendered page, and return its screenshot if one was
        requested; raise `NotRendered` if the renderer cannot take the page now."""
        assert self._renderer is not None
        return await self._renderer.render(
            fetcher,
            self.headers_of(work, at),
            at,
            fetched,
            work.crawl_config,
            screenshot="screenshot" in work.formats,
        )

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
        self._routes.close()
        self._converter.close()

    def limits_of(self, work: PageWork) -> Limits:
        """Return the limits of the fetch; a job may only shorten the timeout."""
        hint = work.crawl_config.timeout_hint
        if hint is None:
            return self._limits
        return replace(self._limits, total_timeout=min(timedelta(seconds=hint), self._limits.total_timeout))

    def headers_of(self, work: PageWork, url: Url) -> CrawlHeaders:
        """Return the headers of a job's requests, to its own host and to redirect targets."""
        return CrawlHeaders.build(self._agent, work.crawl_config.headers, CookieJar(self._clock), [url])

    def _reader(self, work: PageWork) -> "OptionalFactsReader | None":
        if work.rule_set is None:
            return None
        from shoal.extract.optional_facts import OptionalFactsReader
        from shoal.extract.rules import read_rules

        name = orjson.dumps(work.rule_set)
        if name not in self._readers:
            if len(self._readers) >= MOST_READERS:
                self._readers.clear()
            self._readers[name] = OptionalFactsReader(self._clock.monotonic, rules=read_rules(work.rule_set))
        return self._readers[name]

    def result(self, work: PageWork, fetched: Fetched) -> Result:
        further, facts = fetched.further, fetched.facts
        result = Result(
            Status.SUCCESS,
            work.url,
            self._clock.micros(),
            final_url=fetched.final_url,
            http_status=fetched.status,
            data=_data(work, facts) if further is None else further.data,
            duration_seconds=round(fetched.seconds, 6),
            html_hash=None if facts is None else facts.content_hash,
        )
        problem = _problem(fetched)
        if work.formats:  # for a scrape, any response is a result: its status is in the record
            result, problem = replace(result, data=document_of(work.url, fetched, result.fetched_at)), fetched.failure
        if problem is None:
            return result
        wait = self._asked_seconds(fetched)
        return replace(result, status=Status.FAIL, retry_after_seconds=wait, **_as_error(problem))

    async def scraped(self, work: PageWork, fetched: Fetched, screenshot: bytes | None) -> tuple[Result, int]:
        """Return the result of a scrape with the page content, as JSON, and the size of the result. This may take
        seconds."""
        result = self.result(work, fetched)
        if result.status is not Status.SUCCESS:
            return result, 0
        problem = await add_content(
            result.data, work.formats, fetched, screenshot, self._limits, self._max_content, self._converter
        )
        text = await asyncio.to_thread(json_of, result.data)
        result = replace(result, data=orjson.Fragment(text))
        return result if problem is None else replace(result, status=Status.FAIL, **_as_error(problem)), len(text)

    def _asked_seconds(self, fetched: Fetched) -> float:
        """Return the seconds to wait before a retry. A 503 response always delays its URL, but not always its host."""
        if fetched.status != REFUSED:
            return 0.0
        wait = parse_retry_after(fetched.retry_after, self._clock.now(), self._longest_retry_after)
        return 0.0 if wait is None else wait.total_seconds()


def no_proxy(label: str | None) -> str:
    return f'This worker has no proxy "{label}"; define it in SHOAL_PROXIES on its machine.'


def _data(work: PageWork, facts: PageFacts | None) -> dict[str, Any] | None:
    """Return the page's metadata if there is no rule set, else None."""
    if facts is None or work.rule_set is not None:
        return None
    return {name: getattr(facts, name) for name in SHOWN_FACTS}


def failed(failure: Failure, now: int) -> Result:
    """Return the result of a job whose page was not fetched."""
    return Result(Status.FAIL, failure.url, now, **_as_error(failure))


def _as_error(failure: Failure) -> dict[str, Any]:
    return {"error_code": failure.code, "error_message": failure.message, "retryable": failure.retryable}


def _needs_browser(fetched: Fetched, limits: Limits) -> bool:
    """Return whether the scripts of a page seem to create its content."""
    if fetched.facts is None or fetched.status != 200 or not fetched.captured:
        return False
    from shoal.web.detect import Evidence, evidence_of  # few jobs ask for it

    body = fetched.captured[0].response.body(limits)
    return not isinstance(body, Failure) and evidence_of(body, fetched.facts) in (Evidence.LIKELY, Evidence.PROOF)


def _problem(fetched: Fetched) -> Failure | None:
    """Return why a fetched page is not a success."""
    if fetched.failure is not None:
        return fetched.failure
    if fetched.status is None or not 200 <= fetched.status < 300:
        retryable = fetched.status in RETRYABLE_STATUS
        return Failure("http_status", f"The server answered {fetched.status}.", retryable=retryable)
    if fetched.further is not None and fetched.further.error_code is not None:
        return Failure(fetched.further.error_code, fetched.further.error_message or "", retryable=True)
    return None

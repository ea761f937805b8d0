"""Run one page job: check robots.txt, fetch the page, extract its data. Failures are returned, not raised."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import orjson
from msgspec.structs import replace as replace_fields

from shoal.base.clock import Clock
from shoal.base.database import Database
from shoal.base.errors import StorageFull, TimeError
from shoal.base.url import Url, origin
from shoal.egress import Egress, Failure, Limits
from shoal.egress.exchange import parse_retry_after
from shoal.extract.page import ExtractOptions, PageFacts
from shoal.hosts.rate_limiter import HostConnections, RateLimiter
from shoal.hosts.robots import NO_ROBOTS, RobotsSource, Rules, product_token
from shoal.hosts.robots_cache import RobotsMemo
from shoal.hosts.throttle import REFUSED, ThrottleTracker
from shoal.page_jobs.result import Result, Status
from shoal.page_jobs.spec import PageWork
from shoal.web.cookies import CookieJar
from shoal.web.crawl_headers import CrawlHeaders
from shoal.web.page_fetcher import RETRYABLE_STATUS, Fetched, PageFetcher, RedirectChain

if TYPE_CHECKING:
    from shoal.extract.optional_facts import OptionalFactsReader
    from shoal.page_jobs.rendering import PageRenderer


LONGEST_HOP_SECONDS: Final = 30.0  # for which a page waits for the host it redirects to; after that the job is put off


class HostBusy(Exception):
    """A redirect target's host must not be requested for this time."""

    def __init__(self, wait_seconds: float) -> None:
        super().__init__(wait_seconds)
        self.wait_seconds = wait_seconds


class RedirectSlots:
    """The host slots of one job. It already has one for its own URL; each redirect target needs another."""

    def __init__(
        self,
        database: Database,
        rate_limiter: RateLimiter,
        connections: HostConnections,
        throttle: ThrottleTracker,
        clock: Clock,
    ) -> None:
        self._database = database
        self._rate_limiter = rate_limiter
        self._connections = connections
        self._throttle = throttle
        self._clock = clock
        self.hosts: dict[str, int] = {}

    async def wait(self, url: Url) -> None:
        """Wait for a slot at the host of a redirect target; raises `HostBusy` if there is none soon."""
        host_origin = origin(url)
        give_up_at = self._clock.monotonic() + LONGEST_HOP_SECONDS
        while True:
            asked_at = self._clock.monotonic()
            place = await self._database.run(
                lambda tx: self._rate_limiter.next_slot(tx, host_origin, LONGEST_HOP_SECONDS)
            )
            self.hosts[host_origin] = place.host
            if place.granted:
                break
            if asked_at + place.wait_seconds > give_up_at:
                raise HostBusy(place.wait_seconds)
            await self._clock.sleep(place.wait_seconds)  # another transaction has just locked the host's row
        await self._connections.wait_for_slot(place.host, asked_at + place.wait_seconds, place.delay_seconds)
        if self._throttle.holds(place.host):
            raise HostBusy(self._throttle.held_seconds(place.host))

    def connected(self, url: Url) -> AbstractAsyncContextManager[None]:
        """Hold one of the connections that the host of a URL may have."""
        return self._connections.at(self.hosts[origin(url)])


STORE_PAUSE_SECONDS: Final = 1.0  # before the store is asked again for a robots.txt
MOST_READERS: Final = 64  # rule sets with a cached reader
SHOWN_FACTS: Final = ("title", "description", "canonical", "robots", "lang", "h1", "word_count")

Blocked = Callable[[Failure], None]
OnResponse = Callable[[Url, Fetched], None]
"""Called with the response of a URL's host."""


class NotRendered(Exception):
    """The renderer is busy, not available or being restarted, which is not the page's fault; try again after this
    time."""

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


@dataclass(frozen=True, slots=True)
class EgressRoute:
    """An egress, and the robots.txt rules fetched through it."""

    egress: Egress
    robots: RobotsMemo

    def close(self) -> None:
        self.robots.close()
        self.egress.close()


class EgressRoutes:
    """The egress routes: the direct one (None), and one per proxy label. Each is opened on first use by `open_route`,
    which returns None for a label that is not configured."""

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
    ) -> None:
        self._renderer = renderer
        self._routes = routes
        self._agent = agent
        self._limits = limits
        self._token = product_token(agent)
        self._options = ExtractOptions(max_links=max_links, agent=self._token)
        self._clock = clock
        self._longest_retry_after = longest_retry_after
        self._readers: dict[bytes, OptionalFactsReader] = {}

    async def ask_robots(self, work: PageWork) -> bool:
        """Load the robots.txt rules of a job's host; return whether they had to be loaded now and were reachable."""
        route, host_origin = self._routes.by(work.crawl_config.proxy), origin(Url(work.url))
        if route is None or route.robots.known(host_origin) is not None:
            return False
        return (await route.robots.rules_of(host_origin)).reachable

    def denies(self, work: PageWork) -> bool:
        """Return whether cached rules of a job's host forbid its page."""
        route, url = self._routes.by(work.crawl_config.proxy), Url(work.url)
        rules = None if route is None else route.robots.known(origin(url))
        return rules is not None and rules.reachable and not rules.allows(url)

    async def run(
        self, work: PageWork, on_response: OnResponse, blocked: Blocked, slots: RedirectSlots | None = None
    ) -> Result:
        """Fetch the page and return its result; see `visit`."""
        return self._result(work, await self.visit(work, on_response, blocked, slots))

    async def visit(
        self,
        work: PageWork,
        on_response: OnResponse,
        blocked: Blocked,
        slots: RedirectSlots | None = None,
        *,
        capture: bool = False,
    ) -> Fetched:
        """Fetch the page and follow redirects that the target's robots.txt allows, each in its host slot. `on_response`
        is called with each response, `blocked` with each request blocked by the address rule. Without `slots`, the
        host's crawl delay is kept before each redirect. A page that needs a browser is rendered; raises `NotRendered`
        if the renderer cannot take it now."""
        at, label = Url(work.url), work.crawl_config.proxy
        route = self._routes.by(label)
        if route is None:
            return Fetched(at, 0.0, failure=Failure("unknown_proxy", no_proxy(label), retryable=True, url=at))
        renderer = self._renderer if work.crawl_config.js_required else None
        fetcher = self._fetcher(route.egress, work, at, blocked, capture=capture or renderer is not None)
        chain: RedirectChain | None = None
        while True:
            if chain is not None and slots is not None and route.robots.known(origin(at)) is None:
                await slots.wait(at)  # robots.txt needs a slot of its own
            rules = await route.robots.rules_of(origin(at))
            if failure := _objection(rules, at):
                return Fetched(at, 0.0, redirects=() if chain is None else chain.hops, failure=failure)
            if chain is not None:
                await (self._clock.sleep(rules.delay.total_seconds()) if slots is None else slots.wait(at))
            async with nullcontext() if slots is None else slots.connected(at):
                fetched = await _fetch(fetcher, at, chain)
            on_response(at, fetched)
            if fetched.chain is None:
                if renderer is not None:
                    await renderer.render(fetcher, self.headers_of(work, at), at, fetched, work.crawl_config)
                return fetched
            at, chain = Url(fetched.final_url), fetched.chain

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
        self._routes.close()

    def _fetcher(self, egress: Egress, work: PageWork, url: Url, blocked: Blocked, *, capture: bool) -> PageFetcher:
        return PageFetcher(
            egress,
            self.headers_of(work, url),
            self.limits_of(work),
            self._options,
            blocked,
            self._reader(work),
            capture=capture,
            token=self._token,
        )

    def limits_of(self, work: PageWork) -> Limits:
        """Return the limits of the fetch; a job may only shorten the timeout."""
        hint = work.crawl_config.timeout_hint
        if hint is None:
            return self._limits
        return replace(self._limits, total_timeout=min(timedelta(seconds=hint), self._limits.total_timeout))

    def headers_of(self, work: PageWork, url: Url) -> CrawlHeaders:
        """Return the headers of its requests, to its own host and to redirect targets."""
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

    def _result(self, work: PageWork, fetched: Fetched) -> Result:
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
        if problem is None:
            return result
        wait = self._asked_seconds(fetched)
        return replace_fields(result, status=Status.FAIL, retry_after_seconds=wait, **_as_error(problem))

    def _asked_seconds(self, fetched: Fetched) -> float:
        """Return the seconds to wait before a retry: a 503 delays its URL, and not always its host."""
        if fetched.status != REFUSED:
            return 0.0
        wait = parse_retry_after(fetched.retry_after, self._clock.now(), self._longest_retry_after)
        return 0.0 if wait is None else wait.total_seconds()


async def _fetch(fetcher: PageFetcher, url: Url, chain: RedirectChain | None) -> Fetched:
    answer: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()

    def done(fetched: Fetched) -> None:
        if not answer.done():
            answer.set_result(fetched)

    handle = fetcher.submit(url, done, None, chain)
    try:
        return await answer
    finally:
        handle.cancel()


def _objection(rules: Rules, url: Url) -> Failure | None:
    """Return why a URL must not be fetched."""
    if not rules.reachable:
        return Failure("robots_unreachable", f"{NO_ROBOTS} {rules.why_none}".rstrip(), retryable=True, url=url)
    if not rules.allows(url):
        return Failure("robots_denied", f"The robots.txt of {origin(url)} forbids {url}.", retryable=False, url=url)
    return None


def no_proxy(label: str | None) -> str:
    return f'This worker has no proxy "{label}"; define it in SHOAL_PROXIES on its machine.'


def _data(work: PageWork, facts: PageFacts | None) -> dict[str, Any] | None:
    """Return the page's own metadata if there is no rule set."""
    if facts is None or work.rule_set is not None:
        return None
    return {name: getattr(facts, name) for name in SHOWN_FACTS}


def failed(failure: Failure, now: int) -> Result:
    """Return the result of a job whose page was not fetched."""
    return Result(Status.FAIL, failure.url, now, **_as_error(failure))


def _as_error(failure: Failure) -> dict[str, Any]:
    return {"error_code": failure.code, "error_message": failure.message, "retryable": failure.retryable}


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

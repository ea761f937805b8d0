"""Fetch pages for a bot, without a database: through egress, within the rules of robots.txt, with the options of the
job. Failures are raised as `JobFailed`."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from shoal.base.clock import Clock
from shoal.base.extras import require
from shoal.base.settings import Settings
from shoal.base.signals import Signals
from shoal.base.url import Url, origin
from shoal.bot.client import BotJob
from shoal.egress import AddressRule, Egress, Failure, Limits, Proxies
from shoal.extract.encoding import decode
from shoal.hosts.robots_cache import RobotsReader, RobotsRules, objection
from shoal.page_jobs.result import Status
from shoal.page_jobs.runner import EgressRoute, EgressRoutes, NotRendered, PageJobRunner, no_proxy
from shoal.page_jobs.spec import PageConfig, PageWork
from shoal.pages.bodies import RENDERED_TYPE
from shoal.web.page_fetcher import Fetched, PageFetcher, RedirectChain

if TYPE_CHECKING:
    from shoal.page_jobs.rendering import PageRenderer


class JobFailed(Exception):
    """Raise this in a handler to report why a job failed; the server decides whether to retry the job."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code


@dataclass(frozen=True, slots=True)
class BotPage:
    """A fetched page."""

    url: str  # URL after redirects
    status: int
    text: str
    html_hash: str


@dataclass(frozen=True, slots=True)
class Found:
    """A return value for handlers that report a content hash beside the data."""

    data: Any
    html_hash: str | None = None


class BotFetcher:
    """Fetches the pages of jobs. The address rule and the proxies come from the settings of this machine:
    SHOAL_ALLOW_NETWORKS and SHOAL_PROXIES."""

    def __init__(self, settings: Settings, clock: Clock, *, browser: bool = False) -> None:
        """With `browser`, pages of jobs that need a browser are rendered; raise `BadConfig` if there is no Chromium."""
        self._settings = settings
        self._clock = clock
        self._limits = Limits.of(settings.egress)
        self._agent = settings.egress.user_agent
        self._routes = EgressRoutes(self._route)
        renderer = _renderer(settings, clock) if browser else None
        self._runner = PageJobRunner(
            self._routes, self._agent, self._limits, settings.crawl.max_links, clock, renderer=renderer
        )

    async def page(self, job: BotJob) -> BotPage:
        """Return the text of the job's page."""
        with _renderer_explained():
            fetched = await self._visit(_work(job))
        if fetched.failure is not None:
            raise JobFailed(fetched.failure.code, fetched.failure.message)
        [(_, response, rendered)] = fetched.captured
        if not 200 <= response.status < 300:
            raise JobFailed("http_status", f"The server answered {response.status}.")
        body = rendered or response.body(self._limits)
        if isinstance(body, Failure):
            raise JobFailed(body.code, body.message)
        text, _, _ = decode(body, RENDERED_TYPE if rendered else response.headers.get("content-type"))
        return BotPage(response.url, response.status, text, xxhash.xxh3_128_hexdigest(body))

    async def data(self, job: BotJob) -> Found:
        """Return the data that the job's rule set extracts, or without a rule set the metadata of the page."""
        with _renderer_explained():
            work = _work(job)
            result = self._runner.result(work, await self._visit(work))
        if result.status is Status.FAIL:
            raise JobFailed(result.error_code or "failed", result.error_message or "")
        return Found(result.data, result.html_hash)

    async def _visit(self, work: PageWork) -> Fetched:
        """Fetch a page within the rules of robots.txt, follow redirects, and render the page if the job needs it. The
        server has already reserved a slot for the first request; each redirect target is requested after the delay in
        the robots.txt of its host."""
        at, robots = Url(work.url), self._runner.robots_of(work)
        if robots is None:
            why = Failure("unknown_proxy", no_proxy(work.crawl_config.proxy), retryable=True, url=at)
            return Fetched(at, 0.0, failure=why)
        fetcher, chain = self._runner.fetcher(work, at, lambda blocked: None, capture=True), None
        while True:
            rules = await robots.rules_of(origin(at))
            if not rules.reachable or not rules.allows(at):
                hops = () if chain is None else chain.hops
                return Fetched(at, 0.0, redirects=hops, failure=objection(rules, at))
            if chain is not None:
                await self._clock.sleep(rules.delay.total_seconds())
            fetched = await _fetch(fetcher, at, chain)
            if fetched.chain is None:
                break
            at, chain = Url(fetched.final_url), fetched.chain
        if self._runner.renders(work, fetched):
            await self._runner.render(work, fetcher, at, fetched)
        return fetched

    def close(self) -> None:
        self._runner.close()

    def _route(self, label: str | None) -> EgressRoute | None:
        settings = self._settings.egress
        proxy = None if label is None else Proxies(settings.proxies).find(label)
        if label is not None and proxy is None:
            return None
        rule = AddressRule(allow=settings.allow_networks)
        egress = Egress(rule, self._limits, clock=self._clock, proxy=proxy)
        robots = RobotsReader(egress, self._agent, self._settings.hosts.longest_crawl_delay, self._clock)
        return EgressRoute(egress, RobotsRules(robots))


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


@contextmanager
def _renderer_explained() -> Iterator[None]:
    """If the renderer could not accept a page, report the job as failed, so that the server retries it."""
    try:
        yield
    except NotRendered as why:
        raise JobFailed("no_renderer", why.message) from None


def _renderer(settings: Settings, clock: Clock) -> "PageRenderer":
    require("render", "Rendering")
    from shoal.app.render import check_browser, standalone_renderer  # imported here because few bots have a browser
    from shoal.page_jobs.rendering import PageRenderer

    check_browser(settings)
    return PageRenderer(lambda: standalone_renderer(settings, clock, Signals()), settings.crawl.max_concurrent_chrome)


def _work(job: BotJob) -> PageWork:
    config = PageConfig(
        headers=dict(job.headers), js_required=job.js_required, timeout_hint=job.timeout_hint, proxy=job.proxy
    )
    return PageWork(url=job.url, crawl_config=config, rule_set=job.rule_set)

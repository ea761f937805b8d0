"""One page, fetched in this process as in a crawl: with robots.txt, the slots of its host, the address rule, redirects,
and a browser if the page needs one. The page is not stored; only the state of its host is."""

import asyncio
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any, Final, NamedTuple

from shoal.app import App
from shoal.base.errors import InvalidInput
from shoal.base.ids import CrawlId
from shoal.base.url import Canonicalizer, Url
from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.page_reader import PageReader
from shoal.crawl.engine.walker import headers_of
from shoal.crawl.frontier.values import FrontierTask, WalkerBatch
from shoal.crawl.scope import default_speed, seeds_of
from shoal.crawl.states import CrawlState
from shoal.egress import Cancellable, Egress, Limits
from shoal.extract.page import ExtractOptions
from shoal.hosts.rate import HostDelay
from shoal.hosts.robots import product_token
from shoal.hosts.robots_cache import AllowAll, RobotsCache, RobotsRules
from shoal.process.crawl_request import check_rendering, read_config
from shoal.process.local_crawl import CrawledPage
from shoal.process.runners import egress_of, single_fetches
from shoal.web.page_fetcher import Fetched, PageFetcher, RedirectChain, Retries
from shoal.web.single_fetch import Done

OPTIONS: Final = ("render", "wait_for", "scroll", "click", "robots", "user_agent", "headers", "cookies", "proxy")
"""The crawl options that define how a page is fetched."""
NAME: Final = CrawlId("fetch")  # stands in logs for pages that belong to no crawl


class FetchedPage(NamedTuple):
    """A page, and its screenshot as PNG if requested."""

    crawled: CrawledPage
    screenshot: bytes | None = None


def read_fetch(url: str, options: Mapping[str, Any], *, trusted: bool = True) -> Crawl:
    """Return a crawl of this one page. Raise for the first invalid option. With `trusted`, the URL may have a private
    address."""
    unknown = next((name for name in options if name not in OPTIONS), None)
    if unknown is not None:
        raise InvalidInput(unknown, "is not an option of a single page", f"use {', '.join(OPTIONS)}")
    config = read_config(
        {"seeds": [url], "depth": 0, "sitemap": "off", **options}, lambda name: "url" if name == "seeds[0]" else name
    )
    named = frozenset(seeds_of(config)) if trusted else frozenset[str]()
    return Crawl(0, 0, NAME, CrawlState.RUNNING, None, config.project, config, named, config.priority, 0, 0, None)


async def fetch_page(app: App, crawl: Crawl, *, screenshot: bool = False) -> FetchedPage:
    """Fetch the only page of this crawl. Without a response, the page has an error, as in other crawls."""
    check_rendering(app, crawl.config)
    if not crawl.named:
        app.crawls.check(crawl.config)
    with closing(egress_of(app, crawl)) as egress, closing(PageFetch(app, crawl, egress)) as fetch:
        return await fetch.run(screenshot=screenshot)


class PageFetch:
    """The fetch of one page, with the objects that only this fetch uses."""

    def __init__(self, app: App, crawl: Crawl, egress: Egress) -> None:
        settings, config = app.settings, crawl.config
        agent = config.user_agent or settings.egress.user_agent
        self._app = app
        self._crawl = crawl
        self._egress = egress
        self._url = seeds_of(config)[0]
        self._pages = PageReader(
            crawl, Canonicalizer(config.url_rules(settings.crawl.max_url_length)), app.clock, retries=Retries(1)
        )
        self._fetcher = PageFetcher(
            egress,
            headers_of(config, agent, app.clock),
            Limits.of(settings.egress),
            ExtractOptions(max_links=settings.crawl.max_links, agent=product_token(agent)),
            capture=True,
            token=product_token(agent),
        )
        robots: RobotsRules = AllowAll()
        if config.robots == "obey":
            cache = RobotsCache(app.database, egress, agent, settings.hosts, app.clock, app.signals)
            robots = RobotsRules(cache)
        is_local = default_speed(config, [self._url]) == "max"
        delay = HostDelay(0.0) if is_local else HostDelay.outside_crawls(settings)
        self._fetches = single_fetches(app, robots, delay, 1)

    def close(self) -> None:
        self._fetches.close()

    async def run(self, *, screenshot: bool) -> FetchedPage:
        fetched = await self._follow()
        await self._fetches.settle()
        picture = None
        if self._crawl.config.render != "never" and fetched.failure is None:
            fetched, picture = await self._rendered(fetched, screenshot=screenshot)
        task = FrontierTask(0, 0, 0, 0, 0, self._url, None, 0)
        page = self._pages.read(task, fetched, WalkerBatch()).page
        assert page is not None
        return FetchedPage(CrawledPage(page, fetched.captured[0] if fetched.captured else None), picture)

    async def _follow(self) -> Fetched:
        """Follow the redirects and return the final response. Each request uses a slot of the host that it is sent
        to."""
        url, chain = self._url, None
        while True:
            fetched = await self._fetches.fetch(url, partial(self._send, chain))
            if fetched.chain is None:
                if chain is not None and fetched.failure is not None and not fetched.redirects:
                    fetched.redirects = chain.hops
                return fetched
            url, chain = Url(fetched.final_url), fetched.chain

    def _send(self, chain: RedirectChain | None, url: Url, send_by: float, done: Done) -> Cancellable:
        return self._fetcher.submit(url, done, chain=chain, send_by=send_by)

    async def _rendered(self, fetched: Fetched, *, screenshot: bool) -> tuple[Fetched, bytes | None]:
        """Return the page after its scripts have run, if it needs scripts. Raise if no browser is available now."""
        from shoal.app.render import crawl_renderer  # imported here because few pages are rendered
        from shoal.crawl.engine.render_options import render_options
        from shoal.web.rendering import RenderCallbacks, RenderStage

        outcome: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        pictures: list[bytes] = []

        async def keep(url: Url, picture: bytes) -> None:
            pictures.append(picture)

        def done(rendered: Fetched) -> None:
            if not outcome.done():
                outcome.set_result(rendered)

        def failed(error: Exception) -> None:
            if not outcome.done():
                outcome.set_exception(error)

        app, config = self._app, self._crawl.config
        renderer = crawl_renderer(app, self._crawl, self._egress)
        try:
            options = render_options(config, app.settings, connections=6, screenshots=keep if screenshot else None)
            callbacks = RenderCallbacks(unavailable=lambda error, _: failed(error), missing=failed, failed=failed)
            stage = RenderStage(
                renderer, self._fetcher, options, callbacks=callbacks, clock=app.clock, keeps_responses=True
            )
            rendering = stage.start(Url(fetched.final_url), fetched, done)
            if rendering is None:
                return fetched, None
            try:
                fetched = await outcome
            finally:
                rendering.cancel()
            return fetched, pictures[0] if pictures else None
        finally:
            await renderer.close()

"""Rendering for page jobs that need a browser (`js_required`)."""

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from shoal.base.errors import BadConfig, TimeError
from shoal.base.url import Url
from shoal.egress import Failure
from shoal.page_jobs.runner import NotRendered
from shoal.page_jobs.spec import PageConfig
from shoal.web.crawl_headers import CrawlHeaders
from shoal.web.page_fetcher import Fetched, PageFetcher
from shoal.web.renderer import RenderedPage, Renderer, RenderRequest

PAUSE_SECONDS: Final = 5.0  # pause before a page that the renderer could not take is tried again


class PageRenderer:
    """Renders the pages of page jobs, at most `pages` at the same time. The renderer is built for the first page."""

    def __init__(self, build: Callable[[], Renderer], pages: int) -> None:
        self._build = build
        self._renderer: Renderer | None = None
        self._free = asyncio.Semaphore(pages)
        self._pages = pages
        self._rendering: set[asyncio.Task[RenderedPage | Failure]] = set()

    async def render(
        self,
        fetcher: PageFetcher,
        headers: CrawlHeaders,
        url: Url,
        fetched: Fetched,
        config: PageConfig,
        *,
        screenshot: bool = False,
    ) -> bytes | None:
        """Replace the facts of a fetched page by the facts of the rendered page, or add the failure; return the
        screenshot if there is one. Raise `NotRendered` if the renderer cannot take the page now."""
        from shoal.web.rendering import RenderOptions, request_of, take_rendered  # few children render

        if fetched.facts is None or fetched.failure is not None or not fetched.captured:
            return None
        response = fetched.captured[0].response
        body = response.body(fetcher.limits)
        if isinstance(body, Failure):
            return None
        options = RenderOptions(
            mode="always", pages=self._pages, timeout_seconds=config.timeout_hint, proxy=config.proxy
        )
        async with self._free:
            try:
                if self._renderer is None:
                    self._renderer = self._build()
                request = request_of(url, response, body, headers, options)
                outcome = await self._ask(self._renderer, replace(request, screenshot=screenshot))
            except (TimeError, BadConfig) as error:
                wait = max(PAUSE_SECONDS, float(error.facts.get("retry_after_seconds") or 0))
                raise NotRendered(error.message, wait) from None
        if isinstance(outcome, Failure):
            fetched.failure = outcome
            return None
        take_rendered(fetcher, fetched, response, outcome)
        return outcome.screenshot

    @property
    def browsers(self) -> int:
        return 0 if self._renderer is None else self._renderer.browsers

    @property
    def active(self) -> int:
        return 0 if self._renderer is None else self._renderer.active

    async def restart(self) -> None:
        """Return the pages in the browsers to the queue, where any worker may lease them, and replace the browsers."""
        if self._rendering:
            for page in self._rendering:
                page.cancel()
            await asyncio.wait(self._rendering)
        if self._renderer is not None:
            await self._renderer.restart()

    async def _ask(self, renderer: Renderer, request: RenderRequest) -> RenderedPage | Failure:
        """Render a page in a separate task: a restart of the browsers cancels the task, and the job is returned."""
        page = asyncio.create_task(renderer.render(request))
        self._rendering.add(page)
        try:
            await asyncio.wait({page})
        finally:
            page.cancel()
            self._rendering.discard(page)
        if page.cancelled():
            raise NotRendered("the browsers are being restarted", 0.0, "browser_restarted")
        return page.result()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.abort()

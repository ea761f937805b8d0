"""The render service: one page per request, a bounded queue, health and metrics."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Final

from msgspec import Struct
from starlette.responses import Response

from shoal import __version__
from shoal.access.token import TokenScope
from shoal.base.errors import BadConfig, RateLimited
from shoal.base.request_form import describe
from shoal.egress import Failure
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.expensive_reads import unless_gone
from shoal.web.pool import BrowserPool
from shoal.web.renderer import RenderAnswer, RenderRequest

RETRY_SECONDS: Final = 2
EXAMPLE: Final = {"url": "https://example.com/", "wait": "networkidle", "block": ["images"], "screenshot": True}
ANSWER: Final = {
    "page": {
        "url": "https://example.com/",
        "status": 200,
        "headers": [["content-type", "text/html"]],
        "html": "<!DOCTYPE html><html>…</html>",
        "is_complete": True,
        "ended": "settled",
        "navigations": [],
        "console_errors": [],
        "seconds": 0.81,
        "counts": {"requests": 12, "refused": 0, "blocked": 4, "bytes": 81920},
        "screenshot": "iVBORw0KGgo…",
        "pdf": None,
    },
    "failure": None,
}


class RendererHealth(Struct, kw_only=True):
    """The state of the render service."""

    status: Annotated[str, describe("`ok`.")]
    version: Annotated[str, describe("Version of Shoal.")]
    browsers: Annotated[int, describe("Number of running browsers.")]
    pages: Annotated[int, describe("Number of pages in the browsers.")]
    waiting: Annotated[int, describe("Number of requests that wait for a free place in a browser.")]


class RendererApi:
    """Renders pages for workers and other programs."""

    max_body = 64_000_000  # bytes; a request may contain the HTML document
    max_body_setting = ""

    def __init__(self, pool: BrowserPool, most_waiting: int, metrics: Callable[[], tuple[bytes, str]]) -> None:
        self._pool = pool
        self._most_waiting = most_waiting
        self._metrics = metrics

    @endpoint(
        "POST",
        "/render",
        scope=TokenScope.WRITE,
        summary="Render a page.",
        body=RenderRequest,
        response=RenderAnswer,
        problems=(RateLimited, BadConfig),
        request_example=EXAMPLE,
        response_example=ANSWER,
    )
    async def render_page(self, request: EndpointRequest[RenderRequest, Nothing]) -> RenderAnswer:
        """If the page cannot be rendered, the response has the status 200 and a `failure`. While too many pages wait,
        the status is 429, with `Retry-After`."""
        if self._pool.waiting >= self._most_waiting and self._pool.is_busy:
            raise RateLimited(f"{self._pool.waiting} pages wait for the renderer", RETRY_SECONDS)
        outcome = await unless_gone(request.http, self._pool.render(request.body))
        if isinstance(outcome, Failure):
            outcome.operator_detail = ""  # it contains addresses, which callers must not learn
            return RenderAnswer(failure=outcome)
        return RenderAnswer(page=outcome)

    @endpoint("POST", "/restart", scope=TokenScope.ADMIN, summary="Replace the browsers.", status=204)
    async def restart_browsers(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """Pages in progress are rendered again in the new browsers."""
        await self._pool.restart()
        return Response(status_code=204)

    @endpoint(
        "GET",
        "/healthz",
        scope=None,
        summary="Check that the renderer is alive.",
        response=RendererHealth,
        response_example={"status": "ok", "version": __version__, "browsers": 1, "pages": 3, "waiting": 0},
    )
    async def show_renderer_health(self, request: EndpointRequest[Nothing, Nothing]) -> RendererHealth:
        pool = self._pool
        return RendererHealth(
            status="ok", version=__version__, browsers=pool.browsers, pages=pool.active, waiting=pool.waiting
        )

    @endpoint(
        "GET",
        "/metrics",
        scope=TokenScope.READ,
        summary="Show metrics in Prometheus format.",
        response=str,
        media_type="text/plain",
    )
    async def show_renderer_metrics(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        body, media_type = await asyncio.to_thread(self._metrics)
        return Response(body, media_type=media_type)

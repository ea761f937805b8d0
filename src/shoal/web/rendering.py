"""The rendering step between a fetched page and its record. Pages that need a browser are rendered, and their facts and
links are read from the result. The browser gets the document that was already fetched, so no page is requested
twice."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from msgspec import Struct

from shoal.base.clock import Clock
from shoal.base.errors import BadConfig, TimeError
from shoal.base.url import Url
from shoal.egress import Failure, Response
from shoal.extract.flags import PageFlag
from shoal.extract.page import PageFacts
from shoal.pages.bodies import RENDERED_TYPE
from shoal.web.crawl_headers import CrawlHeaders
from shoal.web.detect import (
    Choice,
    Evidence,
    PageKinds,
    evidence_of,
    has_gained,
    kind_of,
    stays_empty,
    without_noscript,
)
from shoal.web.page_fetcher import Fetched, PageFetcher
from shoal.web.renderer import Document, RenderCookie, RenderedPage, Renderer, RenderRequest, Wait

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0  # pauses while the renderer refuses pages
BACKLOG: Final = 4  # fetching stops when this many times the number of concurrent pages wait for the browser
BY_THE_BROWSER: Final = frozenset({"accept", "accept-encoding", "accept-language", "cookie", "user-agent"})

RenderMode = Literal["never", "auto", "always"]
Done = Callable[[Fetched], None]
Screenshots = Callable[[Url, bytes], Awaitable[None]]


class RenderOptions(Struct, frozen=True, kw_only=True):
    """The rendering options of a crawl."""

    mode: RenderMode
    pages: int  # maximum number of pages at the same time
    wait: Wait = "networkidle"
    wait_for: Callable[[Url], str | None] = lambda url: None  # returns the selector to wait for, or None
    scroll: bool = False
    click: str | None = None  # selector of the element to click
    obeys_robots: bool = True
    connections: int = 6  # maximum number of requests at the same time per origin
    user_agent: str | None = None
    proxy: str | None = None  # label of a configured proxy
    timeout_seconds: float | None = None  # used if shorter than SHOAL_RENDER_TIMEOUT
    screenshots: Screenshots | None = None


class RenderCallbacks(Struct, frozen=True, kw_only=True):
    """Callbacks for events that users or operators should know about."""

    unavailable: Callable[[TimeError, float], None]  # called with the seconds to wait when the renderer refuses pages
    missing: Callable[[BadConfig], None]  # called for the first page that needs a browser, if there is no browser
    failed: Callable[[Exception], None]  # called to end the walker with an error


class RenderStage:
    """Renders the pages of one walker, a few at a time. `start` returns None for a page that is complete as fetched."""

    def __init__(
        self,
        renderer: Renderer,
        fetcher: PageFetcher,
        options: RenderOptions,
        *,
        callbacks: RenderCallbacks,
        clock: Clock,
        keeps_responses: bool,
    ) -> None:
        self._renderer = renderer
        self._fetcher = fetcher
        self._options = options
        self._callbacks = callbacks
        self._clock = clock
        self._keeps_responses = keeps_responses
        self._kinds = PageKinds()
        self._queue: deque[Rendering] = deque()
        self._active: dict[Rendering, asyncio.Task[None]] = {}
        self._undecided: dict[str, list[Rendering]] = {}  # pages that wait for a probe of their kind, by kind
        self._is_missing = False
        self.waits_for_renderer = False  # the renderer refuses pages or cannot be reached

    @property
    def is_full(self) -> bool:
        """Return whether so many pages wait for a browser that no more pages should be fetched."""
        waiting = len(self._queue) + sum(map(len, self._undecided.values()))
        return waiting >= BACKLOG * self._options.pages

    def start(self, url: Url, fetched: Fetched, done: Done) -> "Rendering | None":
        """Render a page if it needs a browser. `done` is called once, unless the handle is cancelled first."""
        captured = fetched.captured
        if not self._keeps_responses:
            fetched.captured = ()
        facts = fetched.facts
        if not captured or facts is None or fetched.failure is not None or fetched.chain is not None:
            return None
        if facts.flags & PageFlag.NOT_HTML:
            return None
        response, kind = captured[0].response, kind_of(url)
        body = response.body(self._fetcher.limits)
        if isinstance(body, Failure):
            return None
        if self._options.mode == "always":
            choice = Choice.RENDER
        else:
            evidence = evidence_of(body, facts) if fetched.status == 200 else Evidence.NONE
            choice = self._kinds.choose(kind, evidence)
        if choice is Choice.SKIP:
            return None
        if self._is_missing:
            facts.flags |= PageFlag.NOT_RENDERED
            return None
        rendering = Rendering(
            stage=self, url=url, fetched=fetched, done=done, response=response, body=body, kind=kind, choice=choice
        )
        if choice is Choice.WAIT:
            self._undecided.setdefault(kind, []).append(rendering)
        else:
            self._queue.append(rendering)
            self._fill()
        return rendering

    def cancel(self, rendering: "Rendering") -> None:
        """Forget a page. If a browser is rendering the page, stop the browser's work on it."""
        rendering.is_cancelled = True
        if (task := self._active.pop(rendering, None)) is not None:
            task.cancel()
        if rendering.choice is Choice.PROBE and self._kinds.learn(rendering.kind, rendering.choice, None):
            self._decide(rendering.kind)
        self._fill()

    def _fill(self) -> None:
        while self._queue and len(self._active) < self._options.pages:
            rendering = self._queue.popleft()
            if not rendering.is_cancelled:
                task = self._active[rendering] = asyncio.create_task(self._run(rendering))
                task.add_done_callback(lambda ended, one=rendering: self._ended(one, ended))  # type: ignore[misc]

    def _ended(self, rendering: "Rendering", task: "asyncio.Task[None]") -> None:
        if self._active.pop(rendering, None) is None:
            return  # cancelled
        try:
            if (error := task.exception()) is not None:
                raise error
            rendering.done(rendering.fetched)
            self._fill()
        except Exception as failure:
            self._callbacks.failed(failure)

    async def _run(self, rendering: "Rendering") -> None:
        request = request_of(rendering.url, rendering.response, rendering.body, self._fetcher.headers, self._options)
        try:
            outcome = await self._patiently(request)
        except BadConfig as error:
            if self._options.mode == "always":
                raise
            self._give_up(rendering, error)
            return
        fetched, gained = rendering.fetched, None
        if isinstance(outcome, Failure):
            fetched.failure = outcome
        else:
            gained = await self._read(rendering, outcome)
        if self._kinds.learn(rendering.kind, rendering.choice, gained):
            self._decide(rendering.kind)

    async def _patiently(self, request: RenderRequest) -> RenderedPage | Failure:
        """Render a page. While the renderer is busy or out of reach, wait and try again, because the page is not to
        blame."""
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            try:
                outcome = await self._renderer.render(request)
                self.waits_for_renderer = False
                return outcome
            except TimeError as error:
                wait = min(
                    LONGEST_PAUSE_SECONDS, max(pause_seconds, float(error.facts.get("retry_after_seconds") or 0))
                )
                self.waits_for_renderer = True
                self._callbacks.unavailable(error, wait)
            await self._clock.sleep(wait)
            pause_seconds = min(LONGEST_PAUSE_SECONDS, pause_seconds * 2)

    async def _read(self, rendering: "Rendering", page: RenderedPage) -> bool:
        """Replace the facts of a page with the facts of its rendered form; return whether rendering added anything."""
        fetched, before = rendering.fetched, rendering.fetched.facts
        after = take_rendered(self._fetcher, fetched, rendering.response, page)
        assert before is not None
        if page.screenshot is not None and self._options.screenshots is not None:
            await self._options.screenshots(rendering.url, page.screenshot)
        return has_gained(before, after, len(page.navigations))

    def _give_up(self, rendering: "Rendering", error: BadConfig) -> None:
        """Continue without a browser. Pages that need a browser are flagged and read as fetched."""
        if not self._is_missing:
            self._is_missing = True
            self._callbacks.missing(error)
        waiting = [*self._queue, *(one for kind in self._undecided.values() for one in kind)]
        self._queue.clear()
        self._undecided.clear()
        for one in [rendering, *waiting]:
            if one.fetched.facts is not None:
                one.fetched.facts.flags |= PageFlag.NOT_RENDERED
        for one in waiting:
            if not one.is_cancelled:
                one.done(one.fetched)

    def _decide(self, kind: str) -> None:
        """Continue with the pages that waited for a probe of their kind."""
        for rendering in self._undecided.pop(kind, []):
            if rendering.is_cancelled:
                continue
            rendering.choice = self._kinds.choose(kind, Evidence.LIKELY)
            if rendering.choice is Choice.SKIP:
                rendering.done(rendering.fetched)
            elif rendering.choice is Choice.WAIT:
                self._undecided.setdefault(kind, []).append(rendering)
            else:
                self._queue.append(rendering)
        self._fill()


@dataclass(slots=True, eq=False, kw_only=True)
class Rendering:
    """A page that is being rendered or waits to be rendered."""

    stage: RenderStage
    url: Url
    fetched: Fetched
    done: Done
    response: Response
    body: bytes
    kind: str
    choice: Choice
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.stage.cancel(self)


def request_of(
    url: Url, response: Response, body: bytes, headers: CrawlHeaders, options: RenderOptions
) -> RenderRequest:
    """Return the request to render a page that was fetched."""
    pairs = headers.to(url)
    return RenderRequest(
        url=url,
        wait=options.wait,
        selector=options.wait_for(url),
        timeout=options.timeout_seconds,
        headers={name: value for name, value in pairs if name.lower() not in BY_THE_BROWSER},
        cookies=[cookie for name, value in pairs if name.lower() == "cookie" for cookie in _cookies(value)],
        user_agent=options.user_agent,
        screenshot=options.screenshots is not None,
        scroll=options.scroll,
        click=options.click,
        robots="obey" if options.obeys_robots else "ignore",
        connections=options.connections,
        proxy=options.proxy,
        document=Document(response.status, list(response.headers.pairs()), body),
    )


def take_rendered(fetcher: PageFetcher, fetched: Fetched, response: Response, page: RenderedPage) -> PageFacts:
    """Replace the facts of a page with the facts of its rendered form, and return them. If the response is captured,
    capture the rendered document, too."""
    html = without_noscript(page.html.encode("utf-8", "replace"))
    fetcher.read_rendered(fetched, response, html, RENDERED_TYPE)
    fetched.rendered = True
    fetched.render_wait = None if page.ended == "load" else page.ended
    fetched.captured = tuple(one._replace(rendered=html) for one in fetched.captured)
    facts = fetched.facts
    assert facts is not None
    facts.links += [url for url in page.navigations if url not in facts.links]
    if fetched.status == 200 and stays_empty(html, facts):
        facts.flags |= PageFlag.STAYED_EMPTY
    return facts


def _cookies(header: str) -> list[RenderCookie]:
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return [RenderCookie(name, value) for name, _, value in pairs if name]

"""The live stream of a browser tab (SSE). It sends changed regions of the page, and new log lines.

For all readers with the same view, a page is rendered only once, at most every second, and less often if rendering is
expensive. The browser sends the versions of its regions (`seen`), so a stream that begins or resumes sends only regions
that differ. Log lines continue after `Last-Event-ID`.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson
from starlette.responses import Response, StreamingResponse

from shoal.base.clock import Clock
from shoal.base.errors import NotFound, RateLimited, ShoalError
from shoal.serve.console.forms import AnyQuery, View, page_endpoint
from shoal.serve.console.shell import Shell, region_hash
from shoal.serve.crawl_feed import Viewing
from shoal.serve.endpoint import EndpointRequest, Nothing

EVERY_SECONDS: Final = 1.0
SHARE: Final = 0.008  # maximum share of time spent on rendering one page
SLOWEST_SECONDS: Final = 5.0
HEARTBEAT_SECONDS: Final = 15.0
RETRY_MILLISECONDS: Final = 2000
KEPT_LINES: Final = 500
MOST_VIEWERS: Final = 500
UNCACHED: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
ROW: Final = re.compile(r'<tr data-id="([^"]+)".*?</tr>', re.DOTALL)
LINE_NUMBER: Final = re.compile(r"[0-9]{1,15}")
PART: Final = re.compile(r"{(\w+)}")


class LivePage:
    """A page with regions that are updated while somebody looks at the page."""

    paths: tuple[str, ...]  # such as `/crawls/{crawl_id}`
    regions: tuple[str, ...]  # the names of templates in `regions/`
    template: str
    section: str
    query: tuple[str, ...] = ()  # the query parameters that the page depends on
    _shell: Shell

    async def shown(self, request: EndpointRequest[Any, Any], **more: Any) -> Response:
        """Render the page. `more` contains further values for its template."""
        names, given = PART.findall(self.paths[0]), request.http.query_params
        params = {name: given[name] for name in self.query if given.get(name)}
        topic = self._shell.url(self.paths[0], **params).removeprefix(self._shell.prefix)
        for name in names:
            params[name] = request.path_param(name)
            topic = topic.replace(f"{{{name}}}", params[name])
        view = self._shell.view(request.http)
        context = await self.context(view, params)
        context |= await self.once(request, view, context) | {"topic": topic} | more
        return await asyncio.to_thread(self._shell.page, request.http, self.template, context, section=self.section)

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        """Return the values for the templates of the page. `params` contains the path and query parameters."""
        raise NotImplementedError

    async def once(self, request: EndpointRequest[Any, Any], view: View, context: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that are used only outside of the live regions. They are read only when the page is
        loaded."""
        return {}

    async def lines(self, view: View, params: Mapping[str, str], after: int | None) -> list[tuple[int, str]]:
        """Return the log lines after a number as HTML; without a number, return the last lines. Most pages have no
        log."""
        return []


@dataclass(frozen=True, slots=True)
class Region:
    """The current version of a region, and its changes since the previous version."""

    version: str
    html: str
    event: bytes  # contains the whole region
    before: str = ""  # the previous version
    # contains the rows that changed since the previous version; None if anything else changed, too
    delta: bytes | None = None

    @classmethod
    def of(cls, name: str, html: str, before: "Region | None") -> "Region":
        version = region_hash(html)
        event = _event("region", {"name": name, "hash": version, "html": html})
        if before is None or ROW.sub("", before.html) != ROW.sub("", html):
            return cls(version, html, event)
        old, new = dict(_rows(before.html)), dict(_rows(html))
        if list(old) != list(new):
            return cls(version, html, event)
        rows = {key: row for key, row in new.items() if old[key] != row}
        return cls(version, html, event, before.version, _event("rows", {"name": name, "hash": version, "rows": rows}))

    def since(self, seen: str | None) -> bytes:
        """Return the event for a browser that has seen this version."""
        return self.delta if self.delta is not None and seen == self.before else self.event


@dataclass(slots=True)
class Topic:
    """The current regions and last log lines of one page, for all readers with the same view."""

    page: LivePage
    view: View
    params: Mapping[str, str]
    regions: dict[str, Region] = field(default_factory=dict)
    # number and event of each line
    lines: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    viewers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    def wake(self) -> None:
        before, self.changed = self.changed, asyncio.Event()
        before.set()


class FeedApi:
    """`/console/feed`, and the watched topics."""

    def __init__(self, shell: Shell, pages: Sequence[LivePage], clock: Clock) -> None:
        self._shell = shell
        self._pages = [(re.compile(PART.sub(r"(?P<\1>[^/]+)", path)), page) for page in pages for path in page.paths]
        self._clock = clock
        self._topics: dict[tuple[Any, ...], Topic] = {}
        self._viewers = 0
        self._closed = False

    @page_endpoint("/console/feed", "Stream changes of a page.")
    async def watch(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        """Stream the changes of the page whose path and query are in `topic`."""
        query = request.http.query_params
        path, _, asked = query.get("topic", "").partition("?")
        page, params = self._find(path)
        if self._viewers >= MOST_VIEWERS:
            raise RateLimited(f"{MOST_VIEWERS} browsers are already watching", HEARTBEAT_SECONDS)
        params = {**dict(parse_qsl(asked)), **params}
        view = self._shell.view(request.http)
        after = request.http.headers.get("last-event-id") or query.get("line", "")
        seen = dict(part.split("-", 1) for part in query.get("seen", "").split(",") if "-" in part)
        number = int(after) if LINE_NUMBER.fullmatch(after) else None
        self._viewers += 1
        stream = Viewing(self._stream((path, asked, view.key), page, view, params, seen, number), self._left)
        return StreamingResponse(stream, headers=UNCACHED, media_type="text/event-stream")

    def close(self) -> None:
        """End every stream, because this process stops."""
        self._closed = True
        for topic in self._topics.values():
            topic.wake()

    def _left(self) -> None:
        self._viewers -= 1

    def _find(self, path: str) -> tuple[LivePage, dict[str, str]]:
        for pattern, page in self._pages:
            match = pattern.fullmatch(path)
            if match:
                return page, match.groupdict()
        raise NotFound("live page", path[:100])

    async def _stream(
        self,
        key: tuple[Any, ...],
        page: LivePage,
        view: View,
        params: Mapping[str, str],
        seen: dict[str, str],
        line: int | None,
    ) -> AsyncGenerator[bytes, None]:
        yield b"retry: %d\n\n" % RETRY_MILLISECONDS
        topic = self._topics.setdefault(key, Topic(page, view, params))
        with self._viewer(key, topic):
            while not self._closed:
                changed, news = topic.changed, []
                for name, region in topic.regions.items():
                    if seen.get(name) != region.version:
                        news.append(region.since(seen.get(name)))
                        seen[name] = region.version
                if topic.lines and (line is None or topic.lines[-1][0] > line):
                    news += [event for number, event in topic.lines if line is None or number > line]
                    line = topic.lines[-1][0]
                if news:
                    yield b"".join(news)
                try:
                    async with asyncio.timeout(HEARTBEAT_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield b": alive\n\n"

    @contextmanager
    def _viewer(self, key: tuple[Any, ...], topic: Topic) -> Iterator[None]:
        """Count a viewer, and refresh the topic while there is at least one viewer."""
        topic.viewers += 1
        if topic.task is None:
            topic.task = asyncio.create_task(self._refresh(topic))
        try:
            yield
        finally:
            topic.viewers -= 1
            if not topic.viewers:
                self._topics.pop(key, None)
                topic.task.cancel()

    async def _refresh(self, topic: Topic) -> None:
        while True:
            began = self._clock.monotonic()
            try:
                changes = await self._look(topic)
            except ShoalError:  # the object was removed, or the store is unavailable: viewers keep the last version
                changes = False
            if changes:
                topic.wake()
            spent = self._clock.monotonic() - began
            await self._clock.sleep(max(EVERY_SECONDS, min(spent / SHARE, SLOWEST_SECONDS)))

    async def _look(self, topic: Topic) -> bool:
        """Render the regions again, and return whether a region or the log changed."""
        context = await topic.page.context(topic.view, topic.params)
        changes = False
        for name in topic.page.regions:
            # in a thread: the list of 500 nodes needs 200 ms
            html = await asyncio.to_thread(self._shell.region, topic.view, name, context)
            before = topic.regions.get(name)
            if before is None or before.html != html:
                topic.regions[name] = Region.of(name, html, before)
                changes = True
        lines = await topic.page.lines(topic.view, topic.params, topic.lines[-1][0] if topic.lines else None)
        topic.lines.extend((number, _event("line", {"html": html}, number)) for number, html in lines)
        return changes or bool(lines)


def _rows(html: str) -> Iterator[tuple[str, str]]:
    return ((match[1], match[0]) for match in ROW.finditer(html))


def _event(name: str, value: dict[str, Any], number: int | None = None) -> bytes:
    place = b"" if number is None else b"id: %d\n" % number
    return place + b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(value))

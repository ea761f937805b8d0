"""A small deterministic site, served on loopback, with a log of its requests.

A tree with cross links: every page has a title, about ten links, and one link that leads out of the site. `urls` gives
the expected result of a crawl; the ledger checks it.
"""

import asyncio
import threading
import time
import zlib
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.support.server_threads import serve_to_the_end

PAGES = 300
CHILDREN = 5  # of a page: 300 pages are four links deep
ELSEWHERE = 20  # external URLs that are linked
PAGES_OF_A_SITEMAP = 25
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Visit:
    """One request: what for, and when it came, by the monotonic clock."""

    path: str
    at: float


class Site:
    """The site, served by a thread of its own while the context is open.

    `delay` is how long each answer takes: it makes a crawl last, so that there is time to kill somebody. `listed`: no
    page has a link, and all of them are in sitemaps. `validators`: each page has an ETag, and is not sent to a client
    that already has it. `host` and `port`: where it listens, for crawls that were stored before.
    """

    def __init__(
        self,
        *,
        pages: int = PAGES,
        delay: float = 0.0,
        listed: bool = False,
        validators: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.delay = delay
        self._listed = pages if listed else 0
        self.validators = validators
        self.robots: str | None = None  # a text for its robots.txt
        self.sent = 0  # pages that were sent completely
        self._host = host
        self._wanted_port = port
        self.port = 0
        self.visits: list[Visit] = []
        self._allowed: int | None = None
        self._answered: set[str] = set()
        self._bodies = {path_of(number): _body(number, 0 if listed else pages) for number in range(pages)}
        self._distinct: set[str] = set()
        self._calls: dict[str, Callable[[], None]] = {}
        self._refusals: dict[str, int] = {}
        self.retry_after: int | None = None  # while it is set, every page is answered with 429 and this Retry-After
        self._under_way = 0
        self.most_at_once = 0
        self._news = threading.Condition()
        self._thread = threading.Thread(target=lambda: serve_to_the_end(self._serve()), name="site", daemon=True)
        self._connections: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._more_allowed = asyncio.Event()

    @property
    def address(self) -> str:
        return f"http://{self._host}:{self.port}/"

    @property
    def urls(self) -> frozenset[str]:
        """Every page, as a crawl should name it."""
        return frozenset(f"{self.address}{path[1:]}" for path in self._bodies)

    def url(self, number: int) -> str:
        return f"{self.address}{path_of(number)[1:]}"

    @property
    def allowed(self) -> int | None:
        """Return the number of different pages that are answered. Requests for further ones wait."""
        return self._allowed

    @allowed.setter
    def allowed(self, pages: int | None) -> None:
        self._allowed = pages
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._let_go)

    @property
    def pages_asked(self) -> int:
        """Return how many different pages were requested so far."""
        return len(self._distinct)

    @property
    def pages_answered(self) -> int:
        """Return how many different pages were sent so far."""
        return len(self._answered)

    def call_at(self, path: str, call: Callable[[], None]) -> None:
        """Call a function, in the site's thread, each time the path is requested, before it is answered."""
        self._calls[path] = call

    def refuse_once(self, path: str, retry_after: int) -> None:
        """Answer this path with 429 and a Retry-After, the next time that it is requested."""
        self._refusals[path] = retry_after

    def times_asked(self, path: str) -> int:
        return sum(visit.path == path for visit in self.visits)

    def wait_for_pages(self, count: int, seconds: float = 120.0) -> None:
        """Wait until this many different pages were requested."""
        with self._news:
            if not self._news.wait_for(lambda: self.pages_asked >= count, seconds):
                raise AssertionError(f"{self.pages_asked} pages were asked for in {seconds:g} s, not {count}")

    def wait_for_visit(self, after: float, seconds: float = 120.0) -> Visit:
        """The first request that came after a moment."""

        def found() -> Visit | None:
            return next((visit for visit in self.visits if visit.at > after), None)

        with self._news:
            visit = self._news.wait_for(found, max(0.0, after + seconds - time.monotonic()))
        if visit is None:
            raise AssertionError(f"nobody asked for anything in {seconds:g} s")
        return visit

    def __enter__(self) -> Self:
        self._thread.start()
        with self._news:
            if not self._news.wait_for(lambda: self.port, START_SECONDS):
                raise AssertionError("the site did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_SECONDS)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._connected, self._host, self._wanted_port)
        with self._news:
            self.port = server.sockets[0].getsockname()[1]
            self._news.notify_all()
        await self._stop.wait()
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
                while True:
                    await self._answer(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ", 2)[1].decode("latin-1").partition("?")[0]
        self._note(path)
        if path in self._calls:
            self._calls[path]()
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            await asyncio.sleep(self.delay)
            while not self._may_have(path):
                await self._more_allowed.wait()
        finally:
            self._under_way -= 1
        refusal = self._refusals.pop(path, self.retry_after if path in self._bodies else None)
        writer.write(self._reply(path, head) if refusal is None else _refusal(refusal))
        await writer.drain()

    def _let_go(self) -> None:
        """Let all requests that wait try again."""
        self._more_allowed.set()
        self._more_allowed = asyncio.Event()

    def _may_have(self, path: str) -> bool:
        if path not in self._bodies or path in self._answered:
            return True
        if self._allowed is not None and len(self._answered) >= self._allowed:
            return False
        self._answered.add(path)
        self._let_go()  # the same page may have been asked for twice
        return True

    def _reply(self, path: str, head: bytes) -> bytes:
        body = self._sitemap(path) if "sitemap" in path else self._bodies.get(path)
        if path == "/robots.txt":
            body = self.robots
        if not self.validators or body is None:
            return _reply(body)
        etag = f'"{zlib.crc32(body.encode()):08x}"'
        if etag.encode() in head:
            return f"HTTP/1.1 304 Not Modified\r\nETag: {etag}\r\n\r\n".encode()
        self.sent += 1
        return _reply(body, f"ETag: {etag}\r\n")

    def change(self, number: int, text: str) -> None:
        """Change the text of a page; its links stay the same."""
        self._bodies[path_of(number)] += f"<p>{text}</p>"

    def forget(self) -> None:
        """Forget all requests, and what was answered."""
        with self._news:
            self.visits.clear()
            self._distinct.clear()
            self._answered.clear()
            self.sent = 0

    def _sitemap(self, path: str) -> str | None:
        """An index at `/sitemap.xml`, and its sitemaps as `/sitemap/0` and so on."""
        if path == "/sitemap.xml" and self._listed:
            places = range(-(-self._listed // PAGES_OF_A_SITEMAP))
            return "".join(
                [
                    "<sitemapindex>",
                    *(f"<sitemap><loc>{self.address}sitemap/{place}</loc></sitemap>" for place in places),
                    "</sitemapindex>",
                ]
            )
        if not path.startswith("/sitemap/"):
            return None
        first = int(path.removeprefix("/sitemap/")) * PAGES_OF_A_SITEMAP
        return "\n".join(self.url(number) for number in range(first, min(first + PAGES_OF_A_SITEMAP, self._listed)))

    def _note(self, path: str) -> None:
        with self._news:
            self.visits.append(Visit(path, time.monotonic()))
            if path in self._bodies:
                self._distinct.add(path)
            self._news.notify_all()


def path_of(number: int) -> str:
    return f"/p/{number}" if number else "/"


def _body(number: int, pages: int) -> str:
    if not pages:
        return f"<!doctype html><title>Page {number}</title><p>Page {number}"
    first = number * CHILDREN + 1
    down = [child for child in range(first, first + CHILDREN) if child < pages]
    across = [0, max(0, number - 1) // CHILDREN, (number * 37 + 11) % pages, (number * 101 + 7) % pages]
    links = [path_of(other) for other in dict.fromkeys([*down, *across, (number + 1) % pages])]
    links.append(f"http://elsewhere.invalid/{number % ELSEWHERE}")
    items = "".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
    return f"<!doctype html><html lang=en><title>Page {number}</title><h1>Page {number}</h1><ul>{items}</ul></html>"


def _refusal(retry_after: int) -> bytes:
    head = f"HTTP/1.1 429 Too Many Requests\r\nRetry-After: {retry_after}\r\nContent-Length: 0\r\n\r\n"
    return head.encode()


def _reply(body: str | None, headers: str = "") -> bytes:
    status, text = ("200 OK", body) if body is not None else ("404 Not Found", "not here")
    kind = "text/html; charset=utf-8" if body is not None else "text/plain"
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n{headers}\r\n{text}".encode()

"""Real crawls in the test's own process: the whole engine on a real store, against a scripted site on loopback."""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shoal.app import App, opened
from shoal.base.clock import SystemClock
from shoal.base.database import Tx
from shoal.base.settings import Settings
from shoal.base.settings_loader import load
from shoal.base.signals import Signals
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.frontier.values import Settlement, WalkerBatch
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.store import ByDriver, FrontierStore
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from shoal.process.runners import make_walker
from shoal.queue.job import Fence
from tests.support.patience import PATIENCE_SECONDS, wait_until, with_load

Answer = tuple[int, dict[str, str], str | bytes]
CLOCK = SystemClock()
Script = Callable[[str], Answer | None]


def altered(app: App, *, database: Any = None, frontier: Any = None) -> App:
    """Return an app whose walkers use another database or frontier; everything else is shared with the given one."""
    other = copy.copy(app)
    other.database = database or app.database
    other.stores = copy.copy(app.stores)
    other.stores.frontiers = app.stores.frontiers if frontier is None else ByDriver(frontier, frontier)
    return other


def html(title: str, *links: str, text: str = "") -> Answer:
    anchors = "".join(f'<a href="{link}">x</a>' for link in links)
    body = f"<!doctype html><title>{title}</title><h1>{title}</h1><p>{text or title}</p>{anchors}"
    return 200, {"Content-Type": "text/html; charset=utf-8"}, body


def calendar(path: str) -> Answer:
    """An endless calendar whose pages are all equal."""
    month = int(path.partition("month=")[2] or 0)
    return html("Calendar", *(f"/cal?month={month + step}" for step in range(1, 4)), "/real", text="no events")


@dataclass
class ScriptedSite:
    """Answers each path as a script says; no answer is a 404. Keeps a log of the requests."""

    script: Script
    robots: Answer = (404, {}, "")
    seconds: float = 0.0  # that each answer takes
    slow: dict[str, float] = field(default_factory=dict)  # the same for single paths
    late: dict[str, str] = field(default_factory=dict)  # paths that are answered only after another path was requested
    port: int = 0
    asked: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)  # the method of each request
    moments: list[float] = field(default_factory=list)  # the time of each request
    agents: set[str] = field(default_factory=set)
    heard: list[dict[str, str]] = field(default_factory=list)  # the headers of each request, names in lower case
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def told(self, path: str, header: str) -> list[str | None]:
        """Return the values of a header in all requests for a path."""
        return [heard.get(header) for asked, heard in zip(self.asked, self.heard, strict=True) if asked == path]

    def times(self, path: str) -> int:
        return self.asked.count(path)

    async def until(self, condition: Callable[[], bool], *tasks: "asyncio.Task[Any]") -> None:
        """Wait for requests that make something true, while the tasks that make them run."""
        await wait_until(condition, self.news, *tasks)

    async def _after(self, path: str) -> None:
        await self.until(lambda: path in self.asked)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *fields = head.decode("latin-1").split("\r\n")
                method, path = first.split(" ")[:2]
                path = path.removeprefix(self.url)  # a request to a proxy has the whole URL
                self.asked.append(path)
                self.methods.append(method)
                self.moments.append(CLOCK.monotonic())
                self.heard.append({name.lower(): value for name, _, value in (f.partition(": ") for f in fields if f)})
                self.news.set()
                self.agents |= {line.partition(": ")[2] for line in fields if line.lower().startswith("user-agent")}
                status, headers, body = self.robots if path == "/robots.txt" else self.script(path) or (404, {}, "")
                await CLOCK.sleep(self.slow.get(path, self.seconds))
                await self._after(self.late.get(path, path))
                data = body if isinstance(body, bytes) else body.encode()
                lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
                head = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode()
                writer.write(head if method == "HEAD" else head + data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(site: ScriptedSite) -> AsyncIterator[ScriptedSite]:
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        server.close()


@dataclass
class Crawler:
    """Crawls in this process, and returns what is stored afterwards."""

    app: App

    async def submit(self, site: ScriptedSite, *paths: str, named: Sequence[ScriptedSite] = (), **config: Any) -> Crawl:
        """`named` are other sites that the crawl may reach although they are on loopback."""
        seeds = [site.url + path for path in paths or ("/",)]
        options = CrawlConfig(seeds=seeds, **{"speed": "max", "sitemap": "off", **config})
        return await self.app.crawls.submit(options, named=[f"{one.url}/" for one in (site, *named)])

    async def walk(self, crawl: Crawl) -> str:
        """Lease the crawl's next job and run its walker to the end."""
        [lease] = await self.app.queue.lease("test", ["crawl"], ["shared"], 1)
        async with asyncio.timeout(with_load(PATIENCE_SECONDS)):
            return await make_walker(self.app, crawl, lease.fence, lambda: True).run()

    async def crawl(self, site: ScriptedSite, *paths: str, **config: Any) -> CrawlStatus:
        crawl = await self.submit(site, *paths, **config)
        await self.walk(crawl)
        return await self.app.crawls.get(crawl.id)

    async def pages(self, seen: CrawlStatus) -> dict[str, Page]:
        rows = await self.app.database.read(lambda tx: PageStore().after(tx, seen.crawl.number, 0, 10_000))
        return {page.url.partition("/")[2].partition("/")[2].partition("/")[2] or "/": page for _, page in rows}


class Weighing:
    """A frontier that records how many URLs each commit adds."""

    def __init__(self, frontier: FrontierStore) -> None:
        self._frontier = frontier
        self.weights: list[int] = []

    async def settle(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch, *, leaves: bool) -> Settlement:
        self.weights.append(batch.weight)
        return await self._frontier.settle(tx, crawl, fence, batch, leaves=leaves)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frontier, name)


@pytest.fixture
async def crawler(store_url: str, tmp_path: Path) -> AsyncIterator[Crawler]:
    async with opened(settings_for(store_url, tmp_path), Signals()) as app:
        yield Crawler(app)


def settings_for(store_url: str, folder: Path, **more: str) -> Settings:
    env = {"SHOAL_PAGE_BACKOFF": "20ms", "SHOAL_DATA_DIR": str(folder), **more}
    return load({"DATABASE_URL": store_url}, env=env).settings

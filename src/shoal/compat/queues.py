"""The queue classes `UrlQueueManager`, `DatabaseUrlQueueManager` and `PersistentUrlQueueManager`. The last two store
their URLs in the frontier of a scan."""

import asyncio
import sys
import threading
import weakref
from collections import deque
from collections.abc import Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from functools import cached_property, lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urljoin, urlparse

from shoal.app import attach, opened
from shoal.base.clock import SystemClock
from shoal.base.errors import RESPONSES, ErrorResponse, NotFound, ShoalError, StateConflict
from shoal.base.settings_loader import load
from shoal.base.url import Url, UrlRefusal, canonical
from shoal.compat.scan import Scan
from shoal.crawl.crawl import FrontierDriver

if TYPE_CHECKING:
    import asyncpg
    import redis

    from shoal.app.drivers import SqlDatabase


EMPTY = "URL queue is empty"


class UrlQueueManager:
    """A FIFO queue that contains each URL once, and no URL deeper than `max_depth`."""

    def __init__(self, seeds: list[str], *, max_depth: int = 3) -> None:
        self.max_depth = max_depth
        self._queue: deque[tuple[Url, int]] = deque()
        self._seen: set[Url] = set()
        self._processed: set[Url] = set()
        for seed in seeds:
            self.add(seed)

    def add(self, url: str, parent_url: str | None = None, depth: int = 0) -> bool:
        """Add a URL; return False if it is invalid, known or too deep."""
        found = url_of(url, parent_url)
        if found is None or depth > self.max_depth or found in self._seen:
            return False
        self._seen.add(found)
        self._queue.append((found, depth))
        return True

    def next(self) -> str:
        """Return the next URL. Raises `IndexError` if there is none."""
        if not self._queue:
            raise IndexError(EMPTY)
        url, _ = self._queue.popleft()
        self._processed.add(url)
        return url

    def has_next(self) -> bool:
        return bool(self._queue)

    def get_statistics(self) -> dict[str, int]:
        return {"queued": len(self._queue), "seen": len(self._seen), "processed": len(self._processed)}


def url_of(url: str, parent_url: str | None = None) -> Url | None:
    """Return the canonical URL, resolved against its parent if it is relative; `None` if it is invalid."""
    try:
        if parent_url and not urlparse(url).netloc:
            url = urljoin(parent_url, url)
    except ValueError:  # such as a malformed IPv6 address
        return None
    found = canonical(url)
    return None if isinstance(found, UrlRefusal) else found


def urls_of(seeds: Iterable[str]) -> list[Url]:
    """Return the valid URLs among the seeds, without duplicates."""
    found = [url for seed in seeds if (url := url_of(seed)) is not None]
    return list(dict.fromkeys(found))


class DatabaseUrlQueueManager:
    """A queue for any number of tasks and processes. A URL from `next` belongs to the caller until `mark_completed`; if
    the process dies before that, a later `next` returns the URL again. `db_pool` may also be an open Shoal database.
    The manager closes neither the pool nor the database."""

    def __init__(self, scan_id: str, db_pool: "asyncpg.Pool | SqlDatabase") -> None:
        self.scan_id = scan_id
        self.db_pool = db_pool
        self._max_depth: int | None = None
        self._opening = asyncio.Lock()
        self._scan: Scan | None = None

    async def initialize_scan(self, seeds: list[str], max_depth: int = 3) -> None:
        """Create the scan, or add the seeds to the existing one."""
        scan = await self._opened()
        urls = urls_of(seeds)
        self._max_depth = max_depth
        if not await scan.begin(urls, max_depth, "sql"):
            await scan.add(urls)

    async def add(self, url: str, depth: int = 0) -> bool:
        """Add a URL; return `True` if it is in the scan, even if it was added before. Raises an error if the store is
        unavailable."""
        found = url_of(url)
        if found is None:
            return False
        scan = await self._opened()
        if await scan.add([found], depth) is not None:
            return True
        return self._max_depth is not None and await scan.begin([found], self._max_depth, "sql")

    async def next(self) -> str | None:
        """Return the next URL, or `None` if there is none."""
        return await (await self._opened()).next(settling=False)

    async def mark_completed(self, url: str) -> None:
        """Mark a URL as completed. A URL that this manager has not leased, or whose lease it has lost, is left
        unchanged."""
        found = url_of(url)
        if found is not None:
            await (await self._opened()).settle(found)

    async def aclose(self) -> None:
        """Put taken URLs that are not completed back into the queue immediately, instead of waiting until their leases
        expire."""
        if self._scan is not None:
            await self._scan.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _opened(self) -> Scan:
        async with self._opening:
            if self._scan is None:
                settings, given = load().settings, self.db_pool
                self._scan = Scan(await attach(settings, given), self.scan_id)
                weakref.finalize(self, self._scan.let_go)
            return self._scan


T = TypeVar("T")

_parent_of = lru_cache(maxsize=64)(url_of)  # callers add all links of a page one after the other
LAST_SECONDS = 5.0  # time limit for returning our job when the interpreter exits


class NoRedisClient(StateConflict, AttributeError):
    """There is no Redis client, because the scan is stored in the database. This error is an `AttributeError`, so that
    `hasattr`, and `getattr` with a default, work as callers expect."""

    def __init__(self, scan_id: str) -> None:
        fix = "set REDIS_URL before the scan is started"
        super().__init__("scan", scan_id, "kept in the database", "have a Redis client", fix)

    @property
    def response(self) -> ErrorResponse:
        return RESPONSES[StateConflict]


class PersistentUrlQueueManager:
    """A queue that outlives its process. `next` returns a URL and settles the previous URL; if this process dies, a
    later `next` returns the unsettled URL again. Shallow URLs come first; hosts alternate. New scans are stored in
    Redis if `REDIS_URL` is set and `SHOAL_FRONTIER` is not.

    If the queue is used as a context manager, the end of the block also settles the last URL, unless the block ends
    with an exception.
    """

    def __init__(self, scan_id: str, seeds: list[str], *, max_depth: int = 3) -> None:
        self.scan_id = scan_id
        self.max_depth = max_depth
        self._thread = _LoopThread()
        try:
            self._scan, self._frontier, names, leaving = self._thread.call(_open(scan_id, seeds, max_depth))
        except BaseException:
            self._thread.stop()
            raise
        self._end = weakref.finalize(self, _end, self._thread, self._scan, leaving)
        self.queue_key, self.seen_key, self.processed_key, self.depth_key = names

    @classmethod
    def resume(cls, scan_id: str) -> Self:
        """Open an existing scan with its original depth."""
        found = cls(scan_id, [])
        crawl = found._call(found._scan.find())
        if crawl is None:
            found.close()
            raise NotFound("scan", scan_id, "start one with seeds")
        found.max_depth = sys.maxsize if crawl.config.depth is None else crawl.config.depth
        return found

    @cached_property
    def redis_client(self) -> "redis.Redis":
        """A client of the Redis server that stores the scan, for callers that read its keys. Raises `NoRedisClient` if
        the scan is stored in the database."""
        settings = load().settings.redis
        if not self.queue_key.startswith("scan:") or not settings.url:
            raise NoRedisClient(self.scan_id)
        import redis

        return redis.Redis.from_url(settings.url, decode_responses=True)

    def add(self, url: str, parent_url: str | None = None, depth: int = 0) -> bool:
        """Add a URL, resolved against its parent if it is relative. Return `False` if the URL is invalid, known or too
        deep."""
        found = url_of(url, parent_url)
        if found is None or depth > self.max_depth:
            return False
        parent = _parent_of(parent_url) if parent_url else None
        self._check_open()
        added: int | None = self._scan.add_at_once(found, depth, parent)
        if added is None:
            added = self._call(self._scan.add([found], depth, parent))
        if added is None:  # the scan does not exist (any more), so start it with this URL as seed
            return self._call(self._begin([found]))
        return added > 0

    def next(self) -> str:
        """Return the next URL and settle the previous one permanently. Raises IndexError if there is none."""
        self._check_open()
        url = self._scan.next_at_once() or self._call(self._scan.next(settling=True))
        if url is None:
            raise IndexError(EMPTY)
        return url

    def has_next(self) -> bool:
        self._check_open()
        return self._scan.has_next_at_once() or self._call(self._scan.has_next())

    def get_statistics(self) -> dict[str, int]:
        return self._call(self._scan.statistics()).as_dict()

    def pause_scan(self) -> dict[str, Any]:
        """Pause the scan for all processes; return its statistics before the pause."""
        statistics = self.get_statistics()
        self._call(self._scan.pause())
        return {
            "scan_id": self.scan_id,
            "paused_at": SystemClock().now().replace(tzinfo=None).isoformat(),  # naive UTC, as callers expect
            "statistics": statistics,
            "redis_keys": {"queue": self.queue_key, "seen": self.seen_key, "processed": self.processed_key},
        }

    def resume_scan(self) -> bool:
        """Resume after a pause; return whether any URL is waiting."""
        return self._call(self._scan.attach()) and self.has_next()

    def cleanup(self) -> None:
        """Remove the scan from the store. Using the queue again starts a new scan."""
        self._call(self._scan.erase())

    def close(self) -> None:
        """Release the scan. If `next` was not called again after a URL, a later scan returns this URL again."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._end.alive:
            self._call(self._scan.leave(settling=True))
        self.close()

    async def _begin(self, seeds: list[Url]) -> bool:
        made = await self._scan.begin(seeds, self.max_depth, self._frontier)
        await self._scan.attach()
        return made

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_open()
        except StateConflict:
            work.close()
            raise
        return self._thread.call(work)

    def _check_open(self) -> None:
        if not self._end.alive:
            raise StateConflict("scan", self.scan_id, "closed here", "be used", "open it again")


class _LoopThread:
    """An event loop on a separate thread, for callers that have no loop, or whose loop must not be blocked."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shoal-compat", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_seconds)
        except BaseException:  # such as Ctrl-C: cancel the work, because nobody waits for it any more
            future.cancel()
            raise

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join()
            self._loop.close()


KeyNames = tuple[str, str, str, str]
"""The locations of a scan's data: the queue, the URLs seen, the URLs processed, and the depths."""


def _wanted_frontier() -> FrontierDriver:
    """Return the driver for new scans: Redis if `REDIS_URL` is set, unless `SHOAL_FRONTIER` names a different
    driver."""
    loaded = load()
    chosen = loaded.settings.crawl.frontier
    is_free = loaded.sources["SHOAL_FRONTIER"] == "default" and loaded.settings.redis.url
    return "redis" if is_free else chosen


def _key_names(scan_id: str, frontier: FrontierDriver, store: str) -> KeyNames:
    if frontier == "redis":
        prefix = f"scan:{{{scan_id}}}:"
        return f"{prefix}url_queue", f"{prefix}seen_urls", f"{prefix}processed_urls", f"{prefix}url_depths"
    queue, fates = f"{store}: table frontier, crawl {scan_id}", f"{store}: table fate, crawl {scan_id}"
    return queue, fates, f"{fates}, settled", f"{queue}, depth"


async def _open(
    scan_id: str, seeds: list[str], max_depth: int
) -> tuple[Scan, FrontierDriver, KeyNames, AsyncExitStack]:
    leaving = AsyncExitStack()
    app = await leaving.enter_async_context(opened(load().settings))
    frontier = _wanted_frontier()
    try:
        scan = Scan(app, scan_id, at_once=True)
        await scan.begin(urls_of(seeds), max_depth, frontier)
        await scan.attach()
        crawl = await scan.find()
    except BaseException:
        await leaving.aclose()
        raise
    kept_in = frontier if crawl is None else crawl.frontier
    return scan, frontier, _key_names(scan_id, kept_in, app.database.name), leaving


def _end(thread: _LoopThread, scan: Scan, leaving: AsyncExitStack) -> None:
    # While the interpreter exits, threads cannot be started and the store may be unavailable. In this case, the lease
    # expires, or a different process takes it over when it finds that our process is gone.
    with suppress(ShoalError, RuntimeError, TimeoutError):
        thread.call(_leave(scan, leaving), LAST_SECONDS)
    thread.stop()


async def _leave(scan: Scan, leaving: AsyncExitStack) -> None:
    async with leaving:
        await scan.leave()

"""Live feeds of crawls for viewers (SSE). The store is polled once per crawl, however many watch it."""

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from shoal.base.clock import Clock
from shoal.base.errors import NotFound, RateLimited, ShoalError
from shoal.crawl.journal import StoredEntry
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import TERMINAL

EVERY_SECONDS = 1.0  # interval between two polls of the store
HEARTBEAT_SECONDS = 15.0
RETRY_MILLISECONDS = 2000  # reconnection delay of a viewer
KEPT_ENTRIES = 1000  # journal entries kept for late or slow viewers
FIRST_LINES = 100  # journal entries for viewers that gave no position
MOST_VIEWERS = 500  # per process


@dataclass(slots=True)
class CrawlFeed:
    """The current status of a crawl, and the last entries of its journal."""

    status: CrawlStatus
    entries: deque[StoredEntry] = field(default_factory=lambda: deque(maxlen=KEPT_ENTRIES))
    ended: bool = False
    viewers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    looking: "asyncio.Task[None] | None" = None

    @property
    def last(self) -> int:
        """The number of the last entry."""
        return self.entries[-1].number if self.entries else 0

    def wake_viewers(self) -> None:
        """Wake all viewers that are waiting for a change."""
        before, self.changed = self.changed, asyncio.Event()
        before.set()


class Viewing:
    """The stream of one viewer. The viewer is counted until the stream ends, is closed, or is garbage-collected before
    its start."""

    def __init__(self, parts: AsyncGenerator[bytes, None], leave: Callable[[], object]) -> None:
        self._parts = parts
        self._leave = weakref.finalize(self, leave)  # called at most once

    def __aiter__(self) -> "Viewing":
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._parts)
        except BaseException:
            self._leave()
            raise

    async def aclose(self) -> None:
        self._leave()
        await self._parts.aclose()


class CrawlFeeds:
    """The crawl feeds of this process."""

    def __init__(self, crawls: Crawls, clock: Clock, every_seconds: float = EVERY_SECONDS) -> None:
        self._crawls = crawls
        self._clock = clock
        self._every_seconds = every_seconds
        self._feeds: dict[str, CrawlFeed] = {}
        self._viewers = 0
        self._closed = False

    async def watch(self, crawl_id: str, after: int | None) -> Viewing:
        """Return the stream of one viewer. It starts after the journal entry with the number `after`, or with the last
        few entries, and ends with the crawl. The gateway ends the stream when the viewer's token becomes invalid. Raise
        if the crawl does not exist."""
        if self._viewers >= MOST_VIEWERS:
            raise RateLimited(f"{MOST_VIEWERS} clients are already following", HEARTBEAT_SECONDS)
        self._viewers += 1  # before the first await, because many viewers may connect at the same time
        viewing = Viewing(self._stream(crawl_id, after), self._left)
        try:
            await self._crawls.get(crawl_id)
        except BaseException:
            await viewing.aclose()
            raise
        return viewing

    def _left(self) -> None:
        self._viewers -= 1

    def close(self) -> None:
        """End every stream, because this process stops."""
        self._closed = True
        for feed in self._feeds.values():
            feed.wake_viewers()

    async def _stream(self, crawl_id: str, after: int | None) -> AsyncGenerator[bytes, None]:
        yield b"retry: %d\n\n" % RETRY_MILLISECONDS
        with suppress(ShoalError):  # the crawl is gone or the store unavailable: the viewer will reconnect
            feed = self._feeds.get(crawl_id) or self._feeds.setdefault(crawl_id, await self._open(crawl_id))
            with self._viewer(crawl_id, feed):
                place = feed.last - FIRST_LINES if after is None else after
                async for part in self._parts(crawl_id, feed, place):
                    yield part

    async def _parts(self, crawl_id: str, feed: CrawlFeed, place: int) -> AsyncIterator[bytes]:
        sent: dict[str, Any] = {}
        while not self._closed:
            changed = feed.changed
            for entry in await self._entries(crawl_id, feed, place):
                place = entry.number
                yield _event("log", entry.record(crawl_id), place)
            crawl = feed.status.crawl
            state = {"crawl_id": crawl.id, "state": crawl.state.value, "state_reason": crawl.state_reason}
            for name, value in (("state", state), ("progress", _progress(feed.status))):
                if sent.get(name) != value:
                    sent[name] = value
                    yield _event(name, value)
            if place < feed.last:
                continue
            if feed.ended:
                yield _event("end", {"crawl_id": crawl_id})
                return
            try:
                await asyncio.wait_for(changed.wait(), HEARTBEAT_SECONDS)
            except TimeoutError:
                yield b": still here\n\n"

    async def _open(self, crawl_id: str) -> CrawlFeed:
        status = await self._crawls.get(crawl_id)
        entries = await self._crawls.journal.entries(crawl_id, None, KEPT_ENTRIES)
        return CrawlFeed(status, deque(entries, maxlen=KEPT_ENTRIES), ended=status.crawl.state in TERMINAL)

    async def _entries(self, crawl_id: str, feed: CrawlFeed, after: int) -> list[StoredEntry]:
        """Return the entries after the number `after`; read them from the store if they are no longer in memory."""
        if feed.entries and after < feed.entries[0].number - 1:
            return await self._crawls.journal.entries(crawl_id, max(after, 0), KEPT_ENTRIES)
        return [entry for entry in feed.entries if entry.number > after]

    @contextmanager
    def _viewer(self, crawl_id: str, feed: CrawlFeed) -> Iterator[None]:
        """Count a viewer, and poll the store while there is at least one viewer."""
        feed.viewers += 1
        if feed.looking is None and not feed.ended:
            feed.looking = asyncio.create_task(self._look(crawl_id, feed))
        try:
            yield
        finally:
            feed.viewers -= 1
            if not feed.viewers:
                self._feeds.pop(crawl_id, None)
                if feed.looking is not None:
                    feed.looking.cancel()

    async def _look(self, crawl_id: str, feed: CrawlFeed) -> None:
        while not feed.ended:
            await self._clock.sleep(self._every_seconds)
            try:
                status = await self._crawls.get(crawl_id)
                entries = await self._crawls.journal.entries(crawl_id, feed.last, KEPT_ENTRIES)
            except NotFound:
                feed.ended = True
            except ShoalError:  # the store is unavailable: the viewers wait and receive heartbeats
                continue
            else:
                feed.ended = status.crawl.state in TERMINAL and len(entries) < KEPT_ENTRIES
                is_new = feed.ended or bool(entries) or status != feed.status
                feed.status = status
                feed.entries.extend(entries)
                if not is_new:
                    continue
            feed.wake_viewers()


def _event(name: str, value: dict[str, Any], number: int | None = None) -> bytes:
    place = b"" if number is None else b"id: %d\n" % number
    return place + b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(value, option=orjson.OPT_UTC_Z))


def _progress(status: CrawlStatus) -> dict[str, Any]:
    counts = status.counts
    return {
        "crawl_id": status.crawl.id,
        "pages": counts.pages,
        "errors": counts.errors,
        "responses": counts.responses,
        "queued": counts.queued,
        "skipped": counts.skipped,
        "bytes": counts.bytes,
        "depth_reached": counts.depth_reached,
        "node_ids": list(status.node_ids),
    }

"""A pool of browsers on this machine: one of them takes the pages. It is replaced after a number of pages, when it is
old, when it uses too much memory, when it hangs and when it crashes."""

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from shoal.base.clock import Clock
from shoal.base.signals import Signals
from shoal.base.url import Url
from shoal.egress import Failure
from shoal.hosts.robots_memo import RobotsMemo
from shoal.render.browser import Browser, reap, start_browser
from shoal.render.cdp import BrowserLost, CommandFailed
from shoal.render.chromium import find_chromium
from shoal.render.memory import kill_process, memory_of
from shoal.render.page_session import PageCrashed, PageSession, ProxySession
from shoal.render.render_request import RenderRequest
from shoal.render.rendered_page import RenderedPage
from shoal.render.signals import BrowserEnded, BrowsersReaped, BrowserStarted, PageRendered
from shoal.render.subrequests import ConnectionLimits
from shoal.settings import RenderSettings

LOOK_SECONDS: Final = 1.0  # between two looks at the memory of the browsers
PAGE_CRASHES: Final = 2  # a page fails after its own process has crashed this often
BROWSER_LOSSES: Final = 3  # a page fails after this many browsers were lost with it: it may be the cause
MOST_IDLE_LOOKS: Final = 30  # after which an idle browser is closed


class BrowserSession(ProxySession, Protocol):
    """The network access of one page."""

    @property
    def bytes_received(self) -> int: ...

    @property
    def refused(self) -> int:
        """The number of requests that a rule or a limit refused."""
        ...

    def refusal_of(self, url: Url) -> Failure | None:
        """Return why the request for a URL failed, if it did."""
        ...

    def close(self) -> None: ...


class BrowserNetwork(Protocol):
    """The only network access of the browsers."""

    async def start(self) -> Sequence[str]:
        """Return the flags that make a browser use it."""
        ...

    def open(self, proxy: str | None) -> BrowserSession | Failure:
        """Return the network access for one page, through the proxy with that label."""
        ...

    def abort(self) -> None:
        """Close it without waiting."""
        ...

    async def close(self) -> None: ...


class _Slot:
    """A browser with the pages in it."""

    def __init__(self, browser: Browser, since: float) -> None:
        self.browser = browser
        self.since = since
        self.active = 0
        self.how = ""  # why it ends; empty: it takes pages
        self.is_restarted = False


class BrowserPool:
    """Renders up to `pages` pages at once; the others wait for their turn."""

    def __init__(
        self,
        settings: RenderSettings,
        network: BrowserNetwork,
        robots: RobotsMemo | None,
        agent: str,
        max_bytes: int,
        clock: Clock,
        signals: Signals,
        pages: int | None = None,
    ) -> None:
        self._settings = settings
        self._network = network
        self._robots = robots
        self._agent = agent
        self._max_bytes = max_bytes
        self._clock = clock
        self._signals = signals
        self._connections = ConnectionLimits()
        self._free = asyncio.Semaphore(pages or settings.pages)
        self._starting = asyncio.Lock()
        self._current: _Slot | None = None
        self._slots: set[_Slot] = set()
        self._flags: Sequence[str] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self.active = 0  # pages in the browsers
        self.waiting = 0  # pages that wait for their turn

    @property
    def is_busy(self) -> bool:
        """Return whether a page would have to wait for its turn."""
        return self._free.locked()

    @property
    def browsers(self) -> int:
        """The number of browsers that run."""
        return len(self._slots)

    def check(self) -> Path:
        """Return the browser to start; raise `BadConfig` if there is none."""
        return find_chromium(self._settings)

    async def render(self, request: RenderRequest) -> RenderedPage | Failure:
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        self.active += 1
        began = self._clock.monotonic()
        try:
            outcome = await self._render(request)
        finally:
            self.active -= 1
            self._free.release()
        seconds = self._clock.monotonic() - began
        if isinstance(outcome, Failure):
            self._signals.emit(PageRendered(outcome=outcome.code, seconds=seconds, requests=0))
        else:
            outcome.seconds = seconds
            self._signals.emit(PageRendered(outcome="rendered", seconds=seconds, requests=outcome.counts.requests))
        return outcome

    async def restart(self) -> None:
        """Replace the browsers that run; the pages in them start again in the next one."""
        running = list(self._slots)
        for slot in running:
            slot.is_restarted = True
            self._retire(slot, "restarted")
            slot.browser.kill()
        if running:
            await self._ready()

    def abort(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for slot in self._slots:
            slot.browser.end()
        self._slots.clear()
        self._network.abort()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for slot in list(self._slots):
            slot.browser.kill()
            self._retire(slot, "closed")
            self._end(slot)
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._network.close()

    async def _render(self, request: RenderRequest) -> RenderedPage | Failure:
        crashes = losses = 0
        while crashes < PAGE_CRASHES and losses < BROWSER_LOSSES:
            slot = await self._ready()
            slot.active += 1
            try:
                return await self._render_in(slot, request)
            except PageCrashed:
                crashes += 1
            except (BrowserLost, CommandFailed):
                losses += not slot.is_restarted
                self._retire(slot, "crashed")
                slot.browser.kill()
            finally:
                slot.active -= 1
                if slot.how and slot.active == 0:
                    self._end(slot)
        message = "The page crashed its browser each time, or used more memory than SHOAL_RENDER_MEMORY."
        return Failure("render_crashed", message, retryable=False, url=request.url)

    async def _render_in(self, slot: _Slot, request: RenderRequest) -> RenderedPage | Failure:
        way = self._network.open(request.proxy)
        if isinstance(way, Failure):
            return way
        browser, longest = slot.browser, self._settings.timeout.total_seconds()
        try:
            created = await browser.call("Target.createBrowserContext", disposeOnDetach=True)
            context_id: str = created["browserContextId"]
            try:
                robots = self._robots if request.robots == "obey" else None
                session = PageSession(browser, request, robots, self._connections, way, self._clock)
                seconds = min(longest, request.timeout or longest)
                outcome = await session.render(context_id, seconds, self._agent, self._max_bytes)
            finally:
                self._background(self._dispose(slot, context_id))
            if isinstance(outcome, Failure):
                # Without a document the page's own request went through the proxy, which knows best why it failed.
                return (way.refusal_of(Url(outcome.url)) if request.document is None else None) or outcome
            outcome.counts.bytes = way.bytes_received
            outcome.counts.refused += way.refused
            return outcome
        finally:
            way.close()

    async def _dispose(self, slot: _Slot, context_id: str) -> None:
        """Close the page of a context and forget all of its data. A browser that cannot do that hangs."""
        try:
            await slot.browser.call("Target.disposeBrowserContext", browserContextId=context_id)
        except BrowserLost:
            self._retire(slot, "crashed")
            if slot.active == 0:
                self._end(slot)
        except CommandFailed:
            pass  # it is gone already

    async def _ready(self) -> _Slot:
        """Return the browser for the next page."""
        async with self._starting:
            slot = self._current
            if slot is not None and slot.browser.is_lost:
                self._retire(slot, "crashed")
            elif slot is not None and self._is_worn(slot):
                self._retire(slot, "recycled")
            if self._current is None:
                self._current = await self._start()
            return self._current

    async def _start(self) -> _Slot:
        began = self._clock.monotonic()
        binary = find_chromium(self._settings)
        if self._flags is None:
            if (count := await asyncio.to_thread(reap)) > 0:
                self._signals.emit(BrowsersReaped(count=count))
            self._flags = await self._network.start()
        browser = await start_browser(binary, self._agent, self._flags, self._clock)
        now = self._clock.monotonic()
        self._signals.emit(BrowserStarted(pid=browser.pid, sandbox=browser.has_sandbox, seconds=now - began))
        slot = _Slot(browser, now)
        self._slots.add(slot)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        return slot

    def _is_worn(self, slot: _Slot) -> bool:
        settings = self._settings
        age = self._clock.monotonic() - slot.since
        return slot.browser.pages >= settings.browser_pages or age >= settings.browser_age.total_seconds()

    def _retire(self, slot: _Slot, how: str) -> None:
        """Give a browser no more pages; it ends when its last page has."""
        if not slot.how:
            slot.how = how
            if self._current is slot:
                self._current = None
            if slot.active == 0:
                self._end(slot)

    def _end(self, slot: _Slot) -> None:
        if slot in self._slots:
            self._slots.discard(slot)
            self._signals.emit(BrowserEnded(pid=slot.browser.pid, how=slot.how, pages=slot.browser.pages))
            self._background(slot.browser.close())

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _watch(self) -> None:
        """Keep the memory of the browsers within its limits, and close a browser that nobody uses."""
        idle = 0
        while self._slots:
            await self._clock.sleep(LOOK_SECONDS)
            idle = 0 if self.active or self.waiting else idle + 1
            used = await asyncio.to_thread(memory_of, [slot.browser.pid for slot in self._slots])
            for slot in list(self._slots):
                processes = used.get(slot.browser.pid, {})
                for pid, size in processes.items():
                    if pid != slot.browser.pid and size > self._settings.page_memory:
                        kill_process(pid)
                if sum(processes.values()) > self._settings.browser_memory:
                    self._retire(slot, "recycled")
                elif idle >= MOST_IDLE_LOOKS:
                    self._retire(slot, "idle")

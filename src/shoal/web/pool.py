"""A pool of browsers on this machine. At any time, one of them accepts new pages; browsers that were replaced only
finish the pages they have. A browser is replaced after a number of pages, or when it is old, uses too much memory,
hangs or crashes."""

import asyncio
import os
import signal
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from shoal.base.clock import Clock
from shoal.base.settings import RenderSettings
from shoal.base.signals import Signals
from shoal.base.url import Url
from shoal.egress import Failure
from shoal.web.browser import Browser, find_chromium, reap, start_browser
from shoal.web.browser_tab import BrowserTab, PageCrashed
from shoal.web.cdp import BrowserLost, CommandFailed
from shoal.web.network import OriginConnections, PinnedNetwork
from shoal.web.renderer import BrowserEnded, BrowsersReaped, BrowserStarted, PageRendered, RenderedPage, RenderRequest

LOOK_SECONDS: Final = 1.0  # between two checks of the memory of the browsers
PAGE_CRASHES: Final = 2  # a page fails after its own process has crashed this many times
# A page fails after this many browsers were lost while they had the page, because it may be the cause.
BROWSER_LOSSES: Final = 3
MOST_IDLE_LOOKS: Final = 30  # number of checks after which an idle browser is closed


class _PooledBrowser:
    """A browser with the pages in it."""

    def __init__(self, browser: Browser, since: float) -> None:
        self.browser = browser
        self.since = since
        self.active = 0
        self.how = ""  # why the browser ends; empty while it accepts pages
        self.is_restarted = False


class BrowserPool:
    """Renders up to `settings.pages` pages at the same time; further pages wait for their turn."""

    def __init__(
        self,
        settings: RenderSettings,
        network: PinnedNetwork,
        agent: str,
        max_bytes: int,
        clock: Clock,
        signals: Signals,
    ) -> None:
        self._settings = settings
        self._network = network
        self._agent = agent
        self._max_bytes = max_bytes
        self._clock = clock
        self._signals = signals
        self._connections = OriginConnections()
        self._free = asyncio.Semaphore(settings.pages)
        self._starting = asyncio.Lock()
        self._current: _PooledBrowser | None = None
        self._browsers: set[_PooledBrowser] = set()
        self._flags: Sequence[str] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self.active = 0  # number of pages in the browsers
        self.waiting = 0  # number of pages that wait for their turn

    @property
    def is_busy(self) -> bool:
        """Return whether a page would have to wait for its turn."""
        return self._free.locked()

    @property
    def browsers(self) -> int:
        """The number of browsers that run."""
        return len(self._browsers)

    def check(self) -> Path:
        """Return the path of the browser to start; raise `BadConfig` if there is no browser."""
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
        """Replace the running browsers. Their pages start again in the next browser."""
        running = list(self._browsers)
        self._connections = OriginConnections()  # the requests of these browsers end with them
        for pooled in running:
            pooled.is_restarted = True
            self._retire(pooled, "restarted")
            pooled.browser.kill()
        if running:
            await self._ready()

    def abort(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for pooled in self._browsers:
            pooled.browser.end()
        self._browsers.clear()
        self._network.abort()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for pooled in list(self._browsers):
            pooled.browser.kill()
            self._retire(pooled, "closed")
            self._end(pooled)
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._network.close()

    async def _render(self, request: RenderRequest) -> RenderedPage | Failure:
        crashes = losses = 0
        while crashes < PAGE_CRASHES and losses < BROWSER_LOSSES:
            pooled = await self._ready()
            pooled.active += 1
            try:
                return await self._render_in(pooled, request)
            except PageCrashed:
                crashes += 1
            except (BrowserLost, CommandFailed):
                losses += not pooled.is_restarted
                self._retire(pooled, "crashed")
                pooled.browser.kill()
            finally:
                pooled.active -= 1
                if pooled.how and pooled.active == 0:
                    self._end(pooled)
        message = "The page crashed its browser every time, or used more memory than SHOAL_RENDER_MEMORY."
        return Failure("render_crashed", message, retryable=False, url=request.url)

    async def _render_in(self, pooled: _PooledBrowser, request: RenderRequest) -> RenderedPage | Failure:
        account = self._network.open(request.proxy)
        if isinstance(account, Failure):
            return account
        browser, longest = pooled.browser, self._settings.timeout.total_seconds()
        try:
            created = await browser.call("Target.createBrowserContext", disposeOnDetach=True)
            context_id: str = created["browserContextId"]
            try:
                robots = self._network.robots if request.robots == "obey" else None
                tab = BrowserTab(browser, request, robots, self._connections, account, self._clock)
                seconds = min(longest, request.timeout or longest)
                outcome = await tab.render(context_id, seconds, self._agent, self._max_bytes)
            finally:
                self._background(self._dispose(pooled, context_id))
            if isinstance(outcome, Failure):
                # Without a document, the page's own request went through the proxy, so the proxy knows best why it
                # failed.
                return (account.failure_of(Url(outcome.url)) if request.document is None else None) or outcome
            outcome.counts.bytes = account.counts.bytes_received
            outcome.counts.refused += account.counts.refused
            return outcome
        finally:
            account.close()

    async def _dispose(self, pooled: _PooledBrowser, context_id: str) -> None:
        """Close a context with its page and all its data. A browser that cannot do that hangs."""
        try:
            await pooled.browser.call("Target.disposeBrowserContext", browserContextId=context_id)
        except BrowserLost:
            self._retire(pooled, "crashed")
            if pooled.active == 0:
                self._end(pooled)
        except CommandFailed:
            pass  # the browser is already gone

    async def _ready(self) -> _PooledBrowser:
        """Return the browser for the next page."""
        async with self._starting:
            pooled = self._current
            if pooled is not None and pooled.browser.is_lost:
                self._retire(pooled, "crashed")
            elif pooled is not None and self._is_worn(pooled):
                self._retire(pooled, "recycled")
            if self._current is None:
                self._current = await self._start()
            return self._current

    async def _start(self) -> _PooledBrowser:
        began = self._clock.monotonic()
        binary = find_chromium(self._settings)
        if self._flags is None:
            if (count := await asyncio.to_thread(reap)) > 0:
                self._signals.emit(BrowsersReaped(count=count))
            self._flags = await self._network.start()
        browser = await start_browser(binary, self._agent, self._flags, self._clock)
        now = self._clock.monotonic()
        self._signals.emit(BrowserStarted(pid=browser.pid, sandbox=browser.has_sandbox, seconds=now - began))
        pooled = _PooledBrowser(browser, now)
        self._browsers.add(pooled)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        return pooled

    def _is_worn(self, pooled: _PooledBrowser) -> bool:
        settings = self._settings
        age = self._clock.monotonic() - pooled.since
        return pooled.browser.pages >= settings.browser_pages or age >= settings.browser_age.total_seconds()

    def _retire(self, pooled: _PooledBrowser, how: str) -> None:
        """Give a browser no more pages. The browser ends when its last page has ended."""
        if not pooled.how:
            pooled.how = how
            if self._current is pooled:
                self._current = None
            if pooled.active == 0:
                self._end(pooled)

    def _end(self, pooled: _PooledBrowser) -> None:
        if pooled in self._browsers:
            self._browsers.discard(pooled)
            self._signals.emit(BrowserEnded(pid=pooled.browser.pid, how=pooled.how, pages=pooled.browser.pages))
            self._background(pooled.browser.close())

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _watch(self) -> None:
        """Keep the memory of the browsers within its limits, and close a browser that nobody uses."""
        idle = 0
        while self._browsers:
            await self._clock.sleep(LOOK_SECONDS)
            idle = 0 if self.active or self.waiting else idle + 1
            used = await asyncio.to_thread(memory_of, [pooled.browser.pid for pooled in self._browsers])
            for pooled in list(self._browsers):
                # The memory that is still in use after pages that used too much were killed; killing a page does not
                # end the browser.
                kept = 0
                for pid, size in used.get(pooled.browser.pid, {}).items():
                    if pid != pooled.browser.pid and size > self._settings.page_memory:
                        kill_process(pid)
                    else:
                        kept += size
                if kept > self._settings.browser_memory:
                    self._retire(pooled, "recycled")
                elif idle >= MOST_IDLE_LOOKS:
                    self._retire(pooled, "idle")


PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def memory_of(groups: Iterable[int]) -> dict[int, dict[int, int]]:
    """Return the private memory, in bytes, of each process in these process groups, by group and pid."""
    found: dict[int, dict[int, int]] = {group: {} for group in groups}
    for folder in Path("/proc").iterdir() if found and Path("/proc/self").exists() else ():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError, ValueError, IndexError):
            state, _, group, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(group) in found and state != "Z":
                _, resident, shared, *_ = (folder / "statm").read_text().split()
                found[int(group)][int(folder.name)] = (int(resident) - int(shared)) * PAGE_SIZE
    return found


def kill_process(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)

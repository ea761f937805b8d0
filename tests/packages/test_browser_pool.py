"""The browser pool on real Chromium: what happens when browsers crash, hang, leak and are left behind."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import product
from pathlib import Path

import pytest

from shoal.base.clock import SystemClock
from shoal.base.settings import RenderSettings
from shoal.base.signals import Signal, Signals
from shoal.egress import AddressRule, Failure
from shoal.egress.pinning_proxy import PinningProxy
from shoal.web import browser as browser_module
from shoal.web.browser import binary_behind, reap
from shoal.web.network import PinnedNetwork, WaitingRequest
from shoal.web.pool import BrowserPool, memory_of
from shoal.web.renderer import BrowserEnded, BrowserStarted, Document, RenderedPage, RenderRequest
from tests.packages.conftest import Answer, ScriptedSite, html, serving
from tests.support.effort import times
from tests.support.patience import in_time
from tests.support.script_site import ENTRIES, LATE_BY, LATE_MS, late_site

PAGE = b"<!doctype html><title>before</title><p id=p></p><script>p.textContent = 'from a script'</script>"
EXIT_SECONDS = 10


class Pool(BrowserPool):
    """A pool that records its signals, and whose browsers may reach the given ports of this machine."""

    def __init__(self, chromium: str, ports: tuple[int, ...] = (), **settings: str) -> None:
        self.heard: list[Signal] = []
        signals = Signals()
        signals.subscribe(self.heard.append)
        given = RenderSettings(**{"chromium": chromium, "timeout": "5s", "pages": "4", **settings})
        rule = AddressRule(named=frozenset(("127.0.0.1", port) for port in ports))
        network = PinnedNetwork(PinningProxy(), rule)
        super().__init__(given, network, "Shoal/test", 30_000_000, SystemClock(), signals)

    @property
    def started(self) -> list[int]:
        return [signal.pid for signal in self.heard if isinstance(signal, BrowserStarted)]

    @property
    def ended(self) -> list[tuple[int, str]]:
        return [(signal.pid, signal.how) for signal in self.heard if isinstance(signal, BrowserEnded)]

    async def page(self, body: bytes = PAGE, url: str = "http://site.test/", **options: object) -> RenderedPage:
        found = await self.try_page(body, url, **options)
        assert isinstance(found, RenderedPage), found
        return found

    async def try_page(self, body: bytes, url: str = "http://site.test/", **options: object) -> RenderedPage | Failure:
        document = Document(200, [("Content-Type", "text/html; charset=utf-8")], body)
        return await self.render(RenderRequest(url=url, document=document, **options))  # type: ignore[arg-type]


@asynccontextmanager
async def pool_of(chromium: str, *ports: int, **settings: str) -> AsyncIterator[Pool]:
    pool = Pool(chromium, ports, **settings)
    try:
        yield pool
    finally:
        await pool.close()
        assert pool.browsers == 0
        assert all(ends(pid) for processes in memory_of(pool.started).values() for pid in processes)


def ends(pid: int) -> bool:
    """Wait for the end of a process that is not a child of ours."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], EXIT_SECONDS)[0])
    finally:
        os.close(handle)


async def test_a_killed_browser_is_replaced_and_its_pages_are_rendered_again(chromium: str) -> None:
    def script(path: str) -> Answer | None:
        return (200, {"Content-Type": "text/javascript"}, "document.title = 'after'") if path == "/slow.js" else None

    site = ScriptedSite(script, late={"/slow.js": "/go"})
    async with serving(site), pool_of(chromium, site.port) as pool:
        await pool.page()
        body = b"<title>before</title><script src=/slow.js></script>"
        rendering = [asyncio.create_task(pool.page(body, f"{site.url}/{number}")) for number in range(3)]
        await site.until(lambda: site.times("/slow.js") == 3, *rendering)
        os.killpg(pool.started[0], signal.SIGKILL)
        await site.until(lambda: site.times("/slow.js") == 6)
        site.late.clear()
        site.asked.append("/go")
        site.news.set()
        for page in await asyncio.gather(*rendering):
            assert "<title>after</title>" in page.html
        assert len(pool.started) == 2
        assert pool.ended == [(pool.started[0], "crashed")]


async def test_a_page_that_leaves_hundreds_of_requests_waiting_does_not_jam_their_origin(chromium: str) -> None:
    site = ScriptedSite(lambda path: html("x"), late={f"/slow/{number}": "/never" for number in range(4)})
    greedy = b"<script>for (let number = 0; number < 900; number++) fetch('/slow/' + number)</script>"
    async with serving(site), pool_of(chromium, site.port) as pool:
        page = await pool.page(greedy, f"{site.url}/greedy", wait="networkidle", timeout=1.5, connections=4)
        assert not page.is_complete
        assert not pool._connections._in_flight
        assert not pool._connections._waiting
        page = await pool.page(b"<script src=/next.js></script>", f"{site.url}/next", connections=4)
        assert page.is_complete
        assert "/next.js" in site.asked
        site.asked.append("/never")
        site.news.set()


@pytest.mark.exhaustive
async def test_pages_whose_entries_come_late_are_read_whole(chromium: str) -> None:
    """By timers, requests, what comes into view, debounced scrolling and hydration, after up to a second and a half."""
    site = ScriptedSite(late_site, slow={f"/slow/{ms}": ms / 1000 for ms in LATE_MS})

    async def entries(pool: Pool, how: str, ms: int) -> tuple[int, str | None]:
        path = f"/late/{how}/{ms}"
        _, _, text = late_site(path) or (0, {}, "")
        page = await pool.page(text.encode(), f"{site.url}{path}", wait="networkidle", scroll=how == "scroll")
        return page.html.count('<div class="entry"'), page.ended

    cases = list(product(LATE_BY, LATE_MS))
    async with serving(site), pool_of(chromium, site.port, timeout="40s", pages="5") as pool:
        found = await asyncio.gather(*(entries(pool, how, ms) for how, ms in cases))
    assert dict(zip(cases, found, strict=True)) == dict.fromkeys(cases, (ENTRIES, "settled"))


@pytest.mark.exhaustive
async def test_a_page_that_never_rests_is_read_in_bounded_time(chromium: str) -> None:
    pages = {
        "changes": b"<p id=p></p><script>setInterval(() => { p.textContent = Math.random() }, 20)</script>",
        "streams": b"<script>new EventSource('/stream')</script>",
        "polls": b"<script>setInterval(() => fetch('/poll'), 100)</script>",
        "lies": b"<script>Map.prototype.values = () => ['x', {}]; setTimeout(fetch, 99)</script>",
        "breaks": b"<script>Promise = requestAnimationFrame = setTimeout = undefined</script>",
        "ticks": b"<script>const tick = () => setTimeout(tick, 50); tick()</script>",
    }
    site = ScriptedSite(lambda path: html("x"), late={"/stream": "/never"})
    async with serving(site), pool_of(chromium, site.port, timeout="60s") as pool:
        found = await asyncio.gather(
            *(pool.page(body, f"{site.url}/{name}", wait="networkidle") for name, body in pages.items())
        )
        ended = {name: page.ended for name, page in zip(pages, found, strict=True)}
        site.asked.append("/never")
        site.news.set()
    assert ended.pop("changes") == "timeout"
    assert set(ended.values()) == {"settled"}, ended
    assert all(page.seconds < 30 for page in found)


async def test_a_restart_resets_the_counts_of_every_origin(chromium: str) -> None:
    site = ScriptedSite(lambda path: html("x"))
    async with serving(site), pool_of(chromium, site.port) as pool:
        for _ in range(2):  # requests that nobody ends: one in flight, and one that waits for it
            pool._connections.start(site.url, WaitingRequest(object(), 1, lambda: True))
        page = await pool.page(b"<script src=/held.js></script>", f"{site.url}/held", timeout=1.0, connections=1)
        assert not page.is_complete
        assert "/held.js" not in site.asked
        await pool.restart()
        assert not pool._connections._in_flight
        assert not pool._connections._waiting
        page = await pool.page(b"<script src=/next.js></script>", f"{site.url}/next", connections=1)
        assert page.is_complete
        assert "/next.js" in site.asked


async def test_restart_hands_the_pages_to_a_new_browser(chromium: str) -> None:
    site = ScriptedSite(lambda path: html("x"), late={"/slow.js": "/go"})
    async with serving(site), pool_of(chromium, site.port) as pool:
        rendering = asyncio.create_task(pool.page(b"<script src=/slow.js></script>", f"{site.url}/page"))
        await site.until(lambda: "/slow.js" in site.asked, rendering)
        await pool.restart()
        await site.until(lambda: site.times("/slow.js") == 2, rendering)
        site.late.clear()
        site.asked.append("/go")
        site.news.set()
        await in_time(rendering)
        assert len(pool.started) == 2
        assert pool.ended == [(pool.started[0], "restarted")]


async def test_a_browser_that_hangs_is_killed_and_replaced(chromium: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(chromium) as pool:
        await pool.page()
        monkeypatch.setattr(browser_module, "COMMAND_SECONDS", 0.5)
        os.kill(pool.started[0], signal.SIGSTOP)
        page = await pool.page()
        assert "from a script" in page.html
        assert len(pool.started) == 2
        assert ends(pool.started[0])


@pytest.mark.parametrize(
    "script",
    [
        b"const kept = []; while (true) kept.push(new Uint8Array(10000000).fill(1))",  # outside of the heap
        pytest.param(  # in the heap
            b"let text = 'x'; const kept = []; while (true) kept.push({text: text + kept.length})",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
async def test_a_page_that_eats_memory_is_killed_and_the_next_one_works(chromium: str, script: bytes) -> None:
    async with pool_of(chromium, page_memory="200MB", timeout="20s") as pool:
        found = await pool.try_page(b"<script>" + script + b"</script>")
        assert isinstance(found, Failure)
        assert found.code == "render_crashed"
        assert "from a script" in (await pool.page()).html
        assert len(pool.started) == 1  # only the page's own process ended


async def test_contexts_share_nothing(chromium: str) -> None:
    body = b"""<title>x</title><script>
        document.title = [localStorage.getItem("seen"), document.cookie].join("|");
        localStorage.setItem("seen", "yes"); document.cookie = "seen=yes";
        </script>"""
    async with pool_of(chromium) as pool:
        for _ in range(2):
            assert "<title>|</title>" in (await pool.page(body)).html


@pytest.mark.exhaustive
async def test_browsers_are_recycled_and_nothing_grows(chromium: str) -> None:
    """With SHOAL_TEST_EFFORT=5, these are 300 pages."""
    pages = times(60)
    async with pool_of(chromium, browser_pages="25") as pool:
        await asyncio.gather(*(pool.page() for _ in range(8)))
        early = memory_of([pool.started[-1]])[pool.started[-1]]
        await asyncio.gather(*(pool.page() for _ in range(pages - 12)))
        assert len(pool.started) >= pages // 25
        assert pool.browsers <= 2
        await asyncio.gather(*(pool.page() for _ in range(4)))
        [late] = [used for pid, used in memory_of(pool.started).items() if pid == pool.started[-1]]
        assert len(late) <= len(early) + 4  # those of the last pages may still be ending
        assert sum(late.values()) < 500_000_000
        ended = [pid for pid, how in pool.ended if how == "recycled"]
        assert all(ends(pid) for pid in ended)


ORPHAN = """
import asyncio, sys
from shoal.web.browser import start_browser
from shoal.base.clock import SystemClock
from pathlib import Path
async def main():
    browser = await start_browser(Path(sys.argv[1]), "Shoal/test", (), SystemClock())
    print(browser.pid, flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "hanging"])
async def test_no_browser_outlives_its_process(chromium: str, tmp_path: Path, stopped: bool) -> None:
    """A browser ends with the process that started it, even when that is killed. One that hangs at that moment is
    killed by the next process that renders."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    owner = subprocess.Popen(  # noqa: ASYNC220 - it starts in no time
        [sys.executable, "-c", ORPHAN, str(binary_behind(Path(chromium)))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
    )
    try:
        assert owner.stdout is not None
        pid = int(await asyncio.to_thread(owner.stdout.readline))
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        owner.kill()
        owner.wait(30)
        if stopped:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("tempfile.tempdir", str(tmp_path))
                assert reap() == 1
                assert reap() == 0
        assert await asyncio.to_thread(ends, pid)
    finally:
        owner.kill()
        for stream in (owner.stdin, owner.stdout):
            if stream is not None:
                stream.close()
        with suppress(ProcessLookupError, UnboundLocalError):
            os.killpg(pid, signal.SIGKILL)

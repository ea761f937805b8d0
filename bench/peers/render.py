"""Renders the same pages with one driver, and prints what it took: `python render.py DRIVER BINARY BASE PAGES AT_ONCE`.

It runs in the environment of its driver, so it imports nothing else at the top.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
Render = Callable[[str], Awaitable[str]]


def tree() -> list[int]:
    """Return the processes below this one, and itself."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(folder.name))
    found = [os.getpid()]
    for pid in found:
        found += parents.get(pid, [])
    return found


def memory() -> int:
    """Return the proportional set size of the whole tree, in bytes."""
    total = 0
    for pid in tree():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


async def shoal(binary: str, run: Callable[[Render], Awaitable[None]]) -> None:
    from shoal.base.clock import SystemClock
    from shoal.base.settings import RenderSettings
    from shoal.base.signals import Signals
    from shoal.egress import AddressRule
    from shoal.egress.pinning_proxy import PinningProxy
    from shoal.web.network import PinnedNetwork
    from shoal.web.pool import BrowserPool
    from shoal.web.renderer import RenderedPage, RenderRequest

    host, _, port = sys.argv[3].removeprefix("http://").partition(":")
    rule = AddressRule(named=frozenset([(host, int(port))]))
    settings = RenderSettings(chromium=binary, pages=int(sys.argv[5]), browser_pages=10**6)
    network = PinnedNetwork(PinningProxy(), rule)
    pool = BrowserPool(settings, network, "Shoal/bench", 30_000_000, SystemClock(), Signals())

    async def render(url: str) -> str:
        page = await pool.render(RenderRequest(url=url, wait="selector", selector="#ready"))
        assert isinstance(page, RenderedPage), page
        return page.html

    try:
        await run(render)
    finally:
        await pool.close()


async def playwright(binary: str, run: Callable[[Render], Awaitable[None]]) -> None:
    from playwright.async_api import async_playwright  # type: ignore[import-not-found,unused-ignore]

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=binary, args=["--no-sandbox", "--disable-gpu"])

        async def render(url: str) -> str:
            context = await browser.new_context()
            try:
                page = await context.new_page()
                await page.goto(url, wait_until="load")
                await page.wait_for_selector("#ready", state="attached")
                return str(await page.content())
            finally:
                await context.close()

        await run(render)
        await browser.close()


async def crawlee(binary: str, urls: list[str], at_once: int) -> tuple[int, int]:
    from datetime import timedelta

    from crawlee import ConcurrencySettings  # type: ignore[import-not-found,unused-ignore]
    from crawlee.browsers import BrowserPool  # type: ignore[import-not-found,unused-ignore]
    from crawlee.crawlers import (  # type: ignore[import-not-found,unused-ignore]
        PlaywrightCrawler,
        PlaywrightCrawlingContext,
    )

    options = {"executable_path": binary, "args": ["--no-sandbox", "--disable-gpu"]}
    pool = BrowserPool.with_default_plugin(browser_type="chromium", headless=True, browser_launch_options=options)
    crawler = PlaywrightCrawler(
        browser_pool=pool,
        concurrency_settings=ConcurrencySettings(
            min_concurrency=at_once, desired_concurrency=at_once, max_concurrency=at_once
        ),
        request_handler_timeout=timedelta(seconds=60),
    )
    done, most = 0, 0

    @crawler.router.default_handler  # type: ignore[untyped-decorator,unused-ignore]
    async def handle(context: PlaywrightCrawlingContext) -> None:
        nonlocal done, most
        await context.page.wait_for_selector("#ready", state="attached")
        await context.page.content()
        done += 1
        if done % 20 == 0:
            most = max(most, memory())

    await crawler.run(urls)
    return done, most


async def main() -> None:
    driver, binary, base, pages, at_once = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    urls = [f"{base}/page/{number}" for number in range(pages)]
    most, seconds = 0, 0.0

    async def run(render: Render) -> None:
        nonlocal most, seconds
        free = asyncio.Semaphore(at_once)

        async def one(url: str, number: int) -> None:
            nonlocal most
            async with free:
                html = await render(url)
                assert 'id="ready"' in html, html[:200]
                if number % 20 == 19:
                    most = max(most, memory())

        await asyncio.gather(*(one(f"{base}/warm/{number}", 0) for number in range(at_once)))
        began = time.perf_counter()
        await asyncio.gather(*(one(url, number) for number, url in enumerate(urls)))
        seconds = time.perf_counter() - began

    if driver == "crawlee":
        began = time.perf_counter()
        done, most = await crawlee(binary, urls, at_once)
        seconds = time.perf_counter() - began
        assert done == pages, done
    else:
        await {"shoal": shoal, "playwright": playwright}[driver](binary, run)
    print(json.dumps({"seconds": seconds, "memory": most}))


asyncio.run(main())

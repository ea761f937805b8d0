"""Crawls that render: real Chromium, the whole engine, a scripted site on loopback."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.app import opened
from shoal.base.errors import BadConfig, InvalidInput
from shoal.base.settings_loader import load
from shoal.base.signals import Signal, Signals
from shoal.cli.output import rows_of, summary
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.engine.walker_context import RenderingImpossible
from shoal.crawl.states import CrawlState
from shoal.extract.flags import PageFlag
from shoal.process.runners import make_walker
from shoal.serve.resources.crawl import Crawl
from shoal.web.renderer import BrowserEnded, PageRendered
from tests.packages.conftest import Answer, Crawler, ScriptedSite, html, serving
from tests.support.patience import in_time
from tests.support.script_site import EMPTY, script_site

HTML = {"Content-Type": "text/html; charset=utf-8"}


class RenderingCrawler(Crawler):
    """A crawler that has a browser, and records the signals."""

    def __init__(self, app: Any, heard: list[Signal]) -> None:
        super().__init__(app)
        self.heard = heard

    @property
    def rendered(self) -> list[PageRendered]:
        return [signal for signal in self.heard if isinstance(signal, PageRendered)]


async def crawler_with(chromium: str, folder: Path, **env: str) -> AsyncIterator[RenderingCrawler]:
    store = f"sqlite:///{folder / 'shoal.db'}"
    settings = load(
        {"DATABASE_URL": store},
        env={"SHOAL_PAGE_BACKOFF": "20ms", "SHOAL_DATA_DIR": str(folder), "SHOAL_CHROMIUM": chromium, **env},
    ).settings
    heard: list[Signal] = []
    signals = Signals()
    signals.subscribe(heard.append)
    async with opened(settings, signals) as app:
        yield RenderingCrawler(app, heard)


@pytest.fixture
async def renderer(chromium: str, tmp_path: Path) -> AsyncIterator[RenderingCrawler]:
    shots = str(tmp_path / "pictures")
    async for crawler in crawler_with(
        chromium,
        tmp_path,
        SHOAL_RENDER_TIMEOUT="6s",
        MAX_CONCURRENT_CHROME="3",
        SHOAL_SCREENSHOTS=shots,
        SHOAL_PAGE_ATTEMPTS="1",
    ):
        yield crawler


async def test_a_site_made_by_scripts_is_crawled_whole_by_auto_and_always_but_not_by_never(
    renderer: RenderingCrawler, tmp_path: Path
) -> None:
    titles = {f"Page {number}" for number in range(15)}
    async with serving(ScriptedSite(script_site)) as site:
        never = await renderer.pages(await renderer.crawl(site, render="never"))
        assert [page.title for page in never.values()] == ["Loading"]
        assert renderer.heard == [] or not renderer.rendered
        for mode in ("auto", "always"):
            seen = await renderer.crawl(site, render=mode)
            pages = await renderer.pages(seen)
            assert seen.crawl.state is CrawlState.COMPLETED
            assert {page.title for page in pages.values()} == titles, mode
            assert all(page.rendered and page.error_code is None for page in pages.values())
            assert all(page.word_count and page.word_count > 30 for page in pages.values())
            assert sum(page.links_internal or 0 for page in pages.values()) == 14
            assert len(list((tmp_path / "pictures" / seen.crawl.id).glob("*.png"))) == 15
        # The browser is given the page that was fetched: each page was requested once per crawl.
        assert site.times("/page/7") == 2
        assert all(signal.requests == 2 for signal in renderer.rendered)


async def test_static_pages_are_not_rendered_and_kinds_are_remembered(renderer: RenderingCrawler) -> None:
    """Two probes of a kind show that its scripts add nothing, so its other pages are not rendered."""

    def script(path: str) -> Answer | None:
        if path == "/":
            return html("home", *[f"/plain/{number}" for number in range(10)], *[f"/busy/{n}" for n in range(10)])
        if path.startswith("/plain/"):
            return html(path)
        if path.startswith("/busy/"):
            page = f"<title>{path}</title><p>{'words ' * 50}</p><a href=/>home</a><script>fetch('/count')</script>"
            return 200, HTML, page
        return None

    async with serving(ScriptedSite(script)) as site:
        pages = await renderer.pages(await renderer.crawl(site, render="auto"))
    assert len(pages) == 21
    assert sum(page.rendered for page in pages.values()) == 2 == len(renderer.rendered)
    assert all(path.startswith("busy/") for path, page in pages.items() if page.rendered)


@pytest.mark.exhaustive
async def test_hostile_pages_are_contained_counted_and_the_others_are_crawled(renderer: RenderingCrawler) -> None:
    hostile = {
        "/loop": "<script>while (true);</script>",
        "/alert": "<title>ended</title><script>alert(1); confirm(2); prompt(3); document.title = 'after'</script>",
        "/alerts": "<script>while (true) alert('again')</script>",
        "/popups": "<script>for (let i = 0; i < 200; i++) window.open('/never'); document.title = 'after'</script>",
        "/timers": "<script>setInterval(() => { document.title = 'after' }, 1)</script>",
        "/crash": "<script>location = 'chrome://crash'; document.title = 'after'</script>",
        "/leave": "<script>location.replace('/reached')</script>",
        "/download": "<script>location = '/file.bin'</script>",
        "/forms": "<form action=/posted method=post></form><script>document.forms[0].submit()</script>",
    }

    def script(path: str) -> Answer | None:
        if path == "/":
            return html("home", *hostile, "/good")
        if path in hostile:
            return 200, HTML, hostile[path]
        return html("reached") if path in ("/good", "/reached") else None

    async with serving(ScriptedSite(script)) as site:
        seen = await renderer.crawl(site, render="always")
        pages = await renderer.pages(seen)
    assert seen.crawl.state is CrawlState.COMPLETED
    errors = {path: page.error_code for path, page in pages.items() if page.error_code}
    assert errors == {"loop": "render_timeout", "alerts": "render_timeout"}
    assert {path for path, page in pages.items() if page.title == "after"} == {"alert", "popups", "timers", "crash"}
    assert pages["good"].rendered
    assert pages["reached"].title == "reached"  # crawled like a link
    assert "/never" not in site.asked
    assert "/posted" not in site.asked


async def test_requests_of_pages_obey_robots_txt_and_the_address_rule(renderer: RenderingCrawler) -> None:
    """Frames, scripts, workers and redirects of a page reach no forbidden path and no other port here."""
    async with serving(ScriptedSite(lambda path: html("inside"))) as inside:
        page = f"""<title>x</title><img src=/private/image.png><iframe src="{inside.url}/frame"></iframe>
            <iframe src=/redirect></iframe><a href=/>home</a>
            <script>
              fetch("{inside.url}/fetch", {{mode: "no-cors"}}); fetch("/redirect"); fetch("/allowed");
              new Worker(URL.createObjectURL(new Blob(['fetch("{inside.url}/worker", {{mode: "no-cors"}})'])));
              navigator.serviceWorker && navigator.serviceWorker.register("/worker.js");
              new WebSocket("ws://127.0.0.1:{inside.port}/socket");
            </script>"""

        def script(path: str) -> Answer | None:
            if path == "/":
                return 200, HTML, page
            if path == "/redirect":
                return 302, {"Location": f"{inside.url}/redirected"}, ""
            if path == "/worker.js":
                source = f'fetch("{inside.url}/service-worker", {{mode: "no-cors"}})'
                return 200, {"Content-Type": "text/javascript"}, source
            return html("other") if path in ("/allowed", "/private/image.png") else None

        robots = 200, {"Content-Type": "text/plain"}, "User-agent: *\nDisallow: /private/\n"
        async with serving(ScriptedSite(script, robots=robots)) as site:
            pages = await renderer.pages(await renderer.crawl(site, render="always", scope="page"))
    assert pages["/"].rendered
    assert inside.asked == []
    assert "/allowed" in site.asked
    assert "/private/image.png" not in site.asked


async def test_waits_scrolls_and_clicks_are_data(renderer: RenderingCrawler) -> None:
    page = """<body style="height:3000px"><a href="/start">start</a><button id=more>more</button><script>
        let clicks = 0;
        const add = (where) => document.body.insertAdjacentHTML("beforeend", `<a href="/${where}">x</a>`);
        more.onclick = () => { add("clicked" + ++clicks); if (clicks == 3) more.remove(); };
        addEventListener("scroll", () => { if (!window.seen) { window.seen = 1; add("scrolled"); } });
        setTimeout(() => add("late"), 700);
        </script>"""

    def script(path: str) -> Answer | None:
        return (200, HTML, page) if path == "/" else html(path)

    async with serving(ScriptedSite(script)) as site:
        seen = await renderer.crawl(
            site, render="always", depth=1, wait_for="/$ -> a[href='/late']", scroll=True, click="#more"
        )
        pages = await renderer.pages(seen)
    assert set(pages) == {"/", "start", "late", "scrolled", "clicked1", "clicked2", "clicked3"}


@pytest.mark.exhaustive
async def test_a_selector_is_waited_for_only_at_urls_that_match_its_pattern(renderer: RenderingCrawler) -> None:
    late = (
        "<script>setTimeout(() => document.body.insertAdjacentHTML('beforeend', '<b class=price>1</b>'), 2500)</script>"
    )
    pages = {"/": html("home", "/item/1", "/about"), "/item/1": (200, HTML, late), "/about": html("about")}
    async with serving(ScriptedSite(pages.get)) as site:
        seen = await renderer.crawl(site, render="always", depth=1, wait_for="/item/[0-9] -> .price")
        assert {path: page.render_wait for path, page in (await renderer.pages(seen)).items()} == {
            "/": "settled",
            "item/1": "selector",
            "about": "settled",
        }
        seen = await renderer.crawl(site, "/about", render="always", depth=0, wait_for=".price")
        [page] = (await renderer.pages(seen)).values()
        assert (page.rendered, page.render_wait) == (True, "timeout")
    for wrong in ("p[", "/item/( -> .price", "/item/ -> ", "-> .price"):
        with pytest.raises(InvalidInput, match="wait_for"):
            CrawlConfig.read({"seeds": ["http://a.example/"], "wait_for": wrong})


async def test_a_page_that_stays_empty_is_flagged_and_counted(renderer: RenderingCrawler) -> None:
    never = '<title>app</title><div id="app">Loading</div><script>/* fails */ missing()</script>'
    pages = {"/": html("home", "/never", "/short"), "/never": (200, HTML, never), "/short": (200, HTML, "<p>Hello.")}
    async with serving(ScriptedSite(pages.get)) as site:
        seen = await renderer.crawl(site, render="always", depth=1)
        found = await renderer.pages(seen)
    assert {path for path, page in found.items() if page.flags & PageFlag.STAYED_EMPTY} == {"never"}
    told = summary(seen)
    assert (seen.counts.stayed_empty, Crawl.of(seen).stayed_empty, told["stayed_empty"]) == (1, 1, 1)
    assert ("Stayed empty", "1 rendered page") in rows_of(seen, told, ())


async def test_without_a_browser_auto_says_so_once_and_counts_and_always_refuses(tmp_path: Path) -> None:
    async for crawler in crawler_with("/nowhere/chromium", tmp_path):
        async with serving(ScriptedSite(lambda path: (200, HTML, EMPTY) if len(path) < 3 else None)) as site:
            seen = await crawler.crawl(site, "/1", "/2", "/3", render="auto")
            pages = await crawler.pages(seen)
            assert seen.crawl.state is CrawlState.COMPLETED
            assert all(page.flags & PageFlag.NOT_RENDERED and not page.rendered for page in pages.values())
            [said] = [signal for signal in crawler.heard if isinstance(signal, RenderingImpossible)]
            assert "SHOAL_CHROMIUM" in said.error
            with pytest.raises(BadConfig, match="apt install"):
                await crawler.crawl(site, "/1", render="always")


async def test_a_crawl_that_renders_has_at_most_as_many_walkers_as_pages_at_once(renderer: RenderingCrawler) -> None:
    async with serving(ScriptedSite(script_site)) as site:
        with pytest.raises(InvalidInput, match="MAX_CONCURRENT_CHROME"):
            await renderer.submit(site, render="auto", workers=4)
        await renderer.submit(site, render="auto", workers=3)


@pytest.mark.exhaustive
async def test_a_restart_of_the_browser_loses_no_page_and_counts_no_attempt(renderer: RenderingCrawler) -> None:
    async with serving(ScriptedSite(script_site)) as site:
        crawl = await renderer.submit(site, render="always")
        [lease] = await renderer.app.queue.lease("test", ["crawl"], ["shared"], 1)
        walker = make_walker(renderer.app, crawl, lease.fence, lambda: True)
        walking = asyncio.create_task(walker.run())
        await site.until(lambda: "/data/page/1" in site.asked, walking)
        await renderer.app.browsers.restart()
        await in_time(walking)
        pages = await renderer.pages(await renderer.app.crawls.get(crawl.id))
    assert {page.title for page in pages.values()} == {f"Page {number}" for number in range(15)}
    assert {page.attempt for page in pages.values()} == {1}
    assert [signal.how for signal in renderer.heard if isinstance(signal, BrowserEnded)] == ["restarted", "closed"]

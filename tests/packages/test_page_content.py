"""The content of pages that the library yields: of those just fetched, and of those from the store."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

import shoal
from shoal.base.errors import InvalidInput, NotFound
from shoal.process import local_crawl
from tests.packages.conftest import CLOCK, Answer, ScriptedSite, html, serving
from tests.support.script_site import script_site

ID = "mine"

pytestmark = pytest.mark.usefixtures("bare_environment")


def fish(path: str) -> Answer | None:
    match path:
        case "/":
            return html("Fish", "/carp?utm_source=x", "/data.json", "/moved", "/picture.png", "/missing")
        case "/carp":
            headers = {"Content-Type": "text/html", "ETag": '"1"', "Set-Cookie": "a=1", "X-Pond": "north"}
            return 200, headers, "<title>Carp</title><main><h1>Carp</h1><p>A <b>carp</b>.</p></main>"
        case "/data.json":
            return 200, {"Content-Type": "application/json"}, '{"fish": ["carp", "koi"]}'
        case "/moved":
            return 302, {"Location": "/carp"}, "moved"
        case "/picture.png":
            return 200, {"Content-Type": "image/png"}, b"\x89PNG\r\n\x1a\n\x00"
    return None


def refuses(page: shoal.Page) -> str:
    with pytest.raises(shoal.BodyNotKept) as error:
        _ = page.html
    return error.value.message


def stored_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.warc.gz") if path.is_file()]


async def crawl(site: ScriptedSite, store: str, **options: object) -> dict[str, shoal.Page]:
    run = shoal.crawl(f"{site.url}/", store=store, sitemap="off", **options)
    return {page.url.removeprefix(site.url): page async for page in run}


async def test_pages_have_their_content_in_every_form(sqlite_url: str) -> None:
    async with serving(ScriptedSite(fish)) as site:
        pages = await crawl(site, sqlite_url, id=ID)
        [start] = [page for path, page in pages.items() if path == "/"]
        assert start.links[0] == shoal.Link(f"{site.url}/carp", "x", "", nofollow=False, kind="a")
    carp, data, picture = pages["/carp"], pages["/data.json"], pages["/picture.png"]
    assert carp.markdown == "# Carp\n\nA **carp**."
    assert carp.text == "Carp\n\nA carp."
    assert carp.html == carp.body.decode() == fish("/carp")[2]  # type: ignore[index]
    assert [one.text for one in carp.css("b")] == ["carp"]
    assert carp.xpath("string(//h1)") == "Carp"
    assert carp.headers["etag"] == carp.headers["ETag"] == '"1"'
    assert carp.headers.all("set-cookie") == ["a=1"]
    assert "x-pond" in carp.headers
    assert {name.lower() for name in carp.headers} >= {"content-type", "etag", "x-pond"}
    assert carp.headers.get("absent") is None
    assert CLOCK.now() - carp.fetched_at < timedelta(minutes=10)
    assert (carp.title, carp.data, carp.error) == ("Carp", None, None)
    assert carp.record()["crawl_id"] == ID
    assert data.json() == {"fish": ["carp", "koi"]}
    assert data.text == '{"fish": ["carp", "koi"]}'
    assert (picture.text, picture.links, picture.body[:4]) == ("", [], b"\x89PNG")
    assert pages["/missing"].status == 404
    with pytest.raises(InvalidInput, match="is not JSON"):
        carp.json()
    assert "title" in dir(carp)
    assert repr(carp) == f"<shoal.Page 200 {carp.url}>"
    with pytest.raises(AttributeError):
        _ = carp.titel


async def test_a_page_without_content_says_why_and_what_to_do(sqlite_url: str) -> None:
    async with serving(ScriptedSite(fish)) as site:
        await crawl(site, sqlite_url, id=ID)
        stored = {page.url.removeprefix(site.url): page async for page in shoal.open(ID, store=sqlite_url)}
        resumed = {page.url.removeprefix(site.url): page async for page in shoal.crawl(resume=ID, store=sqlite_url)}
    assert stored == resumed
    assert stored["/carp"].title == "Carp"
    assert refuses(stored["/carp"]).endswith("its body was not stored; run the crawl with keep_bodies.")
    assert refuses(resumed["/carp"]) == refuses(stored["/carp"])
    with pytest.raises(shoal.BodyNotKept):
        _ = stored["/carp"].headers


async def test_an_error_without_an_answer_has_no_content(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_PAGE_ATTEMPTS", "1")
    run = shoal.crawl("http://127.0.0.1:1/", robots="ignore", store=sqlite_url)
    page = await anext(run)
    assert "it got no response (" in refuses(page)
    await run.aclose()


async def test_stored_bodies_are_the_content_of_stored_pages(store_url: str) -> None:
    async with serving(ScriptedSite(fish)) as site:
        live = await crawl(site, store_url, id=ID, keep_bodies=True)
        stored = {page.url.removeprefix(site.url): page async for page in shoal.open(ID, store=store_url)}
        resumed = {page.url.removeprefix(site.url): page async for page in shoal.crawl(resume="last", store=store_url)}
    assert stored == live
    for path in ("/", "/carp", "/data.json", "/missing"):
        assert live[path].html == stored[path].html == resumed[path].html
        assert live[path].links == stored[path].links
    assert stored["/carp"].headers["etag"] == live["/carp"].headers["etag"] == '"1"'


async def test_pages_of_other_walkers_have_the_bodies_that_were_kept(sqlite_url: str, tmp_path: Path) -> None:
    def chain(path: str) -> Answer:
        return html(path, *(f"/{number}" for number in range(60)))

    async with serving(ScriptedSite(chain)) as site:
        pages = await crawl(site, sqlite_url, workers=2, keep_bodies=True)
    assert len(pages) == 61
    assert all(f"<title>{path}</title>" in page.html for path, page in pages.items())


async def test_a_body_that_is_gone_fails_only_its_own_page(sqlite_url: str, tmp_path: Path) -> None:
    async with serving(ScriptedSite(fish)) as site:
        await crawl(site, sqlite_url, id=ID, keep_bodies=True)
    [file] = stored_files(tmp_path)
    pages = [page async for page in shoal.open(ID, store=sqlite_url)]
    file.rename(tmp_path / "elsewhere")
    assert "A carp" in next(page for page in pages if page.title == "Carp").text  # read before
    for page in [page async for page in shoal.open(ID, store=sqlite_url)]:
        with pytest.raises(NotFound):
            _ = page.html


async def test_a_page_that_was_not_modified_has_the_content_of_the_crawl_before(sqlite_url: str) -> None:
    def tagged(path: str) -> Answer | None:
        if path != "/":
            return None
        matches = site.heard[-1].get("if-none-match") == '"1"'
        return (304, {"ETag": '"1"'}, "") if matches else (200, {"Content-Type": "text/html", "ETag": '"1"'}, "<p>Carp")

    async with serving(ScriptedSite(tagged)) as site:
        await crawl(site, sqlite_url, id="first", keep_bodies=True)
        [kept] = (await crawl(site, sqlite_url, recrawl_of="first", keep_bodies=True)).values()
        [not_kept] = (await crawl(site, sqlite_url, recrawl_of="first")).values()
    assert (kept.status, kept.html) == (304, "<p>Carp")
    assert "not modified (304)" in refuses(not_kept)


async def test_a_body_that_cannot_be_decoded_says_so(sqlite_url: str) -> None:
    def broken(path: str) -> Answer:
        return 200, {"Content-Type": "text/html", "Content-Encoding": "gzip"}, "no gzip"

    async with serving(ScriptedSite(broken)) as site:
        [page] = (await crawl(site, sqlite_url)).values()
    assert page.error is not None
    assert page.error["code"] == "bad_encoding"
    assert "check its error first" in refuses(page)


async def test_rendered_pages_have_the_rendered_document(
    sqlite_url: str, chromium: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CHROMIUM", chromium)
    async with serving(ScriptedSite(lambda path: script_site(path, 2))) as site:
        pages = await crawl(site, sqlite_url, render="auto", id=ID, keep_bodies=True)
        stored = {page.url.removeprefix(site.url): page async for page in shoal.open(ID, store=sqlite_url)}
    for page in (pages["/page/1"], stored["/page/1"]):
        assert page.rendered
        assert "text number 1" in page.markdown
        assert page.css("h1")[0].text == "Page 1"
        assert page.headers["content-type"].startswith("text/html")
    assert [link.url for link in pages["/"].links if link.kind == "a"] == [f"{site.url}/page/1"]


@pytest.mark.exhaustive
async def test_unread_bodies_are_bounded_in_bytes(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a megabyte, and a reader that takes one: the walker must stop long before its limit of pages."""
    body, pages = "<p>" + "carp " * 200_000, 300

    def large(path: str) -> Answer:
        return html(path, *(f"/{number}" for number in range(pages)) if path == "/" else (), text=body)

    streams: list[local_crawl.PageStream] = []
    add = local_crawl.PageStream.add

    def measured(self: local_crawl.PageStream, crawled: list[local_crawl.CrawledPage]) -> None:
        add(self, crawled)
        streams.append(self)

    monkeypatch.setattr(local_crawl.PageStream, "add", measured)
    async with serving(ScriptedSite(large)) as site:
        async with shoal.crawl(f"{site.url}/", store=sqlite_url, sitemap="off", id=ID) as run:
            await anext(run)
            await wait_for_silence(site)
            assert 20 < len(site.asked) < 90  # 64 MB, and the window
            assert not streams[-1].has_capacity
            rest = [page.url async for page in run]
        assert len(rest) == pages
        assert run.state == "completed"


async def wait_for_silence(site: ScriptedSite) -> None:
    """Wait until the site has received no request for two seconds."""
    while True:
        site.news.clear()
        try:
            async with asyncio.timeout(2):
                await site.news.wait()
        except TimeoutError:
            return


async def test_a_crawl_that_nobody_knows_cannot_be_opened(sqlite_url: str) -> None:
    with pytest.raises(NotFound, match="nobody"):
        await anext(shoal.open("nobody", store=sqlite_url))
    with pytest.raises(NotFound, match="does not exist"):
        await anext(shoal.open("nobody", store="sqlite:///absent.db"))

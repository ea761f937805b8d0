"""Crawls that keep bodies: every response is stored as it was sent, whatever fails meanwhile."""

import errno

import pytest

from shoal.base.errors import BodiesUnavailable, NotFound, StorageFull
from shoal.hosts.store import HostStore
from shoal.pages.bodies import answer_of, place_of
from shoal.pages.warc import pieces, read_member
from tests.packages.conftest import Answer, Crawler, ScriptedSite, html, serving


def shop(path: str) -> Answer | None:
    match path:
        case "/":
            return html("Shop", "/old", "/gone", "/file", "/again")
        case "/old":
            return 301, {"Location": "/new"}, "moved"
        case "/new":
            return html("New")
        case "/file":
            return 200, {"Content-Type": "text/plain"}, "plain text"
        case "/again":
            return html("Again")
    return None


async def test_every_answer_is_kept_as_it_was_sent(crawler: Crawler) -> None:
    async with serving(ScriptedSite(shop)) as site:
        seen = await crawler.crawl(site, keep_bodies=True)
    pages = await crawler.pages(seen)
    answers = {path: await answer_of(crawler.app.bodies, page) for path, page in pages.items()}
    assert {path: answer.status for path, answer in answers.items() if answer} == {
        "/": 200, "old": 200, "gone": 404, "file": 200, "again": 200,
    }  # fmt: skip
    assert answers["file"] is not None
    assert answers["file"].raw == b"plain text"
    assert answers["file"].headers.get("content-type") == "text/plain"
    assert answers["/"] is not None
    assert b"<title>Shop</title>" in answers["/"].raw


async def test_redirects_are_kept_with_the_page_that_they_led_to(crawler: Crawler) -> None:
    async with serving(ScriptedSite(shop)) as site:
        seen = await crawler.crawl(site, "/old", depth=0, keep_bodies=True)
    [page] = (await crawler.pages(seen)).values()
    place = place_of(page)
    assert place is not None
    kept = await crawler.app.bodies.read(place)
    records = [read_member(kept[piece.offset :][: piece.length]) for piece in pieces(kept)]
    told = [(record.fields["warc-type"], record.fields["warc-target-uri"].removeprefix(site.url)) for record in records]
    assert told == [("response", "/new"), ("request", "/new"), ("response", "/old"), ("request", "/old")]
    assert records[2].http()[1] == b"moved"


async def test_a_crawl_that_does_not_ask_for_bodies_keeps_none(crawler: Crawler) -> None:
    async with serving(ScriptedSite(shop)) as site:
        seen = await crawler.crawl(site)
    assert [place_of(page) for page in (await crawler.pages(seen)).values()] == [None] * 5


async def test_a_removed_crawl_leaves_no_bodies(crawler: Crawler) -> None:
    async with serving(ScriptedSite(shop)) as site:
        seen = await crawler.crawl(site, keep_bodies=True)
    places = [place_of(page) for page in (await crawler.pages(seen)).values()]
    await crawler.app.frontier_admin.erase(seen.crawl.id)
    for place in places:
        assert place is not None
        with pytest.raises(NotFound):
            await crawler.app.bodies.read(place)


@pytest.mark.exhaustive
async def test_bodies_that_are_larger_than_what_may_wait_are_kept_all_the_same(crawler: Crawler) -> None:
    def large(path: str) -> Answer | None:
        links = [f"/{number}" for number in range(30)] if path == "/" else []
        return html(path, *links, text="x" * 3_000_000)

    async with serving(ScriptedSite(large)) as site:
        seen = await crawler.crawl(site, keep_bodies=True)
    pages = await crawler.pages(seen)
    assert len(pages) == 31
    for page in pages.values():
        answer = await answer_of(crawler.app.bodies, page)
        assert answer is not None
        assert len(answer.raw) > 3_000_000


async def test_without_space_for_bodies_no_page_is_stored_without_its_own(
    crawler: Crawler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(ScriptedSite(shop)) as site:
        crawl = await crawler.submit(site, keep_bodies=True)
        full = crawler.app.bodies.writer(crawl.bodies)

        async def no_room(data: bytes) -> None:
            raise StorageFull("the disk")

        monkeypatch.setattr(type(full), "append", lambda self, data: no_room(data))
        with pytest.raises(StorageFull):
            await crawler.walk(crawl)
    assert await crawler.pages(await crawler.app.crawls.get(crawl.id)) == {}


async def test_a_full_disk_while_storing_robots_txt_ends_the_walker_before_a_page_counts_an_attempt(
    crawler: Crawler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_room(*values: object) -> None:
        raise StorageFull("the store")

    monkeypatch.setattr(HostStore, "keep_robots", no_room)
    async with serving(ScriptedSite(shop)) as site:
        crawl = await crawler.submit(site)
        with pytest.raises(StorageFull):
            await crawler.walk(crawl)
        monkeypatch.undo()
        [left] = await crawler.app.queue.held_by("test")
        await crawler.app.queue.release(left, "storage_full")  # as its worker does
        await crawler.walk(crawl)
    pages = await crawler.pages(await crawler.app.crawls.get(crawl.id))
    assert {page.attempt for page in pages.values()} == {1}


async def test_a_content_disposition_never_names_the_stored_file(crawler: Crawler) -> None:
    names = ["../../../../owned", "/tmp/owned", "CON", "a\tb", "x" * 4000]
    disposition = [("Content-Disposition", f'attachment; filename="{name}"') for name in names]
    async with serving(ScriptedSite(lambda path: (200, dict([disposition[int(path[1:] or 0)]]), html("x")[2]))) as site:
        seen = await crawler.crawl(site, *(f"/{number}" for number in range(len(names))), keep_bodies=True)
    pages = await crawler.pages(seen)
    files = {page.body_file for page in pages.values()}
    assert len(pages) == len(names)
    assert all(file and "owned" not in file and ".." not in file and not file.startswith("/") for file in files), files


async def test_pages_whose_bodies_cannot_be_kept_are_not_fetched_again_and_again(
    crawler: Crawler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(ScriptedSite(shop)) as site:
        crawl = await crawler.submit(site, keep_bodies=True)
        writer = crawler.app.bodies.writer(crawl.bodies)

        def broken(self: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(type(writer), "_begin", broken)
        with pytest.raises(BodiesUnavailable, match="Input/output error"):
            await crawler.walk(crawl)
    assert site.times("/") == 1

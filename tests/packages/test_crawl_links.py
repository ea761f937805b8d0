"""The links of a crawl with their texts, as exports, the API and the console read them."""

from typing import Any

import pytest

from shoal.base.errors import NotFound
from shoal.base.url import Url
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.links import CrawlLinks, Link, LinkFilter, LinkPlace
from shoal.pages.export.output import ExportFilter
from tests.packages.conftest import Answer, Crawler, ScriptedSite, html, serving

TYPE = {"Content-Type": "text/html; charset=utf-8"}
PAGES: dict[str, Answer] = {
    "/": (
        200,
        TYPE,
        '<base href="/sub/"><a href="a?utm_source=x">To A</a><a href="/gone" rel="nofollow">Gone</a>'
        '<a href="/old">Old</a><img src="/logo.png" alt="Logo"><link rel="canonical" href="/">',
    ),
    "/sub/a": (200, TYPE, '<meta name=robots content=nofollow><a href="/gone">gone, too</a><a href="/">home</a>'),
    "/old": (301, {"Location": "/new"}, ""),
    "/new": html("new", "/gone", "/gone"),
}


def links_of(crawler: Crawler, seen: CrawlStatus) -> CrawlLinks:
    return CrawlLinks(crawler.app.database, seen.crawl, 2048)


async def all_links(crawler: Crawler, seen: CrawlStatus, wanted: LinkFilter | None = None) -> list[Link]:
    return [link async for some in links_of(crawler, seen).all(wanted or LinkFilter()) for link in some]


async def test_links_have_urls_texts_kinds_and_the_status_of_their_target(crawler: Crawler) -> None:
    async with serving(ScriptedSite(PAGES.get)) as site:
        seen = await crawler.crawl(site, links=True)
        home, at = f"{site.url}/", site.url
    found = await all_links(crawler, seen)
    assert [link for link in found if link.source == home] == [
        Link(Url(home), Url(f"{at}/sub/a"), "To A", "", False, "a", 200, None),
        Link(Url(home), Url(f"{at}/gone"), "Gone", "nofollow", True, "a", 404, None),
        Link(Url(home), Url(f"{at}/old"), "Old", "", False, "a", 200, None),
        Link(Url(home), Url(f"{at}/logo.png"), "Logo", "", False, "img", None, None),
        Link(Url(home), Url(home), "", "canonical", False, "canonical", 200, None),
    ]
    assert {link.nofollow for link in found if link.source == f"{at}/sub/a"} == {True}
    gone = await all_links(crawler, seen, LinkFilter(target=Url(f"{at}/gone")))
    assert sorted(link.source for link in gone) == sorted([home, f"{at}/sub/a", *[f"{at}/old"] * 2])
    moved = await all_links(crawler, seen, LinkFilter(status=ExportFilter(["3xx"])))
    assert {link.target for link in moved} >= {f"{at}/old"}
    assert {link.target for link in await all_links(crawler, seen, LinkFilter(status=ExportFilter(["4xx"])))} == {
        f"{at}/gone"
    }
    assert [link.kind for link in await all_links(crawler, seen, LinkFilter(source=Url(home), kind="img"))] == ["img"]


async def test_a_list_is_continued_where_it_ended_also_within_a_page(crawler: Crawler) -> None:
    async with serving(ScriptedSite(PAGES.get)) as site:
        seen = await crawler.crawl(site, links=True)
        wanted = [LinkFilter(), LinkFilter(kind="a"), LinkFilter(source=Url(f"{site.url}/")),
                  LinkFilter(target=Url(f"{site.url}/gone"))]  # fmt: skip
    for which in wanted:
        whole = await all_links(crawler, seen, which)
        assert whole
        for limit in (1, 2, 3, len(whole), len(whole) + 1):
            parts, place, is_complete = list[Link](), LinkPlace(), False
            for _ in range(len(whole) + 2):
                found = await links_of(crawler, seen).search(which, place, limit)
                assert len(found.links) <= limit
                parts, place, is_complete = parts + found.links, found.place, found.is_complete
                if is_complete:
                    break
            assert is_complete
            assert parts == whole


@pytest.mark.parametrize("limit", [1, 100])
async def test_a_crawl_without_stored_links_knows_who_links_to_a_url_and_says_that_it_has_no_more(
    crawler: Crawler, limit: int
) -> None:
    async with serving(ScriptedSite(PAGES.get)) as site:
        seen = await crawler.crawl(site)
        at = site.url
    links, sources = links_of(crawler, seen), list[Any]()
    place, is_complete = LinkPlace(), False
    while not is_complete:
        found = await links.search(LinkFilter(target=Url(f"{at}/gone")), place, limit)
        sources += [(link.source, link.text, link.nofollow, link.status) for link in found.links]
        place, is_complete = found.place, found.is_complete
    assert sorted(sources) == sorted(
        [(f"{at}/", None, True, 404), (f"{at}/sub/a", None, True, 404), (f"{at}/old", None, False, 404)]
    )
    for wanted in (LinkFilter(), LinkFilter(source=Url(f"{at}/"))):
        with pytest.raises(NotFound, match="run the crawl with --links"):
            await links.search(wanted, LinkPlace(), 10)

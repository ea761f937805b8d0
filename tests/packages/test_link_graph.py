"""The link graph of a crawl: which page links to which, and how."""

from shoal.base.url import Url
from shoal.crawl.frontier.values import key_of
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.pages.links import LinkFlag, unpack
from shoal.pages.store import PageStore
from tests.packages.conftest import Answer, Crawler, ScriptedSite, html, serving

INSIDE, OUTSIDE, NOFOLLOW = LinkFlag.INTERNAL, LinkFlag(0), LinkFlag.NOFOLLOW


async def links_of(crawler: Crawler, seen: CrawlStatus, path: str) -> list[tuple[int, int]] | None:
    blob = (await crawler.pages(seen))[path].links
    found = None if blob is None else unpack(blob)
    return None if found is None else list(zip(found.keys, found.flags, strict=True))


def key(seen: CrawlStatus, url: str) -> int:
    return key_of(Url(url), seen.crawl.key_seed)[0]


async def test_a_page_keeps_where_it_links_to_in_its_order(crawler: Crawler) -> None:
    body = """
        <a href="/b">1</a> <a href="http://elsewhere.example/x">2</a> <a href="/a">3</a> <a href="/b#again">again</a>
        <a href="mailto:me@a.example">no page</a>
        <a rel="nofollow" href="/private">4</a> <a rel="nofollow" href="/a">also without</a>
        <a rel="ugc nofollow" href="http://elsewhere.example/ad">5</a>
    """
    page = (200, {"Content-Type": "text/html"}, body)
    async with serving(ScriptedSite(lambda path: page if path == "/" else html("leaf"))) as site:
        seen = await crawler.crawl(site)
    assert await links_of(crawler, seen, "/") == [
        (key(seen, f"{site.url}/b"), INSIDE),
        (key(seen, "http://elsewhere.example/x"), OUTSIDE),
        (key(seen, f"{site.url}/a"), INSIDE),
        (key(seen, f"{site.url}/private"), NOFOLLOW | INSIDE),
        (key(seen, "http://elsewhere.example/ad"), NOFOLLOW),
    ]
    assert await links_of(crawler, seen, "a") == []


async def test_a_file_that_is_not_parsed_has_no_links(crawler: Crawler) -> None:
    async with serving(
        ScriptedSite(lambda path: html("home", "/file") if path == "/" else (200, {"Content-Type": "x/y"}, "x"))
    ) as site:
        seen = await crawler.crawl(site)
    assert await links_of(crawler, seen, "file") is None


async def test_every_link_between_pages_is_in_the_graph(crawler: Crawler) -> None:
    def script(path: str) -> Answer:
        number = int(path.strip("/") or 0)
        return html(path, *(f"/{(number * step + step) % 60}" for step in (1, 2, 3, 7)))

    async with serving(ScriptedSite(script)) as site:
        seen = await crawler.crawl(site, depth=100)
    pages = await crawler.pages(seen)
    names = {key(seen, page.url): path for path, page in pages.items()}
    number = seen.crawl.number
    rows, _ = await crawler.app.database.read(lambda tx: PageStore().links_after(tx, number, 0, len(pages) + 1))
    found = {names[source]: [names[target] for target in unpack(blob).followed()] for _, source, blob in rows}
    assert len(found) == len(pages) >= 60
    for path, targets in found.items():
        number = int(path.strip("/") or 0)
        wanted = dict.fromkeys(str((number * step + step) % 60) for step in (1, 2, 3, 7))
        assert targets == list(wanted)

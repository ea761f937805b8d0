"""What a crawl reads beyond the facts of its pages, when it is asked to. The real engine on both stores."""

from shoal.extract.details import unpacked
from tests.rooms.conftest import Crawler, ScriptedSite, html, serving


async def test_a_crawl_that_will_be_analysed_keeps_the_details_of_every_answer(crawler: Crawler) -> None:
    answers = {"/": html("home", "/a", "/file"), "/file": (200, {"Content-Type": "text/plain", "ETag": "7"}, "text")}
    async with serving(ScriptedSite(answers.get)) as site:
        seen = await crawler.crawl(site, analyze=True)
        other = await crawler.crawl(site)
    pages, store = crawler.app.database, crawler.app.pages
    found = [unpacked(packed) for _, packed in await pages.read(lambda tx: store.details_after(tx, 1, 0, 10))]
    assert [details.titles for details in found] == [["home"], [], []]
    assert [anchor.url for anchor in found[0].links] == ["/a", "/file"]
    assert {details.headers.get("etag") for details in found} == {None, "7"}
    assert seen.counts.pages == other.counts.pages == 3
    assert await pages.read(lambda tx: store.details_after(tx, other.crawl.number, 0, 10)) == []

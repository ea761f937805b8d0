"""Page flags: defects of a page that was read nevertheless are stored and shown."""

from shoal.extract.flags import PageFlag
from tests.packages.conftest import Answer, Crawler, ScriptedSite, html, serving

WINDOWS = "<p>Caf\xe9 sehr sch\xf6n, wie gew\xf6hnlich; \xfcber alle Ma\xdfen.</p>".encode("latin-1")


def script(path: str) -> Answer | None:
    if path == "/":
        return html("home", "/undeclared", "/crowded")
    if path == "/undeclared":
        return 200, {"Content-Type": "text/html"}, WINDOWS
    return html("crowded", *(f"/{number}" for number in range(20))) if path == "/crowded" else None


async def test_flags_are_kept_with_the_page_and_reported_by_explain(crawler: Crawler) -> None:
    async with serving(ScriptedSite(script)) as site:
        seen = await crawler.crawl(site, depth=1, scope="host")
        pages = await crawler.pages(seen)
        assert PageFlag(pages["undeclared"].flags) == PageFlag.ENCODING_GUESSED
        assert pages["/"].flags == 0
        said = await crawler.app.frontier_admin.explain(seen.crawl.id, f"{site.url}/undeclared", 2083)
        assert said.facts["flags"] == "encoding_guessed"
        plain = await crawler.app.frontier_admin.explain(seen.crawl.id, f"{site.url}/", 2083)
        assert "flags" not in plain.facts


async def test_flags_are_not_part_of_the_record(crawler: Crawler) -> None:
    async with serving(ScriptedSite(script)) as site:
        seen = await crawler.crawl(site, depth=1, scope="host")
        pages = await crawler.pages(seen)
    assert not any("flags" in page.record(seen.crawl.id) for page in pages.values())

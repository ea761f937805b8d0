"""Links as sites write them and browsers read them: in the page's encoding, with breaks and backslashes, in headers."""

from shoal.crawl.frontier.fates import Fate
from tests.packages.conftest import Crawler, ScriptedSite, html, serving

LINKS = "/p?q=caf&eacute;", "/b\\c", "/d\te", "/f?g\\h"


async def test_links_are_asked_for_as_a_browser_would(crawler: Crawler) -> None:
    anchors = "".join(f'<a href="{link}">x</a>' for link in LINKS)
    home = (
        200,
        {"Content-Type": "text/html; charset=windows-1252", "Refresh": "9; url=/r"},
        f"<title>x</title>{anchors}",
    )
    site = ScriptedSite(lambda path: home if path == "/" else html(path))
    async with serving(site) as host:
        seen = await crawler.crawl(host)
    assert {"/p?q=caf%E9", "/b/c", "/de", "/f?g\\h", "/r"} <= set(site.asked)
    assert not seen.counts.skipped.keys() & {Fate.SKIPPED_BACKSLASH.word, Fate.SKIPPED_CONTROL_CHARACTERS.word}

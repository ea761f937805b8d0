"""Responses of all kinds: which are parsed, which are only recorded, and which are retried."""

import pytest

from tests.packages.conftest import Answer, Crawler, ScriptedSite, html, serving

HTML = '<title>t</title><a href="/found">x</a>'


@pytest.mark.parametrize(
    ("headers", "body", "parsed"),
    [
        ({"Content-Type": "text/html"}, HTML, True),
        ({"Content-Type": "application/xhtml+xml; charset=utf-8"}, HTML, True),
        ({}, HTML, True),
        ({"Content-Type": "text/plain"}, HTML, False),
        ({"Content-Type": "application/pdf"}, HTML, False),
        ({"Content-Type": "text/html"}, "%PDF-1.7 " + HTML, False),
        ({}, "just text " + HTML, False),
    ],
)
async def test_html_is_parsed_and_the_rest_only_recorded(
    crawler: Crawler, headers: dict[str, str], body: str, parsed: bool
) -> None:
    def script(path: str) -> Answer | None:
        return {"/": html("home", "/file"), "/file": (200, headers, body), "/found": html("found")}.get(path)

    async with serving(ScriptedSite(script)) as site:
        pages = await crawler.pages(await crawler.crawl(site))
    page = pages["file"]
    assert (page.status, page.bytes, page.content_type) == (200, len(body), headers.get("Content-Type"))
    assert page.title == ("t" if parsed else None)
    assert ("found" in pages) is parsed
    assert page.error_code is None


@pytest.mark.parametrize(
    ("answer", "times", "code"),
    [
        ((500, {}, ""), 4, None),
        ((408, {}, ""), 4, None),
        ((404, {}, ""), 1, None),
        ((403, {}, ""), 1, None),
        ((302, {"Location": "/odd"}, ""), 1, "redirect_loop"),
        ((302, {"Location": "ftp://x.example/"}, ""), 1, "redirect_scheme"),
        ((302, {"Location": "http://127.0.0.1:1/"}, ""), 1, "address_not_public"),
        ((200, {"Content-Type": "text/html", "Content-Encoding": "gzip"}, "not gzip"), 1, "bad_encoding"),
    ],
)
async def test_only_what_may_change_is_asked_for_again(
    crawler: Crawler, answer: Answer, times: int, code: str | None
) -> None:
    async with serving(ScriptedSite(lambda path: html("home", "/odd") if path == "/" else answer)) as site:
        page = (await crawler.pages(await crawler.crawl(site, scope="any")))["odd"]
    assert (site.times("/odd"), page.attempt, page.error_code) == (times, times, code)

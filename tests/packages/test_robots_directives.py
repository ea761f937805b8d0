"""Robots directives of pages: in the head, in response headers, and on links."""

import pytest

from shoal.crawl.frontier.explain import UrlState
from tests.packages.conftest import Answer, Crawler, ScriptedSite, html, serving

HTML = {"Content-Type": "text/html"}


def page(head: str, body: str, headers: dict[str, str] | None = None) -> Answer:
    return 200, HTML | (headers or {}), f"<!doctype html><html><head><title>x</title>{head}</head><body>{body}</body>"


def site(answers: dict[str, Answer]) -> ScriptedSite:
    return ScriptedSite(lambda path: answers.get(path) or html(path))


LINKS = '<a href="/a">a</a><a href="/b">b</a><a href="http://elsewhere.example/">x</a>'


@pytest.mark.parametrize(
    ("head", "headers", "robots", "follows"),
    [
        ('<meta name="robots" content="noindex, nofollow">', {}, "noindex, nofollow", False),
        ('<META NAME="ROBOTS" CONTENT="NONE">', {}, "NONE", False),
        ('<meta name="shoal" content="nofollow">', {}, "nofollow", False),
        ('<meta name="googlebot" content="nofollow">', {}, None, True),
        ('<meta name="robots" content="noindex">', {}, "noindex", True),
        ("", {"X-Robots-Tag": "nofollow"}, "nofollow", False),
        ("", {"x-robots-tag": "Shoal: none"}, "none", False),
        ("", {"X-Robots-Tag": "googlebot: nofollow"}, None, True),
        ('<meta name="robots" content="index, follow">', {"X-Robots-Tag": "noindex"}, "index, follow, noindex", True),
        (
            '<meta name="robots" content="index, follow">',
            {"X-Robots-Tag": "nofollow"},
            "index, follow, nofollow",
            False,
        ),
    ],
)
async def test_a_page_decides_whether_its_links_are_followed(
    crawler: Crawler, head: str, headers: dict[str, str], robots: str | None, follows: bool
) -> None:
    async with serving(site({"/": page(head, LINKS, headers)})) as host:
        seen = await crawler.crawl(host)
    pages = await crawler.pages(seen)
    assert pages["/"].robots == robots
    assert (pages["/"].links_internal, pages["/"].links_external) == (2, 1)
    assert set(pages) == ({"/", "a", "b"} if follows else {"/"})
    assert seen.counts.skipped == ({"scope": 1} if follows else {"scope": 1, "nofollow": 2})


async def test_a_file_that_is_not_html_has_the_directives_of_its_headers(crawler: Crawler) -> None:
    file = (200, {"Content-Type": "application/pdf", "X-Robots-Tag": "noindex"}, "%PDF-")
    async with serving(site({"/": html("home", "/file.pdf"), "/file.pdf": file})) as host:
        pages = await crawler.pages(await crawler.crawl(host))
    assert pages["file.pdf"].robots == "noindex"


async def test_a_link_that_says_nofollow_is_recorded_and_not_followed(crawler: Crawler) -> None:
    links = '<a rel="noopener NoFollow" href="/a">a</a><a href="/b">b</a><a rel=nofollow href="http://e.example/">x</a>'
    async with serving(site({"/": page("", links)})) as host:
        seen = await crawler.crawl(host)
        said = await crawler.app.frontier_admin.explain(seen.crawl.id, f"{host.url}/a", 2083)
    assert set(await crawler.pages(seen)) == {"/", "b"}
    assert seen.counts.skipped == {"nofollow": 1, "scope": 1}
    assert (said.state, said.reason) == (UrlState.SKIPPED, "nofollow")
    assert str(said.sentence) == "Every page that links to it uses nofollow."


@pytest.mark.parametrize("first", ["/one", "/two"])
async def test_a_link_is_followed_if_any_page_lets_it(crawler: Crawler, first: str) -> None:
    answers = {
        "/": html("home", *sorted(["/one", "/two"], reverse=first == "/two")),
        "/one": page('<meta name="robots" content="nofollow">', '<a href="/a">a</a><a href="/c">c</a>'),
        "/two": page("", '<a href="/a">a</a><a href="/b">b</a>'),
        "/b": page("", '<a rel="nofollow" href="/c">c</a>'),
    }
    async with serving(site(answers)) as host:
        seen = await crawler.crawl(host, concurrency=1)
    assert set(await crawler.pages(seen)) == {"/", "one", "two", "a", "b"}
    assert {reason: count for reason, count in seen.counts.skipped.items() if count} == {"nofollow": 1}


async def test_the_same_link_twice_on_a_page_is_followed_if_one_may_be(crawler: Crawler) -> None:
    links = '<a rel="nofollow" href="/a">a</a><a href="/a#x">a</a>'
    async with serving(site({"/": page("", links)})) as host:
        seen = await crawler.crawl(host)
    assert set(await crawler.pages(seen)) == {"/", "a"}
    assert seen.counts.skipped == {}


async def test_with_robots_ignored_all_links_are_followed(crawler: Crawler) -> None:
    head = '<meta name="robots" content="none">'
    links = '<a rel="nofollow" href="/a">a</a><a href="/b">b</a>'
    async with serving(site({"/": page(head, links, {"X-Robots-Tag": "nofollow"})})) as host:
        seen = await crawler.crawl(host, robots="ignore")
    pages = await crawler.pages(seen)
    assert set(pages) == {"/", "a", "b"}
    assert pages["/"].robots == "none, nofollow"

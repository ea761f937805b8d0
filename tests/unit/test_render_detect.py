"""Which pages need a browser: evidence in the page as fetched, and what is learned per kind of page."""

import subprocess
import sys

import pytest

from shoal.base.url import Url
from shoal.extract.page import extract
from shoal.web.detect import Choice, Evidence, PageKinds, evidence_of, has_gained, kind_of, without_noscript

WORDS = " ".join(["word"] * 60)
LINKS = '<a href="/a">a</a><a href="/b">b</a>'


def seen(html: str) -> Evidence:
    return evidence_of(html.encode(), extract(html.encode(), "text/html"))


@pytest.mark.parametrize(
    "html",
    [
        "<body></body>",  # an empty page without scripts stays empty
        f"<p>{WORDS}</p>{LINKS}",
        f'<p>enable JavaScript</p><div id="app"></div>{LINKS}',
    ],
)
def test_a_page_without_scripts_needs_no_browser(html: str) -> None:
    assert seen(html) is Evidence.NONE


@pytest.mark.parametrize(
    "html",
    [
        '<body><div id="root"></div><script src="/static/js/main.3f2a.js"></script>',
        f'<nav>{LINKS} {WORDS}</nav><div id=app></div><script type="module" src="/x.js"></script>',
        f"<app-root></app-root><p>{WORDS}</p><script src=/runtime.js></script>",
        f"<noscript>You need to enable JavaScript to run this app.</noscript>{LINKS}<script src=/x.js></script>",
        "<p>Please wait</p><SCRIPT>start()</SCRIPT>",
    ],
)
def test_a_page_that_is_empty_without_its_scripts_proves_it(html: str) -> None:
    assert seen(html) is Evidence.PROOF


def test_scripts_that_may_add_something_are_worth_a_probe_and_others_are_not() -> None:
    assert seen(f"<p>{WORDS}</p><script>track()</script>") is Evidence.LIKELY  # a page without any link
    assert seen(f"<p>{WORDS}</p>{LINKS}<script>fetch('/more')</script>") is Evidence.LIKELY
    assert seen(f'<p>{WORDS}</p>{LINKS}<script src="/js/vendor-0a1b.js"></script>') is Evidence.LIKELY
    assert seen(f"<p>{WORDS}</p>{LINKS}<script>track()</script>") is Evidence.SCRIPTS


def test_rendering_gains_by_new_links_much_more_text_or_a_navigation() -> None:
    before = extract(f"<p>{WORDS}</p>{LINKS}".encode(), "text/html")
    assert not has_gained(before, before)
    assert has_gained(before, before, navigations=1)
    assert has_gained(before, extract(f"<p>{WORDS}</p>{LINKS}<a href=/new>x</a>".encode(), "text/html"))
    assert has_gained(before, extract(f"<p>{WORDS * 3}</p>{LINKS}".encode(), "text/html"))
    assert not has_gained(before, extract(f"<p>{WORDS} and a little more</p>{LINKS}".encode(), "text/html"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://a.test/item/17", "https://a.test/item/4711?color=red"),
        ("https://a.test/blog/how-to-crawl", "https://a.test/blog/ten-more-ways-to-wait"),
        (
            "https://a.test/u/0f8fad5b-d9cb-469f-a165-70867728950e",
            "https://a.test/u/7c9e6679-7425-40de-944b-e07fc1f90ae7",
        ),
    ],
)
def test_pages_of_one_kind_share_a_pattern(one: str, other: str) -> None:
    assert kind_of(Url(one)) == kind_of(Url(other))
    assert kind_of(Url(one)) != kind_of(Url("https://a.test/about"))


def test_probes_that_gain_nothing_end_the_rendering_of_their_kind() -> None:
    kinds = PageKinds()
    assert [kinds.choose("k", Evidence.LIKELY) for _ in range(3)] == [Choice.PROBE, Choice.PROBE, Choice.WAIT]
    assert kinds.learn("k", Choice.PROBE, False)
    assert kinds.choose("k", Evidence.LIKELY) is Choice.WAIT
    assert kinds.learn("k", Choice.PROBE, False)
    assert kinds.choose("k", Evidence.LIKELY) is Choice.SKIP
    assert kinds.choose("k", Evidence.PROOF) is Choice.RENDER
    assert kinds.choose("other", Evidence.LIKELY) is Choice.PROBE


def test_one_gain_renders_all_pages_of_a_kind_that_have_scripts() -> None:
    kinds = PageKinds()
    assert kinds.choose("k", Evidence.LIKELY) is Choice.PROBE
    kinds.learn("k", Choice.PROBE, True)
    assert kinds.choose("k", Evidence.LIKELY) is kinds.choose("k", Evidence.SCRIPTS) is Choice.RENDER
    assert kinds.choose("k", Evidence.NONE) is Choice.SKIP


def test_a_probe_that_failed_is_repeated_by_another_page() -> None:
    kinds = PageKinds()
    for _ in range(2):
        assert kinds.choose("k", Evidence.LIKELY) is Choice.PROBE
    assert kinds.learn("k", Choice.PROBE, None)
    assert kinds.choose("k", Evidence.LIKELY) is Choice.PROBE


def test_noscript_is_left_out_of_rendered_pages() -> None:
    assert without_noscript(b"a<noscript><p>x</p></noscript>b<NOSCRIPT>y</NOSCRIPT>c") == b"abc"
    assert without_noscript(b"a<noscript>open") == b"a<noscript>open"
    many = b"<noscript>" * 200_000  # read once, not once per start
    assert without_noscript(many) == many


def test_a_crawl_that_does_not_render_imports_nothing_for_it() -> None:
    source = "import sys, shoal.cli.crawl, shoal.process.local_crawl; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert [name for name in said.stdout.split() if name.startswith("shoal.") and "render" in name] == []

"""Optional facts (rules, hooks, details) that a crawl extracts on request. The real engine on both stores."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.base.errors import InvalidInput
from shoal.base.signals import Signal
from shoal.crawl.engine.walker_context import HookRan
from shoal.crawl.states import CrawlState
from shoal.extract.details import unpacked
from shoal.extract.links import unpack_links
from shoal.extract.optional_facts import find_hooks
from shoal.pages.store import PageStore
from tests.packages.conftest import Crawler, ScriptedSite, html, serving
from tests.support.distribution import install


async def test_a_crawl_that_will_be_analysed_keeps_the_details_of_every_answer(crawler: Crawler) -> None:
    answers = {"/": html("home", "/a", "/file"), "/file": (200, {"Content-Type": "text/plain", "ETag": "7"}, "text")}
    async with serving(ScriptedSite(answers.get)) as site:
        seen = await crawler.crawl(site, analyze=True)
        other = await crawler.crawl(site)
    pages, store = crawler.app.database, PageStore()
    found = [unpacked(packed) for _, packed in (await pages.read(lambda tx: store.details_after(tx, 1, 0, 10)))[0]]
    assert [details.titles for details in found] == [["home"], [], []]
    assert {details.headers.get("etag") for details in found} == {None, "7"}
    home = (await crawler.pages(seen))["/"]
    [(_, links)], _ = await pages.read(lambda tx: store.outlinks_after(tx, seen.crawl.number, 0, 10))
    assert [link.url for link in unpack_links(links).links] == ["/a", "/file"]
    assert await pages.read(lambda tx: store.outlinks_after(tx, other.crawl.number, 0, 10)) == ([], None)
    assert home.fingerprint == found[0].fingerprint is not None
    assert seen.counts.pages == other.counts.pages == 3
    assert await pages.read(lambda tx: store.details_after(tx, other.crawl.number, 0, 10)) == ([], None)


RULES = {
    "urls": ["/tea"],
    "fields": {"name": {"css": "h1", "required": True}, "price": {"css": ".price", "type": "float", "required": True}},
}


async def test_a_rule_set_gives_each_page_its_data_and_a_lack_of_it_its_error(crawler: Crawler) -> None:
    answers = {
        "/": html("home", "/tea/1", "/tea/2", "/tea/gone", "/tea.txt"),
        "/tea/1": html("green", text="<b class=price>4,50</b>"),
        "/tea/2": html("black"),
        "/tea.txt": (200, {"Content-Type": "text/plain"}, "text"),
    }
    async with serving(ScriptedSite(answers.get)) as site:
        seen = await crawler.crawl(site, rules=RULES)
        pages = await crawler.pages(seen)
    assert pages["tea/1"].data == {"name": "green", "price": 4.5}
    assert pages["tea/2"].data == {"name": "black", "price": None}
    assert pages["tea/2"].error == {"code": "invalid_data", "message": "price is required and missing."}
    assert [pages[path].data for path in ("/", "tea/gone", "tea.txt")] == [None, None, None]
    assert (seen.counts.pages, seen.counts.errors) == (5, 1)
    assert seen.crawl.state is CrawlState.COMPLETED


HOOKS = """
def count(page):
    assert page.document.find("h1").text == page.data.get("name", "home")
    return {"letters": len(page.text), "status": page.status, "url": page.url}

def some(page):
    if page.url.endswith("/"):
        raise SystemExit("not this one")
    return None

def wrong(page):
    return [1]

def odd(page):
    return {"when": object()}

def deep(page):
    levels = {}
    for _ in range(200):
        levels = {"inner": levels}
    return levels
"""
NAMES = ("count", "some", "wrong", "odd", "deep")
ENTRY_POINTS = "[shoal.hooks]\n" + "\n".join(f"{name} = tiny:{name}" for name in NAMES)


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with hooks, installed where this process finds it."""
    monkeypatch.syspath_prepend(install(tmp_path, HOOKS, ENTRY_POINTS + "\nbroken = tiny:absent\n"))
    yield
    sys.modules.pop("tiny", None)


@pytest.mark.usefixtures("hooks")
async def test_hooks_add_to_the_data_of_each_page_and_what_they_raise_ends_nothing(crawler: Crawler) -> None:
    told: list[Signal] = []
    crawler.app.signals.subscribe(told.append)
    answers = {"/": html("home", "/tea"), "/tea": html("green")}
    async with serving(ScriptedSite(answers.get)) as site:
        rules = {"urls": ["/tea"], "fields": {"name": {"css": "h1"}}}
        seen = await crawler.crawl(site, rules=rules, hooks=["count", "some"])
        pages = await crawler.pages(seen)
    assert pages["tea"].data is not None
    assert pages["tea"].data["name"] == "green"
    assert pages["tea"].data["url"] == f"{site.url}/tea"
    assert pages["tea"].error is None
    assert set(pages["/"].data or {}) == {"letters", "status", "url"}
    assert pages["/"].error == {"code": "hook_failed", "message": "Hook some raised SystemExit: not this one."}
    ran = {signal.hook: (signal.calls, signal.failures) for signal in told if isinstance(signal, HookRan)}
    assert ran == {"count": (2, 0), "some": (2, 1)}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wrong", "Hook wrong returned list, not a dict or None."),
        ("odd", "Hook odd returned something"),
        ("deep", "Hook deep returned more than 100 levels of data."),
    ],
)
async def test_a_hook_that_gives_no_data_is_reported(crawler: Crawler, name: str, words: str) -> None:
    async with serving(ScriptedSite({"/": html("home")}.get)) as site:
        page = (await crawler.pages(await crawler.crawl(site, hooks=[name])))["/"]
    assert (page.status, page.data, page.error_code) == (200, None, "hook_failed")
    assert page.error_message is not None
    assert words in page.error_message


@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody", "which no installed package provides; installed are broken, count, deep, odd, some, wrong"),
        ("broken", "which does not load"),
    ],
)
def test_a_hook_that_cannot_be_had_is_refused_by_its_name(name: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        find_hooks([name])

"""Recrawls: unchanged pages are not sent again, and the result is complete nevertheless."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from shoal.audit.analysis import AnalysisOptions
from shoal.audit.reports.html import status_by_depth
from shoal.base.errors import InvalidInput
from shoal.base.url import Url
from shoal.cli.audit import analyze_locally
from shoal.cli.output import rows_of, summary
from shoal.cli.rules import ReplayTally, RuleReplay
from shoal.crawl.engine import results as batch_builder
from shoal.crawl.engine.known_urls import PreviousCrawl
from shoal.crawl.engine.results import FEWEST
from shoal.crawl.frontier.values import FrontierTask
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.extract.rules import read_rules
from shoal.pages.bodies import CapturedExchange, answer_of, place_of
from shoal.pages.links import unpack
from shoal.pages.page import Page, PagesSettled
from shoal.pages.pages import PageSummaries
from shoal.pages.store import PageStore
from shoal.pages.warc import BodyRecorder, kind_of, pieces
from shoal.process.runners import make_walker
from shoal.serve.console.crawl_rows import KINDS, class_parts, depth_columns, row_of
from shoal.serve.console.format import ENGLISH, Formats
from shoal.serve.console.overview import day_columns
from tests.packages.conftest import Answer, Crawler, ScriptedSite, Weighing, altered, html, serving

MONDAY = "Mon, 05 Jan 2026 00:00:00 GMT"


@dataclass
class ConditionalSite(ScriptedSite):
    """A site of pages that link to each other and know their state, by an ETag of their text or by a date."""

    script: Any = None
    pages: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    by_date: bool = False

    def __post_init__(self) -> None:
        self.script = self.answer

    def answer(self, path: str) -> Answer | None:
        if path not in self.pages:
            return None
        text = self.texts.get(path, f"text of {path}")
        status, headers, body = html(f"title of {path}", *self.pages[path], text=text)
        said = {"Last-Modified": MONDAY} if self.by_date else {"ETag": f'"{path} {len(text)}"'}
        heard = self.heard[-1]
        holds = {heard.get("if-none-match"), heard.get("if-modified-since")} & set(said.values())
        return (304, said, "") if holds else (status, headers | said, body)

    def whole(self) -> list[str]:
        """The pages that were requested without a condition."""
        pairs = zip(self.asked, self.heard, strict=True)
        return [
            path
            for path, said in pairs
            if path in self.pages and not {"if-none-match", "if-modified-since"} & said.keys()
        ]

    def forget(self) -> None:
        self.asked.clear()
        self.heard.clear()


def conditional_site(**options: Any) -> ConditionalSite:
    tree = {
        "/": ["/a", "/b", "http://elsewhere.example/"],
        "/a": ["/", "/a/1"],
        "/b": ["/a"],
        "/a/1": ["/a/2"],
        "/a/2": [],
    }
    return ConditionalSite(pages=tree, **options)


async def again(crawler: Crawler, site: ConditionalSite, earlier: CrawlStatus, **options: Any) -> CrawlStatus:
    site.forget()
    return await crawler.crawl(site, recrawl_of=earlier.crawl.id, **options)


@pytest.mark.parametrize("by_date", [False, True])
async def test_an_unchanged_page_is_not_sent_again_and_keeps_its_facts(crawler: Crawler, by_date: bool) -> None:
    counted = Counter[str]()
    crawler.app.signals.subscribe(lambda one: counted.update(one.pages) if isinstance(one, PagesSettled) else None)
    async with serving(conditional_site(by_date=by_date)) as site:
        first = await crawler.crawl(site, depth=5)
        second = await again(crawler, site, first, depth=5)
    assert counted == {"2xx": 5, "unchanged": 5}
    *_, this_hour = day_columns({0: counted}, Formats(ENGLISH, 1))
    shown = {part.kind: part.value for part in this_hour.parts}
    assert (shown[KINDS["2xx"]], shown[KINDS["unchanged"]], shown[KINDS["3xx"]]) == (5, 5, 0)
    before, after = await crawler.pages(first), await crawler.pages(second)
    assert site.whole() == []
    assert set(after) == set(before) == {"/", "a", "b", "a/1", "a/2"}
    for path, page in after.items():
        assert (page.status, page.title) == (304, before[path].title)
        for name in (
            "content_type",
            "bytes",
            "word_count",
            "content_hash",
            "links",
            "links_internal",
            "depth",
            "parent",
        ):
            assert getattr(page, name) == getattr(before[path], name)
    assert (second.counts.pages, second.counts.not_modified, second.counts.bytes) == (5, 5, 0)
    assert second.counts.bytes_saved == first.counts.bytes
    assert (first.counts.not_modified, first.counts.bytes_saved) == (0, 0)


async def test_a_third_crawl_follows_the_second(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, depth=5)
        second = await again(crawler, site, first, depth=5)
        third = await again(crawler, site, second, depth=5)
    assert (third.counts.not_modified, third.counts.bytes_saved) == (5, first.counts.bytes)
    assert {path: page.title for path, page in (await crawler.pages(third)).items()} == {
        path: page.title for path, page in (await crawler.pages(first)).items()
    }


async def test_a_changed_page_is_read_and_its_new_links_are_followed(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, depth=5)
        site.texts["/a"] = "a new text of another length"
        site.pages |= {"/a": ["/", "/new"], "/new": []}
        second = await again(crawler, site, first, depth=5)
    pages = await crawler.pages(second)
    assert {path: page.status for path, page in pages.items()} == {"/": 304, "a": 200, "b": 304, "new": 200}
    assert (second.counts.not_modified, second.counts.bytes) == (2, pages["a"].bytes + pages["new"].bytes)
    assert pages["a"].etag != (await crawler.pages(first))["a"].etag


async def test_pages_behind_a_limit_that_is_gone_are_found(crawler: Crawler) -> None:
    """The earlier crawl knows only the keys of URLs that it did not fetch, so pages that link to them are requested
    without a condition."""
    async with serving(conditional_site()) as site:
        shallow = await crawler.crawl(site, depth=1)
        deep = await again(crawler, site, shallow, depth=5)
        assert set(await crawler.pages(deep)) == {"/", "a", "b", "a/1", "a/2"}
        assert set(site.whole()) == {"/a", "/a/1", "/a/2"}
        short = await crawler.crawl(site, depth=5, max_pages=2)
        full = await again(crawler, site, short, depth=5)
    assert set(await crawler.pages(full)) == {"/", "a", "b", "a/1", "a/2"}


async def test_a_page_beyond_the_limit_of_its_host_is_found_by_the_next_crawl(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, depth=5, max_pages_per_host=3)
        assert set(await crawler.pages(first)) == {"/", "a", "b"}
        site.texts["/"], site.pages["/"] = "a new text of another length", ["/a"]
        second = await again(crawler, site, first, depth=5, max_pages_per_host=3)
    assert set(await crawler.pages(second)) == {"/", "a", "a/1"}


async def test_a_recrawl_finds_urls_that_the_earlier_crawl_quarantined(crawler: Crawler) -> None:
    async with serving(ConditionalSite(pages={"/": ["/cal?month=1"], "/cal?month=1": []})) as site:
        crawl = await crawler.submit(site, depth=5)
        trapped = f"{site.url}/cal?month="
        await crawler.app.database.run(
            lambda tx: crawler.app.stores.frontiers.sql.quarantine(tx, crawl.number, {trapped: Url(f"{trapped}1")})
        )
        await crawler.walk(crawl)
        first = await crawler.app.crawls.get(crawl.id)
        assert set(await crawler.pages(first)) == {"/"}
        second = await again(crawler, site, first, depth=5)
    assert set(await crawler.pages(second)) == {"/", "cal?month=1"}


async def test_a_crawl_with_other_borders_asks_for_whole_pages_where_it_goes_on(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, depth=5, exclude=["/a/"])
        second = await again(crawler, site, first, depth=5)
        assert set(await crawler.pages(second)) == {"/", "a", "b", "a/1", "a/2"}
        assert site.whole() != []
        third = await again(crawler, site, second, depth=0)
    assert (site.whole(), third.counts.not_modified) == ([], 1)


@pytest.mark.parametrize("validators", [True, False])
@pytest.mark.parametrize("analyze", [True, False])
async def test_a_shortest_way_that_is_slow_this_time_loses_no_page(
    crawler: Crawler, validators: bool, analyze: bool
) -> None:
    tree = {"/": ["/short", "/long"], "/short": ["/x"], "/long": ["/longer"], "/longer": ["/x"], "/x": ["/end"]}
    site = ConditionalSite(pages=tree | {"/end": []}, late={"/longer": "/x"})
    if not validators:
        site.script = lambda path: html(path, *site.pages[path])
    async with serving(site):
        first = await crawler.crawl(site, depth=3)
        site.late = {"/short": "/x"}
        second = await again(crawler, site, first, depth=3, analyze=analyze)
    before, after = await crawler.pages(first), await crawler.pages(second)
    assert {path: page.depth for path, page in before.items()} == {
        "/": 0,
        "short": 1,
        "long": 1,
        "longer": 2,
        "x": 2,
        "end": 3,
    }
    assert {path: page.depth for path, page in after.items()} == {path: page.depth for path, page in before.items()}


async def test_a_depth_that_was_counted_from_other_seeds_is_not_taken_over(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, "/a", depth=5)
        second = await again(crawler, site, first, depth=5)
    assert ((await crawler.pages(first))["a/1"].depth, (await crawler.pages(second))["a/1"].depth) == (1, 2)


async def test_a_url_that_only_unchanged_pages_link_to_is_explained_by_the_crawl_that_read_them(
    crawler: Crawler,
) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, depth=5)
        second = await again(crawler, site, first, depth=5)
        third = await again(crawler, site, second, depth=5)
    frontier_admin = crawler.app.frontier_admin
    said = await frontier_admin.explain(third.crawl.id, "http://elsewhere.example/", 2000)
    assert "the links of unchanged pages were not read again" in str(said.sentence)
    assert f"In crawl {first.crawl.id}, which this crawl repeats, it was skipped: It is outside" in str(said.sentence)
    assert (said.facts["earlier_crawl"], said.facts["earlier_reason"]) == (first.crawl.id, "scope")
    unknown = await frontier_admin.explain(third.crawl.id, f"{site.url}/nowhere", 2000)
    assert "no page read so far links to it" in str(unknown.sentence)


async def test_a_page_that_only_the_earlier_crawl_came_to_is_explained_by_it(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, depth=5)
        second = await again(crawler, site, first, depth=1)
    said = await crawler.app.frontier_admin.explain(second.crawl.id, f"{site.url}/a/2", 2000)
    assert f"In crawl {first.crawl.id}, which this crawl repeats, it was fetched at" in str(said.sentence)


async def test_a_page_that_redirects_is_asked_for_without_a_condition(crawler: Crawler) -> None:
    site = conditional_site()
    site.pages["/"] = ["/old"]
    site.script = lambda path: (301, {"Location": "/a"}, "") if path == "/old" else site.answer(path)
    async with serving(site):
        first = await crawler.crawl(site, depth=1)
        second = await again(crawler, site, first, depth=1)
    pages = await crawler.pages(second)
    assert (pages["/"].status, pages["old"].status, pages["old"].title) == (304, 200, "title of /a")
    assert site.whole() == ["/a"]


async def test_pages_of_a_crawl_that_was_removed_are_asked_for_whole(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, depth=5)
        crawl = await crawler.submit(site, depth=5, recrawl_of=first.crawl.id)
        await crawler.app.frontier_admin.erase(first.crawl.id)
        site.forget()
        await crawler.walk(crawl)
    seen = await crawler.app.crawls.get(crawl.id)
    assert (seen.counts.pages, seen.counts.not_modified) == (5, 0)


@dataclass
class LateConditionalSite(ConditionalSite):
    """Does something before it answers a new connection."""

    first: Callable[[], Awaitable[None]] | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.first is not None:
            await self.first()
        await super().serve(reader, writer)


async def test_a_page_whose_earlier_record_was_removed_meanwhile_is_fetched_in_full(crawler: Crawler) -> None:
    async with serving(LateConditionalSite(pages={"/": []})) as site:
        first = await crawler.crawl(site, robots="ignore")
        crawl = await crawler.submit(site, robots="ignore", recrawl_of=first.crawl.id)

        async def remove() -> None:
            site.first = None
            await crawler.app.frontier_admin.erase(first.crawl.id)

        site.first = remove
        site.forget()
        await crawler.walk(crawl)
    page = (await crawler.pages(await crawler.app.crawls.get(crawl.id)))["/"]
    assert (page.status, page.title, page.attempt) == (200, "title of /", 2)
    assert len(site.whole()) == 1


async def test_an_answer_304_that_nobody_asked_for_is_only_recorded(crawler: Crawler) -> None:
    async with serving(ScriptedSite(lambda path: html("home", "/odd") if path == "/" else (304, {}, ""))) as site:
        seen = await crawler.crawl(site)
    page = (await crawler.pages(seen))["odd"]
    assert (page.status, page.title, page.bytes, page.links) == (304, None, 0, None)


async def test_links_of_an_unchanged_page_are_in_the_graph(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, depth=5)
        second = await again(crawler, site, first, depth=5)
    blob = (await crawler.pages(second))["/"].links
    assert blob is not None
    assert len(unpack(blob)) == 3


async def test_details_are_kept_and_missing_ones_are_read(crawler: Crawler) -> None:
    async def details(seen: CrawlStatus) -> int:
        rows, _ = await crawler.app.database.read(lambda tx: PageStore().details_after(tx, seen.crawl.number, 0, 100))
        return len(rows)

    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, depth=5)
        second = await again(crawler, site, first, depth=5, analyze=True)
        assert (second.counts.not_modified, await details(second)) == (0, 5)
        third = await again(crawler, site, second, depth=5, analyze=True)
    assert (third.counts.not_modified, await details(third)) == (5, 5)


async def test_a_crawl_can_only_follow_one_that_has_ended_in_this_store(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        with pytest.raises(InvalidInput, match="'nobody' is not a crawl in this store; use a crawl"):
            await crawler.submit(site, recrawl_of="nobody")
        waiting = await crawler.submit(site)
        with pytest.raises(InvalidInput, match="is queued; wait until it has ended"):
            await crawler.submit(site, recrawl_of=waiting.id)


async def test_the_body_of_an_unchanged_page_is_taken_over_and_outlives_the_earlier_crawl(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, depth=5, keep_bodies=True)
        second = await again(crawler, site, first, depth=5, keep_bodies=True)
        third = await again(crawler, site, second, depth=5, keep_bodies=True)
    assert third.counts.not_modified == 5
    await crawler.app.frontier_admin.erase(first.crawl.id)
    await crawler.app.frontier_admin.erase(second.crawl.id)
    for path, page in (await crawler.pages(third)).items():
        answer = await answer_of(crawler.app.bodies, page)
        assert answer is not None
        assert answer.status == 200
        assert f"title of /{path.removeprefix('/')}".encode() in answer.raw
        assert await kinds_kept(crawler, page) == ["response", "request", "revisit", "request"]


async def test_rules_are_carried_out_on_the_kept_bodies_of_unchanged_pages(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, depth=5, keep_bodies=True)
        second = await again(crawler, site, first, depth=5, keep_bodies=True)
    assert second.counts.not_modified == 5
    rereader = RuleReplay(crawler.app, read_rules({"fields": {"title": {"css": "h1", "required": True}}}))
    found = [reread async for reread in rereader.read(second.crawl)]
    assert rereader.tally == ReplayTally(read=5)
    assert all(one.data["title"].startswith("title of /") and one.error_code is None for one in found)


async def test_a_page_that_arrives_while_another_is_recalled_keeps_its_body(
    crawler: Crawler, monkeypatch: pytest.MonkeyPatch
) -> None:
    recalling, arrived = asyncio.Event(), asyncio.Event()
    recall, add = PreviousCrawl.recall, BodyRecorder.add

    async def recall_late(self: PreviousCrawl, tasks: list[FrontierTask]) -> Any:
        recalling.set()
        await arrived.wait()
        return await recall(self, tasks)

    def add_seen(self: BodyRecorder, page: Page, captured: tuple[CapturedExchange, ...], earlier: bytes) -> None:
        add(self, page, captured, earlier)
        if recalling.is_set():
            arrived.set()

    async with serving(LateConditionalSite(pages={"/a": [], "/b": []})) as site:
        first = await crawler.crawl(site, "/a", "/b", robots="ignore", keep_bodies=True)
        site.forget()
        crawl = await crawler.submit(site, "/a", "/b", robots="ignore", keep_bodies=True, recrawl_of=first.crawl.id)
        monkeypatch.setattr(PreviousCrawl, "recall", recall_late)
        monkeypatch.setattr(BodyRecorder, "add", add_seen)
        connections = iter([None])

        async def all_but_one_wait() -> None:
            if next(connections, recalling) is recalling:
                await recalling.wait()

        site.first = all_but_one_wait
        await crawler.walk(crawl)
    pages = await crawler.pages(await crawler.app.crawls.get(crawl.id))
    for path in ("a", "b"):
        assert await kinds_kept(crawler, pages[path]) == ["response", "request", "revisit", "request"]


async def kinds_kept(crawler: Crawler, page: Page) -> list[str]:
    place = place_of(page)
    assert place is not None
    kept = await crawler.app.bodies.read(place)
    return [kind_of(kept[piece.offset :][: piece.length]) for piece in pieces(kept)]


async def test_pages_are_asked_for_whole_if_the_earlier_crawl_kept_no_bodies(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site, depth=5)
        second = await again(crawler, site, first, depth=5, keep_bodies=True)
    assert second.counts.not_modified == 0
    for page in (await crawler.pages(second)).values():
        assert await kinds_kept(crawler, page) == ["response", "request"]


@pytest.mark.exhaustive
async def test_links_of_unchanged_pages_go_into_several_commits_if_they_are_many(
    crawler: Crawler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_builder, "MOST_URLS", 50)
    wide = {"/": [f"/{number}" for number in range(40)]}
    wide |= {path: [f"{path}/{number}" for number in range(20)] for path in wide["/"]}
    wide |= {path: [] for links in list(wide.values()) for path in links if path not in wide}
    async with serving(ConditionalSite(pages=wide)) as site:
        first = await crawler.crawl(site)
        site.forget()
        site.seconds = 0.05
        crawl = await crawler.submit(site, recrawl_of=first.crawl.id)
        weighing = Weighing(crawler.app.stores.frontiers.sql)
        [lease] = await crawler.app.queue.lease("test", ["crawl"], ["shared"], 1)
        app = altered(crawler.app, frontier=weighing)
        assert await make_walker(app, crawl, lease.fence, lambda: True).run() == "drained"
    second = await crawler.app.crawls.get(crawl.id)
    assert (second.counts.pages, second.counts.not_modified) == (841, 841)
    assert set(await crawler.pages(second)) == set(await crawler.pages(first))
    assert 50 < max(weighing.weights) < 50 + FEWEST * 20


async def test_a_confirmed_page_is_unchanged_in_charts_lists_and_reports_too(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site)
        second = await again(crawler, site, first)
        analysis = await analyze_locally(crawler.app, second.crawl.id, AnalysisOptions())
    formats = Formats(ENGLISH, 0)
    row = row_of(second, formats)
    assert (row.responses["unchanged"], row.responses["3xx"]) == (5, 0)
    parts = class_parts(row, formats)
    assert (parts["304"].title, parts["3xx"].value) == ("Unchanged: 5", 0)
    assert "304" not in class_parts(row_of(first, formats), formats)
    counted = await PageSummaries(crawler.app.database, crawler.app.clock).of(
        second.crawl.number, second.counts.responses, 60
    )
    bars = [part for column in depth_columns(counted, formats) for part in column.parts if part.value]
    assert {part.kind for part in bars} == {KINDS["unchanged"]}
    levels = (analysis.summary or {})["status_by_depth"]
    assert (sum(one["unchanged"] for one in levels), sum(one["3xx"] for one in levels)) == (5, 0)
    chart = status_by_depth(analysis.summary or {})
    assert set(chart.kinds) == {"unchanged"}


async def test_pages_confirmed_by_two_recrawls_are_unchanged_in_every_diff(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        first = await crawler.crawl(site)
        second = await again(crawler, site, first)
        third = await again(crawler, site, second)
    pages = await crawler.pages(third)
    assert {page.status for page in pages.values()} == {304}
    assert rows_of(third, summary(third), ())[3] == ("Responses", "unchanged 5")
    for before, after in ((first, third), (second, third), (third, first)):
        diff = await crawler.app.audit.diffs.open(before.crawl.id, after.crawl.id)
        assert [row async for rows in diff.rows() for row in rows] == []
        assert (diff.summary.changed, diff.summary.unchanged) == (0, 5)


async def test_links_of_unchanged_pages_are_kept_and_missing_ones_are_fetched(crawler: Crawler) -> None:
    async with serving(conditional_site()) as site:
        bare = await crawler.crawl(site, depth=5)
        first = await again(crawler, site, bare, depth=5, links=True)
        second = await again(crawler, site, first, depth=5, links=True)
        third = await again(crawler, site, second, depth=5)
    assert (bare.counts.not_modified, first.counts.not_modified, second.counts.not_modified) == (0, 0, 5)
    assert third.counts.not_modified == 5
    (before, _), (after, _) = [
        await crawler.app.database.read(lambda tx: PageStore().outlinks_after(tx, one.crawl.number, 0, 10))  # noqa: B023
        for one in (first, second)
    ]
    assert sorted(links for _, links in before) == sorted(links for _, links in after)
    assert len(after) == 5

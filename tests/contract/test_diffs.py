"""Contract of diffs: every difference between two crawls is found once, by page and field, and by finding."""

import csv
import io
from collections.abc import Mapping
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from shoal.audit import diff as diffing
from shoal.audit.analysis import AnalysisOptions
from shoal.audit.diff import CrawlDiff, CrawlDiffs, first_rows
from shoal.audit.diff_formats import COLUMNS, Change, DiffRow, pieces
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCount, Severity
from shoal.base.errors import InvalidInput, NotFound, StateConflict
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import Settled
from shoal.crawl.states import CrawlState
from tests.contract.conftest import Bench, Measured, page_of

Facts = Mapping[str, Any]
SITE = "http://example.org/"


async def crawled(bench: Bench, pages: Mapping[str, Facts]) -> Crawl:
    """A completed crawl of these pages; the first one is the seed."""
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [seed] = await walker.take()
    paths = list(pages)
    found = [walker.link(path) for path in paths[1:]]
    facts = dict(zip([SITE, *(one.url for one in found)], pages.values(), strict=True))
    await walker.turn(
        Settled(seed, Fate.FETCHED, page_of(seed, **{"status": 200, **facts[seed.url]})), found=found, want=len(found)
    )
    if tasks := list(walker.held):
        await walker.turn(
            *[Settled(task, Fate.FETCHED, page_of(task, **{"status": 200, **facts[task.url]})) for task in tasks]
        )
    assert await bench.state(crawl) is CrawlState.COMPLETED
    return crawl


def diffs_of(bench: Bench) -> CrawlDiffs:
    return bench.app.audit.diffs


async def all_rows(diff: CrawlDiff) -> list[DiffRow]:
    return [row async for rows in diff.rows() for row in rows]


BEFORE: Mapping[str, Facts] = {
    "/": {"title": "Home", "word_count": 10, "duration_ms": 1.0},
    "/same": {"title": "=1+1", "content_hash": "a"},
    "/gone": {},
    "/title": {"title": "Old", "h1": "x", "content_hash": "a"},
    "/broken": {},
}
AFTER: Mapping[str, Facts] = {
    "/": {"title": "Home", "word_count": 10, "duration_ms": 99.0, "bytes": 5},
    "/new": {},
    "/title": {"title": "=New", "h1": None, "content_hash": "a"},
    "/broken": {"status": 500},
    "/same": {"title": "=1+1", "content_hash": "a", "depth": 3},  # found on another path
}


async def test_pages_are_added_removed_and_changed_by_field(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffing, "BATCH", 2)
    before, after = await crawled(bench, BEFORE), await crawled(bench, AFTER)
    diff = await diffs_of(bench).open(before.id, after.id)
    counts = diff.summary
    assert (counts.added, counts.removed, counts.changed, counts.unchanged) == (1, 1, 2, 2)
    rows = await all_rows(diff)
    changed = sorted((row.url, row.field, row.before, row.after) for row in rows if row.change is Change.CHANGED)
    assert changed == [
        (f"{SITE}broken", "status", 200, 500),
        (f"{SITE}title", "h1", "x", None),
        (f"{SITE}title", "title", "Old", "=New"),
    ]
    assert [row.url for row in rows if row.change is Change.ADDED] == [f"{SITE}new"]
    assert [row.url for row in rows if row.change is Change.REMOVED] == [f"{SITE}gone"]
    assert counts.fields == {"status": 1, "title": 1, "h1": 1}
    assert counts.findings is None
    assert len(await first_rows(await diffs_of(bench).open(before.id, after.id), 1)) == 3


async def test_the_same_pages_have_no_differences(bench: Bench) -> None:
    before, after = await crawled(bench, BEFORE), await crawled(bench, dict(BEFORE))
    diff = await diffs_of(bench).open(before.id, after.id)
    assert (await all_rows(diff), diff.summary.unchanged) == ([], 5)


async def test_a_304_equals_the_page_it_confirms_and_data_is_compared_by_field(bench: Bench) -> None:
    shop = {"title": "Shop", "content_hash": "a"}
    first = await crawled(bench, {"/": shop | {"data": {"price": 1.5, "tags": ["x"]}}, "/b": {"content_hash": "b"}})
    second = await crawled(
        bench,
        {
            "/": shop | {"status": 304, "data": {"tags": ["x"], "price": 1.5}},
            "/b": {"status": 304, "content_hash": "b"},
        },
    )
    third = await crawled(
        bench,
        {
            "/": shop | {"status": 304, "data": {"price": 2.5, "tags": ["x"]}},
            "/b": {"status": 304, "content_hash": "c"},
        },
    )
    for before, after in ((first, second), (second, first)):
        diff = await diffs_of(bench).open(before.id, after.id)
        assert (await all_rows(diff), diff.summary.unchanged) == ([], 2)
    for before in (first, second):
        diff = await diffs_of(bench).open(before.id, third.id)
        changed = sorted((row.url, row.field, row.before, row.after) for row in await all_rows(diff))
        assert changed == [(SITE, "data.price", "1.5", "2.5"), (f"{SITE}b", "content_hash", "b", "c")]
        assert diff.summary.fields == {"content_hash": 1, "data.price": 1}


async def test_extracted_data_is_read_in_parts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.base.database.MOST_DECODED", 100_000)
    monkeypatch.setattr(diffing, "BATCH", 20)
    crawls = []
    for price in (129, 119):
        pages: dict[str, Facts] = {
            f"/{number}": {"data": {"price": price if number % 3 else 0, "text": "x" * 10_000}} for number in range(30)
        }
        crawls.append(await crawled(bench, pages | {f"/plain{number}": {"title": str(price)} for number in range(5)}))
    measured = Measured(bench.database)
    diff = await diffs_of(bench).open(*(crawl.id for crawl in crawls))
    rows = await all_rows(diff)
    assert (diff.summary.changed, diff.summary.unchanged) == (25, 10)
    assert diff.summary.fields == {"title": 5, "data.price": 20}
    assert {(row.before, row.after) for row in rows if row.field == "data.price"} == {(129, 119)}
    assert max(measured.sizes) <= 100_000
    assert sum(measured.sizes) > 1_000_000


async def test_few_rows_are_listed_if_their_values_are_large(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffing, "MOST_READ", 50_000)
    crawls = [
        await crawled(bench, {f"/{number}": {"data": {"text": text * 10_000}} for number in range(10)}) for text in "ab"
    ]
    diff = await diffs_of(bench).open(*(crawl.id for crawl in crawls))
    assert len(await first_rows(diff, 100)) == 3
    assert diff.summary.changed == 10


def finding(code: str, key: int) -> Finding:
    return Finding("links", code, Severity.ERROR, f"{SITE}{key}", key)


async def analyzed(
    bench: Bench, crawl: Crawl, found: Mapping[str, list[int]], *, more: int = 0, skipped: str | None = None
) -> None:
    """Store a successful analysis with findings of these keys; `more` were found than stored."""
    analysis = await bench.analyses.submit(crawl.id, AnalysisOptions())
    lease = await bench.lease(kind="analysis")
    counts = [
        FindingCount("links", code, Severity.ERROR, "Title.", "Fix.", len(keys) + more, len(keys))
        for code, keys in found.items()
    ]
    findings = [finding(code, key) for code, keys in found.items() for key in keys]

    async def keep(tx: Any) -> None:
        await bench.analyses.started(tx, analysis.id)
        await bench.analyses.store.keep(
            tx, analysis, AnalyzerOutcome("links", None, 1, 1.0, skipped=skipped), counts, findings
        )
        await bench.analyses.store.conclude(tx, analysis, {}, {}, None)

    await bench.database.run(keep)
    await bench.queue.finish(lease)


async def test_findings_of_an_analyzer_that_was_skipped_are_not_compared(bench: Bench) -> None:
    before, after = await crawled(bench, {"/": {}}), await crawled(bench, {"/": {}})
    await analyzed(bench, before, {"broken_link": [1, 2]})
    await analyzed(bench, after, {}, skipped="The crawl stored no page details.")
    diff = await diffs_of(bench).open(before.id, after.id)
    assert await all_rows(diff) == []
    assert diff.summary.findings is not None
    assert [(one.code, one.fixed, one.complete) for one in diff.summary.findings.codes] == [("broken_link", 0, False)]


async def test_findings_are_new_fixed_or_still_open(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffing, "BATCH", 2)
    before, after = await crawled(bench, {"/": {}}), await crawled(bench, {"/": {}})
    await analyzed(bench, before, {"broken_link": [1, 2, 3, 4], "soft_404": [7]})
    await analyzed(bench, after, {"broken_link": [2, 4, 5], "title_missing": [-9]})
    diff = await diffs_of(bench).open(before.id, after.id)
    rows = await all_rows(diff)
    found = sorted((row.change, row.code, row.url) for row in rows)
    assert found == [
        (Change.FIXED, "broken_link", f"{SITE}1"),
        (Change.FIXED, "broken_link", f"{SITE}3"),
        (Change.FIXED, "soft_404", f"{SITE}7"),
        (Change.NEW, "broken_link", f"{SITE}5"),
        (Change.NEW, "title_missing", f"{SITE}-9"),
        (Change.OPEN, "broken_link", f"{SITE}2"),
        (Change.OPEN, "broken_link", f"{SITE}4"),
    ]
    assert diff.summary.findings is not None
    assert [diff.summary.findings.total(name) for name in ("new", "fixed", "open")] == [2, 3, 2]
    assert all(code.complete for code in diff.summary.findings.codes)


async def test_findings_that_were_not_stored_are_not_called_fixed(bench: Bench) -> None:
    before, after = await crawled(bench, {"/": {}}), await crawled(bench, {"/": {}})
    await analyzed(bench, before, {"broken_link": [1, 2, 3]})
    await analyzed(bench, after, {"broken_link": [0, 1]}, more=5)  # those with the smallest keys are stored
    diff = await diffs_of(bench).open(before.id, after.id)
    rows = await all_rows(diff)
    assert [(row.change, row.url) for row in rows] == [(Change.NEW, f"{SITE}0"), (Change.OPEN, f"{SITE}1")]
    assert diff.summary.findings is not None
    assert [code.complete for code in diff.summary.findings.codes] == [False]


async def test_every_format_has_every_row(bench: Bench) -> None:
    before, after = await crawled(bench, BEFORE), await crawled(bench, AFTER)
    rows = await all_rows(await diffs_of(bench).open(before.id, after.id))
    written = {}
    for name in ("jsonl", "csv", "parquet"):
        diff = await diffs_of(bench).open(before.id, after.id)
        written[name] = b"".join([piece async for piece in pieces(diff, name)])  # type: ignore[arg-type]
    lines = [orjson.loads(line) for line in written["jsonl"].splitlines()]
    assert [line["url"] for line in lines] == [row.url for row in rows]
    table = list(csv.DictReader(io.StringIO(written["csv"].decode())))
    assert [tuple(line) for line in table] == [COLUMNS] * len(rows)
    assert "'=New" in [line["after"] for line in table]  # no spreadsheet reads it as a formula
    stored = pq.read_table(io.BytesIO(written["parquet"])).to_pylist()
    assert [(row["change"], row["url"], row["after"]) for row in stored] == [
        (row.change, row.url, None if row.after is None else str(row.after)) for row in rows
    ]


async def test_crawls_that_cannot_be_compared_are_refused(bench: Bench) -> None:
    ended, running = await crawled(bench, {"/": {}}), await bench.submit()
    diffs = diffs_of(bench)
    with pytest.raises(NotFound):
        await diffs.open(ended.id, "nobody")
    with pytest.raises(StateConflict, match="wait until it has ended"):
        await diffs.open(running.id, ended.id)
    with pytest.raises(InvalidInput, match="the same crawl"):
        await diffs.open(ended.id, ended.id)

"""The diff of two crawls of equal size, with all its rows; part of the benchmark `audit`.

`python -m bench.audit_diff STORE FILE` is the measured process: it compares the crawls of a store that `add_table` has
filled.
"""

import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.process import measure, own_peak_memory
from bench.report import Report
from shoal.app import App, opened
from shoal.audit.analysis import AnalysisOptions
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCount, Severity
from shoal.audit.states import run, succeed
from shoal.base.database import Tx
from shoal.base.ids import CrawlId
from shoal.base.settings_loader import load
from shoal.base.signals import Signals
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.frontier.values import key_of

CRAWLS = ("earlier", "later")
CODES = 10
STORED = 10_000  # findings of one code
COLUMNS = (
    "crawl, key, chk, url, final_url, status, depth, content_type, bytes, title, description, canonical, lang, h1, "
    "word_count, content_hash, links_internal, links_external, fetched_at, duration_ms, attempt, fingerprint"
)
ABOUT = (
    "In the later crawl, one page in twenty is new, one in twenty is missing, and one in ten has a different title. "
    f"Each of {CODES} finding codes has {STORED} stored findings, half of which are new. All rows of the diff are read."
)


def add_table(report: Report, sizes: Sequence[int]) -> None:
    """Measure the diff at these sizes and add a table."""
    columns = ("pages", "rows", "seconds", "µs per page", "CPU s", "peak memory MB")
    table = report.table("The diff of two crawls", *columns)
    table.notes.append(ABOUT)
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="bench-diff-") as folder:
            store, result = f"sqlite:///{folder}/shoal.db", Path(folder) / "result.json"
            asyncio.run(fill(store, size))
            cost = measure([sys.executable, "-m", "bench.audit_diff", store, str(result)])
            if cost.code:
                raise SystemExit(f"the diff of {size} pages ended with {cost.code}")
            told = json.loads(result.read_text())
        expected = {"added": size // 20, "removed": size // 20, "changed": size * 19 // 200}
        assert {name: told["rows"][name] for name in expected} == expected, told
        seconds, rows = told["seconds"], sum(told["rows"].values())
        table.rows.append(
            [f"{size:,} + {size:,}", rows, seconds, seconds / size / 2 * 1e6, cost.cpu, told["memory"] / 1e6]
        )


async def fill(store: str, size: int) -> None:
    """Fill a store with two crawls that have ended, and their analyses."""
    async with opened(load({"DATABASE_URL": store}).settings, Signals()) as app:
        seed = CrawlConfig(seeds=["https://bench.example/"])
        crawls = [await app.crawls.submit(seed, crawl_id=CrawlId(name)) for name in CRAWLS]
    database = sqlite3.connect(store.removeprefix("sqlite:///"))
    database.execute("PRAGMA synchronous = OFF")
    database.execute("UPDATE job SET state = 'done', finished_at = 1 WHERE kind = 'crawl'")
    database.execute("UPDATE crawl SET state = 'completed', started_at = 1, finished_at = 2")
    database.execute("UPDATE crawl_counter SET pages = ?", [size])
    marks = ", ".join("?" * 22)
    for crawl, first in zip(crawls, (0, size // 20), strict=True):
        rows = page_rows(crawl, range(first, first + size))
        database.executemany(f"INSERT INTO page ({COLUMNS}) VALUES ({marks})", rows)
    database.commit()
    database.close()
    async with opened(load({"DATABASE_URL": store}).settings, Signals()) as app:
        for crawl, first in zip(crawls, (0, STORED // 2), strict=True):
            await store_findings(app, crawl, first)


def page_rows(crawl: Crawl, places: range) -> Iterator[tuple[Any, ...]]:
    """Yield pages. In the later crawl, one page in ten has a different title."""
    for place in places:
        url = f"https://bench.example/section-{place % 100}/page-{place}"
        key, chk = key_of(Url(url), crawl.key_seed)
        changed = crawl.id == CRAWLS[1] and place % 10 == 7
        title = f"{'New title' if changed else 'Title'} of page {place} of the synthetic site"
        yield (
            crawl.number, key, chk, url, url, 200, 3, "text/html; charset=utf-8", 20_000, title,
            f"What page {place} is about.", url, "en", f"Heading {place}", 300 + place % 500, f"{place:032x}", 60, 0,
            1, 20.0 + place % 300, 1, place,
        )  # fmt: skip


async def store_findings(app: App, crawl: Crawl, first: int) -> None:
    store = app.audit.analyses.store
    analysis = await app.audit.analyses.submit(crawl.id, AnalysisOptions())

    async def write(tx: Tx) -> None:
        await store.move(tx, analysis.id, run())
        for number in range(CODES):
            name = f"bench.code_{number}"
            findings = [
                Finding(name, name, Severity.WARNING, f"https://bench.example/page-{place}", place, {"place": place})
                for place in range(first, first + STORED)
            ]
            count = FindingCount(name, name, Severity.WARNING, "Wrong.", "Correct it.", STORED, STORED)
            await store.keep(tx, analysis, AnalyzerOutcome(name, None, STORED, 1.0), [count], findings)
        await store.move(tx, analysis.id, succeed())

    await app.database.run(write)


async def compare(store: str) -> dict[str, Any]:
    """Compare the crawls of a store and read all rows, as the command and the API do."""
    async with opened(load({"DATABASE_URL": store}).settings, Signals()) as app:
        began, counts = time.perf_counter(), Counter[str]()
        diff = await app.audit.diffs.open(*CRAWLS)
        async for rows in diff.rows():
            counts.update(row.change for row in rows)
        return {"seconds": time.perf_counter() - began, "rows": counts, "memory": own_peak_memory()}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(asyncio.run(compare(sys.argv[1]))))

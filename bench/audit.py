"""Analyses: all built-in analyzers over synthetic crawls of 100 k and 1 M pages with 60 links each.

`python -m bench.audit STORE` is the measured process: it analyzes the crawl of a store that `run` has filled.
"""

import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.audit_diff import add_table
from bench.process import measure, own_peak_memory
from bench.report import Report
from shoal.app import App, opened
from shoal.audit.analyses import KIND
from shoal.audit.analyzers.registry import built_in
from shoal.audit.loader import SiteLoader
from shoal.audit.run import AnalysisAttempt, AnalysisContext
from shoal.base.settings_loader import load
from shoal.base.signals import Signals
from shoal.base.url import Url
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.frontier.values import key_of
from shoal.extract.details import packed, read_details
from shoal.extract.tree import Source

SIZES = [100_000, 1_000_000]
SHORT_SIZES = [100_000]
LINKS = 60
HUBS = 20  # pages that every page links to
DETAILS = 500  # distinct details; pages share them
ABOUT = (
    "All built-in analyzers analyze one crawl in a SQLite store. The time includes reading the crawl, running the "
    "analyzers, storing the findings and computing the verdict. Each page has 60 links, 10 images and 12 headings; one "
    "page in a hundred is broken, and one in twenty shares its title with a different page."
)


def run(options: Namespace) -> Report:
    report = Report("audit", ABOUT)
    table = report.table(
        "An analysis", "pages", "links", "seconds", "µs per page", "CPU s", "peak memory GB", "findings"
    )
    slowest: list[tuple[float, str]] = []
    sizes = options.sizes or (SHORT_SIZES if options.short else SIZES)
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="bench-audit-") as folder:
            store = f"sqlite:///{folder}/shoal.db"
            asyncio.run(fill(store, size))
            result = Path(folder) / "result.json"
            cost = measure([sys.executable, "-m", "bench.audit", store, str(result)])
            if cost.code:
                raise SystemExit(f"the analysis of {size} pages ended with {cost.code}")
            told = json.loads(result.read_text())
        seconds = told["seconds"]
        table.rows.append(
            [size, size * LINKS, seconds, seconds / size * 1e6, cost.cpu, told["memory"] / 1e9, told["findings"]]
        )
        slowest = sorted(((ms / 1e3, name) for name, ms in told["analyzers"].items()), reverse=True)[:6]
    parts = report.table("The slowest analyzers of the largest crawl", "analyzer", "seconds")
    parts.rows += [[name, seconds] for seconds, name in slowest]
    add_table(report, sizes)
    return report


async def fill(store: str, size: int) -> None:
    """Fill a store with a crawl that is ready to be analyzed."""
    async with opened(load({"DATABASE_URL": store}).settings, Signals()) as app:
        config = CrawlConfig(seeds=["https://bench.example/"], analyze=True)
        crawl = await app.crawls.submit(config)
        number, seed = crawl.number, crawl.key_seed
    database = sqlite3.connect(store.removeprefix("sqlite:///"))
    database.execute("PRAGMA synchronous = OFF")
    database.execute("UPDATE job SET state = 'done', finished_at = 1 WHERE kind = 'crawl'")
    database.execute("UPDATE crawl SET state = 'completed', started_at = 1, finished_at = 2")
    database.execute("UPDATE crawl_counter SET pages = ?", [size])
    urls = [f"https://bench.example/section-{place % 100}/page-{place}" for place in range(size)]
    pairs = [key_of(Url(url), seed) for url in urls]
    keys = np.array([key for key, _ in pairs], np.int64)
    rng = np.random.default_rng(7)
    columns = ("crawl, key, chk, url, final_url, status, depth, content_type, bytes, title, description, canonical, "
               "lang, h1, word_count, content_hash, links_internal, links_external, fetched_at, duration_ms, attempt, "
               "fingerprint, text_hash, links")  # fmt: skip
    marks = ", ".join("?" * 24)
    rows = page_rows(number, urls, pairs, keys, rng)
    database.executemany(f"INSERT INTO page ({columns}) VALUES ({marks})", rows)
    details = [detail(place) for place in range(DETAILS)]
    database.executemany(
        "INSERT INTO page_detail (crawl, key, chk, detail) VALUES (?, ?, ?, ?)",
        ((number, key, chk, details[place % DETAILS]) for place, (key, chk) in enumerate(pairs)),
    )
    database.execute(
        "INSERT INTO sitemap (crawl, key, chk, url, fetched_at, listed, entries) VALUES (?, 1, 1, ?, 1, ?, ?)",
        [number, "https://bench.example/sitemap.xml", size, keys.tobytes()],
    )
    database.commit()
    database.close()


def page_rows(
    number: int, urls: Sequence[str], pairs: Sequence[tuple[int, int]], keys: Any, rng: Any
) -> Iterator[tuple[Any, ...]]:
    size, flags = len(urls), b"\x01" * LINKS
    for place, (url, (key, chk)) in enumerate(zip(urls, pairs, strict=True)):
        targets = np.concatenate([keys[:HUBS], keys[rng.integers(0, size, LINKS - HUBS)]])
        broken = place % 100 == 99
        yield (
            number, key, chk, url, url, 404 if broken else 200, min(place, 3), "text/html; charset=utf-8", 20_000,
            f"Title number {place % (size * 19 // 20)} of the synthetic site", f"What page {place} is about.", url,
            "en", f"Heading {place}", 300 + place % 500, f"{place:032x}", LINKS, 0, 1, 20.0 + place % 300, 1,
            int(rng.integers(-(2**63), 2**63 - 1)), place + 1, targets.tobytes() + flags,
        )  # fmt: skip


def detail(seed: int) -> bytes:
    """Return the packed details of a page of ordinary size."""
    links = "".join(
        f'<a href="/section-{(seed + n) % 100}/page-{seed * 61 + n}">Link number {n} of it</a>' for n in range(LINKS)
    )
    images = "".join(f'<img src="/images/{seed}-{n}.jpg" alt="Image {n}">' for n in range(10))
    heads = "".join(f"<h{2 + n % 2}>Section {n} of page {seed}</h{2 + n % 2}>" for n in range(11))
    html = (
        f"<!doctype html><html lang=en><head><title>Title {seed}</title><link rel=canonical href=/p/{seed}>"
        '<link rel=stylesheet href="/s.css"><script src="/a.js"></script></head>'
        f"<body><h1>Page {seed}</h1>{heads}{links}{images}"
        '<script type="application/ld+json">{"@type": "Article", "headline": "A headline"}</script>'
    )
    headers = [("Content-Type", "text/html"), ("Server", "nginx"), ("X-Content-Type-Options", "nosniff"),
               ("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'"),
               ("Strict-Transport-Security", "max-age=1"), ("Referrer-Policy", "no-referrer")]  # fmt: skip
    return packed(read_details(Source("https://bench.example/", html.encode(), "text/html", headers=headers)))


async def analyze(store: str) -> dict[str, Any]:
    """Analyze the crawl of a store, as a worker's child does, but without requests."""
    async with opened(load({"DATABASE_URL": store}).settings, Signals()) as app:
        [crawl] = await app.crawls.newest()
        from shoal.audit.analysis import AnalysisOptions

        analysis = await app.audit.analyses.submit(crawl.crawl.id, AnalysisOptions())
        [lease] = await app.queue.lease("bench", [KIND], ["shared"], 1)
        began = time.perf_counter()
        await AnalysisAttempt(context_of(app), built_in(), lease, lambda: True).run()
        seconds = time.perf_counter() - began
        outcomes = await app.audit.analyses.outcomes(analysis.id)
        done = await app.audit.analyses.get(analysis.id)
        failed = [one for one in outcomes if one.error]
        assert not failed, failed
        return {
            "seconds": seconds,
            "findings": done.findings,
            "memory": own_peak_memory(),
            "analyzers": {one.analyzer: one.duration_ms for one in outcomes},
        }


def context_of(app: App) -> AnalysisContext:
    loader = SiteLoader(app.database, app.settings.crawl.max_url_length)
    return AnalysisContext(app.database, app.audit.analyses, app.queue, loader, app.clock, app.signals)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(asyncio.run(analyze(sys.argv[1]))))

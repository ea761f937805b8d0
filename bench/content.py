"""Main text and Markdown: how much of the text of articles is found, and how long the extraction takes.

`BENCH_ARTICLES` is a checkout of scrapinghub/article-extraction-benchmark, whose own `evaluate.py` gives the scores.
"""

import gzip
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median

from bench.report import Report
from shoal.extract.main_text import main_text
from shoal.extract.tree import Source

ABOUT = (
    "Text is extracted from the 181 articles in Scrapinghub's article extraction benchmark, and scored by its "
    "`evaluate.py`. F1, precision and recall compare sequences of four words. Times are CPU time per page, including "
    "parsing. Shoal's rows include both text and Markdown; the rows of other libraries include only one of these "
    "formats."
)
URL = "http://example.org/article"
BOOTSTRAPS = 100


def run(options: Namespace) -> Report:
    """Measure extraction."""
    home = os.environ.get("BENCH_ARTICLES", "")
    if not (Path(home) / "evaluate.py").is_file():
        sys.exit("set BENCH_ARTICLES to a checkout of scrapinghub/article-extraction-benchmark")
    report = Report(
        "content", ABOUT, versions=[f"trafilatura {version('trafilatura')}", f"turbohtml {version('turbohtml')}"]
    )
    pages = {
        file.name.partition(".")[0]: gzip.decompress(file.read_bytes()).decode()
        for file in sorted(Path(home, "html").glob("*.html.gz"))
    }
    sys.path.insert(0, home)
    score = import_module("evaluate").evaluate
    truth = json.loads(Path(home, "ground-truth.json").read_text())
    trafilatura = import_module("trafilatura")
    table = report.table(
        "Articles", "extractor", "F1", "precision", "recall", "exact", "ms per page", "median ms", "longest ms"
    )
    for name, extract, is_text in (
        ("Shoal with the extra `content`", lambda html: main_text(_source(html)).text, True),
        ("Shoal without the extra", lambda html: main_text(_source(html), fast=True).text, True),
        ("trafilatura, text", lambda html: trafilatura.extract(html, include_comments=False), True),
        (
            "trafilatura, Markdown with links",
            lambda html: trafilatura.extract(
                html, include_comments=False, output_format="markdown", include_links=True, include_formatting=True
            ),
            False,
        ),
        ("all visible text", lambda html: _source(html).document.to_text(), True),
    ):
        texts, times = _extracted(pages, extract)
        found = score(truth, {key: {"articleBody": text} for key, text in texts.items()}, BOOTSTRAPS) if is_text else {}
        scores = [round(found[key], 3) if found else None for key in ("f1", "precision", "recall", "accuracy")]
        table.rows.append([name, *scores, mean(times), median(times), max(times)])
    return report


def _source(html: str) -> Source:
    return Source(URL, html.encode(), "text/html; charset=utf-8")


def _extracted(pages: dict[str, str], extract: Callable[[str], str | None]) -> tuple[dict[str, str], list[float]]:
    """Return the texts, and the milliseconds of CPU time that each page took."""
    texts, times = {}, []
    extract(next(iter(pages.values())))  # imports modules, and compiles everything that is compiled only once
    for key, html in pages.items():
        began = time.process_time()
        texts[key] = extract(html) or ""
        times.append(1000 * (time.process_time() - began))
    return texts, times

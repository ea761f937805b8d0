"""A whole crawl: CPU per page compared with other crawlers on one core, memory as a site grows, and two cores
compared with one.

A separate harness (`BENCH_PEERS`) runs the other crawlers and Shoal in turn on one site. Without the harness, only
Shoal is measured. Pages are counted in the log of the web server; the crawler's own count is not used.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import site, webserver
from bench.process import Cost, cores, measure
from bench.report import Cell, Report, ratio
from bench.webserver import Served

ROOT = Path(__file__).resolve().parent.parent
HOME = Path(os.environ.get("BENCH_HOME", Path(tempfile.gettempdir()) / "shoal-bench"))
PEERS = Path(os.environ.get("BENCH_PEERS", ROOT.parent / "shared" / "bench"))
PORT = int(os.environ.get("BENCH_PORT", "18090"))
PAGES = 5_000
SHORT_PAGES = 1_000
MANY_PAGES = 100_000
LINKS = "links.jsonl"
# The other crawlers, and the packages to install for each.
OTHERS = {
    "scrapy-uvloop": HOME / "venv" / "scrapy",
    "crawlee-py-parsel": HOME / "venv" / "crawlee",
    "crawlee-py-http": HOME / "venv" / "crawlee",
    "ruia": HOME / "venv" / "ruia",
    "wget2": Path(shutil.which("wget2") or "wget2"),
}
ABOUT = (
    "A site on this machine is crawled as fast as possible, with 32 fetches in flight. Each page has 26 KB and 60 "
    "links. Frontier and pages are stored in a SQLite file, and each commit waits for the disk; robots.txt is obeyed; "
    "records are written as JSON Lines. The crawler has one core, and the web server has a different one."
)


@dataclass(frozen=True)
class Run:
    """One crawl: its cost and its results."""

    cost: Cost
    pages: int
    forbidden: int
    records: int
    stored: int = 0  # size of the store in bytes
    links: int = 0  # number of links in the links file

    @property
    def cpu_ms(self) -> float:
        return self.cost.cpu / max(1, self.pages) * 1e3

    @property
    def speed(self) -> float:
        return self.pages / self.cost.wall

    @property
    def megabytes(self) -> float:
        return self.cost.memory / 1e6


def run(options: Namespace) -> Report:
    """Measure whole crawls."""
    pages = options.pages or (SHORT_PAGES if options.short else PAGES)
    many = options.many_pages or (0 if options.short else MANY_PAGES)
    reps = options.reps or (1 if options.short else 3)
    report = Report("crawl", f"{ABOUT} Medians of {reps} runs.", versions=[webserver.name()])
    if not options.alone:
        beside_others(report, pages, options.concurrency, reps)
    as_sites_grow(report, [pages, many] if many else [pages], options.concurrency, reps)
    with_links(report, pages, options.concurrency, reps)
    on_two_cores(report, pages, options.concurrency, reps)
    return report


def beside_others(report: Report, pages: int, concurrency: int, reps: int) -> None:
    """Measure Shoal and the other crawlers in one run of their common harness."""
    compare = PEERS / "compare.py"
    if shutil.which("nginx") is None or shutil.which("taskset") is None:
        print("The other crawlers are not measured: their harness needs nginx and taskset.\n")
        return
    if not compare.exists():
        print(
            "The other crawlers are not measured: their harness (setup.sh, compare.py) is not in ../shared/bench.\n"
            "Put it there, or name its folder in BENCH_PEERS, and run its setup.sh once.\n"
        )
        return
    there = [name for name, needed in OTHERS.items() if needed.exists()]
    missing = [name for name in OTHERS if name not in there]
    found = HOME / "run" / "compare.json"
    found.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(compare), "-n", str(pages), "-c", str(concurrency), "--reps", str(reps)]
    command += ["--cpus", str(cores()[0]), "--only", ",".join(["shoal", *there]), "--json", str(found)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "BENCH_HOME": str(HOME)}, check=True)
    for left in (HOME / "run").glob("shoal-*.db*"):
        left.unlink()
    tell_comparison(report, json.loads(found.read_text()), missing, pages)


def tell_comparison(report: Report, results: list[dict[str, Any]], missing: list[str], pages: int) -> None:
    table = report.table(
        f"{pages:,} pages, compared with other crawlers, one core",
        "crawler", "CPU ms/page", "relative to Shoal", "pages/s", "peak MB", "pages", "records", "forbidden pages",
    )  # fmt: skip
    mine = next(result["cpu_ms"] for result in results if result["name"] == "shoal")
    for result in results:
        cells: list[Cell] = [result["name"], result["cpu_ms"], ratio(result["cpu_ms"], mine), result["pps"]]
        table.rows.append([*cells, result["rss_mb"], result["pages"], result["records"], result["private"]])
    ratios = [f"{result['name']} {result['cpu_ms'] / mine:.1f}" for result in results if result["name"] != "shoal"]
    table.notes.append(f"CPU per page as a multiple of Shoal's: {', '.join(ratios)}.")
    if missing:
        table.notes.append(f"Not installed here: {', '.join(missing)}.")


def as_sites_grow(report: Report, sizes: Sequence[int], concurrency: int, reps: int) -> None:
    table = report.table(
        "Shoal alone, one core, as the site grows",
        "pages", "CPU ms/page", "pages/s", "peak MB", "pages requested", "records", "forbidden pages",
    )  # fmt: skip
    peaks = []
    for size in sizes:
        with ExitStack() as stack:
            served = [serve_site(stack, size, 0, cores()[1:])]
            runs = [crawl(served, concurrency, cores()[:1]) for _ in range(reps if size == sizes[0] else 1)]
        best = middle(runs, lambda run: run.cpu_ms)
        peaks.append(best.megabytes)
        cells: list[Cell] = [size, best.cpu_ms, best.speed, best.megabytes]
        table.rows.append([*cells, best.pages, best.records, best.forbidden])
    if len(sizes) > 1:
        table.notes.append(f"Memory at {sizes[-1]:,} pages is {peaks[-1] / peaks[0]:.2f} times that at {sizes[0]:,}.")


def with_links(report: Report, pages: int, concurrency: int, reps: int) -> None:
    table = report.table(
        f"Links with URL and text, {pages:,} pages, one core",
        "links", "CPU ms/page", "store, bytes/page", "bytes/link", "links stored",
    )  # fmt: skip
    with ExitStack() as stack:
        served = [serve_site(stack, pages, 0, cores()[1:])]
        plain, linked = (
            middle([crawl(served, concurrency, cores()[:1], *more) for _ in range(reps)], lambda run: run.cpu_ms)
            for more in ((), ("--links", LINKS))
        )
    table.rows.append(["not stored", plain.cpu_ms, plain.stored / max(1, plain.records), None, 0])
    each = (linked.stored - plain.stored) / max(1, linked.links)
    table.rows.append(["`--links`", linked.cpu_ms, linked.stored / max(1, linked.records), each, linked.links])
    table.notes.append("In the second row, the crawl also writes a file with all links.")


def on_two_cores(report: Report, pages: int, concurrency: int, reps: int) -> None:
    table = report.table(
        f"Two hosts of {pages:,} pages each, with one and two processes",
        "processes", "cores", "pages/s", "relative to one process", "CPU ms/page", "largest process, MB", "records",
    )  # fmt: skip
    if len(cores()) < 2 or not knows_processes():
        lacks = "this machine has one core" if len(cores()) < 2 else "this Shoal has no `--processes`"
        table.notes.append(f"Not measured: {lacks}.")
        return
    with ExitStack() as stack:
        # The servers do not use the crawler's cores if there are enough cores.
        spare = cores()[2:] or cores()[1:]
        served = [serve_site(stack, pages, place, spare) for place in range(2)]
        by = {
            count: middle(
                [crawl(served, concurrency, cores()[:count], "--processes", str(count)) for _ in range(reps)],
                lambda run: run.speed,
            )
            for count in (1, 2)
        }
    for count, best in by.items():
        cells: list[Cell] = [count, count, best.speed, ratio(best.speed, by[1].speed), best.cpu_ms, best.megabytes]
        table.rows.append([*cells, best.records])
    if len(cores()) < 3:
        table.notes.append(
            "This machine has only two cores, so in the second row the web servers share a core with the crawler."
        )


def middle(runs: list[Run], by: Callable[[Run], float]) -> Run:
    """Return the run with the median figure."""
    return sorted(runs, key=by)[len(runs) // 2]


def serve_site(stack: ExitStack, pages: int, place: int, on: Sequence[int]) -> Served:
    """Serve a site of that many pages; write its files first if this machine does not have them yet."""
    port = PORT + place
    folder = HOME / "own" / f"{pages}-pages-{port}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        print(f"Writing a site of {pages:,} pages, once.", flush=True)
        site.write(folder, pages, f"http://127.0.0.1:{port}")
    for file in folder.rglob("*.html"):  # so that the site is served from memory, not from the disk
        file.read_bytes()
    return stack.enter_context(webserver.serve(folder, port, HOME / "run" / f"own-{port}", on))


def crawl(served: Sequence[Served], concurrency: int, on: Sequence[int], *more: str) -> Run:
    """Crawl these sites once, into a new store and a new file."""
    for one in served:
        one.forget()
    with tempfile.TemporaryDirectory(prefix="crawl-", dir=HOME / "run") as folder:
        out = Path(folder) / "pages.jsonl"
        command = [str(ROOT / "shoal"), "crawl", *(f"{one.base}/" for one in served), "--depth", "50"]
        command += ["--speed", "max", "--concurrency", str(concurrency), "--output", str(out)]
        command += ["--store", f"sqlite:///{folder}/shoal.db", *more]
        links = Path(folder) / LINKS
        command = [str(links) if word == LINKS else word for word in command]
        errors = HOME / "run" / "shoal.err"
        cost = measure(command, on=on, log=errors)
        if cost.code:
            print(f"`shoal crawl` ended with {cost.code}:\n{errors.read_text()[-2000:]}")
        records = sum(1 for _ in out.open()) if out.exists() else 0
        linked = sum(1 for _ in links.open()) if links.exists() else 0
        stored = sum(file.stat().st_size for file in Path(folder).glob("shoal.db*"))
    asked = [(one.base, path) for one in served for path in one.asked()]
    pages = {path for path in asked if path[1] == "/" or path[1].startswith("/f")}
    return Run(cost, len(pages), sum(path.startswith("/private/") for _, path in asked), records, stored, linked)


def knows_processes() -> bool:
    done = subprocess.run([str(ROOT / "shoal"), "crawl", "--help"], capture_output=True, text=True, check=False)
    return "--processes" in done.stdout

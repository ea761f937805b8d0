"""Start-up cost: Python itself, the package, the command, and the time until the first page is requested."""

import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from bench.process import cores, measure
from bench.report import Report, Table, ratio

ROOT = Path(__file__).resolve().parent.parent
REPS = 11
SHORT_REPS = 3
SHOAL = str(ROOT / "shoal")
PYTHON = [sys.executable, "-P"]
COMMANDS = {
    "python -c pass": [*PYTHON, "-c", "pass"],
    "import shoal": [*PYTHON, "-c", "import shoal"],
    "shoal --version": [SHOAL, "--version"],
    "shoal --help": [SHOAL, "--help"],
    "shoal crawl --help": [SHOAL, "crawl", "--help"],
}
ABOUT = (
    "The commands run one after the other on one core, with all files in memory. CPU is the time of the launcher and "
    "of all processes that it starts."
)
PAGE = b"<!DOCTYPE html><title>One page</title><p>Nothing else."


class Watch:
    """Records when each path was first requested."""

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}
        self.base = ""


def run(options: Namespace) -> Report:
    """Measure starts."""
    reps = options.reps or (SHORT_REPS if options.short else REPS)
    report = Report("startup", f"{ABOUT} Medians of {reps} runs.")
    table = report.table("Commands", "command", "CPU ms", "wall ms", "relative to python -c pass")
    bare = 0.0
    for name, command in COMMANDS.items():
        bare = add_command(table, name, command, reps, bare)
    first_page(report, reps)
    return report


def add_command(table: Table, name: str, command: Sequence[str], reps: int, bare: float) -> float:
    """Add a row; return the CPU time of the first command, with which the other commands are compared."""
    costs = [measure(command, on=cores()[:1]) for _ in range(reps + 1)][1:]
    failed = [cost.code for cost in costs if cost.code]
    if failed:
        table.notes.append(f"`{name}` ended with {failed[0]}.")
    cpu = median(cost.cpu for cost in costs)
    table.rows.append([name, cpu * 1e3, median(cost.wall for cost in costs) * 1e3, ratio(cpu, bare or cpu)])
    return bare or cpu


def first_page(report: Report, reps: int) -> None:
    table = report.table("A crawl of one page", "moment", "ms")
    moments: dict[str, list[float]] = {
        "robots.txt is requested": [],
        "the page is requested": [],
        "the end": [],
        "CPU": [],
    }
    with watched() as watch:
        for _ in range(reps):
            for name, value in zip(moments, one_page(watch), strict=True):
                moments[name].append(value)
    table.rows += [[name, median(values) * 1e3] for name, values in moments.items()]


def one_page(watch: Watch) -> list[float]:
    """Return the seconds from the start of a crawl to its milestones, and its CPU time."""
    watch.asked.clear()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        command = [SHOAL, "crawl", f"{watch.base}/", "--depth", "0", "--store", f"sqlite:///{folder}/shoal.db"]
        began = time.perf_counter()
        cost = measure(command, on=cores()[:1])
    asked = [watch.asked.get(path, began) - began for path in ("/robots.txt", "/")]
    return [*asked, cost.wall, cost.cpu]


@contextmanager
def watched() -> Iterator[Watch]:
    """A web server with one page that records when it is requested."""
    watch = Watch()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            watch.asked.setdefault(self.path, time.perf_counter())
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(PAGE)))
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    watch.base = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        server.shutdown()
        server.server_close()

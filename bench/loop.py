"""How long requests at their limits keep a controller from serving others."""

import asyncio
import gc
import tempfile
from argparse import Namespace

from bench.report import Report
from tests.support.requests_at_limits import MeasuredRequest, measured_requests
from tests.support.servers import Servers

ABOUT = (
    "One controller without workers. For each request, the longest callback of the event loop in CPU"
    " time of its thread: for as long, no other request was served. The limit is 50 ms."
)


def run(options: Namespace) -> Report:
    """Measure every request once on each database."""
    report = Report("loop", ABOUT)
    table = report.table("Longest callback, CPU ms", "request", "SQLite", "PostgreSQL")
    gc.freeze()  # as `shoal serve` does
    with tempfile.TemporaryDirectory() as folder, Servers.open() as servers:
        columns = [measured(url) for url in (f"sqlite:///{folder}/shoal.db", servers.new_postgres().url)]
    for on_sqlite, on_postgres in zip(*columns, strict=True):
        table.rows.append([on_sqlite.request[:80], on_sqlite.seconds * 1e3, on_postgres.seconds * 1e3])
    return report


def measured(store_url: str) -> list[MeasuredRequest]:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(measured_requests(store_url, nodes=500)).requests

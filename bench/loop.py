"""How long requests of the maximum size keep a controller from serving other requests."""

import asyncio
import gc
import os
import re
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from statistics import median

from bench.report import Report, show
from tests.support.requests_at_limits import MeasuredRequest, measured_requests
from tests.support.servers import Servers

ABOUT = (
    "One controller without workers. For each request, the table shows the longest callback in the event loop, as CPU "
    "time of the thread. While a callback runs, the controller serves no other request. The project's limit is 50 ms."
)
NODES = 500
SLOWEST = 25
ID = re.compile(r"\b([a-z]{3})_[0-9A-Z]{20,}")


def run(options: Namespace) -> Report:
    """Measure every request on SQLite and PostgreSQL, with a new database for each run."""
    reps = options.reps or (1 if options.short else 3)
    report, load = Report("loop", ABOUT), os.getloadavg()[0]
    gc.freeze()  # as `shoal serve` does
    with tempfile.TemporaryDirectory() as folder, Servers.open() as servers:
        on_sqlite = [measured(f"sqlite:///{folder}/{rep}.db") for rep in range(reps)]
        on_postgres = [measured(servers.new_postgres().url) for _ in range(reps)]
    found = [
        (ID.sub(r"\1_…", sqlite[0].request)[:80], [*milliseconds(sqlite), *milliseconds(postgres)])
        for sqlite, postgres in zip(zip(*on_sqlite, strict=True), zip(*on_postgres, strict=True), strict=True)
    ]
    found.sort(key=lambda one: max(one[1]), reverse=True)
    columns = ("request", "SQLite", "highest", "PostgreSQL", "highest")
    table = report.table(f"Longest callback, CPU ms: the {SLOWEST} slowest of {len(found)} requests", *columns)
    table.rows += [[request, *values] for request, values in found[:SLOWEST]]
    rest = max(max(values) for _, values in found[SLOWEST:])
    table.notes.append(
        f"Medians and highest values of {reps} runs with {NODES} nodes; all other requests took at most"
        f" {show(rest)} ms. The CPU time of other processes is not included, but these processes slow the thread down."
        " A pause of the garbage collector counts as time of the request that is running at that moment. The highest"
        " values contain this noise. The load of the machine was"
        f" {load:.1f} before and {os.getloadavg()[0]:.1f} after the runs."
    )
    return report


def milliseconds(runs: Sequence[MeasuredRequest]) -> tuple[float, float]:
    """Return the median and the highest value of one request, over all runs."""
    values = [one.seconds * 1e3 for one in runs]
    return median(values), max(values)


def measured(store_url: str) -> list[MeasuredRequest]:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(measured_requests(store_url, nodes=NODES)).requests

"""`POST /api/v1/scrape`: how much longer the request takes than the fetch of the page."""

import json
import tempfile
import time
from argparse import Namespace
from http.client import HTTPConnection
from pathlib import Path
from statistics import quantiles

from bench import site, webserver
from bench.console import free_port, served
from bench.report import Report

FORMATS = (["json"], ["html"], ["text"], ["markdown"], ["links"], ["markdown", "html", "text", "links", "json"])
ABOUT = (
    "A controller with a worker (`serve --workers 1`) on a SQLite file gets requests for the same page again and "
    "again. The page has 26 KB and 60 links, and is served on the same machine. The overhead is the time of the whole "
    "request minus the time of the fetch (`duration_ms` in the page record). There is no delay between requests to a "
    "host (`SHOAL_PAGE_SPEED=max`); the default is one second, even for hosts on this machine."
)


def run(options: Namespace) -> Report:
    """Measure scrapes."""
    times = 20 if options.short else 200
    report = Report("scrape", f"{ABOUT} {times} requests per row.")
    table = report.table("One page", "formats", "p50 ms", "p95 ms", "p50 overhead ms", "p95 overhead ms")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        folder, port = Path(name), free_port()
        site.write(folder / "site", 1, f"http://127.0.0.1:{port}")
        allowed = {"SHOAL_PAGE_SPEED": "max", "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}
        with (
            webserver.serve(folder / "site", port, folder / "run") as page,
            served(folder, None, "--workers", "1", **allowed) as (shoal, _),
        ):
            for formats in FORMATS:
                body = json.dumps({"url": f"{page.base}/", "formats": formats})
                seconds = [scrape(shoal, body) for _ in range(times + 5)][5:]  # the first requests start the page child
                whole, above = (quantiles(one, n=20) for one in zip(*seconds, strict=True))
                row = [1e3 * value for value in (whole[9], whole[18], above[9], above[18])]
                table.rows.append([", ".join(formats), *row])
    return report


def scrape(port: int, body: str) -> tuple[float, float]:
    """Return the seconds of one request, and how many of these seconds are not spent on the fetch of the page."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    began = time.perf_counter()
    connection.request("POST", "/api/v1/scrape", body, {"Content-Type": "application/json"})
    found = json.load(connection.getresponse())
    seconds = time.perf_counter() - began
    connection.close()
    return seconds, seconds - found["page"]["duration_ms"] / 1e3

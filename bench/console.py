"""The console: the size of its pages, the server time of large lists, and the cost of fifty live viewers."""

import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.process import ServerCpu
from bench.report import Report
from shoal.base.settings import RenderSettings
from shoal.web.browser import find_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Request

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
CRAWLS, SHORT_CRAWLS = 100_000, 5_000
PAGES, SHORT_PAGES = 1_000_000, 20_000
RUNNING = 20  # crawls that change every second
VIEWERS = 50
WATCH_SECONDS = 15.0
REPS, SHORT_REPS = 11, 3
ABOUT = (
    "One controller on a SQLite file, without workers. Times are measured by a client, from the request to the end of "
    "the response, on a connection that is already open."
)
LISTS = {
    "crawls": "/crawls",
    "crawls, state:failed (one match)": "/crawls?q=state:failed",
    "crawls, host: of the oldest crawl": "/crawls?q=host:oldest.example",
    "crawls, text without a match": "/crawls?q=nowhere",
    "overview": "/",
    "crawl, summary": "/crawls/large",
    "pages, start of the list": "/crawls/large/pages",
    "pages, middle of the list": "/crawls/large/pages?after={middle}",
    "pages, status 404 (one in 10,000)": "/crawls/large/pages?status=404",
    "pages, text without a match": "/crawls/large/pages?text=nowhere",
    "broken links": "/crawls/large/broken",
}


def run(options: Namespace) -> Report:
    """Measure the console."""
    crawls, pages = (SHORT_CRAWLS, SHORT_PAGES) if options.short else (CRAWLS, PAGES)
    reps = options.reps or (SHORT_REPS if options.short else REPS)
    report = Report("console", ABOUT)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-bench-")))
        port, pid = stack.enter_context(served(folder, prepare=lambda file: fill(file, crawls, pages)))
        times(report, port, crawls, pages, reps)
        weights(report, port, stack)
        viewers(report, port, pid, folder / "shoal.db")
    return report


def times(report: Report, port: int, crawls: int, pages: int, reps: int) -> None:
    table = report.table(
        f"Lists over {crawls:,} crawls and {pages:,} pages of one crawl", "page", "ms", "slowest ms", "kB", "kB gzip"
    )
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    for name, path in LISTS.items():
        path = path.format(middle=pages // 2)
        taken, size, packed = [], 0, 0
        for _ in range(reps + 1):
            began = time.perf_counter()
            connection.request("GET", path, headers={"Accept": "text/html", "Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            packed = len(answer.read())
            assert answer.status == 200, f"{path}: {answer.status}"
            taken.append((time.perf_counter() - began) * 1e3)
        connection.request("GET", path, headers={"Accept": "text/html"})
        size = len(connection.getresponse().read())
        table.rows.append([name, median(taken[1:]), max(taken[1:]), size / 1e3, packed / 1e3])
    connection.close()


def weights(report: Report, port: int, stack: ExitStack) -> None:
    """Load pages in a browser with an empty cache."""
    table = report.table("First load in a browser", "page", "requests", "kB", "first paint ms")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        table.notes.append("Playwright is not installed.")
        return
    playwright = stack.enter_context(sync_playwright())
    chromium = os.environ.get("SHOAL_TEST_CHROMIUM") or find_chromium(RenderSettings())
    browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-quic"])
    for name, path in (("crawls", "/crawls"), ("crawl", "/crawls/large"), ("overview", "/")):
        loads = [first_load(browser, f"http://127.0.0.1:{port}{path}") for _ in range(3)]
        requests, size, _ = loads[-1]
        table.rows.append([name, requests, size / 1e3, median(paint for _, _, paint in loads)])
    browser.close()


def first_load(browser: "Browser", address: str) -> tuple[int, int, float]:
    """Load a page with an empty cache; return the number of requests, the bytes received, and the milliseconds to the
    first paint."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    finished: list[Request] = []
    page.on("requestfinished", lambda request: finished.append(request))  # noqa: PLW0108 - Playwright marks handlers
    page.goto(address, wait_until="load")
    while (paint := page.evaluate(PAINT)) is None:
        page.wait_for_timeout(20)
    sizes = [request.sizes() for request in finished]
    context.close()
    return len(sizes), sum(one["responseBodySize"] + one["responseHeadersSize"] for one in sizes), float(paint)


def viewers(report: Report, port: int, pid: int, file: Path) -> None:
    """Let many tabs watch the list of crawls while some of the crawls change every second."""
    table = report.table(
        f"{VIEWERS} viewers of a list in which {RUNNING} crawls change every second", "viewers", "CPU %", "kB/s", "MB"
    )
    for count in (0, 1, VIEWERS):
        stop = threading.Event()
        changing = threading.Thread(target=change, args=(file, stop))
        changing.start()
        tabs = [Tab(port) for _ in range(count)]
        time.sleep(2)
        cpu, began, heard = ServerCpu(pid).seconds(), time.perf_counter(), sum(tab.heard for tab in tabs)
        time.sleep(WATCH_SECONDS)
        spent, wall = ServerCpu(pid).seconds() - cpu, time.perf_counter() - began
        rate = (sum(tab.heard for tab in tabs) - heard) / wall / 1e3
        table.rows.append([count, 100 * spent / wall, rate, memory(pid)])
        stop.set()
        changing.join()
        for tab in tabs:
            tab.close()


class Tab:
    """A browser tab that follows the list of crawls."""

    def __init__(self, port: int) -> None:
        self.heard = 0
        self._socket = socket.create_connection(("127.0.0.1", port))
        head = (
            f"GET /console/feed?topic=/crawls HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: text/event-stream\r\n\r\n"
        )
        self._socket.sendall(head.encode())
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            while data := self._socket.recv(65536):
                self.heard += len(data)
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()


def change(file: Path, stop: threading.Event) -> None:
    """Count pages of the running crawls, once a second."""
    connection = sqlite3.connect(file, isolation_level=None, timeout=30)
    while not stop.wait(1.0):
        connection.execute(
            "UPDATE crawl_counter SET pages = pages + 5, settled = settled + 5, responses_2xx = responses_2xx + 5,"
            " bytes = bytes + 50000, walked = walked + 1000000"
            " WHERE crawl IN (SELECT number FROM crawl WHERE state = 'running')"
        )
    connection.close()


def memory(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1e3 if found else 0.0


def fill(file: Path, crawls: int, pages: int) -> None:
    """Copy one crawl many times, and give one of them many pages."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.create_function("shoal_now", 0, lambda: int(time.time() * 1e6))
    connection.execute("BEGIN")
    connection.execute("UPDATE crawl SET id = 'large'")
    columns = "state, state_reason, project, config, named, priority, key_seed, created_at, started_at, finished_at"
    connection.execute(
        f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {crawls})"
        f" INSERT INTO crawl (id, {columns})"
        " SELECT 'crl_' || i, CASE WHEN i = 1 THEN 'failed' ELSE 'completed' END, 'drained', 'default',"
        " replace(c.config, 'https://example.com/', 'https://' || CASE WHEN i = 1 THEN 'oldest' ELSE 'site' || i END"
        " || '.example/'), c.named, 50, i, shoal_now(), shoal_now(), shoal_now()"
        " FROM n, crawl AS c WHERE c.id = 'large'"
    )
    connection.execute(
        "UPDATE crawl SET state = 'running', state_reason = NULL, finished_at = NULL WHERE number >"
        f" (SELECT max(number) - {RUNNING} FROM crawl)"
    )
    connection.execute(
        "INSERT INTO crawl_counter (crawl, holder, opened, settled, pages, responses_2xx, bytes, walked)"
        " SELECT number, 'job', 1000, 100, 100, 100, 1000000, 60000000 FROM crawl WHERE id <> 'large'"
    )
    connection.execute(
        f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {pages})"
        " INSERT INTO page (key, chk, crawl, fetched_at, bytes, depth, attempt, status, duration_ms, url, title,"
        " content_type, links_internal, links_external, links)"
        " SELECT i, 0, c.number, shoal_now(), 20000, i % 7, 1, CASE WHEN i % 10000 = 0 THEN 404 ELSE 200 END,"
        " i % 900, 'https://example.com/section' || (i % 50) || '/page/' || i, 'Page number ' || i,"
        " 'text/html; charset=utf-8', 60, 5, zeroblob(540) FROM n, crawl AS c WHERE c.id = 'large'"
    )
    connection.execute(
        "INSERT INTO crawl_counter (crawl, holder, opened, settled, pages, responses_2xx, responses_4xx, bytes, walked)"
        f" SELECT number, 'job', {pages}, {pages}, {pages}, {pages - pages // 10_000}, {pages // 10_000},"
        f" {pages * 20_000}, 3600000000 FROM crawl WHERE id = 'large'"
    )
    connection.execute(
        "UPDATE crawl SET state = 'completed', started_at = created_at, finished_at = created_at + 1 WHERE id = 'large'"
    )
    connection.execute("DELETE FROM job")
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@contextmanager
def served(
    folder: Path, prepare: Callable[[Path], None] | None = None, *words: str, **more: str
) -> Iterator[tuple[int, int]]:
    """Start a controller, on a prepared store if `prepare` is given; return its port and process."""
    store, port = f"sqlite:///{folder}/shoal.db", free_port()
    shoal = [sys.executable, "-P", "-m", "shoal"]
    env = {**os.environ, "SHOAL_DATA_DIR": str(folder), "SHOAL_LOG_LEVEL": "error", **more}
    if prepare is not None:
        config = ["crawls", "add", "https://example.com/", "--store", store]
        subprocess.run([*shoal, *config], check=True, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        prepare(folder / "shoal.db")
    command = [*shoal, "serve", "--listen", f"127.0.0.1:{port}", "--store", store, *words]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the controller did not start")

"""Rendering: pages per second and memory with five pages at the same time, compared with Playwright and Crawlee on the
same pages; and the cost of `--render auto` on a site that needs no browser."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from bench.process import cores, measure
from bench.report import Report, ratio
from shoal.web.browser import binary_behind

ROOT = Path(__file__).resolve().parent.parent
PEER = Path(__file__).with_name("peers") / "render.py"
HOME = Path(os.environ.get("BENCH_HOME", Path(tempfile.gettempdir()) / "shoal-bench")) / "render"
PACKAGES = {"playwright": ["playwright"], "crawlee": ["crawlee[playwright]"]}
PAGES, SHORT_PAGES, AT_ONCE, REPS = 60, 40, 5, 3
STATIC_PAGES, STATIC_REPS = 2000, 5
ABOUT = (
    "Each page loads a script, which makes three requests one after the other, counts to two million and builds 200 "
    "elements. Five pages are rendered at the same time, each in its own context; memory is the proportional set size "
    "of the whole process tree. Shoal's browser uses Shoal's proxy, and every request is checked. The drivers take "
    "turns; figures are medians of {} runs."
)
SCRIPT = b"""(async () => {
  for (let i = 0; i < 3; i++) await (await fetch("/data/" + i)).text();
  let sum = 0; for (let i = 0; i < 2e6; i++) sum += i % 7;
  const p = (text) => Object.assign(document.createElement("p"), {textContent: text});
  for (let i = 0; i < 200; i++) document.body.append(p("t" + i));
  document.body.insertAdjacentHTML("beforeend", '<b id="ready">' + sum + "</b>");
})();"""
PAGE = b'<!doctype html><title>page</title><body><div id="app"></div><script src="/app.js"></script></body>'


class Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kind, body = "text/html; charset=utf-8", PAGE
        if self.path == "/app.js":
            kind, body = "text/javascript", SCRIPT
        elif self.path.startswith("/data/"):
            kind, body = "application/json", b'{"some": "data"}'
        elif self.path.startswith("/static/"):
            number = int(self.path.rpartition("/")[2])
            links = "".join(f'<a href="/static/{at}">x</a>' for at in range(number * 10 + 1, number * 10 + 11))
            text = "Some words of a page that needs no browser. " * 100
            body = f"<!doctype html><title>{number}</title><h1>{number}</h1><p>{text}</p>{links}".encode()
        self.send_response(404 if self.path == "/robots.txt" else 200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@contextmanager
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def run(options: Namespace) -> Report:
    """Measure rendering."""
    reps = options.reps or (1 if options.short else REPS)
    report = Report("render", ABOUT.format(reps))
    with site() as base:
        beside(report, base, SHORT_PAGES if options.short else PAGES, reps)
        static(report, base, reps if options.short else STATIC_REPS)
    return report


def beside(report: Report, base: str, pages: int, reps: int) -> None:
    table = report.table(
        "Five pages at the same time", "driver", "browser", "pages/s", "relative to Playwright", "memory MB"
    )
    found = {name: shutil.which(name) for name in ("chromium-headless-shell", "chromium")}
    rows = [
        (driver, name, str(binary_behind(Path(path))))
        for driver, name in (
            ("shoal", "chromium-headless-shell"),
            ("playwright", "chromium-headless-shell"),
            ("playwright", "chromium"),
            ("crawlee", "chromium-headless-shell"),
        )
        if (path := found[name]) is not None
    ]
    results: dict[tuple[str, str], list[dict[str, float]]] = {(driver, name): [] for driver, name, _ in rows}
    for _ in range(reps):
        for driver, name, binary in rows:
            if (result := one(driver, binary, base, pages)) is not None:
                results[driver, name].append(result)
    rates = {key: pages / median(one["seconds"] for one in found) for key, found in results.items() if found}
    for driver, name, _ in rows:
        if (rate := rates.get((driver, name))) is None:
            table.notes.append(f"{driver} could not be installed or run here.")
            continue
        peer = rates.get(("playwright", name))
        memory = median(one["memory"] for one in results[driver, name]) / 1e6
        table.rows.append([driver, name, rate, ratio(rate, peer) if peer else None, memory])


def one(driver: str, binary: str, base: str, pages: int) -> dict[str, float] | None:
    """Run one driver in its own environment; return None if the driver cannot be installed or run."""
    python = sys.executable if driver == "shoal" else environment(driver)
    if python is None:
        return None
    command = [python, str(PEER), driver, binary, base, str(pages), str(AT_ONCE)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")} if driver == "shoal" else None
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def environment(driver: str) -> str | None:
    """Return the Python of a driver's environment; create the environment if it does not exist."""
    folder = HOME / driver
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES[driver]]
        if subprocess.run(install, check=False).returncode:
            return None
        (folder / "ready").touch()
    return str(python)


def static(report: Report, base: str, reps: int) -> None:
    table = report.table("A site that needs no browser", "--render", "wall s", "CPU s", "wall relative to never")
    costs: dict[str, list[tuple[float, float]]] = {"never": [], "auto": []}
    for _ in range(reps):
        for mode, found in costs.items():
            with tempfile.TemporaryDirectory() as folder:
                words = ["--render", mode, "--max-pages", str(STATIC_PAGES), "--depth", "10", "--sitemap", "off"]
                store = ["--store", f"sqlite:///{folder}/shoal.db"]
                command = [str(ROOT / "shoal"), "crawl", f"{base}/static/0", "--speed", "max", *words, *store]
                cost = measure(command, on=cores()[:1])
                if cost.code:
                    sys.exit(f"the crawl with --render {mode} ended with exit code {cost.code}")
                found.append((cost.wall, cost.cpu))
    never = median(wall for wall, _ in costs["never"])
    for mode, found in costs.items():
        wall = median(wall for wall, _ in found)
        table.rows.append([mode, wall, median(cpu for _, cpu in found), ratio(wall, never)])
    table.notes.append(
        f"{STATIC_PAGES:,} pages at speed `max`, one core for the crawler. The modes take turns; figures are medians "
        f"of {reps} runs."
    )

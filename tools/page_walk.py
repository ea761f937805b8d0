"""Counts the modules whose code runs for one page in the crawling process: `python -m tools.page_walk`.

A site on loopback has a chain of pages. Between the request for one page and the request for the page after the next,
every call of a function of `shoal` is counted, in all threads: the commit, the take, the fetch, the extraction.
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

import shoal

ROOT = str(Path(shoal.__file__).parent) + "/"
PAGES = ["", "anchovy", "bream", "carp", "dace", "eel", "flounder", "goby", "herring"]
FIRST, LAST = "dace", "flounder"
calls: Counter[str] = Counter()
snapshots: dict[str, Counter[str]] = {}


def note(frame: FrameType, event: str, _: Any) -> None:
    name = frame.f_code.co_filename
    if event == "call" and name.startswith(ROOT):
        calls[name.removeprefix(ROOT)] += 1


class Chain(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        page = self.path.strip("/")
        snapshots.setdefault(page, calls.copy())
        rest = PAGES[PAGES.index(page) + 1 :] if page in PAGES else []
        body = f"<title>{page}</title><h1>Page {page}</h1><a href='/{rest[0] if rest else ''}'>next</a>".encode()
        self.send_response(200 if page in PAGES else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


async def crawl(url: str, store: str) -> None:
    async for _ in shoal.crawl(url, store=store, depth=len(PAGES)):
        pass


def main() -> None:
    site = ThreadingHTTPServer(("127.0.0.1", 0), Chain)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    threading.setprofile(note)
    sys.setprofile(note)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(crawl(f"http://127.0.0.1:{site.server_port}/", f"sqlite:///{folder}/walk.db"))
    sys.setprofile(None)
    site.shutdown()
    touched = snapshots[LAST] - snapshots[FIRST]
    for name, count in sorted(touched.items()):
        print(f"{count:6} {name}")
    print(f"{len(touched)} modules, {sum(touched.values()) // 2} calls per page")


if __name__ == "__main__":
    main()

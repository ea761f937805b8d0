"""An archive that Shoal wrote, replayed by pywb with the index that Shoal wrote beside it."""

import gzip
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support.fleet import clean_environment
from tests.support.replay import replaying

HTML = "text/html; charset=utf-8"
HOME = "".join(f'<a href="{path}">x</a>' for path in ("/old", "/packed", "/pieces", "/gone", "/Q?b=2&a=1")).encode()
PAGES: dict[str, tuple[int, dict[str, str], bytes]] = {
    "/": (200, {"Content-Type": HTML}, HOME),
    "/old": (301, {"Location": "/new"}, b"moved"),
    "/new": (200, {"Content-Type": HTML}, b"<h1>new</h1>"),
    "/packed": (200, {"Content-Type": HTML, "Content-Encoding": "gzip"}, gzip.compress(b"<h1>packed</h1>" * 99)),
    "/pieces": (200, {"Content-Type": HTML, "Transfer-Encoding": "chunked"}, b"<h1>pieces</h1>"),
    "/Q?b=2&a=1": (200, {"Content-Type": "text/plain"}, b"a question"),
}


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, fields, body = PAGES.get(self.path, (404, {"Content-Type": HTML}, b"gone"))
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        if "Transfer-Encoding" in fields:
            body = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_pywb_replays_every_page_as_it_was_sent(address: str, tmp_path: Path) -> None:
    words = ["crawl", address, "--store", f"sqlite:///{tmp_path}/s.db", "--speed", "max", "--output", "site.warc.gz"]
    subprocess.run(
        [sys.executable, "-m", "shoal", *words], cwd=tmp_path, env=clean_environment(tmp_path), check=True, timeout=60
    )
    with replaying(tmp_path / "site.warc.gz", tmp_path / "site.cdxj", tmp_path / "replay") as replay:
        home = replay.get(f"{address}/")
        assert (home.status, home.body) == (200, HOME)
        assert home.fields["content-type"] == HTML
        assert replay.get(f"{address}/new").body == b"<h1>new</h1>"
        moved = replay.get(f"{address}/old")
        assert moved.status == 301
        assert moved.fields["location"].endswith("/new")
        assert (
            replay.get(f"{address}/packed").body == b"<h1>packed</h1>" * 99
        )  # unpacked, since we did not ask for gzip
        assert replay.get(f"{address}/pieces").body == b"<h1>pieces</h1>"
        assert replay.get(f"{address}/Q?b=2&a=1").body == b"a question"
        assert (replay.get(f"{address}/gone").status, replay.get(f"{address}/gone").body) == (404, b"gone")
        assert replay.get(f"{address}/never-crawled").status == 404
        assert replay.get(f"{address}/never-crawled").body != b"gone"

"""An archive that Shoal wrote, replayed by pywb with the index that Shoal wrote beside it."""

import gzip
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support.fleet import clean_environment
from tests.support.processes import run_shoal
from tests.support.pywb import index_by_pywb, replaying

pytestmark = pytest.mark.exhaustive

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
        if status == 200:
            fields = fields | {"ETag": '"1"'}
            if self.headers["If-None-Match"] == '"1"':
                status, fields, body = 304, {"ETag": '"1"'}, b""
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


def crawl(address: str, folder: Path, *more: str, **env: str) -> str:
    words = ["crawl", address, "--store", f"sqlite:///{folder}/s.db", "--speed", "max", "--json", *more]
    done = run_shoal(*words, cwd=folder, env=clean_environment(folder) | env, timeout=60)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def check(address: str, archive: Path) -> None:
    index = archive.with_name(archive.name.replace(".warc.gz", ".cdxj"))
    with replaying(archive, index, archive.with_suffix(".replay")) as replay:
        home = replay.get(f"{address}/")
        assert (home.status, home.body) == (200, HOME)
        assert home.fields["content-type"] == HTML
        assert replay.get(f"{address}/new").body == b"<h1>new</h1>"
        moved = replay.get(f"{address}/old")
        assert moved.status == 301
        assert moved.fields["location"].endswith("/new")
        assert replay.get(f"{address}/packed").body == b"<h1>packed</h1>" * 99  # we did not request gzip
        assert replay.get(f"{address}/pieces").body == b"<h1>pieces</h1>"
        assert replay.get(f"{address}/Q?b=2&a=1").body == b"a question"
        assert (replay.get(f"{address}/gone").status, replay.get(f"{address}/gone").body) == (404, b"gone")
        assert replay.get(f"{address}/never-crawled").status == 404
        assert replay.get(f"{address}/never-crawled").body != b"gone"


def test_pywb_replays_every_page_as_it_was_sent(address: str, tmp_path: Path) -> None:
    crawl(address, tmp_path, "--output", "site.warc.gz")
    check(address, tmp_path / "site.warc.gz")


def test_pywb_replays_also_what_had_not_changed_since_an_earlier_crawl(address: str, tmp_path: Path) -> None:
    crawl(address, tmp_path, "--id", "monday", "--keep-bodies")
    told = crawl(address, tmp_path, "--since", "monday", "--output", "site.warc.gz")
    assert json.loads(told)["not_modified"] == 4
    check(address, tmp_path / "site.warc.gz")


def test_pywb_accepts_rendered_documents_and_replays_what_was_sent(address: str, tmp_path: Path, chromium: str) -> None:
    crawl(address, tmp_path, "--render", "always", "--output", "site.warc.gz", SHOAL_CHROMIUM=chromium)
    archive = tmp_path / "site.warc.gz"
    assert gzip.decompress(archive.read_bytes()).count(b"WARC-Type: conversion") == 5  # of each page that is HTML
    check(address, archive)
    index_by_pywb(archive, tmp_path / "own.cdxj")
    with replaying(archive, tmp_path / "own.cdxj", tmp_path / "own.replay") as replay:
        assert replay.get(f"{address}/").body == HOME

"""Sitemaps as large as the protocol allows, several of one host: all listed URLs are crawled, with little memory."""

import asyncio
import json
import subprocess
import sys
import threading
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.support.fleet import LONG_LEASE, clean_environment
from tests.support.server_threads import serve_to_the_end

pytestmark = pytest.mark.exhaustive

# Number of entries and length of each URL: one sitemap with the maximum number of entries, and two with the maximum
# file size.
SITEMAPS = ((50_000, 100), (25_000, 2_000), (25_000, 2_000))
MOST_MEMORY = 350_000_000  # usually 280 MB; more if a body waits for a busy machine. All at once would need over 500
DEADLINE_SECONDS = 300
ROOT = Path(__file__).parents[2]


class LargeSitemaps:
    """A site whose robots.txt names sitemaps of 50 MB. Served by a thread of its own while the context is open."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: serve_to_the_end(self._serve()), daemon=True)
        self.address = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
            kind, body = self._body(path)
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n".encode())
            writer.write(b"Connection: close\r\n\r\n")
            for start in range(0, len(body), 1 << 18):
                writer.write(body[start : start + (1 << 18)])
                await writer.drain()
        writer.close()

    def _body(self, path: str) -> tuple[str, bytes]:
        if path == "/robots.txt":
            named = [f"Sitemap: {self.address}/map/{number}" for number in range(len(SITEMAPS))]
            return "text/plain", "\n".join(named).encode()
        if path.startswith("/map/"):
            place = path.removeprefix("/map/")
            count, length = SITEMAPS[int(place)]
            start = f"{self.address}/{place}/"
            rest = "x" * (length - len(start) - 5)
            entries = [f"<url><loc>{start}{number:05}{rest}</loc></url>" for number in range(count)]
            return "application/xml", f"<urlset>{''.join(entries)}</urlset>".encode()
        return "text/html", f"<title>{path[:20]}</title>".encode()


def test_several_of_the_largest_sitemaps_fit_into_memory(tmp_path: Path, sqlite_url: str) -> None:
    with LargeSitemaps() as site:
        crawl = ["crawl", site.address, "--id", "large", "--store", sqlite_url, "--json", "--speed", "max"]
        crawl += ["--sitemap", "only", "--max-pages-per-host", "20"]
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.peak_memory", "peak", sys.executable, "-m", "shoal", *crawl],
            cwd=tmp_path,
            env=clean_environment(tmp_path) | LONG_LEASE | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["state"], summary["pages"]) == ("completed", 20)
    assert summary["skipped"] == {"host_budget": sum(count for count, _ in SITEMAPS) + 1 - 20}
    assert int((tmp_path / "peak").read_text()) < MOST_MEMORY

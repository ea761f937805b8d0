"""The web server for the site: nginx if it is installed, otherwise our own small server.

Both servers write a log with one `STATUS PATH` per line, so that the server counts the requests, not the crawler.

    python -m bench.webserver FOLDER PORT LOG     runs our own server
"""

import asyncio
import getpass
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

from bench.process import pinned

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 20.0
FLUSH_SECONDS = 0.1  # interval at which our own server writes its log
TYPES = {".html": "text/html; charset=utf-8", ".txt": "text/plain"}
# When nginx is started by root, its worker runs as a user that may not read our folders.
NGINX = """
user {user};
worker_processes 1;
daemon off;
pid {run}/nginx.pid;
error_log {run}/error.log warn;
events {{ worker_connections 2048; }}
http {{
  types {{ text/html html; text/plain txt; }}
  charset utf-8;
  log_format asked '$status $request_uri';
  access_log {log} asked;
  client_body_temp_path {run}/body; proxy_temp_path {run}/proxy; fastcgi_temp_path {run}/fastcgi;
  uwsgi_temp_path {run}/uwsgi; scgi_temp_path {run}/scgi;
  sendfile on; tcp_nopush on; keepalive_requests 1000000;
  open_file_cache max=6000 inactive=600s; open_file_cache_valid 600s;
  server {{ listen 127.0.0.1:{port} backlog=2048; root {folder}; index index.html; }}
}}
"""


@dataclass(frozen=True)
class Served:
    """A running site, and its request log."""

    base: str
    log: Path

    def asked(self) -> list[str]:
        """Return the paths whose response was a page, in the order of the responses."""
        time.sleep(3 * FLUSH_SECONDS)
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line[4:] for line in lines if line.startswith("200 ")]

    def forget(self) -> None:
        with self.log.open("r+") as log:
            log.truncate(0)


def name() -> str:
    """Return the name of the web server that serves the site."""
    if shutil.which("nginx") is None:
        return "a server of our own"
    done = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=False)
    return f"nginx {done.stderr.rpartition('/')[2].split()[0]}"


@contextmanager
def serve(folder: Path, port: int, run: Path, on: Sequence[int] = ()) -> Iterator[Served]:
    """Serve a folder until the end of the block."""
    run.mkdir(parents=True, exist_ok=True)
    log = run / "asked.log"
    log.write_text("")
    if answers(port):
        raise SystemExit(f"port {port} is taken: end what listens there, or set BENCH_PORT to another one")
    process = subprocess.Popen(pinned(_command(folder, port, run, log), on), cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield Served(f"http://127.0.0.1:{port}", log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _command(folder: Path, port: int, run: Path, log: Path) -> list[str]:
    if shutil.which("nginx") is None:
        return [sys.executable, "-m", "bench.webserver", str(folder), str(port), str(log)]
    config = run / "nginx.conf"
    config.write_text(NGINX.format(run=run, log=log, port=port, folder=folder, user=getpass.getuser()))
    return ["nginx", "-c", str(config), "-p", str(run)]


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the web server did not start on port {port}")
        time.sleep(0.02)


class Connection(asyncio.Protocol):
    """Answers GET requests, one after the other, until the client closes the connection."""

    def __init__(self, folder: Path, log: list[str]) -> None:
        self._folder = folder
        self._log = log
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own

    def data_received(self, data: bytes) -> None:
        *requests, self._rest = (self._rest + data).split(b"\r\n\r\n")
        for request in requests:
            path = request.split(b" ", 2)[1].decode("latin-1")
            answer = answer_of(self._folder, path)
            self._log.append(f"{answer[9:12].decode()} {path}\n")
            self._transport.write(answer)


NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


def answer_of(folder: Path, path: str) -> bytes:
    file = (folder / (path.partition("?")[0].lstrip("/") or "index.html")).resolve()
    if not file.is_relative_to(folder) or not file.is_file():
        return NOT_FOUND
    body = file.read_bytes()
    kind = TYPES.get(file.suffix, "application/octet-stream")
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def run_server(folder: Path, port: int, log: Path) -> None:
    asked: list[str] = []
    loop = asyncio.get_running_loop()
    end = loop.create_future()
    loop.add_signal_handler(signal.SIGTERM, end.set_result, None)
    server = await loop.create_server(lambda: Connection(folder, asked), "127.0.0.1", port, backlog=2048)
    async with server:
        while not end.done():
            await asyncio.wait([end], timeout=FLUSH_SECONDS)
            with log.open("a") as lines:
                lines.writelines(asked)
            asked.clear()


if __name__ == "__main__":
    uvloop.run(run_server(Path(sys.argv[1]).resolve(), int(sys.argv[2]), Path(sys.argv[3])))

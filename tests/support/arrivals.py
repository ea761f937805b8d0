"""A target that records when each request arrived, by the kernel: however busy this process is, the record is exact.

Every path is a page; `/robots.txt` allows everything. A page with `scripts` needs a browser: it loads a script, which
requests data.
"""

import socket
import struct
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Self

SO_TIMESTAMPNS = 35  # of Linux, for which `socket` has no name
MOST_BYTES = 65536
END_SECONDS = 60.0
RESOURCES = frozenset({"/app.js", "/data", "/favicon.ico"})
TEXT = "text " * 40
SCRIPT = 'fetch("/data").then(answer => answer.text()).then(text => { document.title = text; });'
WITH_SCRIPT = f'<!doctype html><title>before</title><p>{TEXT}<script src="/app.js"></script>'
PLAIN = f"<!doctype html><title>page</title><p>{TEXT}"


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: what for, and when its first bytes reached this machine, in seconds."""

    path: str
    at: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Two requests in a row, and the seconds between them."""

    before: str
    after: str
    seconds: float

    def __repr__(self) -> str:
        return f"{self.before} {self.seconds * 1000:.0f} ms {self.after}"


class Target:
    """The server, on loopback, while the context is open. `robots_seconds`: how long its robots.txt takes."""

    def __init__(self, *, robots_seconds: float = 0.0, robots: str = "", scripts: bool = False) -> None:
        self._robots_seconds = robots_seconds
        self._robots = robots
        self._page = WITH_SCRIPT if scripts else PLAIN
        self._arrivals: list[Arrival] = []
        self._news = threading.Condition()
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._is_closed = threading.Event()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def urls(self, count: int) -> list[str]:
        """This many pages."""
        return [f"http://127.0.0.1:{self.port}/p/{number}" for number in range(count)]

    @property
    def arrivals(self) -> list[Arrival]:
        """All requests, in the order in which they arrived."""
        with self._news:
            return sorted(self._arrivals, key=lambda one: one.at)

    @property
    def navigations(self) -> list[Arrival]:
        """The requests for pages and for robots.txt: all but those that the script of a page sends."""
        return [one for one in self.arrivals if one.path not in RESOURCES]

    @property
    def pages(self) -> list[Arrival]:
        """The requests for pages."""
        return [one for one in self.navigations if one.path != "/robots.txt"]

    def gaps(self) -> list[Gap]:
        """The gaps between all requests that need a slot of the host."""
        return [Gap(one.path, other.path, other.at - one.at) for one, other in pairwise(self.navigations)]

    def gaps_of_pages(self) -> list[Gap]:
        """The gaps between requests for pages."""
        return [Gap(one.path, other.path, other.at - one.at) for one, other in pairwise(self.pages)]

    def wait_for_pages(self, count: int, seconds: float = 60.0) -> None:
        """Wait until this many requests for pages have arrived."""
        with self._news:
            if not self._news.wait_for(lambda: self._count() >= count, seconds):
                raise AssertionError(f"{self._count()} pages were requested in {seconds:g} s, not {count}")

    def _count(self) -> int:
        return sum(one.path not in RESOURCES and one.path != "/robots.txt" for one in self._arrivals)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # its connections inherit it
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._news:
            connections, threads = list(self._connections), list(self._threads)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in threads:
            thread.join(END_SECONDS)

    def _start(self, target: object, *words: object) -> None:
        thread = threading.Thread(target=target, args=words, name="target", daemon=True)  # type: ignore[arg-type]
        with self._news:
            self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._news:
                self._connections.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while not self._is_closed.is_set():
                try:
                    path, at = _request(connection)
                    with self._news:
                        self._arrivals.append(Arrival(path, at))
                        self._news.notify_all()
                    if path == "/robots.txt":
                        self._is_closed.wait(self._robots_seconds)
                    connection.sendall(self._reply(path))
                except OSError:
                    return

    def _reply(self, path: str) -> bytes:
        kind, body = {
            "/robots.txt": ("text/plain", self._robots),
            "/app.js": ("text/javascript", SCRIPT),
            "/data": ("text/plain", "after"),
        }.get(path, ("text/html", self._page))
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return (head + body).encode()


def _request(connection: socket.socket) -> tuple[str, float]:
    """Read a request without a body; return its path and when it came."""
    head, told, _, _ = connection.recvmsg(MOST_BYTES, 256)
    at = _stamp(told)
    while b"\r\n\r\n" not in head:
        more = connection.recv(MOST_BYTES)
        if not head or not more:
            raise OSError("the client has closed the connection")
        head += more
    return head.split(b" ", 2)[1].decode("latin-1").partition("?")[0], at


def _stamp(told: list[tuple[int, int, bytes]]) -> float:
    """When the kernel received what was just read; now, if it did not say so."""
    for level, kind, data in told:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack("qq", data[:16])
            return float(seconds + nanoseconds / 1e9)
    return time.time()

"""The demo site of `shoal demo`: its pages, and a minimal HTTP/1.1 server for them on a free loopback port. It supports
only GET.

It does not use uvicorn, because a second instance in a process would take over the signal handlers of the first.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from http import HTTPStatus
from types import TracebackType
from typing import Self

from shoal.base.clock import Clock

HEAD_LIMIT = 16_384
THINKING_SECONDS = 0.25  # before each response; without it the crawl would be over before anybody could watch it
SEAS = ("Amber Bay", "Cold Reach", "Glass Sound", "Lantern Deep", "Mirror Strait", "Quiet Shelf")
FISH = ("Bream", "Char", "Dory", "Eelpout", "Goby", "Hake", "Lumpfish", "Pollack", "Wrasse")
HOME = "/"
MOVED = "/old-map"  # redirects home
MISSING = "/seas/atlantis"  # linked, but does not exist
PAGES = 1 + len(SEAS) + len(SEAS) * len(FISH)


@dataclass(frozen=True, slots=True)
class DemoResponse:
    """An HTTP response."""

    status: HTTPStatus
    body: str
    headers: dict[str, str] = field(default_factory=dict)


def answer(path: str) -> DemoResponse:
    """Return the response to a GET of this path."""
    if path == "/robots.txt":
        return DemoResponse(HTTPStatus.OK, "User-agent: *\nAllow: /\n", {"Content-Type": "text/plain"})
    if path == MOVED:
        return DemoResponse(HTTPStatus.MOVED_PERMANENTLY, _page("Moved", "The map has moved.", []), {"Location": HOME})
    if path in SITE:
        return DemoResponse(HTTPStatus.OK, SITE[path])
    return DemoResponse(HTTPStatus.NOT_FOUND, _page("Not on the map", "There is nothing here.", [(HOME, "Home")]))


def _address(sea: str, fish: str | None = None) -> str:
    parts = ["seas", sea, *([fish] if fish else [])]
    return "/" + "/".join(part.lower().replace(" ", "-") for part in parts)


def _home() -> str:
    links = [(_address(sea), sea) for sea in SEAS]
    return _page(
        "The Shoal Atlas", "Six seas, and who lives in them.", [*links, (MOVED, "The old map"), (MISSING, "Atlantis")]
    )


def _sea(sea: str) -> str:
    links = [(_address(sea, fish), f"{fish} of the {sea}") for fish in FISH]
    return _page(sea, f"The {len(FISH)} fish of the {sea}.", [*links, (HOME, "All seas")])


def _fish(sea: str, fish: str) -> str:
    following = FISH[(FISH.index(fish) + 1) % len(FISH)]
    elsewhere = SEAS[(SEAS.index(sea) + 1) % len(SEAS)]
    links = [
        (_address(sea, following), f"{following} of the {sea}"),
        (_address(elsewhere, fish), f"{fish} of the {elsewhere}"),
        (_address(sea), sea),
        (HOME, "All seas"),
    ]
    return _page(f"{fish} of the {sea}", f"The {fish.lower()} swims in the {sea}, mostly at dusk.", links)


def _page(title: str, text: str, links: list[tuple[str, str]]) -> str:
    items = "".join(f'<li><a href="{escape(to)}">{escape(name)}</a></li>' for to, name in links)
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><meta name="description" content="{escape(text)}">'
    body = f"<h1>{escape(title)}</h1><p>{escape(text)}</p><ul>{items}</ul>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


SITE = {
    HOME: _home(),
    **{_address(sea): _sea(sea) for sea in SEAS},
    **{_address(sea, fish): _fish(sea, fish) for sea in SEAS for fish in FISH},
}


class DemoSite:
    """The site, served while the context is open."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._visit, "127.0.0.1", 0, limit=HEAD_LIMIT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    async def _visit(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._visits.add(task)
        try:
            # The demo ends connections by cancelling them; before Python 3.12, streams would log that as an error.
            with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, asyncio.CancelledError):
                while await self._serve_one(reader, writer):
                    pass
        finally:
            self._visits.discard(task)
            writer.close()

    async def _serve_one(self, reader: StreamReader, writer: StreamWriter) -> bool:
        """Serve one request; return whether the connection can be used for another."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        words = head.partition("\r\n")[0].split(" ")
        if len(words) != 3 or words[0] != "GET":
            writer.write(_encode(DemoResponse(HTTPStatus.NOT_IMPLEMENTED, "")))
            return False
        await self._clock.sleep(THINKING_SECONDS)
        writer.write(_encode(answer(words[1].partition("?")[0])))
        await writer.drain()
        return True


def _encode(response: DemoResponse) -> bytes:
    body = response.body.encode()
    headers = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body)), **response.headers}
    lines = [f"HTTP/1.1 {response.status.value} {response.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body

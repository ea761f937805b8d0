"""The listeners of the hostile site and its map: what each of them serves, and the expected fate of each URL.

It is served by a thread of its own while the context is open. Everything it says is the same every time.
"""

import asyncio
import socket
import threading
from collections import Counter
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from tests.support.bad_http2_server import bad_http2_server
from tests.support.bad_http_server import TLS, Asked, BadServer, Line, Script, bad_server, reply
from tests.support.hostile import answers, pages
from tests.support.hostile.answers import HTML, redirect, repeat, send
from tests.support.hostile.sitemaps import maps, named
from tests.support.hostile.traps import TRAPS, trap_of
from tests.support.patience import with_load
from tests.support.server_threads import serve_to_the_end

START_SECONDS = 20.0
INSIDE = "address_not_public"
STORM = 20_000  # links of one page that robots.txt forbids
CHAIN = 50
HTTP2_BREACHES = {
    "/goaway": "protocol_error",
    "/reset": "protocol_error",
    "/refused": "connection_lost",
    "/shut": "total_timeout",
    "/headers": "headers_too_large",
    "/short": "protocol_error",
    "/long": "protocol_error",
    "/streams": "protocol_error",
    "/noise": "protocol_error",
}
DEEPEST_MAP = 4

ROBOTS = (
    b"\xef\xbb\xbf# caf\xe9 \x00\x00\n"
    + b"Disallow: /good\n"  # before any group, so it applies to no agent
    + b"User-agent: *\r\nDisallow: /private\r"
    + b"Allow: /" + b"*a" * 2_000 + b"*b\n"
    + b"# " + b"x" * 100_000 + b"\n"
    + b"Crawl-delay: 1e309\nCrawl-delay: -1\n"
    + b"nonsense without a colon\n: :\n"
    + b"user-AGENT : *\ndisallow : /storm\n"
)  # fmt: skip


class HostileSite:
    """`good`: URL -> title. `bad`: URL -> error code. `statuses`: URL -> status of a response that is not a page."""

    def __init__(self) -> None:
        self.good: dict[str, str] = {}
        self.bad: dict[str, str] = {}
        self.statuses: dict[str, int] = {}
        self.seeds: list[str] = []
        self._scripts: dict[str, Script] = {}
        self._main = BadServer()
        self._canaries: list[BadServer] = []
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: serve_to_the_end(self._serve()), name="hostile", daemon=True)

    @property
    def settings(self) -> dict[str, str]:
        """Environment in which the codes come quickly: deadlines of seconds, and our own authority believed."""
        return {
            "SHOAL_CONNECT_TIMEOUT": f"{min(10, with_load(2)):.1f}s",
            "SHOAL_IDLE_TIMEOUT": "30s",
            "SHOAL_FETCH_TIMEOUT": f"{min(15, with_load(3)):.1f}s",
            "SHOAL_PAGE_ATTEMPTS": "2",
            "SHOAL_HOST_BACKOFF": "100ms",
            "SHOAL_HOST_BACKOFF_MAX": "200ms",
            "SSL_CERT_FILE": str(TLS / "loopback_authority.pem"),
        }

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._main.port}"

    @property
    def asked(self) -> Counter[str]:
        """Return how often each target of the main listener was requested."""
        return Counter(request.target for request in self._main.asked)

    @property
    def touched(self) -> int:
        """Connections to what must never be reached."""
        return sum(canary.connections for canary in self._canaries)

    def trapped(self) -> dict[str, int]:
        """Return, for each trap, how many requests it cost beyond its limit."""
        most = {start: count for start, (_, count) in TRAPS.items()} | {"/maps/deep/": DEEPEST_MAP}
        cost = {start: sum(target.startswith(start) for target in self.asked.elements()) for start in most}
        return {start: count for start, count in cost.items() if not 0 < count <= most[start]}

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(START_SECONDS):
            raise AssertionError("the hostile site did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_SECONDS)

    # Doors

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            self._canaries = [await stack.enter_async_context(bad_server()) for _ in range(2)]
            self._main = await stack.enter_async_context(bad_server())
            await self._open_tls(stack)
            await self._open_http2(stack)
            await self._open_robots(stack)
            await self._open_busy(stack)
            stack.callback(self._open_deaf().close)
            self._open_closed()
            self._play()
            self._started.set()
            await self._stop.wait()

    async def _open_tls(self, stack: AsyncExitStack) -> None:
        """Invalid certificates (B41), and a listener without TLS."""
        for certificate, code in {
            "loopback_self_signed": "tls_self_signed",
            "loopback_expired": "tls_expired",
            "good": "tls_wrong_host",
        }.items():
            server = await stack.enter_async_context(bad_server(certificate))
            self._seed(f"https://127.0.0.1:{server.port}/", bad=code)
        safe = await stack.enter_async_context(bad_server("loopback"))
        safe.answer("/", reply(200, b"<title>safe</title>", [HTML]))
        self._seed(f"https://127.0.0.1:{safe.port}/", good="safe")
        plain = await asyncio.start_server(_hang_up, "127.0.0.1", 0)
        stack.callback(plain.close)
        self._seed(f"https://127.0.0.1:{plain.sockets[0].getsockname()[1]}/", bad="tls_error")

    async def _open_http2(self, stack: AsyncExitStack) -> None:
        """HTTP/2 servers that violate the protocol, each on a separate port, because a violation affects all requests
        of a connection."""
        for path, code in HTTP2_BREACHES.items():
            port = await stack.enter_async_context(bad_http2_server("loopback"))
            self._seed(f"https://127.0.0.1:{port}{path}", bad=code)
        port = await stack.enter_async_context(bad_http2_server("loopback"))
        self._seed(f"https://127.0.0.1:{port}/good/0", good="/good/0")

    async def _open_robots(self, stack: AsyncExitStack) -> None:
        """Hosts whose robots.txt is awkward (B52-B55), each with one page."""
        rules = b"User-agent: *\nDisallow: /private\n"
        canary = f"http://127.0.0.1:{self._canaries[0].port}/robots.txt"
        kinds: dict[str, tuple[Script, str | None]] = {
            "endless": (repeat(b"HTTP/1.1 200 OK\r\n\r\n" + rules, b"# more\n" * 10_000), None),
            "inside": (redirect(canary), None),
            "looping": (redirect("/robots.txt"), None),
            "page": (send(reply(200, b"<!doctype html><title>hello</title><p>Disallow: /", [HTML])), None),
            "forbidden": (send(reply(403)), None),
            "broken": (send(reply(503)), "robots_unreachable"),
        }
        for name, (robots, code) in kinds.items():
            server = await stack.enter_async_context(bad_server())
            server.scripts["/robots.txt"] = robots
            server.answer("/", reply(200, f"<title>{name}</title>".encode(), [HTML]))
            url = f"http://127.0.0.1:{server.port}/"
            self._seed(url, bad=code) if code else self._seed(url, good=name)

    async def _open_busy(self, stack: AsyncExitStack) -> None:
        """A host that refuses requests once, with a Retry-After that cannot be obeyed (B42)."""
        server = await stack.enter_async_context(bad_server())
        url = f"http://127.0.0.1:{server.port}"
        wishes = {"/banana": "banana", "/huge": "999999999", "/past": "Thu, 01 Jan 1970 00:00:00 GMT", "/minus": "-1"}
        for path, wish in wishes.items():
            server.answer(path, reply(429, b"<p>later", [HTML, ("Retry-After", wish)]))
            self.statuses[url + path] = 429
        server.scripts["/once"] = answers.first_then(
            reply(503, b"", [("Retry-After", "0.5, 1e9")]), reply(200, b"<title>once</title>", [HTML])
        )
        self.good[f"{url}/once"] = "once"
        links = "".join(f"<a href='{path}'>x</a>" for path in (*wishes, "/once"))
        server.answer("/", reply(200, f"<title>busy</title>{links}".encode(), [HTML]))
        self._seed(f"{url}/", good="busy")

    def _open_deaf(self) -> socket.socket:
        """A listener that accepts connections and never sends anything, not even to a TLS handshake."""
        deaf = socket.socket()
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(64)
        self._seed(f"https://127.0.0.1:{deaf.getsockname()[1]}/", bad="connect_timeout")
        return deaf

    def _open_closed(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._seed(f"http://127.0.0.1:{free.getsockname()[1]}/", bad="connect_error")

    def _seed(self, url: str, *, good: str | None = None, bad: str | None = None) -> None:
        self.seeds.append(url)
        if good is not None:
            self.good[url] = good
        if bad is not None:
            self.bad[url] = bad

    # The main server

    def _play(self) -> None:
        self._play_bad()
        self._play_good()
        self._play_statuses()
        self._play_inward()
        self._play_maps()
        self._main.scripts["*"] = self._answer
        hubs = {"Bad": self._under("/bad/"), "Good": self._under("/good/"), "Others": self._others()}
        for name, links in hubs.items():
            self._page(f"/hub/{name.lower()}", name, *links)
        self._page("/", "Hostile", *(f"/hub/{name.lower()}" for name in hubs))
        self.seeds.insert(0, f"{self.address}/")

    def _play_bad(self) -> None:
        canary = self._canaries[0].port
        for name, (code, script) in (
            answers.wire() | answers.floods() | answers.encodings() | answers.redirects(canary)
        ).items():
            self._scripts[f"/bad/{name}"] = script
            self.bad[f"{self.address}/bad/{name}"] = code
        for hop in range(1, CHAIN):
            self._scripts[f"/chain/{hop}"] = redirect(f"/chain/{hop + 1}")
        self._scripts["/circle/1"] = redirect("/circle/2")
        self._scripts["/circle/2"] = redirect("/circle/1")

    def _play_good(self) -> None:
        for name, script in (
            pages.transfers() | pages.compressed() | pages.charsets() | pages.markup() | pages.ways()
        ).items():
            self._scripts[f"/good/{name}"] = script
            self._scripts[f"/land/{name}"] = send(reply(200, pages.body(name), [HTML]))
            self.good[f"{self.address}/good/{name}"] = f"good {name}"
            self._page(f"/from/{name}", f"from {name}", "/")
        for hop in range(9, 0, -1):
            onward = f"/hops/{hop - 1}/redirected-nine-times" if hop > 1 else "/land/redirected-nine-times"
            self._scripts[f"/hops/{hop}/redirected-nine-times"] = redirect(onward)
        for path in ("/odd/%FF%FE", "/odd/%zz%", "/odd/a%2Fb", "/odd/%0D%0AX:1", "/odd/" + "a" * self._room()):
            self._page(path, f"odd {path}"[:40].strip())

    def _play_maps(self) -> None:
        canary = self._canaries[0].port
        self._scripts |= maps(self.address, canary)
        self._scripts["/robots.txt"] = send(reply(200, ROBOTS + named(self.address, canary)))
        self._page("/mapped", "mapped")
        self.bad[f"http://127.0.0.1:{canary}/mapped"] = INSIDE

    def _room(self) -> int:
        return pages.LONGEST_URL - len(f"{self.address}/odd/")

    def _play_statuses(self) -> None:
        bomb = [HTML, ("Content-Encoding", "gzip")]
        for name, (status, answer) in {
            "no-content": (204, b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello"),
            "not-modified": (304, b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello"),
            "not-found": (404, reply(404, b"<p>no", [HTML])),
            "gone": (410, reply(410)),
            "choices": (300, reply(300, b"\x1f\x8b" * 100, bomb)),
            "nowhere": (302, reply(302, b"\x1f\x8b" * 100, bomb)),
            "zip-as-html": (200, reply(200, b"PK\x03\x04" + b"<a href=/never>" * 9, [HTML])),
            "program-as-html": (200, reply(200, b"\x7fELF" + b"<a href=/never>" * 9, [HTML])),
            "teapot": (418, reply(418, b"x" * 1000)),
        }.items():
            self._scripts[f"/status/{name}"] = answers.send_and_close(answer)
            self.statuses[f"{self.address}/status/{name}"] = status

    def _play_inward(self) -> None:
        """Links to internal addresses (B1-B10), by a link, a base element and a refresh."""
        canary = self._canaries[1].port
        for url in (
            f"http://127.0.0.1:{canary}/",
            f"http://127.255.255.254:{canary}/",
            f"http://localhost:{canary}/",
            f"http://0.0.0.0:{canary}/",
            f"http://[::1]:{canary}/",
            f"http://[::ffff:7f00:1]:{canary}/",
            f"http://127.0.0.1:{canary}/based",
            meta := f"http://127.0.0.1:{canary}/refreshed",
            "http://10.0.0.1/",
            "http://172.16.0.1/",
            "http://192.168.0.1/",
            "http://169.254.169.254/latest/meta-data/",
            "http://[fd00:ec2::254]/latest/meta-data/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[2002:7f00:1::]/",
            "http://100.64.0.1/",
            "http://224.0.0.1/",
        ):
            self.bad[url] = INSIDE
        based = f"<title>base inside</title><base href='//127.0.0.1:{canary}/'><a href=based>x</a>"
        refresh = f"<title>refresh inside</title><meta http-equiv=refresh content='0; url={meta}'>"
        self._scripts["/base-inside"] = send(reply(200, based.encode(), [HTML]))
        self._scripts["/refresh-inside"] = send(reply(200, refresh.encode(), [HTML]))
        self.good[f"{self.address}/base-inside"] = "base inside"
        self.good[f"{self.address}/refresh-inside"] = "refresh inside"
        inward = [url for url, code in self.bad.items() if code == INSIDE and not url.startswith(self.address)]
        spellings = [f"http://2130706433:{canary}/", f"http://0x7f.1:{canary}/", f"http://0177.1:{canary}/"]
        self._page("/inward", "Inward", *(url for url in inward if not url.endswith("ed")), *spellings)
        storm = "".join(f"<a href='/storm/{number}'>x</a>" for number in range(STORM))
        self._scripts["/many"] = send(reply(200, f"<title>many</title>{storm}".encode(), [HTML]))
        self.good[f"{self.address}/many"] = "many"

    def _others(self) -> list[str]:
        odd = [url.removeprefix(self.address) for url in self.good if "/odd/" in url]
        statuses = [url.removeprefix(self.address) for url in self.statuses]
        return [
            *odd,
            *statuses,
            *TRAPS,
            "/inward",
            "/base-inside",
            "/refresh-inside",
            "/many",
            "/private/x",
            "/storm/x",
        ]

    def _under(self, path: str) -> list[str]:
        return [known for known in self._scripts if known.startswith(path)]

    def _page(self, path: str, title: str, *links: str) -> None:
        anchors = "".join(f'<a href="{link}">x</a>' for link in links)
        body = f"<!doctype html><title>{title}</title><h1>{title}</h1>{anchors}".encode()
        self._scripts[path] = send(reply(200, body, [HTML]))
        self.good[f"{self.address}{path}"] = title

    async def _answer(self, line: Line, asked: Asked) -> None:
        path = asked.target.partition("?")[0]
        script, trap = self._scripts.get(path), trap_of(path)
        if script is not None:
            await script(line, asked)
        elif trap is not None:
            page = trap(asked).replace("{port}", str(self._main.port))
            await line.send(reply(200, page.encode(), [HTML]))
        else:
            await line.send(reply(404))


async def _hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers a greeting of TLS in plain text."""
    writer.write(reply(400, b"this is a plain HTTP port"))
    writer.close()

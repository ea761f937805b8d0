"""A page that tries every way to a private address that a browser has: past the proxy, or through it."""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

START = """<!doctype html><title>start</title>
<link rel=preconnect href="http://127.0.0.1:TCP/"><link rel=prefetch href="http://127.0.0.1:TCP/prefetch">
<link rel=dns-prefetch href="http://prefetched.test/"><link rel=preconnect href="https://preconnected.test/">
<iframe src="http://127.0.0.1:TCP/frame"></iframe><iframe src="/to/frame-redirect"></iframe>
<iframe srcdoc="<script>location = 'http://127.0.0.1:TCP/location'</script>"></iframe>
<iframe srcdoc="<meta http-equiv=refresh content='0; url=http://127.0.0.1:TCP/refresh'>"></iframe>
<img src="http://127.0.0.1:TCP/image"><img src="/to/image-redirect">
<script src="http://127.0.0.1:TCP/script"></script><script src="/to/script-redirect"></script>
<script>
const steps = [], late = name => new Promise(done => setTimeout(done, 8000, [name, "late"]));
function step(name, action) {
  const end = Promise.resolve().then(action).then(result => [name, String(result)], () => [name, "error"]);
  steps.push(Promise.race([end, late(name)]));
}
const opened = (source) => new Promise((open, fail) => { source.onopen = () => open("open"); source.onerror = fail; });
const blind = {mode: "no-cors"};
step("fetch", () => fetch("http://127.0.0.1:TCP/fetch", blind).then(response => response.type));
step("redirect", () => fetch("/to/fetch-redirect").then(response => response.status));
step("tls", () => fetch("https://127.0.0.1:TCP/tls", blind).then(response => response.type));
step("name", () => fetch("http://inside.test/name", blind).then(response => response.type));
step("worker", () => new Promise(done => {
  const source = 'fetch("http://127.0.0.1:TCP/worker", {mode: "no-cors"}).then(r => postMessage(r.type))';
  new Worker(URL.createObjectURL(new Blob([source]))).onmessage = event => done(event.data);
}));
step("service worker", async () => {
  await navigator.serviceWorker.register("/service-worker.js");
  const {active} = await navigator.serviceWorker.ready;
  const channel = new MessageChannel();
  const answer = new Promise(done => { channel.port1.onmessage = event => done(event.data); });
  active.postMessage("go", [channel.port2]);
  return answer;
});
step("websocket", () => opened(new WebSocket("ws://127.0.0.1:TCP/websocket")));
step("own websocket", () => opened(new WebSocket("ws://localhost:SITE/websocket")));
step("events", () => opened(new EventSource("http://127.0.0.1:TCP/events")));
step("beacon", () => navigator.sendBeacon("http://127.0.0.1:TCP/beacon", "x"));
step("webtransport", () => new WebTransport("https://127.0.0.1:UDP/webtransport").ready);
step("webrtc", async () => {
  const login = {username: "a", credential: "b"};
  const turn = ["turn:127.0.0.1:UDP?transport=udp", "turn:127.0.0.1:TCP?transport=tcp"];
  const peer = new RTCPeerConnection({iceServers: [{urls: "stun:127.0.0.1:UDP"}, {urls: turn, ...login}]});
  const found = [];
  peer.onicecandidate = event => event.candidate && found.push(event.candidate.candidate);
  peer.createDataChannel("x");
  await peer.setLocalDescription(await peer.createOffer());
  while (peer.iceGatheringState != "complete")
    await new Promise(done => { peer.onicegatheringstatechange = done; });
  return found.length;
});
window.ended = Promise.all(steps).then(Object.fromEntries);
</script>"""
SERVICE_WORKER = """
self.addEventListener("install", () => self.skipWaiting());
self.onmessage = event => {
  const direct = fetch("http://127.0.0.1:TCP/service-worker", {mode: "no-cors"});
  Promise.allSettled([direct, fetch("/to/service-worker-redirect")])
    .then(ends => event.ports[0].postMessage(ends.map(end => end.status).join()));
};"""
REDIRECTS = ("frame", "image", "script", "fetch", "service-worker")
DIRECT = (
    "fetch",
    "frame",
    "location",
    "refresh",
    "image",
    "script",
    "worker",
    "service-worker",
    "events",
    "beacon",
)
WEBSOCKET_KEY = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass
class EscapingPage:
    """The site with the page, and a private endpoint that must not be reached."""

    site: int = 0
    tcp: int = 0
    udp: int = 0
    escaped: list[bytes] = field(default_factory=list)
    """The connections and datagrams that reached the private endpoint, by TCP or UDP."""
    has_escaped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.site}/"

    @property
    def refused_urls(self) -> set[str]:
        """The plain URLs that a browser requests from the proxy, which refuses them."""
        paths = [*DIRECT, *(f"to/{name}-redirect" for name in REDIRECTS)]
        return {"http://inside.test/name", *map(self._private, paths)}

    @property
    def prefetched_url(self) -> str:
        """One more URL, which a browser requests only when it is idle."""
        return self._private("prefetch")

    def _private(self, path: str) -> str:
        return f"http://127.0.0.1:{self.tcp}/{path}"

    def note(self, data: bytes) -> None:
        self.escaped.append(data)
        self.has_escaped.set()

    async def serve_private(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.note(await reader.read(100))
        writer.close()

    async def serve_site(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(head.split(b" ")[1].decode(), head))
                await writer.drain()
        writer.close()

    def _response(self, path: str, head: bytes) -> bytes:
        if path.startswith("/to/"):
            location = f"Location: http://127.0.0.1:{self.tcp}{path}".encode()
            return b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n" + location + b"\r\n\r\n"
        if found := re.search(rb"Sec-WebSocket-Key: (\S+)", head):
            accept = base64.b64encode(hashlib.sha1(found[1] + WEBSOCKET_KEY).digest())
            switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            return switch + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        texts = {"/": ("text/html", START), "/service-worker.js": ("text/javascript", SERVICE_WORKER)}
        kind, text = texts.get(path, ("text/plain", ""))
        for word, port in (("TCP", self.tcp), ("UDP", self.udp), ("SITE", self.site)):
            text = text.replace(f":{word}", f":{port}")
        return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


class _PrivateDatagrams(asyncio.DatagramProtocol):
    def __init__(self, page: EscapingPage) -> None:
        self._page = page

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._page.note(data)


@asynccontextmanager
async def escaping_page() -> AsyncIterator[EscapingPage]:
    """Serve the page and the private endpoint on loopback."""
    page = EscapingPage()
    site = await asyncio.start_server(page.serve_site, "127.0.0.1", 0)
    private = await asyncio.start_server(page.serve_private, "127.0.0.1", 0)
    datagrams, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _PrivateDatagrams(page), ("127.0.0.1", 0)
    )
    page.site, page.tcp = (server.sockets[0].getsockname()[1] for server in (site, private))
    page.udp = datagrams.get_extra_info("sockname")[1]
    try:
        yield page
    finally:
        site.close()
        private.close()
        datagrams.close()

"""A real Chromium behind the pinning proxy: nothing leaves by another way, and no private address is reached."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from shoal.base.clock import SystemClock
from shoal.egress import AddressRule, Resolver
from shoal.egress.pinning_proxy import PinningProxy, ProxyAccount, chromium_network_flags
from tests.support.browser import Browser, browser
from tests.support.escaping_page import EscapingPage, escaping_page

DEADLINE_SECONDS = 60
NAMES = {"localhost": ("127.0.0.1",), "inside.test": ("10.0.0.1",), "preconnected.test": ("10.0.0.2",)}


async def test_a_page_reaches_no_private_address_and_nothing_leaves_but_through_the_proxy(
    chromium: str, tmp_path: Path
) -> None:
    asked: set[str] = set()

    async def allow(target: str) -> None:
        asked.add(target)
        if page.refused_urls <= asked:
            visit.is_over.set()

    async with Visit(chromium, tmp_path) as visit:
        page, proxy = visit.page, visit.proxy
        account = proxy.open_account(AddressRule(named=frozenset({("localhost", page.site)})), allow=allow)
        ends = await visit.read(account, [*chromium_network_flags(proxy.address)])
        port = proxy.port

    assert page.escaped == []
    assert ends["own websocket"] == "open"
    assert {name for name, end in ends.items() if end == "error"} >= {"redirect", "tls", "websocket", "events"}
    assert ends["service worker"] == "fulfilled,rejected"  # a refused URL, and a redirect to it
    assert ends["webrtc"] == "0"  # candidates
    assert ends["webtransport"] == "error"

    refused = Counter(refusal.url for refusal in account.refusals)
    urls = {target for target in refused if "/" in target}
    assert urls - {page.prefetched_url} == page.refused_urls
    assert refused[f"127.0.0.1:{page.tcp}"] >= 3  # TLS, WebSocket and TURN over TCP ask for tunnels
    assert set(account.counts.codes) == {"address_not_public"}
    assert account.counts.refused == account.counts.codes.total()
    assert set(refused) <= asked

    # The browser's own log of every socket: it connected only to the proxy, and sent no datagram.
    events = net_log(tmp_path / "net-log.json")
    connected = {params["address"] for name, params in events if name == "TCP_CONNECT_ATTEMPT" and params}
    assert connected == {f"127.0.0.1:{port}"}
    assert "UDP_BYTES_SENT" not in {name for name, _ in events}
    assert not {name for name, _ in events if name in ("HOST_RESOLVER_DNS_TASK", "HOST_RESOLVER_SYSTEM_TASK")}
    assert {"localhost", "inside.test"} <= set(visit.resolved) <= set(NAMES)


async def test_without_the_flags_webrtc_does_not_ask_the_proxy(chromium: str, tmp_path: Path) -> None:
    """Without the flags, the page reaches the private endpoint: this proves that the test above can fail."""
    async with Visit(chromium, tmp_path) as visit:
        account = visit.proxy.open_account(AddressRule(named=frozenset({("localhost", visit.page.site)})))
        reading = asyncio.create_task(visit.read(account, [f"--proxy-server=http://{visit.proxy.address}"]))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await visit.page.has_escaped.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert visit.page.escaped


class Visit:
    """A page, a proxy and, while the page is read, a browser."""

    page: EscapingPage
    proxy: PinningProxy

    def __init__(self, path: str, folder: Path) -> None:
        self._path = path
        self._folder = folder
        self._stack = AsyncExitStack()
        self.resolved: list[str] = []
        self.is_over = asyncio.Event()

    async def __aenter__(self) -> "Visit":
        self.page = await self._stack.enter_async_context(escaping_page())
        self.proxy = PinningProxy(resolver=Resolver(SystemClock(), lookup=self._lookup))
        await self.proxy.start()
        self._stack.push_async_callback(self.proxy.aclose)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    async def read(self, account: ProxyAccount, flags: Sequence[str]) -> dict[str, str]:
        """Open the page in a context of its own and wait for what became of each attempt."""
        flags = [*flags, f"--log-net-log={self._folder / 'net-log.json'}"]
        async with browser(self._path, flags, self._folder / "profile") as chromium:
            loaded = asyncio.Event()
            chromium.on_event = lambda method, params, target: answer(chromium, account, loaded, method, params, target)
            server = {"proxyServer": f"http://{self.proxy.address}", "proxyBypassList": "<-loopback>"}
            context = await chromium.call("Target.createBrowserContext", **server)
            opened = await chromium.call("Target.createTarget", url="about:blank", **context)
            attached = await chromium.call("Target.attachToTarget", targetId=opened["targetId"], flatten=True)
            target = attached["sessionId"]
            await chromium.call("Fetch.enable", target, handleAuthRequests=True)
            await chromium.call("Page.enable", target)
            await chromium.call("Page.navigate", target, url=self.page.url)
            async with asyncio.timeout(DEADLINE_SECONDS):
                await loaded.wait()
            result = await chromium.call(
                "Runtime.evaluate", target, expression="window.ended", awaitPromise=True, returnByValue=True
            )
            async with asyncio.timeout(DEADLINE_SECONDS):
                await self.is_over.wait()
        return result["result"]["value"]

    def _lookup(self, host: str) -> tuple[str, ...]:
        self.resolved.append(host)
        return NAMES.get(host, ())


def answer(
    chromium: Browser, account: ProxyAccount, loaded: asyncio.Event, method: str, params: dict[str, Any], target: str
) -> None:
    """Let every request continue, and give the credential to the proxy when it requires one."""
    if method == "Fetch.requestPaused":
        chromium.send("Fetch.continueRequest", target, requestId=params["requestId"])
    elif method == "Fetch.authRequired":
        login = {"response": "ProvideCredentials", "username": account.username, "password": account.password}
        chromium.send("Fetch.continueWithAuth", target, requestId=params["requestId"], authChallengeResponse=login)
    elif method == "Page.loadEventFired":
        loaded.set()


def net_log(path: Path) -> list[tuple[str, dict[str, Any]]]:
    log = json.loads(path.read_text())
    names = {number: name for name, number in log["constants"]["logEventTypes"].items()}
    return [(names[event["type"]], event.get("params", {})) for event in log["events"]]

"""A complete controller, listening in this process, and a client."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPSConnection
from io import StringIO
from typing import Any

from shoal.access.caller import local_caller
from shoal.access.token import TokenRequest
from shoal.app import App, opened
from shoal.base.clock import SystemClock
from shoal.base.signals import Signal, Signals
from shoal.cli.listen import address_of, open_socket
from shoal.cli.serve import Controller
from shoal.observe.logs import Logs
from shoal.observe.metrics import Metrics
from shoal.settings import LogSettings
from shoal.settings_loader import load
from shoal.work.worker import Worker

CRAWLS = "/api/v1/crawls"
ME = local_caller()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)
        return found


@dataclass
class Served:
    """A whole controller, listening."""

    app: App
    port: int
    signals_seen: list[Signal] = field(default_factory=list)
    log: StringIO = field(default_factory=StringIO)
    tls: ssl.SSLContext | None = None

    async def token(self, role: str = "viewer", **more: Any) -> str:
        of_node = {"node_id": "crawler-1"} if role == "node" else {}
        wish = TokenRequest.read({"name": "test", "role": role, **of_node, **more})
        return (await self.app.access.tokens.create(wish, ME)).text

    async def ask(
        self,
        path: str = CRAWLS,
        token: str | None = None,
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        shown = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await asyncio.to_thread(self._ask, method, path, body, shown | dict(headers or {}))

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = (
            HTTPConnection("127.0.0.1", self.port, timeout=30)
            if self.tls is None
            else HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.tls)
        )
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read().decode())
        finally:
            connection.close()


@asynccontextmanager
async def served(
    store_url: str,
    *,
    tls: ssl.SSLContext | None = None,
    team: Callable[[App], Sequence[Worker]] = lambda app: [],
    **given: str,
) -> AsyncIterator[Served]:
    flags = {"DATABASE_URL": store_url, "SHOAL_LISTEN": "127.0.0.1:0", **given}
    door = open_socket(load(flags, env={}).settings.serve.listen)
    flags["SHOAL_LISTEN"] = address_of(door)
    settings = load(flags, env={}).settings
    signals = Signals()
    async with opened(settings, signals) as app:
        shop = Served(app, door.getsockname()[1], tls=tls)
        signals.subscribe(shop.signals_seen.append)
        signals.subscribe(Logs(LogSettings(level="debug", format="json"), SystemClock(), shop.log).listen)
        controller = Controller(app, Metrics(), door, team(app))
        door.listen()
        serving = asyncio.create_task(controller.run())
        try:
            yield shop
        finally:
            controller.stop()
            await serving
            door.close()

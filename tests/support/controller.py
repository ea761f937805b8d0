"""A whole controller, as `shoal serve` builds it, listening in this process: gateway, API, console and chores. Tests of
the API alone use `api`, which starts faster and leaves the chores to the test."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from shoal.access.token import TokenRequest, local_caller
from shoal.app import App, opened
from shoal.base.clock import SystemClock
from shoal.base.settings import LogSettings
from shoal.base.settings_loader import load
from shoal.base.signals import Signal, Signals
from shoal.observe.logs import Logs
from shoal.observe.metrics import Metrics
from shoal.process.controller import Controller
from shoal.process.http import address_of, open_socket
from shoal.work.worker import Worker
from tests.support.http_client import HttpAnswer, request
from tests.support.patience import in_time

CRAWLS = "/api/v1/crawls"
ME = local_caller()


@dataclass
class ServedController:
    """A whole controller, and what it has logged."""

    app: App
    port: int
    signals_seen: list[Signal] = field(default_factory=list)
    log: StringIO = field(default_factory=StringIO)
    tls: ssl.SSLContext | None = None

    async def token(self, role: str = "viewer", **more: Any) -> str:
        """Create a token; the first one of a store must be an admin's."""
        tokens = self.app.access.tokens
        if role != "admin" and not await tokens.any_made():
            await tokens.create(TokenRequest(name="first", role="admin"), ME)
        of_node = {"node_id": "crawler-1"} if role == "node" else {}
        wish = TokenRequest.read({"name": "test", "role": role, **of_node, **more})
        return (await tokens.create(wish, ME)).text

    async def ask(
        self,
        path: str = CRAWLS,
        token: str | None = None,
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        shown = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await asyncio.to_thread(request, self.port, method, path, body, shown | dict(headers or {}), self.tls)


@asynccontextmanager
async def served_controller(
    store_url: str,
    *,
    tls: ssl.SSLContext | None = None,
    team: Callable[[App], Sequence[Worker]] = lambda app: [],
    **given: str,
) -> AsyncIterator[ServedController]:
    flags = {"DATABASE_URL": store_url, "SHOAL_LISTEN": "127.0.0.1:0", **given}
    listener = open_socket(load(flags, env={}).settings.serve.listen)
    flags["SHOAL_LISTEN"] = address_of(listener)
    settings = load(flags, env={}).settings
    signals = Signals()
    async with opened(settings, signals, controls=settings.grpc.enabled) as app:
        shop = ServedController(app, listener.getsockname()[1], tls=tls)
        signals.subscribe(shop.signals_seen.append)
        signals.subscribe(Logs(LogSettings(level="debug", format="json"), SystemClock(), shop.log).listen)
        controller = Controller(app, Metrics(), listener, team(app))
        listener.listen()
        serving = asyncio.create_task(controller.run())
        try:
            yield shop
        finally:
            controller.stop()
            await in_time(serving)
            listener.close()

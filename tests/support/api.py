"""The REST and bot API alone, listening in this process; responses are checked against the schemas of the endpoints.

It has no authentication, no console and no chores: a test runs the chores it needs by hand, and starting it takes a
third of the time of a whole controller, which is in `controller`."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvicorn
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from shoal.app import App, opened
from shoal.base.clock import FakeClock
from shoal.base.settings_loader import load
from shoal.serve.application import application
from shoal.serve.crawl_feed import CrawlFeeds
from shoal.serve.endpoint import Finder, routes_of
from shoal.serve.health import FRESH_SECONDS, HealthApi
from tests.support.http_client import HttpAnswer, request
from tests.support.patience import PATIENCE_SECONDS

MAX_BODY = 1_000_000


@dataclass
class ServedApi:
    """The API of an app, listening on a port of its own."""

    app: App
    port: int
    clock: FakeClock  # the clock of the cached health check
    routes: list[BaseRoute] = field(default_factory=list)

    async def ask(self, path: str, body: Any = None, *, method: str | None = None) -> tuple[int, Any]:
        """Status and JSON of an answer; a POST if there is a body."""
        found = await self.send(method or ("GET" if body is None else "POST"), path, body)
        return found.status, found.json

    async def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, raw: bytes | None = None
    ) -> HttpAnswer:
        sent = raw if body is None else json.dumps(body).encode()
        answered = await asyncio.to_thread(request, self.port, method, path, sent, headers or {})
        self._check(method, path, answered)
        return answered

    async def ask_whether_ready(self) -> tuple[int, Any]:
        """Ask /readyz after its cached result has expired."""
        self.clock.jump(FRESH_SECONDS)
        return await self.ask("/readyz")

    def _check(self, method: str, path: str, answered: HttpAnswer) -> None:
        scope = {"type": "http", "method": method, "path": path.partition("?")[0], "headers": []}
        route = Finder(self.routes).find(scope)
        spec = None if route is None else route.spec
        if answered.status >= 400:
            if answered.headers["content-type"] == "application/problem+json":
                assert {"type", "title", "status", "code", "detail"} <= set(answered.json)
        elif spec is not None and spec.media_type == "application/json":
            is_accepted = answered.status == 202 and spec.accepted is not None
            assert is_accepted or answered.status == spec.status
            shown = spec.accepted if is_accepted else spec.response
            if shown is not None:
                taken = msgspec.to_builtins(msgspec.convert(answered.json, shown))
                if isinstance(taken, dict) and not getattr(shown, "open_fields", False):
                    assert set(taken) == set(answered.json), "undeclared fields"


@asynccontextmanager
async def served_api(store_url: str, **settings: str) -> AsyncIterator[ServedApi]:
    """The API of a new app on this store."""
    flags = {"DATABASE_URL": store_url, "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8", **settings}
    loaded = load(flags, env={}).settings
    async with opened(loaded, controls=loaded.grpc.enabled) as app, listening(app) as api:
        yield api


@asynccontextmanager
async def listening(app: App) -> AsyncIterator[ServedApi]:
    """The API of this app; several apps on one store are several controllers."""
    clock = FakeClock()
    health = HealthApi(app.check_store, lambda: (b"", "text/plain"), clock)
    app.rest_api.crawl_feeds = CrawlFeeds(app.crawls, app.clock, every_seconds=0.05)
    routes = routes_of([*app.rest_api.endpoint_groups, health], MAX_BODY)
    listener = socket.create_server(("127.0.0.1", 0))
    asgi = application(routes, app.clock, app.signals, audit_log=app.access.audit_log)
    async with answering(asgi, listener):
        try:
            yield ServedApi(app, listener.getsockname()[1], clock, routes)
        finally:
            app.rest_api.close()


@asynccontextmanager
async def answering(app: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    """uvicorn without its main loop, which checks ten times a second whether to stop; this one stops when it is
    idle."""
    config = uvicorn.Config(app, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup(sockets=[listener])
    await server.on_tick(0)
    try:
        yield
    finally:
        for one in server.servers:
            one.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while server.server_state.connections or server.server_state.tasks:  # noqa: ASYNC110 (it tells nobody)
                await asyncio.sleep(0.001)
        listener.close()

"""`shoal serve`: the controller. REST, console, janitor, and workers in the same process if asked for."""

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta

import click
import uvicorn
import uvloop

from shoal.access.failures import Failures
from shoal.app import App, opened
from shoal.base.errors import BackendUnavailable, NotAllowed
from shoal.base.reading import Address
from shoal.base.service import Service
from shoal.cli.output import note
from shoal.cli.watching import on_stop, watched
from shoal.cli.worker import workers_of
from shoal.observe.hours import EVERY
from shoal.observe.metrics import Metrics
from shoal.serve.console import ConsoleApi, files
from shoal.serve.endpoint import routes_of
from shoal.serve.health import HealthApi
from shoal.serve.keeper import TokenKeeper, is_loopback
from shoal.serve.live import Live
from shoal.serve.login import Login
from shoal.serve.site import site
from shoal.serve.tls import tls_of
from shoal.settings import load
from shoal.work.worker import Worker

FILE_EVERY = timedelta(seconds=1)  # how long a line of a journal may wait for its file


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Where to listen; beats SHOAL_LISTEN.")
@click.option("--workers", type=click.IntRange(0, 64), default=0, show_default=True, help="Workers in this process.")
@click.option("--store", metavar="URL", help="The store; beats DATABASE_URL.")
def serve(listen: str | None, workers: int, store: str | None) -> None:
    """Run the controller: API, console and chores. SIGTERM ends it in good order."""
    flags = {"SHOAL_LISTEN": listen, "DATABASE_URL": store}
    uvloop.run(_serve(flags, workers))


async def _serve(flags: Mapping[str, str | None], workers: int) -> None:
    asked = load(flags).settings.serve
    tls_of(asked)
    door = open_door(asked.listen)
    flags = {**flags, "SHOAL_LISTEN": address_of(door)}
    loaded = load(flags)
    settings = loaded.settings
    signals, metrics = watched(settings)
    async with opened(settings, signals) as app, workers_of(app, loaded, flags, workers) as team:
        await check_reach(app)
        controller = Controller(app, metrics, door, team)
        note(f"Shoal listens on {controller.address}")
        if app.database.warning:
            note(app.database.warning)
        await controller.run()


def address_of(door: socket.socket) -> str:
    """Where a door really is, whatever port was asked for. Crawls must know it, to leave it alone."""
    return str(Address(*door.getsockname()[:2]))


def open_door(listen: Address) -> socket.socket:
    """The listening socket, opened before anything else so that a taken port is the first thing said."""
    host = listen.host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind((host, listen.port))
    except OSError as error:
        door.close()
        raise BackendUnavailable(
            f"port {listen.port}",
            error.strerror or "taken",
            "stop what uses it, or choose another with --listen",
        ) from None
    return door


async def check_reach(app: App) -> None:
    """Refuse to be reached from elsewhere before there is a token. Nothing is accepted yet: the door is only bound."""
    settings = app.settings.serve
    if is_loopback(settings.listen.host):
        return
    if not await app.tokens().any_made():
        raise NotAllowed(
            f"listening on {settings.listen.host} would let anybody on the network in, and there is no token yet",
            "make one with `shoal tokens create --role admin --name NAME` on this store, or listen on 127.0.0.1",
        )
    if settings.tls_cert is None and not settings.trusted_proxies:
        note(
            f"Whoever is between {settings.listen.host} and its callers can read their tokens: set SHOAL_TLS_CERT and"
            " SHOAL_TLS_KEY, or put a proxy with TLS in front and name it in SHOAL_TRUSTED_PROXIES."
        )


class Controller:
    """Everything that one `shoal serve` runs, started and stopped together."""

    def __init__(self, app: App, metrics: Metrics, door: socket.socket, workers: Sequence[Worker]) -> None:
        self._app = app
        self._door = door
        self._workers = workers
        self._chores = [Service(app.janitor(), app.settings.queue.sweep_every, app.clock, app.signals)]
        self._chores.append(Service(app.filer(), FILE_EVERY, app.clock, app.signals))
        pruner = app.pruner(f"{app.settings.grpc.node_id}/{os.getpid()}")
        self._chores.append(Service(pruner, app.settings.queue.prune_every, app.clock, app.signals))
        every = app.settings.events.forward_every
        self._chores += [Service(chore, every, app.clock, app.signals) for chore in app.messengers()]
        self._chores.append(Service(app.hour_keeper(), EVERY, app.clock, app.signals))
        self._live = Live(app.crawls, app.clock)
        self._room = app.waiting_room()
        often = app.settings.plan.schedule_every
        self._chores += [Service(chore, often, app.clock, app.signals) for chore in app.planners()]
        self._server = uvicorn.Server(self._config(metrics))
        self._stopped = False

    @property
    def address(self) -> str:
        scheme = "http" if self._app.settings.serve.tls_cert is None else "https"
        return f"{scheme}://{address_of(self._door)}"

    async def run(self) -> None:
        on_stop(self.stop)
        self._app.wake.subscribe(lambda: None, lambda: False)  # to notice when what it announces gets lost
        for chore in self._chores:
            chore.start()
        working = [asyncio.create_task(worker.run()) for worker in self._workers]
        try:
            await self._server.serve(sockets=[self._door])
        finally:
            if not self._stopped:
                self.stop()
            await asyncio.gather(*working)
            for chore in self._chores:
                await chore.stop()

    def stop(self) -> None:
        """Once: in good order. Twice: without waiting for what is under way."""
        if self._stopped:
            self._server.force_exit = True
        for worker in self._workers if not self._stopped or self._server.force_exit else []:
            worker.stop()
        self._stopped = True
        self._live.close()
        self._room.close()
        self._server.should_exit = True

    def _health(self, metrics: Metrics) -> HealthApi:
        app = self._app
        return HealthApi(
            app.check_store,
            lambda: (metrics.render(), metrics.content_type),
            app.clock,
            lambda: app.wake.trouble,
        )

    def _config(self, metrics: Metrics) -> uvicorn.Config:
        app, settings = self._app, self._app.settings.serve
        tokens = app.tokens()
        keeper = TokenKeeper(tokens, Failures(app.clock), settings, app.signals)
        groups = [*app.api(tokens, self._live, self._room), self._health(metrics), ConsoleApi(app.crawls)]
        routes = [*routes_of(groups, settings.max_request_bytes), *Login(keeper).routes(), files()]
        config = uvicorn.Config(
            site(routes, app.clock, app.signals, keeper, acts=app.acts(), open_probes=settings.open_probes),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=[str(network) for network in settings.trusted_proxies],
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        config.load()
        config.ssl = tls_of(settings)
        return config

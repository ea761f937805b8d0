"""The controller, `shoal serve`: REST API, console and chores, and optionally workers in the same process."""

import asyncio
import gc
import os
import socket
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.access.limits import AuthThrottle, ConnectionLimits
from shoal.access.token import TokenRequest, local_caller
from shoal.app import App, opened
from shoal.app.connect import SCHEMA_EVERY, SchemaWatch
from shoal.app.console import SAMPLE_EVERY
from shoal.app.data_folders import file_permission_warning
from shoal.base.errors import BadConfig, NodeDisplaced
from shoal.base.machine import make_private, on_stop, open_private
from shoal.base.service import Service
from shoal.base.settings_loader import load
from shoal.hosts.controller_addresses import ANNOUNCE_EVERY
from shoal.observe.logs import note
from shoal.observe.metrics import Metrics
from shoal.pages.export.part_file import check_replace, ends_of
from shoal.process.http import address_of, check_exposure, config_of, health_of, open_socket
from shoal.process.lifetime import watched
from shoal.process.worker import workers_of
from shoal.serve.application import application
from shoal.serve.authentication import TokenAuthenticator
from shoal.serve.connections import LOOK_EVERY, BoundedServer, Certificate, tls_of
from shoal.serve.console.login import Login
from shoal.serve.endpoint import routes_of
from shoal.serve.expensive_reads import ExpensiveReads
from shoal.work.worker import Worker, WorkerDisplaced

if TYPE_CHECKING:
    from shoal.process.control_plane import WorkerControl

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0  # pauses before a failed worker is replaced


async def serve(flags: Mapping[str, str | None], workers: int, first_token_file: Path | None) -> None:
    """Run a controller until it is stopped. `flags` override settings from the environment."""
    asked = load(flags).settings.serve
    tls_of(asked)
    listener = open_socket(asked.listen)
    flags = {**flags, "SHOAL_LISTEN": address_of(listener)}
    loaded = load(flags)
    settings = loaded.settings
    signals, metrics = watched(settings)
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(opened(settings, signals, controls=settings.grpc.enabled))
        app.console.sources = loaded.sources
        if first_token_file is not None:
            await write_first_token(app, first_token_file)
        await check_exposure(app, settings.serve)
        if app.controls:
            from shoal.process.control_plane import listening_for_nodes

            await stack.enter_async_context(listening_for_nodes(app))
        team = await stack.enter_async_context(workers_of(app, loaded, flags, workers))
        controller = Controller(app, metrics, listener, team)
        listener.listen()
        note(f"Shoal is listening on {controller.address}")
        for warning in (app.database.warning, file_permission_warning(app)):
            if warning:
                note(warning)
        # loaded modules stay in memory; a full collection that visits them would stop the event loop for 50 ms
        gc.freeze()
        await controller.run()


class Controller:
    """All services of `shoal serve`, which are started and stopped together."""

    def __init__(self, app: App, metrics: Metrics, listener: socket.socket, workers: Sequence[Worker]) -> None:
        self._app = app
        self._listener = listener
        self._workers = list(workers)
        self._announcing = Service(app.chores.address_announcer, ANNOUNCE_EVERY, app.clock, app.signals)
        samplers = (app.console.rates, app.console.node_rates, app.console.worker_watch)
        sampling = [Service(one, SAMPLE_EVERY, app.clock, app.signals) for one in samplers]
        self._schema = SchemaWatch(app.database, self._stop_once)
        watching = Service(self._schema, SCHEMA_EVERY, app.clock, app.signals)
        self._chores = [*app.chores.controller_services(), self._announcing, *sampling, watching]
        if workers:
            self._chores.append(app.chores.worker_presence(lambda: any(one.is_leasing for one in self._workers)))
        self._server = self._serving(metrics)
        self._ending = asyncio.Event()
        self._controls: list[WorkerControl] = []  # for each worker in this process, if workers report to a controller

    @property
    def address(self) -> str:
        scheme = "http" if self._app.settings.serve.tls_cert is None else "https"
        return f"{scheme}://{address_of(self._listener)}"

    async def run(self) -> None:
        on_stop(self.stop)
        self._app.wake.subscribe(lambda: None, lambda: False)  # subscribed only to notice when notifications get lost
        for chore in self._chores:
            chore.start()
        self._announcing.nudge()  # immediately, because the first crawl of a worker may contain links to this server
        compiling = asyncio.create_task(self._app.console.shell.compile_templates())
        working = [asyncio.create_task(work) for work in self._working()]
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            self._stop_once()
            compiling.cancel()
            await asyncio.gather(*working)
            await asyncio.gather(*(chore.stop() for chore in self._chores))
        if self._schema.error is not None:
            raise self._schema.error

    def _working(self) -> list[Coroutine[None, None, None]]:
        """Return the coroutines that run the workers of this process."""
        places = range(len(self._workers))
        if not self._workers or self._app.settings.grpc.controller is None:
            return [self._work(place) for place in places]
        from shoal.process.control_plane import WorkerControl

        self._controls = [WorkerControl(self._app, partial(self._workers.__getitem__, place)) for place in places]
        return [self._work_connected(place) for place in places]

    async def _work_connected(self, place: int) -> None:
        try:
            await self._controls[place].run(self._work(place))
        except NodeDisplaced as error:  # a displaced worker must not stop the API
            node_id = self._workers[place].node_id
            self._app.signals.emit(WorkerDisplaced(node_id=node_id, error=error.message))

    async def _work(self, place: int) -> None:
        """Run a worker, and replace it if it fails. No other supervisor exists, and the failure of a worker must not
        stop the API."""
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            worker, began = self._workers[place], self._app.clock.monotonic()
            try:
                await worker.run()
                return
            except Exception as error:
                pause_seconds = (
                    FIRST_PAUSE_SECONDS
                    if self._app.clock.monotonic() - began > LONGEST_PAUSE_SECONDS
                    else pause_seconds
                )
                worker.report_failed(error, pause_seconds)
            if await self._ends_within(pause_seconds):
                return
            self._workers[place] = worker.successor()
            pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)

    async def _ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._ending.wait()
        except TimeoutError:
            return False

    def _stop_once(self) -> None:
        if not self._ending.is_set():
            self.stop()

    def stop(self) -> None:
        """Shut down cleanly. On a second call, do not wait for work in progress."""
        if self._ending.is_set():
            self._server.force_exit = True
        self._ending.set()
        for worker in self._workers:
            worker.stop()
        for control in self._controls:
            control.nudge()
        self._app.rest_api.close()
        self._server.should_exit = True

    def _serving(self, metrics: Metrics) -> BoundedServer:
        app, settings = self._app, self._app.settings.serve
        authenticator = TokenAuthenticator(app.access.tokens, AuthThrottle(app.clock), settings, app.signals)
        console = app.console
        health = health_of(app, metrics, lambda: self._workers[0].full_storage if self._workers else {})
        groups = [*app.rest_api.endpoint_groups, health, *console.endpoint_groups]
        login = Login(authenticator, console.shell)
        endpoints = routes_of(groups, settings.max_request_bytes, ExpensiveReads())
        routes = [*endpoints, *login.routes(), console.shell.assets.route()]
        whole = application(
            routes,
            app.clock,
            app.signals,
            authenticator,
            audit_log=app.access.audit_log,
            open_probes=settings.open_probes,
            shell=console.shell,
        )
        server = BoundedServer(config_of(whole, settings), ConnectionLimits(settings, app.clock, app.signals), settings)
        if server.tls is not None:
            self._chores.append(Service(Certificate(server.tls, settings), LOOK_EVERY, app.clock, app.signals))
        return server


async def write_first_token(app: App, path: Path) -> None:
    """Create an admin token and write it to a file that only its owner may read, unless the store has a token."""
    if await app.access.tokens.any_made():
        return
    check_replace(str(path), lambda: ends_of(str(path)).startswith(b"shl_"), called="--first-token-file")
    try:
        make_private(path.parent)
        # The file is opened before the token is created: a token that cannot be written would lock everybody out.
        with os.fdopen(open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
            made = await app.access.tokens.create(TokenRequest(name="first", role="admin"), local_caller())
            file.write(f"{made.text}\n")
    except OSError as error:
        raise BadConfig(
            "--first-token-file", f"cannot be written ({error.strerror})", "give a path in a writable folder"
        ) from None
    note(f"The first token of this store, with the role admin, is in {path}.")

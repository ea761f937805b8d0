"""The process of a worker, and its session with a controller."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import orjson

from shoal import __version__
from shoal.app import App, heartbeat_queue, opened
from shoal.app.file_permissions import file_permission_warning
from shoal.app.schema_watch import EVERY as SCHEMA_EVERY
from shoal.app.schema_watch import SchemaWatch
from shoal.base.errors import NotAllowed
from shoal.base.ids import NodeId
from shoal.base.machine import on_stop
from shoal.base.parsing import Address, is_loopback
from shoal.base.service import Service
from shoal.base.settings import Settings
from shoal.base.settings_loader import LoadedSettings, load
from shoal.fleet.control_client import ControlClient
from shoal.observe.logs import note
from shoal.process.lifetime import watched
from shoal.process.runners import RUNNERS, storage_of
from shoal.queue.job import SHARED_LANE, node_lane
from shoal.queue.queue import Queue
from shoal.web.browser import has_browser
from shoal.work.child_handle import COMMAND, ChildSpawner
from shoal.work.node_agent import BrowserSource, NodeAgent, NodeRendering
from shoal.work.pidfile import PidFile, claim_name
from shoal.work.worker import Worker
from shoal.work.worker_context import StorageWatch, WorkerContext


async def work(flags: Mapping[str, str | None]) -> None:
    """Run a worker until it is stopped. `flags` override settings of the environment."""
    loaded = load(flags)
    settings = loaded.settings
    signals, metrics = watched(settings)
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(opened(settings, signals))
        if warning := file_permission_warning(app):
            note(warning)
        [node] = await stack.enter_async_context(workers_of(app, loaded, flags, 1))
        if settings.work.listen is not None:
            from shoal.process.http import probed

            await stack.enter_async_context(probed(app, metrics, settings.work.listen, lambda: node.full_storage))
        schema = SchemaWatch(app.database, node.stop_once)
        watching = Service(schema, SCHEMA_EVERY, app.clock, app.signals)
        chores = [*app.chores.worker_services(), watching]
        for chore in chores:
            chore.start()
        try:
            await _run(app, node)
        finally:
            await asyncio.gather(*(chore.stop() for chore in chores))
        if schema.error is not None:
            raise schema.error


async def _run(app: App, node: Worker) -> None:
    if app.settings.grpc.controller is None:
        on_stop(node.stop)
        await node.run()
        return
    from shoal.process.worker import WorkerControl

    control = WorkerControl(app, lambda: node)

    def stop() -> None:
        node.stop()
        control.nudge()

    on_stop(stop)
    await control.run(node.run())


@asynccontextmanager
async def workers_of(
    app: App, loaded: LoadedSettings, flags: Mapping[str, str | None], count: int, command: Sequence[str] = COMMAND
) -> AsyncIterator[list[Worker]]:
    """Create `count` workers in this process, each with a name that is unique on this machine."""
    settings = app.settings
    name, given = settings.grpc.node_id, loaded.sources["GRPC_NODE_ID"] != "default"
    async with AsyncExitStack() as stack:
        heartbeats = await stack.enter_async_context(heartbeat_queue(app)) if count else app.queue
        storage = storage_of(app)
        stack.callback(storage.close)
        pidfiles = []
        for number in range(count):
            pidfiles.append(await claim_name(name, settings.database.data_dir, app.clock, given=given and number == 0))
            stack.callback(pidfiles[-1].close)
        if settings.grpc.controller is not None:
            for pidfile in pidfiles:
                if pidfile.previous is not None:  # it has ended, so its jobs need not wait until their leases expire
                    await app.queue.recovery.recover(f"{pidfile.node_id}/{pidfile.previous}")
        yield [_worker(app, flags, pidfile, heartbeats, storage, config_of(loaded), command) for pidfile in pidfiles]


def config_of(loaded: LoadedSettings) -> str:
    """Return the non-default settings and our version, stored with each job the worker runs."""
    given = {row.env: row.value for row in loaded.shown() if row.source != "default"}
    return orjson.dumps({"version": __version__, **given}).decode()


def _worker(
    app: App,
    flags: Mapping[str, str | None],
    pidfile: PidFile,
    heartbeats: Queue,
    storage: StorageWatch,
    config: str,
    command: Sequence[str],
) -> Worker:
    """Create a worker whose children get the same settings: through the environment, plus those set by flags."""
    environment = {**os.environ, **{name: value for name, value in flags.items() if value is not None}}
    context = WorkerContext(
        node_id=pidfile.node_id,
        holder=f"{pidfile.node_id}/{os.getpid()}",
        lanes=(SHARED_LANE,) if app.settings.grpc.controller is None else (node_lane(pidfile.node_id), SHARED_LANE),
        kinds=tuple(RUNNERS),
        queue=app.queue,
        settings=app.settings.work,
        clock=app.clock,
        signals=app.signals,
        spawner=ChildSpawner(app.clock, app.signals, environment, pidfile, command),
        storage=storage,
        config=config,
        page_slots=app.settings.crawl.max_concurrent_curl,
    )
    pidfile.reap()
    return Worker(context, app.wake, heartbeat_queue=heartbeats)


EVERY_INTERFACE = ("", "0.0.0.0", "::")
DEPTH_COUNTED = 1000  # jobs of a private lane that a heartbeat counts


@asynccontextmanager
async def listening_for_nodes(app: App) -> AsyncIterator[Address]:
    """Serve the control plane while the block runs; yield its address."""
    listen = await _listen_address(app)
    server = app.fleet.control_server()
    address = await server.start(listen)
    note(f"The control plane is listening on {address}")
    try:
        yield address
    finally:
        await server.stop()


async def _listen_address(app: App) -> Address:
    """Return the address to listen on: before a token exists, only one that other machines cannot reach."""
    listen = app.settings.grpc.listen
    if is_loopback(listen.host) or await app.access.tokens.any_made():
        if not is_loopback(listen.host) and app.settings.serve.tls_cert is None:
            note("Tokens of nodes are sent unencrypted: set SHOAL_TLS_CERT and SHOAL_TLS_KEY.")
        return listen
    if listen.host in EVERY_INTERFACE:
        note("There is no token yet, so the control plane listens only on the loopback interface.")
        return Address("127.0.0.1", listen.port)
    raise NotAllowed(
        f"listening for nodes on {listen.host} without a token would let everybody on the network register one",
        "create a token with `shoal tokens create --role admin --name NAME` on this store, or listen on 127.0.0.1",
    )


def rendering_of(settings: Settings) -> NodeRendering:
    """Return where a worker with these settings renders pages."""
    if not has_browser(settings.render):
        return NodeRendering()
    source = BrowserSource.SERVICE if settings.render.url else BrowserSource.LOCAL
    return NodeRendering(source, settings.crawl.max_concurrent_chrome)


class WorkerControl:
    """The control plane of one worker. `worker` returns the current one, since a worker that failed is replaced."""

    def __init__(self, app: App, worker: Callable[[], Worker]) -> None:
        settings, node_id = app.settings, NodeId(worker().node_id)
        agent = NodeAgent(
            worker,
            lambda: app.queue.depth_up_to(node_lane(node_id), DEPTH_COUNTED),
            settings.work,
            app.clock,
            is_proxy_mode=bool(settings.egress.proxies),
            rendering=rendering_of(settings),
        )
        self._worker = worker
        self._client = ControlClient(node_id, agent, settings.grpc, app.clock, app.signals)
        agent.on_change = self._client.nudge

    def nudge(self) -> None:
        """Report the state of the worker now."""
        self._client.nudge()

    async def run(self, working: Awaitable[None]) -> None:
        """Await a worker, connected to its controller. If another worker takes over its node id, stop it, and raise
        `NodeDisplaced` once it has handed back its jobs."""
        connecting = asyncio.create_task(self._client.run())
        connecting.add_done_callback(self._on_ended)
        try:
            await working
        finally:
            self._client.close()
            [ended] = await asyncio.gather(connecting, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended

    def _on_ended(self, connecting: "asyncio.Task[None]") -> None:
        if not connecting.cancelled() and connecting.exception() is not None:
            self._worker().stop()

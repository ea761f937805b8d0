"""A worker, `shoal worker`: a node that leases jobs from the store."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import orjson

from shoal import __version__
from shoal.app import App, heartbeat_queue, opened
from shoal.app.connect import SCHEMA_EVERY, SchemaWatch
from shoal.app.data_folders import file_permission_warning
from shoal.base.extras import command as command_of
from shoal.base.extras import is_installed
from shoal.base.machine import on_stop
from shoal.base.service import Service
from shoal.base.settings_loader import LoadedSettings, load
from shoal.observe.logs import note
from shoal.process.lifetime import watched
from shoal.process.runners import RUNNERS, storage_of
from shoal.queue.job import SHARED_LANE, node_lane
from shoal.queue.queue import Queue
from shoal.work.child_handle import COMMAND, ChildSpawner
from shoal.work.pidfile import PidFile, claim_name
from shoal.work.worker import Worker
from shoal.work.worker_context import StorageWatch, WorkerContext


async def work(flags: Mapping[str, str | None]) -> None:
    """Run a worker until it is stopped. `flags` override settings from the environment."""
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
        chores = [*app.chores.worker_services(), app.chores.worker_presence(lambda: node.is_leasing), watching]
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
    from shoal.process.control_plane import WorkerControl

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
        if count and not is_installed("audit"):
            note(
                f"Analyses are left to other workers; to run them here, install the extra with `{command_of('audit')}`."
            )
        storage = storage_of(app)
        stack.callback(storage.close)
        pidfiles = []
        for number in range(count):
            pidfiles.append(await claim_name(name, settings.database.data_dir, app.clock, given=given and number == 0))
            stack.callback(pidfiles[-1].close)
        if settings.grpc.controller is not None:
            for pidfile in pidfiles:
                # the previous process has ended, so its jobs need not wait until their leases expire
                if pidfile.previous is not None:
                    await app.queue.recovery.recover(f"{pidfile.node_id}/{pidfile.previous}")
        yield [_worker(app, flags, pidfile, heartbeats, storage, config_of(loaded), command) for pidfile in pidfiles]


def config_of(loaded: LoadedSettings) -> str:
    """Return the non-default settings and the version of Shoal, which are stored with each job that the worker runs."""
    given = {row.env: row.value for row in loaded.shown() if row.source != "default"}
    return orjson.dumps({"version": __version__, **given}).decode()


def _kinds() -> tuple[str, ...]:
    """Return the kinds of jobs that can run here; analyses need numpy."""
    return tuple(kind for kind in RUNNERS if kind != "analysis" or is_installed("audit"))


def _worker(
    app: App,
    flags: Mapping[str, str | None],
    pidfile: PidFile,
    heartbeats: Queue,
    storage: StorageWatch,
    config: str,
    command: Sequence[str],
) -> Worker:
    """Create a worker whose children get the same settings: the environment, overridden by the flags."""
    environment = {**os.environ, **{name: value for name, value in flags.items() if value is not None}}
    context = WorkerContext(
        node_id=pidfile.node_id,
        holder=f"{pidfile.node_id}/{os.getpid()}",
        lanes=(SHARED_LANE,) if app.settings.grpc.controller is None else (node_lane(pidfile.node_id), SHARED_LANE),
        kinds=_kinds(),
        queue=app.queue,
        settings=app.settings.work,
        clock=app.clock,
        signals=app.signals,
        spawner=ChildSpawner(app.clock, app.signals, environment, pidfile, command),
        storage=storage,
        config=config,
        page_slots=app.settings.crawl.max_concurrent_curl,
        connections=app.settings.crawl.connections_words,
    )
    pidfile.reap()
    return Worker(context, app.wake, heartbeat_queue=heartbeats)

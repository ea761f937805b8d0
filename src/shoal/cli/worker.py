"""`shoal worker`: a node that takes jobs from the store."""

import os
from collections.abc import Mapping

import click
import uvloop

from shoal.app import App, opened
from shoal.cli.watching import on_stop, watched
from shoal.settings import load
from shoal.work.worker import Worker


@click.command()
@click.option("--store", metavar="URL", help="The store; beats DATABASE_URL.")
def worker(store: str | None) -> None:
    """Run a worker: it leases crawls and runs each in a child. SIGTERM hands them back and ends it."""
    uvloop.run(_work({"DATABASE_URL": store}))


async def _work(flags: Mapping[str, str | None]) -> None:
    settings = load(flags).settings
    signals, _ = watched(settings)
    async with opened(settings, signals) as app:
        node = worker_of(app, flags, settings.grpc.node_id)
        on_stop(node.stop)
        await node.run()


def worker_of(app: App, flags: Mapping[str, str | None], node_id: str) -> Worker:
    """A worker whose children come to the same settings as we did: by the environment, and what our flags changed."""
    environment = {**os.environ, **{name: value for name, value in flags.items() if value is not None}}
    return Worker(node_id, app.queue, app.settings.work, app.clock, app.signals, environment, app.wake)

"""`shoal serve`, `shoal worker` and `shoal renderer`: processes that run until they are stopped. Each is
imported when it is started."""

from pathlib import Path

import click
import uvloop

from shoal.base.settings_loader import load


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Listen on this address; overrides SHOAL_LISTEN.")
@click.option(
    "--workers",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    help="Number of workers to run in this process.",
)
@click.option("--store", metavar="URL", help="Use this store; overrides DATABASE_URL.")
@click.option(
    "--first-token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="If the store has no token yet, create one with the role admin and write it to this file.",
)
def serve(listen: str | None, workers: int, store: str | None, first_token_file: Path | None) -> None:
    """Run the controller: REST API, console and background chores. SIGTERM shuts it down cleanly."""
    flags = {"SHOAL_LISTEN": listen, "DATABASE_URL": store}
    from shoal.process.controller import serve as run

    uvloop.run(run(flags, workers, first_token_file))


@click.command()
@click.option("--store", metavar="URL", help="Use this store; overrides DATABASE_URL.")
def worker(store: str | None) -> None:
    """Run a worker: it executes crawls, analyses and page jobs in child processes. SIGTERM returns
    them to the queue and exits; a second one exits at once."""
    from shoal.process.worker import work

    uvloop.run(work({"DATABASE_URL": store}))


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Listen on this address; overrides SHOAL_RENDERER_LISTEN.")
def renderer(listen: str | None) -> None:
    """Run the render service, which renders pages in Chromium for workers. SIGTERM stops it; clients retry their
    pages."""
    settings = load({"SHOAL_RENDERER_LISTEN": listen}).settings
    from shoal.process.renderer import serve as run

    uvloop.run(run(settings))

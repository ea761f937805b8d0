"""The commands `serve`, `worker`, `renderer`, `config` and `db`."""

import asyncio
import sys
from pathlib import Path

import click
import uvloop

from shoal.app import database_of, wanted_version
from shoal.base.clock import SystemClock
from shoal.base.settings_loader import load
from shoal.base.text import LONGEST, shorten
from shoal.cli.api_client import store_option
from shoal.cli.output import json_option, print_json, print_table
from shoal.cli.root import Command, CommandGroup


@click.command(cls=Command)
@click.option("--listen", metavar="HOST:PORT", help="Listen on this address; overrides SHOAL_LISTEN.")
@click.option(
    "--workers",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    metavar="N",
    help="Number of workers to run in this process.",
)
@store_option
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


@click.command(cls=Command)
@store_option
def worker(store: str | None) -> None:
    """Run a worker: it executes crawls, analyses and page jobs in child processes. SIGTERM returns
    them to the queue and exits; a second SIGTERM exits immediately."""
    from shoal.process.worker import work

    uvloop.run(work({"DATABASE_URL": store}))


@click.command(cls=Command)
@click.option("--listen", metavar="HOST:PORT", help="Listen on this address; overrides SHOAL_RENDERER_LISTEN.")
def renderer(listen: str | None) -> None:
    """Run the render service, which renders pages in Chromium for workers. SIGTERM stops it; clients retry their
    pages."""
    settings = load({"SHOAL_RENDERER_LISTEN": listen}).settings
    from shoal.process.renderer import serve as run

    uvloop.run(run(settings))


LONGEST_SHOWN = 50  # characters of a value on a terminal; pipes get the full value


@click.group(cls=CommandGroup)
def config() -> None:
    """Show the effective settings and their sources."""


@config.command()
@json_option
def show(as_json: bool) -> None:
    """Print every setting with its value and its source. The source is flag, env, the path of a file, or default."""
    rows = load().shown()
    if as_json:
        print_json({row.env: {"value": row.plain, "source": row.source} for row in rows})
    else:
        longest = LONGEST_SHOWN if sys.stdout.isatty() else LONGEST
        print_table(
            ["setting", "source", "value"], [(row.env, row.source, shorten(row.value, longest)) for row in rows]
        )


@click.group(cls=CommandGroup)
def db() -> None:
    """Show or upgrade the schema of the store."""


@db.command()
@store_option
@json_option
def current(store: str | None, as_json: bool) -> None:
    """Show the schema version of the store. Also shows the version that this release of Shoal needs."""
    asyncio.run(_report(store, upgrade=False, as_json=as_json))


@db.command()
@store_option
@json_option
def upgrade(store: str | None, as_json: bool) -> None:
    """Upgrade the schema of the store to the version that Shoal needs."""
    asyncio.run(_report(store, upgrade=True, as_json=as_json))


async def _report(store: str | None, *, upgrade: bool, as_json: bool) -> None:
    database = database_of(load({"DATABASE_URL": store}).settings.database, SystemClock())
    version = await (database.upgrade() if upgrade else database.current())
    wanted = wanted_version(database)
    if as_json:
        print_json({"store": database.name, "version": version, "wanted": wanted})
    else:
        fix = "update Shoal" if version > wanted else "run `shoal db upgrade`"
        state = "up to date" if version == wanted else f"this Shoal needs {wanted}: {fix}"
        print(f"{database.name}: schema version {version} ({state})")

"""`shoal db`: show the schema version of the store, and apply missing migrations."""

import asyncio

import click

from shoal.app import database_of, wanted_version
from shoal.base.clock import SystemClock
from shoal.base.settings_loader import load
from shoal.cli.output import json_option, print_json
from shoal.cli.root import CommandGroup


@click.group(cls=CommandGroup)
def db() -> None:
    """Show or upgrade the schema of the store."""


@db.command()
@json_option
def current(as_json: bool) -> None:
    """Show the schema version of the store. Also shows the version that this release of Shoal needs."""
    asyncio.run(_report(upgrade=False, as_json=as_json))


@db.command()
@json_option
def upgrade(as_json: bool) -> None:
    """Upgrade the schema of the store to the version this Shoal needs."""
    asyncio.run(_report(upgrade=True, as_json=as_json))


async def _report(*, upgrade: bool, as_json: bool) -> None:
    database = database_of(load().settings.database, SystemClock())
    version = await (database.upgrade() if upgrade else database.current())
    wanted = wanted_version(database)
    if as_json:
        print_json({"store": database.name, "version": version, "wanted": wanted})
    else:
        fix = "update Shoal" if version > wanted else "run `shoal db upgrade`"
        state = "up to date" if version == wanted else f"this Shoal needs {wanted}: {fix}"
        print(f"{database.name}: schema version {version} ({state})")

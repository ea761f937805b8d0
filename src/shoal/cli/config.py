"""`shoal config`: the effective settings and where each comes from. Secrets are never shown."""

import sys

import click

from shoal.base.settings_loader import load
from shoal.base.text import LONGEST, shorten
from shoal.cli.output import json_option, print_json, print_table
from shoal.cli.root import CommandGroup

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

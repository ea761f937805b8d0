"""`shoal jobs`: what machines work on, one by one or in groups."""

import click

from shoal.cli import groups
from shoal.cli.frame import Group


@click.group(cls=Group)
def jobs() -> None:
    """Make page jobs, and see what they gave."""


for command in groups.COMMANDS:
    jobs.add_command(command)

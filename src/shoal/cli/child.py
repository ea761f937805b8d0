"""Where a worker's child starts. Not a command: only a worker calls it, with its own process id."""

import sys

import uvloop

from shoal.app import opened, run_of
from shoal.cli.collector import spare
from shoal.cli.watching import watched
from shoal.settings import load
from shoal.work.child import Child, die_with_parent


async def _serve() -> None:
    settings = load().settings
    signals, _ = watched(settings)
    async with opened(settings, signals) as app:
        await Child(settings, lambda lease, alive: run_of(app, lease, alive), app.clock, signals).serve()


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    spare()
    uvloop.run(_serve())

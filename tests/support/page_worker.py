"""`shoal worker` whose page child is that of `page_child`."""

import sys

import uvloop

from shoal.app import opened
from shoal.base.machine import on_stop
from shoal.base.settings_loader import load
from shoal.process.lifetime import watched
from shoal.process.worker import workers_of

COMMAND = (sys.executable, "-m", "tests.support.page_child")


async def work() -> None:
    loaded = load()
    signals, _ = watched(loaded.settings)
    async with opened(loaded.settings, signals) as app, workers_of(app, loaded, {}, 1, COMMAND) as [node]:
        on_stop(node.stop)
        await node.run()


if __name__ == "__main__":
    uvloop.run(work())

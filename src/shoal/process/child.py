"""The entry point of a worker's child process. It is not a command: only workers start it, with their pid and the
child's role as arguments."""

import gc
import os
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # saves a fifth of the start-up time, as imports create no garbage; `reduce_collections` enables collection
    gc.disable()

import uvloop

from shoal.app import App, opened
from shoal.base.errors import ShoalError
from shoal.base.machine import die_with_parent
from shoal.base.service import Service
from shoal.base.settings_loader import RemovedSetting, load
from shoal.hosts.controller_addresses import ANNOUNCE_EVERY
from shoal.process.lifetime import logged, reduce_collections
from shoal.process.runners import RUNNERS, Runs, page_job_executor
from shoal.work.child_loop import Child, ChildRefused, PagesRole, RunsRole
from shoal.work.page_job_loop import holder_of

if TYPE_CHECKING:
    from shoal.page_jobs.executor import PageJobExecutor

Pages = Callable[[App, Sequence[str]], "PageJobExecutor"]


def main(runs: Runs = RUNNERS, pages: Pages = page_job_executor) -> None:
    """Serve the parent's messages on stdin, as a child for runs or for page jobs, depending on the role."""
    parent, role, *words = sys.argv[1:]
    die_with_parent(int(parent))
    reduce_collections()
    uvloop.run(_serve_pages(pages, *words) if role == "pages" else _serve_runs(runs))


@asynccontextmanager
async def _begun() -> AsyncIterator[App]:
    """Open the application of a child. An error at start, such as an unavailable store, is reported in one line."""
    warnings.simplefilter("ignore", RemovedSetting)  # the worker has already printed the warning
    settings = load().settings
    signals = logged(settings)  # without metrics: the worker counts them
    try:
        async with opened(settings, signals) as app:
            await app.controller_addresses.run_once()
            learning = Service(app.controller_addresses, ANNOUNCE_EVERY, app.clock, signals)
            learning.start()
            try:
                yield app
            finally:
                await learning.stop()
    except ShoalError as error:
        signals.emit(ChildRefused(pid=os.getpid(), error=error.message))
        sys.exit(error.response.exit_code)


async def _serve_runs(runs: Runs) -> None:
    async with _begun() as app:
        queue = app.settings.queue
        role = RunsRole(lambda lease, alive: runs[lease.kind](app, lease, alive), queue, app.clock)
        await Child(role, queue, app.clock, app.signals, app.browsers).serve()


async def _serve_pages(pages: Pages, worker: str, *lanes: str) -> None:
    async with _begun() as app:
        settings, holder = app.settings, holder_of(worker, os.getpid())
        with closing(pages(app, lanes)) as executor:
            role = PagesRole(executor, app.queue, settings.crawl.max_concurrent_curl, holder, app.signals)
            app.wake.subscribe(role.nudge, lambda: True)
            await Child(role, settings.queue, app.clock, app.signals, app.browsers).serve()


if __name__ == "__main__":
    main()

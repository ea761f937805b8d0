"""The loop of a page child in the process of the test: it leases page jobs, fetches their pages and stores results."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shoal.app import App
from shoal.process.runners import page_job_executor
from shoal.work.page_job_loop import LoopCallbacks, PageJobLoop


@asynccontextmanager
async def page_loop(app: App, slots: int = 15) -> AsyncIterator[list[str]]:
    """Run the page jobs of an app; yields what went wrong with the store."""
    executor, troubles = page_job_executor(app), list[str]()
    callbacks = LoopCallbacks(
        leased=lambda: None,
        alone=lambda fence: None,
        error=lambda doing, error: troubles.append(f"{doing}: {error}"),
    )
    loop = PageJobLoop(executor, app.queue, slots, "node/1/pages/2", callbacks)
    unsubscribe = app.wake.subscribe(loop.nudge, lambda: True)
    running = asyncio.create_task(loop.run())
    try:
        yield troubles
    finally:
        unsubscribe()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        executor.close()

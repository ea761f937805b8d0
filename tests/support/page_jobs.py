"""Page jobs that wait for a bot or a worker."""

import json
from typing import Any

from shoal.app import App
from shoal.base.ids import JobId, new_id
from shoal.page_jobs.spec import host_of
from shoal.queue.job import NewJob


async def add_page_jobs(app: App, *urls: str, payload: dict[str, Any] | None = None, **more: Any) -> list[JobId]:
    """Enqueue a job for each URL, or for one if none is given. `payload` is added to that of each of them."""
    jobs = [
        NewJob(
            JobId(new_id("job")),
            "page",
            None,
            payload=json.dumps({"url": url, **(payload or {})}),
            host=host_of(url),
            **more,
        )
        for url in urls or ("https://a.example/1",)
    ]
    return [one.id for one in await app.queue.enqueue(jobs)]

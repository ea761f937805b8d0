"""Scrapes: single pages for callers that wait for them. Each is a page job of the highest priority."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.errors import InvalidInput, NotFound, NoWorker, ShoalError
from shoal.base.ids import JobId
from shoal.base.signals import Signal, Signals
from shoal.base.text import json_of, shorten
from shoal.base.url import origin
from shoal.egress.address import AddressRule
from shoal.page_jobs.scraped_page import document
from shoal.page_jobs.spec import KIND, ScrapeConfig, check_url
from shoal.page_jobs.store import ResultStore, ScrapeResult
from shoal.pages.page import Page
from shoal.queue.job import BROWSER, SCRAPES, Job, NewJob, quota_keys, with_retries
from shoal.queue.job_admin import JobAdmin
from shoal.queue.moves import JobMoved, JobsMoved
from shoal.queue.presence import is_worker_running
from shoal.queue.queue import Queue
from shoal.queue.states import TERMINAL, JobState

PRIORITY: Final = 100
PROJECT: Final = "default"  # the project whose quota applies
NO_WORKER: Final = "no_worker"  # the reason for cancelling a scrape that no worker takes
NO_WORKER_SECONDS: Final = 5.0  # within this time, an idle worker polls, starts its page child and takes the job
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.01, 0.5  # pause between two queries for jobs that have ended
PAUSE_PART: Final = 0.125  # the pause as a share of the time that the youngest request has waited


class Scrape(Struct, frozen=True):
    """The current state of a scrape. `explanation`: why it has no result (yet). `result`: its page as JSON, in the form
    that the API uses."""

    id: str
    state: JobState
    explanation: str | None = None
    result: bytes | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in TERMINAL


class JobEnds:
    """Waits for the ends of jobs. One query covers the jobs of all callers. It runs when jobs of this process move, and
    otherwise at intervals that grow with the waiting time of the youngest caller."""

    def __init__(self, database: Database, queue: Queue, clock: Clock, signals: Signals) -> None:
        self._database = database
        self._queue = queue
        self._clock = clock
        self._waiting: dict[str, list[asyncio.Future[bool]]] = {}
        self._youngest_since = 0.0
        self._hint = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self.is_closed = False  # this process stops
        signals.subscribe(self._on_signal)

    async def wait(self, job_id: str, seconds: float) -> bool:
        """Wait until a job has ended, or was removed; return False if it has not ended after this time, or if this
        process stops."""
        if self.is_closed:
            return False
        ended = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job_id, []).append(ended)
        self._youngest_since = self._clock.monotonic()
        self._hint.set()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on())
        try:
            await asyncio.wait({ended}, timeout=seconds)
            return ended.done() and ended.result()
        finally:
            ended.cancel()
            if job_id in self._waiting and all(one.done() for one in self._waiting[job_id]):
                del self._waiting[job_id]

    def close(self) -> None:
        """Release all callers, because this process stops."""
        self.is_closed = True
        self._release(list(self._waiting), ended=False)

    def _on_signal(self, signal: Signal) -> None:
        if self._waiting and isinstance(signal, JobsMoved | JobMoved) and signal.kind == KIND:
            self._hint.set()

    async def _look_on(self) -> None:
        try:
            while self._waiting:
                self._hint.clear()
                await self._look()
                pause = PAUSE_PART * (self._clock.monotonic() - self._youngest_since)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(max(pause, SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)):
                        await self._hint.wait()
        finally:
            self._looking = None  # whatever ended this task, the next caller starts a new one

    async def _look(self) -> None:
        ids = sorted(self._waiting)
        with suppress(ShoalError):  # callers see the error when their time is up, because they read the store, too
            live = await self._database.read(lambda tx: self._queue.jobs.live_among(tx, ids))
            self._release([one for one in ids if one not in live], ended=True)

    def _release(self, job_ids: Sequence[str], *, ended: bool) -> None:
        for job_id in job_ids:
            for one in self._waiting.pop(job_id, ()):
                if not one.done():
                    one.set_result(ended)


class Scrapes:
    """Operations on scrapes. The id of a scrape is the id of its job. `start_worker`: the command that starts a
    worker."""

    def __init__(
        self, database: Database, queue: Queue, jobs: JobAdmin, rule: AddressRule, ends: JobEnds, start_worker: str
    ) -> None:
        self._database = database
        self._queue = queue
        self._jobs = jobs
        self._rule = rule
        self.ends = ends
        self._start_worker = start_worker
        self._results = ResultStore()

    async def start(self, config: ScrapeConfig, scrape_id: str) -> None:
        """Store the job, unless an earlier request with the same id has stored it. Look for a result, too, because it
        is kept longer than the job, and a second job with the same id could not store its own."""
        url = check_url(config.url, self._rule, "url")
        if "screenshot" in config.formats and config.render == "never":
            raise InvalidInput("formats", "names screenshot, which needs a browser", "set render to auto or always")
        payload = with_retries(
            0,  # the caller decides whether to try again
            url=url,
            formats=list(dict.fromkeys(config.formats)),
            render=config.render,
            crawl_config={"js_required": config.render == "always" or "screenshot" in config.formats},
        )
        job = NewJob(
            id=JobId(scrape_id),
            kind=KIND,
            run_id=None,
            payload=payload,
            priority=PRIORITY,
            max_attempts=1,
            capability=config.capability,
            quota_keys=quota_keys(PROJECT, {}),
            host=origin(url),
        )

        async def commit(tx: Tx) -> None:
            if await self._queue.jobs.get(tx, job.id) is None and await self._results.of_scrape(tx, job.id) is None:
                await self._queue.enqueue_in(tx, [job])

        await self._database.run(commit)

    async def wait(self, scrape_id: str, seconds: float) -> Scrape:
        """Return a scrape when it has ended, or its current state after this time. If no worker takes the scrape, it is
        cancelled, and every waiting caller gets `NoWorker`."""
        first = min(seconds, NO_WORKER_SECONDS)
        if not await self.ends.wait(scrape_id, first) and seconds > first and not self.ends.is_closed:
            await self._cancel_if_untaken(scrape_id)
            await self.ends.wait(scrape_id, seconds - first)
        job, scrape = await self._look(scrape_id)
        if job is not None and job.state is JobState.CANCELLED and job.state_reason == NO_WORKER:
            raise NoWorker(job.url or "the page", self._start_worker, needs_browser=job.capability in BROWSER)
        return scrape

    async def get(self, scrape_id: str) -> Scrape:
        """Return the current state of a scrape; its result is kept longer than its job."""
        return (await self._look(scrape_id))[1]

    async def _look(self, scrape_id: str) -> tuple[Job | None, Scrape]:
        async def look(tx: Tx) -> tuple[Job | None, ScrapeResult | None]:
            job = await self._queue.jobs.get(tx, JobId(scrape_id))
            return job, await self._results.of_scrape(tx, scrape_id)

        job, found = await self._database.read(look)
        if (job is None and found is None) or (job is not None and job.capability not in SCRAPES):
            raise NotFound("scrape", shorten(scrape_id))
        if found is not None and (job is None or job.state in TERMINAL):
            return job, Scrape(scrape_id, JobState(found.state), result=_document(found))
        explained = await self._jobs.explain(scrape_id)
        return explained.job, Scrape(scrape_id, explained.job.state, str(explained.sentence))

    async def withdraw(self, scrape_id: str) -> None:
        """Cancel a scrape for which nobody waits any more, unless a worker has leased it."""
        await self._jobs.withdraw(scrape_id, "asked")

    async def _cancel_if_untaken(self, scrape_id: str) -> None:
        found = await self._jobs.explain(scrape_id)
        if found.reason not in (NO_WORKER, "no_renderer") or found.job.lease_epoch:
            return
        if found.job.capability in BROWSER or not await is_worker_running(self._database):
            await self._jobs.withdraw(scrape_id, NO_WORKER)


def _document(found: ScrapeResult) -> bytes:
    """Return the stored result of a scrape. If the page was not fetched, the result contains only the error."""
    if found.data is not None:
        return found.data.encode()
    page = Page(url=found.url, depth=0, fetched_at=found.fetched_at, attempt=found.epoch)
    page.error_code, page.error_message = found.error_code, found.error_message
    return json_of(document(page))

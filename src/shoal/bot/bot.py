"""The bot: runs several jobs at the same time, and renews each lease by heartbeats until the result of the job is
delivered."""

import asyncio
import os
import platform
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.base.clock import Clock, SystemClock
from shoal.base.errors import InvalidInput, LeaseLost, ShoalError, TimeError, TooLarge
from shoal.base.machine import on_stop
from shoal.bot.client import BotClient, BotJob

if TYPE_CHECKING:
    from shoal.bot.fetcher import BotFetcher, BotPage

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0  # pauses between retries while the server is unreachable
BEATS = 3  # heartbeats per lease term
LONGEST_MESSAGE = 2000
MOST_AT_ONCE = 100  # maximum number of jobs per pull that servers allow

Handler = Callable[[BotJob], Awaitable[Any]]
Tell = Callable[[str], None]


class Bot:
    """Pulls jobs, runs the handler, pushes results. At most `concurrency` jobs run at the same time; a pull waits up to
    `wait_seconds` for a job. Without `fetcher`, one is created on first use, from the settings of this machine."""

    def __init__(
        self,
        server: str,
        token: str = "",
        *,
        name: str | None = None,
        capabilities: Sequence[str] = ("http",),
        concurrency: int = 4,
        wait_seconds: float = 20.0,
        grace_seconds: float = 30.0,
        clock: Clock | None = None,
        fetcher: "BotFetcher | None" = None,
        tell: Tell = lambda line: None,
    ) -> None:
        self.name = name or re.sub(r"[^A-Za-z0-9_.:@-]", "-", f"{platform.node()}-{os.getpid()}")[:100]
        self._clock = clock or SystemClock()
        self._server, self._token = server, token
        self._capabilities = list(capabilities)
        self._concurrency = concurrency
        self._wait = wait_seconds
        self._grace = grace_seconds
        self._fetcher = fetcher
        self._tell = tell
        self._handler: Handler | None = None
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = asyncio.Event()
        self.done = 0  # number of delivered results

    def on_job(self, handler: Handler) -> Handler:
        """Register the handler. The return value of the handler is the data of the result. If the handler raises an
        exception, the job fails with the exception as the reason."""
        self._handler = handler
        return handler

    async def fetch(self, job: BotJob) -> "BotPage":
        """Fetch the page of a job if robots.txt allows it; raise `JobFailed` if the page cannot be fetched."""
        return await self.fetcher.page(job)

    @property
    def fetcher(self) -> "BotFetcher":
        if self._fetcher is None:
            from shoal.base.settings_loader import load
            from shoal.bot.fetcher import BotFetcher

            self._fetcher = BotFetcher(load().settings, self._clock, browser="js" in self._capabilities)
        return self._fetcher

    def run(self) -> None:
        """Work until SIGTERM or Ctrl-C, then finish the running jobs."""
        asyncio.run(self._run_with_signals())

    async def _run_with_signals(self) -> None:
        on_stop(self.stop)
        await self.serve()

    def stop(self) -> None:
        """Stop pulling jobs, and finish the running jobs within the grace period; a second call cancels the running
        jobs."""
        if self._stopping.is_set():
            for task in self._tasks:
                task.cancel()
        self._stopping.set()
        self._free.set()

    async def serve(self) -> None:
        """Pull and run jobs until `stop` is called."""
        if self._handler is None:
            raise RuntimeError("a bot needs a handler; see Bot.on_job")
        wire = BotClient(self._server, self._token, self._clock)
        try:
            while not self._stopping.is_set():
                await self._pull(wire)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._grace)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            wire.close()
            if self._fetcher is not None:
                self._fetcher.close()

    async def _pull(self, wire: BotClient) -> None:
        capacity = min(MOST_AT_ONCE, self._concurrency - len(self._tasks))
        if capacity <= 0:
            self._free.clear()
            await self._free.wait()
            return
        for job in await self._patiently("pull", lambda: self._until_stop(wire, capacity)) or []:
            task = asyncio.create_task(self._work(wire, job))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _until_stop(self, wire: BotClient, capacity: int) -> list[BotJob]:
        asking = asyncio.ensure_future(wire.pull(self.name, self._capabilities, capacity, self._wait))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return await asking if asking.done() else []
        finally:
            # the server notices the disconnect and releases jobs that it may already have leased to this bot
            asking.cancel()
            stopping.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free.set()
        if not task.cancelled() and task.exception() is not None:
            self._tell(f"a job was dropped: {task.exception()}")

    async def _work(self, wire: BotClient, job: BotJob) -> None:
        """Run the handler and deliver its result while the lease is valid."""
        working = asyncio.ensure_future(self._result(wire, job))
        beating = asyncio.ensure_future(self._beat(wire, job))
        try:
            await asyncio.wait({working, beating}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
                self.done += 1
            else:
                self._tell(f"the lease of {job.id} was lost, or the job was cancelled")
        except LeaseLost:
            self._tell(f"the result of {job.id} arrived too late")
        except ShoalError as error:
            self._tell(f"the result of {job.id} was rejected: {error.message}")
        finally:
            working.cancel()
            beating.cancel()

    async def _result(self, wire: BotClient, job: BotJob) -> None:
        result = await self._try(job)
        try:
            await self._patiently("push", lambda: wire.push(job, result))
        except (InvalidInput, TooLarge, TypeError) as refusal:  # TypeError: the result cannot be serialized to JSON
            self._tell(f"the result of {job.id} was rejected: {refusal}")
            failed = _refused(result, refusal)
            await self._patiently("push", lambda: wire.push(job, failed))

    async def _try(self, job: BotJob) -> dict[str, Any]:
        from shoal.bot.fetcher import Found, JobFailed

        assert self._handler is not None
        began, found, error = self._clock.monotonic(), Found(None), None
        try:
            given = await self._handler(job)
            found = given if isinstance(given, Found) else Found(given)
        except JobFailed as failure:
            error = {"code": failure.code[:100], "message": str(failure)[:LONGEST_MESSAGE]}
        # any exception of the user's handler is reported; the server decides whether to retry
        except Exception as failure:
            error = {"code": type(failure).__name__, "message": str(failure)[:LONGEST_MESSAGE]}
        meta = {
            "crawl_duration": round(self._clock.monotonic() - began, 3),
            "error": error,
            "html_hash": found.html_hash,
        }
        return {"status": "success" if error is None else "fail", "data": found.data, "meta": meta}

    async def _beat(self, wire: BotClient, job: BotJob) -> None:
        """Renew the lease until the job is cancelled or the lease is lost, then return."""
        while True:
            await self._clock.sleep(job.ttl_seconds / BEATS)
            try:
                if not await wire.heartbeat(job):
                    return
            except LeaseLost:
                return
            except TimeError as error:
                self._tell(f"heartbeat of {job.id}: {error.message}")
            except ShoalError as error:
                self._tell(f"heartbeat of {job.id} was rejected: {error.message}")
                return

    async def _patiently(self, what: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Retry while the server is unavailable. A pull is given up when the bot stops, and a push when the lease is
        lost."""
        pause_seconds = FIRST_PAUSE_SECONDS
        while True:
            try:
                return await ask()
            except TimeError as error:
                wait = max(pause_seconds, float(error.facts.get("retry_after_seconds") or 0))
                self._tell(f"{what}: {error.message} Retrying in {wait:g} s.")
            if self._stopping.is_set() and what == "pull":
                return None
            await self._clock.sleep(wait)
            pause_seconds = min(LONGEST_PAUSE_SECONDS, pause_seconds * 2)


def _refused(result: dict[str, Any], refusal: Exception) -> dict[str, Any]:
    """Return a failure to send instead of a rejected result. Without this failure, the lease would expire and the job
    would be retried again and again."""
    error = {"code": "result_refused", "message": str(refusal)[:LONGEST_MESSAGE]}
    return {"status": "fail", "data": None, "meta": result["meta"] | {"error": error, "html_hash": None}}

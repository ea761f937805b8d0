"""One scan on Shoal's store: a crawl whose URLs are taken by callers, one at a time, under a lease.

Any number of processes may share a scan: each has its own job, in a lane that workers do not lease from, and renews its
lease. If a process dies, the next process that uses the scan returns the dead process's URLs to the queue.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from shoal.app import App
from shoal.base.database import Tx
from shoal.base.errors import AlreadyExists, LeaseLost, NotFound, ShoalError, StateConflict
from shoal.base.ids import JobId, new_id
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl, FrontierDriver
from shoal.crawl.engine.walker_commits import WalkerCommits
from shoal.crawl.engine.walker_context import WalkerStores
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, NewUrl, Settled, WalkerBatch, key_of
from shoal.crawl.lifecycle.crawls import KIND
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.crawl.store import HostRate
from shoal.process.crawl_request import read_config, read_id
from shoal.queue import states as job_states
from shoal.queue.job import Job, Lease, NewJob, local_lane
from shoal.queue.states import GrantEnd, JobState
from shoal.work.leases import LeaseRenewer, holder_name, is_gone

MOST_SEEDS = 10_000  # maximum in the options of a crawl; further seeds are added separately
DEEPEST = 32_767
AT_ONCE = HostRate(0.0)
SHORTEST_WAIT_SECONDS = 0.01  # used when another transaction has just locked the host
LONGEST_WAIT_SECONDS = 0.25
TURN_SECONDS = 0.001  # a call from a caller's thread takes about a tenth of this time
BUSY_TRIES = 200  # after that, the waiting URLs are left to other processes
ALREADY = frozenset({CrawlState.QUEUED, CrawlState.RUNNING})
ENDED = TERMINAL | {CrawlState.STOPPING}


@dataclass(frozen=True, slots=True)
class Statistics:
    """The number of waiting URLs, and of all URLs ever added. A URL that `next` has returned counts as processed until
    it goes back to the queue."""

    queued: int = 0
    seen: int = 0

    def as_dict(self) -> dict[str, int]:
        return {"queued": self.queued, "seen": self.seen, "processed": self.seen - self.queued}


@dataclass(frozen=True, slots=True)
class ScanLease:
    """Our claim on the scan: a leased job, and the task that renews its lease."""

    crawl: Crawl
    lease: Lease
    commits: WalkerCommits
    renewer: LeaseRenewer
    keeping: asyncio.Task[None]


class Scan:
    """The access of one process to a scan."""

    def __init__(self, app: App, scan_id: str, *, at_once: bool = False) -> None:
        """`at_once`: callers use the methods `…_at_once`, which call Redis from the caller's thread."""
        self.id = read_id(scan_id, "scan_id")
        self._app = app
        self._calls = app.stores.single_calls() if at_once else None
        self._janitor = app.chores.janitor
        self._lock = asyncio.Lock()
        self._turning = threading.Lock()  # held together with `_lock`, or by a caller's thread
        self._hold: ScanLease | None = None
        self._held: dict[Url, FrontierTask] = {}  # returned by `next` and not settled
        self._undelivered: deque[FrontierTask] = deque()  # taken for a caller that was then cancelled
        self._in_doubt = False  # we do not know whether our last commit succeeded
        self._paused_here = False
        self._watched: dict[JobId, int | None] = {}  # lease ends of other processes' jobs when first seen

    async def find(self) -> Crawl | None:
        return await self._app.database.read(lambda tx: self._app.crawls.store.get(tx, self.id))

    async def begin(self, seeds: Sequence[Url], max_depth: int, frontier: FrontierDriver | None = None) -> bool:
        """Create the scan unless it exists or has no seeds; return whether it was created. `frontier`: the driver of
        its frontier, by default the driver in the settings."""
        if not seeds:
            return False
        config = read_config({"seeds": list(seeds[:MOST_SEEDS]), "depth": max_depth, "sitemap": "off"}, _public_name)
        try:
            await self._app.crawls.submit(config, crawl_id=self.id, named=[], local=True, frontier=frontier)
        except AlreadyExists:
            return False
        await self.add(seeds[MOST_SEEDS:])
        return True

    def add_at_once(self, url: Url, depth: int, parent: Url | None) -> bool | None:
        """Add a URL from the caller's thread, without querying the database. Return `None` if this needs the
        database."""
        return None if self._calls is None else self._calls.add(url, min(depth, DEEPEST), parent)

    def has_next_at_once(self) -> bool:
        """Return whether any URL waits, from the caller's thread. Return `False` also if this needs the database."""
        return self._calls is not None and (self._calls.waiting() or 0) > 0

    def next_at_once(self) -> Url | None:
        """Settle the URLs held so far and take the next one, from the caller's thread. Return `None` if this needs the
        database."""
        calls = self._calls
        if calls is None or not self._turning.acquire(blocking=False):
            return None
        try:
            hold, done = self._hold, list(self._held.values())
            if hold is None or self._in_doubt or self._undelivered or not hold.renewer.trusted():
                return None
            try:
                task = calls.exchange(hold.lease.fence, done)
                if not done:
                    self._held.clear()
                if task is not None:
                    self._held[task.url] = task
            except BaseException:  # even Ctrl-C: the URL may have been taken
                self._in_doubt = True
                raise
            return None if task is None else task.url
        finally:
            self._turning.release()

    async def add(self, urls: Sequence[Url], depth: int = 0, parent: Url | None = None) -> int | None:
        """Add URLs to the queue; return how many were new, or `None` if the scan does not exist."""

        async def commit(tx: Tx) -> int | None:
            crawl = await self._app.crawls.store.get(tx, self.id)
            if crawl is None:
                return None
            if crawl.state in ENDED:
                raise StateConflict("scan", self.id, crawl.state, "be added to", "clean it up and start again")
            parent_key = None if parent is None else key_of(parent, crawl.key_seed)[0]
            seed, deep = crawl.key_seed, min(depth, DEEPEST)
            new = [NewUrl(*key_of(url, seed), url, deep, Fate.OPEN, parent_key) for url in urls]
            added = await self._app.crawls.add_urls(tx, crawl, new)
            await self._look_in(tx, crawl, urls[-1] if urls else None)
            return added

        return await self._app.database.run(commit)

    async def _look(self) -> None:
        """Read the data for calls from callers' threads from the database again, and copy the counters from Redis to
        the database."""

        async def commit(tx: Tx) -> None:
            await self._look_in(tx, await self._app.crawls.store.get(tx, self.id))

        if self._calls is not None:
            await self._app.database.run(commit)

    async def _look_in(self, tx: Tx, crawl: Crawl | None, url: Url | None = None) -> None:
        if self._calls is None:
            return
        if crawl is None or crawl.frontier != "redis" or crawl.state in ENDED:
            tx.on_commit(self._calls.forget)
        else:
            await self._calls.look(tx, crawl.number, url, is_running=crawl.state is CrawlState.RUNNING)

    async def attach(self) -> bool:
        """Lease a job of the scan, resuming it if paused, and return the URLs of dead processes to the queue. Return
        `False` if the scan does not exist or has ended."""
        async with self._alone():
            crawl = await self.find()
            if crawl is None or crawl.state in ENDED:
                return False
            await self._holding(resuming=True)
            return True

    async def next(self, *, settling: bool) -> Url | None:
        """Take the next URL, which is held until it is settled; return `None` if no URL is waiting. `settling`: first
        settle all URLs held so far."""
        if self._hold is None and await self._is_over():
            return None
        tries = 0
        while (task := await self._taken(settling)) is None:
            wait = await self._wait()
            tries += wait == 0
            if wait is None or tries > BUSY_TRIES:
                return None
            await self._app.clock.sleep(min(max(wait, SHORTEST_WAIT_SECONDS), LONGEST_WAIT_SECONDS))
        self._held[task.url] = task
        return task.url

    async def settle(self, url: Url) -> None:
        """Settle a URL that we hold. A URL that we do not hold (any more) is left unchanged."""
        if url in self._held:
            await asyncio.shield(self._turn([self._held[url]], 0))

    async def has_next(self) -> bool:
        """Return whether any URL is waiting, or is held by a dead process."""
        while not (await self.statistics()).queued:
            wait = await self._wait()
            if wait is None:
                return False
            await self._app.clock.sleep(min(max(wait, SHORTEST_WAIT_SECONDS), LONGEST_WAIT_SECONDS))
        return True

    async def statistics(self) -> Statistics:
        await self._look()

        async def look(tx: Tx) -> Statistics:
            crawl = await self._app.crawls.store.get(tx, self.id)
            if crawl is None:
                return Statistics()
            counts = await self._app.crawls.store.counts(tx, crawl.number)
            return Statistics(
                counts.queued - await self._app.stores.frontier_admins.of(crawl).taken(tx, crawl.number), counts.opened
            )

        return await self._app.database.read(look)

    async def pause(self) -> None:
        """Pause the scan for all processes. URLs that we hold are returned to the queue."""
        if await self.find() is not None:
            async with self._alone():
                await self._app.crawls.pause(self.id, "pause_scan")
                await self._leave("pause_scan")
                self._paused_here = True

    async def erase(self) -> None:
        """Remove the scan from the store. Raises an error while another process uses it."""
        await self._return_lost_urls()
        _, walked = await self._app.database.read(lambda tx: self._app.queue.jobs.live_of_run(tx, self.id))
        if walked > (self._hold is not None):
            raise StateConflict(
                "scan", self.id, "crawled by another process", "be cleaned up", "stop that process first"
            )
        await self.leave()
        crawl = await self.find()
        if crawl is not None:
            if crawl.state not in TERMINAL:
                await self._app.crawls.stop(self.id, "cleanup")
            await self._app.frontier_admin.erase(self.id)

    async def leave(self, *, settling: bool = False) -> None:
        """Return our job. URLs that we hold and have not settled go back to the queue."""
        async with self._alone():
            await self._leave("left", list(self._held.values()) if settling else [])

    def let_go(self) -> None:
        """Stop renewing the lease without waiting; safe to call from a finalizer in any thread."""
        if self._hold is not None:
            loop = self._hold.keeping.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._hold.keeping.cancel)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        async with self._lock:
            while not self._turning.acquire(blocking=False):  # waiting must not block the loop, which renews the lease
                await self._app.clock.sleep(TURN_SECONDS)
            try:
                yield
            finally:
                self._turning.release()

    async def _is_over(self) -> bool:
        """Return whether the scan does not exist, or has ended with no URLs left."""
        crawl = await self.find()
        return crawl is None or (crawl.state in ENDED and not (await self.statistics()).queued)

    async def _taken(self, settling: bool) -> FrontierTask | None:
        """Take one URL. If the caller is cancelled during the commit, the URL is kept for the next call."""
        done = list(self._held.values()) if settling else []
        if done or not self._undelivered:
            turn = asyncio.ensure_future(self._turn(done, 0 if self._undelivered else 1))
            try:
                self._undelivered += await asyncio.shield(turn)
            except asyncio.CancelledError:
                turn.add_done_callback(self._keep)
                raise
        return self._undelivered.popleft() if self._undelivered else None

    def _keep(self, turn: "asyncio.Future[list[FrontierTask]]") -> None:
        if not turn.cancelled() and turn.exception() is None:
            self._undelivered += turn.result()

    async def _turn(self, done: list[FrontierTask], want: int) -> list[FrontierTask]:
        """Settle and take URLs in one commit. If the lease was lost, nothing may be settled any more: get a new lease
        and only take URLs."""
        async with self._alone():
            hold = await self._holding()
            try:
                state, work = await self._commit(hold, done, want)
            except LeaseLost:
                self._forget()
                hold = await self._holding()
                state, work = await self._commit(hold, [], want)
            except BaseException:
                self._in_doubt = True
                raise
            for task in done:
                self._held.pop(task.url, None)
            if state is not CrawlState.RUNNING and not self._held:
                await self._leave(state.value)
            if state is not CrawlState.RUNNING and want:
                raise StateConflict("scan", self.id, state, "give another URL", "resume it first")
            return work

    async def _commit(
        self, hold: ScanLease, done: list[FrontierTask], want: int
    ) -> tuple[CrawlState, list[FrontierTask]]:
        app, fence = self._app, hold.lease.fence
        batch = WalkerBatch([Settled(task, Fate.FETCHED) for task in done])

        async def commit(tx: Tx) -> tuple[CrawlState, list[FrontierTask]]:
            state, taken = await hold.commits.exchange(tx, batch, want)
            if state is CrawlState.RUNNING and want:  # let other processes take from the same host
                await app.stores.frontier_admins.of(hold.crawl).unclaim(tx, hold.crawl.number, fence)
            if self._calls is not None:
                now = await app.crawls.store.get(tx, self.id)
                await self._look_in(tx, now, taken[0].url if taken else None)
            return state, taken

        return await app.database.run(commit)

    async def _holding(self, *, resuming: bool = False) -> ScanLease:
        if self._hold is not None and self._in_doubt:
            await self._begin_again(self._hold)
        if self._hold is None:
            self._hold = await self._attach(resuming or self._paused_here)
            self._paused_here = False
        return self._hold

    async def _begin_again(self, hold: ScanLease) -> None:
        """Recover after a commit with unknown outcome: return every URL that we still hold to the queue."""
        self._held.clear()
        self._undelivered.clear()
        try:
            await hold.commits.attach()
        except LeaseLost:
            self._forget()
        self._in_doubt = False

    async def _attach(self, resuming: bool) -> ScanLease:
        await self._return_lost_urls()
        crawl = await self.find()
        if crawl is None:
            raise NotFound("scan", self.id, "start one with seeds")
        if crawl.state is CrawlState.PAUSED and resuming:
            await self._app.crawls.resume(self.id, local=True)
        lease = await self._lease(crawl)
        app = self._app
        stores = WalkerStores(
            database=app.database,
            crawls=app.crawls,
            frontiers=app.stores.frontiers,
            queue=app.queue,
            bodies=app.bodies,
        )
        commits = WalkerCommits(stores, crawl, lease.fence, rate=AT_ONCE)
        renewer = LeaseRenewer(app.queue, lease, app.clock)
        return ScanLease(crawl, lease, commits, renewer, asyncio.create_task(self._keep_alive(renewer)))

    async def _lease(self, crawl: Crawl) -> Lease:
        """Create and lease a job for this process in one commit. Waiting jobs, which nobody holds, are cancelled."""
        app = self._app
        job = NewJob(JobId(new_id("job")), KIND, self.id, lane=local_lane(self.id), priority=crawl.priority)

        async def commit(tx: Tx) -> Lease:
            now = await app.crawls.store.lock(tx, self.id)
            if now is None or now.state not in ALREADY:
                state = "gone" if now is None else now.state
                raise StateConflict("scan", self.id, state, "give URLs", "resume it, or clean it up and start again")
            await app.queue.jobs.cancel_waiting(tx, self.id, "replaced")
            await app.queue.enqueue_in(tx, [job])
            lease = await app.queue.lease_one_in(tx, job.id, holder_name())
            assert lease is not None
            started = await app.crawls.started(tx, self.id, job.id)
            await app.stores.frontiers.of(crawl).recover(tx, crawl.number)
            await app.crawls.journal.write(tx, crawl.number, started)
            return lease

        return await app.database.run(commit)

    async def _wait(self) -> float | None:
        """Return the seconds to wait before the next attempt to take a URL; `None` if no URL is waiting."""
        other_seeds = await self._return_lost_urls()
        hold = self._hold
        if hold is None:
            return None
        number, stores = hold.crawl.number, self._app.stores
        frontier = stores.frontiers.of(hold.crawl)

        async def look(tx: Tx) -> tuple[int, int, float]:
            await frontier.recover(tx, number)
            taken = await stores.frontier_admins.of(hold.crawl).taken(tx, number)
            counts = await self._app.crawls.store.counts(tx, number)
            return counts.queued - taken, taken, await frontier.next_in_seconds(tx, number) or 0.0

        waiting, taken, next_in = await self._app.database.run(look)
        if waiting:
            return next_in
        ours = len(self._held) + len(self._undelivered)
        # A process on a different machine may be dead. This shows only when its lease expires, so do not report "empty"
        # yet.
        return LONGEST_WAIT_SECONDS if taken > ours and any(map(self._is_unknown, other_seeds)) else None

    async def _return_lost_urls(self) -> list[Job]:
        """Put the jobs of dead processes back into the queue; return the other leased jobs, whose processes may be
        alive."""
        jobs = await self._app.database.read(lambda tx: self._app.queue.jobs.jobs_of_run(tx, self.id))
        ours = None if self._hold is None else self._hold.lease.fence.job_id
        locked = [job for job in jobs if job.state is JobState.LOCKED and job.id != ours]
        gone = [job for job in locked if is_gone(job.lease_holder or "")]
        for job in gone:
            await self._return_urls(job)
        if len(gone) < len(locked):
            await self._janitor.run_once()
        return [job for job in locked if job not in gone]

    async def _return_urls(self, job: Job) -> None:
        queue = self._app.queue
        move = job_states.give_back(job.id, job.lease_epoch, GrantEnd.CRASHED, "its process is gone")
        with suppress(LeaseLost):  # another process has already returned the job
            await self._app.database.run(lambda tx: queue.moves.move_in(tx, move, KIND, self.id, job))

    def _is_unknown(self, job: Job) -> bool:
        """Return whether a job's process may be dead: it is on a different machine and has not renewed its lease since
        we first saw the lease."""
        here = holder_name().rsplit("/", 2)[0]
        if (job.lease_holder or "").startswith(f"{here}/"):
            return False
        return self._watched.setdefault(job.id, job.lease_until) == job.lease_until

    async def _leave(self, reason: str, done: Sequence[FrontierTask] = ()) -> None:
        hold, report = self._hold, WalkerBatch([Settled(task, Fate.FETCHED) for task in done])
        self._forget()
        await self._copy_counters()
        if hold is not None:
            with suppress(LeaseLost):  # if the lease is lost, there is no job to return
                await hold.commits.hand_back(report, reason)

    def _forget(self) -> None:
        if self._hold is not None:
            self._hold.keeping.cancel()
        self._hold = None
        self._held.clear()
        self._undelivered.clear()
        self._in_doubt = False

    async def _keep_alive(self, renewer: LeaseRenewer) -> None:
        async with renewer:
            while True:
                await self._app.clock.sleep(self._app.queue.settings.extend_every.total_seconds())
                await self._copy_counters()

    async def _copy_counters(self) -> None:
        """Copy to the database the counters that calls from other threads have changed. If the store is unavailable,
        ignore the error: a later call copies the counters."""
        if self._calls is not None and self._calls.has_changes:
            with suppress(ShoalError):
                await self._look()


def _public_name(option: str) -> str:
    return "max_depth" if option == "depth" else option

"""One scan on Shoal's store: a crawl that its callers walk by hand, one URL at a time, each under a lease of its own.

Any number of processes may walk one scan: each has a job of its own, in a lane that no worker takes from, and keeps its
lease alive. What a process held when it died is put back by whoever comes next.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from shoal.app import App
from shoal.base.database import Tx
from shoal.base.errors import AlreadyExists, LeaseLost, NotFound, StateConflict
from shoal.base.ids import JobId, new_id
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.walker_commits import WalkerCommits
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, NewUrl, Settled, WalkerBatch, key_of
from shoal.crawl.lifecycle.crawls import KIND
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.crawl.store import HostRate
from shoal.local.crawl_request import read_config, read_id
from shoal.queue import states as job_states
from shoal.queue.job import Job, Lease, NewJob, local_lane
from shoal.queue.states import GrantEnd, JobState
from shoal.work.lease_renewer import LeaseRenewer
from shoal.work.local_lease import holder_name, is_gone

MOST_SEEDS = 10_000  # that a crawl's options hold; more are added one by one
DEEPEST = 32_767
AT_ONCE = HostRate(timedelta(0))
SHORTEST_WAIT = 0.01  # seconds: another taker had the host under lock just now
LONGEST_WAIT = 0.25
BUSY_TRIES = 200  # after that many, what waits is somebody else's to take
ALREADY = frozenset({CrawlState.QUEUED, CrawlState.RUNNING})
ENDED = TERMINAL | {CrawlState.STOPPING}


@dataclass(frozen=True, slots=True)
class Statistics:
    """How many URLs wait, and how many were ever added. What was given out is processed, or comes back."""

    queued: int = 0
    seen: int = 0

    def as_dict(self) -> dict[str, int]:
        return {"queued": self.queued, "seen": self.seen, "processed": self.seen - self.queued}


@dataclass(frozen=True, slots=True)
class Hold:
    """Our right to take: a leased job of the scan, and the task that keeps the lease alive."""

    crawl: Crawl
    lease: Lease
    walk: WalkerCommits
    keeping: asyncio.Task[None]


class Scan:
    """The scan as one of its callers sees it."""

    def __init__(self, app: App, scan_id: str) -> None:
        self.id = read_id(scan_id, "scan_id")
        self._app = app
        self._janitor = app.janitor()
        self._lock = asyncio.Lock()
        self._hold: Hold | None = None
        self._held: dict[Url, FrontierTask] = {}  # given out, and not settled
        self._undelivered: deque[FrontierTask] = deque()  # taken for a caller that was gone when they came
        self._in_doubt = False  # whether our last commit was stored is not known
        self._paused_here = False
        self._watched: dict[JobId, int | None] = {}  # where the leases of strangers ended when we first saw them

    async def find(self) -> Crawl | None:
        return await self._app.database.read(lambda tx: self._app.crawls.store.get(tx, self.id))

    async def begin(self, seeds: Sequence[Url], max_depth: int) -> bool:
        """Make the scan, unless it exists or has no seed; whether it was made."""
        if not seeds:
            return False
        config = read_config({"seeds": list(seeds[:MOST_SEEDS]), "depth": max_depth, "sitemap": "off"}, _called)
        try:
            await self._app.crawls.submit(config, crawl_id=self.id, named=[], here=True)
        except AlreadyExists:
            return False
        await self.add(seeds[MOST_SEEDS:])
        return True

    async def add(self, urls: Sequence[Url], depth: int = 0, parent: Url | None = None) -> int | None:
        """Let these URLs wait; how many were new. None if there is no such scan."""

        async def commit(tx: Tx) -> int | None:
            crawl = await self._app.crawls.store.get(tx, self.id)
            if crawl is None:
                return None
            if crawl.state in ENDED:
                raise StateConflict("scan", self.id, crawl.state, "be added to", "clean it up and begin again")
            parent_key = None if parent is None else key_of(parent, crawl.key_seed)[0]
            seed, deep = crawl.key_seed, min(depth, DEEPEST)
            new = [NewUrl(*key_of(url, seed), url, deep, Fate.OPEN, parent_key) for url in urls]
            return await self._app.crawls.add_urls(tx, crawl.number, new)

        return await self._app.database.run(commit)

    async def attach(self) -> bool:
        """Get a lease to take under, and what lost processes held back into the queue; a paused scan is resumed.
        False if there is no such scan, or if it was ended for good."""
        async with self._lock:
            crawl = await self.find()
            if crawl is None or crawl.state in ENDED:
                return False
            await self._holding(resuming=True)
            return True

    async def next(self, *, settling: bool) -> Url | None:
        """The next URL, ours until it is settled; None if none waits. `settling`: what we had before is done."""
        if self._hold is None and await self._is_over():
            return None
        tries = 0
        while (task := await self._taken(settling)) is None:
            wait = await self._wait()
            tries += wait == 0
            if wait is None or tries > BUSY_TRIES:
                return None
            await self._app.clock.sleep(min(max(wait, SHORTEST_WAIT), LONGEST_WAIT))
        self._held[task.url] = task
        return task.url

    async def settle(self, url: Url) -> None:
        """A URL that we were given is done. One that is not ours, or no longer, stays as it is."""
        if url in self._held:
            await asyncio.shield(self._turn([self._held[url]], 0))

    async def has_next(self) -> bool:
        """Whether anything waits: what lost processes held, too."""
        while not (await self.statistics()).queued:
            wait = await self._wait()
            if wait is None:
                return False
            await self._app.clock.sleep(min(max(wait, SHORTEST_WAIT), LONGEST_WAIT))
        return True

    async def statistics(self) -> Statistics:
        async def look(tx: Tx) -> Statistics:
            crawl = await self._app.crawls.store.get(tx, self.id)
            if crawl is None:
                return Statistics()
            counts = await self._app.crawls.store.counts(tx, crawl.number)
            return Statistics(counts.queued - await self._app.archive.taken(tx, crawl.number), counts.opened)

        return await self._app.database.read(look)

    async def pause(self) -> None:
        """Hold the scan still, for everybody. What we were given and did not settle waits again."""
        if await self.find() is not None:
            async with self._lock:
                await self._app.crawls.pause(self.id, "pause_scan")
                await self._leave("pause_scan")
                self._paused_here = True

    async def erase(self) -> None:
        """Remove the scan from the store; refused while another process walks it."""
        await self._give_back_lost()
        _, walked = await self._app.database.read(lambda tx: self._app.queue.live_of_run(tx, self.id))
        if walked > (self._hold is not None):
            raise StateConflict("scan", self.id, "walked by another process", "be cleaned up", "end that one first")
        await self.leave()
        crawl = await self.find()
        if crawl is not None:
            if crawl.state not in TERMINAL:
                await self._app.crawls.stop(self.id, "cleanup")
            await self._app.archivist().erase(self.id)

    async def leave(self, *, settling: bool = False) -> None:
        """Hand our job back; what we have and did not settle waits again."""
        async with self._lock:
            await self._leave("left", list(self._held.values()) if settling else [])

    def let_go(self) -> None:
        """Stop keeping the lease: from wherever we are collected, without waiting for anything."""
        if self._hold is not None:
            loop = self._hold.keeping.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._hold.keeping.cancel)

    async def _is_over(self) -> bool:
        """Whether there is no scan, or one that was ended for good with nothing left to give."""
        crawl = await self.find()
        return crawl is None or (crawl.state in ENDED and not (await self.statistics()).queued)

    async def _taken(self, settling: bool) -> FrontierTask | None:
        """One more URL. If our caller goes away while the store works, what it took is kept for the next one."""
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
        """Settle and take, in one commit. With a lease that was lost, so was the right to settle: we begin again."""
        async with self._lock:
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

    async def _commit(self, hold: Hold, done: list[FrontierTask], want: int) -> tuple[CrawlState, list[FrontierTask]]:
        app, number, holder = self._app, hold.crawl.number, hold.lease.holder
        report = WalkerBatch([Settled(task, Fate.FETCHED) for task in done])

        async def commit(tx: Tx) -> tuple[CrawlState, list[FrontierTask]]:
            await app.queue.fence(tx, holder)
            state, _ = await app.crawls.store.control(tx, self.id)
            if done:
                settlement = await app.frontier.settle(tx, number, holder, report)
                await app.crawls.store.add_counts(tx, number, holder.job_id, settlement.counts())
                await app.queue.mark_settled(tx, holder)
            if state is not CrawlState.RUNNING or not want:
                return state, []
            taken = await app.frontier.take(tx, number, holder, want, 0, AT_ONCE)
            await app.archive.unclaim(tx, number, holder)  # others may take from the same host
            return state, taken.tasks

        return await app.database.run(commit)

    async def _holding(self, *, resuming: bool = False) -> Hold:
        if self._hold is not None and self._in_doubt:
            await self._begin_again(self._hold)
        if self._hold is None:
            self._hold = await self._attach(resuming or self._paused_here)
            self._paused_here = False
        return self._hold

    async def _begin_again(self, hold: Hold) -> None:
        """After a commit of which we do not know whether it was stored: everything that is still ours waits again."""
        self._held.clear()
        self._undelivered.clear()
        try:
            await hold.walk.attach()
        except LeaseLost:
            self._forget()
        self._in_doubt = False

    async def _attach(self, resuming: bool) -> Hold:
        await self._give_back_lost()
        crawl = await self.find()
        if crawl is None:
            raise NotFound("scan", self.id, "begin one with seeds")
        if crawl.state is CrawlState.PAUSED and resuming:
            await self._app.crawls.resume(self.id, here=True)
        lease = await self._lease(crawl)
        app = self._app
        walk = WalkerCommits(
            app.database, app.crawls, app.frontier, app.hosts, app.queue, crawl, lease.holder, AT_ONCE, app.pages
        )
        return Hold(crawl, lease, walk, asyncio.create_task(_keep_alive(app, lease)))

    async def _lease(self, crawl: Crawl) -> Lease:
        """A job of our own, made and leased in one commit; those that nobody has any more make room for it."""
        app = self._app
        job = NewJob(JobId(new_id("job")), KIND, self.id, lane=local_lane(self.id), priority=crawl.priority)

        async def commit(tx: Tx) -> Lease:
            now = await app.crawls.store.lock(tx, self.id)
            if now is None or now.state not in ALREADY:
                state = "gone" if now is None else now.state
                raise StateConflict("scan", self.id, state, "give URLs", "resume it, or clean it up and begin again")
            await app.queue.cancel_waiting(tx, self.id, "replaced")
            await app.queue.enqueue_in(tx, [job])
            lease = await app.queue.lease_one_in(tx, job.id, holder_name())
            assert lease is not None
            started = await app.crawls.started(tx, self.id, job.id)
            await app.frontier.recover(tx, crawl.number)
            await app.crawls.journal.write(tx, crawl.number, started)
            return lease

        return await app.database.run(commit)

    async def _wait(self) -> float | None:
        """Nothing could be taken: seconds after which to try again; None if nothing waits."""
        strangers = await self._give_back_lost()
        hold = self._hold
        if hold is None:
            return None
        number = hold.crawl.number

        async def look(tx: Tx) -> tuple[int, int, float]:
            await self._app.frontier.recover(tx, number)
            taken = await self._app.archive.taken(tx, number)
            counts = await self._app.crawls.store.counts(tx, number)
            return counts.queued - taken, taken, await self._app.frontier.next_in(tx, number) or 0.0

        waiting, taken, next_in = await self._app.database.run(look)
        if waiting:
            return next_in
        ours = len(self._held) + len(self._undelivered)
        # A process elsewhere may be dead, and only the end of its lease will tell: until then we do not say "empty".
        return LONGEST_WAIT if taken > ours and any(map(self._is_a_riddle, strangers)) else None

    async def _give_back_lost(self) -> list[Job]:
        """Put back the jobs of processes that are gone; those of others, which may or may not live."""
        jobs = await self._app.database.read(lambda tx: self._app.queue.jobs_of_run(tx, self.id))
        ours = None if self._hold is None else self._hold.lease.holder.job_id
        locked = [job for job in jobs if job.state is JobState.LOCKED and job.id != ours]
        gone = [job for job in locked if is_gone(job.lease_holder or "")]
        for job in gone:
            await self._give_back(job)
        if len(gone) < len(locked):
            await self._janitor.run_once()
        return [job for job in locked if job not in gone]

    async def _give_back(self, job: Job) -> None:
        queue = self._app.queue
        move = job_states.give_back(job.id, job.lease_epoch, GrantEnd.CRASHED, "its process is gone")
        with suppress(LeaseLost):  # somebody else was first
            await self._app.database.run(lambda tx: queue.move_in(tx, move, KIND, self.id))

    def _is_a_riddle(self, job: Job) -> bool:
        """Whether a job's holder cannot be told from a dead one: not of this machine, and not seen to extend yet."""
        here = holder_name().rsplit("/", 2)[0]
        if (job.lease_holder or "").startswith(f"{here}/"):
            return False
        return self._watched.setdefault(job.id, job.lease_until) == job.lease_until

    async def _leave(self, reason: str, done: Sequence[FrontierTask] = ()) -> None:
        hold, report = self._hold, WalkerBatch([Settled(task, Fate.FETCHED) for task in done])
        self._forget()
        if hold is not None:
            with suppress(LeaseLost):  # then there is nothing to hand back
                await hold.walk.hand_back(report, reason)

    def _forget(self) -> None:
        if self._hold is not None:
            self._hold.keeping.cancel()
        self._hold = None
        self._held.clear()
        self._undelivered.clear()
        self._in_doubt = False


async def _keep_alive(app: App, lease: Lease) -> None:
    async with LeaseRenewer(app.queue, lease, app.clock):
        await asyncio.Event().wait()


def _called(name: str) -> str:
    return "max_depth" if name == "depth" else name

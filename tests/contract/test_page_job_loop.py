"""Page jobs in one process, on both stores: slots, batches, jobs that run alone, and what is handed back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import orjson
import pytest

from shoal.app import App, opened
from shoal.base.ids import JobId, new_id
from shoal.base.settings_loader import load
from shoal.base.signals import Signal
from shoal.page_jobs.leasing import PageTask, PutOff
from shoal.queue.job import Fence, Job, Lease, NewJob
from shoal.queue.moves import JobMoved
from shoal.queue.states import GrantEnd, JobState
from shoal.work import page_job_loop
from shoal.work.page_job_loop import LoopCallbacks, PageJobLoop
from tests.support.page_child import PlainPages
from tests.support.patience import wait_until

PATIENCE = 60.0
HOLDER = "node/1/pages/2"


@dataclass
class Bench:
    """A page job loop on a real store."""

    app: App
    work: PlainPages
    loop: PageJobLoop = field(init=False)
    alone: list[Fence | None] = field(default_factory=list)
    beside: list[int] = field(default_factory=list)  # how many jobs ran when each of them began and ended
    troubles: list[str] = field(default_factory=list)
    most: int = 0

    def __post_init__(self) -> None:
        run = self.work.run

        async def counted(lease: object) -> object:
            self.most = max(self.most, self.loop.running)
            return await run(lease)  # type: ignore[arg-type]

        self.work.run = counted  # type: ignore[method-assign, assignment]
        self.loop = PageJobLoop(
            self.work,  # type: ignore[arg-type]
            self.app.queue,
            4,
            HOLDER,
            LoopCallbacks(
                leased=lambda: None,
                alone=self.on_alone,
                error=lambda doing, error: self.troubles.append(f"{doing}: {error}"),
            ),
        )

    def on_alone(self, fence: Fence | None) -> None:
        self.alone.append(fence)
        self.beside.append(self.loop.running)

    async def enqueue(self, *payloads: dict[str, object], count: int = 1) -> list[JobId]:
        jobs = [
            NewJob(JobId(new_id("job")), "page", None, payload=orjson.dumps(payload).decode())
            for payload in payloads
            for _ in range(count)
        ]
        await self.app.queue.enqueue(jobs)
        self.loop.nudge()
        return [job.id for job in jobs]

    async def job(self, job_id: JobId) -> Job:
        found = await self.app.database.read(lambda tx: self.app.queue.jobs.get(tx, job_id))
        assert found is not None
        return found

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await condition():
                await self.app.clock.sleep(0.01)

    async def until_state(self, state: JobState, *ids: JobId) -> list[Job]:
        async def reached() -> bool:
            return all([(await self.job(job_id)).state is state for job_id in ids])

        await self.until(reached)
        return [await self.job(job_id) for job_id in ids]


@asynccontextmanager
async def at_work(app: App, work: PlainPages | None = None) -> AsyncIterator[Bench]:
    bench = Bench(app, work or PlainPages(app.queue))
    task = asyncio.create_task(bench.loop.run())
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[App]:
    settings = load({"DATABASE_URL": store_url, "SHOAL_QUEUE_POLL": "200ms"}).settings
    async with opened(settings) as app:
        yield app


async def test_many_jobs_need_few_commits_and_never_more_than_the_slots(app: App) -> None:
    async with at_work(app) as bench:
        ids = await bench.enqueue({}, count=300)
        await bench.until_state(JobState.DONE, *ids)
        assert bench.most <= 4
        assert len([count for count in bench.work.commits if count]) < 60


async def test_a_job_that_waits_for_its_host_occupies_no_slot(app: App) -> None:
    async with at_work(app) as bench:
        settle = bench.work.settle

        async def settled(results: Sequence[Lease | PutOff], holder: str, want: int) -> list[PageTask]:
            tasks = await settle(results, holder, want)
            for task in tasks:
                task.start_in_seconds = orjson.loads(task.lease.payload).get("start_in_seconds", 0.0)
            return tasks

        bench.work.settle = settled  # type: ignore[method-assign]
        waiting = await bench.enqueue({"start_in_seconds": 3600.0}, count=4)
        await bench.until_state(JobState.LOCKED, *waiting)
        await bench.until_state(JobState.DONE, *await bench.enqueue({}, count=8))
        soon = await bench.enqueue({"start_in_seconds": 0.05})
        await bench.until_state(JobState.DONE, *soon)
        bench.loop.leave(finish_first=False)
        returned = await bench.until_state(JobState.PENDING, *waiting)
        assert [job.attempts for job in returned] == [0] * 4


async def test_no_more_jobs_are_leased_than_can_start_within_two_seconds(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that wait for their hosts are locked for all other workers."""
    monkeypatch.setattr(page_job_loop, "AHEAD_SECONDS", 0.4)
    unstarted: list[int] = []

    class PacedPages(PlainPages):
        """Hosts with any number of jobs, each of which may start in a moment, and occupies its slot for as long."""

        async def run(self, lease: Lease) -> Lease:
            await app.clock.sleep(0.4)
            unstarted.append(len(bench.loop.held) - bench.loop.running)
            return lease

        async def settle(self, results: Sequence[Lease | PutOff], holder: str, want: int) -> list[PageTask]:
            tasks = await super().settle(results, holder, want)
            for task in tasks:
                task.start_in_seconds = 0.3
            return tasks

    async with at_work(app, PacedPages(app.queue)) as bench:
        await bench.enqueue({}, count=200)

        async def many_done() -> bool:
            return len(unstarted) >= 20

        await bench.until(many_done)
    assert max(unstarted) <= 3 * 4  # those of the slots, as many that start in that time, and as many to be stored


async def test_a_job_that_raises_counts_an_attempt_and_the_others_are_done(app: App) -> None:
    async with at_work(app) as bench:
        [broken] = await bench.enqueue({"raise": "no such thing"})
        good = await bench.enqueue({}, count=5)
        await bench.until_state(JobState.DONE, *good)
        [job] = await bench.until_state(JobState.PENDING, broken)
        assert (job.attempts, job.crash_count, job.error) == (1, 0, "RuntimeError: no such thing")


async def test_a_page_job_stopped_by_full_storage_is_handed_back_and_done_later(app: App, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.touch()
    async with at_work(app) as bench:
        [job_id] = await bench.enqueue({"full": str(full), "sleep": 0.05})

        async def tried_thrice() -> bool:
            return (await bench.job(job_id)).lease_epoch > 2

        await bench.until(tried_thrice)
        full.unlink()
        [job] = await bench.until_state(JobState.DONE, job_id)
        assert (job.attempts, job.crash_count) == (0, 0)


async def test_a_job_that_lost_a_worker_runs_with_nothing_beside_it(app: App) -> None:
    first = Bench(app, PlainPages(app.queue))
    [suspect] = await first.enqueue({"sleep": 0.05})
    [lease] = await app.queue.lease("other", ["page"], ["shared"], 1)
    await app.queue.recovery.lose(lease, "its child died")
    async with at_work(app) as bench:
        others = await bench.enqueue({"sleep": 0.02}, count=8)
        await bench.until_state(JobState.DONE, suspect, *others)
        assert [holder and holder.job_id for holder in bench.alone] == [suspect, None]
        assert bench.beside == [0, 0]


async def test_a_job_that_does_not_end_is_given_up_and_the_others_go_on(app: App) -> None:
    app.queue.settings = app.queue.settings.but(stall_deadline=timedelta(seconds=1))
    async with at_work(app) as bench:
        [hanging] = await bench.enqueue({"hang": True})
        good = await bench.enqueue({}, count=5)
        await bench.until_state(JobState.DONE, *good)

        async def given_up() -> bool:
            return (await bench.job(hanging)).crash_count == 1

        await bench.until(given_up)
        first, *_ = await app.database.read(lambda tx: app.stores.jobs.history(tx, hanging))
        assert (first.ended, first.error) == (GrantEnd.CRASHED, "it did not end within 1s")


async def test_a_job_that_waits_too_long_for_a_slot_is_handed_back_without_penalty(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_job_loop, "AHEAD_SECONDS", 0.1)
    told: list[Signal] = []
    app.signals.subscribe(told.append)
    async with at_work(app) as bench:
        quick = await bench.enqueue({}, count=60)  # so that it leases far ahead
        slow = await bench.enqueue({"sleep": 0.7}, count=30)
        await bench.until_state(JobState.DONE, *quick)
        done = await bench.until_state(JobState.DONE, *slow)
        assert any(isinstance(one, JobMoved) and one.reason == "no_slot" for one in told)
        assert [(job.attempts, job.crash_count) for job in done] == [(0, 0)] * 30


async def test_a_page_child_that_leaves_hands_back_unfinished_jobs(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_job_loop, "LEAVE_SECONDS", 0.2)
    async with at_work(app) as bench:
        [hanging] = await bench.enqueue({"hang": True})
        await bench.until_state(JobState.LOCKED, hanging)
        bench.loop.leave(finish_first=False)
        [job] = await bench.until_state(JobState.PENDING, hanging)
        assert (job.state_reason, job.attempts, job.crash_count) == ("shutdown", 0, 0)


async def test_a_page_child_that_leaves_patiently_finishes_its_jobs(app: App, tmp_path: Path) -> None:
    async with at_work(app) as bench:
        ids = await bench.enqueue({"until": str(tmp_path / "go")}, count=4)
        await bench.until_state(JobState.LOCKED, *ids)
        bench.loop.leave(finish_first=True)
        later = await bench.enqueue({})
        (tmp_path / "go").touch()
        await bench.until_state(JobState.DONE, *ids)
        assert (await bench.job(later[0])).state is JobState.PENDING


@pytest.mark.parametrize("drains", [False, True], ids=["leave", "drain"])
async def test_a_job_that_is_handed_back_during_a_lease_request_is_not_leased_again(app: App, drains: bool) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()
    async with at_work(app) as bench:
        settle = bench.work.settle

        async def settled(results: Sequence[Lease | PutOff], holder: str, want: int) -> list[PageTask]:
            if bench.loop.held:
                asked.set()
                await answer.wait()
            tasks = await settle(results, holder, want)
            for task in tasks:
                task.start_in_seconds = 3600.0
            return tasks

        bench.work.settle = settled  # type: ignore[method-assign]
        ids = await bench.enqueue({}, count=4)
        await bench.until_state(JobState.LOCKED, *ids)
        bench.loop.nudge()
        async with asyncio.timeout(PATIENCE):
            await asked.wait()
        late = await bench.enqueue({})
        if drains:
            bench.loop.configure(4, leasing=False)
            bench.loop.return_unstarted("draining")
        else:
            bench.loop.leave(finish_first=False)
        with suppress(TimeoutError):  # a job that is released too soon waits again within this time
            async with asyncio.timeout(0.5):
                await bench.until_state(JobState.PENDING, *ids)
        answer.set()

        async def let_go() -> bool:
            return not bench.loop.held and not bench.loop.is_changing

        await bench.until(let_go)
        returned = await bench.until_state(JobState.PENDING, *ids, *late)
        assert [job.lease_epoch for job in returned] == [1] * 5


async def test_a_job_whose_lease_was_lost_is_cancelled(app: App) -> None:
    async with at_work(app) as bench:
        [hanging] = await bench.enqueue({"hang": True})
        await bench.until_state(JobState.LOCKED, hanging)
        [lease] = await app.queue.held_by(HOLDER)
        await app.queue.finish(lease)
        bench.loop.drop([lease.fence])

        async def let_go() -> bool:
            return bench.loop.held == []

        await bench.until(let_go)
        assert bench.troubles == []


async def test_new_leases_do_not_make_up_for_old_ones_that_were_not_extended(app: App) -> None:
    app.queue.settings = app.queue.settings.but(lease=timedelta(seconds=1))
    async with at_work(app) as bench:
        await bench.enqueue({"hang": True})

        async def trusted_no_more() -> bool:
            [job] = await bench.enqueue({})
            while bench.loop._validity.holds():
                if (await bench.job(job)).state is JobState.DONE:
                    return False
            return True

        await bench.until(trusted_no_more)
        [waiting] = await bench.enqueue({})
        bench.loop.renewed()
        await bench.until_state(JobState.DONE, waiting)


async def test_a_nudge_during_a_lease_request_is_not_lost(app: App) -> None:
    app.queue.settings = app.queue.settings.but(poll_every=timedelta(hours=1))
    asked, answer = asyncio.Event(), asyncio.Event()
    bench = Bench(app, PlainPages(app.queue))
    settle = bench.work.settle

    async def slowly(results: Sequence[Lease | PutOff], holder: str, want: int) -> list[PageTask]:
        tasks = await settle(results, holder, want)
        asked.set()
        await answer.wait()
        return tasks

    bench.work.settle = slowly  # type: ignore[method-assign]
    working = asyncio.create_task(bench.loop.run())
    await wait_until(asked.is_set, asked, working)
    [job] = await bench.enqueue({})
    answer.set()
    await bench.until_state(JobState.DONE, job)
    working.cancel()


async def test_a_finished_job_is_held_until_it_is_stored(app: App) -> None:
    stored = asyncio.Event()
    async with at_work(app) as bench:
        settle = bench.work.settle

        async def slowly(results: Sequence[Lease | PutOff], holder: str, want: int) -> list[PageTask]:
            if results:
                await stored.wait()
            return await settle(results, holder, want)

        bench.work.settle = slowly  # type: ignore[method-assign]
        [done] = await bench.enqueue({})

        async def finished() -> bool:
            return bool(bench.loop.held) and not bench.loop.running

        await bench.until(finished)
        assert [holder.job_id for holder in bench.loop.held] == [done]
        stored.set()
        await bench.until_state(JobState.DONE, done)

        async def let_go() -> bool:
            return bench.loop.held == []

        await bench.until(let_go)


async def test_a_paused_loop_leases_nothing_and_hands_back_what_has_not_started(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_job_loop, "AHEAD_SECONDS", 60.0)  # nothing is handed back for want of a slot
    async with at_work(app) as bench:
        quick = await bench.enqueue({}, count=60)  # so that it leases far ahead
        slow = await bench.enqueue({"sleep": 0.5}, count=12)

        async def leased_ahead() -> bool:
            held = {fence.job_id for fence in bench.loop.held}
            return bench.loop.running == 4 and len(held) > 4 and held.isdisjoint(quick)

        await bench.until(leased_ahead)
        started = [fence.job_id for fence in bench.loop._working]
        bench.loop.configure(2, leasing=False)
        bench.loop.return_unstarted("draining")
        done = await bench.until_state(JobState.DONE, *started)
        assert [job.lease_epoch for job in done] == [1] * 4
        waiting = await bench.until_state(JobState.PENDING, *[job_id for job_id in slow if job_id not in started])
        assert {(job.attempts, job.crash_count) for job in waiting} == {(0, 0)}
        assert (bench.loop.held, bench.loop.is_changing) == ([], False)
        bench.most = 0
        bench.loop.configure(2, leasing=True)
        await bench.until_state(JobState.DONE, *slow)
        assert bench.most == 2

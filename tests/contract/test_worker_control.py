"""A running worker with real children can be paused, resumed, resized and drained."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from shoal.app import App, opened
from shoal.base.errors import InvalidInput
from shoal.base.ids import JobId, NodeId, new_id
from shoal.base.settings import WorkSettings
from shoal.base.settings_loader import load
from shoal.fleet.node import NodeCommand
from shoal.fleet.states import CommandState
from shoal.process.control_plane import rendering_of
from shoal.process.runners import storage_of
from shoal.queue.job import Job, Lease, NewJob
from shoal.queue.states import JobState
from shoal.work.child_handle import ChildSpawner
from shoal.work.node_agent import NodeAgent
from shoal.work.worker import Worker, WorkerState
from shoal.work.worker_context import WorkerContext
from tests.support.fleet import FIFTH
from tests.support.patience import in_time, with_load

PATIENCE = 30.0
LONG = timedelta(seconds=PATIENCE)
QUICK_TO_STOP = WorkSettings(shutdown_grace=timedelta(seconds=0.5))
CHILD = (sys.executable, "-m", "tests.support.page_child")


@dataclass
class Node:
    """A worker with one slot for runs and one for page jobs, and the store it works on."""

    app: App
    worker: Worker

    async def enqueue(self, kind: str, **payload: object) -> JobId:
        job = NewJob(JobId(new_id("job")), kind, None, payload=orjson.dumps(payload).decode())
        await self.app.queue.enqueue([job])
        return job.id

    async def job(self, job_id: JobId) -> Job:
        found = await self.app.database.read(lambda tx: self.app.queue.jobs.get(tx, job_id))
        assert found is not None
        return found

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await self.app.clock.sleep(0.02)

    async def until_state(self, job_id: JobId, state: JobState) -> Job:
        async with asyncio.timeout(PATIENCE):
            while (job := await self.job(job_id)).state is not state:
                await self.app.clock.sleep(0.02)
        return job

    async def polled(self) -> None:
        """Wait until the worker has had two chances to lease a job."""
        await self.app.clock.sleep(2 * self.app.queue.settings.poll_every.total_seconds())


@pytest.fixture
async def worker(sqlite_url: str) -> AsyncIterator[tuple[App, Worker]]:
    """A worker that does not run yet. Which store it works on makes no difference here."""
    settings = load({"DATABASE_URL": sqlite_url, **FIFTH, "WORKER_CONCURRENCY": "1"}).settings
    async with opened(settings) as app:
        environment = {**os.environ, "DATABASE_URL": sqlite_url, **FIFTH}
        context = WorkerContext(
            node_id="n",
            holder=f"n/{os.getpid()}",
            lanes=["shared"],
            kinds=["plain", "crawl"],
            queue=app.queue,
            settings=app.settings.work,
            clock=app.clock,
            signals=app.signals,
            spawner=ChildSpawner(app.clock, app.signals, environment, command=CHILD),
            storage=storage_of(app),
            page_slots=1,
        )
        yield app, Worker(context, app.wake)


@pytest.fixture
async def node(worker: tuple[App, Worker]) -> AsyncIterator[Node]:
    app, running_worker = worker
    running = asyncio.create_task(running_worker.run())
    yield Node(app, running_worker)
    running_worker.stop()
    running_worker.stop()  # do not wait for jobs that hang
    await in_time(running)


async def test_a_paused_worker_leases_nothing_and_finishes_what_it_has(node: Node, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = [await node.enqueue("plain", until=str(go)), await node.enqueue("page", until=str(go))]
    for job_id in first:
        await node.until_state(job_id, JobState.LOCKED)
    node.worker.pause()
    assert node.worker.status.state is WorkerState.PAUSED
    node.worker.resize(runs=2, pages=2)
    later = [await node.enqueue("plain"), await node.enqueue("page")]
    go.touch()
    for job_id in first:
        assert (await node.until_state(job_id, JobState.DONE)).lease_epoch == 1
    await node.polled()
    assert [(await node.job(job_id)).lease_epoch for job_id in later] == [0, 0]
    node.worker.resume()
    for job_id in later:
        await node.until_state(job_id, JobState.DONE)
    assert node.worker.status.state is WorkerState.RUNNING


async def test_a_resized_worker_runs_more_jobs_and_then_waits_for_surplus_ones(node: Node, tmp_path: Path) -> None:
    go = {name: tmp_path / name for name in "abc"}
    runs = [await node.enqueue("plain", until=str(path)) for path in go.values()]
    pages = [await node.enqueue("page", until=str(path)) for path in go.values()]
    for job_id in (runs[0], pages[0]):
        await node.until_state(job_id, JobState.LOCKED)
    await node.polled()
    assert [(await node.job(job_id)).lease_epoch for job_id in (runs[1], pages[1])] == [0, 0]
    node.worker.resize(runs=2, pages=2)
    for job_id in (runs[1], pages[1]):
        await node.until_state(job_id, JobState.LOCKED)
    async with asyncio.timeout(PATIENCE):
        while node.worker.status.active_runs < 2:  # a lease is in the store before its worker knows it
            await node.app.clock.sleep(0.02)
    node.worker.resize(runs=1, pages=1)
    assert (node.worker.status.capacity, node.worker.status.active_runs) == (2, 2)
    go["a"].touch()
    for job_id in (runs[0], pages[0]):
        await node.until_state(job_id, JobState.DONE)
    await node.polled()
    assert [(await node.job(job_id)).state for job_id in (runs[2], pages[2])] == [JobState.PENDING] * 2
    go["b"].touch()
    go["c"].touch()
    for job_id in (*runs, *pages):
        job = await node.until_state(job_id, JobState.DONE)
        assert (job.lease_epoch, job.attempts, job.crash_count) == (1, 0, 0)


async def test_a_worker_that_shrinks_hands_back_its_newest_runs_if_asked(node: Node, tmp_path: Path) -> None:
    go = tmp_path / "go"
    node.worker.resize(runs=2)
    first = await node.enqueue("plain", until=str(go))
    await node.until_state(first, JobState.LOCKED)
    second = await node.enqueue("plain", until=str(go))
    await node.until_state(second, JobState.LOCKED)
    node.worker.resize(runs=1, hand_back=True)
    job = await node.until_state(second, JobState.PENDING)
    assert (job.state_reason, job.attempts, job.crash_count) == ("resized", 0, 0)
    await node.until(lambda: node.worker.status.active_runs == 1)
    go.touch()
    assert [(await node.until_state(job_id, JobState.DONE)).lease_epoch for job_id in (first, second)] == [1, 2]


async def test_a_drained_worker_has_handed_back_runs_and_finished_page_jobs(node: Node, tmp_path: Path) -> None:
    go = tmp_path / "go"
    run, page = await node.enqueue("plain", hang=True), await node.enqueue("page", until=str(go))
    for job_id in (run, page):
        await node.until_state(job_id, JobState.LOCKED)
    await node.until(lambda: node.worker.status.active == 2)
    assert not await node.worker.drain(timedelta(milliseconds=10))
    assert node.worker.status.state is WorkerState.DRAINING
    draining = asyncio.create_task(node.worker.drain(LONG))
    job = await node.until_state(run, JobState.PENDING)
    assert (job.state_reason, job.attempts, job.crash_count) == ("draining", 0, 0)
    assert (await node.job(page)).state is JobState.LOCKED
    go.touch()
    assert await draining
    assert (await node.job(page)).state is JobState.DONE
    status = node.worker.status
    assert (status.state, status.active, status.capacity) == (WorkerState.DRAINED, 0, 2)
    later = await node.enqueue("page")
    await node.polled()
    assert [(await node.job(job_id)).state for job_id in (run, later)] == [JobState.PENDING] * 2
    node.worker.resume()
    await node.until_state(run, JobState.LOCKED)
    await node.until_state(later, JobState.DONE)


async def test_a_drain_ends_without_success_when_the_worker_is_resumed(node: Node) -> None:
    page = await node.enqueue("page", hang=True)
    await node.until_state(page, JobState.LOCKED)
    draining = asyncio.create_task(node.worker.drain(LONG))
    await node.until(lambda: node.worker.status.state is WorkerState.DRAINING)
    node.worker.resume()
    assert not await draining
    assert node.worker.status.state is WorkerState.RUNNING


async def test_a_job_that_is_leased_while_the_worker_stops_is_handed_back(
    worker: tuple[App, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, stopping = worker
    node, lease, granted, answered = Node(app, stopping), app.queue.lease, asyncio.Event(), asyncio.Event()

    async def lease_slowly(*arguments: Any) -> list[Lease]:
        leases = await lease(*arguments)
        granted.set()
        await answered.wait()
        return leases

    monkeypatch.setattr(app.queue, "lease", lease_slowly)
    job_id = await node.enqueue("plain")
    running = asyncio.create_task(stopping.run())
    await asyncio.wait_for(granted.wait(), PATIENCE)
    stopping.stop()
    asyncio.get_running_loop().call_later(0.1, answered.set)
    await asyncio.wait_for(running, PATIENCE)
    job = await node.job(job_id)
    assert (job.state, job.state_reason, job.attempts, job.crash_count) == (JobState.PENDING, "shutdown", 0, 0)


async def test_a_worker_that_stops_does_not_wait_for_a_lease_longer_than_its_grace(
    worker: tuple[App, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, stopping = worker
    asked = asyncio.Event()

    async def never(*_: Any) -> list[Lease]:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(app.queue, "lease", never)
    monkeypatch.setattr("shoal.work.worker.KILL_TIMEOUT", timedelta(seconds=0.1))
    monkeypatch.setattr(stopping, "_context", replace(stopping._context, settings=QUICK_TO_STOP))
    running = asyncio.create_task(stopping.run())
    await asyncio.wait_for(asked.wait(), PATIENCE)
    stopping.stop()
    await asyncio.wait_for(running, with_load(5))


async def test_a_worker_that_follows_a_failed_one_keeps_its_size_and_stays_paused(worker: tuple[App, Worker]) -> None:
    _, paused = worker
    paused.resize(runs=3, pages=5)
    paused.pause()
    status = paused.successor().status
    assert (status.state, status.run_capacity, status.page_capacity) == (WorkerState.PAUSED, 3, 5)


async def test_a_page_child_without_jobs_takes_no_share_of_the_rate_limit(node: Node, tmp_path: Path) -> None:
    rates, done, second_page = tmp_path / "rates", tmp_path / "done", tmp_path / "second_page"

    def shares() -> list[float]:
        return [float(line) for line in rates.read_text().split()] if rates.exists() else []

    await node.until_state(await node.enqueue("page"), JobState.DONE)  # from now on there is a page child
    node.worker.set_rate(20)
    crawl = await node.enqueue("crawl", rates=str(rates), until=str(done))
    await node.until(lambda: shares()[-1:] == [20])
    page = await node.enqueue("page", until=str(second_page))
    await node.until(lambda: shares()[-1:] == [10])
    second_page.touch()
    await node.until_state(page, JobState.DONE)
    await node.until(lambda: shares()[-1:] == [20])
    done.touch()
    await node.until_state(crawl, JobState.DONE)


@pytest.mark.parametrize("size", [{"runs": 0}, {"pages": -1}], ids=str)
async def test_a_worker_cannot_be_resized_below_one(worker: tuple[App, Worker], size: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=r"(runs is 0|pages is -1); use at least 1, or pause the worker"):
        worker[1].resize(**size)  # type: ignore[arg-type]
    assert worker[1].status.capacity == 2


@pytest.mark.parametrize(
    ("env", "capabilities", "state", "detail"),
    [
        ({"SHOAL_CHROMIUM": sys.executable}, ("http", "js"), CommandState.APPLIED, "no browser was running"),
        ({"RENDERER_URL": "http://127.0.0.1:3000"}, ("http", "js"), CommandState.UNSUPPORTED, "RENDERER_URL"),
        ({"SHOAL_CHROMIUM": "missing"}, ("http",), CommandState.UNSUPPORTED, "this node has no browser"),
    ],
)
async def test_a_node_renders_if_it_can_and_restarts_only_browsers_of_its_own(
    worker: tuple[App, Worker], env: dict[str, str], capabilities: tuple[str, ...], state: CommandState, detail: str
) -> None:
    app, idle = worker
    rendering = rendering_of(load({**env, "MAX_CONCURRENT_CHROME": "3"}).settings)
    agent = NodeAgent(
        lambda: idle,
        lambda: app.queue.depth_up_to("shared", 1),
        app.settings.work,
        clock=app.clock,
        rendering=rendering,
    )
    status = await agent.measure()
    assert (status.capabilities, status.browsers, status.browser_pages) == (capabilities, 0, 0)
    assert status.browser_slots == (3 if "js" in capabilities else 0)
    ack = await agent.apply(NodeCommand(id="cmd_1", node_id=NodeId("n"), command="restart_browser"))
    assert (ack.command_id, ack.state, detail in ack.detail) == ("cmd_1", state, True)

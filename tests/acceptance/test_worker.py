"""Workers as real processes: page jobs, jobs that hang, block or kill, and the ways in which a worker ends.

F11-F13, F18, F45 and F50 of the fault list are here."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import orjson
import pytest

from shoal.app import App, opened
from shoal.base.clock import SystemClock
from shoal.base.database import Tx
from shoal.base.errors import BadConfig
from shoal.base.ids import JobId, new_id
from shoal.base.machine import started
from shoal.base.settings_loader import load
from shoal.queue.job import Grant, Job, NewJob
from shoal.queue.states import JobState
from shoal.work.child_handle import COMMAND
from shoal.work.pidfile import claim_name
from tests.support import ledger
from tests.support.delay_proxy import delay_proxy
from tests.support.fleet import (
    FIFTH,
    LONG_LEASE,
    PATIENCE_SECONDS,
    QUICK,
    ROOT,
    TENTH,
    Fleet,
    clean_environment,
    send_all,
    wait_for,
)
from tests.support.site import Site, path_of

T = TypeVar("T")


class Jobs:
    """Page jobs in a store, as somebody outside the fleet sees them."""

    def __init__(self, store_url: str) -> None:
        self._url = store_url

    def enqueue(self, *wishes: dict[str, object], count: int = 1) -> list[JobId]:
        jobs = [
            NewJob(JobId(new_id("job")), "page", None, payload=orjson.dumps(wish).decode())
            for wish in wishes
            for _ in range(count)
        ]

        async def store(app: App) -> None:
            await app.queue.enqueue(jobs)

        self._ask(store)
        return [job.id for job in jobs]

    def look(self, *ids: JobId) -> list[Job]:
        async def read(app: App) -> list[Job]:
            async def find(tx: Tx) -> list[Job | None]:
                return [await app.queue.jobs.get(tx, job_id) for job_id in ids]

            return [job for job in await app.database.read(find) if job is not None]

        return self._ask(read)

    def grants(self, *ids: JobId) -> list[Grant]:
        """Return every grant of these jobs."""

        async def read(app: App) -> list[Grant]:
            async def find(tx: Tx) -> list[Grant]:
                return [grant for job_id in ids for grant in await app.queue.jobs.history(tx, job_id)]

            return await app.database.read(find)

        return self._ask(read)

    def until(self, condition: Callable[[Job], bool], *ids: JobId, seconds: float = PATIENCE_SECONDS) -> list[Job]:
        seen: list[Job] = []

        def reached() -> bool:
            seen[:] = self.look(*ids)
            return all(map(condition, seen))

        wait_for(
            reached, "jobs in that state", seconds, lambda: f"one is {[job for job in seen if not condition(job)][:1]}"
        )
        return seen

    def until_state(self, state: JobState, *ids: JobId, seconds: float = PATIENCE_SECONDS) -> list[Job]:
        return self.until(lambda job: job.state is state, *ids, seconds=seconds)

    def _ask(self, what: Callable[[App], Coroutine[Any, Any, T]]) -> T:
        async def asked() -> T:
            async with opened(load({"DATABASE_URL": self._url}).settings, upgrade=True) as app:
                return await what(app)

        return asyncio.run(asked())


@pytest.fixture
def jobs(store_url: str) -> Jobs:
    return Jobs(store_url)


def costs(found: list[Job]) -> set[tuple[int, int]]:
    return {(job.attempts, job.crash_count) for job in found}


def test_page_jobs_are_worked_off_without_a_controller(jobs: Jobs, store_url: str, tmp_path: Path) -> None:
    ids = jobs.enqueue({}, count=120)
    with Fleet(tmp_path, store_url) as fleet:
        worker = fleet.page_worker()
        found = jobs.until_state(JobState.DONE, *ids)
        assert {(job.lease_epoch, job.attempts, job.crash_count) for job in found} == {(1, 0, 0)}
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0


def test_a_job_that_kills_its_process_every_time_ends_as_poison_and_takes_no_other_with_it(
    jobs: Jobs, store_url: str, tmp_path: Path
) -> None:
    innocent = jobs.enqueue({"sleep": 0.01}, count=20)
    [guilty] = jobs.enqueue({"die": True})
    innocent += jobs.enqueue({"sleep": 0.01}, count=20)
    with Fleet(tmp_path, store_url) as fleet:
        fleet.page_worker()
        [job] = jobs.until_state(JobState.EXPIRED, guilty)
        assert (job.state_reason, job.attempts, job.crash_count) == ("poison", 0, 4)
        assert job.error == "its child was killed by SIGKILL"
        found = jobs.until_state(JobState.DONE, *innocent)
        assert costs(found) <= {(0, 0), (0, 1)}


def test_page_jobs_of_a_child_that_was_killed_are_given_back_at_once(
    jobs: Jobs, store_url: str, tmp_path: Path
) -> None:
    ids = jobs.enqueue({"sleep": 1.0}, count=3)
    with Fleet(tmp_path, store_url, **LONG_LEASE) as fleet:
        worker = fleet.page_worker()
        locked = jobs.until_state(JobState.LOCKED, *ids)
        [pid] = {int((job.lease_holder or "").rpartition("/")[2]) for job in locked}
        os.kill(pid, signal.SIGKILL)
        found = jobs.until_state(JobState.DONE, *ids)
        assert {(job.lease_epoch, job.crash_count) for job in found} == {(2, 1)}
        assert worker.alive


@pytest.mark.exhaustive
def test_a_page_job_longer_than_its_lease_is_given_to_nobody_else(jobs: Jobs, store_url: str, tmp_path: Path) -> None:
    ids = jobs.enqueue({"sleep": 5.0}, count=2)
    with Fleet(tmp_path, store_url, **FIFTH) as fleet:
        fleet.controller()
        fleet.page_worker("one")
        fleet.page_worker("two")
        found = jobs.until_state(JobState.DONE, *ids)
        assert {(job.lease_epoch, job.crash_count) for job in found} == {(1, 0)}


@pytest.mark.exhaustive
def test_a_child_that_blocks_its_loop_for_two_leases_keeps_its_jobs(jobs: Jobs, store_url: str, tmp_path: Path) -> None:
    [blocking] = jobs.enqueue({"block": 5.0})
    with Fleet(tmp_path, store_url, **FIFTH) as fleet:
        fleet.controller()
        fleet.page_worker()
        [job] = jobs.until_state(JobState.DONE, blocking)
        assert (job.lease_epoch, job.crash_count) == (1, 0)


def test_a_child_that_blocks_for_too_long_is_killed_and_the_reason_is_reported(
    jobs: Jobs, store_url: str, tmp_path: Path
) -> None:
    [blocking] = jobs.enqueue({"block": 60})
    with Fleet(tmp_path, store_url, SHOAL_CHILD_SILENCE="1s", **QUICK) as fleet:
        worker = fleet.page_worker()
        [job] = jobs.until(lambda job: job.crash_count > 0, blocking)
        assert "did not respond for 1s" in (job.error or "")
        assert "did not respond for 1s" in worker.said()


@pytest.mark.exhaustive
def test_a_page_job_that_hangs_is_given_up_at_its_deadline_and_named_so(
    jobs: Jobs, store_url: str, tmp_path: Path
) -> None:
    [hanging] = jobs.enqueue({"hang": True})
    with Fleet(tmp_path, store_url, SHOAL_STALL_DEADLINE="2s", **FIFTH) as fleet:
        fleet.page_worker()
        good = jobs.enqueue({}, count=5)
        jobs.until_state(JobState.DONE, *good)
        [job] = jobs.until(lambda job: job.crash_count > 0, hanging)
        assert job.error == "it did not end within 2s"


def test_a_worker_told_to_stop_hands_back_page_jobs_without_penalty(jobs: Jobs, store_url: str, tmp_path: Path) -> None:
    [hanging] = jobs.enqueue({"hang": True})
    with Fleet(tmp_path, store_url) as fleet:
        worker = fleet.page_worker()
        jobs.until_state(JobState.LOCKED, hanging)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        [job] = jobs.look(hanging)
        assert (job.state, job.state_reason) == (JobState.PENDING, "shutdown")
        assert costs([job]) == {(0, 0)}


@pytest.mark.exhaustive
def test_a_worker_with_endless_grace_finishes_its_page_jobs(jobs: Jobs, store_url: str, tmp_path: Path) -> None:
    ids = jobs.enqueue({"sleep": 3.0}, count=2)
    with Fleet(tmp_path, store_url, SHOAL_SHUTDOWN_GRACE="inf", **FIFTH) as fleet:
        fleet.controller()
        worker = fleet.page_worker()
        jobs.until_state(JobState.LOCKED, *ids)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        assert {(job.state, job.lease_epoch) for job in jobs.look(*ids)} == {(JobState.DONE, 1)}


@contextmanager
def held_up(site: Site, at: int) -> Iterator[None]:
    """Stop answering after some page."""
    answering = threading.Event()
    site.call_at(path_of(at), lambda: answering.wait(PATIENCE_SECONDS) and None)
    try:
        yield
    finally:
        answering.set()


def only_job(store_url: str, crawl_id: str) -> dict[str, Any]:
    [job] = ledger.read(store_url, crawl_id).jobs
    return dict(job)


def test_a_second_signal_ends_a_worker_that_finishes_its_jobs_now_and_releases_its_lease(
    store_url: str, tmp_path: Path
) -> None:
    grace = LONG_LEASE | {"SHOAL_SHUTDOWN_GRACE": "inf"}
    with Site(pages=20) as site, Fleet(tmp_path, store_url, **grace) as fleet, held_up(site, 10):
        fleet.controller()
        worker = fleet.worker()
        crawl_id = fleet.submit(site, concurrency=2)
        wait_for(lambda: path_of(10) in [visit.path for visit in site.visits], "the page that hangs")
        worker.send(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(1.5)
        worker.send(signal.SIGTERM)
        assert worker.wait(PATIENCE_SECONDS / 2) == 0
        job = only_job(store_url, crawl_id)
        assert (job["state"], job["attempts"], job["crash_count"]) == ("pending", 0, 0)
        assert ledger.read(store_url, crawl_id).ends == ["released"]


def test_a_worker_whose_grace_is_over_kills_its_children_and_releases_their_leases(
    store_url: str, tmp_path: Path
) -> None:
    grace = LONG_LEASE | {"SHOAL_SHUTDOWN_GRACE": "300ms"}
    with Site(pages=20) as site, Fleet(tmp_path, store_url, **grace) as fleet:
        fleet.controller()
        worker = fleet.worker()
        site.allowed = 5
        crawl_id = fleet.submit(site, concurrency=2)
        site.wait_for_pages(5)
        send_all(worker.children(), signal.SIGSTOP)  # it does not react to a hand-back request
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        job = only_job(store_url, crawl_id)
        assert (job["state"], job["attempts"], job["crash_count"]) == ("pending", 0, 0)


def test_a_grant_reports_which_process_worked_on_it_and_how_it_was_set_up(
    jobs: Jobs, store_url: str, tmp_path: Path
) -> None:
    with Site(pages=3) as site, Fleet(tmp_path, store_url, **FIFTH) as fleet:
        fleet.controller()
        worker = fleet.worker("node-7")
        wait_for(lambda: bool(worker.children()), "a warm child")
        [child] = worker.children()
        crawl_id = fleet.submit(site)
        fleet.wait_for_state(crawl_id, "completed", "failed")
        [grant] = jobs.grants(only_job(store_url, crawl_id)["id"])
        assert (grant.node, grant.pid) == ("node-7", child)
        assert orjson.loads(grant.config or "")["SHOAL_LEASE"] == "2s"


CUT = """
    SELECT count(pg_terminate_backend(pid)) FROM (
        SELECT DISTINCT pid FROM pg_locks
        JOIN pg_class ON pg_class.oid = relation
        JOIN pg_namespace ON pg_namespace.oid = relnamespace AND nspname = current_schema()
        WHERE pid <> pg_backend_pid()
    ) AS busy
"""


@pytest.mark.exhaustive
def test_a_fleet_whose_database_connections_are_cut_again_and_again_loses_nothing(
    postgres_url: str, tmp_path: Path
) -> None:
    jobs = Jobs(postgres_url)
    ids = jobs.enqueue({"sleep": 0.05}, count=400)

    async def cut() -> None:
        connection = await asyncpg.connect(postgres_url)
        try:
            while not await connection.fetchval(CUT):
                pass  # nothing was in flight
        finally:
            await connection.close()

    with Fleet(tmp_path, postgres_url, **TENTH) as fleet:
        fleet.controller()
        worker = fleet.page_worker()
        for done in (20, 80, 160, 240):
            wait_for(partial(_has_done, postgres_url, done), "progress")
            asyncio.run(cut())
        wait_for(partial(_has_done, postgres_url, len(ids)), "the end")
        found = jobs.look(*ids)
        assert {job.attempts for job in found} == {0}
        assert worker.alive


def _has_done(url: str, count: int) -> bool:
    async def ask() -> bool:
        connection = await asyncpg.connect(url)
        try:
            return int(await connection.fetchval("SELECT count(*) FROM job WHERE state = 'done'")) >= count
        finally:
            await connection.close()

    return asyncio.run(ask())


async def test_further_workers_of_a_machine_get_names_of_their_own(tmp_path: Path) -> None:
    clock = SystemClock()
    first = await claim_name("host", tmp_path, clock, given=False)
    second = await claim_name("host", tmp_path, clock, given=False)
    assert (first.node_id, second.node_id) == ("host", "host-2")
    first.close()
    third = await claim_name("host", tmp_path, clock, given=False)
    assert third.node_id == "host"
    with pytest.raises(BadConfig, match="another worker that runs on this machine"):
        await claim_name("host-2", tmp_path, clock, given=True)
    second.close()
    third.close()


async def test_a_worker_that_may_write_nowhere_has_its_name_all_the_same(tmp_path: Path) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    book = await claim_name("host", nowhere, SystemClock(), given=False)
    assert book.node_id == "host"
    book.add(os.getpid())
    assert book.reap() == []


def sleeping_process() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


async def test_a_worker_ends_what_the_last_one_of_its_name_left_behind_and_nothing_else(tmp_path: Path) -> None:
    clock = SystemClock()
    left, other = sleeping_process(), sleeping_process()
    try:
        book = await claim_name("host", tmp_path, clock, given=False)
        book.add(left.pid)
        with closing(book):
            pass  # its worker ended unexpectedly
        written = tmp_path / "workers" / "host"
        written.write_text(f"{written.read_text()}{other.pid} 1\n999999999 5\nrubbish\n")
        with closing(await claim_name("host", tmp_path, clock, given=False)) as book:
            assert book.reap() == [left.pid]
        assert left.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        assert other.poll() is None
        assert started(other.pid) != "1"
    finally:
        for process in (left, other):
            process.kill()
            process.communicate()


def test_a_worker_under_a_name_that_is_taken_says_so_and_ends(store_url: str, tmp_path: Path) -> None:
    with Fleet(tmp_path, store_url) as fleet:
        fleet.worker("same")
        wait_for((tmp_path / ".local/share/shoal/workers/same").exists, "the first worker")
        rival = fleet.worker("same")
        assert rival.wait() == 4
        assert 'is "same", the name of another worker that runs on this machine' in rival.said()


def test_a_stop_by_force_kills_the_child_that_does_not_leave_and_ends_the_crawl(store_url: str, tmp_path: Path) -> None:
    times = QUICK | {"SHOAL_FORCE_GRACE": "1s", "SHOAL_CHILD_SILENCE": "10m"}
    with Site(pages=50) as site, Fleet(tmp_path, store_url, **times) as fleet:
        fleet.controller()
        worker = fleet.worker()
        site.allowed = 10
        crawl_id = fleet.submit(site, concurrency=2)
        site.wait_for_pages(10)
        stuck = put_to_sleep_between_commits(worker.children, store_url)
        fleet.post(f"/api/v1/crawls/{crawl_id}/stop", force=True)
        assert fleet.crawl(crawl_id)["state"] == "stopping"
        fleet.wait_for_state(crawl_id, "stopped")
        assert not [pid for pid in worker.children() if pid in stuck]
        job = only_job(store_url, crawl_id)
        assert (job["state"], job["attempts"], job["crash_count"]) == ("cancelled", 0, 0)
        assert ledger.read(store_url, crawl_id).ends == ["cancelled"]
        assert worker.alive


def put_to_sleep_between_commits(pids: Callable[[], list[int]], store_url: str) -> list[int]:
    stopped: list[int] = []

    def caught() -> bool:
        stopped[:] = pids()
        send_all(stopped, signal.SIGSTOP)
        if ledger.can_be_written(store_url):
            return True
        send_all(stopped, signal.SIGCONT)
        return False

    wait_for(caught, "a child asleep between commits")
    return stopped


def test_pages_of_a_job_group_are_fetched_by_a_worker(store_url: str, tmp_path: Path) -> None:
    with Site(pages=12) as site, Fleet(tmp_path, store_url, SHOAL_PAGE_SPEED="max") as fleet:
        fleet.controller()
        worker = fleet.worker()
        group = fleet.post("/api/v1/jobs", urls=sorted(site.urls))
        wait_for(lambda: site.pages_asked >= 12, "every page")
        wait_for(lambda: fleet.get(f"/api/v1/groups/{group['id']}")["state"] == "completed", "the end of the group")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0


@pytest.mark.exhaustive
def test_a_worker_far_from_its_database_keeps_its_leases(postgres_url: str, tmp_path: Path) -> None:
    """F22: a round trip takes a fifth of a lease."""
    jobs = Jobs(postgres_url)
    times = TENTH | {"SHOAL_LEASE": "2500ms", "SHOAL_LEASE_EXTEND": "750ms"}
    with delay_proxy(postgres_url) as proxy, Fleet(tmp_path, postgres_url, **times) as fleet:
        fleet.controller()
        fleet.page_worker(DATABASE_URL=proxy.url)
        jobs.until_state(JobState.DONE, *jobs.enqueue({}))  # opening connections takes many round trips
        proxy.delay_seconds = 0.5
        ids = jobs.enqueue({"sleep": 6.0}, count=3)
        found = jobs.until_state(JobState.DONE, *ids, seconds=90)
        assert {(job.lease_epoch, job.crash_count) for job in found} == {(1, 0)}


def test_children_are_replaced_after_so_many_runs(jobs: Jobs, store_url: str, tmp_path: Path) -> None:
    with (
        Site(pages=2) as site,
        Fleet(tmp_path, store_url, SHOAL_CHILD_RUNS="1", WORKER_CONCURRENCY="1", **QUICK) as fleet,
    ):
        fleet.controller()
        fleet.worker()
        pids = []
        for _ in range(2):
            crawl_id = fleet.submit(site)
            fleet.wait_for_state(crawl_id, "completed", "failed")
            [grant] = jobs.grants(only_job(store_url, crawl_id)["id"])
            pids.append(grant.pid)
        assert len(set(pids)) == 2
        [book] = tmp_path.rglob("workers/*")
        gone = f"{pids[0]} "
        wait_for(lambda: gone not in book.read_text(), "a book without the children that are gone")


@pytest.mark.exhaustive
def test_a_page_child_that_has_grown_is_replaced_and_no_job_notices(jobs: Jobs, store_url: str, tmp_path: Path) -> None:
    ids = jobs.enqueue({"sleep": 0.3, "grow": 20}, count=24)
    worn = {"SHOAL_CHILD_MEMORY": "50MB", "SHOAL_CHILD_SILENCE": "2s", "MAX_CONCURRENT_CURL": "2"}
    with Fleet(tmp_path, store_url, **worn) as fleet:
        fleet.page_worker()
        found = jobs.until_state(JobState.DONE, *ids)
        assert costs(found) == {(0, 0)}
        assert len({grant.holder for grant in jobs.grants(*ids)}) > 1


def test_a_child_whose_worker_no_longer_listens_ends_without_a_traceback(sqlite_url: str, tmp_path: Path) -> None:
    """The moment between the death of a worker and the kill of its children by the kernel."""
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [*COMMAND, str(os.getpid()), "runs"],
        stdin=subprocess.PIPE,
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=clean_environment(tmp_path) | {"DATABASE_URL": sqlite_url, "PYTHONPATH": str(ROOT / "src")},
    )
    os.close(writing)
    os.close(reading)
    assert child.wait(PATIENCE_SECONDS) == 1
    assert child.stdin is not None
    assert child.stderr is not None
    child.stdin.close()
    assert child.stderr.read() == b""
    child.stderr.close()


@pytest.mark.exhaustive
def test_processes_end_with_a_sentence_when_their_store_is_upgraded_under_them(store_url: str, tmp_path: Path) -> None:
    with Fleet(tmp_path, store_url) as fleet:
        processes = [fleet.controller(), fleet.worker()]
        wait_for((tmp_path / ".local/share/shoal/workers/worker-1").exists, "a worker that has opened its store")
        upgrade_to_a_newer_schema(store_url)
        assert [process.wait() for process in processes] == [4, 4]
        for process in processes:
            *_, sentence = process.said().splitlines()
            assert sentence.startswith("shoal: "), process.said()
            assert "schema version 999" in sentence
            assert "it was upgraded while this process ran: update Shoal and start it again" in sentence
            assert "Traceback" not in process.said()


def upgrade_to_a_newer_schema(store_url: str) -> None:
    if store_url.startswith("sqlite:///"):
        with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as file:
            file.execute("PRAGMA user_version = 999")
        return

    async def upgrade() -> None:
        connection = await asyncpg.connect(store_url)
        await connection.execute("INSERT INTO schema_version VALUES (999, now(), 'newer')")
        await connection.close()

    asyncio.run(upgrade())

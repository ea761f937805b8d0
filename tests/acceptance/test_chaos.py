"""Crawls by real processes that are killed, stopped and shut down: afterwards all rows are consistent."""

import json
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support import ledger
from tests.support.clocks import HOUR, SettableClock
from tests.support.fleet import (
    FIFTH,
    PATIENCE_SECONDS,
    QUICK,
    SEED,
    TENTH,
    Fleet,
    seed_of_run,
    send_all,
    wait_for,
)
from tests.support.full_disk import stuff
from tests.support.ledger import Expected
from tests.support.patience import with_load
from tests.support.servers import PostgresServer, free_port
from tests.support.site import Site, path_of
from tests.support.storm import Storm, Work

KILLS = 20
QUOTA = 200  # jobs of the project at once: the quota is never full, but each job takes and frees a seat
DELAY_SECONDS = 0.04
AGAIN_SECONDS = 15.0  # from a kill until the work runs again, with the default lease times
LEASE_SECONDS = 2.0  # of FIFTH
SILENCE_SECONDS = 1.5
# A job may lose as many workers as the storm takes: another test covers jobs that kill their workers.
STORMY = TENTH | {"SHOAL_POISON_LIMIT": "100", "SHOAL_PAGE_SPEED": "max"}


def books_in_order(fleet: Fleet, crawl_id: str, site: Site, failed: Collection[str] = ()) -> None:
    books = ledger.read(fleet.store_url, crawl_id)
    found = ledger.violations(books, Expected(urls=site.urls, failed=failed))
    assert not found, "\n".join(found)
    assert [job["attempts"] for job in books.jobs] == [0] * len(books.jobs)


def ends_of(fleet: Fleet, crawl_id: str) -> list[str | None]:
    return ledger.read(fleet.store_url, crawl_id).ends


@pytest.mark.exhaustive
@pytest.mark.parametrize("driver", ["sqlite", "postgres"])
def test_twenty_deaths_lose_no_page_and_count_none_twice(
    request: pytest.FixtureRequest, tmp_path: Path, driver: str
) -> None:
    """Three crawls, one of them with two walkers and one suspended, and page jobs, all of one project that has a quota;
    workers, children, the controller and, where there is one, the database server die under them, and the clock is set
    by an hour and back."""
    server: PostgresServer | None = request.getfixturevalue("own_postgres") if driver == "postgres" else None
    store_url = server.url if server else f"sqlite:///{tmp_path}/shoal.db"
    seed, clock = seed_of_run(), SettableClock(store_url, tmp_path)
    try:
        with (
            Site(pages=150) as large,
            Site(pages=80) as small,
            Site(pages=80) as third,
            Site(pages=80) as single,
            Fleet(tmp_path, store_url, **STORMY, **clock.env) as fleet,
        ):
            controller, workers = fleet.controller(), [fleet.worker("worker-1"), fleet.worker("worker-2")]
            fleet.limit("project:default", QUOTA)
            walkers = {large: 2, small: 1, third: 1}
            works = [Work(site, fleet.submit(site, concurrency=2, workers=count)) for site, count in walkers.items()]
            group = fleet.fetch(single.urls)
            works.append(Work(single))
            storm = Storm(fleet, controller, workers, works, seed, clock, server)
            storm.rage(KILLS)

            def page_jobs_over() -> bool:
                storm.start_again()  # the last kill may have hit a process that was starting
                return bool(fleet.group(group)["state"] == "completed")

            wait_for(page_jobs_over, "the end of the page jobs")
            assert fleet.group(group)["jobs"] == {"done": len(single.urls)}
            crawls = [(work.crawl_id, work.site) for work in works if work.crawl_id is not None]
            for crawl_id, _ in crawls:
                fleet.wait_for_state(crawl_id, "completed", "failed")
            wait_for(lambda: not ledger.open_jobs(store_url), "the end of every walker")
            for crawl_id, site in crawls:
                books_in_order(fleet, crawl_id, site)
            assert len(storm.struck) == KILLS
            assert ledger.check_jobs(store_url) == []
            assert server is None or "deadlock detected" not in server.log
    except BaseException as error:
        error.add_note(f"again with {SEED}={seed}")
        raise


@pytest.mark.exhaustive
def test_an_outage_longer_than_a_lease_costs_no_attempt(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """F19: the child can no longer rely on its lease and hands the job back; this does not count as a failure."""
    with Site(pages=40) as site, Fleet(tmp_path, own_postgres.url, **TENTH) as fleet:
        fleet.controller()
        worker = fleet.worker()
        site.allowed = 10
        crawl_id = fleet.submit(site, concurrency=2)
        wait_for(lambda: site.pages_answered == 10, "ten pages")
        for time in (1, 2):  # as often as a job may fail
            own_postgres.stop("immediate")
            site.allowed += 5
            wait_for(
                lambda time=time: worker.said().count("while leasing") >= 8 * time, "an outage longer than a lease"
            )
            own_postgres.start()
            wait_for(lambda: site.pages_answered >= (site.allowed or 0), "more pages")
        site.allowed = None
        fleet.wait_for_state(crawl_id, "completed", "failed")
        books_in_order(fleet, crawl_id, site)


@pytest.mark.exhaustive
def test_killed_work_runs_again_within_fifteen_seconds_at_the_default_lease_times(
    postgres_url: str, tmp_path: Path
) -> None:
    with Site(pages=60) as site, Fleet(tmp_path, postgres_url) as fleet:
        fleet.controller()
        worker = fleet.worker()
        site.allowed = 20
        crawl_id = fleet.submit(site)
        site.wait_for_pages(20)
        worker.kill()
        killed_at = site.visits[-1].at  # its child died with it, so later requests come from another worker
        worker.start()
        site.wait_for_visit(killed_at, with_load(AGAIN_SECONDS))
        site.allowed = None
        fleet.wait_for_state(crawl_id, "completed", "failed")
        books_in_order(fleet, crawl_id, site)
        assert ends_of(fleet, crawl_id) == ["expired", "done"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_set_stops_no_crawl_and_ends_no_lease(store_url: str, tmp_path: Path, hours: int) -> None:
    """Rate-limited work continues, that of a killed worker is returned in time, and a worker that starts then is not
    declared dead."""
    clock = SettableClock(store_url, tmp_path)
    with (
        Site(pages=16) as site,
        Site(pages=10, delay=DELAY_SECONDS) as small,
        Fleet(tmp_path, store_url, **FIFTH, **clock.env) as fleet,
    ):
        controller, worker = fleet.controller(), fleet.worker()
        site.allowed = 9
        crawl_id = fleet.submit(site, delay_seconds=0.1)
        site.wait_for_pages(5)
        clock.step(hours * HOUR)
        site.wait_for_pages(9)
        worker.kill()
        killed_at = site.visits[-1].at
        worker.start()
        site.wait_for_visit(killed_at, with_load(AGAIN_SECONDS))
        site.allowed = None
        second = fleet.submit(small, concurrency=2)
        for each, pages in ((crawl_id, site), (second, small)):
            fleet.wait_for_state(each, "completed", "failed")
            books_in_order(fleet, each, pages)
        assert ends_of(fleet, crawl_id) == ["expired", "done"]
        assert ends_of(fleet, second) == ["done"]
        told = controller.said() + worker.said()
        assert told.count(f"the clock of the store was set {'back' if hours < 0 else 'forward'} by 3600 s") == 1


@pytest.mark.exhaustive
def test_a_worker_killed_before_its_first_heartbeat_costs_no_attempt(store_url: str, tmp_path: Path) -> None:
    quiet = QUICK | {"SHOAL_LEASE": "4s", "SHOAL_LEASE_EXTEND": "1900ms"}
    with Site(pages=20, delay=DELAY_SECONDS) as site, Fleet(tmp_path, store_url, **quiet) as fleet:
        fleet.controller()
        worker = fleet.worker()
        wait_for(lambda: bool(worker.children()), "a warm child")
        crawl_id = fleet.submit(site)
        wait_for(lambda: bool(ends_of(fleet, crawl_id)), "the grant of the job")
        worker.kill()
        worker.start()
        fleet.wait_for_state(crawl_id, "completed", "failed")
        books_in_order(fleet, crawl_id, site)
        assert ends_of(fleet, crawl_id) == ["expired", "done"]


def test_a_worker_told_to_stop_hands_its_job_back_without_penalty(store_url: str, tmp_path: Path) -> None:
    with Site(pages=60) as site, Fleet(tmp_path, store_url, **QUICK) as fleet:
        fleet.controller()
        worker = fleet.worker()
        site.allowed = 20
        crawl_id = fleet.submit(site)
        site.wait_for_pages(20)
        worker.send(signal.SIGTERM)
        site.allowed = 50  # what it has begun, and not the whole site
        assert worker.wait() == 0
        books = ledger.read(store_url, crawl_id)
        assert ledger.violations(books, Expected(state="running")) == []
        assert [(job["state"], job["attempts"], job["crash_count"]) for job in books.jobs] == [("pending", 0, 0)]
        assert set(books.ends) == {"released"}, "also a lease that was under way when it was told"
        assert [row for row in books.frontier if row["job_id"] or row["crashes"]] == []
        site.allowed = None
        worker.start()
        fleet.wait_for_state(crawl_id, "completed", "failed")
        books_in_order(fleet, crawl_id, site)
        assert ends_of(fleet, crawl_id) == [*books.ends, "done"]


@pytest.mark.exhaustive
def test_a_worker_that_slept_through_its_lease_is_refused(store_url: str, tmp_path: Path) -> None:
    with Site(delay=2 * DELAY_SECONDS) as site, Fleet(tmp_path, store_url, **FIFTH) as fleet:
        fleet.controller()
        sleeper = fleet.worker("sleeper")
        crawl_id = fleet.submit(site, concurrency=2)
        site.wait_for_pages(60)
        asleep_at = put_to_sleep(sleeper.family, store_url, site, in_a_commit=False)
        other = fleet.worker("other")
        site.wait_for_visit(asleep_at)
        site.wait_for_visit(asleep_at + 3 * LEASE_SECONDS)
        send_all(sleeper.family(), signal.SIGCONT)
        site.delay = 0
        fleet.wait_for_state(crawl_id, "completed", "failed")
        books_in_order(fleet, crawl_id, site)
        assert ends_of(fleet, crawl_id) == ["expired", "done"]
        assert sleeper.alive
        for worker in (sleeper, other):
            worker.send(signal.SIGTERM)
        assert [sleeper.wait(), other.wait()] == [0, 0]


def test_a_child_that_died_before_it_had_a_job_is_not_charged_to_one(store_url: str, tmp_path: Path) -> None:
    with Site(pages=20) as site, Fleet(tmp_path, store_url, **QUICK) as fleet:
        fleet.controller()
        worker = fleet.worker()
        wait_for(lambda: bool(worker.children()), "a warm child")
        send_all(worker.children(), signal.SIGKILL)
        wait_for(lambda: not worker.children(), "the end of the warm child")
        crawl_id = fleet.submit(site)
        fleet.wait_for_state(crawl_id, "completed", "failed")
        books_in_order(fleet, crawl_id, site)
        assert ends_of(fleet, crawl_id) == ["done"]


@pytest.mark.exhaustive
def test_a_child_that_falls_silent_in_a_commit_is_killed_in_time(store_url: str, tmp_path: Path) -> None:
    silence = f"{SILENCE_SECONDS}s"
    with (
        Site(delay=DELAY_SECONDS) as site,
        Fleet(tmp_path, store_url, SHOAL_CHILD_SILENCE=silence, **FIFTH) as fleet,
    ):
        fleet.controller()
        worker = fleet.worker()
        crawl_id = fleet.submit(site, concurrency=2)
        site.wait_for_pages(60)
        asleep_at = put_to_sleep(worker.children, store_url, site, in_a_commit=True)
        site.wait_for_visit(asleep_at)
        site.delay = 0
        fleet.wait_for_state(crawl_id, "completed", "failed")
        books_in_order(fleet, crawl_id, site)
        # Its worker noticed, or, while the child kept the store locked, the lease ran out first. Other children were
        # suspended with it, and the job may have been given to one of them.
        *lost, last = ends_of(fleet, crawl_id)
        assert (last, bool(lost), set(lost) <= {"crashed", "expired"}) == ("done", True, True), lost


@pytest.mark.exhaustive
def test_a_job_that_settles_nothing_although_work_is_due_is_killed_and_runs_again(
    store_url: str, tmp_path: Path
) -> None:
    answering = threading.Event()

    def hang() -> None:
        answering.wait(PATIENCE_SECONDS)

    with (
        Site(pages=20, delay=DELAY_SECONDS) as site,
        Fleet(tmp_path, store_url, SHOAL_STALL_DEADLINE="2s", **FIFTH) as fleet,
    ):
        fleet.controller()
        worker = fleet.worker()
        site.call_at(path_of(15), hang)  # from then on nothing is answered
        crawl_id = fleet.submit(site)
        try:
            wait_for(lambda: "crashed" in ends_of(fleet, crawl_id), "the end of a job that stalls")
        finally:
            answering.set()
        job = ledger.read(store_url, crawl_id).jobs[0]
        assert "made no progress for 2s although work was due" in job["error"]
        fleet.wait_for_state(crawl_id, "completed", "failed")
        books_in_order(fleet, crawl_id, site)
        assert "made no progress for 2s although work was due" in worker.said()


def test_a_long_crawl_leaves_its_worker_to_a_short_one_after_a_slice(store_url: str, tmp_path: Path) -> None:
    slices = {"SHOAL_SLICE": "500ms", "WORKER_CONCURRENCY": "1"}
    with (
        Site(delay=DELAY_SECONDS) as site,
        Site(pages=2) as small,
        Fleet(tmp_path, store_url, **slices, **QUICK) as fleet,
    ):
        fleet.controller()
        fleet.worker()
        long = fleet.submit(site, concurrency=2)  # it lasts at least six seconds
        site.wait_for_pages(20)
        short = fleet.submit(small)
        fleet.wait_for_state(short, "completed", "failed")
        assert fleet.crawl(long)["state"] == "running"
        site.delay = 0
        fleet.wait_for_state(long, "completed", "failed")
        books_in_order(fleet, long, site)
        books_in_order(fleet, short, small)
        assert ends_of(fleet, long) == ["released", "done"]
        assert [job["crash_count"] for job in ledger.read(store_url, long).jobs] == [0]


@pytest.mark.exhaustive
def test_a_job_that_waits_for_the_turn_of_its_host_does_not_stall(store_url: str, tmp_path: Path) -> None:
    with Site(pages=2) as site, Fleet(tmp_path, store_url, SHOAL_STALL_DEADLINE="2s", **FIFTH) as fleet:
        fleet.controller()
        fleet.worker()
        crawl_id = fleet.submit(site, delay_seconds=3)
        fleet.wait_for_state(crawl_id, "completed", "failed")
        books_in_order(fleet, crawl_id, site)
        assert ends_of(fleet, crawl_id) == ["done"]


@pytest.mark.parametrize("pages", [pytest.param(2, marks=pytest.mark.exhaustive), 60])
def test_a_page_that_kills_whoever_fetches_it_fails_and_not_its_crawl(
    store_url: str, tmp_path: Path, pages: int
) -> None:
    killer = pages - 1
    with Site(pages=pages, delay=DELAY_SECONDS) as site, Fleet(tmp_path, store_url, **QUICK) as fleet:
        fleet.controller()
        worker = fleet.worker()
        site.call_at(path_of(killer), worker.kill_child)
        crawl_id = fleet.submit(site)
        fleet.wait_for_state(crawl_id, "completed", "failed")
        books_in_order(fleet, crawl_id, site, failed={site.url(killer)})
        books = ledger.read(store_url, crawl_id)
        codes = {page["url"]: page["error_code"] for page in books.pages if page["error_code"]}
        assert codes == {site.url(killer): "worker_killed"}


def test_a_crawl_that_only_waits_survives_any_number_of_deaths(store_url: str, tmp_path: Path) -> None:
    """A site that asks for a quarter of an hour; worker and child die again and again while nothing is in flight."""
    with Site(pages=49) as site, Fleet(tmp_path, store_url, **TENTH) as fleet:
        fleet.controller()
        worker = fleet.worker()
        site.call_at(path_of(1), lambda: setattr(site, "retry_after", 900))
        crawl_id = fleet.submit(site)
        last = -1  # the index of the grant whose walker was killed last
        for death in range(4):

            def waits(after: int = last) -> bool:
                """Return whether a later walker has begun, and waits."""
                books = ledger.read(store_url, crawl_id)
                idle = site.retry_after is not None and not any(row["job_id"] for row in books.frontier)
                has_begun = bool(books.grants) and books.grants[-1]["pid"] in worker.children()
                return idle and has_begun and len(books.ends) - 1 > after and books.ends[-1] is None

            wait_for(waits, "a walker with nothing in hand")
            last = len(ends_of(fleet, crawl_id)) - 1
            if death == 0:
                worker.kill()
                worker.start()
            else:
                send_all(worker.children(), signal.SIGKILL)
            wait_for(lambda lost=last: ends_of(fleet, crawl_id)[lost] is not None, "the end of the lost grant")
        books = ledger.read(store_url, crawl_id)
        assert ledger.violations(books, Expected(state="running")) == []
        assert [(job["attempts"], job["crash_count"]) for job in books.jobs] == [(0, 0)]
        assert [row["crashes"] for row in books.frontier] == [0] * len(books.frontier)
        assert fleet.crawl(crawl_id)["state"] == "running"


@pytest.mark.exhaustive
def test_kept_bodies_on_a_full_disk_cost_no_attempt_and_go_on_when_there_is_space(
    store_url: str, tmp_path: Path, small_disk: Path
) -> None:
    """F33: the worker hands the crawl back, takes no other, says so, and recovers by itself."""
    listen, stuffing = f"127.0.0.1:{free_port()}", small_disk / "stuffing"
    env = FIFTH | {"SHOAL_BODIES": str(small_disk), "SHOAL_WORKER_LISTEN": listen, "SHOAL_PAGE_SPEED": "max"}
    with Site(pages=40) as site, Fleet(tmp_path, store_url, **env) as fleet:
        fleet.controller()
        worker = fleet.worker()
        wait_for(lambda: ready(listen)[0] == 200, "a worker that is ready")
        stuff(stuffing)
        crawl_id = fleet.submit(site, keep_bodies=True)
        wait_for(lambda: ready(listen)[0] == 503, "a worker that says that its disk is full")
        told = ready(listen)[1]
        assert (told["store"], told["bodies"]) == ("ok", "storage_full")
        assert f"{small_disk} has no space left" in told["detail"]
        wait_for(lambda: ends_of(fleet, crawl_id) == ["released"], "a crawl that was handed back")
        pages = fleet.fetch([site.url(1), site.url(2)])  # work that does not need this storage continues
        wait_for(lambda: fleet.group(pages)["state"] == "completed", "the end of the page jobs")
        assert ends_of(fleet, crawl_id) == ["released"]
        stuffing.unlink()
        fleet.wait_for_state(crawl_id, "completed", "failed")
        books_in_order(fleet, crawl_id, site)
        assert ready(listen)[0] == 200
        said = worker.said()
        assert (said.count("the body store is full"), said.count("the body store has space again")) == (1, 1)


def test_a_full_store_costs_no_attempt_and_work_goes_on_when_there_is_space(tmp_path: Path, small_disk: Path) -> None:
    """F33: leases that expire while the store is not writable do not count as crashes."""
    listen, stuffing = f"127.0.0.1:{free_port()}", small_disk / "stuffing"
    store_url = f"sqlite:///{small_disk}/shoal.db"
    with Site(pages=60) as site, Fleet(tmp_path, store_url, SHOAL_WORKER_LISTEN=listen, **FIFTH) as fleet:
        fleet.controller()
        worker = fleet.worker()
        site.allowed = 20
        crawl_id = fleet.submit(site)
        wait_for(lambda: site.pages_answered == 20, "twenty pages")
        stuff(stuffing)
        site.allowed = None
        wait_for(lambda: "the store is full" in worker.said(), "a worker that says that its store is full")
        wait_for(lambda: ready(listen)[0] == 503, "a worker that is not ready")
        assert ready(listen)[1]["store"] == "storage_full"
        wait_for(lambda: not holds_a_lease(ledger.read(store_url, crawl_id)), "the end of every lease")
        stuffing.unlink()
        fleet.wait_for_state(crawl_id, "completed", "failed")
        books_in_order(fleet, crawl_id, site)
        assert [job["crash_count"] for job in ledger.read(store_url, crawl_id).jobs] == [0]
        said = worker.said()
        assert (said.count("the store is full"), said.count("the store has space again")) == (1, 1)


def holds_a_lease(books: ledger.Books) -> bool:
    return any((job["lease_until"] or 0) > books.now for job in books.jobs)


def ready(listen: str) -> tuple[int, dict[str, Any]]:
    """Return the status of a worker's readiness check; 0 if it does not answer."""
    connection = HTTPConnection(listen, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except OSError:
        return 0, {}
    finally:
        connection.close()


def put_to_sleep(pids: Callable[[], Iterable[int]], store_url: str, site: Site, *, in_a_commit: bool) -> float:
    """Stop processes in the middle of a commit, where they keep the store's locks, or between two commits; return the
    time from which they send no requests."""

    def caught() -> bool:
        stopped = list(pids())
        send_all(stopped, signal.SIGSTOP)
        if ledger.can_be_written(store_url) != in_a_commit:
            return True
        send_all(stopped, signal.SIGCONT)
        return False

    # A commit takes about a millisecond: poll that often, so that no commit is missed between two polls.
    wait_for(caught, f"a process asleep {'in' if in_a_commit else 'between'} commits", longest_poll=0.001)
    return site.visits[-1].at


@pytest.mark.parametrize(
    ("fraud", "word"),
    [
        ("DELETE FROM page WHERE number = 3", "have no page"),
        ("UPDATE page SET url = (SELECT url FROM page WHERE number = 1) WHERE number = 2", "is stored 2 times"),
        ("UPDATE page SET key = key + 1 WHERE number = 2", "under the key of another URL"),
        ("UPDATE page SET error_code = 'x' WHERE number = 2", "is innocent and failed"),
        ("UPDATE crawl_counter SET pages = pages + 1 WHERE pages > 0", "the counter pages is 6"),
        ("UPDATE crawl_counter SET responses_2xx = 4 WHERE pages > 0", "the counter responses_2xx is 4"),
        ("UPDATE crawl_counter SET opened = opened - 1 WHERE opened > 1", "the counter opened is"),
        ("UPDATE crawl_skip SET count = count + 1", "the skips are"),
        ("UPDATE fate SET fate = 0 WHERE fate = 1", "they are lost"),
        ("UPDATE job SET attempts = 1", "has 1 attempts"),
        ("UPDATE job SET lease_epoch = 2", "was granted 2 times"),
        ("UPDATE job_grant SET ended = NULL, ended_at = NULL", "have no end"),
        ("UPDATE job_grant SET ended = 'crashed'", "its grants ended"),
        ("DELETE FROM job_grant", "was granted 1 times"),
        ("UPDATE crawl SET state = 'failed'", "the crawl is failed"),
        ("DELETE FROM outbox WHERE type = 'crawl.completed'", "the outbox has"),
        ("INSERT INTO outbox SELECT 'x', type, subject, body, created_at, NULL FROM outbox LIMIT 1", "the outbox has"),
        (
            "UPDATE job SET state = 'locked', lease_holder = 'x', lease_until = 1, finished_at = NULL",
            "though its lease ended",
        ),
    ],
)
def test_the_ledger_notices_every_inconsistency(
    small_crawl: tuple[Path, str], tmp_path: Path, fraud: str, word: str
) -> None:
    store, crawl_id = small_crawl
    copy = tmp_path / "copy.db"
    shutil.copy(store, copy)
    assert ledger.check(f"sqlite:///{copy}", crawl_id) == []
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute(fraud)
    found = ledger.check(f"sqlite:///{copy}", crawl_id)
    assert any(word in words for words in found), found


@pytest.fixture(scope="module")
def small_crawl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The store of a crawl of five pages that went well, all of it in one file."""
    folder = tmp_path_factory.mktemp("small")
    store = folder / "shoal.db"
    with Site(pages=5) as site, Fleet(folder, f"sqlite:///{store}", **TENTH) as fleet:
        fleet.controller()
        fleet.worker()
        crawl_id = fleet.submit(site)
        fleet.wait_for_state(crawl_id, "completed", "failed")
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return store, crawl_id

"""The delay between two requests to one host as the host measures it, while children are stopped, killed and restarted.

A gap is short if it is less than nine tenths of the delay, minus what may pass between the last look at the clock and
the request: 20 ms on a quiet machine, more on a busy one, which lets a process wait for a core, and never more than
half of the delay. A process that is stopped in that moment sends one request late, so each stop may make one gap short.
Nothing else may.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.arrivals import Gap, Target
from tests.support.delay_proxy import delay_proxy
from tests.support.fleet import QUICK, Fleet, Shoal, identity, is_alive, name_of, send_all, stop_for, wait_for
from tests.support.patience import with_load

DELAY = 0.25
PAGE_DELAY = 0.2  # of the speed `fast`, which page jobs have here
TOLERANCE_SECONDS = 0.02
LEAST_SHARE = 0.9
STOPPED_SECONDS = 1.5  # within the time for which slots are reserved
SETTINGS = QUICK | {"SHOAL_PAGE_SPEED": "fast"}
AGAIN_SECONDS = 1.0
PAGES = 14
SEEDS = 12
DONE = ("completed", "failed")


def short(gaps: list[Gap], delay: float) -> list[Gap]:
    tolerance = min(with_load(TOLERANCE_SECONDS), delay / 2)
    return [gap for gap in gaps if gap.seconds < LEAST_SHARE * delay - tolerance]


def words_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def is_page_child(pid: int) -> bool:
    return b"pages" in words_of(pid) or name_of(pid).endswith("-pages")


class Crawls:
    """A crawl by a child of a worker."""

    delay = DELAY

    def __init__(self, fleet: Fleet, target: Target, **options: Any) -> None:
        self._fleet = fleet
        self._target = target
        self._options = options
        self._id = ""

    def begin(self, pages: int) -> None:
        config = {"seeds": self._target.urls(pages), "delay_seconds": self.delay, "sitemap": "off", "depth": 0}
        self._id = str(self._fleet.post("/api/v1/crawls", **config, concurrency=8, **self._options)["id"])

    def children_of(self, worker: Shoal) -> list[int]:
        """The children that may have the crawl: all that have no page jobs."""
        return [pid for pid in worker.children() if not is_page_child(pid)]

    def wait(self) -> None:
        assert self._fleet.wait_for_state(self._id, *DONE)["state"] == "completed"


class PageJobs:
    """Page jobs by the page children of workers."""

    delay = PAGE_DELAY

    def __init__(self, fleet: Fleet, target: Target, **options: Any) -> None:
        self._fleet = fleet
        self._target = target
        self._options = options
        self._id = ""

    def begin(self, pages: int) -> None:
        self._id = self._fleet.fetch(self._target.urls(pages), **self._options)

    def children_of(self, worker: Shoal) -> list[int]:
        return [pid for pid in worker.children() if is_page_child(pid)]

    def wait(self) -> None:
        wait_for(lambda: self._fleet.group(self._id)["state"] not in ("open", "unknown"), "the end of the page jobs")
        assert self._fleet.group(self._id)["state"] == "completed"


Work = Crawls | PageJobs
Kind = Callable[[Fleet, Target], Work]


def rendered(fleet: Fleet, target: Target) -> Work:
    return Crawls(fleet, target, render="always")


def rendered_jobs(fleet: Fleet, target: Target) -> Work:
    return PageJobs(fleet, target, crawl_config={"js_required": True})


@contextmanager
def at_work(folder: Path, store_url: str, kind: Kind, target: Target, **more: str) -> Iterator[tuple[Work, Shoal]]:
    """A controller and a worker that has begun to request the pages of the target; all are requested at the end."""
    with Fleet(folder, store_url, **SETTINGS, **more) as fleet:
        fleet.controller()
        worker = fleet.worker()
        work = kind(fleet, target)
        work.begin(PAGES)
        target.wait_for_pages(2)
        yield work, worker
        target.wait_for_pages(PAGES)
        work.wait()


def stop_twice(work: Work, worker: Shoal, target: Target) -> int:
    """Stop the children, and again soon after they go on: what they spaced anew is late again."""
    for seconds in (STOPPED_SECONDS, AGAIN_SECONDS):
        children = work.children_of(worker)
        assert children
        stop_for(children, seconds)
        target.wait_for_pages(len(target.pages) + 1)
    return 2


def kill(work: Work, worker: Shoal, target: Target) -> int:
    """Kill the children; their worker starts others."""
    children = [identity(pid) for pid in work.children_of(worker)]
    assert children
    send_all([pid for pid, _ in children], signal.SIGKILL)
    wait_for(lambda: not any(map(is_alive, children)), "the end of the children")
    return 1


FAULTS = {"stopped": stop_twice, "killed": kill}


@pytest.mark.parametrize("fault", ["stopped", pytest.param("killed", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("kind", [Crawls, pytest.param(PageJobs, marks=pytest.mark.exhaustive)])
def test_a_fault_of_a_child_makes_at_most_one_gap_short(store_url: str, tmp_path: Path, kind: Kind, fault: str) -> None:
    with Target() as target, at_work(tmp_path, store_url, kind, target) as (work, worker):
        faults = FAULTS[fault](work, worker, target)
    found = short(target.gaps_of_pages(), work.delay)
    assert len(found) <= faults, target.gaps()


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", ["stopped", "killed"])
@pytest.mark.parametrize("kind", [rendered, rendered_jobs])
def test_a_fault_of_a_child_makes_at_most_one_gap_between_navigations_short(
    store_url: str, tmp_path: Path, kind: Kind, fault: str, chromium: str
) -> None:
    with (
        Target(scripts=True) as target,
        at_work(tmp_path, store_url, kind, target, SHOAL_CHROMIUM=chromium) as (work, worker),
    ):
        faults = FAULTS[fault](work, worker, target)
    assert "/data" in {one.path for one in target.arrivals}
    found = short(target.gaps_of_pages(), work.delay)
    assert len(found) <= faults, target.gaps()


@pytest.mark.exhaustive
def test_a_stop_of_a_local_crawl_makes_at_most_one_gap_short(store_url: str, tmp_path: Path) -> None:
    with Target() as target, Fleet(tmp_path, store_url) as fleet:
        crawl = local_crawl(fleet, target, PAGES)
        target.wait_for_pages(2)
        stop_for([crawl.process.pid], STOPPED_SECONDS)
        assert crawl.wait() == 0
    assert len(target.pages) == PAGES
    assert len(short(target.gaps_of_pages(), DELAY)) <= 1, target.gaps()


def test_pages_that_wait_for_a_slow_robots_txt_are_requested_one_by_one(store_url: str, tmp_path: Path) -> None:
    with Target(robots_seconds=STOPPED_SECONDS) as target, Fleet(tmp_path, store_url) as fleet:
        assert local_crawl(fleet, target, SEEDS).wait() == 0
    assert len(target.pages) == SEEDS
    assert short(target.gaps(), DELAY) == [], target.gaps()


@pytest.mark.exhaustive
def test_page_jobs_that_wait_for_a_slow_robots_txt_are_requested_one_by_one(store_url: str, tmp_path: Path) -> None:
    with (
        Target(robots_seconds=STOPPED_SECONDS) as target,
        at_work(tmp_path, store_url, PageJobs, target) as (work, _),
    ):
        pass
    assert short(target.gaps(), work.delay) == [], target.gaps()


def test_the_first_page_of_a_crawl_follows_robots_txt_by_the_delay(store_url: str, tmp_path: Path) -> None:
    with Target() as target, Fleet(tmp_path, store_url) as fleet:
        assert local_crawl(fleet, target, 2).wait() == 0
    assert next(one.path for one in target.navigations) == "/robots.txt"
    assert short(target.gaps(), DELAY) == [], target.gaps()


def test_the_first_page_job_follows_robots_txt_by_the_delay(store_url: str, tmp_path: Path) -> None:
    with Target() as target, Fleet(tmp_path, store_url, **SETTINGS) as fleet:
        fleet.controller(workers=1)
        jobs = PageJobs(fleet, target)
        jobs.begin(2)
        jobs.wait()
    assert next(one.path for one in target.navigations) == "/robots.txt"
    assert short(target.gaps(), PAGE_DELAY) == [], target.gaps()


@pytest.mark.exhaustive
def test_a_crawl_keeps_the_delay_that_robots_txt_asks_for_from_the_first_page_on(
    store_url: str, tmp_path: Path
) -> None:
    asked = 0.5
    with (
        Target(robots=f"User-agent: *\nCrawl-delay: {asked}") as target,
        Fleet(tmp_path, store_url) as fleet,
    ):
        assert local_crawl(fleet, target, 4).wait() == 0
    assert short(target.gaps(), asked) == [], target.gaps()


@pytest.mark.exhaustive
def test_two_page_children_share_the_slots_of_a_host(store_url: str, tmp_path: Path) -> None:
    with Target() as target, Fleet(tmp_path, store_url, **SETTINGS) as fleet:
        fleet.controller(workers=2)
        jobs = PageJobs(fleet, target)
        jobs.begin(2 * PAGES)
        jobs.wait()
    assert len(target.pages) == 2 * PAGES
    assert short(target.gaps_of_pages(), PAGE_DELAY) == [], target.gaps()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [PageJobs, Crawls])
def test_two_workers_keep_the_delay_on_a_slow_store(postgres_url: str, tmp_path: Path, kind: Kind) -> None:
    with Target() as target, delay_proxy(postgres_url) as proxy, Fleet(tmp_path, postgres_url, **SETTINGS) as fleet:
        fleet.controller()
        for number in range(2):
            fleet.worker(f"worker-{number}", DATABASE_URL=proxy.url)
        works = [kind(fleet, target) for _ in range(2)]
        proxy.delay_seconds = 0.03
        for work in works:
            work.begin(PAGES)
        for work in works:
            work.wait()
    assert short(target.gaps_of_pages(), works[0].delay) == [], target.gaps()


def local_crawl(fleet: Fleet, target: Target, pages: int) -> Shoal:
    flags = ["--delay", str(DELAY), "--concurrency", "8", "--sitemap", "off", "--depth", "0"]
    return fleet.command("crawl", "crawl", *target.urls(pages), *flags)

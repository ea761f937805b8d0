"""The rate limit of a host is shared: three processes crawl it on one store, checked by the site's log."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.fleet import Fleet, clean_environment
from tests.support.processes import run_shoal
from tests.support.site import Site, Visit

PROCESSES = 3
PAGES = 5  # of each
DELAY = 0.4
LATE = 1.5  # seconds by which a request may be late for its slot on a busy machine
SOME = 8  # requests in a row
AHEAD = 2.0  # seconds: slots that were reserved before the host asked to wait are still used


@contextmanager
def three_crawls(folder: Path, store_url: str, site: Site, *flags: str) -> Iterator[None]:
    """Run three processes that crawl the site at the same time, to completion."""
    with Fleet(folder, store_url) as fleet:
        words = ["crawl", site.address, "--max-pages", str(PAGES), *flags]
        crawls = [fleet.command(f"crawl-{number}", *words) for number in range(PROCESSES)]
        yield
        assert [crawl.wait() for crawl in crawls] == [0] * PROCESSES


def paced(site: Site) -> list[Visit]:
    """Return the requests that needed a slot of the host: all except those for robots.txt."""
    return [visit for visit in site.visits if visit.path != "/robots.txt"]


def test_three_processes_keep_one_pace(store_url: str, tmp_path: Path) -> None:
    with Site() as site, three_crawls(tmp_path, store_url, site, "--delay", str(DELAY), "--concurrency", "2"):
        pass
    moments = [visit.at for visit in paced(site)]
    assert len(moments) >= PROCESSES * PAGES
    # No request is sent before its slot, so the last request of a series can be early only by as much as the first one
    # was late.
    rows = zip(moments, moments[SOME - 1 :], strict=False)
    assert min(last - first for first, last in rows) >= (SOME - 1) * DELAY - LATE
    assert moments[-1] - moments[0] >= (len(moments) - 1) * DELAY - LATE
    assert site.times_asked("/robots.txt") <= PROCESSES


COMPOSE = Path(__file__).parents[2] / "compose.yaml"
ELSEWHERE = "http://host.invalid/"  # a seed that is not on this machine, so that the default is not `max`
TIMEOUT = 60


def crawled(folder: Path, store_url: str, site: Site, *words: str, **env: str) -> tuple[str, str]:
    """Crawl four pages of the site; return the speed of the crawl and the first line of its output."""
    done = run_shoal(
        *("crawl", site.address, ELSEWHERE, "--sitemap", "off", "--max-pages", "4", "--id", "mine", *words),
        cwd=folder,
        env=clean_environment(folder) | {"DATABASE_URL": store_url} | env,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    shown = run_shoal(
        *("crawls", "show", "mine", "--store", store_url, "--json"),
        cwd=folder,
        env=clean_environment(folder),
        timeout=TIMEOUT,
    )
    return json.loads(shown.stdout)["config"]["speed"], done.stderr.splitlines()[0]


@pytest.mark.exhaustive
def test_the_environment_of_the_compose_file_allows_connections_and_keeps_the_delay(
    store_url: str, tmp_path: Path
) -> None:
    worker = re.findall(r"^ +([A-Z_]*CONCURREN[A-Z_]+): (\d+)$", COMPOSE.read_text(), re.MULTILINE)
    assert ("MAX_CONCURRENT_CURL", "15") in worker
    with Site() as site:
        speed, first = crawled(tmp_path, store_url, site, **dict(worker))
    moments = [visit.at for visit in paced(site)]
    assert len(moments) == 4
    assert moments[-1] - moments[0] >= 3 - LATE
    assert speed == "normal"
    assert "at 1 request/s per host (the default; MAX_CONCURRENT_CURL allows 15 connections, but keeps" in first
    assert first.endswith("`--speed fast` is 5/s.")


def test_concurrency_without_a_speed_drops_the_delay(store_url: str, tmp_path: Path) -> None:
    with Site() as site:
        speed, first = crawled(tmp_path, store_url, site, "--concurrency", "3")
    moments = [visit.at for visit in paced(site)]
    assert moments[-1] - moments[0] < 1 + LATE
    assert speed == "max"
    assert "without a delay, over up to 3 connections per host (--concurrency without --speed or --delay)" in first


def test_each_process_keeps_to_its_connections(store_url: str, tmp_path: Path) -> None:
    flags = ("--speed", "max", "--concurrency", "2")
    with Site(delay=0.1) as site, three_crawls(tmp_path, store_url, site, *flags):
        pass
    assert site.most_at_once <= PROCESSES * 2


@pytest.mark.exhaustive
def test_a_hold_seen_by_one_process_applies_to_all(store_url: str, tmp_path: Path) -> None:
    wait = 5
    with Site() as site:
        site.refuse_once("/p/2", wait)
        with three_crawls(tmp_path, store_url, site, "--delay", "0.2"):
            pass
    [told, *_] = [visit.at for visit in paced(site) if visit.path == "/p/2"]
    late = [visit for visit in paced(site) if told + AHEAD + LATE < visit.at < told + wait]
    assert not late
    assert site.times_asked("/p/2") > 1


def test_a_controller_counts_holds_and_never_crawls_itself(store_url: str, tmp_path: Path) -> None:
    with Site(pages=20) as site, Fleet(tmp_path, store_url) as fleet:
        controller = fleet.controller(workers=1)
        site.refuse_once("/p/2", 1)
        assert fleet.wait_for_state(fleet.submit(site), "completed", "failed")["pages"] == 20
        assert 'shoal_host_holds_total{why="retry_after"} 1.0' in fleet.metrics()
        itself = fleet.submit(site, seeds=[f"http://localhost:{fleet.port}/healthz"])
        found = fleet.wait_for_state(itself, "completed", "failed")
        assert (found["state_reason"], found["pages"], found["errors"]) == ("no_seed_gave_a_page", 0, 1)
        assert "self_connection" in controller.said()

"""Scrapes by real processes: killed workers, restarted controllers, many at once, and pages that are too large."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.acceptance.test_page_jobs import FAST, page_child_of
from tests.support.fleet import LONG_LEASE, Fleet, send_all, wait_for
from tests.support.site import Site, path_of

MANY = 200
LONG = FAST | LONG_LEASE


def scrape(fleet: Fleet, url: str, key: str = "", **more: Any) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
    body = json.dumps({"url": url, "formats": ["text"], "timeout_seconds": 60, **more}).encode()
    try:
        with urlopen(Request(f"http://127.0.0.1:{fleet.port}/api/v1/scrape", body, headers), timeout=90) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize("who", ["child", pytest.param("worker", marks=pytest.mark.exhaustive)])
def test_a_scrape_survives_the_worker_that_has_it(store_url: str, tmp_path: Path, who: str) -> None:
    with Site(pages=2) as site, Fleet(tmp_path, store_url, **FAST) as fleet, ThreadPoolExecutor() as threads:
        fleet.controller()
        worker = fleet.worker()
        site.allowed = 0
        waiting = threads.submit(scrape, fleet, site.url(1))
        site.wait_for_pages(1)  # it is requested, and not answered
        if who == "child":
            send_all(page_child_of(worker), signal.SIGKILL)
        else:
            worker.kill()
            worker.start()
        wait_for(lambda: site.times_asked(path_of(1)) == 2, "the second request")
        site.allowed = None
        status, found = waiting.result(90)
        assert (status, found["page"]["status"], found["page"]["error"]) == (200, 200, None)
        assert found["content"]["text"]


def test_a_scrape_is_found_again_after_the_controller_was_killed(store_url: str, tmp_path: Path) -> None:
    with Site(pages=2) as site, Fleet(tmp_path, store_url, **LONG) as fleet, ThreadPoolExecutor() as threads:
        controller = fleet.controller()
        fleet.worker()
        site.allowed = 0
        waiting = threads.submit(scrape, fleet, site.url(1), "k")
        site.wait_for_pages(1)  # it is requested, and not answered
        controller.kill()
        with pytest.raises(ConnectionError):
            waiting.result(60)
        controller.start()
        fleet.wait_ready()
        site.allowed = None
        status, found = scrape(fleet, site.url(1), "k")
        assert (status, found["state"], site.times_asked(path_of(1))) == (200, "done", 1)


@pytest.mark.exhaustive
def test_two_hundred_at_once_get_an_answer_each(store_url: str, tmp_path: Path) -> None:
    with Site(pages=MANY) as site, Fleet(tmp_path, store_url, **FAST) as fleet, ThreadPoolExecutor(MANY) as threads:
        fleet.controller(workers=1)
        urls = sorted(site.urls)
        found = list(threads.map(lambda url: scrape(fleet, url), urls))
        assert [(status, one["page"]["url"], one["page"]["status"]) for status, one in found] == [
            (200, url, 200) for url in urls
        ]

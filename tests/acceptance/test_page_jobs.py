"""Page jobs and analyses by real workers: every URL gives one result and one event, whichever process is killed
meanwhile."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.fleet import TENTH, Fleet, Shoal, clean_environment, name_of, send_all, wait_for
from tests.support.processes import run_shoal
from tests.support.site import Site

PAGES = 60
FAST = {
    **TENTH,
    "SHOAL_PAGE_SPEED": "max",
    "MAX_CONCURRENT_CURL": "5",
    "WORKER_BACKOFF_MS": "100",
    "SHOAL_POISON_LIMIT": "100",  # the worker is killed, and leases of one second may also expire on their own
}


class Rest:
    """A plain HTTP client of a controller."""

    def __init__(self, fleet: Fleet) -> None:
        self._home = f"http://127.0.0.1:{fleet.port}/api/v1"

    def ask(self, path: str, body: Any = None) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self._home + path, sent, {"Content-Type": "application/json"}), timeout=60) as response:
            return json.load(response)

    def all(self, path: str) -> Iterator[dict[str, Any]]:
        cursor = ""
        while cursor is not None:
            page = self.ask(f"{path}?limit=200{cursor}")
            yield from page["items"]
            cursor = f"&cursor={page['next']}" if page["next"] else None

    def until_over(self, group_id: str, seconds: float = 120.0) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        def over() -> bool:
            seen.update(self.ask(f"/groups/{group_id}"))
            return bool(seen["state"] != "open")

        wait_for(over, "a group that is over", seconds, lambda: f"it is {seen}")
        return seen


def page_child_of(worker: Shoal) -> list[int]:
    """The child that has page jobs, if there is one just now."""
    found = []
    for pid in worker.children():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        found += [pid] if b"pages" in words or name_of(pid).endswith("-pages") else []
    return found


def kill_page_child(worker: Shoal) -> None:
    wait_for(lambda: bool(page_child_of(worker)), "a page child")
    send_all(page_child_of(worker), signal.SIGKILL)


@pytest.mark.parametrize("who", [pytest.param("child", marks=pytest.mark.exhaustive), "worker"])
def test_each_url_has_one_result_and_one_event_whoever_is_killed(store_url: str, tmp_path: Path, who: str) -> None:
    with Site(pages=PAGES, delay=0.05) as site, Fleet(tmp_path, store_url, **FAST) as fleet:
        fleet.controller()
        worker = fleet.worker()
        rest = Rest(fleet)
        rules = {"fields": {"title": {"css": "title", "required": True}}}
        group = rest.ask("/jobs", {"urls": sorted(site.urls), "rule_set": rules})
        for asked in (10, 25, 40):
            site.wait_for_pages(asked)
            if who == "child":
                kill_page_child(worker)
            else:
                worker.kill()
                worker.start()
        over = rest.until_over(group["id"])
        assert (over["state"], over["jobs"]) == ("completed", {"done": PAGES})
        results = list(rest.all(f"/groups/{group['id']}/results"))
        assert sorted(result["url"] for result in results) == sorted(site.urls)
        assert all(result["data"]["title"] for result in results)
        wait_for(lambda: "crawl.group.completed" in kinds(rest), "the last event")
        events = kinds(rest)
        assert (events["crawl.job.completed"], events["crawl.group.completed"]) == (PAGES, 1)


def kinds(rest: Rest) -> Counter[str]:
    found: Counter[str] = Counter()
    after = 0
    while items := rest.ask(f"/events?after={after}&limit=200")["items"]:
        found.update(item["type"] for item in items)
        after = int(items[-1]["sequence"])
    return found


def test_jobs_are_added_waited_for_and_read_from_the_command_line(store_url: str, tmp_path: Path) -> None:
    with Site(pages=5) as site, Fleet(tmp_path, store_url, **FAST) as fleet:
        fleet.controller(workers=1)
        urls = tmp_path / "urls.txt"
        urls.write_text("\n".join(sorted(site.urls)))
        said = shoal(tmp_path, store_url, "jobs", "add", "--file", str(urls), "--wait")
        group_id = said.stdout.strip()
        assert said.stderr.splitlines() == [f"Created 5 jobs in {group_id}.", "Completed: 5 done."]
        results = [
            json.loads(line)
            for line in shoal(tmp_path, store_url, "jobs", "results", group_id).stdout.split("\n")
            if line
        ]
        assert sorted(result["url"] for result in results) == sorted(site.urls)
        told = fleet.metrics()
        assert 'shoal_jobs_done_total{kind="page"} 5.0' in told, "what the child did is counted in its parent"
        assert 'shoal_pages_total{status_class="2xx"} 5.0' in told


def shoal(folder: Path, store_url: str, *words: str) -> "subprocess.CompletedProcess[str]":
    env = clean_environment(folder) | {"DATABASE_URL": store_url, "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8"}
    done = run_shoal(*words, cwd=folder, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def test_a_crawl_that_asked_for_it_is_analysed_although_workers_die(store_url: str, tmp_path: Path) -> None:
    with Site(pages=20) as site, Fleet(tmp_path, store_url, **FAST) as fleet:
        fleet.controller()
        worker = fleet.worker()
        rest = Rest(fleet)
        crawl_id = fleet.submit(site, analyze=True)
        fleet.wait_for_state(crawl_id, "completed")
        worker.kill()
        worker.start()
        seen: list[dict[str, Any]] = []

        def over() -> bool:
            seen[:] = rest.ask(f"/analyses?crawl_id={crawl_id}")["items"]
            return bool(seen) and seen[0]["state"] in ("success", "failed")

        wait_for(over, "an analysis that is over", seen=lambda: f"it is {seen}")
        [analysis] = seen
        assert analysis["state"] == "success"
        detail = rest.ask(f"/analyses/{analysis['id']}")
        assert detail["metrics"]["pages"] == sum(row["2xx"] for row in detail["summary"]["status_by_depth"]) == 20
        assert "Processing analysis job" in worker.said()
        assert analysis["id"] in shoal(tmp_path, store_url, "analyses", "ls", "--crawl", crawl_id).stdout
        assert crawl_id in shoal(tmp_path, store_url, "analyses", "show", analysis["id"]).stdout

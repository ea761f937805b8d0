"""Commands that follow a crawl of a fleet (status, wait, live log), and time slices of runs."""

import asyncio
import json
import signal
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Self

from shoal.app import opened
from shoal.base.database import Tx
from shoal.base.settings_loader import load
from shoal.queue.job import Grant
from tests.support.fleet import PATIENCE_SECONDS, Fleet, clean_environment, wait_for
from tests.support.processes import start_shoal
from tests.support.servers import free_port
from tests.support.site import Site

PAGES = 40
FIRST = 5  # pages that are stored before the first command runs


class Command:
    """One `shoal crawls …` that asks the fleet's controller. As a context manager it ends with the block."""

    def __init__(self, fleet: Fleet, *words: str) -> None:
        self.process = start_shoal(
            "crawls",
            *words,
            "--server",
            f"http://127.0.0.1:{fleet.port}",
            cwd=fleet.folder,
            env=clean_environment(fleet.folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def finish(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        assert "Traceback" not in err, err
        return self.process.returncode, out, err


def test_a_crawl_is_watched_left_alone_waited_for_and_read(store_url: str, tmp_path: Path) -> None:
    with Site(pages=PAGES) as site, Fleet(tmp_path, store_url, SHOAL_PROJECT_LOGS="logs") as fleet:
        fleet.controller(workers=1)
        site.allowed = FIRST
        crawl_id = fleet.submit(site, concurrency=1, project="shop")
        with Command(fleet, "logs", crawl_id, "--follow", "--json") as follow:
            watched_and_left_alone(fleet, crawl_id)
            site.allowed = None
            code, out, _ = Command(fleet, "wait", crawl_id, "--json").finish()
            assert (code, json.loads(out)["state"], json.loads(out)["pages"]) == (0, "completed", PAGES)
            code, out, _ = follow.finish()
        lines = [json.loads(line) for line in out.splitlines()]
        assert [line["number"] for line in lines] == list(range(1, len(lines) + 1)), "each line once, in order"
        assert lines[0]["msg"] == "Waiting for a worker"
        assert lines[-1]["msg"].startswith(f"Completed: {PAGES} pages, 0 errors")
        assert {"Started", "Depth 0 finished", "Depth 1 finished"} < {line["msg"] for line in lines}
        file = tmp_path / "logs" / "shop.log"
        wait_for(lambda: file.exists() and file.read_text().count("\n") == len(lines), "the lines in their file")
        assert [json.loads(line)["msg"] for line in file.read_text().splitlines()] == [line["msg"] for line in lines]


def watched_and_left_alone(fleet: Fleet, crawl_id: str) -> None:
    fleet.wait_for_state(crawl_id, "running")
    with Command(fleet, "watch", crawl_id) as watch:
        assert watch.process.stderr is not None
        assert "page" in watch.process.stderr.readline()
        watch.process.send_signal(signal.SIGINT)
        code, out, err = watch.finish()
    assert (code, out) == (130, "")
    assert f"The crawl is still running; follow it with `shoal crawls watch {crawl_id} --server " in err
    assert fleet.crawl(crawl_id)["state"] == "running"


def test_a_wait_that_ends_before_the_crawl_says_so_and_leaves_it_alone(store_url: str, tmp_path: Path) -> None:
    with Site(pages=20) as site, Fleet(tmp_path, store_url) as fleet:
        fleet.controller()
        crawl_id = fleet.submit(site)
        code, out, err = Command(fleet, "wait", crawl_id, "--timeout", "100ms").finish()
        assert (code, out) == (6, "")
        assert "did not end within 0.1 s" in err
        assert fleet.crawl(crawl_id)["state"] == "queued"


def test_a_crawl_that_fails_for_its_seeds_says_why_and_can_be_tried_again(store_url: str, tmp_path: Path) -> None:
    quick = {"SHOAL_PAGE_ATTEMPTS": "1", "SHOAL_CONNECT_TIMEOUT": "2s"}
    with Fleet(tmp_path, store_url, **quick) as fleet:
        fleet.controller(workers=1)
        with Site(pages=3) as site:
            crawl_id = fleet.submit(site, seeds=[f"http://127.0.0.1:{free_port()}/"], robots="ignore")
        failed = fleet.wait_for_state(crawl_id, "failed")
        assert (failed["state_reason"], failed["error"]["code"]) == ("no_seed_gave_a_page", "no_seed_gave_a_page")
        assert failed["seeds"][0] in failed["error"]["message"]
        code, _, err = Command(fleet, "wait", crawl_id).finish()
        assert code == 3
        assert failed["error"]["message"] in err
        assert Command(fleet, "retry", crawl_id).finish()[0] == 0
        wait_for(lambda: journal(fleet, crawl_id)[-1].startswith("Failed"), "the second end")
        assert fleet.crawl(crawl_id)["errors"] == 1
        [again] = [line for line in journal(fleet, crawl_id) if "failed URL" in line]
        assert again == "1 failed URL will be retried"


def journal(fleet: Fleet, crawl_id: str) -> list[str]:
    code, out, err = Command(fleet, "logs", crawl_id, "--json").finish()
    assert code == 0, err
    return [json.loads(line)["msg"] for line in out.splitlines()]


def test_with_a_concurrency_of_one_runs_do_not_overlap(store_url: str, tmp_path: Path) -> None:
    with Site(pages=15, delay=0.01) as site, Fleet(tmp_path, store_url, WORKER_CONCURRENCY="1") as fleet:
        fleet.controller()
        ids = [fleet.submit(site, analyze=number == 0) for number in range(3)]
        fleet.worker()
        for crawl_id in ids:
            fleet.wait_for_state(crawl_id, "completed")
        wait_for(lambda: len(grants(store_url)) == 4, "three crawls and an analysis")
    times = sorted((grant.granted_at, grant.ended_at or 0) for grant in grants(store_url))
    assert all(ended <= granted for (_, ended), (granted, _) in pairwise(times)), times


def grants(store_url: str) -> list[Grant]:
    """The history of every job that was ever leased and has ended."""

    async def read() -> list[Grant]:
        async with opened(load({"DATABASE_URL": store_url}).settings) as app:

            async def look(tx: Tx) -> list[Grant]:
                jobs = [job for run in runs for job in await app.queue.jobs.jobs_of_run(tx, run)]
                return [grant for job in jobs for grant in await app.queue.jobs.history(tx, job.id)]

            runs: list[str] = [seen.crawl.id for seen in await app.crawls.newest()]
            runs += [analysis.id for analysis in await app.audit.analyses.newest()]
            return await app.database.read(look)

    return asyncio.run(read())

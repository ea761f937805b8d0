"""Stores that earlier commits made: opened, upgraded, resumed, worked off, exported and moved by this one."""

import asyncio
import gzip
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.fleet import Fleet, clean_environment, wait_for
from tests.support.processes import run_shoal
from tests.support.site import Site
from tests.support.stored_work import FINISHED, GROUP, INTERRUPTED, PAGES, SCHEMA, WAITING, stored_site

STORES = Path(__file__).parents[1] / "stores"
DEADLINE_SECONDS = 120

Shoal = Callable[..., str]


@pytest.fixture
def site() -> Iterator[Site]:
    with stored_site() as site:
        yield site


@pytest.fixture(
    params=[
        pytest.param(file, marks=() if file.name.endswith(".db.gz") else pytest.mark.exhaustive)
        for file in sorted(STORES.glob("*.gz"))
    ],
    ids=lambda file: file.name.removesuffix(".gz"),
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a copy of a stored store, upgraded."""
    content = gzip.decompress(request.param.read_bytes())
    if request.param.name.endswith(".db.gz"):
        (tmp_path / "shoal.db").write_bytes(content)
        url = f"sqlite:///{tmp_path}/shoal.db"
    else:
        url = request.getfixturevalue("bare_postgres_url")
        [schema] = re.findall(r"search_path=(\w+)", url)
        statements = content.decode().replace(f"CREATE SCHEMA {SCHEMA};", "").replace(f"{SCHEMA}.", f"{schema}.")
        asyncio.run(execute(url, statements))
    done = run_shoal(
        "db", "upgrade", cwd=tmp_path, env=clean_environment(tmp_path) | {"DATABASE_URL": url}, timeout=DEADLINE_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return url


async def execute(url: str, statements: str) -> None:
    connection = await asyncpg.connect(url, timeout=DEADLINE_SECONDS)
    try:
        await connection.execute(statements)
    finally:
        await connection.close(timeout=DEADLINE_SECONDS)


@pytest.fixture
def shoal(store: str, tmp_path: Path) -> Shoal:
    """Runs a command on the store; returns what it printed."""

    def run(*words: str, store: str = store) -> str:
        env = clean_environment(tmp_path) | {"DATABASE_URL": store}
        done: subprocess.CompletedProcess[str] = run_shoal(*words, cwd=tmp_path, env=env, timeout=DEADLINE_SECONDS)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_crawl_that_an_earlier_commit_paused_is_resumed_and_has_each_page_once(shoal: Shoal, site: Site) -> None:
    records = shoal("crawl", "--resume", INTERRUPTED, "--output", "-").splitlines()
    assert Counter(json.loads(line)["url"] for line in records) == Counter(site.urls)
    assert site.pages_asked < PAGES  # those that it had were not requested again


def test_the_pages_findings_and_results_of_an_earlier_commit_are_read(shoal: Shoal, site: Site) -> None:
    pages = [json.loads(line) for line in shoal("crawls", "export", FINISHED, "--output", "-").splitlines()]
    assert Counter(page["url"] for page in pages) == Counter(site.urls)
    assert {page["title"] for page in pages} == {f"Page {number}" for number in range(PAGES)}
    crawls = json.loads(shoal("crawls", "ls", "--json"))["items"]
    assert Counter(crawl["state"] for crawl in crawls) == {"completed": 2, "paused": 1, "pending": 1}
    [analysis] = json.loads(shoal("analyses", "ls", "--json"))["items"]
    assert analysis["state"] == "success"
    assert json.loads(shoal("analyses", "show", analysis["id"], "--json"))["findings"]
    results = [json.loads(line) for line in shoal("jobs", "results", GROUP).splitlines()]
    assert Counter(result["state"] for result in results) == {"done": 5, "failed": 1}
    policies = json.loads(shoal("policies", "ls", "--json"))["items"]
    assert len(policies) == 2
    # Policies keep the rate and the depth that were the default when they were stored.
    assert [policy["crawl_config"].get("speed") for policy in policies if policy["seeds"]] == ["normal"]
    depths = {bool(policy["seeds"]): policy["crawl_config"].get("depth") for policy in policies}
    assert depths == {True: 3, False: None}


def test_a_crawl_of_an_earlier_commit_moves_to_a_new_store(shoal: Shoal, site: Site, tmp_path: Path) -> None:
    shoal("crawls", "dump", INTERRUPTED, "--output", "dump.jsonl")
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    shoal("crawls", "load", "dump.jsonl", "--allow-private-seeds", store=elsewhere)
    records = shoal("crawl", "--resume", INTERRUPTED, "--output", "-", store=elsewhere).splitlines()
    assert Counter(json.loads(line)["url"] for line in records) == Counter(site.urls)


def test_a_crawl_of_an_earlier_commit_says_that_it_has_no_links(
    shoal: Shoal, site: Site, store: str, tmp_path: Path
) -> None:
    env = clean_environment(tmp_path) | {"DATABASE_URL": store}
    words = ("crawls", "export", FINISHED, "--links", "links.csv")
    done = run_shoal(*words, cwd=tmp_path, env=env, timeout=DEADLINE_SECONDS)
    assert (done.returncode, "does not store links" in done.stderr) == (2, True)
    assert not (tmp_path / "links.csv").exists()
    shoal("crawl", site.address, "--links", "links.csv", "--speed", "max")
    assert (tmp_path / "links.csv").read_text().startswith('"from","to","text"')


def test_a_worker_runs_the_jobs_that_an_earlier_commit_enqueued(
    shoal: Shoal, site: Site, store: str, tmp_path: Path
) -> None:
    with Fleet(tmp_path, store) as fleet:
        fleet.worker()
        wait_for(lambda: "completed" in shoal("jobs", "groups", "--json").split(WAITING)[1], "the end of the group")

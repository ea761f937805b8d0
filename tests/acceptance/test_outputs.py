"""The outputs of `shoal crawl` when there is no room, nobody reads, a reader goes away, or the process dies."""

import csv
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import ledger
from tests.support.fleet import clean_environment
from tests.support.site import Site

PAGES = 1500
DEADLINE_SECONDS = 60
ID = "mine"
QUICK_LEASE = {"SHOAL_LEASE": "1s", "SHOAL_LEASE_EXTEND": "300ms", "SHOAL_LEASE_SWEEP": "200ms"}

Crawl = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(pages=PAGES) as site:
        yield site


@pytest.fixture
def crawl(tmp_path: Path) -> Iterator[Crawl]:
    """Starts crawls; none is left running."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, **env: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "shoal", "crawl", *words],
            cwd=tmp_path,
            env=clean_environment(tmp_path) | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        with suppress(ValueError):  # a test closed a pipe itself
            process.communicate(timeout=DEADLINE_SECONDS)


@pytest.fixture
def whole(site: Site, sqlite_url: str) -> list[str]:
    return [site.address, "--id", ID, "--store", sqlite_url, "--depth", "50", "--speed", "max"]


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def state_of(store_url: str) -> tuple[str, str | None]:
    crawl = ledger.read(store_url, ID).crawl
    return crawl["state"], crawl["state_reason"]


def urls_of(lines: str) -> Counter[str]:
    return Counter(json.loads(line)["url"] for line in lines.splitlines())


def wait_for_silence(site: Site) -> None:
    with suppress(AssertionError):
        while site.wait_for_visit(site.visits[-1].at, 1.5):
            pass


def test_several_outputs_hold_the_same_pages_also_after_a_kill(
    crawl: Crawl, site: Site, whole: list[str], sqlite_url: str, tmp_path: Path
) -> None:
    outputs = ["--output", "a.jsonl", "--output", "a.csv"]
    first = crawl(*whole, *outputs)
    site.wait_for_pages(PAGES // 3)
    first.kill()
    first.communicate(timeout=DEADLINE_SECONDS)
    assert {path.name for path in tmp_path.glob("a.*")} <= {"a.jsonl.part", "a.csv.part"}
    code, _, err = ended(crawl("--resume", ID, "--store", sqlite_url, *outputs))
    assert code == 0, err
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = Counter(row["url"] for row in csv.DictReader(file))
    assert rows == urls_of((tmp_path / "a.jsonl").read_text()) == Counter(site.urls)
    assert {path.name for path in tmp_path.glob("a.*")} == {"a.jsonl", "a.csv"}


def test_an_output_without_room_pauses_the_crawl_and_says_so(
    crawl: Crawl, site: Site, whole: list[str], sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl.part").symlink_to("/dev/full")
    code, _, err = ended(crawl(*whole, "--output", "a.jsonl"))
    assert code == 8
    assert "a.jsonl.part has no room left to write" in err
    assert f"shoal crawl --resume {ID}" in err
    assert state_of(sqlite_url) == ("paused", "storage_full")
    (tmp_path / "a.jsonl.part").unlink()
    code, _, err = ended(crawl("--resume", ID, "--store", sqlite_url, "--output", "a.jsonl"))
    assert code == 0, err
    assert urls_of((tmp_path / "a.jsonl").read_text()) == Counter(site.urls)


def test_a_reader_that_went_away_pauses_the_crawl(crawl: Crawl, whole: list[str], sqlite_url: str) -> None:
    process = crawl(*whole, "--output", "-")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(DEADLINE_SECONDS) == 141, err
    assert f"shoal crawl --resume {ID}" in err
    assert state_of(sqlite_url) == ("paused", "interrupted")


def test_a_reader_that_does_not_read_holds_the_crawl_and_costs_it_neither_its_lease_nor_a_page(
    crawl: Crawl, site: Site, whole: list[str]
) -> None:
    process = crawl(*whole, "--output", "-", **QUICK_LEASE)
    site.wait_for_pages(200)
    wait_for_silence(site)  # longer than the lease
    assert site.pages_asked < PAGES
    code, out, err = ended(process)
    assert code == 0, err
    assert urls_of(out) == Counter(site.urls)


def test_ctrl_c_twice_ends_also_a_crawl_whose_reader_does_not_read(
    crawl: Crawl, site: Site, whole: list[str], sqlite_url: str
) -> None:
    process = crawl(*whole, "--output", "-")
    site.wait_for_pages(200)
    wait_for_silence(site)
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    while "once more" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == 130
    code, out, err = ended(crawl("--resume", ID, "--store", sqlite_url, "--output", "-"))
    assert code == 0, err
    assert urls_of(out) == Counter(site.urls)


def test_with_records_on_stdout_the_summary_is_on_stderr_also_as_json(crawl: Crawl, whole: list[str]) -> None:
    code, out, err = ended(crawl(*whole, "--max-pages", "5", "--output", "-", "--json"))
    assert code == 0
    assert sum(urls_of(out).values()) == 5
    assert json.loads(err.splitlines()[-1])["pages"] == 5


def test_progress_is_on_stderr_and_the_summary_is_the_last_line_of_stdout(
    crawl: Crawl, site: Site, whole: list[str]
) -> None:
    site.delay = 0.02
    code, out, err = ended(crawl(*whole, "--json"))
    assert code == 0
    assert len(out.splitlines()) == 1
    assert json.loads(out)["pages"] == PAGES
    assert " waiting, 0 errors, depth " in err

"""`shoal crawl` as a process: killed, interrupted and resumed, with its exit codes."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from shoal.base.machine import SAME_CTRL_C_SECONDS
from shoal.cli.main import main
from tests.support import ledger
from tests.support.fleet import LONG_LEASE, clean_environment
from tests.support.full_disk import stuff
from tests.support.ledger import Expected
from tests.support.processes import start_shoal
from tests.support.servers import ask_redis, free_port
from tests.support.site import PAGES, Site

DEADLINE_SECONDS = 120
QUICK_LEASE = {"SHOAL_LEASE": "2s", "SHOAL_LEASE_EXTEND": "300ms", "SHOAL_LEASE_SWEEP": "1s"}
ID = "mine"


class Run:
    """One `shoal crawl` under way. Its output is read as it comes."""

    def __init__(self, folder: Path, *words: str, **env: str) -> None:
        self.process = start_shoal(
            "crawl",
            *words,
            cwd=folder,
            env=clean_environment(folder) | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=DEADLINE_SECONDS)
        assert "Traceback" not in err, err
        return self.process.returncode, out, err

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=DEADLINE_SECONDS)  # also closes the pipes

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait_to_hear(self, words: str) -> None:
        stream: IO[str] | None = self.process.stderr
        assert stream is not None
        for line in stream:
            if words in line:
                return
        raise AssertionError(f"the crawl ended without saying {words!r}")


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts crawls; none is left running."""
    runs: list[Run] = []

    def begin(*words: str, **env: str) -> Run:
        runs.append(Run(tmp_path, *words, **env))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill()


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


@pytest.fixture
def whole(site: Site, store_url: str) -> list[str]:
    """The command line that crawls the whole site."""
    return [site.address, "--id", ID, "--store", store_url, "--depth", "50", "--speed", "max", "--concurrency", "8"]


def records(path: Path) -> Counter[str]:
    return Counter(json.loads(line)["url"] for line in path.read_text().splitlines())


def once_each(site: Site) -> Counter[str]:
    return Counter(site.urls)


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """The store of this module's tests: SQLite, unless it names others."""
    url: str = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    return url


def test_a_resumed_crawl_completes_the_outputs_of_the_run_that_was_killed(
    start: Start, site: Site, whole: list[str], store_url: str, tmp_path: Path
) -> None:
    resume = ["--resume", "last", "--store", store_url]
    site.allowed = PAGES // 3
    first = start(*whole, "-o", "out.jsonl", "-o", "few.csv", "--links", "all.csv", "--fields", "url,status")
    site.wait_for_pages(PAGES // 3)
    first.kill()
    site.allowed = None
    (tmp_path / "elsewhere").mkdir()
    code, out, err = Run(tmp_path / "elsewhere", *resume, HOME=str(tmp_path)).finish()
    assert code == 0, err
    names = [str(tmp_path / name) for name in ("out.jsonl", "few.csv", "all.csv")]
    assert f"Writing the outputs of the earlier run: {', '.join(names)}" in err
    assert re.findall(r"^Output +(.*)$", out, re.MULTILINE) == names
    assert records(tmp_path / "out.jsonl") == once_each(site)
    assert (tmp_path / "few.csv").read_text().splitlines()[0] == '"url","status"'
    assert list(tmp_path.glob("*.part")) == []
    (tmp_path / "out.jsonl").unlink()
    assert start(*resume).finish()[0] == 0
    assert not (tmp_path / "out.jsonl").exists()  # it was complete, so that it belongs to the user


def test_a_resumed_crawl_with_another_output_names_the_incomplete_file(
    start: Start, site: Site, whole: list[str], store_url: str, tmp_path: Path
) -> None:
    site.allowed = PAGES // 3
    first = start(*whole, "--output", "out.jsonl", "--screenshots", "pictures")
    site.wait_for_pages(PAGES // 3)
    first.interrupt()
    site.allowed = None
    code, _, err = first.finish()
    assert code == 11
    again = err.split("resume with `shoal crawl ")[1].split("`")[0]
    assert again.startswith(f"--resume {ID} --store {store_url} --output out.jsonl --screenshots /")
    code, _, err = start("--resume", ID, "--store", store_url, "--output", "new.jsonl").finish()
    assert code == 0, err
    assert f"{tmp_path}/out.jsonl.part of an earlier run stays incomplete" in err
    assert records(tmp_path / "new.jsonl") == once_each(site)


@pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)
def test_a_crawl_that_was_killed_is_resumed_with_each_page_once(
    start: Start, site: Site, whole: list[str], store_url: str, tmp_path: Path
) -> None:
    site.allowed = PAGES // 3
    first = start(*whole, "--output", "out.jsonl")
    site.wait_for_pages(PAGES // 3)
    first.kill()
    assert not (tmp_path / "out.jsonl").exists()  # an output has its name only once it is complete
    site.allowed = None
    code, out, err = start("--resume", ID, "--store", store_url, "--output", "out.jsonl", "--json").finish()
    assert code == 0, err
    assert "job_moved" not in err  # no log line among the lines for people
    assert records(tmp_path / "out.jsonl") == once_each(site)
    summary = json.loads(out.splitlines()[-1])
    assert (summary["crawl_id"], summary["state"], summary["pages"]) == (ID, "completed", PAGES)
    assert ledger.check(store_url, ID, Expected(urls=site.urls)) == []


@pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)
def test_a_crawl_on_redis_that_was_flushed_and_killed_has_each_page_once(
    start: Start, site: Site, whole: list[str], store_url: str, redis_url: str, tmp_path: Path
) -> None:
    on_redis = {"REDIS_URL": redis_url, "SHOAL_FRONTIER": "redis"}
    site.allowed = PAGES // 2
    first = start(*whole, "--output", "out.jsonl", **on_redis)
    site.wait_for_pages(PAGES // 3)
    ask_redis(redis_url, "FLUSHDB")
    site.wait_for_pages(PAGES // 2)
    first.kill()
    site.allowed = None
    resumed = start("--resume", ID, "--store", store_url, "--output", "out.jsonl", "--json", **on_redis)
    code, out, err = resumed.finish()
    assert code == 0, err
    assert records(tmp_path / "out.jsonl") == once_each(site)
    assert json.loads(out.splitlines()[-1])["pages"] == PAGES
    assert ledger.check(store_url, ID, Expected(urls=site.urls), redis_url) == []


def test_an_output_has_each_page_once_although_redis_lost_the_frontier(
    start: Start, site: Site, whole: list[str], redis_url: str, tmp_path: Path
) -> None:
    crawl = start(*whole, "--output", "out.jsonl", REDIS_URL=redis_url, SHOAL_FRONTIER="redis")
    for pages in (PAGES // 5, PAGES // 2, PAGES * 2 // 3):  # what is fetched again is no trap, however often
        site.allowed = pages
        site.wait_for_pages(pages)
        ask_redis(redis_url, "FLUSHDB")
    site.allowed = None
    code, _, err = crawl.finish()
    assert code == 0, err
    assert records(tmp_path / "out.jsonl") == once_each(site)


@pytest.mark.exhaustive
@pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)
def test_a_crawl_by_sitemaps_that_was_killed_twice_has_each_page_once(
    start: Start, store_url: str, tmp_path: Path
) -> None:
    with Site(listed=True) as site:
        options = ("--store", store_url, "--output", "out.jsonl")
        site.allowed = PAGES // 10
        first = start(site.address, "--id", ID, "--sitemap", "only", "--speed", "max", "--concurrency", "4", *options)
        site.wait_for_pages(PAGES // 10)
        first.kill()
        site.allowed = PAGES // 2
        second = start("--resume", ID, *options)
        site.wait_for_pages(PAGES // 2)
        second.kill()
        site.allowed = None
        code, _, err = start("--resume", ID, *options).finish()
        assert code == 0, err
        assert records(tmp_path / "out.jsonl") == once_each(site)
        assert ledger.check(store_url, ID, Expected(urls=site.urls)) == []
        assert len(ledger.read(store_url, ID).sitemaps) == 1 + PAGES // 25


@pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)
def test_several_processes_bring_exactly_as_many_pages_as_they_may(
    start: Start, site: Site, whole: list[str], store_url: str, tmp_path: Path
) -> None:
    site.delay = 0.04  # so that all three have work
    limits = ("--processes", "3", "--max-pages", "100")
    code, out, err = start(*whole, *limits, "--output", "out.jsonl", "--json").finish()
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert (summary["state"], summary["pages"]) == ("completed", 100)
    assert len(records(tmp_path / "out.jsonl")) == site.pages_asked == 100


def test_a_full_disk_ends_a_crawl_that_can_be_resumed(start: Start, small_disk: Path, tmp_path: Path) -> None:
    store, stuffing = f"sqlite:///{small_disk}/shoal.db", small_disk / "stuffing"
    with Site(pages=100) as site:
        site.allowed = 30
        words = [site.address, "--id", ID, "--store", store, "--depth", "50", "--speed", "max", "--concurrency", "2"]
        first = start(*words)
        site.wait_for_pages(30)
        stuff(stuffing)
        site.allowed = None
        code, out, err = first.finish()
        assert code == 8, err
        assert "has no space left; free some space" in err
        assert f"shoal crawl --resume {ID}" in err
        assert re.search(r"^State +paused \(the storage is full\)$", out, re.MULTILINE)
        stuffing.unlink()
        code, _, err = start("--resume", ID, "--store", store, "--output", "out.jsonl").finish()
        assert code == 0, err
        assert records(tmp_path / "out.jsonl") == once_each(site)


@pytest.mark.exhaustive
def test_a_crawl_that_was_killed_twice_is_resumed_at_once(
    start: Start, site: Site, whole: list[str], store_url: str, tmp_path: Path
) -> None:
    for words, pages in ((whole, 60), (["--resume", ID, "--store", store_url], 120)):
        site.allowed = pages
        run = start(*words, **LONG_LEASE)
        site.wait_for_pages(pages)
        run.kill()
    site.allowed = None
    last = start("--resume", ID, "--store", store_url, "--output", "out.jsonl", **LONG_LEASE)
    code, _, err = last.finish()  # the lease of a dead process need not expire first
    assert code == 0, err
    assert records(tmp_path / "out.jsonl") == once_each(site)
    assert ledger.check(store_url, ID, Expected(urls=site.urls)) == []


def test_a_completed_crawl_just_writes_its_outputs(
    start: Start, site: Site, whole: list[str], store_url: str, tmp_path: Path
) -> None:
    assert start(*whole).finish()[0] == 0
    visits = len(site.visits)
    changed = ["--resume", ID, "--store", store_url, "--speed", "max", "--max-pages", "9"]
    code, _, err = start(*changed, "--output", "out.jsonl").finish()
    assert code == 0, err
    assert f"{ID} is completed, so only its outputs are written; ignored: --max-pages, --speed" in err
    assert records(tmp_path / "out.jsonl") == once_each(site)
    code, _, err = start(*changed).finish()
    assert code == 7
    assert "is completed, so it cannot be changed; start a new one" in err
    code, out, err = start("--resume", ID, "--store", store_url, "--output", "-").finish()
    assert code == 0, err
    assert Counter(json.loads(line)["url"] for line in out.splitlines()) == once_each(site)
    assert "completed" in err  # with records on stdout, the summary is on stderr
    assert len(site.visits) == visits


def test_ctrl_c_pauses_and_says_how_to_go_on(
    start: Start, site: Site, whole: list[str], store_url: str, tmp_path: Path
) -> None:
    site.allowed = PAGES // 3
    run = start(*whole, "--output", "out.jsonl")
    site.wait_for_pages(PAGES // 3)
    run.interrupt()
    code, _, err = run.finish()
    assert code == 11
    site.allowed = None
    assert f"shoal crawl --resume {ID}" in err
    books = ledger.read(store_url, ID)
    assert (books.crawl["state"], books.crawl["state_reason"]) == ("paused", "interrupted")
    assert ledger.violations(books, Expected(state="paused")) == []
    code, _, err = start("--resume", ID, "--store", store_url, "--output", "out.jsonl").finish()
    assert code == 0, err
    assert records(tmp_path / "out.jsonl") == once_each(site)
    assert ledger.check(store_url, ID, Expected(urls=site.urls)) == []


def test_the_line_that_says_how_to_go_on_works_as_it_stands(start: Start, site: Site, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/elsewhere.db"
    site.allowed = PAGES // 3
    run = start(site.address, "--store", store, "--depth", "50", "--speed", "max", "--concurrency", "8")
    site.wait_for_pages(PAGES // 3)
    run.interrupt()
    code, _, err = run.finish()
    assert code == 11
    site.allowed = None
    said = re.search(r"`shoal crawl (.+)`", err)
    assert said is not None, err
    code, _, err = start(*said[1].split()).finish()
    assert code == 0, err


def test_a_second_ctrl_c_ends_at_once_and_loses_nothing(
    start: Start, site: Site, whole: list[str], store_url: str, tmp_path: Path
) -> None:
    site.allowed = PAGES // 3
    run = start(*whole)
    site.wait_for_pages(PAGES // 3)
    with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # so that the pause has to wait
        run.interrupt()
        run.wait_to_hear("press Ctrl-C again")
        time.sleep(2 * SAME_CTRL_C_SECONDS)  # noqa: TID251 (a person has to read it first)
        run.interrupt()
        code, _, _ = run.finish()
        assert code in (11, 130)
    site.allowed = None
    code, _, err = start("--resume", ID, "--store", store_url, "--output", "out.jsonl").finish()
    assert code == 0, err
    assert records(tmp_path / "out.jsonl") == once_each(site)


def test_a_crawl_that_is_alive_elsewhere_is_not_taken_over(
    start: Start, site: Site, whole: list[str], store_url: str, tmp_path: Path
) -> None:
    site.allowed = 30
    first = start(*whole, "--output", "first.jsonl", **QUICK_LEASE)
    site.wait_for_pages(30)
    code, _, err = start("--resume", ID, "--store", store_url, "--output", "second.jsonl", **QUICK_LEASE).finish()
    assert code == 7
    assert "another process" in err
    site.allowed = None
    code, _, err = first.finish()
    assert code == 0, err
    assert records(tmp_path / "first.jsonl") == once_each(site)
    assert ledger.check(store_url, ID, Expected(urls=site.urls)) == []


def test_an_id_that_is_taken_is_refused(start: Start, site: Site, whole: list[str]) -> None:
    assert start(*whole, "--max-pages", "3").finish()[0] == 0
    code, _, err = start(*whole).finish()
    assert code == 7
    assert ID in err


def test_if_the_seed_does_not_answer_the_command_says_that_nothing_was_crawled(start: Start, store_url: str) -> None:
    seed = f"http://127.0.0.1:{free_port()}/"
    code, out, err = start(seed, "--store", store_url, "--json").finish()
    assert code == 3
    told = json.loads(out.splitlines()[-1])
    assert (told["state"], told["responses"]["none"], told["failed_seeds"][0]["url"]) == ("failed", 1, seed)
    problem = json.loads(err.splitlines()[-1])
    assert problem["code"] == "nothing_crawled"
    assert f"({seed}: The server refused the connection)" in problem["detail"]
    assert "robots.txt" not in err
    assert "retried" not in err
    assert "crawl_moved" not in err


def test_a_seed_that_is_not_found_is_nothing_crawled(start: Start, site: Site, store_url: str) -> None:
    seed = site.url(0) + "no-such-page"
    code, out, err = start(seed, "--store", store_url).finish()
    assert code == 3
    assert re.search("State +completed", out)
    assert re.search("Responses +4xx 1", out)
    assert f"none returned a page: {seed} answered 404" in out
    assert f"({seed} answered 404)" in err


def test_a_seed_that_is_not_found_beside_others_is_named_while_the_crawl_runs_and_at_its_end(
    start: Start, site: Site, store_url: str
) -> None:
    missing = site.url(0) + "no-such-page"
    site.allowed = 1  # until the seed has been named
    running = start(missing, site.url(0), "--max-pages", "5", "--speed", "max", "--store", store_url)
    running.wait_to_hear(f"Seed {missing} answered 404")
    site.allowed = None
    code, out, err = running.finish()
    assert code == 0, err
    assert re.search(f"Seeds +1 of 2 failed: {re.escape(missing)} answered 404\n", out)


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> pytest.CaptureFixture[str]:
    """This process plays the role of a `shoal` process in a separate folder."""
    monkeypatch.setattr(os, "environ", clean_environment(tmp_path) | {"SHOAL_PAGE_ATTEMPTS": "1"})
    monkeypatch.chdir(tmp_path)
    return capsys


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--resume", "nobody", "--store", "{store}"], 5, "nobody"),
        (["http://127.0.0.1:9/", "--dept", "2"], 2, "--depth"),
        (["http://127.0.0.1:9/", "--depth", "-1", "--store", "{store}"], 2, "--depth"),
        (["http://127.0.0.1:9/", "--include", "a(", "--store", "{store}"], 2, "--include 'a(' is not a regular"),
        (["http://127.0.0.1:9/", "--exclude", "[", "--store", "{store}"], 2, "--exclude '[' is not a regular"),
        (["http://127.0.0.1:9/", "--output", "pages.doc", "--store", "{store}"], 2, "--output"),
        (["http://127.0.0.1:9/", "--id", "a b", "--store", "{store}"], 2, "--id"),
        (["gopher://127.0.0.1/", "--store", "{store}"], 2, "gopher"),
        (["--store", "{store}"], 2, "URL"),
        (["http://127.0.0.1:9/", "--resume", "x", "--store", "{store}"], 2, "--resume"),
        (["http://127.0.0.1:9/", "--store", "sqlite:///{folder}"], 4, "{folder}"),
        (["http://127.0.0.1:9/", "--store", "sqlite:///{folder}/no/x.db"], 4, "whose folder does not exist"),
        (["http://127.0.0.1:9/", "--store", "mysql://localhost/x"], 4, "sqlite"),
        (["http://127.0.0.1:9/", "--output", "{folder}/none/out.jsonl", "--store", "{store}"], 4, "none/out.jsonl"),
        (["http://127.0.0.1:9/", "--store", "postgresql://shoal@127.0.0.1:{port}/x"], 8, "{port}"),
        (["--resume", "x", "--store", "postgresql://shoal@127.0.0.1:{port}/x"], 8, "--store is correct"),
    ],
)
def test_a_wrong_command_line_is_refused_in_one_line(
    here: pytest.CaptureFixture[str], store_url: str, tmp_path: Path, words: list[str], code: int, says: str
) -> None:
    facts = {"store": store_url, "folder": str(tmp_path), "port": free_port()}
    ended = main(["crawl", *(word.format(**facts) for word in words)])
    out, err = here.readouterr()
    assert (ended, out) == (code, ""), err
    assert says.format(**facts) in err
    assert len(err.splitlines()) == 1


def test_a_store_of_another_version_is_refused_and_left_as_it_is(start: Start, store_url: str, tmp_path: Path) -> None:
    assert start("--resume", "x", "--store", store_url).finish()[0] == 5  # makes the store
    with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection:
        connection.execute("PRAGMA user_version = 99")
    code, out, err = start("http://127.0.0.1:9/", "--store", store_url).finish()
    assert (code, out) == (4, "")
    assert "has schema version 99, but this version of Shoal needs" in err
    assert "update Shoal" in err
    with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection:
        assert connection.execute("SELECT count(*) FROM crawl").fetchone() == (0,)


def test_a_refused_crawl_stores_nothing(start: Start, store_url: str) -> None:
    assert start("http://127.0.0.1:9/", "--id", ID, "--output", "x.doc", "--store", store_url).finish()[0] == 2
    assert start("--resume", ID, "--store", store_url).finish()[0] == 5


@pytest.mark.exhaustive
def test_a_seeds_file_takes_no_more_memory_when_it_is_large(tmp_path: Path) -> None:
    """A million lines took 108 MB when that was measured; here 60,000 are compared with 11,000."""
    peaks = []
    with Site(pages=3) as site:
        for lines in (11_000, 60_000):
            (tmp_path / "urls.txt").write_text("".join(f"{site.address}p/{number}\n" for number in range(lines)))
            words = (
                "crawl",
                "--seeds",
                "urls.txt",
                "--max-pages",
                "2",
                "--depth",
                "0",
                "--store",
                f"sqlite:///{lines}.db",
            )
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "tests.support.peak_memory",
                    tmp_path / "peak",
                    sys.executable,
                    "-m",
                    "shoal",
                    *words,
                ],
                cwd=tmp_path,
                env=clean_environment(tmp_path) | {"PYTHONPATH": str(Path(__file__).parents[2])},
                capture_output=True,
                text=True,
                timeout=DEADLINE_SECONDS,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert f"p/0 and {lines - 1:,} more as crl_" in done.stderr
            assert f"{lines - 2:,} URLs still queued" in done.stdout
            peaks.append(int((tmp_path / "peak").read_text()))
    assert peaks[1] - peaks[0] < 40_000_000


def test_a_resumed_crawl_takes_the_options_that_can_be_changed(tmp_path: Path) -> None:
    with Site(pages=10) as site:
        run = Run(tmp_path, site.address, "--id", ID, "--speed", "slow", "--max-pages", "5")
        site.wait_for_pages(1)
        run.interrupt()
        assert run.finish()[0] == 11
        code, out, err = Run(
            tmp_path, "--resume", "last", "--speed", "max", "--max-pages", "8", "--scope", "any"
        ).finish()
    assert code == 0
    assert "A resumed crawl keeps these options; ignored: --scope" in err
    assert f"Resuming {ID}: {site.address} (scope host) without a delay" in err
    assert re.search(r"^Pages +8$", out, re.MULTILINE)

"""The outputs of `shoal crawl` when the disk is full, nobody reads, a reader disconnects, or the process dies."""

import csv
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from warcio.archiveiterator import ArchiveIterator

from shoal.base.machine import SAME_CTRL_C_SECONDS
from tests.support import ledger
from tests.support.fleet import clean_environment
from tests.support.processes import Shoal, run_shoal, start_shoal
from tests.support.s3_server import ACCESS_KEY, REGION, SECRET_KEY, object_store
from tests.support.site import Site

PAGES = 400
MANY = 1500  # more than fit into a pipe that nobody reads
DEADLINE_SECONDS = 120
ID = "mine"
QUICK_LEASE = {"SHOAL_LEASE": "2s", "SHOAL_LEASE_EXTEND": "300ms", "SHOAL_LEASE_SWEEP": "200ms"}

Crawl = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with Site(pages=getattr(request, "param", PAGES)) as site:
        yield site


def limited(size: int) -> list[str]:
    """The command line that runs a program with a limit on the size of its files."""
    set_limit = f"import os, resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, ({size}, {size}))"
    text = f"{set_limit}; os.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", text]


@pytest.fixture
def crawl(tmp_path: Path) -> Iterator[Crawl]:
    """Starts crawls; none is left running."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, limit: int | None = None, **env: str) -> "subprocess.Popen[str]":
        how = {"cwd": tmp_path, "env": clean_environment(tmp_path) | env, "stdin": subprocess.DEVNULL, "text": True}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        if limit is None:
            process = start_shoal("crawl", *words, **how, **pipes)
        else:
            process = subprocess.Popen(
                [*limited(limit), sys.executable, "-m", "shoal", "crawl", *words], **how, **pipes
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
        while site.wait_for_visit(site.visits[-1].at, 2.5):  # longer than a quick lease
            pass


NAMES = ["a.jsonl", "a.csv", "a.parquet", "a.warc.gz", "a.md"]
WRITTEN = {*NAMES, "a.cdxj"}


def answers_in(archive: Path) -> Counter[str]:
    with archive.open("rb") as file:
        records = [(record.rec_type, record.rec_headers["WARC-Target-URI"]) for record in ArchiveIterator(file)]
    return Counter(url for kind, url in records if kind == "response")


def urls_in(folder: Path) -> dict[str, Counter[str]]:
    """The URLs in each output, read by the tools that users would use."""
    with (folder / "a.csv").open(newline="") as file:
        table = Counter(row["url"] for row in csv.DictReader(file))
    index = [json.loads(line.split(" ", 2)[2]) for line in (folder / "a.cdxj").read_text().splitlines()]
    heads = [path.read_text().split("\n")[1] for path in (folder / "a.md").rglob("*.md") if path.name != "index.md"]
    return {
        "a.jsonl": urls_of((folder / "a.jsonl").read_text()),
        "a.csv": table,
        "a.parquet": Counter(pq.read_table(folder / "a.parquet").column("url").to_pylist()),
        "a.warc.gz": answers_in(folder / "a.warc.gz"),
        "a.cdxj": Counter(line["url"] for line in index),
        "a.md": Counter(json.loads(head.removeprefix("url: ")) for head in heads),
    }


def test_several_outputs_hold_the_same_pages_also_after_a_kill(
    crawl: Crawl, site: Site, whole: list[str], sqlite_url: str, tmp_path: Path
) -> None:
    outputs = [word for name in NAMES for word in ("--output", name)]
    site.allowed = PAGES // 3
    first = crawl(*whole, *outputs)
    site.wait_for_pages(PAGES // 3 + 1)
    first.kill()
    first.communicate(timeout=DEADLINE_SECONDS)
    site.allowed = None
    assert {path.name for path in tmp_path.glob("a.*")} <= {f"{name}.part" for name in WRITTEN}
    code, _, err = ended(crawl("--resume", ID, "--store", sqlite_url, *outputs))
    assert code == 0, err
    assert {path.name for path in tmp_path.glob("a.*")} == WRITTEN
    assert urls_in(tmp_path) == {name: Counter(site.urls) for name in WRITTEN}


@pytest.mark.exhaustive
def test_an_export_of_a_running_crawl_has_what_is_there_so_far_and_a_later_one_has_all(
    crawl: Crawl,
    site: Site,
    whole: list[str],
    sqlite_url: str,
    tmp_path: Path,
    shoal: Shoal,
) -> None:
    site.allowed = PAGES // 2
    running = crawl(*whole, "--keep-bodies")
    site.wait_for_pages(PAGES // 2)  # links are followed once their page is stored
    export = ["crawls", "export", ID, "--store", sqlite_url, *[word for name in NAMES for word in ("--output", name)]]
    code, _, err = shoal(*export)
    assert code == 0, err
    early = urls_in(tmp_path)
    assert early["a.jsonl"] == early["a.parquet"] == early["a.warc.gz"] == early["a.md"]
    assert 0 < sum(early["a.jsonl"].values()) < PAGES
    site.allowed = None
    code, _, err = ended(running)
    assert code == 0, err
    assert shoal(*export)[0] == 0
    assert urls_in(tmp_path) == {name: Counter(site.urls) for name in WRITTEN}


def test_a_removed_crawl_leaves_neither_pages_nor_bodies(
    crawl: Crawl, whole: list[str], sqlite_url: str, tmp_path: Path, shoal: Shoal
) -> None:
    assert ended(crawl(*whole, "--keep-bodies", "--max-pages", "5"))[0] == 0
    assert list((tmp_path / "bodies").rglob("*.warc.gz"))
    assert shoal("crawls", "rm", ID, "--store", sqlite_url)[0] == 0
    assert list((tmp_path / "bodies").rglob("*.warc.gz")) == []
    assert shoal("crawls", "show", ID, "--store", sqlite_url)[0] == 5


def test_an_archive_of_a_crawl_that_kept_no_bodies_is_refused_in_words(
    crawl: Crawl, whole: list[str], sqlite_url: str, tmp_path: Path, shoal: Shoal
) -> None:
    assert ended(crawl(*whole, "--max-pages", "5"))[0] == 0
    code, _, err = shoal("crawls", "export", ID, "--store", sqlite_url, "--output", "a.warc.gz")
    assert code == 2
    assert "--keep-bodies" in err
    assert list(tmp_path.glob("a.*")) == []


def test_bodies_without_space_pause_the_crawl_and_say_so(
    crawl: Crawl, site: Site, whole: list[str], postgres_url: str, tmp_path: Path
) -> None:
    whole[whole.index("--store") + 1] = postgres_url  # a limit on the size of files stands in for a full disk
    code, _, err = ended(crawl(*whole, "--keep-bodies", limit=80_000, SHOAL_BODIES=str(tmp_path / "kept")))
    assert code == 8
    assert f"{tmp_path / 'kept'} has no space left" in err
    assert f"shoal crawl --resume {ID}" in err
    assert state_of(postgres_url) == ("paused", "storage_full")
    outputs = ["--output", "a.warc.gz", "--output", "a.jsonl"]
    again = crawl("--resume", ID, "--store", postgres_url, *outputs, SHOAL_BODIES=str(tmp_path / "kept"))
    code, _, err = ended(again)
    assert code == 0, err
    assert answers_in(tmp_path / "a.warc.gz") == urls_of((tmp_path / "a.jsonl").read_text()) == Counter(site.urls)


@pytest.mark.parametrize("site", [MANY], indirect=True)
def test_an_output_without_space_pauses_the_crawl_and_says_so(
    crawl: Crawl, site: Site, whole: list[str], sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl.part").symlink_to("/dev/full")
    code, _, err = ended(crawl(*whole, "--output", "a.jsonl"))
    assert code == 8
    assert "a.jsonl.part has no space left" in err
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


@pytest.mark.parametrize("site", [MANY], indirect=True)
def test_a_reader_that_does_not_read_holds_the_crawl_and_costs_it_neither_its_lease_nor_a_page(
    crawl: Crawl, site: Site, whole: list[str]
) -> None:
    process = crawl(*whole, "--output", "-", **QUICK_LEASE)
    site.wait_for_pages(200)
    wait_for_silence(site)
    assert site.pages_asked < MANY
    code, out, err = ended(process)
    assert code == 0, err
    assert urls_of(out) == Counter(site.urls)


@pytest.mark.exhaustive
@pytest.mark.parametrize("site", [MANY], indirect=True)
def test_ctrl_c_twice_ends_also_a_crawl_whose_reader_does_not_read(
    crawl: Crawl, site: Site, whole: list[str], sqlite_url: str
) -> None:
    process = crawl(*whole, "--output", "-")
    site.wait_for_pages(200)
    wait_for_silence(site)
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    while "press Ctrl-C again" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(2 * SAME_CTRL_C_SECONDS)  # noqa: TID251 (a person has to read it first)
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_SECONDS) == 130
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
    site.delay = 0.1  # one line is written per second
    code, out, err = ended(crawl(*whole, "--json"))
    assert code == 0
    assert len(out.splitlines()) == 1
    assert json.loads(out)["pages"] == PAGES
    assert " queued, 0 errors, " in err


def test_bodies_in_an_object_store_are_kept_exported_and_removed(
    crawl: Crawl,
    site: Site,
    whole: list[str],
    sqlite_url: str,
    tmp_path: Path,
    shoal: Shoal,
) -> None:
    with object_store() as objects:
        env = {
            "SHOAL_BODIES": "s3://pages/kept",
            "SHOAL_S3_ENDPOINT": objects.url,
            "SHOAL_S3_REGION": REGION,
            "SHOAL_S3_ACCESS_KEY": ACCESS_KEY,
            "SHOAL_S3_SECRET_KEY": SECRET_KEY,
        }
        code, _, err = ended(crawl(*whole, "--processes", "2", "--output", "a.warc.gz", **env))
        assert code == 0, err
        assert answers_in(tmp_path / "a.warc.gz") == Counter(site.urls)
        assert 0 < len(objects.objects) < PAGES  # one for each commit
        assert shoal("crawls", "rm", ID, "--store", sqlite_url, **env)[0] == 0
        assert objects.objects == {}


def test_links_are_written_when_the_crawl_has_ended_and_move_with_it(
    crawl: Crawl, tmp_path: Path, sqlite_url: str
) -> None:
    with Site(pages=8) as site:
        words = [site.address, "--id", ID, "--store", sqlite_url, "--depth", "50", "--speed", "max"]
        code, out, err = ended(crawl(*words, "-o", "links.csv", "--links", "all.parquet", "-o", "pages.csv"))
    assert code == 0, err
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("Output")] == [
        *("pages.csv", "links.csv", "all.parquet")
    ]
    with (tmp_path / "links.csv").open(newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    assert list(rows[0]) == ["from", "to", "text", "rel", "nofollow", "kind", "status", "error"]
    assert {row["from"] for row in rows} == site.urls
    assert {row["status"] for row in rows if row["to"] in site.urls} == {"200"}
    assert {row["kind"] for row in rows} == {"a"}
    assert pq.read_table(tmp_path / "all.parquet")["to"].to_pylist() == [row["to"] for row in rows]

    def run(*words: str, code: int = 0) -> str:
        done = run_shoal(*words, cwd=tmp_path, env=clean_environment(tmp_path), timeout=DEADLINE_SECONDS)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    run("crawls", "dump", ID, "--store", sqlite_url, "--output", "dump.jsonl")
    moved = f"sqlite:///{tmp_path}/moved.db"
    run("crawls", "load", "dump.jsonl", "--store", moved)
    assert f"{len(rows)} links of {ID} written" in run("crawls", "export", ID, "--store", moved, "--links", "moved.csv")
    assert (tmp_path / "moved.csv").read_bytes() == (tmp_path / "links.csv").read_bytes()
    told = run("crawls", "export", ID, "--store", moved, "--links", "-", "--status", "404")
    assert f"0 links of {ID} written" in told
    (tmp_path / "notes.csv").write_text("mine\n")
    told = run("crawls", "export", ID, "--store", moved, "--output", "notes.csv", code=2)
    assert "'notes.csv' exists and does not look like an output of Shoal's" in told
    assert (tmp_path / "notes.csv").read_text() == "mine\n"


def test_a_crawl_without_links_says_so_and_bad_columns_store_nothing(
    crawl: Crawl, tmp_path: Path, sqlite_url: str
) -> None:
    (tmp_path / "rules.toml").write_text('[fields.price]\ncss = "h1"\n[fields.Price]\ncss = "h1"\n')
    with Site(pages=3) as site:
        words = [site.address, "--id", ID, "--store", sqlite_url, "--speed", "max"]
        for bad, said in (
            (["-o", "a.csv", "--fields", "url,nothing"], "--fields names 'nothing', which is not a field"),
            (["-o", "a.csv", "--fields", "data.price"], "no rule set extracts data"),
            (["-o", "a.csv", "--rules", "rules.toml"], "data.price and data.Price, which differ only in case"),
        ):
            code, _, err = ended(crawl(*words, *bad))
            assert (code, said in err) == (2, True), err
        assert ended(crawl(*words, "-o", "a.json"))[0] == 0  # no crawl of that id was stored before
        assert len(json.loads((tmp_path / "a.json").read_text())) == 3
        code, _, err = ended(crawl("--resume", ID, "--store", sqlite_url, "--links", "l.csv"))
    assert code == 2
    assert f"crawl {ID} does not store links; run the crawl with --links FILE" in err
    assert not (tmp_path / "l.csv").exists()

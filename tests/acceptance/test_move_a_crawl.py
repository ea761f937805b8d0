"""`shoal crawls dump` and `shoal crawls load` as a user runs them: a crawl moves from SQLite to PostgreSQL and back."""

import gzip
import json
import re
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from shoal.cli.main import main
from tests.support import ledger
from tests.support.fleet import clean_environment
from tests.support.full_disk import stuff
from tests.support.ledger import Expected
from tests.support.processes import run_shoal, start_shoal
from tests.support.site import Site

PAGES = 300
CONCURRENCY = 4
ID = "mine"
DEADLINE_SECONDS = 120

Shoal = Callable[..., "subprocess.CompletedProcess[bytes]"]
Refused = Callable[..., str]


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(pages=PAGES) as site:
        yield site


@pytest.fixture
def shoal(tmp_path: Path) -> Shoal:
    """Runs a command to completion."""

    def run(*words: str, stdin: bytes = b"", **env: str) -> "subprocess.CompletedProcess[bytes]":
        env = clean_environment(tmp_path) | env
        done = run_shoal(*words, cwd=tmp_path, env=env, timeout=DEADLINE_SECONDS, text=False, stdin=stdin)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    return run


def crawl_until(folder: Path, site: Site, pages: int, *words: str) -> None:
    """Crawl, and interrupt the crawl after this many pages were requested, which pauses it."""
    site.allowed = pages
    process = start_shoal(
        "crawl",
        *words,
        cwd=folder,
        env=clean_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    site.wait_for_pages(pages)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 11, err.decode()
    site.allowed = None


def start_words(site: Site, store: str, *more: str) -> list[str]:
    limits = ["--depth", "50", "--speed", "max", "--concurrency", str(CONCURRENCY)]
    return [site.address, "--id", ID, "--store", store, *limits, *more]


@pytest.fixture
def paused(site: Site, sqlite_url: str, tmp_path: Path) -> str:
    """The store of a crawl that was interrupted after a third of its pages."""
    crawl_until(tmp_path, site, PAGES // 3, *start_words(site, sqlite_url))
    return sqlite_url


@pytest.fixture
def dumped(shoal: Shoal, paused: str, tmp_path: Path) -> Path:
    """The dump of that crawl."""
    done = shoal("crawls", "dump", ID, "--store", paused, "--output", "crawl.jsonl")
    assert done.returncode == 0, done.stderr.decode()
    return tmp_path / "crawl.jsonl"


@pytest.fixture
def refused(bare_environment: None, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that fails, in this process; returns the one sentence it prints."""

    def run(*words: str) -> str:
        capsys.readouterr()
        assert main(list(words)) not in (0, 1)
        [line] = capsys.readouterr().err.splitlines()
        return line

    return run


def test_a_paused_crawl_moves_to_postgres_and_back_and_has_each_page_once(
    shoal: Shoal, site: Site, paused: str, postgres_url: str, tmp_path: Path
) -> None:
    done = shoal("crawls", "dump", ID, "--store", paused, "--output", "there.jsonl.gz")
    assert done.returncode == 0, done.stderr.decode()
    file = tmp_path / "there.jsonl.gz"
    assert file.stat().st_mode & 0o777 == 0o600
    assert gzip.decompress(file.read_bytes()).startswith(b'{"shoal_frontier":1')
    loaded = shoal("crawls", "load", "there.jsonl.gz", "--store", postgres_url, "--allow-private-seeds")
    assert (loaded.returncode, loaded.stdout) == (0, f"{ID}\n".encode()), loaded.stderr.decode()
    assert re.search(rf"^Loaded \d+ pages and \d+ waiting URLs; paused. .*resume {ID} ", loaded.stderr.decode())

    crawl_until(tmp_path, site, 2 * PAGES // 3, "--resume", ID, "--store", postgres_url)
    back = shoal("crawls", "dump", ID, "--store", postgres_url)
    assert back.returncode == 0, back.stderr.decode()
    home = f"sqlite:///{tmp_path}/home.db"
    loaded = shoal("crawls", "load", "--store", home, "--allow-private-seeds", "--json", stdin=back.stdout)
    assert loaded.returncode == 0, loaded.stderr.decode()
    told = json.loads(loaded.stdout)
    assert (told["crawl_id"], told["state"]) == (ID, "paused")
    assert told["pages"] + told["queued"] <= PAGES

    done = shoal("crawl", "--resume", ID, "--store", home, "--output", "out.jsonl")
    assert done.returncode == 0, done.stderr.decode()
    urls = Counter(json.loads(line)["url"] for line in (tmp_path / "out.jsonl").read_text().splitlines())
    assert urls == Counter(site.urls)
    wrong = ledger.check(home, ID, Expected(urls=site.urls))
    assert [problem for problem in wrong if not problem.startswith("the outbox")] == []  # events are not moved
    asked = [visit.path for visit in site.visits if visit.path != "/robots.txt"]
    assert len(asked) - len(set(asked)) <= 2 * CONCURRENCY  # only pages in flight at the two pauses


def test_a_dump_of_a_newer_version_loads_without_the_fields_it_added(shoal: Shoal, dumped: Path) -> None:
    objects = ("crawl", "config", "counts", "page", "trap", "sitemap", "redirect", "end")

    def newer(record: dict[str, Any]) -> dict[str, Any]:
        inner = {name: newer(record[name]) for name in objects if isinstance(record.get(name), dict)}
        return record | inner | {"added_later": 1}

    lines = [json.dumps(newer(json.loads(line))) for line in dumped.read_text().splitlines()]
    loaded = shoal("crawls", "load", "-", "--store", "sqlite:///newer.db", stdin="\n".join(lines).encode())
    assert (loaded.returncode, loaded.stdout) == (0, f"{ID}\n".encode()), loaded.stderr.decode()


def test_a_dump_goes_through_a_pipe(shoal: Shoal, dumped: Path, tmp_path: Path) -> None:
    packed = gzip.compress(dumped.read_bytes())
    for place, given in enumerate((dumped.read_bytes(), packed)):
        loaded = shoal("crawls", "load", "-", "--id", "copy", "--store", f"sqlite:///{place}.db", stdin=given)
        assert (loaded.returncode, loaded.stdout) == (0, b"copy\n"), loaded.stderr.decode()


def test_private_seeds_are_not_requested_unless_it_is_allowed(shoal: Shoal, site: Site, dumped: Path) -> None:
    shoal("crawls", "load", dumped.name, "--store", "sqlite:///other.db")
    before = len(site.visits)
    shoal("crawl", "--resume", ID, "--store", "sqlite:///other.db")
    assert len(site.visits) == before


def test_a_damaged_dump_is_refused_in_one_sentence_and_stores_nothing(
    refused: Refused, dumped: Path, tmp_path: Path
) -> None:
    whole = dumped.read_bytes()
    packed = gzip.compress(whole)
    first = orjson.loads(whole.splitlines()[0])
    damaged = {
        "is incomplete": whole[: whole.rindex(b"\n", 0, -1) + 1],
        "line 2 is not valid": whole.splitlines(keepends=True)[0] + b'{"url": "http',
        "is not the first line of a dump": b"",
        "is cut off": packed[:-20],
        "is damaged": packed[:-8] + b"\0" * 8,
        "it has dump format 2, and this version of Shoal reads 1": whole.replace(
            b'"shoal_frontier":1', b'"shoal_frontier":2', 1
        ),
        "describes a running crawl": orjson.dumps(first | {"crawl": first["crawl"] | {"state": "running"}}),
        "line 1 is not valid": b"\x89PNG\r\n\x1a\n\0\0",
    }
    for problem, content in damaged.items():
        (tmp_path / "bad").write_bytes(content)
        said = refused("crawls", "load", "bad", "--store", "sqlite:///other.db")
        assert problem in said, said
        assert said.endswith("; use a complete file written by `shoal crawls dump`."), said
    with closing(sqlite3.connect(tmp_path / "other.db")) as store:
        for table in ("crawl", "fate", "frontier_open", "page"):
            assert store.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_an_id_that_is_taken_is_refused_with_the_fix(shoal: Shoal, refused: Refused, paused: str, dumped: Path) -> None:
    said = refused("crawls", "load", dumped.name, "--store", paused)
    assert said.endswith(
        f'crawl "{ID}" already exists; load it under another id with --id, or remove that crawl first.'
    )
    assert shoal("crawls", "load", dumped.name, "--store", paused, "--id", "copy").returncode == 0


def test_a_running_crawl_is_not_dumped_and_leaves_no_file(
    refused: Refused, site: Site, sqlite_url: str, tmp_path: Path
) -> None:
    site.allowed = 20
    words = ["crawl", *start_words(site, sqlite_url)]
    with start_shoal(*words, cwd=tmp_path, env=clean_environment(tmp_path), stderr=subprocess.DEVNULL) as running:
        try:
            site.wait_for_pages(20)
            said = refused("crawls", "dump", ID, "--store", sqlite_url, "--output", "crawl.jsonl")
        finally:
            running.kill()
    assert f'crawl "{ID}" is running, so it cannot be dumped; pause or stop it first.' in said
    assert list(tmp_path.glob("crawl.jsonl*")) == []


def test_secrets_are_dumped_only_on_request(
    shoal: Shoal, refused: Refused, site: Site, sqlite_url: str, tmp_path: Path
) -> None:
    crawl_until(tmp_path, site, 10, *start_words(site, sqlite_url, "--header", "X-Key: hunter2"))
    dump = ("crawls", "dump", ID, "--store", sqlite_url)
    assert "add --with-secrets, and keep the file private." in refused(*dump, "--output", "crawl.jsonl")
    assert not (tmp_path / "crawl.jsonl").exists()
    assert b"hunter2" in shoal(*dump, "--with-secrets").stdout
    shoal("crawls", "stop", ID, "--store", sqlite_url)
    ended = shoal(*dump)
    assert ended.returncode == 0
    assert b"hunter2" not in ended.stdout


@pytest.mark.exhaustive
def test_a_full_disk_leaves_no_half_dump_and_no_half_crawl(
    shoal: Shoal, refused: Refused, dumped: Path, paused: str, small_disk: Path
) -> None:
    store, stuffing = f"sqlite:///{small_disk}/shoal.db", small_disk / "stuffing"
    assert shoal("crawls", "ls", "--store", paused).returncode == 0
    stuff(stuffing)
    said = refused("crawls", "dump", ID, "--store", paused, "--output", f"{small_disk}/crawl.jsonl")
    assert "has no space left; free some space" in said
    assert [path.name for path in small_disk.iterdir()] == ["stuffing"]
    stuffing.unlink()
    assert shoal("crawls", "load", dumped.name, "--store", store, "--id", "first").returncode == 0
    stuff(stuffing)
    said = refused("crawls", "load", dumped.name, "--store", store)
    assert "has no space left; free some space" in said
    stuffing.unlink()
    assert shoal("crawls", "load", dumped.name, "--store", store).stdout == f"{ID}\n".encode()


def test_a_server_is_not_asked_for_a_dump(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_SERVER", "http://127.0.0.1:9")
    said = refused("crawls", "dump", ID)
    assert "works on a store directly, but SHOAL_SERVER is set; choose the store" in said


def test_files_that_cannot_be_used_are_named(refused: Refused, paused: str) -> None:
    said = refused("crawls", "dump", ID, "--store", paused, "--output", "nowhere/crawl.jsonl")
    assert "'nowhere/crawl.jsonl' cannot be written (its folder does not exist)" in said
    assert 'file "nowhere" does not exist' in refused("crawls", "load", "nowhere", "--store", paused)
    assert "is not a valid id" in refused("crawls", "load", "--id", "../x", "--store", paused)

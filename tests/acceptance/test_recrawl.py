"""`shoal crawl --since`: a site with ETags crawled again, over a kill and with several walkers, on both stores."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ledger
from tests.support.fleet import clean_environment
from tests.support.ledger import Expected
from tests.support.processes import start_shoal
from tests.support.site import Site

PAGES = 120
CHANGED = (0, 7, 50)
DEADLINE_SECONDS = 120
FAST = ("--depth", "50", "--speed", "max", "--concurrency", "8", "--json")


class Place:
    """A folder to crawl in, and the processes that were started there."""

    def __init__(self, folder: Path, store: str) -> None:
        self._folder = folder
        self._store = store
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> "subprocess.Popen[str]":
        self.processes.append(
            start_shoal(
                "crawl",
                *words,
                "--store",
                self._store,
                cwd=self._folder,
                env=clean_environment(self._folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self.processes[-1]

    def crawl(self, *words: str) -> dict[str, Any]:
        """The summary of a crawl that must succeed."""
        process = self.start(*words)
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0, err
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        return told

    def records(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self._folder / name).read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path, store_url: str) -> Iterator[Place]:
    place = Place(tmp_path, store_url)
    yield place
    for process in place.processes:
        process.kill()
        process.communicate(timeout=DEADLINE_SECONDS)


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(pages=PAGES, validators=True) as site:
        yield site


def change(site: Site) -> None:
    for number in CHANGED:
        site.change(number, "news")
    site.forget()


def check(site: Site, told: dict[str, Any], records: list[dict[str, Any]], first: dict[str, dict[str, Any]]) -> None:
    """Check that every page is there once with its facts, that changed pages were downloaded, and that the others were
    counted as saved."""
    assert sorted(record["url"] for record in records) == sorted(site.urls)
    changed = {site.url(number) for number in CHANGED}
    for record in records:
        before = first[record["url"]]
        assert record["status"] == (200 if record["url"] in changed else 304)
        assert (record["title"], record["links_internal"]) == (before["title"], before["links_internal"])
        assert (record["content_hash"] == before["content_hash"]) is (record["url"] not in changed)
    assert (told["state"], told["pages"], told["not_modified"]) == ("completed", PAGES, PAGES - len(CHANGED))
    assert told["bytes"] == sum(record["bytes"] for record in records if record["url"] in changed)
    assert told["bytes_saved"] == sum(record["bytes"] for record in records if record["url"] not in changed)


@pytest.mark.parametrize("processes", ["1", "3"])
def test_a_second_crawl_is_sent_only_what_changed(place: Place, site: Site, processes: str) -> None:
    place.crawl(site.address, "--id", "first", *FAST, "--output", "first.jsonl")
    first = {record["url"]: record for record in place.records("first.jsonl")}
    change(site)
    words = ("--since", "first", "--processes", processes, "--output", "second.jsonl")
    told = place.crawl(site.address, "--id", "second", *FAST, *words)
    check(site, told, place.records("second.jsonl"), first)
    assert site.sent == len(CHANGED)


def test_a_second_crawl_that_was_killed_goes_on_where_it_was(place: Place, site: Site, store_url: str) -> None:
    place.crawl(site.address, "--id", "first", *FAST, "--output", "first.jsonl")
    first = {record["url"]: record for record in place.records("first.jsonl")}
    change(site)
    site.allowed = PAGES // 3
    killed = place.start(site.address, "--id", "second", *FAST, "--since", "first")
    site.wait_for_pages(PAGES // 3)
    killed.kill()
    killed.communicate(timeout=DEADLINE_SECONDS)
    site.allowed = None
    told = place.crawl("--resume", "second", "--json", "--output", "second.jsonl")
    check(site, told, place.records("second.jsonl"), first)
    assert ledger.check(store_url, "second", Expected(urls=site.urls)) == []


def test_a_crawl_that_is_not_there_cannot_be_followed(place: Place, site: Site) -> None:
    process = place.start(site.address, "--since", "nobody")
    _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 2
    assert "'nobody' is not a crawl in this store; use a crawl that `shoal crawls ls` lists" in err
    assert site.visits == []

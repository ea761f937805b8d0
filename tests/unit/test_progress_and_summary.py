"""The output of a crawl on the command line: progress while it runs, and the summary at its end."""

import os
import sys
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.base.clock import SystemClock
from shoal.base.errors import NothingCrawled
from shoal.base.ids import CrawlId
from shoal.base.settings import LogSettings
from shoal.base.settings_loader import load
from shoal.base.url import Url
from shoal.cli.output import exit_code_of, in_bytes, in_time, rows_of, summary
from shoal.cli.progress import ERASE, LiveScreen, PlainLines, Progress, ProgressSnapshot, first_line, held_words
from shoal.crawl import journal_messages as messages
from shoal.crawl import states
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig
from shoal.crawl.engine.engine import NEXT_URL
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, Settled
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.failed_urls import FailedSeed
from shoal.crawl.scope import default_speed, seeds_of
from shoal.crawl.states import CrawlState
from shoal.hosts.rate import HeldHost
from shoal.observe.log_messages import LogLevel
from shoal.observe.logs import Logs
from shoal.pages.page import Page, count_responses, response_class
from shoal.process.local_crawl import CrawlTally
from shoal.serve.console.crawl_rows import row_of
from shoal.serve.console.format import ENGLISH, Formats

STANDING = ProgressSnapshot(
    pages=1234, errors=1, depth=2, hosts=3, waiting=500, rate=45.25, elapsed_seconds=27.4, seconds_left=184.0
)
COUNTS = Counts(
    opened=10,
    settled=10,
    pages=9,
    errors=1,
    responses={"2xx": 7, "3xx": 0, "4xx": 1, "5xx": 1, "none": 1},
    bytes=12_345,
    depth_reached=3,
    skipped={"scope": 4, "depth": 6},
)
SECOND = 1_000_000


def seen(state: CrawlState, reason: str | None, counts: Counts, seconds: int | None = None) -> CrawlStatus:
    config = CrawlConfig(seeds=["http://a.example/"], depth=3)
    finished_at = None if seconds is None else seconds * SECOND
    crawl = Crawl(
        number=1,
        key_seed=7,
        id=CrawlId("mine"),
        state=state,
        state_reason=reason,
        project="default",
        config=config,
        named=frozenset(),
        priority=50,
        created_at=0,
        started_at=0,
        finished_at=finished_at,
    )
    return CrawlStatus(crawl, counts)


def test_the_progress_line_shows_everything_and_marks_estimates() -> None:
    line = ", ".join(STANDING.words())
    assert line == ("1,234 pages, 45.2/s, 500 queued, 1 error, 27 s, about 3 min 4 s left, depth 2, 3 hosts")
    assert "about" not in ", ".join(replace(STANDING, seconds_left=None).words())
    held = held_words([HeldHost("http://b.example", 90_000_000, 503), HeldHost("http://a.example", 60_000_000, 429)])
    assert "1,234 pages, http://a.example and 1 more on hold until 00:01:00 UTC, 500 queued" in ", ".join(
        replace(STANDING, held=held).words()
    )
    assert held_words([]) is None
    assert "2 to retry" in replace(STANDING, again=2).words()


@pytest.mark.parametrize(
    ("asked", "env", "words"),
    [
        ({}, {}, "at 1 request/s per host (the default); `--speed fast` is 5/s"),
        ({"speed": "slow"}, {}, "at 1 request every 2 s per host (--speed slow); `--speed normal` is 1/s"),
        ({"speed": "fast"}, {}, "at 5 requests/s per host (--speed fast); `--speed max` has no delay"),
        ({"speed": "normal", "concurrency": 9}, {}, "at 1 request/s per host (--speed normal); `--speed fast` is 5/s"),
        ({"delay_seconds": 0.3}, {}, "at 3.33 requests/s per host (--delay)"),
        ({"delay_seconds": 0.3, "concurrency": 9}, {}, "at 3.33 requests/s per host (--delay)"),
        (
            {"concurrency": 1},
            {},
            "without a delay, over up to 1 connection per host (--concurrency without --speed or --delay);"
            " `--speed normal` is 1/s",
        ),
        (
            {"seeds": ["http://127.0.0.1/", "http://[::1]:8080/", "http://localhost/"]},
            {"MAX_CONCURRENT_CURL": "7"},
            "without a delay, over up to 7 connections per host (the default for a site on this machine);"
            " `--speed normal` is 1/s",
        ),
        (
            {"seeds": ["http://127.0.0.1/", "http://a.example/"]},
            {"MAX_CONCURRENT_CURL": "7"},
            "at 1 request/s per host (the default; MAX_CONCURRENT_CURL allows 7 connections, but keeps the delay);"
            " `--speed fast` is 5/s",
        ),
    ],
)
def test_the_first_line_names_the_crawl_and_says_at_which_rate_and_why(
    asked: dict[str, Any], env: dict[str, str], words: str
) -> None:
    given = CrawlConfig(**{"seeds": ["http://a.example/"]} | asked)
    stored = replace(given, speed=given.speed or default_speed(given, seeds_of(given)))
    crawl = replace(seen(CrawlState.QUEUED, None, Counts()).crawl, config=stored)
    more = " and 2 more" if len(given.seeds) == 3 else " and 1 more" if len(given.seeds) == 2 else ""
    line = first_line(crawl, given, load(env).settings)
    assert line == f"Crawling {given.seeds[0]}{more} as {crawl.id} (scope host) {words}."


def test_the_first_line_of_a_resumed_crawl_names_it_and_its_speed() -> None:
    paused = replace(
        seen(CrawlState.PAUSED, "asked", Counts()).crawl, config=CrawlConfig(seeds=["http://u:p@a.example/"])
    )
    line = first_line(paused, None, load({}).settings)
    assert line.startswith("Resuming mine: http://***@a.example/ (scope host) at 1 request/s per host (--speed normal)")
    done = replace(paused, state=CrawlState.COMPLETED)
    assert first_line(done, None, load({}).settings) == "Crawl mine is complete; its stored pages are read."


class StandingCrawl:
    """A crawl that does nothing: what its progress says depends only on what it waits for."""

    def __init__(self, waits_for: str | None, held: list[HeldHost], again: int = 0) -> None:
        status = seen(CrawlState.RUNNING, None, Counts(opened=4))
        self.crawl = status.crawl
        self.tally = CrawlTally(again=again, retried_after="503" if again else None)
        self.waits_for = waits_for
        self._status = status
        self._held = held

    async def status(self) -> CrawlStatus:
        return self._status

    async def held(self) -> list[HeldHost]:
        return self._held


@pytest.mark.parametrize(
    ("crawl", "words"),
    [
        (StandingCrawl("robots.txt", []), ["0.0/s", "waiting for robots.txt"]),
        (StandingCrawl("the renderer", []), ["0.0/s", "waiting for the renderer"]),
        (StandingCrawl("the rate limit", []), ["0.0/s", "waiting for the rate limit"]),
        (StandingCrawl(NEXT_URL, []), ["0.0/s", "waiting for the rate limit"]),
        (StandingCrawl(NEXT_URL, [], again=4), ["0.0/s", "waiting for the retry of 4 URLs (last: 503)"]),
        (StandingCrawl(NEXT_URL, [], again=3), ["0.0/s", "waiting for the rate limit"]),
        (
            StandingCrawl(NEXT_URL, [HeldHost("http://a.example", 60_000_000, 429)]),
            ["http://a.example on hold until 00:01:00 UTC", "4 queued"],
        ),
        (StandingCrawl(None, []), ["0.0/s", "4 queued"]),
    ],
)
async def test_the_progress_line_says_what_the_crawl_waits_for(crawl: StandingCrawl, words: list[str]) -> None:
    progress = Progress(crawl, SystemClock(), PlainLines())
    await progress.look()
    assert progress.snapshot().words()[1:3] == words


def test_a_failed_url_counts_as_waiting_for_a_retry_until_it_is_settled() -> None:
    def task(attempts: int) -> FrontierTask:
        return FrontierTask(1, 1, 1, 0, 1, Url("http://a.example/"), None, attempts)

    tally, page = CrawlTally(), Page(url="http://a.example/", depth=0, fetched_at=0, attempt=1)
    steps = [
        (Settled(task(0), Fate.OPEN, retry_in_seconds=5.0), 1),
        (Settled(task(1), Fate.OPEN, untried=True), 1),
        (Settled(task(1), Fate.OPEN, retry_in_seconds=5.0), 1),
        (Settled(task(0), Fate.FETCHED, page), 1),
        (Settled(task(2), Fate.FETCHED, page), 0),
        (Settled(task(1), Fate.FAILED, page), 0),  # failures from before this process started were never counted
    ]
    for done, expected in steps:
        tally.count_try(done)
        assert tally.again == expected


def test_plain_progress_is_one_line_per_change(capsys: pytest.CaptureFixture[str]) -> None:
    lines = PlainLines()
    for snapshot in (STANDING, replace(STANDING, elapsed_seconds=30.0), replace(STANDING, pages=1300)):
        lines.show(snapshot)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split()[0] for line in err.splitlines()] == ["1,234", "1,300"]


def read_up_to(mark: str, master: int) -> str:
    """Return what was written to a terminal that is still open; a closed one may discard unread output."""
    found = b""
    while mark.encode() not in found:
        found += os.read(master, 100_000)
    return found.decode()


def test_a_log_line_stands_above_the_live_line_and_is_not_glued_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    master, terminal = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        logs = Logs(LogSettings(), SystemClock())
        live = LiveScreen()
        live.show(STANDING)
        logs.say(LogLevel.WARNING, "test", "a.example asks us to wait")
        live.close()
        print("the end", file=stream, flush=True)
        written = read_up_to("the end", master)
    os.close(master)
    [line] = [line for line in written.split("\n") if "asks us to wait" in line]
    assert "1,234" not in line.split(ERASE)[-1]
    assert "\nabout" not in written  # one line, however narrow the terminal


def test_the_summary_of_a_completed_crawl() -> None:
    done = seen(CrawlState.COMPLETED, "drained", COUNTS, 90)
    told = summary(done)
    assert told == {
        "crawl_id": "mine",
        "state": "completed",
        "state_reason": "drained",
        "records": 10,
        "pages": 9,
        "errors": 1,
        "responses": {"2xx": 7, "3xx": 0, "4xx": 1, "5xx": 1, "none": 1},
        "skipped": {"scope": 4, "depth": 6},
        "bytes": 12_345,
        "not_modified": 0,
        "bytes_saved": 0,
        "stayed_empty": 0,
        "duration_seconds": 90.0,
        "pages_per_second": 0.1,
        "depth_reached": 3,
        "failed_seeds": [],
        "dead_seeds": [],
        "cut_off": ["6 URLs are deeper than `--depth 3`"],
    }
    assert rows_of(done, told, ["pages.jsonl"]) == [
        ("Crawl", "mine"),
        ("State", "completed (no URL was waiting)"),
        ("Pages", "9"),
        ("Records", "10 = 9 pages + 1 error without a response"),
        ("Responses", "2xx 7, 4xx 1, 5xx 1, no response 1"),
        ("Errors", "1"),
        ("Skipped", "10 (depth 6, scope 4)"),
        ("Cut off", "6 URLs are deeper than `--depth 3`"),
        ("Received", "12.3 kB"),
        ("Took", "1 min 30 s, 0.1 pages/s"),
        ("Depth", "3 (links on the first path found; sitemap entries count as 1)"),
        ("Output", "pages.jsonl"),
    ]


@pytest.mark.parametrize(
    ("reason", "limits", "skipped", "queued", "said"),
    [
        ("drained", {}, {}, 0, []),
        ("drained", {"depth": 2}, {"depth": 243}, 0, ["243 URLs are deeper than `--depth 2`"]),
        ("drained", {"depth": 2}, {"depth": 1}, 0, ["1 URL is deeper than `--depth 2`"]),
        ("drained", {}, {"depth": 2}, 0, ["2 URLs are deeper than the limit when they were found"]),
        ("max_pages", {"max_pages": 50}, {}, 1200, ["1,200 URLs still queued when `--max-pages 50` was reached"]),
        ("max_bytes", {"max_bytes": 5000}, {}, 1, ["1 URL still queued when `--max-bytes 5000` was reached"]),
        ("max_seconds", {"max_seconds": 90.0}, {}, 2, ["2 URLs still queued when `--max-time 90s` was reached"]),
        ("max_pages", {"max_pages": 50}, {}, 0, []),
        (
            "drained",
            {"max_pages_per_host": 10, "depth": 3},
            {"host_budget": 31, "depth": 2, "scope": 9},
            0,
            ["2 URLs are deeper than `--depth 3`", "31 URLs are beyond `--max-pages-per-host 10`"],
        ),
    ],
)
def test_the_summary_says_what_each_limit_cut(
    reason: str, limits: dict[str, float], skipped: dict[str, int], queued: int, said: list[str]
) -> None:
    done = seen(CrawlState.COMPLETED, reason, Counts(opened=9 + queued, settled=9, pages=9, skipped=skipped), 90)
    done = replace(done, crawl=replace(done.crawl, config=CrawlConfig(seeds=["http://a.example/"], **limits)))
    rows = rows_of(done, summary(done), [])
    assert [what for name, what in rows if name == "Cut off"] == said
    assert "Not crawled" not in dict(rows)


def test_a_crawl_with_a_404_and_a_500_never_shows_only_that_it_has_no_errors() -> None:
    counts = Counts(opened=3, settled=3, pages=3, responses=count_responses([200, 404, 500]))
    done = seen(CrawlState.COMPLETED, "drained", counts, 90)
    assert dict(rows_of(done, summary(done), []))["Responses"] == "2xx 1, 4xx 1, 5xx 1"
    line = messages.moved(done.crawl, states.complete("drained"), counts)
    assert "3 pages (2xx 1, 4xx 1, 5xx 1), 0 errors" in line.message
    row = row_of(done, Formats(ENGLISH, 0))
    assert row.responses == {"2xx": 1, "unchanged": 0, "3xx": 0, "4xx": 1, "5xx": 1, "none": 0}
    assert "0 errors, 4xx 2, 27 s" in ", ".join(replace(STANDING, errors=0, refusals=(("4xx", 2),)).words())


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, "2xx"), (204, "2xx"), (304, "3xx"), (404, "4xx"), (503, "5xx"), (999, "5xx"), (None, "none")],
)
def test_a_status_belongs_to_one_class(status: int | None, kind: str) -> None:
    assert response_class(status) == kind


def test_the_summary_says_why_no_seed_gave_a_page() -> None:
    seeds = [
        FailedSeed("http://a.example/", 404),
        FailedSeed("http://b.example/", None, "dns_error", "The host name could not be resolved."),
        FailedSeed("http://c.example/", None, "robots", "skipped (robots)"),
        FailedSeed("http://d.example/", 500),
    ]
    done = replace(seen(CrawlState.COMPLETED, "drained", COUNTS, 90), failed_seeds=tuple(seeds))
    told = summary(done)
    assert [seed["status"] for seed in told["failed_seeds"]] == [404, None, None, 500]
    assert dict(rows_of(done, told, []))["Seeds"] == (
        "none returned a page: http://a.example/ answered 404; http://b.example/: The host name could not be resolved; "
        "http://c.example/: robots.txt disallows it, see `shoal robots test URL`; and 1 more"
    )
    for state in (CrawlState.COMPLETED, CrawlState.FAILED, CrawlState.STOPPED):
        with pytest.raises(NothingCrawled, match="answered 404"):
            exit_code_of(replace(done, crawl=replace(done.crawl, state=state, state_reason="max_bytes")), "")


def test_the_summary_of_a_crawl_that_followed_another_says_what_was_saved() -> None:
    done = seen(CrawlState.COMPLETED, "drained", replace(COUNTS, not_modified=1200, bytes_saved=45_000_000), 90)
    told = summary(done)
    assert (told["not_modified"], told["bytes_saved"]) == (1200, 45_000_000)
    assert rows_of(done, told, [])[8:10] == [("Received", "12.3 kB"), ("Unchanged", "1,200, saving 45 MB")]


def test_the_summary_of_a_paused_crawl_adds_up_all_sessions_and_shows_what_is_left() -> None:
    paused = seen(CrawlState.PAUSED, "interrupted", Counts(opened=10, settled=4, pages=4))
    told = summary(paused, elapsed_seconds=2.0)
    assert (told["duration_seconds"], told["pages_per_second"]) == (2.0, 2.0)
    assert ("Not crawled", "6 URLs still queued") in rows_of(paused, told, [])
    later = replace(paused, counts=Counts(opened=10, settled=6, pages=6, walked=timedelta(seconds=4)))
    assert summary(later, elapsed_seconds=1.5)["duration_seconds"] == 4.0


def test_the_summary_of_a_paused_crawl_separates_work_from_pauses() -> None:
    done = seen(CrawlState.COMPLETED, "drained", replace(COUNTS, walked=timedelta(seconds=9)), 3600)
    assert ("Took", "1 h, of which 9 s active, 1 page/s") in rows_of(done, summary(done), [])
    straight = seen(CrawlState.COMPLETED, "drained", replace(COUNTS, walked=timedelta(seconds=88)), 90)
    assert ("Took", "1 min 30 s, 0.1 pages/s") in rows_of(straight, summary(straight), [])


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (0.424, "0.42 s"),
        (9.9, "9.9 s"),
        (9.99, "10 s"),
        (27.4, "27 s"),
        (60, "1 min"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (3600, "1 h"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_duration_in_words(seconds: float, words: str) -> None:
    assert in_time(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (12_345, "12.3 kB"),
        (999_999, "1,000 kB"),
        (123_456_789, "123.5 MB"),
        (5 * 10**12, "5 TB"),
        (5 * 10**15, "5,000 TB"),
    ],
)
def test_a_size_in_words(count: int, words: str) -> None:
    assert in_bytes(count) == words

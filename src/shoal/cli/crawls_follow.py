"""`shoal crawls logs | watch | wait`: follow a crawl until it ends. Other processes run it; these commands only
read."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import click

from shoal.base.clock import Clock, SystemClock, to_micros
from shoal.base.errors import BackendUnavailable, WaitTimedOut
from shoal.base.ids import CrawlId
from shoal.base.text import visible
from shoal.cli.api_client import PAGE, ApiClient, ApiTarget, at, run_on, with_api_target
from shoal.cli.completion import id_argument
from shoal.cli.options import DURATION
from shoal.cli.output import (
    exit_code_of,
    print_answer,
    print_line,
    print_rows,
    rows_of,
    summary,
    to_the_second,
)
from shoal.cli.progress import Progress, screen
from shoal.cli.root import Command
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig
from shoal.crawl.journal import MOST_AT_ONCE
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.failed_urls import FailedSeed
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.hosts.rate import HeldHost
from shoal.observe.logs import note
from shoal.process.local_crawl import CrawlTally

CRAWL = "/api/v1/crawls/{}"
LIMITS = ("depth", "max_pages", "max_bytes", "max_seconds", "max_pages_per_host")
LOOK_SECONDS = 0.5
WORKER_SECONDS = 2.0  # a running worker leases a new crawl within this time
AWAY_SECONDS = 60.0  # tolerated length of an outage, if the server or store responded before
INTERRUPTED = 130  # 128 + SIGINT: following leaves nothing to clean up
STILL = TERMINAL | {CrawlState.PAUSED}  # states that change only by a request of a user


@click.command(cls=Command, epilog="Example: shoal crawls logs ID --follow")
@id_argument("crawl_id")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the crawl ends.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(1, MOST_AT_ONCE),
    default=200,
    show_default=True,
    metavar="N",
    help="Show the last N entries.",
)
@with_api_target
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def logs(crawl_id: str, follow: bool, lines: int, target: ApiTarget, as_json: bool) -> int:
    """Show the log of a crawl."""

    def show(items: list[dict[str, Any]]) -> None:
        for line in items:
            print_answer(line, _line(line), as_json=as_json)

    async def read(api: ApiClient, clock: Clock) -> int:
        path = at(f"{CRAWL}/logs", crawl_id)
        page = await api.get(path, tail=lines)
        show(page["items"])
        while follow and page["next"] is not None:
            if not page["items"]:
                await clock.sleep(LOOK_SECONDS)
            page = await api.get(path, limit=PAGE, cursor=page["next"])
            show(page["items"])
        return 0

    return looking(target, read)


@click.command(cls=Command, epilog="Example: shoal crawls watch ID")
@id_argument("crawl_id")
@with_api_target
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def watch(crawl_id: str, target: ApiTarget, as_json: bool) -> int:
    """Show the progress of a crawl until it ends or is paused. Ctrl-C stops watching, not the crawl."""

    async def follow(api: ApiClient, clock: Clock) -> int:
        watched = RemoteCrawl(api, (await _status(api, crawl_id)).crawl)
        async with Progress(watched, clock, screen(), before=watched.seconds_before(clock)):
            status = await _until_still(api, crawl_id, clock)
        return _print_result(status, target, as_json)

    again = target.command("crawls", "watch", crawl_id)
    return looking(target, follow, f"The crawl is still running; follow it with `{again}`.")


@click.command(cls=Command, epilog="Example: shoal crawls wait ID --timeout 2h")
@id_argument("crawl_id")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=DURATION,
    metavar="D",
    help="Stop waiting after this long, such as 30s, 10m or 2h.  [default: never]",
)
@with_api_target
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def wait(crawl_id: str, timeout_seconds: float | None, target: ApiTarget, as_json: bool) -> int:
    """Wait until a crawl ends or is paused. Ctrl-C ends the waiting, not the crawl.

    The exit code is the same as for `shoal crawl`, or 6 after the timeout.
    """
    return at_its_end(target, crawl_id, as_json, timeout_seconds)


def at_its_end(target: ApiTarget, crawl_id: str, as_json: bool, timeout_seconds: float | None = None) -> int:
    """Wait for the end of the crawl and print its summary; return the exit code."""

    async def follow(api: ApiClient, clock: Clock) -> int:
        try:
            async with asyncio.timeout(timeout_seconds):
                status = await _until_still(api, crawl_id, clock)
        except TimeoutError:
            raise WaitTimedOut(f"crawl {crawl_id} did not end", timeout_seconds or 0.0) from None
        return _print_result(status, target, as_json)

    again = target.command("crawls", "wait", crawl_id)
    return looking(target, follow, f"The crawl goes on; wait for it with `{again}`.")


class RetryingApiClient(ApiClient):
    """A client that retries failed requests for a while if the API responded before. So a restart of the controller or
    the database does not end a waiting command."""

    def __init__(self, api: ApiClient, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._answered = False

    async def get(self, path: str, **query: Any) -> Any:
        away_since: float | None = None
        while True:
            try:
                answer = await self._api.get(path, **query)
            except BackendUnavailable as error:
                now = self._clock.monotonic()
                if not self._answered or (away_since is not None and now - away_since > AWAY_SECONDS):
                    raise
                if away_since is None:
                    away_since = now
                    note(f"{error.message} Retrying for {AWAY_SECONDS:g} s.")
                await self._clock.sleep(LOOK_SECONDS)
            else:
                self._answered = True
                return answer


@dataclass(slots=True)
class RemoteCrawl:
    """A crawl that a different process runs, for the progress line. All its data comes from the API."""

    api: ApiClient
    crawl: Crawl
    tally: CrawlTally = field(default_factory=CrawlTally)
    waits_for: None = None  # only the process that crawls knows this

    async def status(self) -> CrawlStatus:
        return await _status(self.api, self.crawl.id)

    async def held(self) -> list[HeldHost]:
        held = (await self.api.get(at(CRAWL, self.crawl.id)))["held_hosts"]
        return [HeldHost(host["origin"], _micros(host["held_until"]) or 0, host["status"]) for host in held]

    def seconds_before(self, clock: Clock) -> float:
        began = self.crawl.started_at
        return 0.0 if began is None else max(0.0, (clock.micros() - began) / 1e6)


async def _until_still(api: ApiClient, crawl_id: str, clock: Clock) -> CrawlStatus:
    """Wait for the end of the crawl. Print a hint if no worker takes the crawl, because the wait would never end."""
    deadline: float | None = clock.monotonic() + WORKER_SECONDS
    while True:
        status = await _status(api, crawl_id)
        if status.crawl.state in STILL:
            return status
        if deadline is not None and clock.monotonic() >= deadline and status.crawl.state is CrawlState.QUEUED:
            note("Waiting for a worker; start one with `shoal worker` or `shoal serve --workers 1`.")
            deadline = None
        await clock.sleep(LOOK_SECONDS)


async def _status(api: ApiClient, crawl_id: str) -> CrawlStatus:
    """Return the crawl from the API, with the values that a summary and a progress line need."""
    response = await api.get(at(CRAWL, crawl_id))
    limits = {name: response["config"][name] for name in LIMITS}
    crawl = Crawl(
        number=0,
        key_seed=0,
        id=CrawlId(response["id"]),
        state=CrawlState(response["state"]),
        state_reason=response["state_reason"],
        project=response["project"],
        config=CrawlConfig(seeds=response["seeds"], **limits),
        named=frozenset(),
        priority=response["priority"],
        created_at=_micros(response["created_at"]) or 0,
        started_at=_micros(response["started_at"]),
        finished_at=_micros(response["finished_at"]),
    )
    sums = ("pages", "errors", "responses", "bytes", "not_modified", "bytes_saved", "depth_reached", "skipped")
    walked = timedelta(seconds=response["worked_seconds"])
    stayed_empty = response.get("stayed_empty", 0)  # a server of an earlier version does not count these pages
    counts = Counts(
        opened=response["queued"], walked=walked, stayed_empty=stayed_empty, **{name: response[name] for name in sums}
    )
    why = (response["error"] or {}).get("message", "")
    failed, dead = (tuple(map(FailedSeed.of, response.get(name, ()))) for name in ("failed_seeds", "dead_seeds"))
    return CrawlStatus(crawl, counts, tuple(response["node_ids"]), why, failed, dead)


def _micros(moment: str | None) -> int | None:
    return None if moment is None else to_micros(datetime.fromisoformat(moment))


def _print_result(status: CrawlStatus, target: ApiTarget, as_json: bool) -> int:
    """Print the summary of a crawl; return the exit code."""
    totals = summary(status, target=target)
    if as_json:
        print_line(totals, to_stdout=True)
    else:
        print_rows(rows_of(status, totals, ()), to_stdout=True)
    return exit_code_of(status, target.command("crawls", "resume", status.crawl.id))


def looking(target: ApiTarget, look: Callable[[ApiClient, Clock], Awaitable[int]], left: str | None = None) -> int:
    """Follow a crawl. Ctrl-C ends only this command, not the crawl."""
    clock = SystemClock()
    try:
        return run_on(target, lambda api: look(RetryingApiClient(api, clock), clock))
    except KeyboardInterrupt:
        if left is not None:
            note(left)
        return INTERRUPTED


def _line(line: dict[str, Any]) -> str:
    return f"{to_the_second(line['timestamp'])} {line['level'].upper():<7} {visible(line['msg'])}"

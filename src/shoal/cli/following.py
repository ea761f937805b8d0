"""`shoal crawls logs | watch | wait`: a crawl that somebody else walks, followed until it ends, and only looked at."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import click
import uvloop

from shoal.app import App, opened
from shoal.base.clock import from_micros
from shoal.base.errors import InvalidInput, WaitTimedOut
from shoal.base.reading import read_duration
from shoal.base.text import shorten, visible
from shoal.cli.output import note, print_json
from shoal.cli.progress import Progress, screen
from shoal.cli.summary import print_line, print_rows, rows_of, summary
from shoal.cli.verdict import exit_code_of
from shoal.cli.watching import on_stop, quiet
from shoal.crawl.crawl import Crawl
from shoal.crawl.crawls import Seen
from shoal.crawl.journal import MOST_AT_ONCE, Written
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.here.crawl import Tally
from shoal.settings import load

T = TypeVar("T")

LOOK_SECONDS = 0.5
INTERRUPTED = 130  # 128 + SIGINT: whoever only looks leaves nothing behind
STILL = TERMINAL | {CrawlState.PAUSED}  # nothing happens any more unless somebody asks for it

_store = click.option("--store", metavar="URL", help="The store; beats DATABASE_URL.")


@click.command(epilog="Example: shoal crawls logs ID --follow")
@click.argument("crawl_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the crawl has ended, or Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(1, MOST_AT_ONCE), default=200, show_default=True, help="At most the last N."
)
@_store
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def logs(crawl_id: str, follow: bool, lines: int, store: str | None, as_json: bool) -> int:
    """Read the journal of a crawl. What was found, which depths are finished, who was lost, how it ended."""

    def show(written: list[Written]) -> None:
        for one in written:
            if as_json:
                print_json(one.answer(crawl_id))
            else:
                print(_line(one), flush=True)

    async def read(app: App) -> int:
        journal, last = app.crawls.journal, 0
        found = await journal.lines(crawl_id, limit=lines)
        while True:
            show(found)
            last = found[-1].number if found else last
            # First whether it has ended, then what it said: the line about its end comes with the end.
            ended = not follow or (await app.crawls.get(crawl_id)).crawl.state in TERMINAL
            found = await journal.lines(crawl_id, after=last) if follow else []
            if ended and not found:
                return 0
            if not found:
                await app.clock.sleep(LOOK_SECONDS)

    return _looking(store, read)


@click.command(epilog="Example: shoal crawls watch ID")
@click.argument("crawl_id", metavar="ID")
@_store
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def watch(crawl_id: str, store: str | None, as_json: bool) -> int:
    """Show how a crawl goes until it ends or is paused. Ctrl-C ends the watching, not the crawl."""

    async def follow(app: App) -> int:
        watched = Watched(app, (await app.crawls.get(crawl_id)).crawl)
        async with Progress(watched, app.clock, screen(), before=watched.seconds_before()):
            seen = await _until_still(app, crawl_id)
        _tell(seen, as_json)
        return exit_code_of(seen, f"shoal crawls resume {crawl_id}")

    return _looking(store, follow, f"The crawl goes on; look at it with `shoal crawls watch {crawl_id}`.")


@click.command(epilog="Example: shoal crawls wait ID --timeout 2h")
@click.argument("crawl_id", metavar="ID")
@click.option("--timeout", metavar="D", help="Give up after this long, say 30s, 10m or 2h.")
@_store
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
def wait(crawl_id: str, timeout: str | None, store: str | None, as_json: bool) -> int:
    """Wait until a crawl ends or is paused. The exit code says how, as that of `shoal crawl` does; 6: not in time."""
    longest = None if timeout is None else _duration(timeout)

    async def follow(app: App) -> int:
        try:
            async with asyncio.timeout(None if longest is None else longest.total_seconds()):
                seen = await _until_still(app, crawl_id)
        except TimeoutError:
            assert longest is not None
            raise WaitTimedOut(f"the end of crawl {crawl_id}", longest.total_seconds()) from None
        _tell(seen, as_json)
        return exit_code_of(seen, f"shoal crawls resume {crawl_id}")

    return _looking(store, follow)


@dataclass(slots=True)
class Watched:
    """A crawl that is walked elsewhere, for the live line: all that is known of it is in the store."""

    app: App
    crawl: Crawl
    tally: Tally = field(default_factory=Tally)

    async def seen(self) -> Seen:
        return await self.app.crawls.get(self.crawl.id)

    def seconds_before(self) -> float:
        began = self.crawl.started_at
        return 0.0 if began is None else max(0.0, (self.app.clock.micros() - began) / 1e6)


async def _until_still(app: App, crawl_id: str) -> Seen:
    while True:
        seen = await app.crawls.get(crawl_id)
        if seen.crawl.state in STILL:
            return seen
        await app.clock.sleep(LOOK_SECONDS)


def _tell(seen: Seen, as_json: bool) -> None:
    told = summary(seen, seen.counts.walked / 1e6)
    if as_json:
        print_line(told, to_stdout=True)
    else:
        print_rows(rows_of(seen, told, ()), to_stdout=True)


def _looking(store: str | None, look: Callable[[App], Awaitable[int]], left: str | None = None) -> int:
    """Look at a store; Ctrl-C ends it, and nothing else."""

    async def run() -> int:
        settings = load({"DATABASE_URL": store}).settings
        looking = asyncio.current_task()
        assert looking is not None
        on_stop(lambda: _cancel(looking))
        with suppress(asyncio.CancelledError):
            async with opened(settings, quiet(settings), existing=True) as app:
                return await look(app)
        if left is not None:
            note(left)
        return INTERRUPTED

    return uvloop.run(run())


def _line(written: Written) -> str:
    at = from_micros(written.at).astimezone().isoformat(sep=" ", timespec="seconds")
    return f"{at} {written.line.level.name:<7} {visible(written.line.message)}"


def _duration(text: str) -> timedelta:
    try:
        return read_duration(text)
    except ValueError as error:
        raise InvalidInput("--timeout", f"{shorten(text)!r} {error}", "write it as 30s, 10m or 2h") from None


def _cancel(looking: asyncio.Task[int]) -> None:
    looking.cancel()

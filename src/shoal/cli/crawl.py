"""`shoal crawl`: a crawl here and now, in this process, on the same rows as anywhere."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click
import uvloop
from pydantic import ValidationError

from shoal.app import App, opened, walker_of
from shoal.base.database import Tx
from shoal.base.errors import BackendUnavailable, Interrupted, InvalidInput, NothingCrawled, UsageError
from shoal.base.ids import CrawlId
from shoal.base.url import canonical
from shoal.cli.output import note, print_json, print_table
from shoal.cli.watching import on_stop, quiet
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.crawls import Seen
from shoal.crawl.frontier import Settled
from shoal.crawl.states import CrawlState
from shoal.export.output import Output
from shoal.pages.page import Page
from shoal.settings import load
from shoal.work.local import LocalLease
from shoal.work.vigil import Vigil

PAGES_AT_ONCE = 1000
ID = r"[A-Za-z0-9_.-]{1,64}"


@click.command()
@click.argument("urls", nargs=-1, metavar="URL...")
@click.option("--depth", type=int, help="How many links away from a seed a page may be.  [default: 3]")
@click.option("--max-pages", type=int, metavar="N", help="Pages after which the crawl completes.")
@click.option("--scope", metavar="page|prefix|host|domain|any", help="What belongs to the crawl.  [default: host]")
@click.option("--include", multiple=True, metavar="RE", help="Only URLs that match; may be given again.")
@click.option("--exclude", multiple=True, metavar="RE", help="Never URLs that match; may be given again.")
@click.option("--speed", metavar="slow|normal|fast|max", help="How hard one host is asked.  [default: normal]")
@click.option("--concurrency", type=int, metavar="N", help="Fetches in flight; beats the speed.")
@click.option("--delay", "delay_seconds", type=float, metavar="S", help="Seconds between requests to one host.")
@click.option("--user-agent", metavar="S", help="How Shoal names itself.")
@click.option("--output", "outputs", multiple=True, metavar="FILE", help="Where pages go: FILE.jsonl, or - for stdout.")
@click.option("--id", "crawl_id", metavar="ID", help="An id of your own: letters, digits, `_`, `.` and `-`.")
@click.option("--resume", metavar="ID", help="Go on with a crawl that was paused or whose process is gone.")
@click.option("--store", metavar="URL", help="sqlite:////absolute, sqlite:///relative or postgresql://…")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object, the last line of stdout.")
def crawl(
    urls: Sequence[str],
    outputs: Sequence[str],
    crawl_id: str | None,
    resume: str | None,
    store: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Crawl a site here and now. Ctrl-C pauses it, and says how to go on; a second one ends it at once."""
    if bool(urls) == bool(resume):
        raise UsageError("Give the URLs of a new crawl, or --resume ID of an old one", 'see "shoal crawl --help"')
    config = None if resume else _config(urls, options)
    uvloop.run(_crawl({"DATABASE_URL": store}, config, crawl_id, resume, outputs, as_json))


def _config(urls: Sequence[str], options: dict[str, Any]) -> CrawlConfig:
    given = {name: value for name, value in options.items() if value not in (None, ())}
    try:
        return CrawlConfig(seeds=list(urls), **given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0]).replace("delay_seconds", "delay").replace("_", "-")
        raise InvalidInput(f"--{name}", f"cannot be taken: {first['msg'].lower()}", "correct it") from None


async def _crawl(
    flags: dict[str, str | None],
    config: CrawlConfig | None,
    crawl_id: str | None,
    resume: str | None,
    outputs: Sequence[str],
    as_json: bool,
) -> None:
    settings = load(flags).settings
    async with opened(settings, quiet(settings)) as app:
        found = await _submitted(app, config, crawl_id) if config else (await app.crawls.get(resume or "")).crawl
        session = Session(app, found, [Output(name, found.id) for name in outputs])
        await session.run()
        await session.tell(as_json=as_json, to_stdout="-" not in outputs)


async def _submitted(app: App, config: CrawlConfig, crawl_id: str | None) -> Crawl:
    named = [url for seed in config.seeds if isinstance(url := canonical(seed), str)]
    return await app.crawls.submit(config, crawl_id=CrawlId(crawl_id) if crawl_id else None, named=named, here=True)


class Session:
    """One crawl in this process: its lease kept alive, its outputs written, its person told."""

    def __init__(self, app: App, crawl: Crawl, outputs: list[Output]) -> None:
        self._app = app
        self._crawl = crawl
        self._outputs = outputs
        self._interrupts = 0
        self._pausing: asyncio.Task[object] | None = None

    async def run(self) -> None:
        for output in self._outputs:
            output.open()
        try:
            if self._crawl.state is not CrawlState.COMPLETED:
                await self._walk()
            await self._write_outputs()
        finally:
            for output in self._outputs:
                output.leave()

    async def tell(self, *, as_json: bool, to_stdout: bool) -> None:
        """The summary, and by exception what the exit code is to say."""
        seen = await self._app.crawls.get(self._crawl.id)
        if as_json:
            print_json(summary(seen))
        else:
            rows = [(name, value) for name, value in summary(seen).items() if name != "skipped"]
            (print_table if to_stdout else _table_to_stderr)(["", ""], rows)
        if seen.crawl.state is CrawlState.PAUSED:
            raise Interrupted(f"crawl {seen.crawl.id}", f"go on with `shoal crawl --resume {seen.crawl.id}`")
        if seen.crawl.state is CrawlState.FAILED:
            raise NothingCrawled(seen.crawl.id, seen.crawl.state_reason or "unknown")

    async def _walk(self) -> None:
        taking = LocalLease(self._app.database, self._app.queue, self._app.crawls, self._app.clock)
        await taking.reopen(self._crawl)
        lease = await taking.take(self._crawl)
        vigil = Vigil(self._app.queue, lease, self._app.clock)
        walker = walker_of(self._app, self._crawl, lease.holder, vigil.trusted, self._progress)
        self._walker = walker
        on_stop(self._interrupt)
        async with vigil:
            await walker.run()
        if self._pausing is not None:
            await self._pausing

    def _progress(self, settled: list[Settled]) -> None:
        return

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt
        note("Pausing; once more to end at once.")
        self._pausing = asyncio.create_task(self._pause())

    async def _pause(self) -> None:
        with suppress(BackendUnavailable):
            await self._app.crawls.pause(self._crawl.id, "interrupted")
            self._walker.nudge()

    async def _write_outputs(self) -> None:
        """From the store, so that each page is there exactly once, whatever happened before."""
        if not self._outputs:
            return
        number = 0
        while pages := await self._app.database.read(partial(self._pages_after, number=number)):
            number = pages[-1][0]
            for output in self._outputs:
                output.write([page for _, page in pages])
        for output in self._outputs:
            output.complete()

    async def _pages_after(self, tx: Tx, *, number: int) -> list[tuple[int, Page]]:
        return await self._app.pages.after(tx, self._crawl.number, number, PAGES_AT_ONCE)


def summary(seen: Seen) -> dict[str, Any]:
    crawl, counts = seen.crawl, seen.counts
    seconds = ((crawl.finished_at or crawl.started_at or 0) - (crawl.started_at or 0)) / 1e6
    return {
        "crawl_id": crawl.id,
        "state": crawl.state.value,
        "pages": counts.pages,
        "errors": counts.errors,
        "skipped": counts.skipped,
        "bytes": counts.bytes,
        "duration_seconds": round(seconds, 3),
        "pages_per_second": round(counts.pages / seconds, 1) if seconds else 0.0,
        "depth_reached": counts.depth_reached,
    }


def _table_to_stderr(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    for name, value in rows:
        note(f"{name:18} {value}")

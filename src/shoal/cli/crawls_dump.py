"""`shoal crawls dump` and `shoal crawls load`: move a crawl from one store to another, with its frontier and pages.

Both work on a store, never over HTTP: a dump may hold credentials, and only a person on this machine may allow a loaded
crawl to request private addresses.
"""

import asyncio
from typing import TYPE_CHECKING

import click

from shoal.app import opened
from shoal.base.settings import Settings
from shoal.base.text import plural
from shoal.cli.api_client import ApiTarget, settings_of_store
from shoal.cli.output import json_option, print_json
from shoal.cli.summary import print_line, summary
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import CrawlState
from shoal.observe.logs import note
from shoal.process.crawl_request import read_id
from shoal.process.lifetime import quiet

if TYPE_CHECKING:
    from shoal.crawl.dump.files import DumpFile, DumpToStdout

STANDARD = "-"
NEXT = {CrawlState.PAUSED: "resume", CrawlState.PENDING: "start", CrawlState.FAILED: "retry"}
"""The command that continues a loaded crawl, by its state; crawls in other states have ended."""

_store = click.option("--store", metavar="URL", help="Use this store; overrides DATABASE_URL.")


@click.command(epilog="Example: shoal crawls dump ID --output crawl.jsonl.gz")
@click.argument("crawl_id", metavar="ID")
@click.option(
    "--output",
    default=STANDARD,
    show_default=True,
    metavar="FILE",
    help="Write to this file, with gzip if it ends in .gz; - is stdout. Only you can read the file.",
)
@click.option(
    "--with-secrets",
    is_flag=True,
    help="Include header values, cookies and proxy passwords. Required to continue a crawl that uses any.",
)
@_store
@json_option
def dump(crawl_id: str, output: str, with_secrets: bool, store: str | None, as_json: bool) -> None:
    """Dump a crawl, to load it into another store. Writes its options, frontier and pages as JSON lines, without
    stored bodies, logs and analyses. The crawl must be paused or have ended."""
    from shoal.crawl.dump.files import DumpFile, DumpToStdout

    settings = settings_of_store(store, "shoal crawls dump")
    file = DumpToStdout() if output == STANDARD else DumpFile(output)
    lines = asyncio.run(_dump(settings, crawl_id, file, with_secrets))
    if as_json:
        result = {"crawl_id": crawl_id, "lines": lines, "output": output, "secrets": with_secrets}
        print_line(result, to_stdout=output != STANDARD)
    elif output != STANDARD:
        note(f"Dumped {crawl_id} to {output}. Load it with `shoal crawls load {output} --store URL`.")


async def _dump(settings: Settings, crawl_id: str, file: "DumpFile | DumpToStdout", with_secrets: bool) -> int:
    lines = 0
    async with opened(settings, quiet(settings), existing=True) as app:
        try:
            async for line in app.crawl_dump.dump(crawl_id, secrets=with_secrets):
                if not lines:
                    file.open()  # a crawl that cannot be dumped leaves no file
                file.write(line)
                lines += 1
            file.complete()
        finally:
            file.close()
    return lines


@click.command(epilog="Example: shoal crawls load crawl.jsonl.gz --store postgresql://shoal@db/shoal")
@click.argument("file", metavar="[FILE]", default=STANDARD)
@click.option("--id", "crawl_id", metavar="ID", help="Store the crawl under this id.  [default: its own]")
@click.option(
    "--allow-private-seeds",
    is_flag=True,
    help="Allow the crawl to request its seeds at private addresses from this machine.",
)
@_store
@json_option
def load(file: str, crawl_id: str | None, allow_private_seeds: bool, store: str | None, as_json: bool) -> None:
    """Load a crawl that `shoal crawls dump` wrote. FILE may be compressed with gzip; the default is - (standard
    input). The crawl keeps its state and continues when you resume it. An invalid dump stores nothing."""
    settings = settings_of_store(store, "shoal crawls load")
    wanted = None if crawl_id is None else read_id(crawl_id, "--id")
    status = asyncio.run(_load(settings, file, wanted, allow_private_seeds))
    crawl, counts = status.crawl, status.counts
    if as_json:
        print_json(summary(status, target=ApiTarget(store)) | {"queued": counts.queued})
        return
    verb = NEXT.get(crawl.state)
    what_next = f" Continue it with `{ApiTarget(store).command('crawls', verb, crawl.id)}`." if verb else ""
    note(f"Loaded {plural(counts.pages, 'page')} and {plural(counts.queued, 'waiting URL')}; {crawl.state}.{what_next}")
    print(crawl.id, flush=True)


async def _load(settings: Settings, file: str, crawl_id: str | None, allow_private_seeds: bool) -> CrawlStatus:
    from shoal.crawl.dump.files import dump_lines

    async with opened(settings, quiet(settings)) as app:
        dumps = app.crawl_dump
        loaded = await dumps.load(dump_lines(file), crawl_id=crawl_id, trust_named=allow_private_seeds)
        return await app.crawls.get(loaded)

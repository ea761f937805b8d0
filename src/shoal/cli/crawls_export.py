"""`shoal crawls export`: write the pages of a crawl to files, from the store or from a server's records."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import click
from xxhash import xxh3_128_digest

from shoal.app import opened
from shoal.base.clock import SystemClock
from shoal.base.errors import InvalidInput
from shoal.base.settings import Settings
from shoal.base.text import plural
from shoal.cli.api_client import PAGE, ApiClient, ApiTarget, at, run_on, with_api_target
from shoal.cli.options import OUTPUT_HELP
from shoal.cli.output import json_option
from shoal.cli.summary import print_line
from shoal.egress import Limits
from shoal.observe.logs import note
from shoal.pages.export.output import ERROR, ExportFilter, Outputs
from shoal.pages.page import Page
from shoal.pages.store import ANY_ERROR
from shoal.process.export import export as write
from shoal.process.lifetime import quiet

CRAWL = "/api/v1/crawls/{}"


@click.command(epilog="Example: shoal crawls export ID --output broken.csv --status 4xx --status error")
@click.argument("crawl_id", metavar="ID")
@click.option("--output", multiple=True, required=True, metavar="FILE", help=OUTPUT_HELP)
@click.option(
    "--status", multiple=True, metavar="S", help="Export only pages with this status: 404, 4xx, or error. Repeatable."
)
@with_api_target
@json_option
def export(crawl_id: str, output: Sequence[str], status: Sequence[str], target: ApiTarget, as_json: bool) -> None:
    """Write the pages of a crawl to files. For a running crawl, the pages fetched so far. WARC and Markdown are
    written from stored bodies and need direct access to the store."""
    outputs, wanted = Outputs(output), ExportFilter(status)
    settings = target.settings()
    if target.is_remote(settings):
        _check_records(outputs)
        outputs.check()
        pages = run_on(target, lambda api: _from_server(api, crawl_id, outputs, wanted))
    else:
        outputs.check()
        pages = asyncio.run(_from_store(settings, crawl_id, outputs, wanted))
    result = {"crawl_id": crawl_id, "pages": pages, "outputs": outputs.locations}
    if as_json:
        print_line(result, to_stdout=not outputs.to_stdout)
    else:
        note(f"{plural(pages, 'page')} of {crawl_id} written to {', '.join(outputs.locations)}.")


async def _from_store(settings: Settings, crawl_id: str, outputs: Outputs, wanted: ExportFilter) -> int:
    async with opened(settings, quiet(settings), existing=True) as app:
        return await write(app, crawl_id, outputs, wanted)


async def _from_server(api: ApiClient, crawl_id: str, outputs: Outputs, wanted: ExportFilter) -> int:
    await api.get(at(CRAWL, crawl_id))  # raise before a file is created
    await outputs.open(crawl_id, SystemClock().micros(), Limits())
    written = 0
    try:
        async for pages in _pages(api, crawl_id, wanted):
            chosen = [page for page in pages if wanted(page)]
            await outputs.write(chosen)
            written += len(chosen)
        await outputs.complete()
    finally:
        outputs.leave()
    return written


async def _pages(api: ApiClient, crawl_id: str, wanted: ExportFilter) -> AsyncIterator[list[Page]]:
    """Yield the pages as the server lists them. A page fetched again meanwhile is listed twice; only the
    first is used."""
    path, query = at(f"{CRAWL}/pages", crawl_id), _query(wanted)
    known: set[bytes] = set()  # 128-bit hashes: a million URLs would take a hundred megabytes
    more: str | None = None
    while True:
        listed = await api.get(path, limit=PAGE, cursor=more, **query)
        pages = [Page.of(record) for record in listed["items"]]
        digests = [xxh3_128_digest(page.url.encode()) for page in pages]
        yield [page for page, digest in zip(pages, digests, strict=True) if digest not in known]
        known.update(digests)
        more = listed["next"]
        if more is None or len(pages) < PAGE:
            return


def _query(wanted: ExportFilter) -> dict[str, str]:
    """Return the server-side filter. The API takes only one, so several are applied here to all pages."""
    match list(wanted.words):
        case [word]:
            return {"error": ANY_ERROR} if word == ERROR else {"status": word}
        case _:
            return {}


def _check_records(outputs: Outputs) -> None:
    if outputs.from_bodies:
        problem = f"{outputs.from_bodies[0]!r} is written from stored bodies, which a server does not send"
        raise InvalidInput(
            "--output", problem, "use .jsonl, .csv, .parquet or -, or use the store directly with --store"
        )

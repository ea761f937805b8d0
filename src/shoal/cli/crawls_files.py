"""The commands of `shoal crawls` that read or write files: `diff`, `dump`, `load`, `export`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from xxhash import xxh3_128_digest

from shoal.app import App, opened
from shoal.audit.diff_formats import COLUMNS, FORMATS, RowFormatName, pieces
from shoal.base.clock import SystemClock
from shoal.base.database import Tx
from shoal.base.errors import InvalidInput, UsageError
from shoal.base.settings import Settings
from shoal.base.text import plural, shorten
from shoal.cli.api_client import PAGE, ApiClient, ApiTarget, at, run_on, settings_of_store, store_option
from shoal.cli.completion import id_argument
from shoal.cli.options import LINKS_HELP, OUTPUT_HELP, may_overwrite, table_flags
from shoal.cli.output import api_options, json_option, print_json, print_line, print_rows, print_table, summary
from shoal.cli.root import Command
from shoal.crawl.crawl import Crawl
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.links import CrawlLinks, LinkFilter
from shoal.crawl.states import CrawlState
from shoal.egress import Limits
from shoal.observe.logs import note
from shoal.pages.export.output import ERROR, ExportFilter, Outputs, may_replace
from shoal.pages.export.part_file import PartFile, check_replace
from shoal.pages.export.table import PageTable, read_fields
from shoal.pages.page import Page
from shoal.pages.store import ANY_ERROR, PageStore
from shoal.process.crawl_request import read_id
from shoal.process.lifetime import quiet

if TYPE_CHECKING:
    from shoal.crawl.dump import DumpFile, DumpToStdout


DIFF = "/api/v1/crawls/{}/diff"
SHOWN = 10
LONGEST_VALUE = 60
TITLES = {
    "added": "Pages added",
    "removed": "Pages removed",
    "changed": "Pages changed",
    "finding_new": "New findings",
    "finding_fixed": "Fixed findings",
}


@click.command(cls=Command, epilog="Example: shoal crawls diff OLD NEW --output changes.csv")
@id_argument("before", "EARLIER")
@id_argument("after", "LATER")
@click.option(
    "--output",
    multiple=True,
    metavar="FILE",
    help="Write all differences to a file: .csv, .jsonl or .parquet. Repeatable.",
)
@click.option(
    "--limit",
    type=click.IntRange(0, 1000),
    default=SHOWN,
    show_default=True,
    metavar="N",
    help="Show at most N differences of each kind.",
)
@api_options
def diff(before: str, after: str, output: Sequence[str], limit: int, target: ApiTarget, as_json: bool) -> None:
    """Compare two crawls of a site. Shows which pages were added, removed or changed (by field), and which findings are
    new, fixed or still open."""
    files = {name: (_format_of(name), PartFile(name)) for name in output}
    for _, file in files.values():
        file.check()
        check_replace(file.name, partial(may_replace, file.name, COLUMNS), may_overwrite())
    settings = target.settings()
    found = run_on(target, lambda api: api.get(at(DIFF, after), against=before, limit=limit))
    for format_name, file in files.values():
        if target.is_remote(settings):
            content = run_on(
                target,
                lambda api, name=format_name: api.download(  # type: ignore[misc]
                    at(f"{DIFF}/rows", after), against=before, format=name
                ),
            )
            file.begin()
            file.write([content])
            file.complete()
        else:
            asyncio.run(_write(settings, before, after, format_name, file))
    if as_json:
        print_json(found)
    else:
        _print(found)
    if files:
        note(f"All differences written to {', '.join(files)}.")


def _format_of(name: str) -> RowFormatName:
    ending = Path(name).suffix.lower().removeprefix(".")
    for known in FORMATS:
        if ending == known:
            return known
    raise InvalidInput("--output", f"names {name!r}, whose format is not known", "end it in .csv, .jsonl or .parquet")


async def _write(settings: Settings, before: str, after: str, format_name: RowFormatName, file: PartFile) -> None:
    """Write rows to the files as soon as they are computed."""
    async with opened(settings, quiet(settings), existing=True) as app:
        compared = await app.audit.diffs.open(before, after)
        file.begin()
        try:
            async for piece in pieces(compared, format_name):
                file.write([piece])
            file.complete()
        finally:
            file.leave()


def _print(found: dict[str, Any]) -> None:
    pages, findings = found["pages"], found["findings"]
    fields = ", ".join(f"{name} {number:,}" for name, number in pages["fields"].items())
    rows = [
        ("Pages", f"{pages['before']:,} before, {pages['after']:,} after"),
        ("Added", f"{pages['added']:,}"),
        ("Removed", f"{pages['removed']:,}"),
        ("Changed", f"{pages['changed']:,}" + (f" ({fields})" if fields else "")),
        ("Unchanged", f"{pages['unchanged']:,}"),
    ]
    if findings is not None:
        new, fixed, still_open = findings["new"], findings["fixed"], findings["open"]
        rows.append(("Findings", f"{new:,} new, {fixed:,} fixed, {still_open:,} still open"))
    print_rows(rows, to_stdout=True)
    listed = [one for one in found["items"] if one["change"] in TITLES]
    if listed:
        print_table(["change", "what", "url", "before", "after"], [_row(one) for one in listed])
    if findings is None:
        note("Findings are not compared, because at least one of the crawls was not analyzed.")
    elif any(not code["complete"] for code in findings["codes"]):
        note("For codes with very many findings, only the stored findings are compared.")


def _row(one: dict[str, Any]) -> list[object]:
    values = ["" if one[name] is None else shorten(one[name], LONGEST_VALUE) for name in ("before", "after")]
    what = one["field"] or (f"{one['severity']} {one['code']}" if one["code"] else "page")
    return [TITLES[one["change"]].lower(), what, one["url"] or "the whole site", *values]


STANDARD = "-"
NEXT = {CrawlState.PAUSED: "resume", CrawlState.PENDING: "start", CrawlState.FAILED: "retry"}
"""By state of a loaded crawl: the command that continues it. Crawls in other states have ended."""


@click.command(cls=Command, epilog="Example: shoal crawls dump ID --output crawl.jsonl.gz")
@id_argument("crawl_id")
@click.option(
    "--output",
    default=STANDARD,
    show_default=True,
    metavar="FILE",
    help="Write the dump to this file, which only you can read. A name that ends in .gz selects gzip; - is stdout.",
)
@click.option(
    "--with-secrets",
    is_flag=True,
    help="Include header values, cookies and proxy passwords. Without these secrets, a crawl that uses them cannot"
    " continue.",
)
@store_option
@json_option
def dump(crawl_id: str, output: str, with_secrets: bool, store: str | None, as_json: bool) -> None:
    """Dump a crawl, to load it into a different store. The dump has the options, the frontier and the pages of the
    crawl as JSON lines, but no stored bodies, logs and analyses. The crawl must be paused or have ended."""
    from shoal.crawl.dump import DumpFile, DumpToStdout, is_dump

    settings = settings_of_store(store, "shoal crawls dump")
    file = DumpToStdout() if output == STANDARD else DumpFile(output)
    check_replace(output, partial(is_dump, output), may_overwrite())
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
            async for line in app.crawl_dump.dump(await app.crawls.whole_id(crawl_id), secrets=with_secrets):
                if not lines:
                    file.open()  # check first, so that no file is created if the crawl cannot be dumped
                file.write(line)
                lines += 1
            file.complete()
        finally:
            file.close()
    return lines


@click.command(cls=Command, epilog="Example: shoal crawls load crawl.jsonl.gz --store postgresql://shoal@db/shoal")
@click.argument("file", metavar="[FILE]", default=STANDARD)
@click.option("--id", "crawl_id", metavar="ID", help="Store the crawl under this id.  [default: its own]")
@click.option(
    "--allow-private-seeds",
    is_flag=True,
    help="Allow this machine to crawl seeds that have private addresses.",
)
@store_option
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
    from shoal.crawl.dump import dump_lines

    async with opened(settings, quiet(settings)) as app:
        dumps = app.crawl_dump
        loaded = await dumps.load(dump_lines(file), crawl_id=crawl_id, trust_named=allow_private_seeds)
        return await app.crawls.get(loaded)


PAGES_AT_ONCE = 500


async def write_pages(app: App, crawl: Crawl, outputs: Outputs, wanted: Callable[[Page], bool]) -> int:
    """Write the wanted pages and return their number. If the crawl is running, these are the pages stored so far."""
    await outputs.open(crawl.id, app.clock.micros(), Limits.of(app.settings.egress))
    written = 0
    try:
        async for pages in stored(app, crawl.number):
            chosen = [page for page in pages if wanted(page)]
            await outputs.write(chosen, app.bodies)
            written += len(chosen)
        await outputs.complete()
    finally:
        outputs.leave()
    return written


async def stored(app: App, crawl: int) -> AsyncIterator[list[Page]]:
    """Yield the pages that are stored at the time of the call. Pages that are fetched again meanwhile get a higher
    number and are not read twice."""
    last, upto = 0, await app.database.read(lambda tx: PageStore().last_number(tx, crawl))

    async def look(tx: Tx) -> list[tuple[int, Page]]:
        return await PageStore().after(tx, crawl, last, PAGES_AT_ONCE)

    while rows := [row for row in await app.database.read(look) if row[0] <= upto]:
        last = rows[-1][0]
        yield [page for _, page in rows]


CRAWL = "/api/v1/crawls/{}"


@click.command(cls=Command, epilog="Example: shoal crawls export ID --output broken.csv --status 4xx --status error")
@id_argument("crawl_id")
@click.option("-o", "--output", multiple=True, metavar="FILE", help=OUTPUT_HELP)
@click.option("--links", multiple=True, metavar="FILE", help=LINKS_HELP)
@click.option(
    "--status",
    multiple=True,
    metavar="S",
    help="Export only pages with this status: 404, 4xx, or error; 301 and 3xx also select pages that were reached "
    "through such a redirect. Links are selected by the status of their target. Repeatable.",
)
@table_flags
@api_options
def export(
    crawl_id: str,
    output: Sequence[str],
    links: Sequence[str],
    status: Sequence[str],
    fields: str | None,
    explode: str | None,
    target: ApiTarget,
    as_json: bool,
) -> None:
    """Write the pages or links of a crawl to files. If the crawl is running, only the pages and links stored so far are
    written. WARC and Markdown are written from stored bodies and need direct access to the store."""
    if not output and not links:
        raise UsageError("Nothing to write: give --output FILE, or --links FILE", 'see "shoal crawls export --help"')
    order = _Export(crawl_id, Outputs(output, links), ExportFilter(status), read_fields(fields), explode)
    settings = target.settings()
    if target.is_remote(settings):
        if order.outputs.from_bodies:
            problem = f"{order.outputs.from_bodies[0]!r} is written from stored bodies, which a server does not send"
            fix = "use .jsonl, .json, .csv, .parquet or -, or use the store directly with --store"
            raise InvalidInput("--output", problem, fix)
        pages, linked = run_on(target, lambda api: _from_server(api, order))
    else:
        pages, linked = asyncio.run(_from_store(settings, order))
    outputs = order.outputs
    result = {"crawl_id": crawl_id, "pages": pages, "outputs": outputs.locations}
    if outputs.links:
        result["links"] = linked
    if as_json:
        print_line(result, to_stdout=not outputs.to_stdout)
        return
    parts = [plural(pages, "page")] if outputs else []
    parts += [plural(linked, "link")] if outputs.links else []
    note(f"{' and '.join(parts)} of {crawl_id} written to {', '.join(outputs.locations)}.")


@dataclass(frozen=True, slots=True)
class _Export:
    """The crawl to export, the outputs, and the selected pages and fields."""

    crawl_id: str
    outputs: Outputs
    wanted: ExportFilter
    fields: list[str] | None
    explode: str | None

    def check(self, rules: dict[str, Any] | None, *, has_hooks: bool, has_links: bool, has_bodies: bool) -> None:
        """Raise an error if an output cannot be written. Call this before a file is created."""
        self.outputs.check_bodies(self.crawl_id, has_bodies)
        self.outputs.check_links(self.crawl_id, has_links)
        self.outputs.fit(PageTable(self.fields, self.explode, rules=rules, is_open=has_hooks))
        self.outputs.check(may_overwrite())


async def _from_store(settings: Settings, order: _Export) -> tuple[int, int]:
    async with opened(settings, quiet(settings), existing=True) as app:
        crawl = (await app.crawls.get(await app.crawls.whole_id(order.crawl_id))).crawl
        config = crawl.config
        order.check(
            config.rules,
            has_hooks=bool(config.hooks),
            has_links=config.links,
            has_bodies=config.keep_bodies,
        )
        pages = await write_pages(app, crawl, order.outputs, order.wanted) if order.outputs else 0
        if not order.outputs.links:
            return pages, 0
        links = CrawlLinks(app.database, crawl, settings.crawl.max_url_length)
        return pages, await order.outputs.write_links(links.records(LinkFilter(status=order.wanted)))


async def _from_server(api: ApiClient, order: _Export) -> tuple[int, int]:
    crawl_id, outputs, wanted = order.crawl_id, order.outputs, order.wanted
    config = (await api.get(at(CRAWL, crawl_id)))["config"]
    order.check(
        config.get("rules"),
        has_hooks=bool(config.get("hooks")),
        has_links=bool(config.get("links")),
        has_bodies=True,
    )
    written = 0
    if outputs:
        await outputs.open(crawl_id, SystemClock().micros(), Limits())
        try:
            async for pages in _pages(api, crawl_id, wanted):
                chosen = [page for page in pages if wanted(page)]
                await outputs.write(chosen)
                written += len(chosen)
            await outputs.complete()
        finally:
            outputs.leave()
    return written, await outputs.write_links(_links(api, crawl_id, wanted)) if outputs.links else 0


async def _links(api: ApiClient, crawl_id: str, wanted: ExportFilter) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield the links as the server lists them. If the crawl is running, these are the links stored so far."""
    more: str | None = None
    while True:
        found = await api.get(
            at(f"{CRAWL}/links", crawl_id), limit=PAGE, cursor=more, status=sorted(wanted.words) or None
        )
        if found["items"]:
            yield found["items"]
        if found["next"] is None or (not found["items"] and found["next"] == more):
            return
        more = found["next"]


async def _pages(api: ApiClient, crawl_id: str, wanted: ExportFilter) -> AsyncIterator[list[Page]]:
    """Yield the pages as the server lists them. A page that is fetched again meanwhile is listed twice, but yielded
    once."""
    path, query = at(f"{CRAWL}/pages", crawl_id), {}
    if len(wanted.words) == 1:  # the API accepts only one filter; several filters are applied by the caller
        [word] = wanted.words
        query = {"error": ANY_ERROR} if word == ERROR else {"status": word}
    known: set[bytes] = set()  # hashes, because a million URLs would take a hundred megabytes
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

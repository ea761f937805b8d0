"""`shoal rules`: test a rule set on a page fetched as in a crawl, or run it on the stored bodies of a crawl."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import orjson
import uvloop

from shoal.app import App, opened
from shoal.base.errors import InvalidInput, NotFound, NothingCrawled
from shoal.base.settings_loader import load
from shoal.base.temporary_folder import TemporaryFolder
from shoal.base.text import plural
from shoal.cli.api_client import settings_of_store, store_option
from shoal.cli.completion import id_argument
from shoal.cli.options import FLAGS, fetch_flags, flag_of, given_values, may_overwrite, read_rules_file, table_flags
from shoal.cli.output import json_option, print_json, print_rows
from shoal.cli.root import CommandGroup
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.egress import Failure, Limits
from shoal.extract.encoding import is_html
from shoal.extract.optional_facts import INVALID_DATA
from shoal.extract.rule_reader import RuleReader
from shoal.extract.rules import RuleSet, read_rules
from shoal.observe.logs import note
from shoal.pages.bodies import source_of
from shoal.pages.export.output import STDOUT, Outputs
from shoal.pages.export.table import PageTable, read_fields
from shoal.pages.page import NOT_MODIFIED, Page
from shoal.pages.store import PageStore
from shoal.process.crawl_request import CrawlRequest, read_config
from shoal.process.local_crawl import LocalCrawl

PAGES_AT_ONCE = 200


@dataclass(slots=True)
class ReplayTally:
    """Counts of the pages so far, by outcome."""

    read: int = 0
    left_out: int = 0  # not HTML with a 2xx status, or not matched by the rule set
    without_body: int = 0
    as_sent: int = 0  # pages among those read that were rendered, but whose rendered document was not stored


class RuleReplay:
    """Runs a rule set on the pages of one crawl."""

    def __init__(self, app: App, rules: RuleSet) -> None:
        self._app = app
        self._data = RuleReader(rules, app.clock.monotonic)
        self._limits = Limits.of(app.settings.egress)
        self.tally = ReplayTally()

    async def read(self, crawl: Crawl) -> AsyncIterator[Page]:
        """Yield each page that the rule set matches, in the order in which the pages were stored. Each page has the
        extracted data, and the error of the extraction if there was one."""
        last = 0
        while rows := await self._after(crawl, last):
            last = rows[-1][0]
            for _, page in rows:
                if await self._reread(page):
                    self.tally.read += 1
                    yield page

    async def _after(self, crawl: Crawl, last: int) -> list[tuple[int, Page]]:
        return await self._app.database.read(lambda tx: PageStore().after(tx, crawl.number, last, PAGES_AT_ONCE))

    async def _reread(self, page: Page) -> bool:
        """Replace the data of a page by newly extracted data. Return False if the page is left out."""
        url = page.final_url or page.url
        if not _has_content(page.status) or not self._data.reads(url):
            self.tally.left_out += 1
            return False
        source = await source_of(self._app.bodies, page, self._limits)
        if source is None or isinstance(source, Failure):
            self.tally.without_body += 1
            return False
        if not 200 <= source.status < 300 or not is_html(source.body, source.content_type):
            self.tally.left_out += 1
            return False
        source.url = url
        self.tally.as_sent += page.rendered and not source.is_rendered
        extracted = self._data.read(source)
        page.data, page.error_message = extracted.data, extracted.message
        page.error_code = None if extracted.message is None else INVALID_DATA
        return True


def _has_content(status: int | None) -> bool:
    """Return whether the page has content: sent in this response, or earlier and unchanged since (304)."""
    return status is not None and (200 <= status < 300 or status == NOT_MODIFIED)


INVALID = 1


@click.group(cls=CommandGroup)
def rules() -> None:
    """Test a rule set on a page, or extract data again from the stored bodies of a crawl."""


@rules.command()
@click.argument("file", metavar="FILE")
@click.argument("url", metavar="URL")
@fetch_flags
@FLAGS["hooks"].declared
@json_option
def test(file: str, url: str, as_json: bool, **options: Any) -> int:
    """Fetch URL and print what the rule set in FILE extracts. Exit code 1: a required field is missing."""
    alone = {"depth": 0, "scope": "page", "max_pages": 1, "sitemap": "off"}
    config = read_config({"seeds": [url], "rules": read_rules_file(file), **alone, **given_values(options)}, flag_of)
    page = uvloop.run(_fetched(config))
    _print_page(page, as_json)
    if page.data is None and page.error_code is None:
        kind = page.content_type or "no type"
        note(
            f"The rule set does not apply to this page: check its status ({page.status}), its type ({kind}) and `urls`."
        )
        return INVALID
    return 0 if page.error_code is None else INVALID


@rules.command()
@click.argument("file", metavar="FILE")
@id_argument("crawl_id", "CRAWL")
@click.option(
    "-o",
    "--output",
    multiple=True,
    default=[STDOUT],
    metavar="FILE",
    help="Write to FILE: .jsonl, .json, .csv, .parquet, or - (JSONL on stdout). Repeatable.  [default: -]",
)
@table_flags
@store_option
def apply(
    file: str, crawl_id: str, output: Sequence[str], fields: str | None, explode: str | None, store: str | None
) -> None:
    """Extract data again from the stored bodies of CRAWL. The rule set is in FILE. Writes the URL, the data and the
    error of each page, or the fields that --fields names."""
    rules = read_rules_file(file)
    outputs = Outputs(output)
    if outputs.from_bodies or outputs.links:
        raise InvalidInput("--output", "is not a file of data", "use .jsonl, .json, .csv, .parquet or -")
    outputs.fit(PageTable(read_fields(fields), explode, rules=rules, whole=("url", "data", "error")))
    outputs.check(may_overwrite())
    tally = uvloop.run(_apply(read_rules(rules), crawl_id, store, outputs))
    note(f"{plural(tally.read, 'page')} read, {tally.left_out} skipped, {tally.without_body} without a body.")
    if tally.as_sent:
        note(f"Extracted from the body as sent, because the crawl did not store the rendered document: {tally.as_sent}")


async def _apply(rule_set: RuleSet, crawl_id: str, store: str | None, outputs: Outputs) -> ReplayTally:
    async with opened(settings_of_store(store, "shoal rules apply"), existing=True) as app:
        crawl = (await app.crawls.get(await app.crawls.whole_id(crawl_id))).crawl
        rereader = RuleReplay(app, rule_set)
        await outputs.open(crawl.id, app.clock.micros(), Limits())
        try:
            async for page in rereader.read(crawl):
                await outputs.write([page])
            tally = rereader.tally
            if not tally.read and tally.without_body:
                raise NotFound("stored body of crawl", crawl_id, "run the crawl with --keep-bodies")
            await outputs.complete()
        finally:
            outputs.leave()
    return tally


async def _fetched(config: CrawlConfig) -> Page:
    """Return the single page of a crawl in a temporary store."""
    with TemporaryFolder("rules-") as folder:
        settings = load({"DATABASE_URL": f"sqlite:///{folder / 'rules.db'}"}).settings
        async with opened(settings) as app, LocalCrawl(app, await CrawlRequest(config).find(app)) as local_crawl:
            pages = await local_crawl.next()
            if not pages:
                raise NothingCrawled(None, (await local_crawl.status()).error_message)
            while await local_crawl.next():
                pass
    [page] = pages
    if page.status is None:
        raise NothingCrawled(None, f"{page.url}: {(page.error_message or '').rstrip('.')}")
    return page


def _print_page(page: Page, as_json: bool) -> None:
    if as_json:
        print_json({"url": page.url, "status": page.status, "error": page.error, "data": page.data})
    elif page.data:
        print_rows([(name, _shown(value)) for name, value in page.data.items()], to_stdout=True)
    if page.error_message is not None:
        note(page.error_message)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else orjson.dumps(value).decode()

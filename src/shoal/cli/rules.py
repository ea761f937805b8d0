"""`shoal rules`: test a rule set on a page fetched as in a crawl, or run it on the stored bodies of a crawl."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import click
import orjson
import uvloop

from shoal.app import App, opened
from shoal.base.errors import InvalidInput, NotFound, NothingCrawled
from shoal.base.settings_loader import load
from shoal.base.text import plural, shorten
from shoal.cli.api_client import settings_of_store
from shoal.cli.options import FLAGS, flag_of, given_values, read_rules_file
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
from shoal.pages.export.part_file import PartFile, Stdout
from shoal.pages.page import NOT_MODIFIED, Page
from shoal.pages.store import PageStore
from shoal.process.crawl_request import CrawlRequest, read_config
from shoal.process.local_crawl import LocalCrawl

PAGES_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class ReplayedPage:
    """The data a rule set extracted from one page; `message` is the error, if any."""

    url: str
    data: dict[str, Any]
    message: str | None


@dataclass(slots=True)
class ReplayTally:
    """Counts of the pages so far, by outcome."""

    read: int = 0
    left_out: int = 0  # not HTML with a 2xx status, or not matched by the rule set
    without_body: int = 0
    as_sent: int = 0  # of those read: rendered pages whose rendered document was not stored


class RuleReplay:
    """Runs a rule set on the pages of one crawl."""

    def __init__(self, app: App, rules: RuleSet) -> None:
        self._app = app
        self._data = RuleReader(rules, app.clock.monotonic)
        self._limits = Limits.of(app.settings.egress)
        self.tally = ReplayTally()

    async def read(self, crawl: Crawl) -> AsyncIterator[ReplayedPage]:
        """Yield the data of each page the rule set matches, in the order in which the pages were stored."""
        last = 0
        while rows := await self._after(crawl, last):
            last = rows[-1][0]
            for _, page in rows:
                found = await self._reread(page)
                if found is not None:
                    self.tally.read += 1
                    yield found

    async def _after(self, crawl: Crawl, last: int) -> list[tuple[int, Page]]:
        return await self._app.database.read(lambda tx: PageStore().after(tx, crawl.number, last, PAGES_AT_ONCE))

    async def _reread(self, page: Page) -> ReplayedPage | None:
        url = page.final_url or page.url
        if not _has_content(page.status) or not self._data.reads(url):
            self.tally.left_out += 1
            return None
        source = await source_of(self._app.bodies, page, self._limits)
        if source is None or isinstance(source, Failure):
            self.tally.without_body += 1
            return None
        if not 200 <= source.status < 300 or not is_html(source.body, source.content_type):
            self.tally.left_out += 1
            return None
        source.url = url
        self.tally.as_sent += page.rendered and not source.is_rendered
        extracted = self._data.read(source)
        return ReplayedPage(page.url, extracted.data, extracted.message)


def _has_content(status: int | None) -> bool:
    """Return whether there is content: sent now, or sent earlier and unchanged since (304)."""
    return status is not None and (200 <= status < 300 or status == NOT_MODIFIED)


Command = TypeVar("Command", bound=Callable[..., Any])

INVALID = 1
HOW_TO_FETCH = ("render", "wait_for", "scroll", "click", "robots", "user_agent", "headers", "proxy", "hooks")


def fetch_flags(command: Command) -> Command:
    for field in reversed(HOW_TO_FETCH):
        command = FLAGS[field].declared(command)
    return command


@click.group(cls=CommandGroup)
def rules() -> None:
    """Test a rule set on a page, or extract data again from the stored bodies of a crawl."""


@rules.command()
@click.argument("file", metavar="FILE")
@click.argument("url", metavar="URL")
@fetch_flags
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
@click.argument("crawl_id", metavar="CRAWL")
@click.option("--output", metavar="FILE", help="Write to this .jsonl file instead of stdout.")
@click.option("--store", metavar="URL", help="Use this store; overrides DATABASE_URL.")
def apply(file: str, crawl_id: str, output: str | None, store: str | None) -> None:
    """Extract data again from the stored bodies of CRAWL. Uses the rule set in FILE and prints JSON lines."""
    rule_set = read_rules(read_rules_file(file))
    if output is not None and not output.endswith(".jsonl"):
        raise InvalidInput(f"--output {shorten(output)}", "is not a JSON lines file", "use the extension .jsonl")
    tally = uvloop.run(_apply(rule_set, crawl_id, store, Stdout() if output is None else PartFile(output)))
    note(f"{plural(tally.read, 'page')} read, {tally.left_out} skipped, {tally.without_body} without a body.")
    if tally.as_sent:
        note(f"Rendered, but read as sent, because the crawl did not store the rendered document: {tally.as_sent}")


async def _apply(rule_set: RuleSet, crawl_id: str, store: str | None, file: PartFile | Stdout) -> ReplayTally:
    async with opened(settings_of_store(store, "shoal rules apply"), existing=True) as app:
        crawl = (await app.crawls.get(crawl_id)).crawl
        rereader = RuleReplay(app, rule_set)
        file.begin()
        try:
            async for found in rereader.read(crawl):
                error = None if found.message is None else {"code": INVALID_DATA, "message": found.message}
                file.write([orjson.dumps({"url": found.url, "data": found.data, "error": error}) + b"\n"])
            tally = rereader.tally
            if not tally.read and tally.without_body:
                raise NotFound("stored body of crawl", crawl_id, "run the crawl with --keep-bodies")
            file.complete()
        finally:
            file.leave()
    return tally


async def _fetched(config: CrawlConfig) -> Page:
    """Return the single page of a crawl in a temporary store."""
    with TemporaryDirectory(prefix="shoal-rules-") as folder:
        settings = load({"DATABASE_URL": f"sqlite:///{Path(folder) / 'rules.db'}"}).settings
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

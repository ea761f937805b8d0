"""`shoal rules`: a rule set tried on one page, fetched as a crawl would fetch it."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import click
import orjson
import uvloop

from shoal.app import opened
from shoal.base.errors import NothingCrawled
from shoal.cli.frame import Group
from shoal.cli.options import FLAGS, flag_of, given_values, read_rules_file
from shoal.cli.output import note, print_json
from shoal.cli.summary import print_rows
from shoal.crawl.crawl import CrawlConfig
from shoal.here.crawl import CrawlHere
from shoal.here.wish import Wish, read_config
from shoal.pages.page import Page
from shoal.settings import load

Command = TypeVar("Command", bound=Callable[..., Any])

INVALID = 1
HOW_TO_FETCH = ("robots", "user_agent", "headers", "proxy", "hooks")


def fetch_flags(command: Command) -> Command:
    for field in reversed(HOW_TO_FETCH):
        command = FLAGS[field].declared(command)
    return command


@click.group(cls=Group)
def rules() -> None:
    """Try a rule set: which data it takes from a page."""


@rules.command()
@click.argument("file", metavar="FILE")
@click.argument("url", metavar="URL")
@fetch_flags
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def test(file: str, url: str, as_json: bool, **options: Any) -> int:
    """Fetch URL and print what the rule set in FILE takes from it. Exit code 1: a required field is missing."""
    wanted = {"seeds": [url], "rules": read_rules_file(file), "depth": 0, "scope": "page", "max_pages": 1}
    config = read_config({**wanted, **given_values(options)}, flag_of)
    page = uvloop.run(_fetched(config))
    _tell(page, as_json)
    if page.data is None and page.error_code is None:
        kind = page.content_type or "no type"
        note(f"The rule set is not for this page: it has status {page.status} and {kind}, or `urls` leaves it out.")
        return INVALID
    return 0 if page.error_code is None else INVALID


async def _fetched(config: CrawlConfig) -> Page:
    """The one page of a crawl in a store that nobody keeps."""
    with TemporaryDirectory(prefix="shoal-rules-") as folder:
        settings = load({"DATABASE_URL": f"sqlite:///{Path(folder) / 'rules.db'}"}).settings
        async with opened(settings) as app, CrawlHere(app, await Wish(config).find(app)) as here:
            pages = await here.next()
            if not pages:
                raise NothingCrawled(here.crawl.id, "robots.txt or the options leave no page")
            while await here.next():
                pass
    [page] = pages
    if page.status is None:
        raise NothingCrawled(here.crawl.id, f"{page.url}: {(page.error_message or '').rstrip('.')}")
    return page


def _tell(page: Page, as_json: bool) -> None:
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

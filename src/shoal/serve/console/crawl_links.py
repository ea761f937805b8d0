"""The links of a crawl: those of a page, those to a URL, or all, as a table and as a file."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

from msgspec import field
from starlette.responses import Response, StreamingResponse

from shoal.access.token import TokenScope
from shoal.base.database import Database
from shoal.base.errors import InvalidInput
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.links import CrawlLinks, FoundLinks, LinkFilter, LinkPlace
from shoal.pages.export.formats import Csv, Format, JsonLines
from shoal.pages.export.table import LINK_COLUMNS
from shoal.pages.page import response_class
from shoal.serve.console.crawl import CrawlPage
from shoal.serve.console.forms import AnyQuery
from shoal.serve.console.shell import Shell, sentence
from shoal.serve.crawl_parts import LINK_SECONDS, link_filter, place_in
from shoal.serve.endpoint import EndpointRequest, Nothing, always, endpoint
from shoal.serve.requests import cursor_of

ROWS: Final = 100
FILTERS: Final = ("from", "to", "kind", "status")
FORMATS: Final[Mapping[str, tuple[type[Csv] | type[JsonLines], str]]] = {
    "csv": (Csv, "text/csv; charset=utf-8"),
    "jsonl": (JsonLines, "application/jsonl"),
}


class LinksQuery(AnyQuery, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The filters of the table, as text, so that the page can say what is wrong with them, and where it begins."""

    source: str = field(default="", name="from")
    target: str = field(default="", name="to")
    kind: str = ""
    status: str = ""
    after: str = ""

    @property
    def given(self) -> dict[str, str]:
        """The filters that are filled in."""
        values = self.plain()
        return {name: value for name in FILTERS if (value := values[name].strip())}


class CrawlLinksPage:
    """`/crawls/{crawl_id}/links` and its export."""

    def __init__(self, shell: Shell, crawls: Crawls, database: Database, max_url_length: int, frame: CrawlPage) -> None:
        self._shell = shell
        self._crawls = crawls
        self._database = database
        self._max_url_length = max_url_length
        self._frame = frame

    @endpoint(
        "GET",
        "/crawls/{crawl_id}/links",
        scope=TokenScope.READ,
        summary="Show the links of a crawl.",
        query=LinksQuery,
        public=False,
        expensive=always,
    )
    async def show_links(self, request: EndpointRequest[Nothing, LinksQuery]) -> Response:
        given, after = request.query.given, request.query.after
        status = await self._crawls.get(request.path_param("crawl_id"))
        links = CrawlLinks(self._database, status.crawl, self._max_url_length)
        is_known = status.crawl.config.links or ("to" in given and "from" not in given)
        problem, found = "", FoundLinks([], LinkPlace(), is_complete=True)
        try:
            wanted = _filter(links, given)
            if is_known:
                found = await links.search(wanted, place_in(after or None), ROWS, LINK_SECONDS)
        except InvalidInput as error:
            problem = sentence(error.message)
        context = self._frame.head(self._shell.view(request.http), status, "links") | {
            "given": given,
            "problem": problem,
            "is_known": is_known,
            "is_stored": status.crawl.config.links,
            "links": [(link, response_class(link.status)) for link in found.links],
            "more": None if found.is_complete else cursor_of(f"{found.place.number}.{found.place.links}"),
            "is_first": not after,
        }
        return self._shell.page(request.http, "crawl_links.html", context, section="crawls")

    @endpoint(
        "GET",
        "/crawls/{crawl_id}/links/{format}",
        scope=TokenScope.READ,
        summary="Download the links that the filters select.",
        query=LinksQuery,
        public=False,
        expensive=always,
    )
    async def export_links(self, request: EndpointRequest[Nothing, LinksQuery]) -> Response:
        name = request.path_param("format")
        if name not in FORMATS:
            return self._shell.missing(request.http, 404)
        crawl = (await self._crawls.get(request.path_param("crawl_id"))).crawl
        links = CrawlLinks(self._database, crawl, self._max_url_length)
        wanted = _filter(links, request.query.given)
        if wanted.target is None or wanted.source is not None:
            links.check_stored()
        made, media_type = FORMATS[name]
        headers = {"Content-Disposition": f'attachment; filename="{crawl.id}.links.{name}"'}
        content = _export(links, wanted, made(LINK_COLUMNS))
        return StreamingResponse(content, headers=headers | {"Cache-Control": "no-store"}, media_type=media_type)


async def _export(links: CrawlLinks, wanted: LinkFilter, made: Format) -> AsyncIterator[bytes]:
    yield made.head()
    async for rows in links.records(wanted):
        for part in await asyncio.to_thread(lambda: list(made.rows(rows))):  # noqa: B023 - awaited at once
            yield part
    for part in made.tail():
        yield part


def _filter(links: CrawlLinks, given: Mapping[str, str]) -> LinkFilter:
    statuses = [given["status"]] if "status" in given else []
    return link_filter(links, given.get("from"), given.get("to"), given.get("kind"), statuses)

"""The links of a crawl, as a table and as a file: the links of one page, the links to one URL, or all."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import field
from starlette.responses import Response

from shoal.base.database import Database
from shoal.base.errors import InvalidInput
from shoal.base.text import message
from shoal.base.url import Url, origin
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.admin_store import FrontierAdminStore
from shoal.crawl.frontier.explain import skipped_by
from shoal.crawl.frontier.fates import SKIPPED, SKIPS, Fate
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.links import CrawlLinks, FoundLinks, Link, LinkFilter, LinkPlace
from shoal.crawl.store import ByDriver
from shoal.hosts.robots import Rules
from shoal.pages.export.table import LINK_COLUMNS
from shoal.pages.page import response_class
from shoal.serve.console.crawl import CrawlPage
from shoal.serve.console.exports import exported, format_of
from shoal.serve.console.format import Formats
from shoal.serve.console.forms import FilterQuery, page_endpoint
from shoal.serve.console.shell import Shell, sentence
from shoal.serve.crawl_parts import LINK_SECONDS, link_filter, place_in
from shoal.serve.endpoint import EndpointRequest, Nothing, always
from shoal.serve.requests import cursor_of

ROWS: Final = 100
BY_ROBOTS: Final = message("Line {line} of the robots.txt forbids it: {rule}")


class LinksQuery(FilterQuery, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The filters of the table. `after` is a cursor."""

    source: str = field(default="", name="from")
    target: str = field(default="", name="to")
    kind: str = ""
    status: str = ""
    skipped: str = ""

    filters = ("from", "to", "kind", "status", "skipped")


class CrawlLinksPage:
    """`/crawls/{crawl_id}/links` and its export."""

    def __init__(
        self,
        shell: Shell,
        crawls: Crawls,
        database: Database,
        frontiers: ByDriver[FrontierAdminStore],
        max_url_length: int,
        frame: CrawlPage,
    ) -> None:
        self._shell = shell
        self._frontiers = frontiers
        self._crawls = crawls
        self._database = database
        self._max_url_length = max_url_length
        self._frame = frame

    @page_endpoint("/crawls/{crawl_id}/links", "Show the links of a crawl.", query=LinksQuery, expensive=always)
    async def show_links(self, request: EndpointRequest[Nothing, LinksQuery]) -> Response:
        given, after = request.query.given, request.query.after
        status = await self._crawls.get(request.path_param("crawl_id"))
        links, view = self._links(status.crawl), self._shell.view(request.http)
        is_known = status.crawl.config.links or ("to" in given and not {"from", "skipped"} & given.keys())
        problem, found = "", FoundLinks([], LinkPlace(), is_complete=True)
        try:
            if is_known:
                wanted = _filter(links, given)
                find = links.search if wanted.skipped is None else partial(_targets_once, links)
                found = await find(wanted, place_in(after or None), ROWS, LINK_SECONDS)
        except InvalidInput as error:
            problem = sentence(error.message)
        formats, why = self._shell.formats(view), SKIPPED.get(given.get("skipped", ""))
        context = self._frame.head(view, status, "links") | {
            "given": given,
            "problem": problem,
            "is_known": is_known,
            "is_stored": status.crawl.config.links,
            "links": [(link, response_class(link.status)) for link in found.links],
            "skips": [(name, view.language(SKIPS[name])) for name in SKIPPED],
            "rules": {} if why is None else await self._rules(status.crawl, found.links, why, formats),
            "more": None if found.is_complete else cursor_of(f"{found.place.number}.{found.place.links}"),
            "is_first": not after,
        }
        return self._shell.page(request.http, "crawl_links.html", context, section="crawls")

    @page_endpoint(
        "/crawls/{crawl_id}/links/{format}",
        "Download the links that the filters select.",
        query=LinksQuery,
        expensive=always,
    )
    async def export_links(self, request: EndpointRequest[Nothing, LinksQuery]) -> Response:
        name = request.path_param("format")
        made = format_of(name, LINK_COLUMNS)
        crawl = (await self._crawls.get(request.path_param("crawl_id"))).crawl
        links = self._links(crawl)
        wanted = _filter(links, request.query.given)
        if wanted.target is None or wanted.source is not None:
            links.check_stored()
        return exported(made, f"{crawl.id}.links.{name}", links.records(wanted))

    async def _rules(self, crawl: Crawl, links: Sequence[Link], why: Fate, formats: Formats) -> dict[Url, str]:
        """Return the rule by which each target was skipped. A robots.txt line is named if it still forbids the
        target."""
        robots = dict[str, Rules]()
        if why is Fate.SKIPPED_ROBOTS and links:
            robots = await self._frame.figures.politeness.robots_rules(crawl)

        def rule_of(url: Url) -> str:
            decision = robots[origin(url)].decide(url) if why is Fate.SKIPPED_ROBOTS and origin(url) in robots else None
            if decision is None or decision.allowed or decision.rule is None:
                return formats.sentence(skipped_by(crawl.config, url, why))
            return formats.language(BY_ROBOTS, line=decision.rule.line, rule=formats.text(decision.rule))

        return {link.target: rule_of(link.target) for link in links}

    def _links(self, crawl: Crawl) -> CrawlLinks:
        return CrawlLinks(self._database, crawl, self._max_url_length, frontier=self._frontiers.of(crawl))


async def _targets_once(
    links: CrawlLinks, wanted: LinkFilter, after: LinkPlace, limit: int, seconds: float
) -> FoundLinks:
    """Search for links to different targets, and return the first link to each target. A target of an earlier page may
    be repeated."""
    loop = asyncio.get_running_loop()
    until, place, found, is_complete = loop.time() + seconds, after, dict[Url, Link](), False
    while not is_complete and len(found) < limit and loop.time() < until:
        some = await links.search(wanted, place, limit, until - loop.time())
        for link in some.links:
            found.setdefault(link.target, link)
        place, is_complete = some.place, some.is_complete
    return FoundLinks([*found.values()], place, is_complete)


def _filter(links: CrawlLinks, given: Mapping[str, str]) -> LinkFilter:
    statuses = [given["status"]] if "status" in given else []
    return link_filter(links, given.get("from"), given.get("to"), given.get("kind"), statuses, given.get("skipped"))

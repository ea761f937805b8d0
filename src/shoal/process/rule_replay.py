"""Run a rule set on the stored bodies of a crawl, without requests to any server."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from shoal.app import App
from shoal.crawl.crawl import Crawl
from shoal.egress import Failure, Limits
from shoal.extract.encoding import is_html
from shoal.extract.rule_reader import RuleReader
from shoal.extract.rules import RuleSet
from shoal.extract.tree import Source
from shoal.pages.bodies import answer_of
from shoal.pages.page import NOT_MODIFIED, Page
from shoal.pages.store import PageStore

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
        response = await answer_of(self._app.bodies, page)
        body = None if response is None else response.body(self._limits)
        if response is None or body is None or isinstance(body, Failure):
            self.tally.without_body += 1
            return None
        if not 200 <= response.status < 300 or not is_html(body, page.content_type):
            self.tally.left_out += 1
            return None
        extracted = self._data.read(Source(url, body, page.content_type, status=response.status))
        return ReplayedPage(page.url, extracted.data, extracted.message)


def _has_content(status: int | None) -> bool:
    """Return whether there is content: sent now, or sent earlier and unchanged since (304)."""
    return status is not None and (200 <= status < 300 or status == NOT_MODIFIED)

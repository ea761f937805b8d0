"""The objects of `shoal.audit`."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from shoal.app.drivers import artifacts_of
from shoal.audit.analyses import Analyses
from shoal.audit.artifacts import ArtifactStore
from shoal.audit.crawl_facts import CrawlFacts
from shoal.audit.gates import Gates
from shoal.audit.store import AuditStores
from shoal.base.database import Tx
from shoal.base.url import Canonicalizer, Url, UrlRefusal
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.traps import TrapState
from shoal.crawl.frontier.values import key_of
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.crawl.store import CrawlStore, FrontierStore

if TYPE_CHECKING:
    from shoal.app.app import App
    from shoal.audit.diff.diff import CrawlDiffs


class Audit:
    """The analyses of crawls, and the gates that judge them."""

    def __init__(self, app: "App") -> None:
        self._app = app

    @cached_property
    def analyses(self) -> Analyses:
        app = self._app
        stores = AuditStores(app.stores.analyses, app.stores.gates)
        return Analyses(app.database, stores, self.crawls, app.queue, app.stores.outbox, app.signals)

    @cached_property
    def gates(self) -> Gates:
        return Gates(self._app.database, self._app.stores.gates)

    @cached_property
    def artifacts(self) -> ArtifactStore:
        app = self._app
        return artifacts_of(app.settings, app.clock, app.signals)

    def close(self) -> None:
        """Close what was opened: connections to an object store."""
        if "artifacts" in vars(self):
            self.artifacts.close()

    @cached_property
    def diffs(self) -> "CrawlDiffs":
        from shoal.audit.diff.diff import CrawlDiffs

        app = self._app
        return CrawlDiffs(app.database, app.stores.sites, app.stores.analyses, self.crawls)

    @cached_property
    def crawls(self) -> "AnalyzedCrawls":
        stores = self._app.stores
        return AnalyzedCrawls(stores.crawls, stores.frontier, self._app.settings.crawl.max_url_length)


class AnalyzedCrawls:
    """Implements `audit.crawl_facts.CrawlSource`."""

    def __init__(self, store: CrawlStore, frontier: FrontierStore, longest_url: int) -> None:
        self._store = store
        self._frontier = frontier
        self._longest_url = longest_url

    async def quarantined(self, tx: Tx, crawl: int) -> int:
        return sum(trap.count for trap in await self._frontier.traps(tx, crawl) if trap.state is TrapState.QUARANTINED)

    async def urls(self, tx: Tx, crawl_id: str) -> "UrlsOfCrawl":
        crawl = await self._store.get(tx, crawl_id)
        assert crawl is not None, "an analysis is deleted with its crawl"
        return UrlsOfCrawl(crawl, self._longest_url)

    async def facts(self, tx: Tx, crawl_id: str) -> CrawlFacts | None:
        crawl = await self._store.get(tx, crawl_id)
        if crawl is None:
            return None
        config = crawl.config
        counts = await self._store.counts(tx, crawl.number)
        return CrawlFacts(
            number=crawl.number,
            id=crawl.id,
            project=crawl.project,
            priority=crawl.priority,
            site=config.seeds[0],
            state=crawl.state.value,
            has_ended=crawl.state in TERMINAL or crawl.state is CrawlState.PAUSED,
            pages=counts.pages + counts.errors,
            has_details=config.analyze,
            options={"gate": config.gate, "baseline": config.baseline},
        )


class UrlsOfCrawl:
    """Implements `audit.crawl_facts.CrawlUrls`."""

    def __init__(self, crawl: Crawl, longest_url: int) -> None:
        self._key_seed = crawl.key_seed
        self._urls = Canonicalizer(crawl.config.url_rules(longest_url))

    def resolve(self, base: str, written: Sequence[str]) -> list[str | None]:
        page = self._urls.canonical(base)
        if isinstance(page, UrlRefusal):
            return [None] * len(written)
        return [None if isinstance(url, UrlRefusal) else url for url in self._urls.resolve(page, written)]

    def key(self, url: str) -> int:
        return key_of(Url(url), self._key_seed)[0]

"""The objects of `shoal.audit`."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from shoal.app.drivers import artifacts_of
from shoal.audit.analyses import Analyses
from shoal.audit.artifacts import Artifacts, ArtifactStore
from shoal.audit.crawl_facts import CrawlFacts
from shoal.audit.gates import Gates
from shoal.audit.store import AuditStores
from shoal.base.database import Tx
from shoal.base.url import Canonicalizer, Url, UrlRefusal, canonical
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.traps import TrapState
from shoal.crawl.frontier.values import key_of
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.crawl.store import CrawlStore, FrontierStore

if TYPE_CHECKING:
    from shoal.app.app import App
    from shoal.audit.commit_status.publisher import CommitStatusPublisher
    from shoal.audit.diff.diff import CrawlDiffs


class Audit:
    """The analyses of crawls, and the gates that judge them."""

    def __init__(self, app: "App") -> None:
        self._app = app

    @cached_property
    def analyses(self) -> Analyses:
        app = self._app
        stores = AuditStores(app.stores.analyses, app.stores.gates, app.stores.commit_statuses)
        return Analyses(app.database, stores, self.crawls, app.queue, app.stores.outbox, app.signals)

    @cached_property
    def gates(self) -> Gates:
        return Gates(self._app.database, self._app.stores.gates)

    @cached_property
    def files(self) -> Artifacts:
        return Artifacts(self.analyses, self.artifacts)

    @cached_property
    def artifacts(self) -> ArtifactStore:
        app = self._app
        return artifacts_of(app.settings, app.clock, app.signals)

    def close(self) -> None:
        """Close what was opened: connections to an object store."""
        if "artifacts" in vars(self):
            self.artifacts.close()

    @cached_property
    def status_publisher(self) -> "CommitStatusPublisher":
        """The chore that publishes commit statuses. The settings name the forges, so their addresses may be private."""
        from shoal.app.address_rule import address_rule_of
        from shoal.audit.commit_status.forges import Forge
        from shoal.audit.commit_status.publisher import CommitStatusPublisher
        from shoal.egress import Egress, endpoint

        app, settings = self._app, self._app.settings.forges
        gitea = Forge("gitea", settings.gitea_api, settings.gitea_token, "SHOAL_GITEA")
        forges = {
            "github": Forge("github", settings.github_api, settings.github_token, "SHOAL_GITHUB"),
            "gitlab": Forge("gitlab", settings.gitlab_api, settings.gitlab_token, "SHOAL_GITLAB"),
            "gitea": gitea,
            "forgejo": gitea,
        }
        named = frozenset(endpoint(url) for forge in forges.values() if (url := _url_of(forge.api)) is not None)
        return CommitStatusPublisher(
            app.database,
            app.stores.commit_statuses,
            forges,
            lambda: Egress(address_rule_of(app.settings, named), clock=app.clock),
            app.clock,
            app.signals,
            app.settings.serve.public_url,
        )

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
            options={"gate": config.gate, "baseline": config.baseline, "commit": config.commit},
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


def _url_of(api: str) -> Url | None:
    url = canonical(f"{api}/") if api else None
    return None if isinstance(url, UrlRefusal) else url

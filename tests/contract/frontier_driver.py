"""A frontier under test. A driver provides the store under test and the few ways to look inside it that tests need;
everything around it (crawls, queue, hosts, pages, the clock) is the bench's."""

from dataclasses import dataclass
from typing import Protocol

from shoal.base.url import Url
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import UrlKind, key_of
from shoal.crawl.store import FrontierStore
from tests.contract.conftest import Bench, suspected


@dataclass(frozen=True)
class Capabilities:
    """The capabilities in which drivers may differ. Tests expect what a driver declares; they do not skip."""

    joins_transactions: bool  # its writes commit together with pages, counters and jobs, or not at all


class FrontierDriver(Protocol):
    bench: Bench
    capabilities: Capabilities

    @property
    def frontier(self) -> FrontierStore: ...

    async def open_urls(self, crawl: Crawl) -> int:
        """Count the URLs that wait, are due later or are taken."""
        ...

    async def taken_urls(self) -> int:
        """Count the URLs of all crawls that walkers have."""
        ...

    async def fates(self, crawl: Crawl) -> dict[tuple[int, int], Fate]:
        """Return what became of every URL that the crawl knows, by key and check."""
        ...

    async def empty(self) -> None:
        """Forget every URL of every crawl."""
        ...

    async def suspect(self, *paths: str) -> None:
        """Make those of the waiting URLs that have these paths (none given: all) suspects: in flight in two crashes."""
        ...


class SqlFrontierDriver:
    """The frontier on SQLite or PostgreSQL, whichever the bench is on."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.capabilities = Capabilities(joins_transactions=True)

    @property
    def frontier(self) -> FrontierStore:
        return self.bench.frontier

    async def open_urls(self, crawl: Crawl) -> int:
        return await self.bench.number(f"SELECT count(*) FROM frontier_open WHERE crawl = {crawl.number}")

    async def taken_urls(self) -> int:
        return await self.bench.number("SELECT count(*) FROM frontier_open WHERE job_id <> ''")

    async def fates(self, crawl: Crawl) -> dict[tuple[int, int], Fate]:
        return await self.bench.fates(crawl)

    async def empty(self) -> None:
        for table in ("frontier", "fate", "frontier_host"):
            await self.bench.sql(f"DELETE FROM {table}")

    async def suspect(self, *paths: str) -> None:
        names = ", ".join(f"'{path}'" for path in paths)
        await suspected(self.bench, f"path IN ({names})" if paths else "TRUE")


async def fate_of(driver: FrontierDriver, crawl: Crawl, url: str, kind: UrlKind = UrlKind.PAGE) -> Fate:
    return (await driver.fates(crawl))[key_of(Url(url), crawl.key_seed, kind)]


async def check_counters(driver: FrontierDriver, crawl: Crawl) -> None:
    """Recount what a crawl's counters say."""
    counts, fates = await driver.bench.counts(crawl), list((await driver.fates(crawl)).values())
    assert counts.queued == await driver.open_urls(crawl) == fates.count(Fate.OPEN)
    assert sum(counts.skipped.values()) == sum(fate >= Fate.SKIPPED_DEPTH for fate in fates)
    rows = await driver.bench.database.read(lambda tx: driver.bench.pages.after(tx, crawl.number, 0, 100_000))
    pages = [page for _, page in rows]
    assert counts.pages == sum(page.status is not None for page in pages)
    assert counts.errors == sum(page.error_code is not None for page in pages)
    assert counts.bytes == sum(page.bytes or 0 for page in pages)

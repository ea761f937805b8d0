"""The frontier of each crawl on the driver that it was started with."""

from collections.abc import Iterable

from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl, FrontierDriver
from shoal.crawl.frontier.admin_store import CrawlHost, KeptUrl, Key, KnownKey, Place, UrlFacts
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.rebuild import ClaimedTarget, KnownPage
from shoal.crawl.frontier.sql_admin import SqlFrontierAdmin
from shoal.crawl.frontier.sql_frontier import SqlFrontier
from shoal.crawl.frontier.traps import Trap
from shoal.crawl.frontier.values import (
    Added,
    FrontierChange,
    NewUrl,
    RedirectTarget,
    Settled,
    Settlement,
    Taken,
    UrlKind,
    WalkerBatch,
)
from shoal.crawl.store import AdmissionChecks, HostRate
from shoal.drivers.redis.frontier import RedisFrontier
from shoal.drivers.redis.frontier_admin import RedisFrontierAdmin
from shoal.hosts.rate import HeldHost
from shoal.queue.job import Fence

Driver = SqlFrontier | RedisFrontier


async def driver_of(tx: Tx, crawl: int) -> FrontierDriver:
    driver: FrontierDriver = await tx.value("frontier_driver", crawl=crawl) or "sql"
    return driver


class FrontierByCrawl:
    """Implements `crawl.store.FrontierStore` and `crawl.frontier.rebuild.LosableFrontier` on two drivers."""

    drivers: frozenset[FrontierDriver] = frozenset({"sql", "redis"})

    def __init__(self, sql: SqlFrontier, redis: RedisFrontier) -> None:
        self._sql = sql
        self._redis = redis

    async def begin(self, tx: Tx, crawl: Crawl) -> None:
        if crawl.frontier == "redis":
            await self._redis.begin(tx, crawl.number)

    async def add(self, tx: Tx, crawl: int, urls: list[NewUrl]) -> Added:
        return await (await self._of(tx, crawl)).add(tx, crawl, urls)

    async def take(
        self,
        tx: Tx,
        crawl: int,
        fence: Fence,
        want: int,
        in_flight: int,
        rate: HostRate,
        admission: AdmissionChecks | None = None,
    ) -> Taken:
        return await (await self._of(tx, crawl)).take(tx, crawl, fence, want, in_flight, rate, admission)

    async def settle(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch, *, leaves: bool = False) -> Settlement:
        return await (await self._of(tx, crawl)).settle(tx, crawl, fence, batch, leaves=leaves)

    async def prepare(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch) -> list[Settled]:
        return await (await self._of(tx, crawl)).prepare(tx, crawl, fence, batch)

    async def quarantine(self, tx: Tx, crawl: int, traps: dict[str, Url]) -> None:
        await self._sql.quarantine(tx, crawl, traps)

    async def traps(self, tx: Tx, crawl: int) -> list[Trap]:
        return await self._sql.traps(tx, crawl)

    async def released(self, tx: Tx, crawl: int, patterns: Iterable[str]) -> set[str]:
        return await self._sql.released(tx, crawl, patterns)

    async def free(self, tx: Tx, crawl: int, pattern: str) -> FrontierChange | None:
        return await (await self._of(tx, crawl)).free(tx, crawl, pattern)

    async def reopen(self, tx: Tx, crawl: int, urls: list[NewUrl], answered: list[Url]) -> FrontierChange:
        return await (await self._of(tx, crawl)).reopen(tx, crawl, urls, answered)

    async def release(self, tx: Tx, crawl: int, fence: Fence) -> int:
        return await (await self._of(tx, crawl)).release(tx, crawl, fence)

    async def holds(self, tx: Tx, crawl: int, fence: Fence) -> bool:
        return await (await self._of(tx, crawl)).holds(tx, crawl, fence)

    async def taken(self, tx: Tx, crawl: int) -> int:
        return await (await self._of(tx, crawl)).taken(tx, crawl)

    async def recover(self, tx: Tx, crawl: int) -> int:
        return await (await self._of(tx, crawl)).recover(tx, crawl)

    async def held_hosts(self, tx: Tx, crawl: int, most: int) -> list[HeldHost]:
        return await (await self._of(tx, crawl)).held_hosts(tx, crawl, most)

    async def shallowest(self, tx: Tx, crawl: int) -> int | None:
        return await (await self._of(tx, crawl)).shallowest(tx, crawl)

    async def next_in_seconds(self, tx: Tx, crawl: int, job_id: str = "") -> float | None:
        return await (await self._of(tx, crawl)).next_in_seconds(tx, crawl, job_id)

    async def restart(
        self, tx: Tx, crawl: int, fence: Fence, generation: str, *, lost_generation: str | None = None
    ) -> None:
        await self._redis.restart(tx, crawl, fence, generation, lost_generation=lost_generation)

    async def keep_known(self, tx: Tx, crawl: int, fate: Fate, pages: list[KnownPage]) -> None:
        await self._redis.keep_known(tx, crawl, fate, pages)

    async def claim_targets(self, tx: Tx, crawl: int, targets: list[ClaimedTarget]) -> None:
        await self._redis.claim_targets(tx, crawl, targets)

    async def finish_rebuild(self, tx: Tx, crawl: int) -> None:
        await self._redis.finish_rebuild(tx, crawl)

    async def _of(self, tx: Tx, crawl: int) -> Driver:
        return self._redis if await driver_of(tx, crawl) == "redis" else self._sql


class FrontierAdminByCrawl:
    """Implements `crawl.frontier.admin_store.FrontierAdminStore` on two drivers. Loaded crawls are on SQL."""

    def __init__(self, sql: SqlFrontierAdmin, redis: RedisFrontierAdmin) -> None:
        self._sql = sql
        self._redis = redis
        self.sitemap, self.receive, self.keep_urls, self.keep_keys = (
            sql.sitemap,
            sql.receive,
            sql.keep_urls,
            sql.keep_keys,
        )
        self.keep_traps, self.sitemaps_after, self.keep_sitemaps = sql.keep_traps, sql.sitemaps_after, sql.keep_sitemaps
        self.keep_targets, self.keep_pages_of, self.keep_counts = sql.keep_targets, sql.keep_pages_of, sql.keep_counts
        self.admit = sql.admit

    async def hosts(self, tx: Tx, crawl: int, limit: int) -> list[CrawlHost]:
        return await (await self._of(tx, crawl)).hosts(tx, crawl, limit)

    async def taken(self, tx: Tx, crawl: int) -> int:
        return await (await self._of(tx, crawl)).taken(tx, crawl)

    async def fate_of(self, tx: Tx, crawl: int, url: Url, kind: UrlKind, key: Key) -> UrlFacts | None:
        return await (await self._of(tx, crawl)).fate_of(tx, crawl, url, kind, key)

    async def urls_after(self, tx: Tx, crawl: int, after: Place | None, limit: int) -> list[tuple[Place, KeptUrl]]:
        return await (await self._of(tx, crawl)).urls_after(tx, crawl, after, limit)

    async def keys_after(self, tx: Tx, crawl: int, after: Key | None, limit: int) -> list[KnownKey]:
        return await (await self._of(tx, crawl)).keys_after(tx, crawl, after, limit)

    async def targets_after(
        self, tx: Tx, crawl: int, after: Key | None, limit: int
    ) -> list[tuple[Key, RedirectTarget]]:
        return await (await self._of(tx, crawl)).targets_after(tx, crawl, after, limit)

    async def forget(self, tx: Tx, crawl: int, limit: int) -> int:
        return await (await self._of(tx, crawl)).forget(tx, crawl, limit)

    async def remove(self, tx: Tx, crawl: Crawl, limit: int) -> int:
        return await (await self._of(tx, crawl.number)).remove(tx, crawl, limit)

    async def unclaim(self, tx: Tx, crawl: int, fence: Fence) -> None:
        await (await self._of(tx, crawl)).unclaim(tx, crawl, fence)

    async def _of(self, tx: Tx, crawl: int) -> SqlFrontierAdmin | RedisFrontierAdmin:
        return self._redis if await driver_of(tx, crawl) == "redis" else self._sql

"""A frontier under test. A driver provides the store under test and the few ways to look inside it that tests need;
everything around it (crawls, queue, hosts, pages, the clock) is the bench's."""

from dataclasses import dataclass
from typing import Any, Protocol

from shoal.base.url import Url
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import UrlKind, key_of
from shoal.crawl.store import FrontierStore
from shoal.drivers.redis.frontier_records import CrawlPlace, pack_key, place_of, read_entry, record_of, unpack_key
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


class RedisFrontierDriver:
    """The frontier on Redis; crawls, pages and everything else are on the bench's database."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.capabilities = Capabilities(joins_transactions=False)
        assert bench.app.stores.redis is not None
        self.redis = bench.app.stores.redis

    @property
    def frontier(self) -> FrontierStore:
        return self.bench.frontier

    async def call(self, *words: Any) -> Any:
        """Send a command, as an operator would."""
        return await self.redis.command(*words)

    async def open_urls(self, crawl: Crawl) -> int:
        prefix = f"scan:{{{crawl.id}}}:"
        lists = await self.call("ZRANGE", f"{prefix}url_depths", 0, -1)
        names = [member.decode().split(":") for member in lists]
        waiting = sum([await self.call("LLEN", f"{prefix}url_queue:{int(host)}:{depth}") for host, depth in names])
        touched = await self.call("HLEN", f"{prefix}touched_urls")
        return int(waiting + touched - await self.call("ZCARD", f"{prefix}quarantine"))

    async def taken_urls(self) -> int:
        taken = 0
        for row in await self.bench.sql("SELECT id FROM crawl"):
            prefix = f"scan:{{{row['id']}}}:"
            for walker in await self.call("HKEYS", f"{prefix}walkers"):
                taken += await self.call("ZCARD", f"{prefix}held:{walker.decode()}")
        return taken

    async def fates(self, crawl: Crawl) -> dict[tuple[int, int], Fate]:
        prefix = f"scan:{{{crawl.id}}}:"
        fates = dict.fromkeys(await self.call("SMEMBERS", f"{prefix}seen_urls"), Fate.OPEN)
        fates |= dict.fromkeys(await self.call("SMEMBERS", f"{prefix}processed_urls"), Fate.FETCHED)
        others = await self.call("HGETALL", f"{prefix}url_fates")
        rows = others.items() if isinstance(others, dict) else zip(others[::2], others[1::2], strict=True)
        fates |= {key: Fate(int(fate)) for key, fate in rows}
        return {unpack_key(key): fate for key, fate in fates.items()}

    async def empty(self) -> None:
        for row in await self.bench.sql("SELECT number FROM crawl"):
            place = await self._place(row["number"])
            await place.run("drop", 0)
            await self.call("HSET", f"scan:{{{place.id}}}:counts", "opened", 0, "settled", 0)

    async def suspect(self, *paths: str) -> None:
        """Take those URLs out of their queues and put them back as suspects."""
        for row in await self.bench.sql("SELECT number FROM crawl"):
            place = await self._place(row["number"])
            prefix = f"scan:{{{place.id}}}:"
            for member in await self.call("ZRANGE", f"{prefix}url_depths", 0, -1):
                host, depth = int(member[:12]), member[13:].decode()
                [origin] = await self.bench.sql(f"SELECT origin FROM host WHERE number = {host}")
                name = f"{prefix}url_queue:{host}:{depth}"
                for entry in await self.call("LRANGE", name, 0, -1):
                    waiting = read_entry(host, entry)
                    if not paths or waiting.path in paths:
                        waiting.crashes = 2
                        key = pack_key(*waiting.key(origin["origin"], place.key_seed))
                        seq = f"{depth}{await self.call('HINCRBY', f'{prefix}counts', 'seq', 1):010x}"
                        await self.call("LREM", name, 1, entry)
                        await self.call("HSET", f"{prefix}touched_urls", seq, record_of(key, waiting))
                        await self.call("ZADD", f"{prefix}suspects", 0, seq)
                if not await self.call("EXISTS", name):
                    await self.call("ZREM", f"{prefix}url_depths", member)

    async def _place(self, number: int) -> CrawlPlace:
        return await self.bench.database.read(lambda tx: place_of(self.redis, tx, number))


async def fate_of(driver: FrontierDriver, crawl: Crawl, url: str, kind: UrlKind = UrlKind.PAGE) -> Fate:
    return (await driver.fates(crawl))[key_of(Url(url), crawl.key_seed, kind)]


SKIPPED_WHEN_OPEN = {Fate.SKIPPED_ROBOTS, Fate.SKIPPED_HOST_BUDGET}


async def check_counters(driver: FrontierDriver, crawl: Crawl) -> None:
    """Recount what a crawl's counters say."""
    counts, fates = await driver.bench.counts(crawl), list((await driver.fates(crawl)).values())
    assert counts.queued == await driver.open_urls(crawl) == fates.count(Fate.OPEN)
    assert counts.opened == sum(not fate.skipped or fate in SKIPPED_WHEN_OPEN for fate in fates)
    assert sum(counts.skipped.values()) == sum(fate >= Fate.SKIPPED_DEPTH for fate in fates)
    rows = await driver.bench.database.read(lambda tx: driver.bench.pages.after(tx, crawl.number, 0, 100_000))
    pages = [page for _, page in rows]
    assert counts.pages == sum(page.status is not None for page in pages)
    assert counts.errors == sum(page.error_code is not None for page in pages)
    assert counts.bytes == sum(page.bytes or 0 for page in pages)

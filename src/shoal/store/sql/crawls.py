"""The crawl store on SQL."""

import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
from msgspec import structs

from shoal.base.database import Tx
from shoal.base.ids import CrawlId
from shoal.base.url import Url
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig, FrontierDriver
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import NewUrl, SitemapRecord, UrlKind, key_of
from shoal.crawl.lifecycle.failed_urls import FailedSeed
from shoal.crawl.states import CrawlMove, CrawlState
from shoal.crawl.store import CrawlFilter
from shoal.pages.store import DroppedPage
from shoal.store.sql.counters import RESPONSES, add_counts

SUMS = ("opened", "settled", "pages", "errors", "bytes", "not_modified", "bytes_saved", "depth_reached")


class SqlCrawlStore:
    """Implements `crawl.store.CrawlStore`."""

    async def insert(
        self,
        tx: Tx,
        crawl_id: CrawlId,
        config: CrawlConfig,
        named: list[str],
        state: CrawlState,
        key_seed: int | None = None,
        frontier: FrontierDriver = "sql",
        policy_id: str | None = None,
    ) -> Crawl | None:
        row = await tx.one(
            "insert_crawl",
            id=crawl_id,
            state=state,
            project=config.project,
            config=config.text(),
            named=orjson.dumps(named).decode(),
            priority=config.priority,
            key_seed=secrets.randbits(62) if key_seed is None else key_seed,
            policy_id=policy_id,
        )
        if row is None or frontier == "sql":
            return None if row is None else _crawl(row)
        crawl = _crawl(row)
        await tx.execute("keep_outside", crawl=crawl.number, driver=frontier)
        await tx.execute("insert_crawl_frontier", crawl=crawl.number, generation=secrets.token_hex(8))
        return replace(crawl, frontier=frontier)

    async def get(self, tx: Tx, crawl_id: str) -> Crawl | None:
        row = await tx.one("crawl", id=crawl_id)
        return None if row is None else _crawl(row)

    async def lock(self, tx: Tx, crawl_id: str) -> Crawl | None:
        row = await tx.one("lock_crawl", id=crawl_id)
        return None if row is None else _crawl(row)

    async def page_of(self, tx: Tx, after: int | None, limit: int, wanted: CrawlFilter, floor: int = 0) -> list[Crawl]:
        labels = orjson.dumps(wanted.labels).decode() if wanted.labels else None
        values = {"before": after, "limit": limit, "state": wanted.state, "project": wanted.project, "labels": labels}
        values |= {
            "host": None if wanted.host is None else wanted.host.lower(),
            "text": None if wanted.text is None else wanted.text.lower(),
            "floor": floor,
        }
        return [_crawl(row) for row in await tx.all("newest_crawls", **values)]

    async def count(self, tx: Tx) -> dict[str, int]:
        return {row["state"]: int(row["count"]) for row in await tx.all("count_crawls")}

    async def live_counts(self, tx: Tx) -> dict[int, tuple[int, int]]:
        rows = await tx.all("live_counts")
        return {row["number"]: (int(row["pages"]), int(row["errors"])) for row in rows}

    async def move(self, tx: Tx, crawl_id: str, move: CrawlMove) -> bool:
        values = {"id": crawl_id, "state": move.to, "reason": move.reason, "sources": move.sources}
        return await tx.execute("move_crawl", **values) == 1

    async def counts(self, tx: Tx, number: int) -> Counts:
        row = await tx.one("crawl_counts", crawl=number)
        skips = await tx.all("crawl_skips", crawl=number)
        assert row is not None
        return _counts(row, {skip["reason"]: int(skip["count"]) for skip in skips if skip["count"]})

    async def last_number(self, tx: Tx) -> int:
        return int(await tx.value("last_crawl") or 0)

    async def counts_of(self, tx: Tx, numbers: list[int]) -> dict[int, Counts]:
        rows = {row["crawl"]: row for row in await tx.all("counts_of_crawls", crawls=numbers)}
        skips: dict[int, dict[str, int]] = {number: {} for number in numbers}
        for row in await tx.all("skips_of_crawls", crawls=numbers):
            if row["count"]:
                skips[row["crawl"]][row["reason"]] = int(row["count"])
        return {number: _counts(rows[number], skips[number]) if number in rows else Counts() for number in numbers}

    async def first_failure(self, tx: Tx, number: int) -> tuple[str, str] | None:
        row = await tx.one("first_failure", crawl=number)
        return None if row is None else (row["url"], row["error_message"])

    async def failed_seeds(self, tx: Tx, number: int, seeds: list[tuple[Url, tuple[int, int]]]) -> list[FailedSeed]:
        rows = await tx.batch("url_outcomes", [(number, *key) for _, key in seeds])
        outcomes = {(row["key"], row["chk"]): row for row in rows}
        return [
            FailedSeed(url, row["status"], row["error_code"], row["error_message"])
            if row["has_page"]
            else FailedSeed(url, None, Fate(row["fate"]).word, f"skipped ({Fate(row['fate']).word})")
            for url, key in seeds
            if (row := outcomes.get(key)) is not None
            and ((row["status"] is None or row["status"] >= 400) if row["has_page"] else Fate(row["fate"]).skipped)
        ]

    async def now(self, tx: Tx) -> int:
        return int(await tx.value("now"))

    async def control(self, tx: Tx, crawl_id: str) -> tuple[CrawlState, int]:
        row = await tx.one("crawl_control", id=crawl_id)
        assert row is not None
        return CrawlState(row["state"]), row["changed_at"]

    async def add_counts(self, tx: Tx, number: int, counter: str, counts: Counts) -> None:
        await add_counts(tx, number, counter, counts)

    async def keep_sitemaps(self, tx: Tx, number: int, sitemaps: list[tuple[tuple[int, int], SitemapRecord]]) -> int:
        new = 0
        for (key, chk), record in sitemaps:
            new += await tx.execute("insert_sitemap", crawl=number, key=key, chk=chk, **structs.asdict(record))
        return new

    async def landed(self, tx: Tx, number: int, keys: list[int]) -> list[str]:
        return [row["final_url"] for row in await tx.all("landed", crawl=number, keys=keys)]

    async def urls_of_dropped(self, tx: Tx, number: int, pages: list[DroppedPage]) -> list[NewUrl]:
        seed = await tx.value("key_seed", crawl=number)
        parents = {page.parent: Url(page.parent) for page in pages if page.parent}
        maps = {parent: key_of(url, seed, UrlKind.SITEMAP)[0] for parent, url in parents.items()}
        known = {row["key"] for row in await tx.all("sitemaps_among", crawl=number, keys=sorted(maps.values()))}
        keys = {parent: key if key in known else key_of(parents[parent], seed)[0] for parent, key in maps.items()}
        return [
            NewUrl(page.key, page.chk, page.url, page.depth, Fate.OPEN, keys[page.parent] if page.parent else None)
            for page in pages
        ]

    async def change(self, tx: Tx, crawl_id: str, config: CrawlConfig) -> None:
        await tx.execute("change_crawl", id=crawl_id, config=config.text(), priority=config.priority)


def _crawl(row: Any) -> Crawl:
    values = {name: row[name] for name in Crawl.__slots__}
    values["state"] = CrawlState(values["state"])
    values["config"] = CrawlConfig.stored(values["config"])
    values["named"] = frozenset(orjson.loads(values["named"]))
    return Crawl(**values)


def _counts(row: Any, skipped: dict[str, int]) -> Counts:
    return Counts(
        **{name: int(row[name]) for name in SUMS},
        walked=timedelta(microseconds=int(row["walked"])),
        responses={kind: int(row[column]) for kind, column in RESPONSES.items()},
        skipped=skipped,
    )

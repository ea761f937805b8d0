"""The archive on SQL."""

from collections.abc import Iterable
from typing import Any

import orjson

from shoal.base.database import Tx
from shoal.base.ids import CrawlId, JobId
from shoal.base.url import Url, origin
from shoal.crawl.archive import (
    LOADING,
    FrontierStats,
    Key,
    OpenUrl,
    Place,
    SeenKey,
    Standing,
    UrlFacts,
    Waiting,
)
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig
from shoal.crawl.fates import Fate
from shoal.hosts.store import HostStore
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from shoal.queue.job import Holder

OUTSIDE = ""  # the counter row of what no walker did
BEFORE_ALL: Key = (-(1 << 63), -(1 << 31))
BEFORE_ALL_OPEN: Place = (0, 0, 0, 0)


class SqlArchive:
    """Answers `crawl.archive.FrontierArchive`."""

    def __init__(self, dialect: str, hosts: HostStore, pages: PageStore) -> None:
        self._numbered_here = dialect == "sqlite"  # PostgreSQL has a sequence
        self._hosts = hosts
        self._pages = pages

    async def seed_of(self, tx: Tx, crawl: int) -> int:
        return int(await tx.value("key_seed", crawl=crawl))

    async def stats(self, tx: Tx, crawl: int) -> FrontierStats:
        row = await tx.one("frontier_recount", crawl=crawl)
        fates = await tx.all("fate_recount", crawl=crawl)
        settled = {Fate(fate["fate"]).word: int(fate["count"]) for fate in fates}
        counts = {name: row[name] for name in ("waiting", "later", "taken", "hosts")} if row else {}
        return FrontierStats(**counts, settled=settled)

    async def taken(self, tx: Tx, crawl: int) -> int:
        return int(await tx.value("taken_count", crawl=crawl))

    async def fate_of(self, tx: Tx, crawl: int, key: Key, origin: str) -> UrlFacts | None:
        fate = await tx.value("fate_of", crawl=crawl, key=key[0], chk=key[1])
        if fate is None:
            return None
        row = await tx.one("open_url", crawl=crawl, key=key[0], chk=key[1], origin=origin)
        return UrlFacts(Fate(fate), None if row is None else _waiting(row), await self._page(tx, crawl, key))

    async def open_after(self, tx: Tx, crawl: int, after: Place | None, limit: int) -> list[tuple[Place, OpenUrl]]:
        host, due, depth, seq = after or BEFORE_ALL_OPEN
        rows = await tx.all("open_after", crawl=crawl, host=host, due=due, depth=depth, seq=seq, limit=limit)
        return [(_place(row), _open(row)) for row in rows]

    async def seen_after(self, tx: Tx, crawl: int, after: Key | None, limit: int) -> list[SeenKey]:
        key, chk = after or BEFORE_ALL
        rows = await tx.all("seen_after", crawl=crawl, key=key, chk=chk, limit=limit)
        return [SeenKey(row["key"], row["chk"], Fate(row["fate"])) for row in rows]

    async def receive(
        self, tx: Tx, crawl_id: CrawlId, config: CrawlConfig, named: list[str], key_seed: int
    ) -> int | None:
        number: int | None = await tx.value(
            "receive_crawl",
            id=crawl_id,
            reason=LOADING,
            project=config.project,
            config=config.model_dump_json(),
            named=orjson.dumps(named).decode(),
            priority=config.priority,
            key_seed=key_seed,
        )
        return number

    async def keep_seen(self, tx: Tx, crawl: int, seen: list[SeenKey]) -> int:
        rows = [_fate(crawl, (one.key, one.chk), one.fate) for one in sorted(seen, key=_key)]
        return await tx.many("keep_fates", rows)

    async def keep_open(self, tx: Tx, crawl: int, urls: list[tuple[Key, OpenUrl]]) -> int:
        numbers = await self._hosts.numbers(tx, sorted({origin(one.url) for _, one in urls}))
        first = await tx.value("reserve_seq", count=len(urls)) if self._numbered_here and urls else 0
        kept = await tx.many("keep_fates", [_fate(crawl, key, Fate.OPEN) for key in sorted(key for key, _ in urls)])
        rows = [_row(crawl, numbers, key, one) | {"seq": first + place} for place, (key, one) in enumerate(urls)]
        await tx.many("keep_open", rows)
        await tx.many("wake_host", _wakes(crawl, rows))
        return kept

    async def keep_counts(self, tx: Tx, crawl: int, counts: Counts) -> None:
        sums = {name: getattr(counts, name) for name in ("opened", "settled", "pages", "errors", "bytes")}
        await tx.execute("add_counts", crawl=crawl, holder=OUTSIDE, **sums, depth=counts.depth_reached)
        skips = sorted(counts.skipped.items())
        await tx.many(
            "add_skips", [{"crawl": crawl, "holder": OUTSIDE, "reason": word, "count": count} for word, count in skips]
        )

    async def admit(self, tx: Tx, crawl: int, standing: Standing) -> bool:
        values = {name: getattr(standing, name) for name in Standing.__slots__}
        return await tx.execute("admit_crawl", crawl=crawl, loading=LOADING, **values) == 1

    async def forget(self, tx: Tx, crawl: int, limit: int) -> int:
        rows = await tx.all("open_after", crawl=crawl, limit=limit, host=0, due=0, depth=0, seq=0)
        if rows:
            return await self._forget_open(tx, crawl, rows)
        last = await tx.one("last_of_some_fates", crawl=crawl, limit=limit)
        if last is not None:
            return await tx.execute("drop_fates_up_to", crawl=crawl, key=last["key"], chk=last["chk"])
        await tx.execute("drop_frontier_hosts", crawl=crawl)
        return 0

    async def remove(self, tx: Tx, crawl: Crawl, limit: int) -> int:
        last = await tx.value("last_of_some_pages", crawl=crawl.number, limit=limit)
        if last is not None:
            return await tx.execute("drop_pages_up_to", crawl=crawl.number, number=last)
        for table in ("drop_counters", "drop_skips"):
            await tx.execute(table, crawl=crawl.number)
        await tx.execute("drop_jobs", run_id=crawl.id)
        await tx.execute("drop_crawl", number=crawl.number)
        return 0

    async def unclaim(self, tx: Tx, crawl: int, holder: Holder) -> None:
        await tx.execute("free_host_claims", crawl=crawl, job_id=holder.job_id, epoch=holder.epoch)

    async def _page(self, tx: Tx, crawl: int, key: Key) -> Page | None:
        number = await tx.value("page_number", crawl=crawl, key=key[0], chk=key[1])
        pages = [] if number is None else await self._pages.after(tx, crawl, number - 1, 1)
        return pages[0][1] if pages else None

    async def _forget_open(self, tx: Tx, crawl: int, rows: list[Any]) -> int:
        names = ("host", "due", "depth", "seq", "key", "chk")
        places = [{"crawl": crawl} | {name: row[name] for name in names} for row in rows]
        dropped = await tx.many("drop_open", places)
        await tx.many("drop_fates", sorted(places, key=lambda place: (place["key"], place["chk"])))
        none = {"opened": 0, "pages": 0, "errors": 0, "bytes": 0, "depth": 0}
        await tx.execute("add_counts", crawl=crawl, holder=OUTSIDE, settled=dropped, **none)
        return dropped


def _key(seen: SeenKey) -> Key:
    return seen.key, seen.chk


def _place(row: Any) -> Place:
    return row["host"], row["due"], row["depth"], row["seq"]


def _open(row: Any) -> OpenUrl:
    return OpenUrl(
        url=Url(row["origin"] + row["path"]),
        depth=row["depth"],
        due=row["due"],
        parent=row["parent"],
        attempts=row["attempts"],
        crashes=row["crashes"],
    )


def _waiting(row: Any) -> Waiting:
    holder = None if row["job_id"] is None else Holder(JobId(row["job_id"]), row["epoch"])
    return Waiting(_open(row), holder, row["parent_url"], row["ready_at"])


def _fate(crawl: int, key: Key, fate: Fate) -> dict[str, Any]:
    return {"crawl": crawl, "key": key[0], "chk": key[1], "fate": int(fate)}


def _row(crawl: int, numbers: dict[str, int], key: Key, one: OpenUrl) -> dict[str, Any]:
    home = origin(one.url)
    return {
        "crawl": crawl,
        "host": numbers[home],
        "due": one.due,
        "depth": one.depth,
        "key": key[0],
        "chk": key[1],
        "parent": one.parent,
        "attempts": one.attempts,
        "crashes": one.crashes,
        "path": one.url[len(home) :],
    }


def _wakes(crawl: int, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each host is ready when the first of its URLs is due."""
    first: dict[int, int] = {}
    for row in rows:
        first[row["host"]] = min(row["due"], first.get(row["host"], row["due"]))
    return [{"crawl": crawl, "host": host, "ready_at": due} for host, due in sorted(first.items())]

"""Frontier administration on SQL."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import orjson
from msgspec.msgpack import encode
from msgspec.structs import asdict, replace

from shoal.base.database import Tx
from shoal.base.ids import CrawlId, JobId
from shoal.base.url import Url, origin
from shoal.crawl.crawl import TRAP, Counts, Crawl, CrawlConfig
from shoal.crawl.frontier.admin_store import (
    LOADING,
    CrawlHost,
    FrontierPosition,
    KeptUrl,
    Key,
    KnownKey,
    Place,
    UrlFacts,
    Waiting,
)
from shoal.crawl.frontier.fates import Fate, Trap, TrapState
from shoal.crawl.frontier.sql_take import CHAIN, KINDS, NEVER, QueuePositions, depth_at
from shoal.crawl.frontier.values import RedirectTarget, SitemapRecord, UrlKind, key_of
from shoal.crawl.store import OUTSIDE, CrawlStore
from shoal.hosts.rate import HeldHost
from shoal.hosts.robots import RobotsRecord, RobotsState
from shoal.hosts.store import HostStore, host_state
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from shoal.queue.job import Fence

BEFORE_ALL: Key = (-(1 << 63), -(1 << 31))
TOUCHED, UNTRIED = 0, 1  # the two tables of kept URLs, in the order in which they are read


class SqlFrontierAdmin:
    """Implements `crawl.frontier.admin_store.FrontierAdminStore`."""

    def __init__(self, dialect: str) -> None:
        self._places = QueuePositions(dialect)
        self._hosts = HostStore()
        self._pages = PageStore()

    async def hosts(self, tx: Tx, crawl: int, limit: int) -> list[CrawlHost]:
        return await self.hosts_in_full(tx, await tx.all("hosts_of_crawl", crawl=crawl, limit=limit))

    async def hosts_in_full(self, tx: Tx, rows: Sequence[Any]) -> list[CrawlHost]:
        """Return the hosts of these rows with all their data. The rows have the columns `host`, `pages` and
        `ready_at`."""
        full = {row["number"]: row for row in await tx.all("hosts_in_full", numbers=[row["host"] for row in rows])}
        return [_host(row, full[row["host"]]) for row in rows if row["host"] in full]

    async def taken(self, tx: Tx, crawl: int) -> int:
        return int(await tx.value("taken_count", crawl=crawl))

    async def taken_urls(self, tx: Tx, crawl: int, limit: int) -> list[Waiting]:
        rows = await tx.all("taken_urls", crawl=crawl, limit=limit)
        return [Waiting(_kept(row), Fence(JobId(row["job_id"]), row["epoch"])) for row in rows]

    async def fate_of(self, tx: Tx, crawl: int, url: Url, kind: UrlKind, key: Key) -> UrlFacts | None:
        facts = await self._facts(tx, crawl, url, kind, key)
        if facts is None or facts.page is not None:
            return facts
        target = await tx.one("target_of", crawl=crawl, key=key[0], chk=key[1])
        if target is None:
            return facts
        via, seed = Url(target["via"]), await tx.value("key_seed", crawl=crawl)
        source = await self._facts(tx, crawl, via, UrlKind.PAGE, key_of(via, seed))
        return replace(facts, target=_target(target), source=source)

    async def fates_of(self, tx: Tx, crawl: int, keys: Sequence[Key]) -> dict[Key, Fate]:
        rows = await tx.all("fates_of", crawl=crawl, keys=[key for key, _ in keys], checks=[chk for _, chk in keys])
        return {(row["key"], row["chk"]): Fate(row["fate"]) for row in rows}

    async def urls_after(self, tx: Tx, crawl: int, after: Place | None, limit: int) -> list[tuple[Place, KeptUrl]]:
        return [(place, _kept(row)) for place, row in await self._rows_after(tx, crawl, after, limit)]

    async def keys_after(self, tx: Tx, crawl: int, after: Key | None, limit: int) -> list[KnownKey]:
        key, chk = after or BEFORE_ALL
        rows = await tx.all("keys_after", crawl=crawl, key=key, chk=chk, limit=limit)
        return [KnownKey(row["key"], row["chk"], Fate(row["fate"])) for row in rows]

    async def receive(
        self,
        tx: Tx,
        crawl_id: CrawlId,
        config: CrawlConfig,
        named: list[str],
        key_seed: int,
        policy_id: str | None = None,
    ) -> int | None:
        """Create a crawl that is loaded from another store and return its number; None if the id is taken. Until
        `admit`, the crawl is stopped with the reason `LOADING`."""
        number: int | None = await tx.value(
            "receive_crawl",
            id=crawl_id,
            reason=LOADING,
            project=config.project,
            config=config.text(),
            named=orjson.dumps(named).decode(),
            priority=config.priority,
            key_seed=key_seed,
            policy_id=policy_id,
        )
        return number

    async def keep_urls(self, tx: Tx, crawl: int, urls: list[tuple[Key, KeptUrl]]) -> int:
        """Add kept URLs in the given order; return the number of new URLs. The crawl's counters do not change: see
        `keep_counts`."""
        numbers = await self._hosts.numbers(tx, sorted({origin(one.target or one.url) for _, one in urls}))
        places = await self._places.behind(tx, [one.depth for _, one in urls])
        new = await tx.many("keep_fates", sorted((*key, crawl, int(one.fate)) for key, one in urls))
        rows = [_row(crawl, numbers, place, one) for place, (_, one) in zip(places, urls, strict=True)]
        plain = [row for row, (_, one) in zip(rows, urls, strict=True) if one.chain is None]
        await tx.many("add_untried", [(*row[:3], *row[6:]) for row in plain if not any(row[3:6])])
        await tx.many("add_touched", [row for row in plain if any(row[3:6])])
        redirected = [(row, one) for row, (_, one) in zip(rows, urls, strict=True) if one.chain is not None]
        await tx.many("add_redirected", [(*row, one.url, encode(one.chain)) for row, one in redirected])
        await tx.many("wake_hosts_at", _wakes(crawl, rows))
        return new

    async def keep_keys(self, tx: Tx, crawl: int, keys: list[KnownKey]) -> int:
        """Add known keys; return the number of new keys. The crawl's counters do not change."""
        return await tx.many("keep_fates", sorted((known.key, known.chk, crawl, int(known.fate)) for known in keys))

    async def keep_traps(self, tx: Tx, crawl: int, traps: list[Trap]) -> int:
        """Add trap patterns with their state; return how many were new."""
        return sum([await tx.execute("keep_trap", crawl=crawl, **asdict(trap)) for trap in traps])

    async def sitemaps_after(
        self, tx: Tx, crawl: int, after: Key | None, limit: int
    ) -> list[tuple[Key, SitemapRecord]]:
        """Return sitemaps by key; empty at the end."""
        key, chk = after or BEFORE_ALL
        rows = [dict(row) for row in await tx.all("sitemaps_after", crawl=crawl, key=key, chk=chk, limit=limit)]
        return [((row.pop("key"), row.pop("chk")), SitemapRecord(**row)) for row in rows]

    async def keep_sitemaps(self, tx: Tx, crawl: int, sitemaps: list[tuple[Key, SitemapRecord]]) -> int:
        """Store sitemap records of another store; return how many were new."""
        kept = [
            await tx.execute("insert_sitemap", crawl=crawl, key=key, chk=chk, **asdict(record))
            for (key, chk), record in sitemaps
        ]
        return sum(kept)

    async def targets_after(
        self, tx: Tx, crawl: int, after: Key | None, limit: int
    ) -> list[tuple[Key, RedirectTarget]]:
        key, chk = after or BEFORE_ALL
        rows = await tx.all("targets_after", crawl=crawl, key=key, chk=chk, limit=limit)
        return [((row["key"], row["chk"]), _target(row)) for row in rows]

    async def keep_targets(self, tx: Tx, crawl: int, targets: list[tuple[Key, RedirectTarget]]) -> int:
        """Store redirect targets of another store; return how many were new."""
        kept = [
            await tx.execute("keep_target", crawl=crawl, key=key, chk=chk, url=one.url, via=one.via, fate=int(one.fate))
            for (key, chk), one in targets
        ]
        return sum(kept)

    async def keep_pages_of(self, tx: Tx, crawl: int, pages: dict[str, int]) -> None:
        """Add to the number of pages fetched from each origin in this crawl."""
        numbers = await self._hosts.numbers(tx, sorted(pages))
        counted = sorted((numbers[host_origin], count) for host_origin, count in pages.items())
        rows = [{"crawl": crawl, "host": host, "pages": count} for host, count in counted]
        await tx.many("keep_host_pages", rows)

    async def keep_counts(self, tx: Tx, crawl: int, counts: Counts) -> None:
        """Add the counters that the crawl had in the store from which it was dumped."""
        gone = max(0, counts.held - await self._held(tx, crawl))  # URLs in quarantine that were cleared before the dump
        await CrawlStore().add_counts(tx, crawl, OUTSIDE, replace(counts, skipped=counts.skipped | {TRAP: gone}))

    async def admit(self, tx: Tx, crawl: int, position: FrontierPosition) -> bool:
        """Give a loaded crawl the state that it had when it was dumped; return False if the crawl is not being
        loaded."""
        values = {name: getattr(position, name) for name in FrontierPosition.__struct_fields__}
        return await tx.execute("admit_crawl", crawl=crawl, loading=LOADING, **values) == 1

    async def forget(self, tx: Tx, crawl: int, limit: int) -> int:
        kept = await self._rows_after(tx, crawl, None, limit)
        if kept:
            return await self._forget_kept(tx, crawl, kept)
        last = await tx.one("last_of_some_fates", crawl=crawl, limit=limit)
        if last is not None:
            return await tx.execute("drop_fates_up_to", crawl=crawl, key=last["key"], chk=last["chk"])
        await CrawlStore().add_counts(tx, crawl, OUTSIDE, Counts(skipped={TRAP: await self._held(tx, crawl)}))
        for query in ("drop_frontier_hosts", "drop_traps", "drop_trap_scores", "drop_sitemaps", "drop_targets"):
            await tx.execute(query, crawl=crawl)
        return 0

    async def remove(self, tx: Tx, crawl: Crawl, limit: int) -> int:
        last = await tx.value("last_of_some_pages", crawl=crawl.number, limit=limit)
        if last is not None:
            await tx.execute("drop_details_up_to", crawl=crawl.number, number=last)
            return await tx.execute("drop_pages_up_to", crawl=crawl.number, number=last)
        for query in ("drop_counters", "drop_skips", "drop_journal_entries", "drop_journal"):
            await tx.execute(query, crawl=crawl.number)
        # Delete jobs before their grants, because the pruner locks them in this order.
        jobs = await tx.all("drop_jobs", run_id=crawl.id)
        await tx.execute("purge_grants", ids=[row["id"] for row in jobs])
        await tx.execute("drop_crawl_frontier", crawl=crawl.number)
        await tx.execute("drop_crawl", number=crawl.number)
        return 0

    async def unclaim(self, tx: Tx, crawl: int, fence: Fence) -> None:
        await tx.execute("free_host_claims", crawl=crawl, job_id=fence.job_id, epoch=fence.epoch)

    async def _held(self, tx: Tx, crawl: int) -> int:
        """Count the URLs in quarantine."""
        traps = await tx.all("traps", crawl=crawl)
        return sum(row["count"] for row in traps if row["state"] == TrapState.QUARANTINED)

    async def _facts(self, tx: Tx, crawl: int, url: Url, kind: UrlKind, key: Key) -> UrlFacts | None:
        fate = await tx.value("fate_of", crawl=crawl, key=key[0], chk=key[1])
        if fate is None:
            return None
        waiting = await self._kept(tx, crawl, url, kind) if Fate(fate).waits else None
        return UrlFacts(
            Fate(fate), waiting, await self.page(tx, crawl, key), await CrawlStore().sitemap(tx, crawl, key)
        )

    async def _kept(self, tx: Tx, crawl: int, url: Url, kind: UrlKind) -> Waiting | None:
        host_origin = origin(url)
        numbers = {row["origin"]: row["number"] for row in await tx.all("host_numbers", origins=[host_origin])}
        place = {
            "crawl": crawl,
            "host": numbers.get(host_origin, 0),
            "path": url[len(host_origin) :],
            "kind": int(kind),
            "url": url,
        }
        row = await tx.one("kept_url", **place)
        return None if row is None else _waiting(row)

    async def page(self, tx: Tx, crawl: int, key: Key) -> Page | None:
        """Return the page with this key and check."""
        number = await self._pages.number_of(tx, crawl, *key)
        pages = [] if number is None else await self._pages.after(tx, crawl, number - 1, 1)
        return pages[0][1] if pages else None

    async def _rows_after(self, tx: Tx, crawl: int, after: Place | None, limit: int) -> list[tuple[Place, Any]]:
        table, *at = after or (TOUCHED, 0)
        if table == TOUCHED:
            rows = await tx.all("touched_after", crawl=crawl, seq=at[0], limit=limit)
            if rows:
                return [((TOUCHED, row["seq"]), row) for row in rows]
            at = [0, 0]
        rows = await tx.all("untried_after", crawl=crawl, host=at[0], seq=at[1], limit=limit)
        return [((UNTRIED, row["host"], row["seq"]), row) for row in rows]

    async def _forget_kept(self, tx: Tx, crawl: int, kept: list[tuple[Place, Any]]) -> int:
        places = [place[1:] for place, _ in kept]
        query = "drop_touched" if kept[0][0][0] == TOUCHED else "drop_untried"
        dropped = await tx.many(query, [(crawl, *place) for place in places])
        seed = await tx.value("key_seed", crawl=crawl)
        urls = [(Url(row["start"] or row["origin"] + row["path"]), KINDS[row["kind"]]) for _, row in kept]
        keys = [key_of(url, seed, kind) for url, kind in urls]
        await tx.many("drop_fates", sorted((*key, crawl) for key in keys))
        opened = sum(row["due"] != NEVER for _, row in kept)  # URLs in quarantine were already counted as settled
        await CrawlStore().add_counts(tx, crawl, OUTSIDE, Counts(settled=opened))
        return dropped


def _kept(row: Any) -> KeptUrl:
    held, url = row["due"] == NEVER, Url(row["origin"] + row["path"])
    return KeptUrl(
        url=Url(row["start"] or url),
        depth=depth_at(row["seq"]),
        fate=Fate.QUARANTINED if held else Fate.OPEN,
        due=0 if held else row["due"],
        parent=row["parent"],
        attempts=row["attempts"],
        crashes=row["crashes"],
        kind=KINDS[row["kind"]],
        target=None if row["start"] is None else url,
        chain=None if row["chain"] is None else CHAIN.decode(row["chain"]),
    )


def _target(row: Any) -> RedirectTarget:
    return RedirectTarget(row["url"], row["via"], Fate(row["fate"]))


def _waiting(row: Any) -> Waiting:
    fence = None if not row["job_id"] else Fence(JobId(row["job_id"]), row["epoch"])
    until = row["held_until"]
    held = None if until is None else HeldHost(row["origin"], until, row["held_status"])
    return Waiting(_kept(row), fence, row["parent_url"], row["ready_at"], held)


def _row(crawl: int, numbers: dict[str, int], place: int, one: KeptUrl) -> tuple[Any, ...]:
    url = one.target or one.url
    host_origin = origin(url)
    due = NEVER if one.fate is Fate.QUARANTINED else one.due
    where, what = (crawl, numbers[host_origin], place), (one.parent, int(one.kind), url[len(host_origin) :])
    return *where, due, one.attempts, one.crashes, *what


def _wakes(crawl: int, rows: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return the time when each host becomes ready, which is when its first URL is due. URLs in quarantine are never
    due."""
    first: dict[int, int] = {}
    for host, due in ((row[1], row[3]) for row in rows if row[3] != NEVER):
        first[host] = min(due, first.get(host, due))
    return [{"crawl": crawl, "host": host, "ready_at": due} for host, due in sorted(first.items())]


def _host(row: Any, host: Any) -> CrawlHost:
    known = host["robots_state"] is not None
    age = timedelta(microseconds=host["now"] - host["robots_at"] if known else 0)
    robots = RobotsRecord(RobotsState(host["robots_state"]), host["robots"] or "", age) if known else None
    return CrawlHost(
        origin=host["origin"],
        pages=row["pages"],
        ready_at=row["ready_at"],
        state=host_state(host),
        held_until=host["held_until"],
        held_status=host["held_status"],
        robots=robots,
        robots_hash=host["robots_hash"],
        robots_at=host["robots_at"],
    )

"""Frontier administration on Redis. Data that is only in the database (pages, sitemaps, traps, counters) is read
there."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from typing import Any

from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.base.url import Url, origin
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.admin_store import (
    CrawlHost,
    KeptUrl,
    Key,
    KnownKey,
    Place,
    UrlFacts,
    Waiting,
)
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.sql_admin import SqlFrontierAdmin
from shoal.crawl.frontier.values import RedirectTarget, UrlKind, key_of
from shoal.crawl.store import CrawlStore
from shoal.drivers.redis.connection import RedisClient
from shoal.drivers.redis.frontier_records import (
    KINDS,
    CrawlPlace,
    WaitingUrl,
    depth_at,
    pack_key,
    place_of,
    prefix,
    read_entry,
    read_record,
    read_target,
    unpack_key,
    walker_name,
)
from shoal.hosts.rate import HeldHost
from shoal.queue.job import Fence

TOUCHED, UNTRIED = 0, 1  # the two kinds of kept URLs, in the order in which they are read
NOT_LISTED = frozenset({Fate.OPEN, Fate.QUARANTINED})


class RedisFrontierAdmin:
    """Implements `crawl.frontier.admin_store.FrontierAdminStore`."""

    def __init__(self, client: RedisClient, sql: SqlFrontierAdmin) -> None:
        self._client = client
        self._place = partial(place_of, client)
        self._sql = sql
        self._listed: dict[str, list[tuple[Key, Fate]]] = {}  # known keys of crawls that are being dumped

    async def hosts(self, tx: Tx, crawl: int, limit: int) -> list[CrawlHost]:
        place = await self._place(tx, crawl)
        given = {int(host): int(pages) for host, pages in _pairs(await place.command("HGETALL", "host_pages"))}
        queue = await place.command("ZRANGE", "url_queue", 0, -1, "WITHSCORES")
        ready = {int(host): int(float(score)) for host, score in zip(queue[::2], queue[1::2], strict=True)}
        most = sorted(
            given | dict.fromkeys(ready.keys() - given.keys(), 0), key=lambda host: (-given.get(host, 0), host)
        )
        rows = [
            {"host": host, "pages": given.get(host, 0), "ready_at": ready.get(host, place.now)} for host in most[:limit]
        ]
        return await self._sql.hosts_in_full(tx, rows)

    async def taken(self, tx: Tx, crawl: int) -> int:
        _, held, *_ = await (await self._place(tx, crawl)).run("look", "")
        return int(held)

    async def taken_urls(self, tx: Tx, crawl: int, limit: int) -> list[Waiting]:
        place = await self._place(tx, crawl)
        [walkers] = await place.run("held")
        held = [(word, name.decode()) for name, taken in walkers for word in taken[::3]][:limit]
        records = await place.command("HMGET", "touched_urls", *(word for word, _ in held)) if held else []
        known = [(word, name, read_record(one)) for (word, name), one in zip(held, records, strict=True) if one]
        rows = await tx.all("host_origins", hosts=sorted({waiting.host for *_, waiting in known}))
        origins = {row["number"]: row["origin"] for row in rows}
        return [
            Waiting(_kept(waiting, origins[waiting.host], depth_at(int(word, 16)), 0), _fence(name))
            for word, name, waiting in known
        ]

    async def fate_of(self, tx: Tx, crawl: int, url: Url, kind: UrlKind, key: Key) -> UrlFacts | None:
        place = await self._place(tx, crawl)
        facts = await self._facts(tx, place, url, kind, key)
        stored = await place.command("HGET", "redirect_targets", pack_key(*key))
        if facts is None or facts.page is not None or stored is None:
            return facts
        target = read_target(stored)
        via = Url(target.via)
        source = await self._facts(tx, place, via, UrlKind.PAGE, key_of(via, place.key_seed))
        return UrlFacts(facts.fate, facts.waiting, facts.page, facts.sitemap, target, source)

    async def fates_of(self, tx: Tx, crawl: int, keys: Sequence[Key]) -> dict[Key, Fate]:
        if not keys:
            return {}
        place = await self._place(tx, crawl)
        fates = await place.command("HMGET", "url_fates", *(pack_key(*key) for key in keys))
        return {key: Fate(int(fate)) for key, fate in zip(keys, fates, strict=True) if fate is not None}

    async def urls_after(self, tx: Tx, crawl: int, after: Place | None, limit: int) -> list[tuple[Place, KeptUrl]]:
        place = await self._place(tx, crawl)
        found = await self._kept_after(place, after, limit)
        rows = await tx.all("host_origins", hosts=sorted({waiting.host for _, waiting, *_ in found}))
        origins = {row["number"]: row["origin"] for row in rows}
        return [(at, _kept(waiting, origins[waiting.host], depth, due)) for at, waiting, depth, due in found]

    async def keys_after(self, tx: Tx, crawl: int, after: Key | None, limit: int) -> list[KnownKey]:
        place = await self._place(tx, crawl)
        if after is None or place.generation not in self._listed:
            fates = await self._fates(place)
            self._listed[place.generation] = sorted(
                (unpack_key(key), fate) for key, fate in fates.items() if fate not in NOT_LISTED
            )
        listed = self._listed[place.generation]
        start = 0 if after is None else bisect_right(listed, after, key=lambda one: one[0])
        if start == len(listed):
            del self._listed[place.generation]
        return [KnownKey(*key, fate) for key, fate in listed[start : start + limit]]

    async def targets_after(
        self, tx: Tx, crawl: int, after: Key | None, limit: int
    ) -> list[tuple[Key, RedirectTarget]]:
        place = await self._place(tx, crawl)
        rows = _pairs(await place.command("HGETALL", "redirect_targets"))
        found = sorted((unpack_key(key), stored) for key, stored in rows)
        start = 0 if after is None else bisect_right(found, after, key=lambda one: one[0])
        return [(key, read_target(stored)) for key, stored in found[start : start + limit]]

    async def forget(self, tx: Tx, crawl: int, limit: int) -> int:
        """Forget all URLs immediately, regardless of the limit: Redis frees the memory in the background."""
        place = await self._place(tx, crawl, rebuilding=True)
        known = await self._fates(place)
        if known:
            await place.change(tx, "drop", 0)
            return len(known)
        while await self._sql.forget(tx, crawl, limit):  # fates of seeds
            pass
        return 0

    async def remove(self, tx: Tx, crawl: Crawl, limit: int) -> int:
        removed = await self._sql.remove(tx, crawl, limit)
        if not removed:
            await self._client.command("UNLINK", *(f"{prefix(crawl.id)}{name}" for name in ("generation", "counts")))
        return removed

    async def unclaim(self, tx: Tx, crawl: int, fence: Fence) -> None:
        await (await self._place(tx, crawl)).run("unclaim", walker_name(fence))

    async def _lists(self, place: CrawlPlace) -> list[tuple[int, str]]:
        """Return the host and the depth of every queue."""
        return [
            (int(member[:12]), member[13:].decode()) for member in await place.command("ZRANGE", "url_depths", 0, -1)
        ]

    async def _fates(self, place: CrawlPlace) -> dict[bytes, Fate]:
        fates = dict.fromkeys(await place.command("SMEMBERS", "seen_urls"), Fate.OPEN)
        fates.update(dict.fromkeys(await place.command("SMEMBERS", "processed_urls"), Fate.FETCHED))
        fates.update({key: Fate(int(fate)) for key, fate in _pairs(await place.command("HGETALL", "url_fates"))})
        return fates

    async def _facts(self, tx: Tx, place: CrawlPlace, url: Url, kind: UrlKind, key: Key) -> UrlFacts | None:
        packed = pack_key(*key)
        fate = await place.command("HGET", "url_fates", packed)
        if fate is None and await place.command("SISMEMBER", "processed_urls", packed):
            fate = int(Fate.FETCHED)
        if fate is None and await place.command("SISMEMBER", "seen_urls", packed):
            fate = int(Fate.OPEN)
        if fate is None:
            return None
        known = Fate(int(fate))
        waiting = await self._waiting(tx, place, url, kind, packed) if known.waits else None
        page = await self._sql.page(tx, place.number, key)
        return UrlFacts(known, waiting, page, await CrawlStore().sitemap(tx, place.number, key))

    async def _waiting(self, tx: Tx, place: CrawlPlace, url: Url, kind: UrlKind, key: bytes) -> Waiting | None:
        """Find a URL among the waiting URLs. This reads the queue of its host, which may be long."""
        host_origin = origin(url)
        rows = await tx.all("hosts_at_origins", origins=[host_origin])
        if not rows:
            return None
        host = rows[0]["number"]
        [walkers] = await place.run("held")
        holders = {word: name.decode() for name, held in walkers for word in held[::3]}
        for word, record in _pairs(await place.command("HGETALL", "touched_urls")):
            if record[:12] == key:
                waiting, seq = read_record(record), int(word, 16)
                due = await self._due(place, word, waiting.host)
                fence = None if word not in holders else _fence(holders[word])
                kept = _kept(waiting, host_origin, depth_at(seq), due)
                return await self._with_context(tx, place, kept, fence, waiting)
        for at, depth in await self._lists(place):
            for entry in await place.command("LRANGE", f"url_queue:{at}:{depth}", 0, -1) if at == host else ():
                waiting = read_entry(host, entry)
                if host_origin + waiting.path == url and KINDS[waiting.kind] is kind:
                    kept = _kept(waiting, host_origin, int(depth, 16), 0)
                    return await self._with_context(tx, place, kept, None, waiting)
        return None

    async def _with_context(
        self, tx: Tx, place: CrawlPlace, kept: KeptUrl, fence: Fence | None, waiting: WaitingUrl
    ) -> Waiting:
        parents = (
            [] if waiting.parent is None else await tx.all("parent_urls", crawl=place.number, keys=[waiting.parent])
        )
        ready_at = await place.command("ZSCORE", "url_queue", waiting.host)
        held = await tx.all("held_among_hosts", hosts=[waiting.host], most=1)
        return Waiting(
            kept,
            fence,
            parents[0]["url"] if parents else None,
            None if ready_at is None else int(float(ready_at)),
            HeldHost(held[0]["origin"], held[0]["held_until"], held[0]["held_status"]) if held else None,
        )

    async def _due(self, place: CrawlPlace, word: bytes, host: int) -> int | None:
        """Return the time at which a tried URL may be fetched again; None if it is in quarantine."""
        if await place.command("ZSCORE", "quarantine", word) is not None:
            return None
        due = await place.command("ZSCORE", f"retries:{host}", word)
        return int(float(due or await place.command("ZSCORE", "suspects", word) or 0))

    async def _kept_after(
        self, place: CrawlPlace, after: Place | None, limit: int
    ) -> list[tuple[Place, WaitingUrl, int, int | None]]:
        """Return open and quarantined URLs with their depth and due time, with the URLs that were already tried
        first."""
        kind, *at = after or (TOUCHED, -1)
        found: list[tuple[Place, WaitingUrl, int, int | None]] = []
        if kind == TOUCHED:
            words = sorted(await place.command("HKEYS", "touched_urls"))
            for word in [word for word in words if int(word, 16) > at[0]][:limit]:
                waiting, seq = read_record(await place.command("HGET", "touched_urls", word)), int(word, 16)
                found.append(((TOUCHED, seq), waiting, depth_at(seq), await self._due(place, word, waiting.host)))
            if found:
                return found
            at = [0, 0, -1]
        for host, depth in await self._lists(place):
            level = int(depth, 16)
            if (host, level) < (at[0], at[1]):
                continue
            start = at[2] + 1 if (host, level) == (at[0], at[1]) else 0
            name = f"url_queue:{host}:{depth}"
            for index, entry in enumerate(await place.command("LRANGE", name, start, start + limit - 1), start):
                found.append(((UNTRIED, host, level, index), read_entry(host, entry), level, 0))
            if found:
                return found
        return found


def _kept(waiting: WaitingUrl, host_origin: str, depth: int, due: int | None) -> KeptUrl:
    at = Url(host_origin + waiting.path)
    return KeptUrl(
        url=Url(waiting.start or at),
        depth=depth,
        fate=Fate.QUARANTINED if due is None else Fate.OPEN,
        due=due or 0,
        parent=waiting.parent,
        attempts=waiting.attempts,
        crashes=waiting.crashes,
        kind=KINDS[waiting.kind],
        target=None if waiting.start is None else at,
        chain=waiting.chain,
    )


def _fence(name: str) -> Fence:
    job_id, _, epoch = name.rpartition(":")
    return Fence(JobId(job_id), int(epoch))


def _pairs(answer: Any) -> list[tuple[bytes, bytes]]:
    return list(answer.items()) if isinstance(answer, dict) else list(zip(answer[::2], answer[1::2], strict=True))

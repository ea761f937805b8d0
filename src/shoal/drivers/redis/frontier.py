"""The frontier on Redis. Its changes are not part of the database's transactions: a caller commits the pages first.

Every change is one script that takes effect completely or not at all, and that may be repeated: adding a known URL adds
nothing, and a URL that the walker no longer holds is ignored. Traps are kept in the database.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import compress
from operator import not_
from typing import Any

from shoal.base.database import Tx
from shoal.base.errors import BackendUnavailable
from shoal.base.url import Url, origin
from shoal.crawl.crawl import Crawl, FrontierDriver
from shoal.crawl.frontier.fates import Fate, Trap, TrapState
from shoal.crawl.frontier.rebuild import ClaimedTarget, KnownPage
from shoal.crawl.frontier.redirects import end_elsewhere
from shoal.crawl.frontier.sql_frontier import SqlFrontier
from shoal.crawl.frontier.traps import count_traps, trap_of, trap_states
from shoal.crawl.frontier.values import (
    AWAITED_SECONDS,
    Added,
    FrontierChange,
    NewUrl,
    RedirectState,
    Settled,
    Settlement,
    SkippedUrl,
    Taken,
    TrapPoints,
    WalkerBatch,
    crashes_after,
    key_of,
)
from shoal.crawl.store import AdmissionChecks, HostRate
from shoal.drivers.redis.connection import BATCH, RedisClient, Value
from shoal.drivers.redis.frontier_records import (
    CrawlPlace,
    WaitingUrl,
    depth_at,
    depth_word,
    entry_of,
    live_walkers,
    pack_key,
    pack_keys,
    pack_target,
    place_of,
    read_record,
    read_target,
    record_of,
    seq_word,
    waiting_of,
    walker_name,
)
from shoal.drivers.redis.frontier_take import RedisTake, WalkerTurns
from shoal.hosts.rate import HeldHost
from shoal.hosts.store import HostStore
from shoal.queue.job import Fence

UNATTACHED_SECONDS = 86_400  # without a walker, the crawl was never committed: forget the frontier after a day
ENTRIES = BATCH // 4  # URLs per settle: each URL takes nine arguments


class RedisFrontier:
    """Implements `crawl.frontier.rebuild.LosableFrontier`. `traps`: the frontier on SQL, which keeps the traps."""

    driver: FrontierDriver = "redis"

    def __init__(self, client: RedisClient, traps: SqlFrontier) -> None:
        self._place = partial(place_of, client)
        self._hosts = HostStore()
        self._traps = traps
        self.turns = WalkerTurns()

    async def begin(self, tx: Tx, crawl: Crawl) -> None:
        await (await self._place(tx, crawl.number)).run("begin", UNATTACHED_SECONDS, "")

    async def add(self, tx: Tx, crawl: int, urls: list[NewUrl]) -> Added:
        return await self._add(tx, await self._place(tx, crawl), urls, ())

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
        if want <= 0:
            return Taken(is_counted=True)
        place = await self._place(tx, crawl)
        taking = RedisTake(tx, place, fence, rate, self.turns, admission)
        alone = await taking.take_suspect(in_flight)
        return await taking.take(want) if alone is None else alone

    async def settle(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch, *, leaves: bool = False) -> Settlement:
        place = await self._place(tx, crawl)
        claims = FrontierChange()
        if not batch.redirects_decided:
            claims = await self._redirect(tx, place, batch, await self._held_by(place, fence))
        # Add links before the pages that contain them are settled: after a kill in between, the pages are fetched again
        # and their links are found again (0042).
        added = await self._add(tx, place, batch.found, batch.skipped)
        closed, skipped = await self._close(tx, place, fence, batch.settled)
        skips = added.skips
        skips.update(skipped)
        skips.update(done.fate for done in closed if done.fate.skipped)
        skips.subtract(claims.skips)
        return Settlement(
            closed=closed,
            opened=added.opened + claims.opened,
            settled=len(closed) + added.settled + claims.opened,
            skips=skips,
            is_counted=True,
        )

    async def prepare(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch) -> list[Settled]:
        place = await self._place(tx, crawl)
        held = await self._held_by(place, fence)
        await self._redirect(tx, place, batch, held)
        batch.redirects_decided = True  # the pages are committed accordingly: `settle` must not decide again (0042)
        return [done for done in batch.settled if done.task.seq in held]

    async def score_traps(self, tx: Tx, crawl: int, points: dict[str, TrapPoints]) -> dict[str, Url]:
        return await self._traps.score_traps(tx, crawl, points)

    async def quarantine(self, tx: Tx, crawl: int, traps: dict[str, Url]) -> list[str]:
        return await self._traps.quarantine(tx, crawl, traps)

    async def traps(self, tx: Tx, crawl: int) -> list[Trap]:
        return await self._traps.traps(tx, crawl)

    async def locked_traps(self, tx: Tx, crawl: int, patterns: Iterable[str]) -> dict[str, TrapState]:
        return await self._traps.locked_traps(tx, crawl, patterns)

    async def free(self, tx: Tx, crawl: int, pattern: str) -> FrontierChange | None:
        if await self._traps.free(tx, crawl, pattern) is None:
            return None
        place = await self._place(tx, crawl)
        host_origin = origin(Url(pattern))
        host = (await self._hosts.numbers(tx, [host_origin]))[host_origin]
        words = await place.command("ZRANGEBYSCORE", "quarantine", host, host)
        records = await place.command("HMGET", "touched_urls", *words) if words else []
        states = await trap_states(tx, crawl) | {pattern: TrapState.QUARANTINED}
        ours = [
            word
            for word, record in zip(words, records, strict=True)
            if record is not None and trap_of(Url(host_origin + read_record(record).path), states) == pattern
        ]
        freed = 0
        for some in _batches(ours) if ours else [[]]:  # at least once, to notice a lost frontier
            [count] = await place.change(tx, "free", host, *some)
            freed += count
        return FrontierChange(requeued=freed, is_counted=True)

    async def reopen(self, tx: Tx, crawl: int, urls: list[NewUrl], answered: list[Url]) -> FrontierChange:
        place = await self._place(tx, crawl, rebuilding=True)
        origins = [origin(url) for url in answered]
        numbers = await self._hosts.numbers(tx, sorted({*origins, *(origin(url.url) for url in urls)}))
        given = Counter(numbers[host_origin] for host_origin in origins)
        pages = [value for host, count in given.items() for value in (host, count)]
        opened, requeued = 0, 0
        for some in _batches(urls) or [[]]:
            rows: list[Value] = []
            for url in some:
                host_origin = origin(url.url)
                entry = entry_of(url.url[len(host_origin) :], url.kind, url.parent_key)
                rows += [numbers[host_origin], depth_word(url.depth), pack_key(url.key, url.chk) + entry]
            unknown, closed = await place.change(tx, "reopen", len(pages) // 2, *pages, *rows)
            opened, requeued, pages = opened + unknown, requeued + closed, []
        return FrontierChange(opened=opened, requeued=requeued, is_counted=True)

    async def redirect_states(self, tx: Tx, crawl: int, urls: Iterable[Url]) -> dict[Url, RedirectState]:
        place = await self._place(tx, crawl)
        asked = list(urls)
        keys = [pack_key(*key_of(url, place.key_seed)) for url in asked]
        [rows] = await place.run("redirects", *keys)
        states: dict[Url, RedirectState] = {}
        for url, fate, stored, record in zip(asked, rows[::3], rows[1::3], rows[2::3], strict=True):
            if fate:
                via = Url(read_target(stored).via) if stored else None
                states[url] = RedirectState(Fate(int(fate)), via, read_record(record).chain if record else None)
        return states

    async def release(self, tx: Tx, crawl: int, fence: Fence) -> int:
        place = await self._place(tx, crawl, attaching=walker_name(fence))
        [count] = await place.run("release", walker_name(fence), 1)
        self.turns.begin(fence)
        return int(count)

    async def holds(self, tx: Tx, crawl: int, fence: Fence) -> bool:
        place = await self._place(tx, crawl)
        [[[_, rows]]] = await place.run("held", walker_name(fence))
        return bool(rows)

    async def taken(self, tx: Tx, crawl: int) -> int:
        _, held, *_ = await (await self._place(tx, crawl)).run("look", "")
        return int(held)

    async def recover(self, tx: Tx, crawl: int) -> int:
        """Also raise an error if URLs are missing: no URL waits and no URL is held, but not all URLs are settled."""
        place = await self._place(tx, crawl)
        [found] = await place.run("held")
        # Query the leases after the names were read: otherwise, a walker that began in between would look lost (0042).
        live = await live_walkers(tx, [name.decode() for name, _ in found])
        back = 0
        for name, rows in found:
            if name.decode() not in live:
                back += await self._put_back_lost(place, name, rows)
        await place.change(tx, "audit")
        return back

    async def held_hosts(self, tx: Tx, crawl: int, most: int) -> list[HeldHost]:
        place = await self._place(tx, crawl)
        hosts = await place.command("ZRANGE", "url_queue", 0, -1)
        rows = await tx.all("held_among_hosts", hosts=[int(host) for host in hosts], most=most)
        return [HeldHost(row["origin"], row["held_until"], row["held_status"]) for row in rows]

    async def shallowest(self, tx: Tx, crawl: int) -> int | None:
        place = await self._place(tx, crawl)
        lists = await place.command("ZRANGE", "url_depths", 0, -1)
        touched = set(await place.command("HKEYS", "touched_urls"))
        touched -= set(await place.command("ZRANGE", "quarantine", 0, -1))
        waiting = [int(member[13:], 16) for member in lists] + [depth_at(int(seq, 16)) for seq in touched]
        return min(waiting, default=None)

    async def next_in_seconds(self, tx: Tx, crawl: int, job_id: str = "") -> float | None:
        place = await self._place(tx, crawl)
        ready, *_ = await place.run("look", job_id)
        return None if not ready else max(0.0, (float(ready) - place.now) / 1e6)

    async def restart(
        self, tx: Tx, crawl: int, fence: Fence, generation: str, *, lost_generation: str | None = None
    ) -> None:
        """Begin a lost frontier again, without URLs, and let only this walker use it."""
        before = (await self._place(tx, crawl, rebuilding=True)).generation
        if lost_generation not in (None, before):
            raise BackendUnavailable("the frontier", "another walker has begun it again", "attach to it")
        await tx.execute("forget_held", crawl=crawl)  # lock these rows before the frontier, as in a walker's commits
        await tx.execute("rebuild_frontier", crawl=crawl, generation=generation, walker=walker_name(fence))
        # The frontier has an expiry until the walker attaches: if this commit fails, the next rebuild may replace it
        # (0042).
        place = await self._place(tx, crawl, rebuilding=True)
        await place.run("begin", UNATTACHED_SECONDS, before)

    async def keep_known(self, tx: Tx, crawl: int, fate: Fate, pages: list[KnownPage]) -> None:
        """Record pages that were settled before the frontier was lost, and count each page for its host."""
        place = await self._place(tx, crawl, rebuilding=True)
        numbers = await self._hosts.numbers(tx, sorted({origin(url) for _, url in pages if url is not None}))
        for some in _batches(pages):
            values: list[Value] = []
            for key, url in some:
                values += [pack_key(*key), "" if url is None else numbers[origin(url)]]
            await place.change(tx, "known", int(fate), *values)

    async def claim_targets(self, tx: Tx, crawl: int, targets: list[ClaimedTarget]) -> None:
        """Record the targets of redirects, so that only the page that redirects there fetches them."""
        place = await self._place(tx, crawl, rebuilding=True)
        for some in _batches(targets):
            values: list[Value] = []
            for key, target in some:
                via = target.via.encode()
                values += [pack_key(*key), pack_target(target.fate, via, target.url), len(via)]
            await place.change(tx, "claim", *values)

    async def finish_rebuild(self, tx: Tx, crawl: int) -> None:
        await tx.execute("end_frontier_rebuild", crawl=crawl)

    async def _add(self, tx: Tx, place: CrawlPlace, urls: list[NewUrl], skipped: Sequence[SkippedUrl]) -> Added:
        """Add URLs in batches. One read first filters out known URLs, because most links are known."""
        opened, settled, new = 0, 0, 0
        skips: Counter[Fate] = Counter()
        is_open = Fate.OPEN  # looking it up for each URL takes longer than comparing it
        waiting = [url for url in urls if url.fate is is_open]
        others = [] if len(waiting) == len(urls) else [url for url in urls if url.fate is not Fate.OPEN]
        for some in _batches(waiting):
            count, reopened = await self._open(tx, place, some)
            opened, new = opened + count, new + count
            skips.subtract(reopened)
        trapped = {(url.key, url.chk): url for url in reversed(others) if url.fate is Fate.QUARANTINED}
        if trapped:
            settled, reopened = await self._quarantine(tx, place, list(reversed(trapped.values())))
            new += settled
            skips.subtract(reopened)
        by_fate: dict[Fate, list[bytes]] = defaultdict(list)
        for key, chk, fate in skipped:
            by_fate[fate].append(pack_key(key, chk))
        for url in others:
            if not url.fate.waits:
                by_fate[url.fate].append(pack_key(url.key, url.chk))
        for fate, keys in sorted(by_fate.items()):
            # A URL in quarantine, or forbidden by robots.txt, belongs to the crawl but is not requested, so it is
            # opened and settled immediately.
            is_denied = fate is Fate.SKIPPED_ROBOTS
            for batch in _batches(keys):
                [count] = await place.change(tx, "skip", int(is_denied), int(fate), *batch)
                skips[fate] += count
                new += count
                settled += count if is_denied else 0
        return Added(new=new, opened=opened + settled, settled=settled, skips=skips, is_counted=True)

    async def _open(self, tx: Tx, place: CrawlPlace, urls: list[NewUrl]) -> tuple[int, Counter[Fate]]:
        keys = pack_keys(urls)
        # This read is only a filter: a different walker may add the same URLs before the script runs, so the script
        # checks again (0042).
        known = await place.command("SMISMEMBER", "seen_urls", *keys)
        groups: dict[tuple[str, int], dict[bytes, bytes]] = defaultdict(dict)
        for key, url in dict(compress(zip(keys, urls, strict=True), map(not_, known))).items():
            host_origin = origin(url.url)
            entry = entry_of(url.url[len(host_origin) :], url.kind, url.parent_key)
            groups[host_origin, url.depth][key] = entry
        if not groups:
            return 0, Counter()
        numbers = await self._hosts.numbers(tx, sorted({host_origin for host_origin, _ in groups}))
        values: list[Value] = []
        for (host_origin, depth), entries in groups.items():
            values += [numbers[host_origin], depth_word(depth), len(entries), *entries, *entries.values()]
        count, reopened = await place.change(tx, "add", *values)
        return count, Counter(Fate(int(fate)) for fate in reopened)

    async def _quarantine(self, tx: Tx, place: CrawlPlace, urls: list[NewUrl]) -> tuple[int, Counter[Fate]]:
        numbers = await self._hosts.numbers(tx, sorted({origin(url.url) for url in urls}))
        new: list[NewUrl] = []
        before: Counter[Fate] = Counter()
        for some in _batches(urls):
            values: list[Value] = []
            for url in some:
                host_origin = origin(url.url)
                waiting = WaitingUrl(numbers[host_origin], url.url[len(host_origin) :], int(url.kind), url.parent_key)
                values += [waiting.host, depth_word(url.depth), record_of(pack_key(url.key, url.chk), waiting)]
            made, reopened = await place.change(tx, "hold_new", *values)
            new += [url for url, is_new in zip(some, made, strict=True) if is_new]
            before.update(Fate(int(fate)) for fate in reopened)
        await count_traps(tx, place.number, [url.url for url in new])
        return len(new), before

    async def _held_by(self, place: CrawlPlace, fence: Fence) -> set[int]:
        [[[_, rows]]] = await place.run("held", walker_name(fence))
        return {int(word, 16) for word in rows[::3]}

    async def _redirect(self, tx: Tx, place: CrawlPlace, batch: WalkerBatch, held: set[int]) -> FrontierChange:
        """Decide which redirects continue, by claiming their targets. The other redirects end or wait
        (`end_elsewhere`). Redirects that this walker no longer holds are ignored. May be repeated: an earlier claim by
        the same URL remains valid."""
        redirects = [done for done in batch.settled if done.onward is not None]
        if not redirects:
            return FrontierChange()
        for done in redirects:  # a repeated batch is decided again
            done.fate, done.page, done.awaits_target = Fate.OPEN, None, False
        wanted: dict[tuple[int, int], Settled] = {}
        for done in redirects:
            assert done.onward is not None
            if done.task.seq in held and done.onward.is_new:
                wanted.setdefault((done.onward.chain.key, done.onward.chain.chk), done)
        values: list[Value] = []
        for key, done in wanted.items():
            assert done.onward is not None
            via = done.task.url.encode()
            values += [pack_key(*key), pack_target(Fate.FETCHED_VIA, via, done.onward.target), len(via)]
        free: set[int] = set()
        opened, reopened = 0, list[bytes]()
        if values:
            claimed, reopened, opened = await place.change(tx, "claim", *values)
            free = {done.task.seq for done, ours in zip(wanted.values(), claimed, strict=True) if ours}
        others = [done for done in redirects if done.onward is not None and done.onward.is_new]
        others = [done for done in others if done.task.seq in held and done.task.seq not in free]
        await end_elsewhere(self, tx, place.number, others)
        return FrontierChange(opened=int(opened), skips=Counter(Fate(int(fate)) for fate in reopened))

    async def _close(
        self, tx: Tx, place: CrawlPlace, fence: Fence, settled: list[Settled]
    ) -> tuple[list[Settled], Counter[Fate]]:
        """Settle the URLs that this walker still holds; return the closed URLs, and the reasons why redirect targets
        are skipped after all."""
        if not settled:
            return [], Counter()
        parents = await self._parents(place, settled)
        ahead = [done.onward.url for done in settled if done.onward is not None and done.fate is Fate.OPEN]
        numbers = await self._hosts.numbers(tx, sorted(set(map(origin, ahead)))) if ahead else {}
        closed: list[Settled] = []
        skipped: Counter[Fate] = Counter()
        for some in _batches(settled, ENTRIES):
            values: list[Value] = []
            for done in some:
                values += self._entry(place, done, parents.get(done.task.seq), numbers)
            # If the number of the last call is different in Redis, Redis has forgotten a call, and the walker starts
            # over (0042).
            turn = self.turns.last(fence)
            words, ended = await place.change(tx, "settle", walker_name(fence), turn, *values)
            self.turns.made(fence)
            ours = {int(word, 16) for word in words}
            closed += [done for done in some if done.task.seq in ours]
            skipped.update(Fate(int(fate)) for fate in ended)
        await count_traps(tx, place.number, [done.task.url for done in closed if done.fate is Fate.QUARANTINED])
        # Failed seeds are looked up in the database, so the outcomes of all seeds are stored there, too.
        seeds = [done for done in closed if done.task.depth == 0]
        rows = [(done.task.key, done.task.chk, place.number, int(done.fate)) for done in seeds]
        await tx.many("keep_fates", sorted(rows))
        return closed, skipped

    def _entry(self, place: CrawlPlace, done: Settled, parent: int | None, numbers: dict[str, int]) -> list[Value]:
        """Return the outcome of one URL in the form that the script reads."""
        task, key = done.task, pack_key(done.task.key, done.task.chk)
        attempts = task.attempts if done.untried or done.onward is not None else task.attempts + 1
        onward = done.onward if done.fate is Fate.OPEN else None
        target = None if onward is None else task.at if done.awaits_target else onward.url
        waiting = waiting_of(task, parent, attempts=attempts, target=target)
        due, what, wait_seconds = 0, "C", done.retry_in_seconds
        if done.awaits_target:
            waiting.chain, wait_seconds = done.awaiting_chain, AWAITED_SECONDS
        elif onward is not None:
            waiting.host, waiting.chain = numbers[origin(onward.url)], onward.chain
        if done.fate is Fate.OPEN:
            what = "R"
            waits = wait_seconds > 0 or (not done.untried and onward is None)
            due = place.now + round(wait_seconds * 1e6) if waits else 0
        elif done.fate is Fate.QUARANTINED:
            what = "Q"
        gave = done.page is not None and done.page.status is not None and done.fate is not Fate.OPEN
        target_end = done.ended_target
        ended: list[Value] = [key if done.is_looped_target else "", ""]
        if target_end is not None:
            ended = [pack_key(*target_end[0]), f"{int(target_end[1]):02d}"]
        page_host: Value = task.host if gave else ""
        record = record_of(key, waiting)
        return [seq_word(task.seq), what, waiting.host, record, due, int(done.fate), page_host, *ended]

    async def _parents(self, place: CrawlPlace, settled: list[Settled]) -> dict[int, int | None]:
        """For each settled URL that goes back to the waiting ones, return the key of its parent, which is the page that
        led to it. (A task contains only the URL of its parent.)"""
        again = [done.task.seq for done in settled if done.fate.waits]
        if not again:
            return {}
        records = await place.command("HMGET", "touched_urls", *map(seq_word, again))
        return {seq: read_record(record).parent for seq, record in zip(again, records, strict=True) if record}

    async def _put_back_lost(self, place: CrawlPlace, name: bytes, rows: list[Any]) -> int:
        values: list[Value] = []
        for word, record in zip(rows[::3], rows[2::3], strict=True):
            waiting = read_record(record)
            waiting.crashes = crashes_after(waiting.crashes, alone=len(rows) == 3)
            values += [word, record_of(record[:12], waiting)]
        back = 0
        for some in _batches(values, 2 * ENTRIES) or [[]]:
            [count] = await place.run("recover", name, *some)
            back += count
        return back


def _batches(items: list[Any], size: int = BATCH) -> list[list[Any]]:
    return [items[at : at + size] for at in range(0, len(items), size)]

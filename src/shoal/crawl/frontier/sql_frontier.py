"""The frontier on SQL. The two dialects differ only in how they distinguish new URLs from known URLs."""

from collections import Counter
from collections.abc import Iterable
from itertools import dropwhile
from typing import Any

from msgspec import Struct, field
from msgspec.msgpack import encode

from shoal.base.database import Conflict, Tx
from shoal.base.url import Url, origin
from shoal.crawl.crawl import Crawl, FrontierDriver
from shoal.crawl.frontier.fates import CLAIMABLE, REOPENING, Fate, Trap, TrapState
from shoal.crawl.frontier.redirects import end_elsewhere
from shoal.crawl.frontier.sql_take import CHAIN, KINDS, NEVER, QueuePositions, Take, depth_at
from shoal.crawl.frontier.traps import TRAP_SCORE, count_traps, patterns_of, trap_of, trap_states
from shoal.crawl.frontier.values import (
    AWAITED_SECONDS,
    Added,
    FrontierChange,
    FrontierTask,
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
from shoal.hosts.rate import HeldHost
from shoal.hosts.store import HostStore
from shoal.queue.job import Fence

Key = tuple[int, int]


class Claims(Struct):
    """The redirect targets that a commit claimed."""

    places: set[int] = field(default_factory=set)  # positions of the URLs that redirect to these targets
    opened: int = 0  # number of targets that were not waiting: they count as opened and settled immediately
    reopened: Counter[Fate] = field(default_factory=Counter)  # former fates of targets that had been skipped


class SqlFrontier:
    """Implements `crawl.store.FrontierStore`."""

    driver: FrontierDriver = "sql"

    def __init__(self, dialect: str) -> None:
        self._fresh = _fresh_by_reading if dialect == "sqlite" else _fresh_by_inserting
        self._places = QueuePositions(dialect)
        self._hosts = HostStore()

    async def begin(self, tx: Tx, crawl: Crawl) -> None:
        """Do nothing, because the tables already exist."""

    async def prepare(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch) -> list[Settled]:
        """Return all outcomes, because `settle` decides about redirects in the commit that stores the pages."""
        return batch.settled

    async def add(self, tx: Tx, crawl: int, urls: list[NewUrl]) -> Added:
        waiting = _waiting(urls)
        added, hosts = await self._add(tx, crawl, waiting, _skipped(urls), await self._numbers(tx, waiting))
        await self._wake(tx, crawl, hosts)
        return added

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
            return Taken()
        taking = Take(tx, crawl, fence, rate, admission)
        suspect = await tx.one("suspect_waiting", crawl=crawl)
        alone = None if suspect is None else await taking.take_suspect(suspect, in_flight)
        return await taking.take(want) if alone is None else alone

    async def settle(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch, *, leaves: bool = False) -> Settlement:
        redirects = [done for done in batch.settled if done.onward is not None]
        for done in redirects:  # if a commit is retried, it decides again
            done.fate, done.page, done.awaits_target = Fate.OPEN, None, False
        later = [done for done in batch.settled if done.fate is Fate.OPEN and done.onward is None]
        retries = [
            (*_held(crawl, fence, done.task), round(done.retry_in_seconds * 1e6), int(not done.untried))
            for done in later
        ]
        put_back = await tx.batch("put_back_later", retries)
        waiting = _waiting(batch.found)
        numbers = await self._numbers(tx, waiting)
        if redirects:  # each host that the redirects lead to gets a row that can be locked
            leading = {origin(done.onward.url) for done in redirects if done.onward is not None}
            theirs = await self._hosts.numbers(tx, sorted(leading))
            await tx.many("prepare_hosts", sorted((crawl, host) for host in theirs.values()))
            numbers |= theirs
        leaving = await self._hosts_of(tx, crawl, fence) if leaves else []
        settled = (done.task.host for done in batch.settled)
        await self._lock_hosts(tx, crawl, [*numbers.values(), *settled, *leaving])
        claims = await self._move_redirected(tx, crawl, fence, redirects, numbers) if redirects else Claims()
        closed, skipped = await self._close(tx, crawl, fence, batch.settled)
        added, woken = await self._add(tx, crawl, waiting, batch.skipped + _skipped(batch.found), numbers)
        skips = added.skips
        skips.update(skipped)
        skips.update(done.fate for done in closed if done.fate.skipped)
        skips.subtract(claims.reopened)
        for done in redirects:
            if done.onward is not None and done.fate is Fate.OPEN:
                woken.add(done.task.host if done.awaits_target else numbers[origin(done.onward.url)])
        answered = (done.task.host for done in batch.settled if done.task.is_recovering)
        await self._wake(tx, crawl, [*woken, *answered, *(row["host"] for row in put_back)])
        return Settlement(
            closed=closed,
            opened=added.opened + claims.opened,
            settled=len(closed) + added.settled + claims.opened,
            skips=skips,
        )

    async def score_traps(self, tx: Tx, crawl: int, points: dict[str, TrapPoints]) -> dict[str, Url]:
        traps: dict[str, Url] = {}
        for pattern, earned in sorted(points.items()):
            more = earned.repeats + earned.growth
            if more and await tx.value("add_trap_points", crawl=crawl, pattern=pattern, points=more) >= TRAP_SCORE:
                traps[pattern] = earned.sample
        # Quarantine only the smallest patterns. The larger patterns around a trap got points from the same pages, but
        # may also have good pages: drop their points.
        around = {pattern: _around(pattern, sample) for pattern, sample in traps.items()}
        larger = {pattern for patterns in around.values() for pattern in patterns}
        smallest = {pattern: sample for pattern, sample in traps.items() if pattern not in larger}
        new = await self.quarantine(tx, crawl, smallest)
        for pattern in sorted({pattern for trap in new for pattern in around[trap]}):
            await tx.execute("drop_trap_points", crawl=crawl, pattern=pattern)
        return {pattern: traps[pattern] for pattern in new}

    async def quarantine(self, tx: Tx, crawl: int, traps: dict[str, Url]) -> list[str]:
        states = await trap_states(tx, crawl) if traps else {}
        # Each URL stays in one pattern, so that a release frees exactly the URLs that were counted.
        new = sorted(pattern for pattern, sample in traps.items() if trap_of(sample, states) is None)
        return [
            pattern
            for pattern in new
            if await tx.execute("insert_trap", crawl=crawl, pattern=pattern, sample=traps[pattern])
        ]

    async def traps(self, tx: Tx, crawl: int) -> list[Trap]:
        rows = await tx.all("traps", crawl=crawl)
        return [Trap(row["pattern"], TrapState(row["state"]), row["sample"], row["count"]) for row in rows]

    async def locked_traps(self, tx: Tx, crawl: int, patterns: Iterable[str]) -> dict[str, TrapState]:
        rows = await tx.all("lock_traps", crawl=crawl, patterns=sorted(patterns))
        return {row["pattern"]: TrapState(row["state"]) for row in rows}

    async def free(self, tx: Tx, crawl: int, pattern: str) -> FrontierChange | None:
        if not await tx.execute("free_trap", crawl=crawl, pattern=pattern):
            return None
        host_origin = origin(Url(pattern))
        host = (await self._hosts.numbers(tx, [host_origin]))[host_origin]
        await self._lock_hosts(tx, crawl, [host])
        rows = await tx.all("quarantined_at_host", crawl=crawl, host=host)
        states = await trap_states(tx, crawl) | {pattern: TrapState.QUARANTINED}
        ours = [row for row in rows if trap_of(Url(host_origin + row["path"]), states) == pattern]
        await tx.many("free_urls", [(crawl, row["seq"]) for row in ours])
        seed = await tx.value("key_seed", crawl=crawl)
        keys = [key_of(Url(host_origin + row["path"]), seed, KINDS[row["kind"]]) for row in ours]
        await tx.many("set_fates", sorted((*key, crawl, int(Fate.OPEN)) for key in keys))
        await self._wake(tx, crawl, [host] if ours else [])
        return FrontierChange(requeued=len(ours))

    async def reopen(self, tx: Tx, crawl: int, urls: list[NewUrl], answered: list[Url]) -> FrontierChange:
        origins = [origin(url) for url in answered]
        numbers = await self._hosts.numbers(tx, sorted({*origins, *(origin(url.url) for url in urls)}))
        await self._lock_hosts(tx, crawl, numbers.values())
        await tx.many("set_fates", sorted((url.key, url.chk, crawl, int(Fate.OPEN)) for url in urls))
        # From now on these URLs are requested directly, even those that failed as redirect targets of other pages.
        await tx.many("forget_targets", sorted((url.key, url.chk, crawl) for url in urls))
        hosts = await self._line_up(tx, crawl, urls, numbers)
        given = Counter(numbers[host_origin] for host_origin in origins)
        await tx.many("count_host_pages", [(crawl, host, -pages) for host, pages in sorted(given.items())])
        await self._wake(tx, crawl, hosts)
        return FrontierChange(requeued=len(urls))

    async def redirect_states(self, tx: Tx, crawl: int, urls: Iterable[Url]) -> dict[Url, RedirectState]:
        seed = await tx.value("key_seed", crawl=crawl)
        by_key = {key_of(url, seed): url for url in urls}
        values = {"keys": [key for key, _ in by_key], "checks": [chk for _, chk in by_key], "urls": [*by_key.values()]}
        rows = await tx.all("redirect_states", crawl=crawl, **values)
        return {
            by_key[row["key"], row["chk"]]: RedirectState(
                Fate(row["fate"]), row["via"], None if row["chain"] is None else CHAIN.decode(row["chain"])
            )
            for row in rows
        }

    async def release(self, tx: Tx, crawl: int, fence: Fence) -> int:
        await self._lock_hosts(tx, crawl, await self._hosts_of(tx, crawl, fence))
        rows = await tx.all("release_urls", crawl=crawl, job_id=fence.job_id, epoch=fence.epoch)
        await self._wake(tx, crawl, (row["host"] for row in rows))
        await tx.execute("free_host_claims", crawl=crawl, job_id=fence.job_id, epoch=fence.epoch)
        return len(rows)

    async def holds(self, tx: Tx, crawl: int, fence: Fence) -> bool:
        return await tx.one("any_held", crawl=crawl, job_id=fence.job_id, epoch=fence.epoch) is not None

    async def recover(self, tx: Tx, crawl: int) -> int:
        rows = await tx.all("lost_urls", crawl=crawl)
        held = Counter((row["job_id"], row["epoch"]) for row in rows)
        lost = [
            (crawl, *fence, row["seq"], crashes_after(row["crashes"], alone=held[fence] == 1))
            for row in rows
            for fence in [(row["job_id"], row["epoch"])]
        ]
        # Return only URLs that the lost walker still holds: another walker may recover the same URLs right now (0006).
        await tx.many("put_back_lost", lost)
        await self._wake(tx, crawl, (row["host"] for row in rows))
        return len(rows)

    async def taken(self, tx: Tx, crawl: int) -> int:
        return int(await tx.value("taken_count", crawl=crawl))

    async def held_hosts(self, tx: Tx, crawl: int, most: int) -> list[HeldHost]:
        rows = await tx.all("held_hosts", crawl=crawl, most=most)
        return [HeldHost(row["origin"], row["held_until"], row["held_status"]) for row in rows]

    async def shallowest(self, tx: Tx, crawl: int) -> int | None:
        place = await tx.value("shallowest_open", crawl=crawl)
        return None if place is None else depth_at(place)

    async def next_in_seconds(self, tx: Tx, crawl: int, job_id: str = "") -> float | None:
        row = await tx.one("next_ready", crawl=crawl, job_id=job_id)
        return None if row is None else max(0, row["ready_at"] - row["now"]) / 1e6

    async def _numbers(self, tx: Tx, waiting: dict[Key, NewUrl]) -> dict[str, int]:
        return await self._hosts.numbers(tx, sorted(set(map(origin, [url.url for url in waiting.values()]))))

    async def _add(
        self,
        tx: Tx,
        crawl: int,
        waiting: dict[Key, NewUrl],
        skipped: list[SkippedUrl],
        numbers: dict[str, int],
    ) -> tuple[Added, set[int]]:
        """Record URLs that were not known. Also return the hosts that now have waiting URLs. For waiting URLs, each new
        URL is identified; for skipped URLs, only the number of new URLs is determined."""
        new, reopened = await self._fresh(tx, crawl, waiting)
        fresh = [waiting[key] for key in reversed(waiting) if key in new] if new else []
        opened = await self._line_up(tx, crawl, fresh, numbers)
        if len(opened) < len(fresh):
            await count_traps(tx, crawl, [url.url for url in fresh if url.fate is Fate.QUARANTINED])
        skips = await _skip(tx, crawl, skipped)
        # A URL in quarantine, or forbidden by robots.txt, belongs to the crawl but is not requested: it is opened and
        # settled immediately.
        settled = len(fresh) - len(opened) + skips[Fate.SKIPPED_ROBOTS]
        added = Added(new=len(new) + skips.total(), opened=len(opened) + settled, settled=settled, skips=skips)
        skips.subtract(reopened)
        return added, set(opened)

    async def _line_up(self, tx: Tx, crawl: int, urls: list[NewUrl], numbers: dict[str, int]) -> list[int]:
        """Queue each new URL behind the URLs of the same depth; return the hosts. URLs in quarantine are not queued."""
        untried, touched = [], []
        places = await self._places.behind(tx, [url.depth for url in urls])
        for new, place in zip(urls, places, strict=True):
            host_origin = origin(new.url)
            where = crawl, numbers[host_origin], place
            what = new.parent_key, int(new.kind), new.url[len(host_origin) :]
            if new.fate is Fate.OPEN:
                untried.append((*where, *what))
            else:
                touched.append((*where, NEVER, 0, 0, *what))
        await tx.many("add_untried", untried)
        await tx.many("add_touched", touched)
        return [row[1] for row in untried]

    async def _close(
        self, tx: Tx, crawl: int, fence: Fence, settled: list[Settled]
    ) -> tuple[list[Settled], Counter[Fate]]:
        """Close the URLs that this walker still holds, and return them, so that settling a batch twice changes nothing.
        Also return the reasons why redirect targets are skipped after all."""
        trapped = [done for done in settled if done.fate is Fate.QUARANTINED]
        final = [done for done in settled if not done.fate.waits]
        mark = {"crawl": crawl, "job_id": fence.job_id, "epoch": fence.epoch}
        closed = await tx.all("close_urls", **mark, places=[done.task.seq for done in final]) if final else []
        closed += await tx.batch("quarantine_urls", [_held(crawl, fence, done.task) for done in trapped])
        ours = {seq for (seq,) in closed}
        done_now = [done for done in [*final, *trapped] if done.task.seq in ours]
        fates = sorted([(done.task.key, done.task.chk, crawl, int(done.fate)) for done in done_now])
        await tx.many("set_fates", fates)
        skipped: Counter[Fate] = Counter()
        ended = dict(target for done in done_now if (target := done.ended_target) is not None)
        if ended:  # some redirect targets were not fetched after all
            targets = sorted((*key, crawl, int(fate)) for key, fate in ended.items())
            await tx.many("end_targets", targets)
            rows = await tx.batch("set_settled_fates", targets)
            skipped.update(fate for row in rows if (fate := Fate(row["fate"])).skipped)
        if looped := sorted((done.task.key, done.task.chk, crawl) for done in done_now if done.is_looped_target):
            await tx.many("forget_targets", looped)
        await count_traps(tx, crawl, [done.task.url for done in done_now if done.fate is Fate.QUARANTINED])
        given = Counter(done.task.host for done in done_now if done.page is not None and done.page.status is not None)
        await tx.many("count_host_pages", [(crawl, host, pages) for host, pages in sorted(given.items())])
        return done_now, skipped

    async def _move_redirected(
        self, tx: Tx, crawl: int, fence: Fence, redirects: list[Settled], numbers: dict[str, int]
    ) -> Claims:
        """Queue redirects at their target hosts, and claim the targets. If a different URL has already claimed the
        target, the redirect ends here if that URL has a response, and otherwise waits for that URL. Call with the hosts
        locked."""
        mark = {"crawl": crawl, "job_id": fence.job_id, "epoch": fence.epoch}
        rows = await tx.all("held_among", **mark, places=sorted(done.task.seq for done in redirects))
        held = {row["seq"] for row in rows}
        ours = [done for done in redirects if done.task.seq in held]
        new = [done for done in ours if done.onward is not None and done.onward.is_new]
        claims = await self._claim(tx, crawl, new, numbers)
        await end_elsewhere(self, tx, crawl, [done for done in new if done.task.seq not in claims.places])
        leading = []
        for done in ours:
            onward, task = done.onward, done.task
            assert onward is not None
            if done.fate is not Fate.OPEN:
                continue
            url, chain, wait_seconds = onward.url, onward.chain, 0.0
            if done.awaits_target:
                url, chain, wait_seconds = task.at, done.awaiting_chain, AWAITED_SECONDS
            host_origin = origin(url)
            host = task.host if done.awaits_target else numbers[host_origin]
            place = host, url[len(host_origin) :], task.url, encode(chain), round(1e6 * wait_seconds)
            leading.append((*_held(crawl, fence, task), *place))
        await tx.batch("move_to_redirect_target", leading)
        return claims

    async def _claim(self, tx: Tx, crawl: int, redirects: list[Settled], numbers: dict[str, int]) -> Claims:
        """Claim the targets that nobody has fetched or is about to fetch. A target that is itself queued is removed
        from the queue when its turn comes, and its fate stays open until then."""
        wanted: dict[Key, Settled] = {}
        for done in redirects:
            assert done.onward is not None
            wanted.setdefault((done.onward.chain.key, done.onward.chain.chk), done)
        via = int(Fate.FETCHED_VIA)
        rows = await tx.batch("claim_fates", sorted((*key, crawl, via) for key in wanted))
        free = {(row["key"], row["chk"]) for row in rows}
        opened = len(free)
        keys = sorted(wanted.keys() - free, key=lambda key: (key[1], key[0]))
        place = {"keys": [key for key, _ in keys], "checks": [chk for _, chk in keys]}
        known = await tx.all("lock_targets", crawl=crawl, **place)
        # The rows of the target hosts are locked, so no walker takes a target between this check and our commit (0031).
        busy = await self._under_way(tx, crawl, [wanted[key] for key in keys], numbers) if known else set()
        reopened: Counter[Fate] = Counter()
        for row in known:
            key, fate = (row["key"], row["chk"]), Fate(row["fate"])
            if key not in wanted or key in free:
                continue
            if row["via"] is not None:  # an earlier attempt of the same URL may have claimed the target
                is_free = row["via"] == wanted[key].task.url
            else:
                is_free = fate in CLAIMABLE or (fate is Fate.OPEN and key not in busy)
            if is_free:
                free.add(key)
                reopened[fate] += fate in CLAIMABLE
        claims = [
            (key, done.onward.target, done.task.url) for key, done in wanted.items() if key in free and done.onward
        ]
        await tx.batch("set_settled_fates", sorted((*key, crawl, via) for key, _, _ in claims))
        await tx.many("keep_targets", sorted((*key, crawl, via, target, url) for key, target, url in claims))
        return Claims({wanted[key].task.seq for key in free}, opened + reopened.total(), reopened)

    async def _under_way(self, tx: Tx, crawl: int, redirects: list[Settled], numbers: dict[str, int]) -> set[Key]:
        """Return the keys of the targets that a walker has taken, or that redirect themselves and wait at a different
        host."""
        targets = {done.onward.target: done.onward.chain for done in redirects if done.onward is not None}
        at = {target: (numbers[origin(target)], target[len(origin(target)) :]) for target in targets}
        rows = await tx.all("taken_pages_at", crawl=crawl, hosts=sorted({host for host, _ in at.values()}))
        taken = {(row["host"], row["path"]) for row in rows}
        rows = await tx.all("redirected_among", crawl=crawl, urls=sorted(targets))
        redirected = {row["start"] for row in rows}
        return {
            (chain.key, chain.chk) for target, chain in targets.items() if target in redirected or at[target] in taken
        }

    async def _lock_hosts(self, tx: Tx, crawl: int, hosts: Iterable[int]) -> None:
        """Lock every host row that this commit will touch, in the order of the host numbers. This prevents deadlocks
        over hosts, and over rows that are touched only under a host's lock. (Skipped URLs are recorded without such a
        lock: two walkers may deadlock if each finds URLs that the other skips. That is rare, and one of the two commits
        is retried: decision 0016.)"""
        await tx.all("lock_hosts", crawl=crawl, hosts=sorted(set(hosts)))

    async def _hosts_of(self, tx: Tx, crawl: int, fence: Fence) -> list[int]:
        rows = await tx.all("hosts_of_holder", crawl=crawl, job_id=fence.job_id, epoch=fence.epoch)
        return [row["host"] for row in rows]

    async def _wake(self, tx: Tx, crawl: int, hosts: Iterable[int]) -> None:
        await tx.many("wake_hosts", [(crawl, host) for host in sorted(set(hosts))])


async def _fresh_by_reading(tx: Tx, crawl: int, waiting: dict[Key, NewUrl]) -> tuple[set[Key], Counter[Fate]]:
    """Record the URLs that are not known; return their keys, and the former fates of skipped URLs that are now open. On
    SQLite, this transaction has the write lock, so a key that is missing now is still missing at the insert."""
    rows = await tx.all("known_keys", crawl=crawl, keys=[key for key, _ in waiting])
    known = {(key, chk): fate for key, chk, fate in rows}
    again = {key: Fate(fate) for key, fate in known.items() if fate in REOPENING and key in waiting}
    new = waiting.keys() - known.keys()
    await tx.many("insert_fates", [(*key, crawl, int(waiting[key].fate)) for key in new])
    await tx.many("set_fates", [(*key, crawl, int(waiting[key].fate)) for key in again])
    return new | again.keys(), Counter(again.values())


async def _fresh_by_inserting(tx: Tx, crawl: int, waiting: dict[Key, NewUrl]) -> tuple[set[Key], Counter[Fate]]:
    """The same as `_fresh_by_reading`, for PostgreSQL: if several walkers add the same URL at the same time, the unique
    key decides for which of them it is new."""
    rows = await tx.batch("add_fates", [(*key, crawl, int(url.fate)) for key, url in waiting.items()])
    reopened = [row["was"] for row in rows if row["reopened"]]
    if None in reopened:  # another walker has just skipped the URL, and only a new snapshot shows the reason
        raise Conflict
    return {(row["key"], row["chk"]) for row in rows}, Counter(map(Fate, reopened))


def _waiting(urls: list[NewUrl]) -> dict[Key, NewUrl]:
    """Return the URLs to queue, in reverse order. If a URL occurs twice, its first occurrence is used."""
    return {(url.key, url.chk): url for url in reversed(urls) if url.fate.waits}


def _skipped(urls: list[NewUrl]) -> list[SkippedUrl]:
    return [(url.key, url.chk, url.fate) for url in urls if url.fate.skipped]


async def _skip(tx: Tx, crawl: int, urls: list[SkippedUrl]) -> Counter[Fate]:
    """Record skipped URLs that were not known; return the number of new URLs for each reason. One statement per reason
    is enough, because only the number of new rows matters. (The keys are not sorted: SQLite has only one writer, the
    PostgreSQL query sorts them, and sorting them here would take a third of the time.)"""
    new: Counter[Fate] = Counter()
    for reason in sorted({fate for _, _, fate in urls}):
        number = int(reason)
        new[reason] = await tx.many(
            "keep_fates", [(key, chk, crawl, number) for key, chk, fate in urls if fate is reason]
        )
    return new


def _held(crawl: int, fence: Fence, task: FrontierTask) -> tuple[Any, ...]:
    return crawl, fence.job_id, fence.epoch, task.seq


def _around(pattern: str, url: Url) -> list[str]:
    """Return the larger patterns that contain a URL of this pattern."""
    return list(dropwhile(pattern.__ne__, patterns_of(url)))[1:]

"""The frontier on SQL. The two dialects differ only in how new URLs are told from known ones."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shoal.base.database import Conflict, Tx
from shoal.base.url import Url, origin
from shoal.crawl.fates import REOPENING, Fate
from shoal.crawl.frontier import SUSPECT_FROM, Kind, NewUrl, Report, Settled, SkippedUrl, Task
from shoal.crawl.store import Pace
from shoal.crawl.traps import Trap, TrapState, pattern_of
from shoal.hosts.pace import Grant, HeldHost, Wish, slots_within
from shoal.hosts.store import HostStore
from shoal.pages.page import NOT_MODIFIED
from shoal.pages.store import PageStore
from shoal.queue.job import Holder
from shoal.store.sql.hosts import standing

Key = tuple[int, int]

KINDS = tuple(Kind)
HOSTS_PER_TAKE = 64
CLOSED_AT_ONCE = 1000
NEVER = 1 << 62  # when a URL in quarantine is due
OUTSIDE = ""  # the counter of what no walker brought
UNWANTED = 1.0  # seconds after which a host that waits for its walker goes to any
LEAD = 1.0  # seconds: how long before its next slot a host is looked at again


@dataclass(slots=True)
class Added:
    """What an addition came to."""

    new: int
    opened: int
    hosts: set[int]  # at which something waits now
    skips: Counter[Fate]


ZERO = dict.fromkeys(
    ("opened", "settled", "pages", "errors", "bytes", "not_modified", "bytes_saved", "depth", "walked"), 0
)


class SqlFrontier:
    """Answers `crawl.store.FrontierStore`."""

    def __init__(self, dialect: str, hosts: HostStore, pages: PageStore) -> None:
        embedded = dialect == "sqlite"
        self._fresh = _fresh_by_reading if embedded else _fresh_by_inserting
        self._wait = _wait_numbered if embedded else _wait
        self._hosts = hosts
        self._pages = pages

    async def add(self, tx: Tx, crawl: int, holder: str, urls: list[NewUrl]) -> int:
        numbers = await self._numbers(tx, urls)
        added = await self._add(tx, crawl, urls, (), numbers)
        await _count(tx, crawl, holder, added.skips, opened=added.opened)
        await self._wake(tx, crawl, added.hosts)
        return added.new

    async def take(self, tx: Tx, crawl: int, holder: Holder, want: int, in_flight: int, pace: Pace) -> list[Task]:
        if want <= 0:
            return []
        suspect = await tx.one("suspect_waiting", crawl=crawl)
        if suspect is not None:
            return [] if in_flight else await self._take_alone(tx, crawl, holder, suspect, pace)
        hosts = await self._hosts_for(tx, crawl, holder, min(want, HOSTS_PER_TAKE), pace)
        taken: list[Task] = []
        # By number, not by turn: two crawls that reserve slots at the same hosts never wait for each other in a circle.
        for place, row in enumerate(sorted(hosts, key=lambda row: int(row["host"]))):
            share = -(-(want - len(taken)) // (len(hosts) - place))
            taken += await self._take_at(tx, crawl, holder, row, share, pace)
        return taken

    async def settle(self, tx: Tx, crawl: int, holder: Holder, report: Report, walked: int = 0) -> None:
        later = [done for done in report.settled if done.fate is Fate.OPEN]
        put_back = await tx.batch(
            "put_back_later",
            [(*_place(crawl, holder, done.task), done.retry_in, int(not done.untried)) for done in later],
        )
        numbers = await self._numbers(tx, report.found)
        await self._lock_hosts(tx, crawl, report, numbers)
        closed = await self._close(tx, crawl, holder, report.settled)
        added = await self._add(tx, crawl, report.found, report.skipped, numbers)
        await self._count_settled(tx, crawl, holder, closed, added, walked)
        await self._wake(tx, crawl, [*added.hosts, *(row["host"] for row in put_back)])

    async def quarantine(self, tx: Tx, crawl: int, traps: dict[str, Url]) -> None:
        for pattern, sample in sorted(traps.items()):
            await tx.execute("insert_trap", crawl=crawl, pattern=pattern, sample=sample)

    async def traps(self, tx: Tx, crawl: int) -> list[Trap]:
        rows = await tx.all("traps", crawl=crawl)
        return [Trap(row["pattern"], TrapState(row["state"]), row["sample"], row["count"]) for row in rows]

    async def free(self, tx: Tx, crawl: int, pattern: str) -> int | None:
        if not await tx.execute("free_trap", crawl=crawl, pattern=pattern):
            return None
        home = origin(Url(pattern))
        host = (await self._hosts.numbers(tx, [home]))[home]
        rows = await tx.all("quarantined_at_host", crawl=crawl, host=host)
        ours = [row for row in rows if pattern_of(Url(home + row["path"])) == pattern]
        places = [{"crawl": crawl, "host": host} | {name: row[name] for name in ("depth", "seq")} for row in ours]
        await tx.many("free_urls", places)
        await tx.many("set_fates", sorted((row["key"], row["chk"], crawl, int(Fate.OPEN)) for row in ours))
        await _count(tx, crawl, OUTSIDE, opened=len(ours))
        await self._wake(tx, crawl, [host] if ours else [])
        return len(ours)

    async def release(self, tx: Tx, crawl: int, holder: Holder) -> int:
        rows = await tx.all("release_urls", crawl=crawl, job_id=holder.job_id, epoch=holder.epoch)
        await self._wake(tx, crawl, (row["host"] for row in rows))
        await tx.execute("free_host_claims", crawl=crawl, job_id=holder.job_id, epoch=holder.epoch)
        return len(rows)

    async def recover(self, tx: Tx, crawl: int) -> int:
        rows = await tx.all("lost_urls", crawl=crawl)
        held = Counter((row["job_id"], row["epoch"]) for row in rows)
        lost = [_put_back(crawl, row, alone=held[row["job_id"], row["epoch"]] == 1) for row in rows]
        await tx.many("put_back_lost", lost)
        await self._wake(tx, crawl, (row["host"] for row in rows))
        return len(rows)

    async def taken(self, tx: Tx, crawl: int) -> int:
        return int(await tx.value("taken_count", crawl=crawl))

    async def held_hosts(self, tx: Tx, crawl: int, most: int) -> list[HeldHost]:
        rows = await tx.all("held_hosts", crawl=crawl, most=most)
        return [HeldHost(row["origin"], row["held_until"], row["held_status"]) for row in rows]

    async def next_in(self, tx: Tx, crawl: int) -> float | None:
        row = await tx.one("next_ready", crawl=crawl)
        return None if row is None else max(0, row["ready_at"] - row["now"]) / 1e6

    async def _numbers(self, tx: Tx, urls: list[NewUrl]) -> dict[str, int]:
        return await self._hosts.numbers(tx, sorted({origin(url.url) for url in urls if url.fate.waits}))

    async def _add(
        self, tx: Tx, crawl: int, urls: list[NewUrl], skipped: Sequence[SkippedUrl], numbers: dict[str, int]
    ) -> Added:
        """Record URLs that were not known. What waits is told apart one by one; what is skipped is only counted."""
        waiting = {(url.key, url.chk): url for url in reversed(urls) if url.fate.waits}
        skipped = [*skipped, *[(url.key, url.chk, url.fate) for url in urls if url.fate.skipped]]
        new, reopened = await self._fresh(tx, crawl, sorted((*key, url.fate) for key, url in waiting.items()))
        fresh = [waiting[key] for key in reversed(waiting) if key in new]
        await self._wait(tx, crawl, fresh, numbers)
        await _count_traps(tx, crawl, [url.url for url in fresh if url.fate is Fate.QUARANTINED])
        skips = await _skip(tx, crawl, skipped)
        opened = [numbers[origin(url.url)] for url in fresh if url.fate is Fate.OPEN]
        added = Added(len(new) + skips.total(), len(opened), set(opened), skips)
        skips.subtract(reopened)
        return added

    async def _close(self, tx: Tx, crawl: int, holder: Holder, settled: list[Settled]) -> list[Settled]:
        """Close what was really still ours; only that is counted, so a report that comes twice changes nothing."""
        trapped = [done for done in settled if done.fate is Fate.QUARANTINED]
        final = [done for done in settled if not done.fate.waits]
        closed = await tx.batch("close_urls", [_place(crawl, holder, done.task) for done in final])
        if trapped:
            closed += await tx.batch("quarantine_urls", [_place(crawl, holder, done.task) for done in trapped])
        ours = {(row["key"], row["chk"]) for row in closed}
        done_now = [done for done in [*final, *trapped] if (done.task.key, done.task.chk) in ours]
        await tx.many("set_fates", sorted((*_key(done), crawl, int(done.fate)) for done in done_now))
        pages = [(done.task.key, done.task.chk, done.page) for done in done_now if done.page is not None]
        await self._pages.insert(tx, crawl, pages)
        for (key, chk), record in [(_key(done), done.sitemap) for done in done_now if done.sitemap is not None]:
            await tx.execute("insert_sitemap", crawl=crawl, key=key, chk=chk, **asdict(record))
        return done_now

    async def _take_at(self, tx: Tx, crawl: int, holder: Holder, host: Any, share: int, pace: Pace) -> list[Task]:
        stands = standing(host)
        delay = pace.delay_at(stands)
        free_in = stands.free_in(delay)
        most = 1 if stands.is_wary or (pace.probe and not stands.robots_known) else share
        if pace.per_host is not None:
            most = min(most, await self._left_at(tx, crawl, holder, host, pace.per_host))
        slots = slots_within(most, free_in, delay)
        rows = await tx.all("due_at_host", crawl=crawl, host=host["host"], limit=slots) if slots else []
        found = [_task(host["host"], host["origin"], row) for row in rows]
        tasks = await self._reserve(tx, host["host"], found, delay, free_in)
        for task in tasks if stands.is_wary else ():
            task.is_wary = True
        await tx.many("mark_taken", [_place(crawl, holder, task) for task in tasks])
        again_in = (tasks[-1].start_in if tasks else free_in) - LEAD
        ready_at: int | None = host["now"] + int(1e6 * max(0.0, again_in))
        if len(found) < slots or (not most and not found):
            ready_at = await tx.value("next_due_at_host", crawl=crawl, host=host["host"])
        # The host goes to the back of the line; one with nothing left leaves it and is nobody's.
        claim = (None, None) if ready_at is None else (holder.job_id, holder.epoch)
        await tx.execute(
            "set_host_ready",
            crawl=crawl,
            host=host["host"],
            ready_at=ready_at,
            job_id=claim[0],
            epoch=claim[1],
        )
        return tasks

    async def _hosts_for(self, tx: Tx, crawl: int, holder: Holder, most: int, pace: Pace) -> list[Any]:
        """The hosts to take from: those that are ours or nobody's. Several walkers leave each other an equal share; one
        that finds none of its own takes part in the others'."""
        mark = {"crawl": crawl, "job_id": holder.job_id}
        rows = await tx.all("ready_hosts", **mark, epoch=holder.epoch, limit=most)
        if pace.walkers == 1:
            return rows
        others = await tx.all("others_hosts", **mark, limit=HOSTS_PER_TAKE)
        walkers = max(1, await tx.value("live_walkers", job_id=holder.job_id))
        share = -(-(len(rows) + len(others)) // walkers)
        ours = [row for row in rows if row["job_id"] == holder.job_id]
        free = [row for row in rows if row["job_id"] != holder.job_id]
        for row in ours[share:]:
            await tx.execute("let_go_of_host", crawl=crawl, host=row["host"])
        # What nobody else took for a while is ours whatever our share: a walker that died must not keep it waiting.
        stale = [row for row in free[max(0, share - len(ours)) :] if row["now"] - row["ready_at"] > 1e6 * UNWANTED]
        chosen = [*ours[:share], *free[: max(0, share - len(ours))], *stale]
        if chosen or not others:
            return chosen
        locked = await tx.all("lock_one_host", crawl=crawl, host=others[0]["host"])
        return others[:1] if locked else []

    async def _left_at(self, tx: Tx, crawl: int, holder: Holder, host: Any, limit: int) -> int:
        """How many pages the host may still give. One that has given all it may is closed, a batch at a time."""
        under_way = await tx.value("taken_at_host", crawl=crawl, host=host["host"])
        left: int = limit - host["pages"] - under_way
        if left <= 0 and not under_way:
            closed = await tx.all("close_host", crawl=crawl, host=host["host"], limit=CLOSED_AT_ONCE)
            fate = Fate.SKIPPED_HOST_BUDGET
            await tx.many("set_fates", sorted((row["key"], row["chk"], crawl, int(fate)) for row in closed))
            await _count(tx, crawl, holder.job_id, Counter({fate: len(closed)}), settled=len(closed))
        return max(0, left)

    async def _take_alone(self, tx: Tx, crawl: int, holder: Holder, row: Any, pace: Pace) -> list[Task]:
        host = row["host"]
        stands = (await self._hosts.standings(tx, [host]))[host]
        delay = pace.delay_at(stands)
        free_in = stands.free_in(delay)
        found = [_task(host, row["origin"], row)] if slots_within(1, free_in, delay) else []
        tasks = await self._reserve(tx, host, found, delay, free_in)
        await tx.many("mark_taken", [_place(crawl, holder, task) for task in tasks])
        return tasks

    async def _reserve(self, tx: Tx, host: int, tasks: list[Task], delay: float, free_in: float) -> list[Task]:
        """Those of the tasks that got a slot. Without a delay there are no slots to keep, and nothing to write."""
        if not tasks:
            return []
        granted = Grant(len(tasks), free_in)
        if delay:
            granted = (await self._hosts.reserve(tx, [Wish(host, len(tasks), delay)])).get(host, Grant())
        for place, task in enumerate(tasks[: granted.slots]):
            task.start_in = granted.first_in + place * delay
        return tasks[: granted.slots]

    async def _lock_hosts(self, tx: Tx, crawl: int, report: Report, numbers: dict[str, int]) -> None:
        """Every host row that this commit will touch, in the order of their numbers: two commits never wait for each
        other in a circle."""
        hosts = sorted({*numbers.values(), *(done.task.host for done in report.settled)})
        await tx.all("lock_hosts", crawl=crawl, hosts=hosts)

    async def _wake(self, tx: Tx, crawl: int, hosts: Iterable[int]) -> None:
        await tx.many("wake_hosts", [(crawl, host) for host in sorted(set(hosts))])

    async def _count_settled(
        self, tx: Tx, crawl: int, holder: Holder, final: list[Settled], added: Added, walked: int
    ) -> None:
        pages = [done.page for done in final if done.page is not None]
        added.skips.update(done.fate for done in final if done.fate.skipped)
        await _count(
            tx,
            crawl,
            holder.job_id,
            added.skips,
            opened=added.opened,
            settled=len(final),
            pages=sum(page.status is not None for page in pages),
            errors=sum(page.error_code is not None for page in pages),
            bytes=sum(page.received for page in pages),
            not_modified=sum(page.status == NOT_MODIFIED for page in pages),
            bytes_saved=sum(page.saved for page in pages),
            depth=max((page.depth for page in pages if page.status is not None), default=0),
            walked=walked,
        )
        await _count_traps(tx, crawl, [done.task.url for done in final if done.fate is Fate.QUARANTINED])
        per_host = Counter(done.task.host for done in final if done.page is not None and done.page.status is not None)
        await tx.many("count_host_pages", [(crawl, host, count) for host, count in sorted(per_host.items())])


async def _fresh_by_reading(tx: Tx, crawl: int, urls: list[SkippedUrl]) -> tuple[set[Key], Counter[Fate]]:
    """Record what is not known; what that was, and why those of it had been skipped that are open from now on.

    SQLite: the write lock is ours, so what is not there when we look is not there when we insert."""
    rows = await tx.all("known_keys", crawl=crawl, keys=[url[0] for url in urls])
    known = {(row["key"], row["chk"]): row["fate"] for row in rows}
    fresh = [url for url in urls if (url[0], url[1]) not in known] if known else urls
    again = [url for url in urls if url[2] is Fate.OPEN and known.get((url[0], url[1])) in REOPENING] if known else []
    await tx.many("insert_fates", [(key, chk, crawl, int(fate)) for key, chk, fate in fresh])
    await tx.many("set_fates", [(key, chk, crawl, int(fate)) for key, chk, fate in again])
    reopened = Counter(Fate(known[key, chk]) for key, chk, _ in again)
    return {(key, chk) for key, chk, _ in [*fresh, *again]}, reopened


async def _fresh_by_inserting(tx: Tx, crawl: int, urls: list[SkippedUrl]) -> tuple[set[Key], Counter[Fate]]:
    """The same on PostgreSQL, where the unique key decides between walkers that add at the same time."""
    rows = await tx.batch("add_fates", [(key, chk, crawl, int(fate)) for key, chk, fate in urls])
    reopened = [row["was"] for row in rows if row["reopened"]]
    if None in reopened:  # another walker skipped it just now: why, only a new snapshot tells
        raise Conflict
    return {(row["key"], row["chk"]) for row in rows}, Counter(map(Fate, reopened))


async def _skip(tx: Tx, crawl: int, urls: Sequence[SkippedUrl]) -> Counter[Fate]:
    """Record what is skipped and was not known; how many for each reason. One statement for each: how many rows it
    touched is all that must be known."""
    new: Counter[Fate] = Counter()
    for reason in sorted({fate for _, _, fate in urls}):
        number = int(reason)
        new[reason] = await tx.many(
            "keep_fates", sorted([(key, chk, crawl, number) for key, chk, fate in urls if fate is reason])
        )
    return new


async def _wait_numbered(tx: Tx, crawl: int, urls: list[NewUrl], numbers: dict[str, int]) -> None:
    """SQLite has no sequences: the numbers of a batch are taken together."""
    if urls:
        first = await tx.value("reserve_seq", count=len(urls))
        await tx.many("insert_waiting", [_waiting(crawl, url, numbers, first + i) for i, url in enumerate(urls)])


async def _wait(tx: Tx, crawl: int, urls: list[NewUrl], numbers: dict[str, int]) -> None:
    await tx.many("add_waiting", [_waiting(crawl, url, numbers, 0) for url in urls])


async def _count(tx: Tx, crawl: int, holder: str, skips: Counter[Fate] | None = None, **counts: int) -> None:
    words = sorted((fate.word, count) for fate, count in (skips or {}).items() if count)
    await tx.many("add_skips", [(crawl, holder, word, count) for word, count in words])
    if any(counts.values()):
        await tx.execute("add_counts", crawl=crawl, holder=holder, **(ZERO | counts))


async def _count_traps(tx: Tx, crawl: int, urls: list[Url]) -> None:
    for pattern, count in sorted(Counter(map(pattern_of, urls)).items()):
        await tx.execute("count_trap", crawl=crawl, pattern=pattern, count=count)


def _key(done: Settled) -> tuple[int, int]:
    return done.task.key, done.task.chk


def _waiting(crawl: int, url: NewUrl, numbers: dict[str, int], seq: int) -> tuple[Any, ...]:
    home = origin(url.url)
    due = NEVER if url.fate is Fate.QUARANTINED else 0
    depth, path = min(url.depth, 32767), url.url[len(home) :]
    return crawl, numbers[home], due, depth, seq, url.key, url.chk, url.parent_key, int(url.kind), path


def _task(host: int, home: str, row: Any) -> Task:
    return Task(
        key=row["key"],
        chk=row["chk"],
        host=host,
        due=row["due"],
        depth=row["depth"],
        seq=row["seq"],
        url=Url(home + row["path"]),
        parent=row["parent_url"],
        attempts=row["attempts"],
        crashes=row["crashes"],
        kind=KINDS[row["kind"]],
    )


def _place(crawl: int, holder: Holder, task: Task) -> tuple[Any, ...]:
    return crawl, task.host, task.due, task.depth, task.seq, holder.job_id, holder.epoch


def _put_back(crawl: int, row: Any, *, alone: bool) -> dict[str, Any]:
    # In company, a URL can only become a suspect; alone in flight, each further crash counts against it.
    crashes = row["crashes"] + 1 if alone else min(row["crashes"] + 1, max(row["crashes"], SUSPECT_FROM))
    place = {name: row[name] for name in ("host", "due", "depth", "seq", "job_id", "epoch")}
    return {"crawl": crawl, "crashes": crashes, **place}

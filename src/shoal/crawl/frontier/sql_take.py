"""One take of a walker on SQL: reads the ready hosts and their waiting URLs, and writes the decisions of the rotation.
The number of statements does not depend on the number of hosts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from msgspec.msgpack import Decoder

from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.rotation import HOSTS_PER_TAKE, HostBatch, HostCandidate, Rotation, share_hosts
from shoal.crawl.frontier.values import FrontierTask, Taken, UrlKind, key_of
from shoal.crawl.store import AdmissionChecks, HostRate
from shoal.hosts.store import HostStore, host_state
from shoal.queue.job import Fence
from shoal.web.page_fetcher import RedirectChain

KINDS = tuple(UrlKind)
CLOSED_AT_ONCE = 1000  # number of URLs that one take closes at a host that has reached its page limit
CHAIN = Decoder(RedirectChain)


class Take:
    """One take. It locks the rows of the hosts from which it takes URLs (on SQLite, the whole database)."""

    def __init__(self, tx: Tx, crawl: int, fence: Fence, rate: HostRate, admission: AdmissionChecks | None) -> None:
        self._tx = tx
        self._crawl = crawl
        self._fence = fence
        self._rate = rate
        self._hosts = HostStore()
        self._admission = admission
        self._key_seed = 0
        self._now_at = 0  # time when the hosts were read, by the store's clock
        self._closed = 0  # number of closed URLs at hosts that have reached their page limit
        self._has_targets = False  # whether any URL of the crawl redirects to a different URL

    async def take_suspect(self, row: Any, in_flight: int) -> Taken | None:
        """Take the suspect URL, which must be alone in flight, as soon as no other URL is in flight. Return None if the
        suspect's host may not be requested soon, so that the suspect does not hold up other URLs."""
        host = row["host"]
        states = await self._hosts.states(self._tx, [host])
        self._read_crawl(row)
        candidate = HostCandidate(host, row["origin"], states[host], row["pages"])
        rotation = Rotation([candidate], self._rate, 1, self._admission)
        [batch] = rotation.batches
        await self._limit(rotation)
        if batch.capacity <= 0:
            return None
        if in_flight:
            return self._taken([])
        batch.add_tried(self._tried(batch, [row]))
        await self._exclude(rotation, batch.tasks)
        await self._reserve(rotation)
        await self._hold(rotation.batches)
        return self._taken(rotation.tasks)

    async def take(self, want: int) -> Taken:
        """Take up to `want` URLs, spread evenly over the hosts that may be requested."""
        rotation = Rotation(await self._candidates(min(want, HOSTS_PER_TAKE)), self._rate, want, self._admission)
        await self._limit(rotation)
        await self._read(rotation)
        # This skips hosts that another commit has locked, so it may come after all other locks (0016).
        await self._reserve(rotation)
        await self._hold(rotation.batches)
        await self._line_up(rotation.batches)
        return self._taken(rotation.tasks)

    def _taken(self, tasks: list[FrontierTask]) -> Taken:
        skips = Counter({Fate.SKIPPED_HOST_BUDGET: self._closed})
        return Taken(tasks=tasks, settled=self._closed, skips=skips)

    async def _candidates(self, most: int) -> list[HostCandidate]:
        """Return the hosts to request: the hosts that are claimed by this walker or by nobody. Several walkers leave
        each other an equal share. A walker that finds no such host helps with a host of another walker."""
        tx, mark = self._tx, {"crawl": self._crawl, "job_id": self._fence.job_id}
        rows = await tx.all("ready_hosts", **mark, epoch=self._fence.epoch, limit=most)
        candidates = [
            HostCandidate(
                row["host"],
                row["origin"],
                host_state(row),
                row["pages"],
                claimed_by=row["job_id"],
                overdue_seconds=(row["now"] - row["ready_at"]) / 1e6,
            )
            for row in rows
        ]
        for row in rows[:1]:
            self._read_crawl(row)
        if self._rate.walkers == 1:
            return candidates
        others = await tx.all("hosts_of_others", **mark, limit=HOSTS_PER_TAKE)
        walkers = await tx.value("live_walkers", job_id=self._fence.job_id)
        share = share_hosts(candidates, len(others), walkers, self._fence.job_id)
        if share.let_go:
            await tx.execute("unclaim_hosts", crawl=self._crawl, hosts=share.let_go)
        if share.chosen or not others:
            return share.chosen
        locked = await tx.all("lock_one_host", crawl=self._crawl, host=others[0]["host"])
        self._read_crawl(others[0])
        # The page count of a host is known only under its lock.
        return [HostCandidate(row["host"], others[0]["origin"], host_state(others[0]), row["pages"]) for row in locked]

    def _read_crawl(self, row: Any) -> None:
        """Store the columns of a host row that are the same for the whole crawl."""
        self._key_seed, self._now_at, self._has_targets = row["key_seed"], row["now"], bool(row["has_targets"])

    async def _limit(self, rotation: Rotation) -> None:
        if rotation.needs_in_flight:
            rows = await self._tx.all("taken_at_hosts", crawl=self._crawl)
            for batch in rotation.limit({row["host"]: row["count"] for row in rows}):
                await self._close(batch)

    async def _close(self, batch: HostBatch) -> None:
        """Close waiting URLs of a host that has reached its page limit; a limited number per take."""
        place, fate = {"crawl": self._crawl, "host": batch.host, "limit": CLOSED_AT_ONCE}, Fate.SKIPPED_HOST_BUDGET
        rows = await self._tx.all("close_host", **place) or await self._tx.all("close_retries_at_host", **place)
        urls = [(Url(row["start"] or batch.origin + row["path"]), KINDS[row["kind"]]) for row in rows]
        keys = [key_of(url, self._key_seed, kind) for url, kind in urls]
        chains = [CHAIN.decode(row["chain"]) for row in rows if row["chain"] is not None]
        targets = sorted({(chain.key, chain.chk, self._crawl, int(fate)) for chain in chains})
        await self._tx.batch("set_settled_fates", targets)
        await self._tx.many("end_targets", targets)
        await self._tx.many("set_fates", sorted((*key, self._crawl, int(fate)) for key in keys))
        self._closed += len(keys)

    async def _read(self, rotation: Rotation) -> None:
        """Read waiting URLs: first URLs that were tried before, then the next URLs in the queue."""
        shares = rotation.shares()
        rows = await self._tx.batch("retries_at_hosts", [(self._crawl, batch.host, most) for batch, most in shares])
        rows_of, found = _by_host(rows), []
        for batch, _ in shares:
            tasks = self._tried(batch, rows_of.get(batch.host, []))
            batch.add_tried(tasks)
            found += tasks
        await self._exclude(rotation, found)
        last_seq: dict[int, int] = {}
        while rotation.has_rounds:
            shares, found = rotation.shares(), []
            places = [(self._crawl, batch.host, last_seq.get(batch.host, -1), most) for batch, most in shares]
            rows_of = _by_host(await self._tx.batch("untried_at_hosts", places))
            for batch, most in shares:
                tasks = self._untried(batch, rows_of.get(batch.host, []))
                if tasks:
                    last_seq[batch.host] = tasks[-1].seq
                batch.add_untried(tasks, most)
                found += tasks
            rotation.end_round(has_excluded=await self._exclude(rotation, found))

    def _tried(self, batch: HostBatch, rows: Iterable[Any]) -> list[FrontierTask]:
        tasks = []
        for row in rows:
            task = self._task(batch, row["seq"], KINDS[row["kind"]], row["path"], row["parent_url"], start=row["start"])
            task.attempts, task.crashes = row["attempts"], row["crashes"]
            if row["start"] is not None:
                task.target, task.chain = Url(batch.origin + row["path"]), CHAIN.decode(row["chain"])
            tasks.append(task)
        return tasks

    def _untried(self, batch: HostBatch, rows: Iterable[Any]) -> list[FrontierTask]:
        return [self._task(batch, seq, KINDS[kind], path, parent) for _, seq, kind, path, parent in rows]

    def _task(
        self, batch: HostBatch, seq: int, kind: UrlKind, path: str, parent: str | None, start: str | None = None
    ) -> FrontierTask:
        url = Url(start or batch.origin + path)
        key, chk = key_of(url, self._key_seed, kind)
        return FrontierTask(key, chk, batch.host, depth_at(seq), seq, url, parent, 0, 0, kind)

    async def _exclude(self, rotation: Rotation, found: list[FrontierTask]) -> bool:
        rows: list[Any] = []
        if found and self._has_targets:
            rows = await self._tx.all("targets_among", crawl=self._crawl, keys=[task.key for task in found])
        return rotation.exclude(found, {(row["key"], row["chk"]): Fate(row["fate"]) for row in rows})

    async def _reserve(self, rotation: Rotation) -> None:
        requests = rotation.slot_requests()
        rotation.grant(await self._hosts.reserve(self._tx, requests, timing=self._rate.timing) if requests else {})

    async def _hold(self, batches: list[HostBatch]) -> None:
        """Mark the taken URLs as held by this walker."""
        mark = self._crawl, self._fence.job_id, self._fence.epoch
        again = [(*mark, task.seq) for batch in batches for task in batch.tasks[: batch.tried]]
        untried = [(*mark, task.seq, batch.host) for batch in batches for task in batch.tasks[batch.tried :]]
        set_aside = [one for batch in batches for one in batch.set_aside]
        again += [(*mark, task.seq) for task, was_tried in set_aside if was_tried]
        untried += [(*mark, task.seq, task.host) for task, was_tried in set_aside if not was_tried]
        # Every take locks the hosts of its URLs, so the URLs that were read as waiting still wait (0017).
        await self._tx.many("hold_retries", again)
        await self._tx.many("hold_untried", untried)
        await self._tx.many("drop_untried", [(self._crawl, host, seq) for _, _, _, seq, host in untried])

    async def _line_up(self, batches: list[HostBatch]) -> None:
        """Move hosts to the back of the rotation. A host without waiting URLs is removed from the rotation and
        unclaimed."""
        spent = [batch.host for batch in batches if batch.is_spent]
        rows = await self._tx.batch("next_due_at_hosts", [(self._crawl, host) for host in spent])
        due = {host: min((row["due"] for row in rows if row["host"] == host), default=None) for host in spent}
        written = []
        for batch in batches:
            ready_at = due[batch.host] if batch.host in due else self._now_at + int(1e6 * batch.look_again_in_seconds)
            claim = (None, None) if ready_at is None else (self._fence.job_id, self._fence.epoch)
            written.append((self._crawl, batch.host, ready_at, *claim))
        await self._tx.many("set_hosts_ready", written)


def _by_host(rows: list[Any]) -> dict[int, list[Any]]:
    return {host: list(ours) for host, ours in groupby(rows, itemgetter("host"))}


DEPTH_BITS = 40  # number of bits below the depth bits: enough for a trillion URLs
DEEPEST = 32_767
NEVER = 1 << 62  # the due time of a URL in quarantine


def depth_at(place: int) -> int:
    return place >> DEPTH_BITS


class QueuePositions:
    """Allocates positions."""

    def __init__(self, dialect: str) -> None:
        self._numbered_here = dialect == "sqlite"  # on PostgreSQL, the queries number the rows from a sequence

    async def behind(self, tx: Tx, depths: Sequence[int]) -> list[int]:
        """Return a position for a URL of each depth, behind all earlier positions of that depth."""
        first = await tx.value("reserve_seq", count=len(depths)) if self._numbered_here and depths else 0
        step = int(self._numbered_here)
        return [(min(depth, DEEPEST) << DEPTH_BITS) + first + step * order for order, depth in enumerate(depths)]

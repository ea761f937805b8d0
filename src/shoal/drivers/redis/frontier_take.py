"""One take of a walker on Redis: read the hosts that are ready and their waiting URLs, and give the walker the URLs
that the rotation chose. URLs that a different walker has taken meanwhile are left out, so nothing needs to be
locked."""

from collections import Counter
from typing import Any

from shoal.base.database import Tx
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.rotation import HOSTS_PER_TAKE, HostBatch, HostCandidate, Rotation, share_hosts
from shoal.crawl.frontier.values import FrontierTask, Taken
from shoal.crawl.store import AdmissionChecks, HostRate
from shoal.drivers.redis.connection import Value
from shoal.drivers.redis.frontier_records import (
    CrawlPlace,
    WaitingUrl,
    depth_word,
    live_walkers,
    pack_key,
    read_entry,
    read_record,
    record_of,
    seq_word,
    walker_name,
)
from shoal.hosts.store import HostStore
from shoal.queue.job import Fence

CLOSED_AT_ONCE = 200  # URLs of a host that has reached its page limit
SUSPECTS_AT_ONCE = 20


class WalkerTurns:
    """Numbers the calls of each walker in this process. If the number of the walker's last call is different on the
    server, the server has lost writes, perhaps links that the walker found and will not send again."""

    def __init__(self) -> None:
        self._made: dict[Fence, int] = {}

    def begin(self, fence: Fence) -> None:
        self._made = {one: number for one, number in self._made.items() if one.job_id != fence.job_id}

    def last(self, fence: Fence) -> int:
        return self._made.get(fence, 0)

    def made(self, fence: Fence) -> None:
        self._made[fence] = self._made.get(fence, 0) + 1


class RedisTake:
    """One take."""

    def __init__(
        self,
        tx: Tx,
        place: CrawlPlace,
        fence: Fence,
        rate: HostRate,
        turns: WalkerTurns,
        admission: AdmissionChecks | None,
    ) -> None:
        self._tx = tx
        self._place = place
        self._fence = fence
        self._walker = walker_name(fence)
        self._rate = rate
        self._hosts = HostStore()
        self._turns = turns
        self._admission = admission
        self._has_targets = False  # whether any URL of the crawl redirects
        self._closed = 0  # URLs of hosts that have reached their page limit
        self._let_go: list[int] = []
        self._waiting: dict[int, WaitingUrl] = {}  # waiting URLs by the place of their task
        self._entries: dict[int, bytes] = {}  # entries of new URLs
        self._new = -1  # new URLs get their place when they are taken; until then, each has a temporary negative number

    async def take_suspect(self, in_flight: int) -> Taken | None:
        """Take a suspect, which must be the only URL in flight, once no other URL is in flight. Return None if there is
        no suspect, or if its host may not be requested soon, so that the suspect does not hold up other URLs."""
        rows, has_targets = await self._place.run("suspects", SUSPECTS_AT_ONCE)
        if not rows:
            return None
        self._has_targets = bool(has_targets)
        found = [(int(word, 16), read_record(record)) for word, record in zip(rows[::2], rows[1::2], strict=True)]
        numbers = sorted({waiting.host for _, waiting in found})
        states, origins = await self._hosts.states(self._tx, numbers), await self._origins(numbers)
        free = [one for one in found if not states[one[1].host].held_seconds]
        if not free:
            return None
        seq, waiting = free[0]
        host = waiting.host
        [[pages]] = await self._place.run("pages", host)
        candidate = HostCandidate(host, origins[host], states[host], int(pages or 0))
        rotation = Rotation([candidate], self._rate, 1, self._admission)
        [batch] = rotation.batches
        await self._limit(rotation)
        if batch.capacity <= 0:
            return None
        if in_flight:
            return self._taken([])
        batch.add_tried(self._tasks(batch, [(seq, waiting)]))
        await self._exclude(rotation, batch.tasks)
        await self._reserve(rotation)
        return self._taken(await self._hold(rotation, moves_hosts=False))

    async def take(self, want: int) -> Taken:
        """Take up to `want` URLs, spread evenly over the hosts that may be requested."""
        candidates = await self._candidates(min(want, HOSTS_PER_TAKE))
        if not candidates and not self._let_go:
            return self._taken([])
        rotation = Rotation(candidates, self._rate, want, self._admission)
        await self._limit(rotation)
        await self._read(rotation)
        await self._reserve(rotation)
        return self._taken(await self._hold(rotation, moves_hosts=True))

    def _taken(self, tasks: list[FrontierTask]) -> Taken:
        skips = Counter({Fate.SKIPPED_HOST_BUDGET: self._closed})
        return Taken(tasks=tasks, settled=self._closed, skips=skips, is_counted=True)

    async def _candidates(self, most: int) -> list[HostCandidate]:
        """Return the hosts to request: hosts that this walker or no live walker has claimed. Several walkers leave each
        other equal shares; a walker that finds no such host helps with a host of a different walker."""
        found = await self._place.run("hosts", self._walker, most, HOSTS_PER_TAKE)
        ours, others, self._has_targets = found[0], found[1], bool(found[2])
        if others:
            live = await live_walkers(self._tx, sorted({row[2].decode() for row in others}))
            ours = sorted(
                [*ours, *(row for row in others if row[2].decode() not in live)], key=lambda row: float(row[1])
            )
            others = [row for row in others if row[2].decode() in live]
        candidates = await self._as_candidates(ours[:most])
        if self._rate.walkers == 1:
            return candidates
        walkers = await self._tx.value("live_walkers", job_id=self._fence.job_id)
        share = share_hosts(candidates, len(others), walkers, self._fence.job_id)
        self._let_go = share.let_go
        if share.chosen or not others:
            return share.chosen
        return await self._as_candidates(others[:1])

    async def _as_candidates(self, rows: list[Any]) -> list[HostCandidate]:
        numbers = [int(row[0]) for row in rows]
        if not numbers:
            return []
        states, origins = await self._hosts.states(self._tx, numbers), await self._origins(numbers)
        return [
            HostCandidate(
                host,
                origins[host],
                states[host],
                int(pages),
                claimed_by=claim.decode().rpartition(":")[0] or None,
                overdue_seconds=(self._place.now - float(ready_at)) / 1e6,
            )
            for host, (_, ready_at, claim, pages) in zip(numbers, rows, strict=True)
        ]

    async def _origins(self, numbers: list[int]) -> dict[int, str]:
        rows = await self._tx.all("host_origins", hosts=numbers)
        return {row["number"]: row["origin"] for row in rows}

    async def _limit(self, rotation: Rotation) -> None:
        if rotation.needs_in_flight:
            [found] = await self._place.run("held")
            in_flight = Counter(int(host) for _, rows in found for host in rows[1::3])
            for batch in rotation.limit(in_flight):
                await self._close(batch)

    async def _close(self, batch: HostBatch) -> None:
        """Close the waiting URLs of a host that has reached its page limit, a limited number per take."""
        values: list[Value] = []
        for what in ("U", "A"):
            [[rows]] = await self._place.run("peek", what, batch.host, 0, CLOSED_AT_ONCE)
            for where, stored in zip(rows[::2], rows[1::2], strict=True):
                waiting = read_entry(batch.host, stored) if what == "U" else read_record(stored)
                key = pack_key(*waiting.key(batch.origin, self._place.key_seed))
                target = b"" if waiting.chain is None else pack_key(waiting.chain.key, waiting.chain.chk)
                values += ["U" if what == "U" else "T", where, stored if what == "U" else b"", key, target]
            if values:
                break
        suspects = [] if values else await self._suspects_at(batch)
        values += suspects
        if values:
            fate = int(Fate.SKIPPED_HOST_BUDGET)
            [closed] = await self._place.change(self._tx, "close", batch.host, fate, *values)
            self._closed += closed

    async def _suspects_at(self, batch: HostBatch) -> list[Value]:
        rows, _ = await self._place.run("suspects", CLOSED_AT_ONCE)
        values: list[Value] = []
        for word, record in zip(rows[::2], rows[1::2], strict=True):
            waiting = read_record(record)
            if waiting.host == batch.host:
                target = b"" if waiting.chain is None else pack_key(waiting.chain.key, waiting.chain.chk)
                values += ["T", word, b"", record[:12], target]
        return values

    async def _read(self, rotation: Rotation) -> None:
        """Read waiting URLs: first the URLs that were tried before, then the next URLs in the queue."""
        shares = rotation.shares()
        found: list[FrontierTask] = []
        for (batch, _), rows in zip(
            shares, await self._peek("R", [(one, 0, most) for one, most in shares]), strict=True
        ):
            pairs = zip(rows[::2], rows[1::2], strict=True)
            tasks = self._tasks(batch, [(int(word, 16), read_record(record)) for word, record in pairs])
            batch.add_tried(tasks)
            found += tasks
        await self._exclude(rotation, found)
        read: Counter[int] = Counter()
        while rotation.has_rounds:
            shares, found = rotation.shares(), []
            answers = await self._peek("U", [(one, read[one.host], most) for one, most in shares])
            for (batch, most), rows in zip(shares, answers, strict=True):
                tasks = self._new_tasks(batch, rows)
                read[batch.host] += len(tasks)
                batch.add_untried(tasks, most)
                found += tasks
            rotation.end_round(has_excluded=await self._exclude(rotation, found))
        await self._name_parents(rotation)

    async def _peek(self, what: str, wanted: list[tuple[HostBatch, int, int]]) -> list[Any]:
        if not wanted:
            return []
        values = [value for batch, skip, most in wanted for value in (batch.host, skip, most)]
        [rows] = await self._place.run("peek", what, *values)
        return list(rows)

    def _tasks(self, batch: HostBatch, found: list[tuple[int, WaitingUrl]]) -> list[FrontierTask]:
        tasks = []
        for seq, waiting in found:
            self._waiting[seq] = waiting
            tasks.append(waiting.task(batch.origin, self._place.key_seed, seq))
        return tasks

    def _new_tasks(self, batch: HostBatch, rows: list[bytes]) -> list[FrontierTask]:
        tasks = []
        for depth, entry in zip(rows[::2], rows[1::2], strict=True):
            waiting = read_entry(batch.host, entry)
            task = waiting.task(batch.origin, self._place.key_seed, self._new)
            task.depth = int(depth, 16)
            self._waiting[self._new], self._entries[self._new] = waiting, entry
            self._new -= 1
            tasks.append(task)
        return tasks

    async def _name_parents(self, rotation: Rotation) -> None:
        """Look up the URLs of the parents: the pages and sitemaps that led to the URLs just read."""
        tasks = rotation.tasks
        keys = {parent for task in tasks if (parent := self._waiting[task.seq].parent) is not None}
        if keys:
            rows = await self._tx.all("parent_urls", crawl=self._place.number, keys=sorted(keys))
            urls = {row["key"]: row["url"] for row in rows}
            for task in tasks:
                task.parent = urls.get(self._waiting[task.seq].parent)

    async def _exclude(self, rotation: Rotation, found: list[FrontierTask]) -> bool:
        fates: dict[tuple[int, int], Fate] = {}
        if found and self._has_targets:
            keys = [pack_key(task.key, task.chk) for task in found]
            [values] = await self._place.run("targets", *keys)
            for task, stored in zip(found, values, strict=True):
                if stored:
                    fates[task.key, task.chk] = Fate(int(stored[:2]))
        return rotation.exclude(found, fates)

    async def _reserve(self, rotation: Rotation) -> None:
        requests = rotation.slot_requests()
        rotation.grant(await self._hosts.reserve(self._tx, requests, timing=self._rate.timing) if requests else {})

    async def _hold(self, rotation: Rotation, *, moves_hosts: bool) -> list[FrontierTask]:
        """Take the URLs, and move hosts to the back of the rotation. Return the URLs that no other walker has taken
        meanwhile."""
        tasks = rotation.tasks
        values: list[Value] = []
        for task in tasks:
            waiting, key = self._waiting[task.seq], pack_key(task.key, task.chk)
            if task.seq < 0:
                where: tuple[Value, Value] = depth_word(task.depth), self._entries[task.seq]
                values += ["U", waiting.host, *where, record_of(key, waiting)]
            else:
                values += ["T", waiting.host, seq_word(task.seq), b"", key]
        hosts: list[Value] = []
        for batch in rotation.batches if moves_hosts else ():
            ready = "" if batch.is_spent else self._place.now + int(1e6 * batch.look_again_in_seconds)
            hosts += [batch.host, ready]
        for host in self._let_go:
            hosts += [host, "x"]
        if not tasks and not hosts:
            return []
        turn = self._turns.last(self._fence)
        counts = len(tasks), len(hosts) // 2
        [words] = await self._place.run("take", self._walker, turn, *counts, *values, *hosts)
        self._turns.made(self._fence)
        taken = []
        for task, word in zip(tasks, words, strict=True):
            if word:
                task.seq = int(word, 16)
                taken.append(task)
        return taken

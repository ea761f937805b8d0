"""One take of a walker on SQL: a round over the hosts that may be asked, in the same few statements whatever their
number. How hard a host may be asked is the host store's to say; what becomes of what was taken, the frontier's."""

from collections import Counter, defaultdict
from typing import Any

from msgspec import Struct, field
from msgspec.msgpack import Decoder

from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, UrlKind, key_of
from shoal.crawl.store import Admission, HostRate
from shoal.fetch.redirect_chain import RedirectChain
from shoal.hosts.rate import HostStanding, SlotRequest, SlotsGranted, slots_within
from shoal.hosts.store import HostStore
from shoal.queue.job import Fence
from shoal.store.sql.counters import count
from shoal.store.sql.hosts import standing
from shoal.store.sql.queue_position import depth_at

KINDS = tuple(UrlKind)
HOSTS_PER_TAKE = 64
ROUNDS = 3  # what some hosts lack, the others may give: asked for so often
MOST_ROUNDS = 50  # likewise, when what was found is not to be fetched: that must not keep a slot from being used
CLOSED_AT_ONCE = 1000
UNWANTED = 1.0  # seconds after which a host that waits for its walker goes to any
LEAD = 1.0  # seconds: how long before its next slot a host is looked at again
CHAIN = Decoder(RedirectChain)
AWAITED = 1.0  # seconds after which a host whose answer is awaited is looked at again, unless the answer comes before


class HostBatch(Struct, eq=False):
    """A host on the round, and what was found there: `again` of them were tried before."""

    host: int
    home: str
    key_seed: int
    now: int
    pages: int
    stands: HostStanding
    delay: float
    most: int  # that it may give, whatever its slots
    has_targets: bool  # whether any URL of the crawl redirects to another one
    again: int = 0
    last: int = -1  # where in its line the next question begins
    found: list[FrontierTask] = field(default_factory=list)
    unwanted: list[tuple[FrontierTask, bool]] = field(
        default_factory=list
    )  # with a verdict; whether it was tried before
    dry: bool = False  # it had less than was asked for
    awaited: bool = False  # what it answers to the URL that is under way decides whether it gets another

    @property
    def free_in(self) -> float:
        return self.stands.free_in(self.delay)

    @property
    def room(self) -> int:
        """For how many more it has a slot."""
        return slots_within(self.most, self.free_in, self.delay) - len(self.found)

    def find(self, rows: list[Any], *, again: bool = False) -> list[FrontierTask]:
        for row in rows:
            url, kind = Url(self.home + row["path"]), KINDS[row["kind"]]
            seq, tries, crashes = row["seq"], row["attempts"], row["crashes"]
            target, chain = None, None
            if again and row["start"] is not None:
                target, chain, url = url, CHAIN.decode(row["chain"]), Url(row["start"])
            key, chk = key_of(url, self.key_seed, kind)
            task = FrontierTask(key, chk, self.host, depth_at(seq), seq, url, row["parent_url"], tries, crashes, kind)
            task.target, task.chain = target, chain
            self.found.append(task)
        if again:
            self.again = len(self.found)
        elif rows:
            self.last = self.found[-1].seq
        return self.found[len(self.found) - len(rows) :]

    def set_aside(self, verdicts: dict[int, Fate]) -> None:
        """What is not to be fetched needs no slot; `verdicts` are by place in line."""
        for order, task in enumerate(self.found):
            if task.seq in verdicts:
                task.verdict = verdicts[task.seq]
                self.unwanted.append((task, order < self.again))
        self.again -= sum(task.seq in verdicts for task in self.found[: self.again])
        self.found = [task for task in self.found if task.seq not in verdicts]

    def accept(self, granted: SlotsGranted) -> None:
        """Only what got a slot is taken."""
        del self.found[granted.slots :]
        self.again = min(self.again, len(self.found))
        for place, task in enumerate(self.found):
            task.start_in = granted.first_in + place * self.delay
            task.is_wary = self.stands.is_wary

    @property
    def ready_at(self) -> int:
        """When to look at it again, if it has more."""
        if self.awaited:
            return self.now + int(1e6 * AWAITED)
        again_in = (self.found[-1].start_in if self.found else self.free_in) - LEAD
        return self.now + int(1e6 * max(0.0, again_in))


class Take:
    """One take. The hosts that it asks are locked by their rows, or everything is."""

    def __init__(
        self, tx: Tx, crawl: int, holder: Fence, pace: HostRate, hosts: HostStore, admission: Admission | None
    ) -> None:
        self._tx = tx
        self._crawl = crawl
        self._holder = holder
        self._pace = pace
        self._hosts = hosts
        self._admission = admission

    async def alone(self, row: Any, in_flight: int) -> list[FrontierTask] | None:
        """The one URL that must be alone in flight, once nothing else is. None if its host may not be asked soon: then
        it holds nobody back."""
        stands = (await self._hosts.standings(self._tx, [row["host"]]))[row["host"]]
        stop = self._stop(row, stands, 1)
        await self._limit([stop])
        if stop.room <= 0:
            return None
        if in_flight:
            return []
        await self._judge([stop], stop.find([row], again=True))
        await self._reserve([stop])
        await self._hold([stop])
        return [*stop.found, *(task for task, _ in stop.unwanted)]

    async def round(self, want: int) -> list[FrontierTask]:
        """Up to so many URLs, shared out evenly over the hosts that may be asked."""
        rows = await self._ready(min(want, HOSTS_PER_TAKE))
        stops = [self._stop(row, standing(row), want) for row in sorted(rows, key=lambda row: int(row["host"]))]
        await self._limit(stops)
        await self._ask(stops, want)
        await self._reserve(stops)
        await self._hold(stops)
        await self._line_up(stops)
        unwanted = [task for stop in stops for task, _ in stop.unwanted]
        return [task for stop in stops for task in stop.found] + unwanted

    def _stop(self, row: Any, stands: HostStanding, want: int) -> HostBatch:
        most = 1 if stands.is_wary or (self._pace.probe and not stands.robots_known) else want
        delay, home = self._pace.delay_at(stands), row["origin"]
        if delay and self._admission is not None and not self._admission.knows(home):
            most = 1  # its rules may forbid the others, whose slots would be lost
        seed, targets = row["key_seed"], bool(row["has_targets"])
        return HostBatch(row["host"], home, seed, row["now"], row["pages"], stands, delay, most, targets)

    async def _ready(self, most: int) -> list[Any]:
        """The hosts to take from: those that are ours or nobody's. Several walkers leave each other an equal share; one
        that finds none of its own takes part in the others'."""
        tx, mark = self._tx, {"crawl": self._crawl, "job_id": self._holder.job_id}
        rows = await tx.all("ready_hosts", **mark, epoch=self._holder.epoch, limit=most)
        if self._pace.walkers == 1:
            return rows
        others = await tx.all("others_hosts", **mark, limit=HOSTS_PER_TAKE)
        walkers = max(1, await tx.value("live_walkers", job_id=self._holder.job_id))
        share = -(-(len(rows) + len(others)) // walkers)
        ours = [row for row in rows if row["job_id"] == self._holder.job_id]
        free = [row for row in rows if row["job_id"] != self._holder.job_id]
        if ours[share:]:
            await tx.execute("let_go_of_hosts", crawl=self._crawl, hosts=[row["host"] for row in ours[share:]])
        # What nobody else took for a while is ours whatever our share: a walker that died must not keep it waiting.
        stale = [row for row in free[max(0, share - len(ours)) :] if row["now"] - row["ready_at"] > 1e6 * UNWANTED]
        chosen = [*ours[:share], *free[: max(0, share - len(ours))], *stale]
        if chosen or not others:
            return chosen
        locked = await tx.all("lock_one_host", crawl=self._crawl, host=others[0]["host"])
        # How many pages it gave is known only under the lock.
        return [dict(others[0]) | dict(row) for row in locked]

    async def _limit(self, stops: list[HostBatch]) -> None:
        """What is under way at a host counts: after a hold one URL asks, and none gives more pages than it may."""
        limit, wary = self._pace.per_host, [stop for stop in stops if stop.stands.is_wary]
        if limit is None and not wary:
            return
        rows = await self._tx.all("taken_at_hosts", crawl=self._crawl)
        under_way = {row["host"]: row["count"] for row in rows}
        for stop in wary:
            if stop.host in under_way:
                stop.most, stop.awaited = 0, True
        if limit is not None:
            await self._spend(stops, limit, under_way)

    async def _spend(self, stops: list[HostBatch], limit: int, under_way: dict[int, int]) -> None:
        """No host gives more pages than it may. One that has given them all is closed, a batch at a time."""
        for stop in stops:
            left = limit - stop.pages - under_way.get(stop.host, 0)
            stop.most = min(stop.most, max(0, left))
            if left <= 0 and stop.host not in under_way:
                await self._close(stop)

    async def _close(self, stop: HostBatch) -> None:
        place, fate = {"crawl": self._crawl, "host": stop.host, "limit": CLOSED_AT_ONCE}, Fate.SKIPPED_HOST_BUDGET
        rows = await self._tx.all("close_host", **place) or await self._tx.all("close_host_again", **place)
        urls = [(Url(row["start"] or stop.home + row["path"]), KINDS[row["kind"]]) for row in rows]
        keys = [key_of(url, stop.key_seed, kind) for url, kind in urls]
        chains = [CHAIN.decode(row["chain"]) for row in rows if row["chain"] is not None]
        targets = sorted({(chain.key, chain.chk, self._crawl, int(fate)) for chain in chains})
        await self._tx.batch("set_settled_fates", targets)
        await self._tx.many("end_targets", targets)
        await self._tx.many("set_fates", sorted((*key, self._crawl, int(fate)) for key in keys))
        await count(self._tx, self._crawl, self._holder.job_id, Counter({fate: len(keys)}), settled=len(keys))

    async def _ask(self, stops: list[HostBatch], want: int) -> None:
        """What waits: what was tried before first, then as it stands in line."""
        asked = _share(stops, want)
        rows = await self._tx.batch("again_at_hosts", [(self._crawl, stop.host, most) for stop, most in asked])
        answers = _by_host(rows)
        found = [task for stop, _ in asked for task in stop.find(answers[stop.host], again=True)]
        await self._judge(stops, found)
        rounds = 0.0
        while rounds < ROUNDS:
            asked = _share(stops, want - sum(len(stop.found) for stop in stops))
            places = [(self._crawl, stop.host, stop.last, most) for stop, most in asked]
            answers = _by_host(await self._tx.batch("untried_at_hosts", places))
            found = []
            for stop, most in asked:
                found += stop.find(answers[stop.host])
                stop.dry = len(answers[stop.host]) < most
            rounds += ROUNDS / MOST_ROUNDS if await self._judge(stops, found) else 1

    async def _judge(self, stops: list[HostBatch], found: list[FrontierTask]) -> bool:
        """Set aside what is not to be fetched: what the walker knows to be forbidden, where slots are kept, and what is
        fetched at the end of another URL's redirects. Whether there was any."""
        paced = {stop.host for stop in stops if stop.delay} if self._admission is not None else set()
        verdicts: dict[int, Fate] = {}
        for task in found:
            if task.host in paced and self._admission is not None:
                fate = self._admission.verdict(task)
                if fate is not None:
                    verdicts[task.seq] = fate
        if found and any(stop.has_targets for stop in stops):
            rows = await self._tx.all("targets_among", crawl=self._crawl, keys=[task.key for task in found])
            fates = {(row["key"], row["chk"]): Fate(row["fate"]) for row in rows}
            for task in found:
                if task.chain is None and (fate := fates.get((task.key, task.chk))) is not None:
                    verdicts[task.seq] = fate
        for stop in stops if verdicts else ():
            stop.set_aside(verdicts)
        return bool(verdicts)

    async def _reserve(self, stops: list[HostBatch]) -> None:
        """Without a delay there are no slots to keep, and nothing to write."""
        wishes = [SlotRequest(stop.host, len(stop.found), stop.delay) for stop in stops if stop.delay and stop.found]
        granted = await self._hosts.reserve(self._tx, wishes) if wishes else {}
        for stop in stops:
            free = SlotsGranted(len(stop.found), stop.free_in)
            stop.accept(granted.get(stop.host, SlotsGranted()) if stop.delay else free)

    async def _hold(self, stops: list[HostBatch]) -> None:
        mark = self._crawl, self._holder.job_id, self._holder.epoch
        again = [(*mark, task.seq) for stop in stops for task in stop.found[: stop.again]]
        untried = [(*mark, task.seq, stop.host) for stop in stops for task in stop.found[stop.again :]]
        unwanted = [one for stop in stops for one in stop.unwanted]
        again += [(*mark, task.seq) for task, was_tried in unwanted if was_tried]
        untried += [(*mark, task.seq, task.host) for task, was_tried in unwanted if not was_tried]
        await self._tx.many("hold_again", again)
        await self._tx.many("hold_untried", untried)
        await self._tx.many("drop_untried", [(self._crawl, host, seq) for _, _, _, seq, host in untried])

    async def _line_up(self, stops: list[HostBatch]) -> None:
        """Hosts go to the back of the line; one with nothing left leaves it and is nobody's."""
        empty = [stop.host for stop in stops if stop.dry or not (stop.most or stop.found or stop.awaited)]
        rows = await self._tx.batch("next_due_at_hosts", [(self._crawl, host) for host in empty])
        due = {host: min((row["due"] for row in rows if row["host"] == host), default=None) for host in empty}
        ready = [(stop.host, due.get(stop.host, stop.ready_at)) for stop in stops]
        claim = self._holder.job_id, self._holder.epoch
        nobody = None, None
        await self._tx.many(
            "set_hosts_ready", [(self._crawl, host, at, *(nobody if at is None else claim)) for host, at in ready]
        )


def _share(stops: list[HostBatch], want: int) -> list[tuple[HostBatch, int]]:
    """How much to ask of each host that may have more: equal parts, no more than it has room for."""
    able = [stop for stop in stops if not stop.dry and stop.room > 0]
    parts = [want // len(able) + (place < want % len(able)) for place in range(len(able))]
    return [(stop, min(part, stop.room)) for stop, part in zip(able, parts, strict=True) if part]


def _by_host(rows: list[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        found[row["host"]].append(row)
    return found

"""The rotation over hosts: which hosts a walker takes URLs from next, and how many from each.

Pure code: a frontier driver reads candidates, asks a `Rotation` for decisions, and writes these decisions. All times
count from the moment at which the candidates were read.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask
from shoal.crawl.store import AdmissionChecks, HostRate
from shoal.hosts.rate import HostState, SlotRequest, SlotsGranted, slots_within

HOSTS_PER_TAKE = 64
ROUNDS = 3  # maximum number of reads per take: hosts with more URLs are read again to make up for hosts that ran dry
MOST_ROUNDS = 50  # the limit while reads find URLs to set aside, because such URLs must not leave a slot unused
UNCLAIMED_SECONDS = 1.0  # after this time, any walker may take a host outside its share
LEAD_SECONDS = 1.0  # time before its next free slot at which a host is checked again
AWAITED_SECONDS = 1.0  # time until a host is checked again while a response from it is awaited


class HostCandidate(Struct, frozen=True):
    """A host that has waiting URLs and whose turn has come."""

    host: int
    origin: str
    state: HostState
    pages: int = 0  # number of pages fetched from the host in this crawl so far
    claimed_by: str | None = None  # the job of the walker that claimed the host
    overdue_seconds: float = 0.0  # time since the host's turn came


class HostShare(Struct, frozen=True):
    """The hosts that one of several walkers may take from, and the hosts that it leaves to the other walkers."""

    chosen: list[HostCandidate]
    let_go: list[int]


def share_hosts(candidates: Sequence[HostCandidate], others: int, walkers: int, job_id: str) -> HostShare:
    """Divide the hosts that are ready among the walkers of a crawl; return the share of the walker with this job.

    `candidates` are the hosts that are claimed by this walker or by no live walker, the longest waiting host first.
    `others` is the number of ready hosts that other walkers have claimed. Hosts that nobody took for a while are added
    to the share, so that a dead walker does not keep them waiting.
    """
    share = -(-(len(candidates) + others) // max(1, walkers))
    ours = [one for one in candidates if one.claimed_by == job_id]
    free = [one for one in candidates if one.claimed_by != job_id]
    vacant = max(0, share - len(ours))
    unclaimed = [one for one in free[vacant:] if one.overdue_seconds > UNCLAIMED_SECONDS]
    return HostShare([*ours[:share], *free[:vacant], *unclaimed], [one.host for one in ours[share:]])


class HostBatch(Struct, eq=False):
    """The URLs that one take gets from one host. The first `tried` tasks in the list were tried before."""

    host: int
    origin: str
    pages: int  # number of pages fetched from the host in this crawl so far
    state: HostState
    delay_seconds: float  # between two requests
    most: int  # maximum number of URLs to take, even if the host has more slots
    tasks: list[FrontierTask] = field(default_factory=list)
    tried: int = 0
    # Tasks that must not be fetched; the flag is set if the task was tried before.
    set_aside: list[tuple[FrontierTask, bool]] = field(default_factory=list)
    is_dry: bool = False  # the host had fewer URLs than were requested
    is_awaited: bool = False  # the response to the URL in flight decides whether the host gets another URL
    awaiting: int = 0  # number of set-aside URLs that may end with a page: they need no slot, but count as pages

    @property
    def free_in_seconds(self) -> float:
        return self.state.free_in_seconds(self.delay_seconds)

    @property
    def capacity(self) -> int:
        """The number of further URLs for which the host has a slot."""
        return slots_within(self.most, self.free_in_seconds, self.delay_seconds) - len(self.tasks)

    def add_tried(self, tasks: list[FrontierTask]) -> None:
        """Add URLs that were tried before. They come before all other URLs of the host."""
        self.tasks += tasks
        self.tried = len(self.tasks)

    def add_untried(self, tasks: list[FrontierTask], asked_for: int) -> None:
        """Add the next URLs in the host's queue. If there are fewer than requested, the host has no more URLs."""
        self.tasks += tasks
        self.is_dry = len(tasks) < asked_for

    def exclude(self, skip_fates: Mapping[int, Fate | None]) -> None:
        """Set aside the URLs that must not be fetched, given by their positions in the queue. They need no slot. URLs
        that wait for the outcome of their redirect targets have no fate yet."""
        for order, task in enumerate(self.tasks):
            if task.seq in skip_fates:
                task.skip_fate = skip_fates[task.seq]
                self.awaiting += task.awaits_target
                self.set_aside.append((task, order < self.tried))
        self.tried -= sum(task.seq in skip_fates for task in self.tasks[: self.tried])
        self.tasks = [task for task in self.tasks if task.seq not in skip_fates]

    def grant(self, granted: SlotsGranted) -> None:
        """Keep only the URLs that got a slot, and set the start time of each URL to the time of its slot."""
        del self.tasks[granted.slots :]
        self.tried = min(self.tried, len(self.tasks))
        first, delay, counted_at = granted.first_in_seconds, self.delay_seconds, granted.counted_at
        is_recovering = self.state.is_recovering
        for place, task in enumerate(self.tasks):
            task.start_in_seconds = first + place * delay
            task.is_recovering = is_recovering
            if counted_at:
                task.slot_at, task.delay_seconds = counted_at + task.start_in_seconds, delay

    @property
    def is_spent(self) -> bool:
        """Return whether the host's next turn must be computed from its waiting URLs, because the host ran dry or
        reached its limit."""
        return self.is_dry or not (self.most or self.tasks or self.is_awaited)

    @property
    def look_again_in_seconds(self) -> float:
        """The time until the host's next turn, if it has more URLs."""
        if self.is_awaited:
            return AWAITED_SECONDS
        last = self.tasks[-1].start_in_seconds if self.tasks else self.free_in_seconds
        return max(0.0, last - LEAD_SECONDS)


class Rotation:
    """One take of up to `want` URLs, distributed evenly over the hosts that may be requested.

    A driver calls `limit`. It then reads the numbers of URLs that `shares` returns: first URLs that were tried before,
    then, while `has_rounds`, the next URLs in the queues. It calls `exclude` after each read and `end_round` after each
    round, and finally `slot_requests` and `grant`.
    """

    def __init__(
        self, candidates: Iterable[HostCandidate], rate: HostRate, want: int, admission: AdmissionChecks | None = None
    ) -> None:
        self._rate = rate
        self._want = want
        self._admission = admission
        self._rounds = 0.0
        self.batches = [self._batch(one) for one in sorted(candidates, key=lambda one: one.host)]

    def _batch(self, host: HostCandidate) -> HostBatch:
        state = host.state
        delay, most = self._rate.effective_delay_seconds(state), self._want
        if state.is_recovering or (self._rate.probe and not state.robots_known):
            most = 1
        elif delay and self._admission is not None and not self._admission.knows(host.origin):
            most = 1  # the robots.txt of the host may forbid further URLs, and their slots would be wasted
        return HostBatch(host.host, host.origin, host.pages, state, delay, most)

    @property
    def needs_in_flight(self) -> bool:
        """Return whether `limit` needs the number of URLs in flight for each host."""
        return self._rate.per_host is not None or any(batch.state.is_recovering for batch in self.batches)

    def limit(self, in_flight: Mapping[int, int]) -> list[HostBatch]:
        """Apply the limits of hosts, given the number of URLs in flight for each host. Return the hosts to close
        because they have reached their page limit. A recovering host gets one URL at a time."""
        for batch in self.batches:
            if batch.state.is_recovering and batch.host in in_flight:
                batch.most, batch.is_awaited = 0, True
        if self._rate.per_host is None:
            return []
        to_close = []
        for batch in self.batches:
            left = self._rate.per_host - batch.pages - in_flight.get(batch.host, 0)
            batch.most = min(batch.most, max(0, left))
            if left <= 0 and batch.host not in in_flight:
                to_close.append(batch)
        return to_close

    def shares(self) -> list[tuple[HostBatch, int]]:
        """Return how many URLs to take from each host that may have more URLs: equal parts, limited by the host's
        slots."""
        want = self._want - sum(len(batch.tasks) + batch.awaiting for batch in self.batches)
        able = [batch for batch in self.batches if not batch.is_dry and batch.capacity > 0]
        parts = [want // len(able) + (place < want % len(able)) for place in range(len(able))]
        return [(batch, min(part, batch.capacity)) for batch, part in zip(able, parts, strict=True) if part]

    @property
    def has_rounds(self) -> bool:
        return self._rounds < ROUNDS

    def end_round(self, *, has_excluded: bool) -> None:
        """Count a round of reads. A round in which URLs were set aside counts only as a small fraction of a round, so
        that more rounds follow."""
        self._rounds += ROUNDS / MOST_ROUNDS if has_excluded else 1

    def exclude(self, found: Sequence[FrontierTask], redirect_fates: Mapping[tuple[int, int], Fate]) -> bool:
        """Set aside the URLs just found that must not be fetched; return whether there were any. These are URLs that
        the walker knows to be forbidden (checked only at hosts with a delay), URLs that are fetched as redirect targets
        of other URLs (`redirect_fates`, by key and check), and URLs whose redirect target belongs to a different
        URL."""
        skip_fates: dict[int, Fate | None] = {
            task.seq: None for task in found if task.chain is not None and task.awaits_target
        }
        if self._admission is not None:
            paced = {batch.host for batch in self.batches if batch.delay_seconds}
            for task in found:
                if task.host in paced and (fate := self._admission.skip_fate(task)) is not None:
                    skip_fates[task.seq] = fate
        for task in found if redirect_fates else ():
            if task.chain is None and (fate := redirect_fates.get((task.key, task.chk))) is not None:
                skip_fates[task.seq] = fate
        for batch in self.batches if skip_fates else ():
            before = batch.awaiting
            batch.exclude(skip_fates)
            if self._rate.per_host is not None:
                batch.most -= batch.awaiting - before
        return bool(skip_fates)

    def slot_requests(self) -> list[SlotRequest]:
        """The slots to reserve. A host without a delay needs none."""
        paced = [batch for batch in self.batches if batch.delay_seconds and batch.tasks]
        return [SlotRequest(batch.host, len(batch.tasks), batch.delay_seconds) for batch in paced]

    def grant(self, granted: Mapping[int, SlotsGranted]) -> None:
        """Keep only the URLs that got a slot at their host."""
        for batch in self.batches:
            free = SlotsGranted(len(batch.tasks), batch.free_in_seconds)
            batch.grant(granted.get(batch.host, SlotsGranted()) if batch.delay_seconds else free)

    @property
    def tasks(self) -> list[FrontierTask]:
        """All taken URLs. URLs that must not be fetched come last."""
        kept = [task for batch in self.batches for task in batch.tasks]
        return kept + [task for batch in self.batches for task, _ in batch.set_aside]

"""Collect journal entries from the commits of one walker. Most commits have none, and cost nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.base.clock import Clock
from shoal.crawl.frontier.values import Turn, WalkerBatch
from shoal.crawl.journal import messages
from shoal.crawl.journal.entry import JournalEntry
from shoal.crawl.lifecycle.failed_urls import MAX_LISTED, FailedSeed
from shoal.hosts.throttle import HostUpdate

EVERY_SECONDS = 60.0  # between two entries on the same subject
FIRST_LOOK_SECONDS = 1.0  # until the next check whether a depth is finished; doubled each time
MOST_HOSTS = 1000  # hosts whose last report is remembered


@dataclass(frozen=True, slots=True)
class JournalUpdate:
    """The additions of one commit to the journal: entries, whether to report the number of URLs found, and the depth to
    report if everything up to it is settled."""

    entries: list[JournalEntry] = field(default_factory=list)
    found: bool = False
    depth: int | None = None


class JournalReporter:
    """Decides which events in the commits of one walker are worth an entry."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[JournalEntry] = []  # for the next commit
        self._found = False  # URLs were found since the last report
        self._report_at = 0.0
        self._depth = 0  # the lowest depth not known to be finished
        self._seen = 0  # lowest depth of the URLs taken last
        self._look_at, self._look_interval_seconds = 0.0, FIRST_LOOK_SECONDS
        self._dead_seeds = 0
        self._hosts: dict[str, float] = {}  # hosts on hold, and when each was reported

    def update_for(self, batch: WalkerBatch) -> JournalUpdate | None:
        """Return what the commit of this batch adds to the journal; None if nothing."""
        self._found = self._found or bool(batch.found)
        if self._dead_seeds <= MAX_LISTED:
            for seed in filter(None, map(FailedSeed.settled, batch.settled)):
                self._seed_failed(seed)
        for pattern, sample in batch.traps.items():
            self._waiting.append(messages.trapped(pattern, sample))
        now = self._clock.monotonic()
        found = self._found and now >= self._report_at
        depth = self._depth if self._seen > self._depth and now >= self._look_at else None
        return JournalUpdate(self._waiting, found, depth) if found or self._waiting or depth is not None else None

    def _seed_failed(self, seed: FailedSeed) -> None:
        self._dead_seeds += 1
        if self._dead_seeds <= MAX_LISTED:
            self._waiting.append(messages.seed_failed(seed))
        elif self._dead_seeds == MAX_LISTED + 1:
            self._waiting.append(messages.more_seeds_failed())

    def learn(self, update: JournalUpdate | None, turn: Turn) -> None:
        """Update the state from the result of that commit."""
        if turn.work:
            self._seen = min([task.depth for task in turn.work])
        if update is None or not turn.is_journaled:
            return
        self._waiting = []
        if update.found:
            self._found, self._report_at = False, self._clock.monotonic() + EVERY_SECONDS
        if turn.finished is not None:
            self._depth, self._look_interval_seconds = turn.finished + 1, FIRST_LOOK_SECONDS
            self._report_at = 0.0
        elif update.depth is not None:
            self._look_at = self._clock.monotonic() + self._look_interval_seconds
            self._look_interval_seconds = min(2 * self._look_interval_seconds, EVERY_SECONDS)

    def held(self, updates: Mapping[int, HostUpdate], hold_seconds: Mapping[int, float]) -> None:
        """Report hosts that were put on hold."""
        now = self._clock.monotonic()
        if len(self._hosts) > MOST_HOSTS:
            self._hosts.clear()
        for host, seconds in hold_seconds.items():
            update = updates[host]
            if now >= self._hosts.get(update.origin, 0.0):
                self._hosts[update.origin] = now + EVERY_SECONDS
                self._waiting.append(messages.held(update, seconds))

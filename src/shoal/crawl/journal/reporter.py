"""Collect journal entries from the commits of one walker. Most commits have none, and cost nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.base.clock import Clock
from shoal.crawl.frontier.values import Turn, WalkerBatch
from shoal.crawl.journal import messages
from shoal.crawl.journal.entry import JournalEntry
from shoal.hosts.throttle import HostNews

EVERY = 60.0  # seconds between two entries on the same subject
FIRST_LOOK = 1.0  # seconds until the next check whether a depth is finished; doubled each time
MOST_HOSTS = 1000  # hosts whose last report is remembered


@dataclass(frozen=True, slots=True)
class JournalNews:
    """What a commit adds to the journal: entries, whether to report the number of URLs found, and the depth to report
    if everything up to it is settled."""

    lines: list[JournalEntry] = field(default_factory=list)
    found: bool = False
    depth: int | None = None


class JournalReporter:
    """Decides which events in the commits of one walker are worth an entry."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[JournalEntry] = []  # for the next commit
        self._found = False  # URLs were found since the last report
        self._tell_at = 0.0
        self._depth = 0  # the lowest depth not known to be finished
        self._seen = 0  # lowest depth of the URLs taken last
        self._look_at, self._patience = 0.0, FIRST_LOOK
        self._hosts: dict[str, float] = {}  # hosts on hold, and when each was reported

    def news(self, report: WalkerBatch) -> JournalNews | None:
        """Return the journal news for the commit of this batch."""
        self._found = self._found or bool(report.found)
        for pattern, sample in report.traps.items():
            self._waiting.append(messages.trapped(pattern, sample))
        now = self._clock.monotonic()
        found = self._found and now >= self._tell_at
        depth = self._depth if self._seen > self._depth and now >= self._look_at else None
        return JournalNews(self._waiting, found, depth) if found or self._waiting or depth is not None else None

    def learn(self, news: JournalNews | None, turn: Turn) -> None:
        """Update the state from the result of that commit."""
        if turn.work:
            self._seen = min([task.depth for task in turn.work])
        if news is None or not turn.is_journaled:
            return
        self._waiting = []
        if news.found:
            self._found, self._tell_at = False, self._clock.monotonic() + EVERY
        if turn.finished is not None:
            self._depth, self._patience = turn.finished + 1, FIRST_LOOK
            self._tell_at = 0.0
        elif news.depth is not None:
            self._look_at = self._clock.monotonic() + self._patience
            self._patience = min(2 * self._patience, EVERY)

    def held(self, news: Mapping[int, HostNews], holds: Mapping[int, float]) -> None:
        """Report hosts that were put on hold."""
        now = self._clock.monotonic()
        if len(self._hosts) > MOST_HOSTS:
            self._hosts.clear()
        for host, seconds in holds.items():
            told = news[host]
            if now >= self._hosts.get(told.origin, 0.0):
                self._hosts[told.origin] = now + EVERY
                self._waiting.append(messages.held(told, seconds))

"""What one walker has to tell of its way, for the journal. Seldom: most commits have nothing to say and pay nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.base.clock import Clock
from shoal.crawl.frontier.values import Turn, WalkerBatch
from shoal.crawl.journal import messages
from shoal.crawl.journal.entry import JournalEntry
from shoal.hosts.throttle import HostNews

EVERY = 60.0  # seconds between two lines about the same
FIRST_LOOK = 1.0  # seconds until it is asked again whether a depth is finished; twice as many each time
MOST_HOSTS = 1000  # of which it is known when they were told of


@dataclass(frozen=True, slots=True)
class JournalNews:
    """What a commit adds to the journal: lines, how many URLs were found, and, if everything of a depth is settled by
    then, that it is."""

    lines: list[JournalEntry] = field(default_factory=list)
    found: bool = False
    depth: int | None = None


class JournalReporter:
    """Listens to the commits of one walker, and says what is worth a line."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[JournalEntry] = []  # for the next commit
        self._found = False  # more URLs than were told of
        self._tell_at = 0.0
        self._depth = 0  # that is not known to be finished
        self._seen = 0  # the depth of what was taken last
        self._look_at, self._patience = 0.0, FIRST_LOOK
        self._hosts: dict[str, float] = {}  # that are held, and when that was told

    def news(self, report: WalkerBatch) -> JournalNews | None:
        """What the commit of this report has to tell."""
        self._found = self._found or bool(report.found)
        for pattern, sample in report.traps.items():
            self._waiting.append(messages.trapped(pattern, sample))
        now = self._clock.monotonic()
        found = self._found and now >= self._tell_at
        depth = self._depth if self._seen > self._depth and now >= self._look_at else None
        return JournalNews(self._waiting, found, depth) if found or self._waiting or depth is not None else None

    def learn(self, news: JournalNews | None, turn: Turn) -> None:
        """How that commit went."""
        if turn.work:
            self._seen = min([task.depth for task in turn.work])
        if news is None or not turn.is_told:
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
        """Hosts asked us to wait."""
        now = self._clock.monotonic()
        if len(self._hosts) > MOST_HOSTS:
            self._hosts.clear()
        for host, seconds in holds.items():
            told = news[host]
            if now >= self._hosts.get(told.origin, 0.0):
                self._hosts[told.origin] = now + EVERY
                self._waiting.append(messages.held(told, seconds))

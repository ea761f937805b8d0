"""What one walker learns of its hosts from their answers: who asks us to wait, who is well again, who is slow.

It judges and remembers. The engine stops asking a held host at once; the store makes the news durable and shared, and
decides how long a back-off is, for others may have heard the same.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from shoal.base.clock import Clock, span
from shoal.base.retry_after import parse_retry_after
from shoal.base.signals import Signal, Signals
from shoal.hosts.refusals import ENOUGH, WITHIN, with_refusals
from shoal.settings import HostSettings

REFUSED = 503
THROTTLED = frozenset({429, REFUSED})
TIMEOUTS = frozenset({"total_timeout", "idle_timeout", "connect_timeout"})
WEIGHT = 0.3  # of the newest answer in the smoothed latency
TELLING = 1.5  # by this factor a latency changes before it is told again
TELL_AGAIN = 300.0  # seconds: a host that stays slow is told again before the store forgets it
SLACK = 0.1  # seconds by which a slot may seem to come before the end of the hold that it was reserved behind
MOST_HOSTS = 10_000  # that are remembered


class HostNews(Struct):
    """What one commit tells about a host. Durations are microseconds, as they are stored."""

    origin: str
    status: int = 0  # of an answer that asks us to wait; 0: there was none
    hold: int = 0  # how long it asks for; 0: the back-off decides
    first: int = 0  # the shortest back-off
    most: int = 0  # the longest
    grows: bool = False  # whether it doubles
    refused: list[int] = field(default_factory=list)  # URLs, by their hashes, that answered 503
    is_well: bool = False  # it gave a good answer, before it asked us to wait if it did that, too
    latency: int | None = None

    @property
    def answered(self) -> int:
        """The status that holds it."""
        return self.status or REFUSED


def throttle_news(origin: str, status: int, asked: timedelta | None, settings: HostSettings) -> HostNews:
    """A host asks us to wait: as long as it asked for, or by our back-off."""
    first, most = span(settings.backoff), span(settings.longest_backoff)
    return HostNews(origin, status, span(asked) if asked else 0, first, most, grows=asked is None)


class HostAnswer(Struct, frozen=True):
    """What the watch needs of one fetch. `page`: the hash of its URL, the same for everybody who asks for it;
    `attempts`: how often it was tried before."""

    origin: str
    host: int
    page: int
    attempts: int
    status: int | None
    seconds: float
    error: str | None = None
    retry_after: str | None = None


class _Bout(Struct):
    """Answers that ask us to wait, with no good one between them."""

    until: float = 0.0
    pages: set[int] = field(default_factory=set)  # that were well before it


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHeld(Signal):
    """A host asked us to wait (429, or 503 for several URLs): nobody asks it for a while, as long as it said
    (`retry_after`) or for a back-off of our own (`backoff`)."""

    crawl_id: str | None
    origin: str
    status: int
    why: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldsBegun(Signal):
    """How many hosts one commit found held, by what decides: `retry_after` or `backoff`."""

    holds: dict[str, int]


def emit_holds(
    signals: Signals, news: Mapping[int, HostNews], holds: Mapping[int, float], crawl_id: str | None = None
) -> None:
    """Say which hosts are held now, and for how long."""
    count: Counter[str] = Counter()
    for host, seconds in holds.items():
        told = news[host]
        why = "retry_after" if told.hold else "backoff"
        count[why] += 1
        signals.emit(HostHeld(crawl_id=crawl_id, origin=told.origin, status=told.answered, why=why, seconds=seconds))
    if count:
        signals.emit(HoldsBegun(holds=dict(count)))


class ThrottleTracker:
    """The hosts of one walk. `ease`: seconds of delay for each second that a host takes to answer, 0 if that does not
    matter; `delay`: the walk's own."""

    def __init__(self, settings: HostSettings, clock: Clock, *, ease: float = 0.0, delay: float = 0.0) -> None:
        self._settings = settings
        self._clock = clock
        self._ease = ease
        self._delay = delay
        self._slowest = settings.longest_slow_delay.total_seconds()
        self._bouts: dict[int, _Bout] = {}
        self._refusals: dict[int, dict[int, float]] = {}  # of each host, the URLs that answered 503 lately, and when
        self._latency: dict[int, float] = {}
        self._told: dict[int, tuple[float, float]] = {}  # the latency that was told, and when
        self._news: dict[int, HostNews] = {}
        self._sent: dict[int, HostNews] = {}  # on its way to the store
        self.is_attentive = ease > 0  # whether good answers matter, too

    def change(self, *, ease: float, delay: float) -> None:
        """The walk goes on at another pace."""
        self._ease, self._delay = ease, delay
        self.is_attentive = ease > 0 or bool(self._bouts)

    def hear(self, answer: HostAnswer) -> bool:
        """Judge an answer; whether it begins a hold."""
        if answer.status == REFUSED:
            return self._refused(answer)
        if answer.status in THROTTLED:
            return self._throttled(answer)
        if answer.status is not None and answer.status < 500 and not self.holds(answer.host):
            self._well(answer)
        if self._ease and (answer.status is not None or answer.error in TIMEOUTS):
            self._time(answer)
        return False

    def holds(self, host: int) -> bool:
        """Whether the host must not be asked just now."""
        return self.held_for(host) > 0

    def held_for(self, host: int) -> float:
        """Seconds until the host may be asked again."""
        bout = self._bouts.get(host)
        return 0.0 if bout is None else max(0.0, bout.until - self._clock.monotonic())

    def beware(self, host: int) -> None:
        """The store says that the host was held: its next answer tells whether it is well."""
        self._bout(host)

    def news(self) -> dict[int, HostNews]:
        """What is to be told: once, if `learn` says that it arrived."""
        self._sent, self._news = self._news, {}
        return self._sent

    def learn(self, holds: dict[int, float]) -> None:
        """What was told is stored, and for so long hosts are held by it."""
        self._sent = {}
        for host, seconds in holds.items():
            bout = self._bout(host)
            bout.until = max(bout.until, self._clock.monotonic() + seconds - SLACK)

    def forget(self) -> None:
        """What was told may not have reached the store: it is told again, with what came after it."""
        later, self._news, self._sent = self._news, self._sent, {}
        for host, news in later.items():
            before = self._news.get(host)
            self._news[host] = news if before is None else _both(before, news)

    def _refused(self, answer: HostAnswer) -> bool:
        """Judge a 503: one URL is held by its own retry. Whether its host is, the store knows, for others may have
        been refused as well; what we heard ourselves is enough to stop at once."""
        asked = self._asked(answer)
        if asked is None and self.holds(answer.host):
            return False  # asked before the hold began: nothing new
        before, now = self._refusals.pop(answer.host, {}), self._clock.monotonic()
        refusals = self._refusals[answer.host] = with_refusals(before, [answer.page], now, float(WITHIN))
        if len(self._refusals) > MOST_HOSTS:
            del self._refusals[next(iter(self._refusals))]
        begins = len(refusals) >= ENOUGH and self._throttled(answer)
        news = self._tell(answer)
        if not news.status:
            might = throttle_news(answer.origin, 0, asked, self._settings)
            news.hold, news.first, news.most = max(news.hold, might.hold), might.first, might.most
            news.grows = news.grows or (might.grows and answer.attempts == 0)
        if answer.page not in news.refused:
            news.refused.append(answer.page)
        return begins

    def _asked(self, answer: HostAnswer) -> timedelta | None:
        return parse_retry_after(answer.retry_after, self._clock.now(), self._settings.longest_retry_after)

    def _throttled(self, answer: HostAnswer) -> bool:
        asked = self._asked(answer)
        was_held = self.holds(answer.host)
        if was_held and asked is None:
            return False  # asked before the hold began: nothing new
        bout = self._bout(answer.host)
        wait = asked if asked is not None else self._settings.backoff
        bout.until = max(bout.until, self._clock.monotonic() + wait.total_seconds())
        # A page that failed before this bout says little about its host: it does not make others wait longer.
        is_new = answer.attempts == 0 or answer.page in bout.pages
        if is_new:
            bout.pages.add(answer.page)
        news = throttle_news(answer.origin, answer.status or 0, asked, self._settings)
        before = self._tell(answer)
        news.hold, news.latency, news.is_well = max(news.hold, before.hold), before.latency, before.is_well
        news.refused = before.refused
        news.grows = before.grows if before.status else news.grows and is_new
        self._news[answer.host] = news
        return True

    def _well(self, answer: HostAnswer) -> None:
        if self._bouts.pop(answer.host, None) is not None:
            before = self._tell(answer)
            self._news[answer.host] = _both(before, HostNews(answer.origin, is_well=True, latency=before.latency))
            self.is_attentive = self._ease > 0 or bool(self._bouts)

    def _time(self, answer: HostAnswer) -> None:
        """Smooth the latency; tell it when it changed by a lot and makes a difference."""
        taken = self._slowest if answer.error in TIMEOUTS else min(answer.seconds, self._slowest)
        if len(self._latency) >= MOST_HOSTS:
            self._latency.clear()
            self._told.clear()
        before = self._latency.get(answer.host, taken)
        latency = self._latency[answer.host] = before + WEIGHT * (taken - before)
        matters = latency if latency * self._ease > self._delay else 0.0
        told, told_at = self._told.get(answer.host, (0.0, 0.0))
        if not _differs(matters, told) and (not matters or self._clock.monotonic() - told_at < TELL_AGAIN):
            return
        self._told[answer.host] = (matters, self._clock.monotonic())
        self._tell(answer).latency = round(matters * 1e6)

    def _tell(self, answer: HostAnswer) -> HostNews:
        return self._news.setdefault(answer.host, HostNews(answer.origin))

    def _bout(self, host: int) -> _Bout:
        self.is_attentive = True
        if len(self._bouts) > MOST_HOSTS:
            self._bouts.clear()
        return self._bouts.setdefault(host, _Bout())


def _both(before: HostNews, after: HostNews) -> HostNews:
    """One piece of news that says what two said, one after the other."""
    if after.latency is None:
        after.latency = before.latency
    if after.is_well and before.status:
        return after  # whatever it asked for is over
    after.refused = list(dict.fromkeys((*before.refused, *after.refused)))
    if before.status and not after.status:
        return replace(before, latency=after.latency, refused=after.refused)
    after.is_well = after.is_well or before.is_well
    if before.status or before.refused:
        after.hold, after.first, after.most = max(before.hold, after.hold), before.first, before.most
        after.grows = before.grows if before.status else after.grows or before.grows
    return after


def _differs(latency: float, told: float) -> bool:
    low, high = sorted((latency, told))
    return high > 0 and (low == 0 or high / low >= TELLING)

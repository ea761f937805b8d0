"""The throttle tracker of one walker: learns from responses which hosts ask us to wait, have recovered, or are slow.

It evaluates and remembers responses. The engine stops requesting a held host at once; the store makes the result
durable and shared, and decides the length of a back-off, because other processes may have got the same responses.
"""

from collections import Counter
from collections.abc import Mapping
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
WEIGHT = 0.3  # of the newest response in the smoothed latency
TELLING = 1.5  # a latency that changed by this factor is reported again
TELL_AGAIN = 300.0  # seconds: a host that stays slow is reported again before the store forgets it
SLACK = 0.1  # seconds by which a slot may seem to precede the end of the hold after which it was reserved
MOST_HOSTS = 10_000  # maximum number of hosts remembered


class HostNews(Struct):
    """The report of one commit about a host. Durations are microseconds, as stored."""

    origin: str
    status: int = 0  # of a response that asks us to wait; 0: there was none
    hold: int = 0  # the wait it asks for; 0: the back-off decides
    first: int = 0  # the shortest back-off
    most: int = 0  # the longest
    grows: bool = False  # whether it doubles
    refused: list[int] = field(default_factory=list)  # URLs, by their hashes, that answered 503
    is_well: bool = False  # it gave a good response, before any that asked us to wait
    latency: int | None = None

    @property
    def answered(self) -> int:
        """The status that puts it on hold."""
        return self.status or REFUSED


def throttle_news(origin: str, status: int, asked: timedelta | None, settings: HostSettings) -> HostNews:
    """Return the news that a host asks us to wait: for as long as it said, or for our back-off."""
    first, most = span(settings.backoff), span(settings.longest_backoff)
    return HostNews(origin, status, span(asked) if asked else 0, first, most, grows=asked is None)


class HostAnswer(Struct, frozen=True):
    """The facts about one fetch that the tracker needs. `page`: the hash of its URL, the same in every process;
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
    """Consecutive responses that ask us to wait, without a good one between them."""

    until: float = 0.0
    pages: set[int] = field(default_factory=set)  # that had not failed before it


class HostHeld(Signal, frozen=True, kw_only=True):
    """A host was put on hold (429, or 503 for several URLs): nobody requests it for as long as it asked (`retry_after`)
    or for our own back-off (`backoff`)."""

    crawl_id: str | None
    origin: str
    status: int
    why: str
    seconds: float


class HoldsBegun(Signal, frozen=True, kw_only=True):
    """The number of hosts held in one commit, by reason: `retry_after` or `backoff`."""

    holds: dict[str, int]


def emit_holds(
    signals: Signals, news: Mapping[int, HostNews], holds: Mapping[int, float], crawl_id: str | None = None
) -> None:
    """Emit signals for the hosts that are held now, with the duration."""
    count: Counter[str] = Counter()
    for host, seconds in holds.items():
        told = news[host]
        why = "retry_after" if told.hold else "backoff"
        count[why] += 1
        signals.emit(HostHeld(crawl_id=crawl_id, origin=told.origin, status=told.answered, why=why, seconds=seconds))
    if count:
        signals.emit(HoldsBegun(holds=dict(count)))


class ThrottleTracker:
    """Tracks the hosts of one walker. `ease`: seconds of delay per second of latency, 0 to ignore latency; `delay`: the
    walker's own delay."""

    def __init__(self, settings: HostSettings, clock: Clock, *, ease: float = 0.0, delay: float = 0.0) -> None:
        self._settings = settings
        self._clock = clock
        self._ease = ease
        self._delay = delay
        self._slowest = settings.longest_slow_delay.total_seconds()
        self._bouts: dict[int, _Bout] = {}
        self._refusals: dict[int, dict[int, float]] = {}  # per host: the URLs that answered 503 lately, and when
        self._latency: dict[int, float] = {}
        self._told: dict[int, tuple[float, float]] = {}  # the latency that was reported, and when
        self._news: dict[int, HostNews] = {}
        self._sent: dict[int, HostNews] = {}  # being written to the store
        self.is_attentive = ease > 0  # whether good responses matter, too

    def change(self, *, ease: float, delay: float) -> None:
        """Continue with another rate."""
        self._ease, self._delay = ease, delay
        self.is_attentive = ease > 0 or bool(self._bouts)

    def hear(self, answer: HostAnswer) -> bool:
        """Evaluate a response; return whether it starts a hold."""
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
        """Return whether the host must not be requested now."""
        return self.held_for(host) > 0

    def held_for(self, host: int) -> float:
        """Return the seconds until the host may be requested again."""
        bout = self._bouts.get(host)
        return 0.0 if bout is None else max(0.0, bout.until - self._clock.monotonic())

    def beware(self, host: int) -> None:
        """Note that the store had the host on hold: its next response shows whether it has recovered."""
        self._bout(host)

    def news(self) -> dict[int, HostNews]:
        """Return the news to store; `learn` confirms it, `forget` queues it again."""
        self._sent, self._news = self._news, {}
        return self._sent

    def learn(self, holds: dict[int, float]) -> None:
        """Confirm that the news was stored, and apply the resulting holds, in seconds per host."""
        self._sent = {}
        for host, seconds in holds.items():
            bout = self._bout(host)
            bout.until = max(bout.until, self._clock.monotonic() + seconds - SLACK)

    def forget(self) -> None:
        """Merge the sent news with later news, to be sent again: it may not have reached the store."""
        later, self._news, self._sent = self._news, self._sent, {}
        for host, news in later.items():
            before = self._news.get(host)
            self._news[host] = news if before is None else _both(before, news)

    def _refused(self, answer: HostAnswer) -> bool:
        """Evaluate a 503. One URL is delayed by its own retry. Only the store knows whether the host is held, because
        other processes may have been refused as well; enough refusals of our own stop us at once."""
        asked = self._asked(answer)
        if asked is None and self.holds(answer.host):
            return False  # requested before the hold began: nothing new
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
            return False  # requested before the hold began: nothing new
        bout = self._bout(answer.host)
        wait = asked if asked is not None else self._settings.backoff
        bout.until = max(bout.until, self._clock.monotonic() + wait.total_seconds())
        # A page that failed before this bout says little about its host: it does not lengthen the back-off.
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
        """Smooth the latency; report it when it changed considerably and affects the delay."""
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
    """Merge two pieces of news, in this order, into one."""
    if after.latency is None:
        after.latency = before.latency
    if after.is_well and before.status:
        return after  # any wait it asked for is over
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

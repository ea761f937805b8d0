"""The throttle tracker of one walker: learns from responses which hosts ask us to wait, have recovered, or are slow.

It evaluates and remembers responses. The engine stops requesting a held host at once; the store makes the result
durable and shared, and decides the length of a back-off, because other processes may have got the same responses.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from shoal.base.clock import Clock
from shoal.base.retry_after import parse_retry_after
from shoal.base.signals import Signal, Signals
from shoal.hosts.refusals import WITHIN, concern_host, with_refusals
from shoal.settings import HostSettings

REFUSED = 503
THROTTLED = frozenset({429, REFUSED})
TIMEOUTS = frozenset({"total_timeout", "idle_timeout", "connect_timeout"})
WEIGHT = 0.3  # weight of the newest response in the smoothed latency
REPORT_FACTOR = 1.5  # a latency that changed by this factor is reported again
REPORT_AGAIN = 300.0  # seconds: a host that stays slow is reported again before the store forgets it
SLACK = 0.1  # tolerance in seconds: a slot reserved after a hold may appear to begin this much before the hold ends
MOST_HOSTS = 10_000  # maximum number of hosts remembered


class HostUpdate(Struct):
    """The report of one commit about a host."""

    origin: str
    status: int = 0  # status of a response that asks us to wait; 0: there was none
    hold: timedelta = timedelta(0)  # the wait it asks for; 0: the back-off decides
    first: timedelta = timedelta(0)  # the shortest back-off
    most: timedelta = timedelta(0)  # the longest
    grows: bool = False  # whether it doubles
    refused: list[int] = field(default_factory=list)  # URLs, by their hashes, that answered 503
    recovered: bool = False  # it responded normally, before any response that asked us to wait
    latency: float | None = None  # seconds

    @property
    def answered(self) -> int:
        """The status that puts it on hold."""
        return self.status or REFUSED


def throttle_update(origin: str, status: int, asked: timedelta | None, settings: HostSettings) -> HostUpdate:
    """Return the update for a host that asks us to wait: for the time it gave, or for our back-off."""
    first, most = settings.backoff, settings.longest_backoff
    return HostUpdate(origin, status, asked or timedelta(0), first, most, grows=asked is None)


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


class _Streak(Struct):
    """Consecutive responses that ask us to wait, without a good one between them."""

    until: float = 0.0
    pages: set[int] = field(default_factory=set)  # pages that had not failed before the streak


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
    signals: Signals, updates: Mapping[int, HostUpdate], holds: Mapping[int, float], crawl_id: str | None = None
) -> None:
    """Emit signals for the hosts that are held now, with the duration."""
    count: Counter[str] = Counter()
    for host, seconds in holds.items():
        update = updates[host]
        why = "retry_after" if update.hold else "backoff"
        count[why] += 1
        signals.emit(
            HostHeld(crawl_id=crawl_id, origin=update.origin, status=update.answered, why=why, seconds=seconds)
        )
    if count:
        signals.emit(HoldsBegun(holds=dict(count)))


class ThrottleTracker:
    """Tracks the hosts of one walker. `latency_factor`: seconds of delay per second of latency, 0 to ignore latency;
    `delay`: the walker's own delay."""

    def __init__(
        self, settings: HostSettings, clock: Clock, *, latency_factor: float = 0.0, delay: float = 0.0
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._latency_factor = latency_factor
        self._delay = delay
        self._slowest = settings.longest_slow_delay.total_seconds()
        self._streaks: dict[int, _Streak] = {}
        self._refusals: dict[int, dict[int, float]] = {}  # per host: the URLs that answered 503 lately, and when
        self._latency: dict[int, float] = {}
        self._reported: dict[int, tuple[float, float]] = {}  # the latency that was reported, and when
        self._updates: dict[int, HostUpdate] = {}
        self._sent: dict[int, HostUpdate] = {}  # being written to the store
        self.counts_successes = latency_factor > 0  # whether good responses matter, too

    def change(self, *, latency_factor: float, delay: float) -> None:
        """Continue with another rate."""
        self._latency_factor, self._delay = latency_factor, delay
        self.counts_successes = latency_factor > 0 or bool(self._streaks)

    def record(self, answer: HostAnswer) -> bool:
        """Evaluate a response; return whether it starts a hold."""
        if answer.status == REFUSED:
            return self._refused(answer)
        if answer.status in THROTTLED:
            return self._throttled(answer)
        if answer.status is not None and answer.status < 500 and not self.holds(answer.host):
            self._on_success(answer)
        if self._latency_factor and (answer.status is not None or answer.error in TIMEOUTS):
            self._time(answer)
        return False

    def holds(self, host: int) -> bool:
        """Return whether the host must not be requested now."""
        return self.held_for(host) > 0

    def held_for(self, host: int) -> float:
        """Return the seconds until the host may be requested again."""
        streak = self._streaks.get(host)
        return 0.0 if streak is None else max(0.0, streak.until - self._clock.monotonic())

    def expect_recovery(self, host: int) -> None:
        """Record that the store had the host on hold: its next response shows whether it has recovered."""
        self._streak(host)

    def updates(self) -> dict[int, HostUpdate]:
        """Return the updates to store; `learn` confirms them, `forget` queues them again."""
        self._sent, self._updates = self._updates, {}
        return self._sent

    def learn(self, holds: dict[int, float]) -> None:
        """Confirm that the updates were stored, and apply the resulting holds, in seconds per host."""
        self._sent = {}
        for host, seconds in holds.items():
            streak = self._streak(host)
            streak.until = max(streak.until, self._clock.monotonic() + seconds - SLACK)

    def forget(self) -> None:
        """Queue the sent updates again, merged with later ones, because they may not have reached the store."""
        later, self._updates, self._sent = self._updates, self._sent, {}
        for host, update in later.items():
            before = self._updates.get(host)
            self._updates[host] = update if before is None else _both(before, update)

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
        begins = concern_host(refusals) and self._throttled(answer)
        update = self._update(answer)
        if not update.status:
            fallback = throttle_update(answer.origin, 0, asked, self._settings)
            update.hold, update.first, update.most = max(update.hold, fallback.hold), fallback.first, fallback.most
            update.grows = update.grows or (fallback.grows and answer.attempts == 0)
        if answer.page not in update.refused:
            update.refused.append(answer.page)
        return begins

    def _asked(self, answer: HostAnswer) -> timedelta | None:
        return parse_retry_after(answer.retry_after, self._clock.now(), self._settings.longest_retry_after)

    def _throttled(self, answer: HostAnswer) -> bool:
        asked = self._asked(answer)
        was_held = self.holds(answer.host)
        if was_held and asked is None:
            return False  # requested before the hold began: nothing new
        streak = self._streak(answer.host)
        wait = asked if asked is not None else self._settings.backoff
        streak.until = max(streak.until, self._clock.monotonic() + wait.total_seconds())
        # A page that failed before this streak says little about its host, so it does not lengthen the back-off.
        is_new = answer.attempts == 0 or answer.page in streak.pages
        if is_new:
            streak.pages.add(answer.page)
        update = throttle_update(answer.origin, answer.status or 0, asked, self._settings)
        before = self._update(answer)
        update.hold, update.latency, update.recovered = max(update.hold, before.hold), before.latency, before.recovered
        update.refused = before.refused
        update.grows = before.grows if before.status else update.grows and is_new
        self._updates[answer.host] = update
        return True

    def _on_success(self, answer: HostAnswer) -> None:
        if self._streaks.pop(answer.host, None) is not None:
            before = self._update(answer)
            self._updates[answer.host] = _both(
                before, HostUpdate(answer.origin, recovered=True, latency=before.latency)
            )
            self.counts_successes = self._latency_factor > 0 or bool(self._streaks)

    def _time(self, answer: HostAnswer) -> None:
        """Smooth the latency; report it when it changed considerably and affects the delay."""
        taken = self._slowest if answer.error in TIMEOUTS else min(answer.seconds, self._slowest)
        if len(self._latency) >= MOST_HOSTS:
            self._latency.clear()
            self._reported.clear()
        before = self._latency.get(answer.host, taken)
        latency = self._latency[answer.host] = before + WEIGHT * (taken - before)
        matters = latency if latency * self._latency_factor > self._delay else 0.0
        reported, reported_at = self._reported.get(answer.host, (0.0, 0.0))
        if not _differs(matters, reported) and (not matters or self._clock.monotonic() - reported_at < REPORT_AGAIN):
            return
        self._reported[answer.host] = (matters, self._clock.monotonic())
        self._update(answer).latency = matters

    def _update(self, answer: HostAnswer) -> HostUpdate:
        return self._updates.setdefault(answer.host, HostUpdate(answer.origin))

    def _streak(self, host: int) -> _Streak:
        self.counts_successes = True
        if len(self._streaks) > MOST_HOSTS:
            self._streaks.clear()
        return self._streaks.setdefault(host, _Streak())


def _both(before: HostUpdate, after: HostUpdate) -> HostUpdate:
    """Merge two consecutive updates into one."""
    if after.latency is None:
        after.latency = before.latency
    if after.recovered and before.status:
        return after  # any wait it asked for is over
    after.refused = list(dict.fromkeys((*before.refused, *after.refused)))
    if before.status and not after.status:
        return replace(before, latency=after.latency, refused=after.refused)
    after.recovered = after.recovered or before.recovered
    if before.status or before.refused:
        after.hold, after.first, after.most = max(before.hold, after.hold), before.first, before.most
        after.grows = before.grows if before.status else after.grows or before.grows
    return after


def _differs(latency: float, reported: float) -> bool:
    low, high = sorted((latency, reported))
    return high > 0 and (low == 0 or high / low >= REPORT_FACTOR)

"""The throttle tracker of one walker: learns from responses which hosts ask us to wait, have recovered, or are slow.

The tracker evaluates and remembers responses. The engine stops requesting a host on hold immediately. The store makes
the hold durable and shares it with other processes. It also decides the length of a back-off, because other processes
may have got similar responses.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from shoal.base.clock import Clock
from shoal.base.settings import HostSettings
from shoal.base.signals import Signal, Signals
from shoal.egress.exchange import parse_retry_after

N = TypeVar("N", int, float)

REFUSED = 503
THROTTLED = frozenset({429, REFUSED})
TIMEOUTS = frozenset({"total_timeout", "idle_timeout", "connect_timeout"})
WEIGHT = 0.3  # weight of the newest response in the smoothed latency
REPORT_FACTOR = 1.5  # if a latency changes by this factor, it is reported again
REPORT_AGAIN_SECONDS = 300.0  # a host that stays slow is reported again before the store forgets it
SLACK_SECONDS = 0.1  # tolerance: a slot reserved after a hold may appear to begin this much before the hold ends
MOST_HOSTS = 10_000  # maximum number of hosts remembered
ENOUGH: Final = 3
"""How many different URLs must answer 503 before their host is put on hold."""
WITHIN_SECONDS: Final = 60
"""The time within which these responses count together."""


class HostUpdate(Struct):
    """The report of one commit about a host."""

    origin: str
    status: int = 0  # status of a response that asks us to wait; 0: there was none
    hold_seconds: float = 0.0  # the wait that the response asks for; 0: use our back-off
    shortest_backoff_seconds: float = 0.0
    longest_backoff_seconds: float = 0.0
    grows: bool = False  # whether the back-off doubles
    refused: list[int] = field(default_factory=list)  # hashes of the URLs that answered 503
    recovered: bool = False  # the host responded normally, before any response that asked us to wait
    latency_seconds: float | None = None

    @property
    def answered(self) -> int:
        """The response status that puts the host on hold."""
        return self.status or REFUSED


def throttle_update(
    origin: str,
    status: int,
    asked_seconds: float | None,
    shortest_backoff_seconds: float,
    longest_backoff_seconds: float,
) -> HostUpdate:
    """Return the update for a host that asks us to wait: for the time that the host requested, or else for our
    back-off."""
    hold, grows = asked_seconds or 0.0, asked_seconds is None
    return HostUpdate(origin, status, hold, shortest_backoff_seconds, longest_backoff_seconds, grows=grows)


def with_refusals(kept: Mapping[int, N], urls: Iterable[int], now: N, within: N) -> dict[int, N]:
    """Add URLs, by hash, that answered 503 now, and return the newest `ENOUGH`. `within` has the same unit as `now`.
    Entries older than `within` are dropped. Entries that lie more than `within` in the future, because a clock was set
    back, are dropped, too. (Entries may be slightly in the future, because a commit that had to wait for another commit
    may have an earlier `now`.)"""
    recent = {url: at for url, at in kept.items() if abs(now - at) <= within} | dict.fromkeys(urls, now)
    return dict(sorted(recent.items(), key=lambda one: one[1])[-ENOUGH:])


def concern_host(refusals: Mapping[int, object]) -> bool:
    """Return whether recent refusals put their host on hold. A single page that always answers 503 does not mean that
    the other pages of its host fail, too; several such pages within a minute do."""
    return len(refusals) >= ENOUGH


class HostAnswer(Struct, frozen=True):
    """The properties of one response that the tracker needs. `page`: the hash of the URL, the same in every process;
    `attempts`: how many times the URL was tried before."""

    origin: str
    host: int
    page: int
    attempts: int
    status: int | None
    latency_seconds: float
    error: str | None = None
    retry_after: str | None = None


class _Streak(Struct):
    """Consecutive responses that ask us to wait, without a good one between them."""

    ends_at: float = 0.0  # when the hold ends
    pages: set[int] = field(default_factory=set)  # pages that had not failed before the streak


class HostHeld(Signal, frozen=True, kw_only=True):
    """A host was put on hold (429, or 503 for several URLs): no process requests the host for the time that it asked
    for (`retry_after`) or for our own back-off (`backoff`)."""

    crawl_id: str | None
    origin: str
    status: int
    why: str
    seconds: float


class HoldsBegun(Signal, frozen=True, kw_only=True, tag=True):
    """The number of hosts held in one commit, by reason: `retry_after` or `backoff`."""

    holds: dict[str, int]


def emit_holds(
    signals: Signals, updates: Mapping[int, HostUpdate], hold_seconds: Mapping[int, float], crawl_id: str | None = None
) -> None:
    """Emit signals for the hosts that are on hold now, with the duration of each hold."""
    count: Counter[str] = Counter()
    for host, seconds in hold_seconds.items():
        update = updates[host]
        why = "retry_after" if update.hold_seconds else "backoff"
        count[why] += 1
        signals.emit(
            HostHeld(crawl_id=crawl_id, origin=update.origin, status=update.answered, why=why, seconds=seconds)
        )
    if count:
        signals.emit(HoldsBegun(holds=dict(count)))


class ThrottleTracker:
    """Tracks the hosts of one walker. `latency_factor`: seconds of delay per second of latency, 0 to ignore latency;
    `delay_seconds`: the walker's own delay."""

    def __init__(
        self, settings: HostSettings, clock: Clock, *, latency_factor: float = 0.0, delay_seconds: float = 0.0
    ) -> None:
        self._settings = settings
        self.clock = clock
        self._latency_factor = latency_factor
        self._delay_seconds = delay_seconds
        self._shortest_backoff_seconds = settings.backoff.total_seconds()
        self._longest_backoff_seconds = settings.longest_backoff.total_seconds()
        self._longest_latency_seconds = settings.longest_slow_delay.total_seconds()
        self._streaks: dict[int, _Streak] = {}
        self._refusals: dict[int, dict[int, float]] = {}  # per host: the URLs that answered 503 lately, and when
        self._latency_seconds: dict[int, float] = {}
        self._reported: dict[int, tuple[float, float]] = {}  # the latency that was reported, and when
        self._updates: dict[int, HostUpdate] = {}
        self._sent: dict[int, HostUpdate] = {}  # being written to the store
        self.counts_successes = latency_factor > 0  # whether good responses must be recorded, too

    def change(self, *, latency_factor: float, delay_seconds: float) -> None:
        """Change the rate."""
        self._latency_factor, self._delay_seconds = latency_factor, delay_seconds
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
        return self.held_seconds(host) > 0

    def held_seconds(self, host: int) -> float:
        """Return the time until the host may be requested again."""
        streak = self._streaks.get(host)
        return 0.0 if streak is None else max(0.0, streak.ends_at - self.clock.monotonic())

    def expect_recovery(self, host: int) -> None:
        """Record that the store had the host on hold: the host's next response shows whether it has recovered."""
        self._streak(host)

    @property
    def has_updates(self) -> bool:
        """Return whether there is something to store."""
        return bool(self._updates)

    def updates(self) -> dict[int, HostUpdate]:
        """Return the updates to store; `learn` confirms them, `forget` queues them again."""
        self._sent, self._updates = self._updates, {}
        return self._sent

    def learn(self, hold_seconds: dict[int, float]) -> None:
        """Confirm that the updates were stored, and apply the resulting holds, by host."""
        self._sent = {}
        for host, seconds in hold_seconds.items():
            streak = self._streak(host)
            streak.ends_at = max(streak.ends_at, self.clock.monotonic() + seconds - SLACK_SECONDS)

    def forget(self) -> None:
        """Queue the sent updates again, merged with later ones, because they may not have reached the store."""
        later, self._updates, self._sent = self._updates, self._sent, {}
        for host, update in later.items():
            before = self._updates.get(host)
            self._updates[host] = update if before is None else _both(before, update)

    def _refused(self, answer: HostAnswer) -> bool:
        """Evaluate a 503 response. A single URL that answers 503 is only delayed until its retry. Only the store knows
        whether the host is on hold, because other processes may have got 503 as well. If this walker has got enough 503
        responses itself, it stops requesting the host immediately."""
        asked = self._asked_seconds(answer)
        if asked is None and self.holds(answer.host):
            return False  # requested before the hold began: nothing new
        before, now = self._refusals.pop(answer.host, {}), self.clock.monotonic()
        refusals = self._refusals[answer.host] = with_refusals(before, [answer.page], now, float(WITHIN_SECONDS))
        if len(self._refusals) > MOST_HOSTS:
            del self._refusals[next(iter(self._refusals))]
        begins = concern_host(refusals) and self._throttled(answer)
        update = self._update(answer)
        if not update.status:
            update.hold_seconds = max(update.hold_seconds, asked or 0.0)
            update.shortest_backoff_seconds = self._shortest_backoff_seconds
            update.longest_backoff_seconds = self._longest_backoff_seconds
            update.grows = update.grows or (asked is None and answer.attempts == 0)
        if answer.page not in update.refused:
            update.refused.append(answer.page)
        return begins

    def _asked_seconds(self, answer: HostAnswer) -> float | None:
        wait = parse_retry_after(answer.retry_after, self.clock.now(), self._settings.longest_retry_after)
        return None if wait is None else wait.total_seconds()

    def _throttled(self, answer: HostAnswer) -> bool:
        asked = self._asked_seconds(answer)
        was_held = self.holds(answer.host)
        if was_held and asked is None:
            return False  # requested before the hold began: nothing new
        streak = self._streak(answer.host)
        wait = asked if asked is not None else self._shortest_backoff_seconds
        streak.ends_at = max(streak.ends_at, self.clock.monotonic() + wait)
        # A page that failed before this streak says little about its host, so it does not lengthen the back-off.
        is_new = answer.attempts == 0 or answer.page in streak.pages
        if is_new:
            streak.pages.add(answer.page)
        shortest, longest = self._shortest_backoff_seconds, self._longest_backoff_seconds
        update = throttle_update(answer.origin, answer.status or 0, asked, shortest, longest)
        before = self._update(answer)
        update.hold_seconds = max(update.hold_seconds, before.hold_seconds)
        update.latency_seconds, update.recovered = before.latency_seconds, before.recovered
        update.refused = before.refused
        update.grows = before.grows if before.status else update.grows and is_new
        self._updates[answer.host] = update
        return True

    def _on_success(self, answer: HostAnswer) -> None:
        if self._streaks.pop(answer.host, None) is not None:
            before = self._update(answer)
            self._updates[answer.host] = _both(
                before, HostUpdate(answer.origin, recovered=True, latency_seconds=before.latency_seconds)
            )
            self.counts_successes = self._latency_factor > 0 or bool(self._streaks)

    def _time(self, answer: HostAnswer) -> None:
        """Smooth the latency; report it if it has changed considerably and affects the delay."""
        longest = self._longest_latency_seconds
        taken = longest if answer.error in TIMEOUTS else min(answer.latency_seconds, longest)
        if len(self._latency_seconds) >= MOST_HOSTS:
            self._latency_seconds.clear()
            self._reported.clear()
        before = self._latency_seconds.get(answer.host, taken)
        latency = self._latency_seconds[answer.host] = before + WEIGHT * (taken - before)
        matters = latency if latency * self._latency_factor > self._delay_seconds else 0.0
        reported, reported_at = self._reported.get(answer.host, (0.0, 0.0))
        if not _differs(matters, reported) and (
            not matters or self.clock.monotonic() - reported_at < REPORT_AGAIN_SECONDS
        ):
            return
        self._reported[answer.host] = (matters, self.clock.monotonic())
        self._update(answer).latency_seconds = matters

    def _update(self, answer: HostAnswer) -> HostUpdate:
        return self._updates.setdefault(answer.host, HostUpdate(answer.origin))

    def _streak(self, host: int) -> _Streak:
        self.counts_successes = True
        if len(self._streaks) > MOST_HOSTS:
            self._streaks.clear()
        return self._streaks.setdefault(host, _Streak())


def _both(before: HostUpdate, after: HostUpdate) -> HostUpdate:
    """Merge two consecutive updates into one."""
    if after.latency_seconds is None:
        after.latency_seconds = before.latency_seconds
    if after.recovered and before.status:
        return after  # any wait that the host asked for is over
    after.refused = list(dict.fromkeys((*before.refused, *after.refused)))
    if before.status and not after.status:
        return replace(before, latency_seconds=after.latency_seconds, refused=after.refused)
    after.recovered = after.recovered or before.recovered
    if before.status or before.refused:
        after.hold_seconds = max(before.hold_seconds, after.hold_seconds)
        after.shortest_backoff_seconds = before.shortest_backoff_seconds
        after.longest_backoff_seconds = before.longest_backoff_seconds
        after.grows = before.grows if before.status else after.grows or before.grows
    return after


def _differs(latency_seconds: float, reported_seconds: float) -> bool:
    low, high = sorted((latency_seconds, reported_seconds))
    return high > 0 and (low == 0 or high / low >= REPORT_FACTOR)

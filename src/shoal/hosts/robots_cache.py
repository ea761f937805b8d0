"""Where the rules of a host come from: its robots.txt, the cache in the store in front of it, and the short memory of a
process in front of that."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Final

from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.settings import HostSettings
from shoal.base.signals import Signal, Signals
from shoal.base.url import UrlRefusal
from shoal.egress import Egress, Failure, HeaderPairs, Limits, Outcome, Request
from shoal.egress.exchange import asked_wait, parse_retry_after
from shoal.hosts.robots import MAX_BYTES, RobotsRecord, RobotsSource, RobotsState, Rules, Throttled, readable
from shoal.hosts.store import HostStore
from shoal.hosts.throttle import THROTTLED, emit_holds, throttle_update

FRESH_FOR = timedelta(hours=24)  # RFC 9309: no longer than that
ASK_AGAIN = timedelta(seconds=4)  # if robots.txt was unreachable: sooner than a walker retries pages of the host
KEEP_OLD = timedelta(days=30)  # how long an old file may be used while a new one cannot be fetched
LIMITS = Limits(
    max_redirects=5,
    max_body_bytes=MAX_BYTES + 1,  # one extra byte shows that the file is longer
    cut_body=True,
    total_timeout=timedelta(seconds=30),
)
PLAIN: HeaderPairs = (("Accept", "text/plain,*/*;q=0.8"), ("Accept-Encoding", "identity"))  # so it can be truncated
FRESH_SECONDS: Final = 600.0  # for which a process remembers the rules of a host
MOST_RULES: Final = 2_000  # hosts
NOWHERE = {refusal.code for refusal in UrlRefusal} | {"too_many_redirects", "redirect_loop"}


class RobotsRead(Signal, frozen=True, kw_only=True):
    """The robots.txt of a host was fetched."""

    origin: str
    state: RobotsState
    delay_seconds: float


class CrawlDelayCut(Signal, frozen=True, kw_only=True):
    """A robots.txt asks for a longer delay between requests than the maximum we accept."""

    origin: str
    asked_seconds: float
    delay_seconds: float


async def fetch_robots(egress: Egress, origin: str, agent: str) -> RobotsRecord:
    """Fetch the robots.txt of a host. Return the file, or the state that follows from its absence."""
    given = egress.limits
    limits = replace(
        LIMITS,
        connect_timeout=given.connect_timeout,
        idle_timeout=given.idle_timeout,
        total_timeout=min(given.total_timeout, LIMITS.total_timeout),
    )
    request = Request(f"{origin}/robots.txt", headers=(("User-Agent", agent), *PLAIN), limits=limits)
    return _record(await egress.fetch(request, redirects=True))


class RobotsReader:
    """Fetches the rules of any host for one agent, without a cache: for processes that have no store."""

    def __init__(self, egress: Egress, agent: str, longest_delay: timedelta) -> None:
        self._egress = egress
        self._agent = agent
        self._longest_delay = longest_delay

    async def rules_of(self, origin: str) -> Rules:
        return Rules(await fetch_robots(self._egress, origin, self._agent), self._agent, self._longest_delay)


class RobotsCache:
    """Returns the rules of any host for one agent: from the store while they are fresh, otherwise fetched."""

    def __init__(
        self,
        database: Database,
        egress: Egress,
        agent: str,
        settings: HostSettings,
        clock: Clock,
        signals: Signals,
    ) -> None:
        self._database = database
        self._store = HostStore()
        self._egress = egress
        self._agent = agent
        self._settings = settings
        self._clock = clock
        self._signals = signals

    async def rules_of(self, origin: str) -> Rules:
        rules = await self._find(origin)
        if rules.delay_was_cut:
            asked, delay = rules.asked_delay_seconds or 0.0, rules.delay.total_seconds()
            self._signals.emit(CrawlDelayCut(origin=origin, asked_seconds=asked, delay_seconds=delay))
        return rules

    async def _find(self, origin: str) -> Rules:
        kept = await self._database.read(lambda tx: self._store.robots(tx, origin))
        if kept is not None and kept.age < self._max_age(kept):
            return self._rules(kept)
        record = await fetch_robots(self._egress, origin, self._agent)
        if record.throttled is not None:
            await self._hold(origin, record.throttled)
        if kept is not None and self._stands_in(kept, record):
            return self._rules(kept)
        rules = self._rules(record)
        await self._database.run(lambda tx: self._store.keep_robots(tx, origin, record, rules.delay))
        delay = rules.delay.total_seconds()
        self._signals.emit(RobotsRead(origin=origin, state=record.state, delay_seconds=delay))
        return rules

    async def _hold(self, origin: str, throttled: Throttled) -> None:
        """Hold the host, because it asks us to wait: that applies to its pages, too."""
        settings = self._settings
        asked = parse_retry_after(throttled.retry_after, self._clock.now(), settings.longest_retry_after)
        update = throttle_update(
            origin,
            throttled.status,
            None if asked is None else asked.total_seconds(),
            settings.backoff.total_seconds(),
            settings.longest_backoff.total_seconds(),
        )

        async def commit(tx: Tx) -> tuple[int, dict[int, float]]:
            host = (await self._store.numbers(tx, [origin]))[origin]
            return host, await self._store.record(tx, {host: update})

        host, hold_seconds = await self._database.run(commit)
        emit_holds(self._signals, {host: update}, hold_seconds)

    def _rules(self, record: RobotsRecord) -> Rules:
        return Rules(record, self._agent, self._settings.longest_crawl_delay)

    def _stands_in(self, kept: RobotsRecord, record: RobotsRecord) -> bool:
        """Return whether an old file is used because a new one cannot be fetched."""
        gone = record.state is RobotsState.UNREACHABLE and kept.state is not RobotsState.UNREACHABLE
        return gone and kept.age < KEEP_OLD

    def _max_age(self, record: RobotsRecord) -> timedelta:
        return ASK_AGAIN if record.state is RobotsState.UNREACHABLE else FRESH_FOR


class RobotsMemo:
    """Rules by origin; concurrent requests for the same host share one call to the source. Rules that could not be
    fetched are not remembered: the next caller tries again."""

    def __init__(self, source: RobotsSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._known: dict[str, tuple[float, Rules]] = {}
        self._loading: dict[str, asyncio.Task[Rules]] = {}

    def known(self, origin: str) -> Rules | None:
        """Return the remembered rules of a host; None if there are none."""
        at, rules = self._known.get(origin, (0.0, None))
        return None if rules is None or self._clock.monotonic() - at > FRESH_SECONDS else rules

    async def rules_of(self, origin: str) -> Rules:
        """Return the rules of a host. Raises what the source raises."""
        rules = self.known(origin)
        if rules is not None:
            return rules
        task = self._loading.get(origin)
        if task is None:
            task = self._loading[origin] = asyncio.create_task(self._load(origin))
            task.add_done_callback(lambda done: self._loaded(origin, done))
        return await asyncio.shield(task)  # a caller that gives up does not keep the others from getting them

    def close(self) -> None:
        for task in self._loading.values():
            task.cancel()
        self._known.clear()

    async def _load(self, origin: str) -> Rules:
        rules = await self._source.rules_of(origin)
        if rules.reachable:
            if len(self._known) >= MOST_RULES:
                self._known.clear()
            self._known[origin] = self._clock.monotonic(), rules
        return rules

    def _loaded(self, origin: str, task: asyncio.Task[Rules]) -> None:
        self._loading.pop(origin, None)
        if not task.cancelled():
            task.exception()  # if all callers gave up, nobody else looks at it


def _record(outcome: Outcome) -> RobotsRecord:
    if isinstance(outcome, Failure):
        # Redirects that lead nowhere count as a response: there is no file (RFC 9309, 2.3.1.2).
        absent = outcome.code in NOWHERE or outcome.is_blocked
        state = RobotsState.ABSENT if absent else RobotsState.UNREACHABLE
        return RobotsRecord(state, f"{outcome.code}\n{outcome.message}")
    if outcome.status >= 500 or outcome.status == 429:
        throttled = None
        if outcome.status in THROTTLED and not outcome.redirects:
            throttled = Throttled(outcome.status, asked_wait(outcome.headers.get))
        return RobotsRecord(RobotsState.UNREACHABLE, f"The server answered {outcome.status}.", throttled=throttled)
    if not 200 <= outcome.status < 300:
        return RobotsRecord(RobotsState.ABSENT, f"The server answered {outcome.status}.")
    body = outcome.body(LIMITS)
    if isinstance(body, Failure):
        return RobotsRecord(RobotsState.UNREACHABLE, body.message)
    return RobotsRecord(RobotsState.FOUND, readable(body))

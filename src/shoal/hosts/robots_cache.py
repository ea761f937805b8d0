"""Load the rules of a host from its robots.txt, through two caches: the store and, in front of the store, the memory of
a process or walker."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Final, NamedTuple

from msgspec.structs import replace

from shoal.base.clock import Clock
from shoal.base.database import Database, Tx
from shoal.base.errors import ShoalError
from shoal.base.settings import HostSettings
from shoal.base.signals import Signal, Signals
from shoal.base.url import Url, UrlRefusal, origin
from shoal.egress import Egress, Failure, HeaderPairs, Limits, Outcome, Request
from shoal.egress.exchange import asked_wait, parse_retry_after
from shoal.hosts.robots import MAX_BYTES, NO_ROBOTS, RobotsRecord, RobotsSource, RobotsState, Rules, Throttled, readable
from shoal.hosts.store import HostStore
from shoal.hosts.throttle import THROTTLED, emit_holds, throttle_update

FRESH_FOR = timedelta(hours=24)  # the maximum in RFC 9309
ASK_AGAIN = timedelta(seconds=4)  # after an unreachable robots.txt; sooner than a walker retries pages of the host
KEEP_OLD = timedelta(days=30)  # how long an old file may be used while a new one cannot be fetched
LIMITS = Limits(
    max_redirects=5,
    max_body_bytes=MAX_BYTES + 1,  # one extra byte shows that the file is longer
    cut_body=True,
    total_timeout=timedelta(seconds=30),
)
PLAIN: HeaderPairs = (("Accept", "text/plain,*/*;q=0.8"), ("Accept-Encoding", "identity"))  # so it can be truncated
FRESH_SECONDS: Final = 600.0  # how long a process remembers the rules of a host
MOST_RULES: Final = 50_000  # maximum for all hosts together, about 50 MB; a host without rules counts as one rule
FAILURES_OF_THE_HOST: Final = ("dns_", "connect_", "tls_", "proxy_")  # failures that pages of the host would have, too
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

    def __init__(self, egress: Egress, agent: str, longest_delay: timedelta, clock: Clock) -> None:
        self._egress = egress
        self._agent = agent
        self._longest_delay = longest_delay
        self._clock = clock

    async def rules_of(self, origin: str) -> Rules:
        sent_at = self._clock.monotonic()
        record = await fetch_robots(self._egress, origin, self._agent)
        return Rules(record, self._agent, self._longest_delay, sent_at)


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
        if kept is not None and kept.age < (ASK_AGAIN if kept.state is RobotsState.UNREACHABLE else FRESH_FOR):
            return self._rules(kept)
        sent_at = self._clock.monotonic()
        record = await fetch_robots(self._egress, origin, self._agent)
        if record.throttled is not None:
            await self._hold(origin, record.throttled)
        if kept is not None and self._stands_in(kept, record):
            return self._rules(kept, sent_at)
        rules = self._rules(record, sent_at)
        await self._database.run(lambda tx: self._store.keep_robots(tx, origin, record, rules.delay))
        delay = rules.delay.total_seconds()
        self._signals.emit(RobotsRead(origin=origin, state=record.state, delay_seconds=delay))
        return rules

    async def _hold(self, origin: str, throttled: Throttled) -> None:
        """Put the host on hold, because its response to the request for robots.txt asks us to wait. The hold applies to
        its pages, too."""
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

    def _rules(self, record: RobotsRecord, sent_at: float | None = None) -> Rules:
        return Rules(record, self._agent, self._settings.longest_crawl_delay, sent_at)

    def _stands_in(self, kept: RobotsRecord, record: RobotsRecord) -> bool:
        """Return whether an old file is used because a new one cannot be fetched."""
        gone = record.state is RobotsState.UNREACHABLE and kept.state is not RobotsState.UNREACHABLE
        return gone and kept.age < KEEP_OLD


class RobotsAnswer(Enum):
    """The decision of a host's robots.txt about a URL."""

    ALLOWED = "allowed"
    DENIED = "denied"
    UNREACHABLE = "unreachable"  # robots.txt could not be fetched, so no page may be fetched until it is
    UNKNOWN = "unknown"  # the rules have to be loaded first


class RobotsUnavailable(NamedTuple):
    """Why the pages of a host fail together with its robots.txt: an error code and a message."""

    code: str
    message: str


class RobotsRules:
    """The rules of the hosts that one process, or one walker, requests. If several callers need the rules of a host at
    the same time, the rules are loaded only once. They are remembered for some time, up to a maximum number of rules. A
    failure to load rules is not remembered: the waiting callers are notified, and the next call tries again."""

    def __init__(
        self,
        source: RobotsSource,
        fresh_seconds: float = FRESH_SECONDS,
        capacity: int = MOST_RULES,
        on_store_error: Callable[[str, ShoalError], None] = lambda host_origin, error: None,
    ) -> None:
        self._source = source
        self._on_store_error = on_store_error  # called with the host if a store error prevented the loading
        self._fresh_seconds = fresh_seconds
        self._capacity = self._rules_left = capacity
        self._reset_timer: asyncio.TimerHandle | None = None
        self._rules: dict[str, Rules | None] = {}  # `None`, or unreachable rules, are kept only while the callbacks run
        self._loading: dict[str, asyncio.Task[Rules]] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}  # callbacks, by host

    def judge(self, url: Url) -> RobotsAnswer:
        """Return whether the URL may be fetched, as far as the rules of its host are known."""
        host_origin = origin(url)
        if host_origin not in self._rules:
            return RobotsAnswer.UNKNOWN
        rules = self._rules[host_origin]
        if rules is None or not rules.reachable:
            return RobotsAnswer.UNREACHABLE
        return RobotsAnswer.ALLOWED if rules.allows(url) else RobotsAnswer.DENIED

    def denies(self, url: Url) -> bool:
        """Return whether the rules of the URL's host are known and forbid the URL."""
        rules = self._rules.get(origin(url))
        return rules is not None and bool(rules.rules) and rules.reachable and not rules.allows(url)

    def known(self, host_origin: str) -> Rules | None:
        """Return the rules of a host, if they are known."""
        return self._rules.get(host_origin)

    def knows(self, host_origin: str) -> bool:
        """Return whether the rules of a host are known."""
        return self._rules.get(host_origin) is not None

    def why(self, url: Url) -> RobotsUnavailable:
        """Return why the robots.txt of the URL's host is unreachable, after `judge` returned `UNREACHABLE` for the
        URL."""
        rules = self._rules.get(origin(url))
        if rules is None:
            return RobotsUnavailable("robots_unreachable", NO_ROBOTS)
        if rules.failure_code.startswith(FAILURES_OF_THE_HOST):
            return RobotsUnavailable(rules.failure_code, rules.why_none)
        return RobotsUnavailable("robots_unreachable", f"{NO_ROBOTS} {rules.why_none}".rstrip())

    def sitemaps(self, url: Url) -> list[str]:
        """Return the sitemaps in the robots.txt of the URL's host, if the file is known."""
        host_origin = origin(url)
        rules = self._rules.get(host_origin)
        return [] if rules is None else [sitemap for sitemap, _ in rules.sitemaps_at(host_origin)]

    def ask(self, host_origin: str, then: Callable[[], None]) -> None:
        """Load the rules of a host, and call `then` when `judge` knows these rules, or when loading has failed."""
        self._waiting.setdefault(host_origin, []).append(then)
        self._load(host_origin)

    async def rules_of(self, host_origin: str) -> Rules:
        """Return the rules of a host. Errors of the source are passed on."""
        if (rules := self._rules.get(host_origin)) is not None:
            return rules
        # Shielded: if one caller is cancelled, the others still get the rules.
        return await asyncio.shield(self._load(host_origin))

    def forget(self) -> None:
        """Load every host's rules again when they are needed; the source decides whether to fetch them."""
        self._rules.clear()
        self._rules_left = self._capacity
        if self._reset_timer is not None:
            self._reset_timer.cancel()
            self._reset_timer = None

    def close(self) -> None:
        """Stop loading. No callback is called any more."""
        self.forget()
        self._waiting.clear()
        for task in self._loading.values():
            task.cancel()
        self._loading.clear()

    def _load(self, host_origin: str) -> "asyncio.Task[Rules]":
        task = self._loading.get(host_origin)
        if task is None:
            task = self._loading[host_origin] = asyncio.ensure_future(self._source.rules_of(host_origin))
            task.add_done_callback(lambda done: self._loaded(host_origin, done))
            if self._reset_timer is None:
                self._reset_timer = asyncio.get_running_loop().call_later(self._fresh_seconds, self.forget)
        return task

    def _loaded(self, host_origin: str, task: "asyncio.Task[Rules]") -> None:
        if task.cancelled() or self._loading.pop(host_origin, None) is None:
            return  # closed in the meantime
        rules, error = None, task.exception()
        if error is None:
            rules = task.result()
        elif isinstance(error, ShoalError):  # the store is unavailable or full
            self._on_store_error(host_origin, error)
        else:
            task.get_loop().call_exception_handler({"message": "robots.txt rules not loaded", "exception": error})
        self._remember(host_origin, rules)
        for then in self._waiting.pop(host_origin, []):
            then()
        if rules is None or not rules.reachable:
            self._rules.pop(host_origin, None)

    def _remember(self, host_origin: str, rules: Rules | None) -> None:
        size = 1 if rules is None else 1 + len(rules.rules)
        if size > self._rules_left:
            self._rules.clear()
            self._rules_left = self._capacity
        self._rules_left -= size
        self._rules[host_origin] = rules


class AllowAll(RobotsRules):
    """The rules of a crawl that ignores robots.txt."""

    def __init__(self) -> None:
        """Load nothing."""

    def judge(self, url: Url) -> RobotsAnswer:
        return RobotsAnswer.ALLOWED

    def denies(self, url: Url) -> bool:
        return False

    def knows(self, host_origin: str) -> bool:
        return True

    def sitemaps(self, url: Url) -> list[str]:
        return []

    def close(self) -> None:
        return


def objection(rules: Rules | None, url: Url) -> Failure:
    """Return why a URL that its robots.txt forbids, or whose robots.txt is unreachable, must not be fetched."""
    if rules is not None and rules.reachable:
        return Failure("robots_denied", f"The robots.txt of {origin(url)} forbids {url}.", retryable=False, url=url)
    why = NO_ROBOTS if rules is None else f"{NO_ROBOTS} {rules.why_none}".rstrip()
    return Failure("robots_unreachable", why, retryable=True, url=url)


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

"""The robots.txt check of one walker: the rules of a host are loaded once, and then applied to each of its URLs."""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from shoal.base.errors import ShoalError
from shoal.base.url import Url, origin
from shoal.hosts.robots import NO_ROBOTS, RobotsSource, Rules

MOST_RULES = 50_000  # rules of all hosts together, about 50 MB; a host without rules counts as one
FAILURES_OF_THE_HOST = (
    "dns_",
    "connect_",
    "tls_",
    "proxy_",
)  # pages would fail with them, too, so they are the page's error


class RobotsAnswer(Enum):
    """The decision of a host's robots.txt about a URL."""

    ALLOWED = "allowed"
    DENIED = "denied"
    UNREACHABLE = "unreachable"  # robots.txt could not be fetched: until it can, no page may be
    UNKNOWN = "unknown"  # the rules have to be loaded first


class RobotsUnavailable(NamedTuple):
    """Why the pages of a host fail together with its robots.txt: an error code and a message."""

    code: str
    message: str


class AllowAll:
    """The check of a crawl that ignores robots.txt."""

    def judge(self, url: Url) -> RobotsAnswer:
        return RobotsAnswer.ALLOWED

    def denies(self, url: Url) -> bool:
        return False

    def knows(self, host_origin: str) -> bool:
        return True

    def sitemaps(self, url: Url) -> list[str]:
        return []

    def ask(self, url: Url, then: Callable[[], None]) -> None:
        then()

    def why(self, url: Url) -> RobotsUnavailable:
        raise AssertionError("robots.txt is ignored, so no URL is held back")

    def close(self) -> None:
        return


class RobotsCheck:
    """Caches the rules of the hosts of one walker, up to a number of rules and for a day; loads those that it lacks."""

    def __init__(
        self,
        source: RobotsSource,
        ttl_seconds: float = 86_400.0,
        capacity: int = MOST_RULES,
        on_store_error: Callable[[str, ShoalError], None] = lambda host_origin, error: None,
    ) -> None:
        self._source = source
        self._on_store_error = on_store_error  # is called with a host whose rules the store could not load
        self._ttl_seconds = ttl_seconds
        self._most = self._rules_left = capacity
        self._reset_timer: asyncio.TimerHandle | None = None
        self._rules: dict[str, Rules | None] = {}
        self._lost: dict[str, Rules | None] = {}  # the rules by which URLs were held back last
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}  # callbacks, by host

    def judge(self, url: Url) -> RobotsAnswer:
        """Return whether the URL may be fetched, as far as the rules of its host are known."""
        host_origin = origin(url)
        if host_origin not in self._rules:
            return RobotsAnswer.UNKNOWN
        rules = self._rules[host_origin]
        if rules is None or not rules.reachable:
            self._lost[host_origin] = self._rules.pop(host_origin)  # the next attempt loads them again
            return RobotsAnswer.UNREACHABLE
        return RobotsAnswer.ALLOWED if rules.allows(url) else RobotsAnswer.DENIED

    def denies(self, url: Url) -> bool:
        """Return whether the rules of the URL's host are known and forbid it."""
        rules = self._rules.get(origin(url))
        return rules is not None and bool(rules.rules) and rules.reachable and not rules.allows(url)

    def knows(self, host_origin: str) -> bool:
        """Return whether the rules of a host are known."""
        return self._rules.get(host_origin) is not None

    def why(self, url: Url) -> RobotsUnavailable:
        """Return why the robots.txt of a URL that `judge` just held back is unreachable."""
        rules = self._lost.pop(origin(url), None)
        if rules is None:
            return RobotsUnavailable("robots_unreachable", NO_ROBOTS)
        if rules.failure_code.startswith(FAILURES_OF_THE_HOST):
            return RobotsUnavailable(rules.failure_code, rules.why_none)
        return RobotsUnavailable("robots_unreachable", f"{NO_ROBOTS} {rules.why_none}")

    def sitemaps(self, url: Url) -> list[str]:
        """Return the sitemaps that the robots.txt of the URL's host names, if it is known."""
        host_origin = origin(url)
        rules = self._rules.get(host_origin)
        return [] if rules is None else [sitemap for sitemap, _ in rules.sitemaps_at(host_origin)]

    def ask(self, url: Url, then: Callable[[], None]) -> None:
        """Load the rules of the URL's host, and call `then` when they are known."""
        host_origin = origin(url)
        waiting = self._waiting.setdefault(host_origin, [])
        waiting.append(then)
        if (
            host_origin not in self._asking
        ):  # after an outage a walker may ask again while the first load is still running
            self._asking[host_origin] = asyncio.create_task(self._learn(host_origin))
        if self._reset_timer is None:
            self._reset_timer = asyncio.get_running_loop().call_later(self._ttl_seconds, self.forget)

    def forget(self) -> None:
        """Load every host's rules again when they are needed; the source decides whether to fetch them."""
        self._rules.clear()
        self._rules_left = self._most
        if self._reset_timer is not None:
            self._reset_timer.cancel()
            self._reset_timer = None

    def _evict_for(self, wanted: int) -> None:
        if wanted > self._rules_left:
            self._rules.clear()
            self._rules_left = self._most
        self._rules_left -= wanted

    def close(self) -> None:
        """Stop loading, and call nobody back."""
        self.forget()
        self._waiting.clear()
        for task in self._asking.values():
            task.cancel()
        self._asking.clear()

    async def _learn(self, host_origin: str) -> None:
        try:
            rules = await self._source.rules_of(host_origin)
            self._evict_for(1 + len(rules.rules))
            self._rules[host_origin] = rules
        except ShoalError as error:  # the store is unavailable or full
            self._rules[host_origin] = None
            self._on_store_error(host_origin, error)
        finally:
            self._asking.pop(host_origin, None)
            self._rules.setdefault(host_origin, None)
            for then in self._waiting.pop(host_origin, []):
                then()

"""The robots gate of one walker: which URLs may be fetched, asked once per host and then answered at once."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import NamedTuple, Protocol

from shoal.base.errors import ShoalError
from shoal.base.url import Url, origin
from shoal.hosts.robots import Rules

MOST_RULES = 50_000  # of all hosts together, about 50 MB; a host without any takes as much as one
WITHOUT = "The host's robots.txt could not be had, so nothing there may be fetched."
FAILURES_OF_THE_HOST = ("dns_", "connect_", "tls_", "proxy_")  # a page would meet them, too: they are its error then


class RobotsAnswer(Enum):
    ALLOWED = "allowed"
    DENIED = "denied"
    UNREACHABLE = "unreachable"  # robots.txt could not be had: nothing may be fetched until it can
    UNKNOWN = "unknown"  # ask first


class RobotsUnavailable(NamedTuple):
    """Why the pages of a host fail with its robots.txt: a code, and words for a person."""

    code: str
    message: str


class RobotsSource(Protocol):
    async def rules_of(self, origin: str) -> Rules: ...


class AllowAll:
    """Robots are ignored: everything may pass."""

    def judge(self, url: Url) -> RobotsAnswer:
        return RobotsAnswer.ALLOWED

    def denies(self, url: Url) -> bool:
        return False

    def knows(self, home: str) -> bool:
        return True

    def sitemaps(self, url: Url) -> list[str]:
        return []

    def ask(self, url: Url, then: Callable[[], None]) -> None:
        then()

    def why(self, url: Url) -> RobotsUnavailable:
        raise AssertionError("an open gate holds nobody back")

    def close(self) -> None:
        return


class RobotsCheck:
    """Remembers the rules of the hosts of one walk, as many as there is room for and for a day at most; asks the desk
    for those it does not know."""

    def __init__(
        self,
        desk: RobotsSource,
        shelf_life: timedelta = timedelta(days=1),
        room: int = MOST_RULES,
        stumbled: Callable[[str, ShoalError], None] = lambda home, error: None,
    ) -> None:
        self._desk = desk
        self._stumbled = stumbled  # is told of a host whose rules the store did not give
        self._shelf_life = shelf_life.total_seconds()
        self._most = self._room = room
        self._clearing: asyncio.TimerHandle | None = None
        self._rules: dict[str, Rules | None] = {}
        self._lost: dict[str, Rules | None] = {}  # what the last ones who were held back met
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}  # who is told when the rules of a host are known

    def judge(self, url: Url) -> RobotsAnswer:
        home = origin(url)
        if home not in self._rules:
            return RobotsAnswer.UNKNOWN
        rules = self._rules[home]
        if rules is None or not rules.reachable:
            self._lost[home] = self._rules.pop(home)  # the next try asks again
            return RobotsAnswer.UNREACHABLE
        return RobotsAnswer.ALLOWED if rules.allows(url) else RobotsAnswer.DENIED

    def denies(self, url: Url) -> bool:
        """Whether the rules of the URL's host are known and forbid it."""
        rules = self._rules.get(origin(url))
        return rules is not None and bool(rules.rules) and rules.reachable and not rules.allows(url)

    def knows(self, home: str) -> bool:
        """Whether the rules of a host are known."""
        return self._rules.get(home) is not None

    def why(self, url: Url) -> RobotsUnavailable:
        """Why a URL that was just held back was."""
        rules = self._lost.pop(origin(url), None)
        if rules is None:
            return RobotsUnavailable("robots_unreachable", WITHOUT)
        if rules.failure_code.startswith(FAILURES_OF_THE_HOST):
            return RobotsUnavailable(rules.failure_code, rules.why_none)
        return RobotsUnavailable("robots_unreachable", f"{WITHOUT} {rules.why_none}")

    def sitemaps(self, url: Url) -> list[str]:
        """The sitemaps that the robots.txt of the URL's host names, if it is known."""
        home = origin(url)
        rules = self._rules.get(home)
        return [] if rules is None else [sitemap for sitemap, _ in rules.sitemaps_at(home)]

    def ask(self, url: Url, then: Callable[[], None]) -> None:
        """Get the rules of the URL's host; `then` is called when they are known."""
        home = origin(url)
        waiting = self._waiting.setdefault(home, [])
        waiting.append(then)
        if home not in self._asking:  # a walker that begins again may ask while its first question is under way
            self._asking[home] = asyncio.create_task(self._learn(home))
        if self._clearing is None:
            self._clearing = asyncio.get_running_loop().call_later(self._shelf_life, self.forget)

    def forget(self) -> None:
        """Ask for every host's rules again; the desk decides whether its host is asked, too."""
        self._rules.clear()
        self._room = self._most
        if self._clearing is not None:
            self._clearing.cancel()
            self._clearing = None

    def _make_room(self, wanted: int) -> None:
        if wanted > self._room:
            self._rules.clear()
            self._room = self._most
        self._room -= wanted

    def close(self) -> None:
        self.forget()
        self._waiting.clear()
        for task in self._asking.values():
            task.cancel()
        self._asking.clear()

    async def _learn(self, home: str) -> None:
        try:
            rules = await self._desk.rules_of(home)
            self._make_room(1 + len(rules.rules))
            self._rules[home] = rules
        except ShoalError as error:  # the store is away or full
            self._rules[home] = None
            self._stumbled(home, error)
        finally:
            self._asking.pop(home, None)
            self._rules.setdefault(home, None)
            for then in self._waiting.pop(home, []):
                then()

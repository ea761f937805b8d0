"""robots.txt by RFC 9309: which group of a file is ours, what it allows, and what its absence means. Pure; asking for
it is the desk's work, and matching paths that of `robots_match`.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from urllib.parse import urljoin

import xxhash
from msgspec import Struct, field

from shoal.base.url import Url
from shoal.hosts.robots_matcher import RuleMatcher

MAX_BYTES = 500 * 1024
MOST_SITEMAPS = 1000
LONGEST_SECONDS = 1e9  # what a larger delay is read as: no number is infinite
ANYBODY = "*"
PRODUCT = re.compile(r"[A-Za-z_-]+")  # what a product token is made of

_LINE_END = re.compile(r"\r\n?|\n")
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_NAMES = {
    **dict.fromkeys(("user-agent", "useragent", "user agent"), "user-agent"),
    **dict.fromkeys(("disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"), "disallow"),
    **dict.fromkeys(("sitemap", "site-map"), "sitemap"),
    **dict.fromkeys(("crawl-delay", "crawldelay", "crawl delay"), "crawl-delay"),
    "allow": "allow",
}
"""The records that are read, with the misspellings that Google forgives; all others are passed over."""


class RobotsState(StrEnum):
    """What the last request for a robots.txt gave."""

    FOUND = "found"  # a file
    ABSENT = "absent"  # 4xx: everything is allowed
    UNREACHABLE = "unreachable"  # 5xx, or no answer: nothing is allowed until there is one


class RobotsRecord(Struct, frozen=True):
    """What is kept of one host's robots.txt: the file, or in words why there is none, below the code of a failure."""

    state: RobotsState
    body: str
    age: int = 0  # microseconds since it was asked for, by the store's clock
    throttled: "Throttled | None" = None  # not kept: it is about the host

    @property
    def hash(self) -> str:
        """Two records with the same one say the same."""
        return xxhash.xxh3_64_hexdigest(self.body.encode("utf-8", "replace"))


class Throttled(Struct, frozen=True):
    """An answer that asks us to wait."""

    status: int
    retry_after: str | None


class RobotsRule(Struct, frozen=True):
    """One line of a group: what it says of URLs whose path begins with `path`."""

    allow: bool
    path: str  # as written
    line: int

    def __str__(self) -> str:
        return f"{'Allow' if self.allow else 'Disallow'}: {self.path}"


class RobotsGroup(Struct):
    """Rules, and the agents that they are for: product tokens in lower case, or `*`."""

    agents: list[str] = field(default_factory=list)
    rules: list[RobotsRule] = field(default_factory=list)
    complete: bool = False  # a rule was read: the next agent begins another group


class RobotsFile(Struct):
    """A file, read."""

    groups: list[RobotsGroup] = field(default_factory=list)
    delays: dict[str, str] = field(default_factory=dict)  # per agent, as written
    sitemaps: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, text: str) -> "RobotsFile":
        file, group = cls(), RobotsGroup()
        named: list[str] = []  # the agents right above, for which a delay is meant
        last = None
        for number, name, value in _records(text):
            if name == "user-agent":
                if group.complete:
                    group = RobotsGroup()
                if not group.agents:
                    file.groups.append(group)
                named = [*named, _agent(value)] if last == name else [_agent(value)]
                group.agents.append(named[-1])
            elif name == "sitemap":
                file.add_sitemap(value)
                continue
            elif name == "crawl-delay":
                file.delays.update(dict.fromkeys(named, value))
            else:
                group.complete = True
                if value:
                    group.rules.append(RobotsRule(name == "allow", value, number))
            last = name
        return file

    def add_sitemap(self, url: str) -> None:
        if url and url not in self.sitemaps and len(self.sitemaps) < MOST_SITEMAPS:
            self.sitemaps.append(url)

    def agent_for(self, token: str) -> str | None:
        """The name under which the file speaks to an agent: its own, `*`, or none."""
        named = {agent for group in self.groups for agent in group.agents}
        return next((name for name in (token.lower(), ANYBODY) if name in named), None)

    def rules_for(self, agent: str) -> list[RobotsRule]:
        """All groups of one agent count as one."""
        return [rule for group in self.groups if agent in group.agents for rule in group.rules]


class Decision(Struct, frozen=True):
    """Whether a URL may be fetched, and what decided it. No rule: nothing in our group speaks of the URL."""

    allowed: bool
    rule: RobotsRule | None = None


class Rules:
    """What one agent may ask of one host."""

    def __init__(self, record: RobotsRecord, agent: str, longest_delay: timedelta) -> None:
        self.state = record.state
        self.token = product_token(agent)
        why = "" if record.state is RobotsState.FOUND else record.body
        self.failure_code, _, self.why_none = why.rpartition("\n")
        file = RobotsFile.read(record.body) if record.state is RobotsState.FOUND else RobotsFile()
        self.group = file.agent_for(self.token)  # the name of our group; None: the file has no word for us
        self.rules = file.rules_for(self.group) if self.group else []
        self._matcher = RuleMatcher(_meanings(self.rules)) if self.rules else None
        self.asked_delay = _seconds(file.delays.get(self.group or ""))
        self.delay, self.delay_was_cut = _delay(self.asked_delay, longest_delay)
        self.sitemaps = file.sitemaps  # as written

    @property
    def reachable(self) -> bool:
        return self.state is not RobotsState.UNREACHABLE

    def sitemaps_at(self, home: str) -> list[tuple[str, str]]:
        """The sitemaps that the file of this host names: each as an absolute URL, and as it is written. The protocol
        wants whole URLs; a path is read as one of the host, as other crawlers do."""
        return [(_absolute(f"{home}/robots.txt", written), written) for written in self.sitemaps]

    def allows(self, url: Url) -> bool:
        return self.decide(url).allowed

    def decide(self, url: Url) -> Decision:
        """Whether a URL may be fetched, with the rule behind it: the longest of those that match, an allowing one if
        two are equal. The file itself may always be had."""
        if self._matcher is None:
            return Decision(self.reachable)
        path = url[url.index("/", 8) :]
        rule = None if path.partition("?")[0] == "/robots.txt" else self._matcher.find(path)
        return Decision(rule is None or rule.allow, rule)


def product_token(agent: str) -> str:
    """The name by which robots.txt knows us: the first word of the agent, without its version."""
    match = PRODUCT.match(agent)
    return match[0] if match else "shoal"


def readable(body: bytes) -> str:
    """The part of a file that is read, as text whatever its bytes: the first 500 KiB, without a line that they cut."""
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):  # not allowed by the RFC, but plain what is meant
        text = body[:MAX_BYTES].decode("utf-16", "replace")
    else:
        text = body[:MAX_BYTES].removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    if len(body) > MAX_BYTES:
        text = text[: max(text.rfind("\n"), text.rfind("\r")) + 1]
    return text.replace("\x00", "")


def _records(text: str) -> Iterator[tuple[int, str, str]]:
    """Every line that says something: its number, the name of its record, and the value."""
    for number, line in enumerate(_LINE_END.split(text), 1):
        said = line.partition("#")[0]
        name, colon, value = said.partition(":")
        if not colon:  # forgiven, as by Google, where it cannot mean anything else
            words = said.split()
            name, value = words if len(words) == 2 else ("", "")
        known = _NAMES.get(" ".join(name.lower().split()))
        if known is not None:
            yield number, known, value.strip()


def _absolute(base: str, written: str) -> str:
    try:
        return urljoin(base, written)
    except ValueError:  # such as a bracket without its partner: no URL at all, which is judged later
        return written


def _agent(value: str) -> str:
    """Who a group is for. What follows the product token, such as a version, does not count."""
    if value.split()[:1] == [ANYBODY]:
        return ANYBODY
    match = PRODUCT.match(value)
    return match[0].lower() if match else ""


def _meanings(rules: list[RobotsRule]) -> Iterator[tuple[str, bool, RobotsRule]]:
    for rule in rules:
        yield rule.path, rule.allow, rule
        if rule.allow and rule.path.endswith("/index.html"):  # as Google reads it: the folder is meant as well
            yield rule.path.removesuffix("index.html") + "$", True, rule


def _seconds(written: str | None) -> float | None:
    return min(float(written), LONGEST_SECONDS) if written and _SECONDS.fullmatch(written) else None


def _delay(wished: float | None, longest: timedelta) -> tuple[timedelta, bool]:
    if wished is None:
        return timedelta(0), False
    if wished > longest.total_seconds():
        return longest, True
    return timedelta(seconds=wished), False

"""robots.txt (RFC 9309): read, stored and matched."""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urljoin

import xxhash
from msgspec import Struct, field

from shoal.base.url import Url

_PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F)))
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_DECODED: Final = frozenset(_PRINTABLE) - frozenset("/%")
_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_BARE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BEYOND_ASCII: Final = re.compile(r"(?:%[89A-F][0-9A-F])++")
_LOST: Final = "\ufffd"  # replaces a byte that was not valid UTF-8 in the file

Meaning = TypeVar("Meaning")


def _normal(path: str) -> str:
    return _ESCAPE.sub(lambda found: _plain(found, _DECODED), _ascii(path))


def _written(path: str) -> str:
    return _ESCAPE.sub(lambda found: _plain(found, _UNRESERVED), _ascii(path))


def _readable(path: str) -> str:
    """Normalize a path, with a replacement character for each byte that is not UTF-8, as in a decoded file."""
    return _BEYOND_ASCII.sub(
        lambda found: bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "replace"), _normal(path)
    )


def _ascii(path: str) -> str:
    return path if path.isascii() and path.isprintable() and " " not in path else quote(path, safe=_PRINTABLE)


def _plain(escape: "re.Match[str]", decoded: frozenset[str]) -> str:
    sign = chr(int(escape[1], 16))
    return sign if sign in decoded else escape[0].upper()


class _Pattern(NamedTuple):
    """The pattern of one rule: the texts between its `*`, in order."""

    first: str
    middle: list[str]
    last: str | None  # `None` if there is no `*`
    ends: bool  # whether the pattern must match up to the end of the URL
    form: Callable[[str], str]
    length: int

    @classmethod
    def of(cls, path: str) -> "_Pattern":
        ends = path.endswith("$")
        written = path.removesuffix("$")
        form = _written if _BARE_PERCENT.search(written) else _readable if _LOST in written else _normal
        first, *rest = [form(part) for part in re.split(r"\*+", written)]
        length = len(first) + sum(map(len, rest)) + len(rest) + ends
        return cls(first, rest[:-1], rest[-1] if rest else None, ends, form, length)

    @property
    def prefix(self) -> str | None:
        """The prefix, if the pattern is a plain prefix; otherwise None."""
        return self.first if self.last is None and not self.ends and self.form is _normal else None

    def matches(self, path: str) -> bool:
        first, middle, last, ends, _, _ = self
        if not path.startswith(first):
            return False
        at = len(first)
        if last is None:
            return not ends or len(path) == at
        for part in middle:
            at = path.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return len(path) - len(last) >= at and path.endswith(last) if ends else path.find(last, at) >= 0


class RuleMatcher(Generic[Meaning]):
    """Finds the longest rule that matches a path. If two matching rules are equally long, the one that allows the path
    is used."""

    def __init__(self, rules: Iterable[tuple[str, bool, Meaning]]) -> None:
        """Take rules as tuples: a path, whether the rule allows it, and the caller's value for the rule."""
        patterns = [(_Pattern.of(path), allows, rule) for path, allows, rule in rules]
        self._all = sorted(patterns, key=lambda one: (one[0].length, one[1]), reverse=True)
        self._special = [one for one in self._all if one[0].prefix is None]
        self._prefixes = tuple(one[0].prefix for one in self._all if one[0].prefix is not None)

    def find(self, path: str) -> Meaning | None:
        """Return the rule that decides on a path, which starts with `/` and includes the query."""
        forms: dict[Callable[[str], str], str] = {}
        if "%" in path or not path.isascii():
            forms[_normal] = _normal(path)
        # Most paths match none of the plain prefixes, and one comparison checks all of them.
        candidates = self._all if forms.get(_normal, path).startswith(self._prefixes) else self._special
        for pattern, _, rule in candidates:
            text = forms.get(pattern.form)
            if text is None:
                text = forms[pattern.form] = pattern.form(path)
            if pattern.matches(text):
                return rule
        return None


MAX_BYTES = 500 * 1024
MOST_SITEMAPS = 1000
LONGEST_SECONDS = 1e9  # larger delays are reduced to this value, so that no number is infinite
ANYBODY = "*"
PRODUCT = re.compile(r"[A-Za-z_-]+")  # the characters of a product token

_LINE_END = re.compile(r"\r\n?|\n")
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_NAMES = {
    **dict.fromkeys(("user-agent", "useragent", "user agent"), "user-agent"),
    **dict.fromkeys(("disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw"), "disallow"),
    **dict.fromkeys(("sitemap", "site-map"), "sitemap"),
    **dict.fromkeys(("crawl-delay", "crawldelay", "crawl delay"), "crawl-delay"),
    "allow": "allow",
}
"""The records that are read, including the misspellings that Google accepts; all others are ignored."""

NO_ROBOTS = "The host's robots.txt could not be fetched, so no URL of the host is allowed."


class RobotsState(StrEnum):
    """The result of the last request for a robots.txt."""

    FOUND = "found"  # a file
    ABSENT = "absent"  # 4xx: everything is allowed
    UNREACHABLE = "unreachable"  # 5xx or no response: nothing is allowed until there is one


class RobotsRecord(Struct, frozen=True):
    """The stored robots.txt of one host. `body` is the file or, if there is none, the reason for that; if the request
    failed, the failure code comes first, on its own line."""

    state: RobotsState
    body: str
    age: timedelta = timedelta(0)  # time since it was requested, by the store's clock
    throttled: "Throttled | None" = None  # not stored in this record, because a hold is stored with the host

    @property
    def hash(self) -> str:
        """Content hash; equal records have equal hashes."""
        return xxhash.xxh3_64_hexdigest(self.body.encode("utf-8", "replace"))


class Throttled(Struct, frozen=True):
    """A response that asks us to wait."""

    status: int
    retry_after: str | None


class RobotsRule(Struct, frozen=True):
    """One line of a group: whether URLs whose path matches `path` are allowed."""

    allow: bool
    path: str  # as written
    line: int

    def __str__(self) -> str:
        return f"{'Allow' if self.allow else 'Disallow'}: {self.path}"


class RobotsGroup(Struct):
    """Rules and the agents they apply to: product tokens in lower case, or `*`."""

    agents: list[str] = field(default_factory=list)
    rules: list[RobotsRule] = field(default_factory=list)
    complete: bool = False  # a rule was read, so the next agent starts a new group


class RobotsFile(Struct):
    """A parsed robots.txt."""

    groups: list[RobotsGroup] = field(default_factory=list)
    delays: dict[str, str] = field(default_factory=dict)  # per agent, as written
    sitemaps: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, text: str) -> "RobotsFile":
        file, group = cls(), RobotsGroup()
        named: list[str] = []  # the agents directly above the current line, to which a delay applies
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
                if value and value not in file.sitemaps and len(file.sitemaps) < MOST_SITEMAPS:
                    file.sitemaps.append(value)
                continue
            elif name == "crawl-delay":
                file.delays.update(dict.fromkeys(named, value))
            else:
                group.complete = True
                if value:
                    group.rules.append(RobotsRule(name == "allow", value, number))
            last = name
        return file

    def agent_for(self, token: str) -> str | None:
        """Return the name under which the file addresses an agent: the name of the agent, `*`, or None if the file does
        not address it."""
        named = {agent for group in self.groups for agent in group.agents}
        return next((name for name in (token.lower(), ANYBODY) if name in named), None)

    def rules_for(self, agent: str) -> list[RobotsRule]:
        """Return the rules of all groups of one agent, merged."""
        return [rule for group in self.groups if agent in group.agents for rule in group.rules]


class Decision(Struct, frozen=True):
    """The decision about a URL: whether it may be fetched, and the rule that decided it, or None if no rule of our
    group matches."""

    allowed: bool
    rule: RobotsRule | None = None


class Rules:
    """The rules of one host for one agent."""

    def __init__(
        self, record: RobotsRecord, agent: str, longest_delay: timedelta, sent_at: float | None = None
    ) -> None:
        self.state = record.state
        self.sent_at = sent_at  # when it was requested, by the clock of this process; `None`: it was in the store
        self.token = product_token(agent)
        why = "" if record.state is RobotsState.FOUND else record.body
        self.failure_code, _, self.why_none = why.rpartition("\n")
        file = RobotsFile.read(record.body) if record.state is RobotsState.FOUND else RobotsFile()
        self.group = file.agent_for(self.token)  # the name of our group; `None` if no group applies to us
        self.rules = file.rules_for(self.group) if self.group else []
        self._matcher = RuleMatcher(_meanings(self.rules)) if self.rules else None
        self.asked_delay_seconds = _seconds(file.delays.get(self.group or ""))
        self.delay, self.delay_was_cut = _delay(self.asked_delay_seconds, longest_delay)
        self.sitemaps = file.sitemaps  # as written

    @property
    def reachable(self) -> bool:
        return self.state is not RobotsState.UNREACHABLE

    def sitemaps_at(self, host_origin: str) -> list[tuple[str, str]]:
        """Return the sitemaps in this host's file, each as an absolute URL and as written. The protocol requires
        absolute URLs; like other crawlers, we resolve a path against the host."""
        return [(_absolute(f"{host_origin}/robots.txt", written), written) for written in self.sitemaps]

    def allows(self, url: Url) -> bool:
        return self.decide(url).allowed

    def decide(self, url: Url) -> Decision:
        """Return whether a URL may be fetched, and the rule that decides: the longest match, and `Allow` if two are
        equally long. The file itself is always allowed."""
        if self._matcher is None:
            return Decision(self.reachable)
        path = url[url.index("/", 8) :]
        rule = None if path.partition("?")[0] == "/robots.txt" else self._matcher.find(path)
        return Decision(rule is None or rule.allow, rule)


class RobotsSource(Protocol):
    """Returns the robots.txt rules of a host, from a cache or from the host."""

    async def rules_of(self, origin: str) -> Rules: ...


def product_token(agent: str) -> str:
    """Return the name that robots.txt files use for us: the first word of the agent, without its version."""
    match = PRODUCT.match(agent)
    return match[0] if match else "shoal"


def readable(body: bytes) -> str:
    """Return the part of a file that is read, decoded even if it is not valid UTF-8: the first 500 KiB, without a
    truncated last line."""
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):  # not allowed by the RFC, but the meaning is clear
        text = body[:MAX_BYTES].decode("utf-16", "replace")
    else:
        text = body[:MAX_BYTES].removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    if len(body) > MAX_BYTES:
        text = text[: max(text.rfind("\n"), text.rfind("\r")) + 1]
    return text.replace("\x00", "")


def _records(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield every line with a known record: its number, the name of the record, and the value."""
    for number, line in enumerate(_LINE_END.split(text), 1):
        content = line.partition("#")[0]
        name, colon, value = content.partition(":")
        if not colon:  # as in Google's parser, the colon may be missing if the line is unambiguous
            words = content.split()
            name, value = words if len(words) == 2 else ("", "")
        known = _NAMES.get(" ".join(name.lower().split()))
        if known is not None:
            yield number, known, value.strip()


def _absolute(base: str, written: str) -> str:
    try:
        return urljoin(base, written)
    except ValueError:  # for example an unbalanced bracket: this is not a valid URL, which is checked later
        return written


def _agent(value: str) -> str:
    """Return the agent that a group applies to. Anything after the product token, such as a version, is ignored."""
    if value.split()[:1] == [ANYBODY]:
        return ANYBODY
    match = PRODUCT.match(value)
    return match[0].lower() if match else ""


def _meanings(rules: list[RobotsRule]) -> Iterator[tuple[str, bool, RobotsRule]]:
    for rule in rules:
        yield rule.path, rule.allow, rule
        if rule.allow and rule.path.endswith("/index.html"):  # as in Google's parser, also allow the folder
            yield rule.path.removesuffix("index.html") + "$", True, rule


def _seconds(written: str | None) -> float | None:
    return min(float(written), LONGEST_SECONDS) if written and _SECONDS.fullmatch(written) else None


def _delay(requested_seconds: float | None, longest: timedelta) -> tuple[timedelta, bool]:
    if requested_seconds is None:
        return timedelta(0), False
    if requested_seconds > longest.total_seconds():
        return longest, True
    return timedelta(seconds=requested_seconds), False

"""What a crawl is: what a caller asks for, and what Shoal answers."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import xxhash
from msgspec import Meta

from shoal.base.ids import CrawlId
from shoal.base.query_params import SESSION, TRACKING, read_name
from shoal.base.request_form import Form, describe, matching
from shoal.base.text import shorten
from shoal.base.url import DEFAULT_RULES, UrlRules
from shoal.crawl.credentials import SECRET_FIELDS, GivenCookie, check_proxy, hidden
from shoal.crawl.states import CrawlState
from shoal.crawl.url_patterns import check_patterns
from shoal.egress.custom_headers import MOST_HEADERS, check_headers
from shoal.pages.response_counts import ResponseClass, count_responses
from shoal.settings import Speed

Scope = Literal["page", "prefix", "host", "domain", "any"]
Count = Annotated[int, Meta(ge=1, le=10**12)]
Size = Annotated[int, Meta(ge=1, le=10**15)]
Seconds = Annotated[float, Meta(gt=0, le=10**9)]
Fetches = Annotated[int, Meta(ge=1, le=1000)]
Pause = Annotated[float, Meta(ge=0, le=3600)]
Depth = Annotated[int, Meta(ge=0, le=10_000)]
Priority = Annotated[int, Meta(ge=0, le=100)]
Text = Annotated[str, Meta(max_length=10_000)]
Line = Annotated[str, Meta(min_length=1, max_length=500)]
Proxied = Annotated[str, Meta(min_length=1, max_length=2000)]
Name = Annotated[str, matching(r"^[A-Za-z0-9_.-]{1,64}\Z", "1 to 64 letters, digits and `_.-`")]
Patterns = Annotated[list[Annotated[str, Meta(min_length=1, max_length=1000)]], Meta(max_length=1000)]
Params = Annotated[list[Text], Meta(max_length=1000)]
Label = Annotated[str, Meta(min_length=1, max_length=100)]
LabelText = Annotated[str, Meta(max_length=500)]
HookName = Annotated[str, Meta(min_length=1, max_length=100)]
SHOWN_APART = {"seeds", "project", "labels", "priority", "start"}


def parameter_names(names: list[str] | None) -> list[str] | None:
    return None if names is None else [read_name(name) for name in names]


def one_line(text: str | None) -> str | None:
    if text is not None and not text.isprintable():
        raise ValueError("must be one line of printable text")
    return text


def plain_labels(labels: dict[str, str]) -> dict[str, str]:
    """They are looked for as `name=value`."""
    for name, value in labels.items():
        if "=" in name or not name.isprintable() or not value.isprintable():
            raise ValueError(f"has {shorten(name)!r}: names and values are one line of text each, a name without =")
    return labels


def usable_rules(rules: dict[str, Any] | None) -> dict[str, Any] | None:
    from shoal.extract.rules import read_rules  # what few crawls have is not worth everybody's start-up time

    if rules is not None:
        read_rules(rules, "rules.")
    return rules


class CrawlConfig(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller asks for."""

    seeds: Annotated[list[Text], describe("Where the crawl begins.", min_length=1, max_length=10_000)]
    depth: Annotated[Depth, describe("How many links away from a seed a page may be.")] = 3
    max_pages: Annotated[Count | None, describe("Pages after which the crawl completes.")] = None
    max_bytes: Annotated[Size | None, describe("Bytes after which the crawl completes.")] = None
    max_seconds: Annotated[Seconds | None, describe("Time of work after which it completes.")] = None
    max_pages_per_host: Annotated[Count | None, describe("Pages taken from one host.")] = None
    scope: Annotated[Scope, describe("What belongs to the crawl, seen from its seeds.")] = "host"
    include: Annotated[Patterns, describe("Only URLs that match one of these are crawled.")] = []
    exclude: Annotated[Patterns, describe("URLs that match one of these are skipped.")] = []
    sort_query: Annotated[bool, describe("The order of query parameters makes no other page.")] = False
    drop_params: Annotated[Params, describe("A query parameter that makes no other page; `NAME*` is any rest.")] = []
    keep_params: Annotated[
        Params, describe("A parameter that is kept whatever the lists say; `NAME*` is any rest.")
    ] = []
    tracking_params: Annotated[Params | None, describe("Tracking parameters, instead of the listed ones.")] = None
    session_params: Annotated[Params | None, describe("Session parameters, instead of the listed ones.")] = None
    speed: Annotated[Speed, describe("How hard one host is asked.")] = "normal"
    concurrency: Annotated[Fetches | None, describe("Fetches in flight; beats the speed profile.")] = None
    delay_seconds: Annotated[Pause | None, describe("Pause between requests to one host.")] = None
    robots: Annotated[Literal["obey", "ignore"], describe("Whether robots.txt decides what may be fetched.")] = "obey"
    sitemap: Annotated[
        Literal["on", "off", "only"],
        describe("Whether sitemaps are read; `only`: nothing but the seeds and what sitemaps list is fetched."),
    ] = "on"
    user_agent: Annotated[Line | None, describe("How Shoal names itself.")] = None
    headers: Annotated[
        dict[str, Text], describe("Headers of your own; all but Accept… go only to the origins of the seeds.")
    ] = {}
    cookies: Annotated[
        list[GivenCookie],
        describe("Cookies to begin with: {name, value, domain, path, secure}.", max_length=MOST_HEADERS),
    ] = []
    proxy: Annotated[
        Proxied | None, describe("A proxy to go through: http, https, socks5 or socks5h, or the label of one.")
    ] = None
    keep_bodies: Annotated[bool, describe("Keep every answer as it was sent.")] = False
    rules: Annotated[dict[str, Any] | None, describe("A rule set: which data to take from each page.")] = None
    hooks: Annotated[
        list[HookName], describe("Functions of installed packages that read each page.", max_length=20)
    ] = []
    analyze: Annotated[bool, describe("Keep what analyses need of each page, beyond its record.")] = False
    recrawl_of: Annotated[
        Name | None, describe("An earlier crawl: pages that have not changed since are not sent again.")
    ] = None
    project: Annotated[Name, describe("What the crawl is filed under.")] = "default"
    labels: Annotated[dict[Label, LabelText], describe("Words of your own, by name.", max_length=64)] = {}
    workers: Annotated[int, describe("Walkers over the one frontier.", ge=1, le=64)] = 1
    priority: Annotated[Priority, describe("Higher first.")] = 50
    start: Annotated[bool, describe("False: store it, and start it later.")] = True

    unquoted = SECRET_FIELDS
    raw = frozenset({"seeds"})  # judged one by one, by their places
    checks = {
        "include": check_patterns,
        "exclude": check_patterns,
        "drop_params": parameter_names,
        "keep_params": parameter_names,
        "tracking_params": parameter_names,
        "session_params": parameter_names,
        "headers": check_headers,
        "proxy": check_proxy,
        "user_agent": one_line,
        "labels": plain_labels,
        "rules": usable_rules,
    }

    @property
    def budgets(self) -> tuple[float | None, ...]:
        return self.max_pages, self.max_bytes, self.max_seconds

    @property
    def has_budget(self) -> bool:
        return any(limit is not None for limit in self.budgets)

    def url_rules(self, max_length: int = DEFAULT_RULES.max_length) -> UrlRules:
        """What counts as the same page in this crawl."""
        return UrlRules(
            max_length=max_length,
            tracking=TRACKING if self.tracking_params is None else tuple(self.tracking_params),
            session=SESSION if self.session_params is None else tuple(self.session_params),
            drop=tuple(self.drop_params),
            keep=tuple(self.keep_params),
            sort_query=self.sort_query,
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """What a crawl has done so far: the sum over its walkers."""

    opened: int = 0
    settled: int = 0
    pages: int = 0
    errors: int = 0
    responses: dict[ResponseClass, int] = field(default_factory=lambda: count_responses(()))  # every class is there
    bytes: int = 0
    not_modified: int = 0  # pages that were not sent again
    bytes_saved: int = 0  # by that
    depth_reached: int = 0
    walked: int = 0  # microseconds of work by the clock: time that several walkers share counts once
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def queued(self) -> int:
        return self.opened - self.settled

    @property
    def drained(self) -> bool:
        return self.opened == self.settled


@dataclass(frozen=True, slots=True)
class Crawl:
    """A crawl as its row says."""

    number: int
    key_seed: int  # of the hashes of its URLs: a secret of the crawl, so that no site can make up collisions
    id: CrawlId
    state: CrawlState
    state_reason: str | None
    project: str
    config: CrawlConfig
    named: frozenset[str]
    priority: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    changed_at: int = 0  # when its options were changed last; 0: they are those that it began with

    @property
    def bodies(self) -> str:
        """What its kept bodies are filed under. Ids are used again, and by other stores: the id alone will not do."""
        return f"{self.id}-{xxhash.xxh3_64_hexdigest(self.key_seed.to_bytes(8))}"

    @property
    def took_seconds(self) -> float | None:
        """From its start to its end; None without both."""
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at) / 1e6


def shown_config(config: CrawlConfig) -> dict[str, Any]:
    """Return the options of a crawl with secrets masked, without those that the API shows as fields of the crawl."""
    return hidden({name: value for name, value in config.plain().items() if name not in SHOWN_APART})

"""A crawl: the options that a caller sends, and the row and the counts that Shoal stores."""

import math
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal, Self

import xxhash
from msgspec import Meta, Struct, field

from shoal.base.forge_commit import ForgeCommit
from shoal.base.ids import CrawlId
from shoal.base.parsing import read_duration, read_pause, read_span
from shoal.base.query_params import SESSION, TRACKING, read_name
from shoal.base.request_form import Form, OtherName, describe, matching
from shoal.base.settings import Speed
from shoal.base.text import shorten
from shoal.base.url import DEFAULT_RULES, UrlRules
from shoal.crawl.credentials import SECRET_FIELDS, CrawlCookie, check_proxy, hidden
from shoal.crawl.states import CrawlState
from shoal.crawl.url_patterns import check_patterns
from shoal.egress.exchange import MOST_HEADERS, check_headers
from shoal.pages.page import ResponseClass, count_responses

FrontierDriver = Literal["sql", "redis"]
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
Selector = Annotated[str, Meta(min_length=1, max_length=1000)]
WaitFor = Annotated[str, Meta(min_length=1, max_length=3000)]
WAIT_FOR_AT = " -> "  # between a URL pattern and a selector; no selector contains it
_HOOK_NAME = re.compile(r"[\w.-]+", re.ASCII)
HookName = Annotated[str, Meta(min_length=1, max_length=100)]
MOST_SEEDS = 10_000  # per request; more can be added to a crawl that has not started
SHOWN_APART = {"seeds", "project", "labels", "priority", "start"}


def parameter_names(names: list[str] | None) -> list[str] | None:
    return None if names is None else [read_name(name) for name in names]


def one_line(text: str | None) -> str | None:
    if text is not None and not text.isprintable():
        raise ValueError("must be one line of printable text")
    return text


def plain_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return the labels if they are valid. Users search for labels as `name=value`, so a name must not contain `=`."""
    for name, value in labels.items():
        if "=" in name or not name.isprintable() or not value.isprintable():
            raise ValueError(
                f"has {shorten(name)!r}: names and values must be one line of text each, and a name must not contain ="
            )
    return labels


def hook_names(names: list[str]) -> list[str]:
    """Return the names if they are valid hook names. Workers check whether the hooks are installed."""
    for name in names:
        if _HOOK_NAME.fullmatch(name) is None:
            raise ValueError(
                f"has {shorten(name)!r}; name an entry point in the group shoal.hooks, not a function of a module"
            )
    return names


def counted_by_shoal(count: int) -> int:
    if count:
        raise ValueError("is counted by Shoal; leave it out")
    return count


def usable_rules(rules: dict[str, Any] | None) -> dict[str, Any] | None:
    from shoal.extract.rules import read_rules  # few crawls have rules: keep this import out of start-up

    if rules is not None:
        read_rules(rules, "rules.")
    return rules


def duration_in_seconds(value: Any, read: Callable[[object], timedelta] = read_duration) -> Any:
    """Return a duration such as `30m` in seconds. Values that are not text are returned unchanged."""
    return read_span(value, read).total_seconds() if isinstance(value, str) else value


def render_of(js: Any) -> Any:
    """Return the value of the option `render` for a value of the option `js`."""
    if not isinstance(js, bool):
        raise ValueError(f"cannot be {shorten(js)!r}; give true or false")
    return "always" if js else "never"


DEPTH = (
    "Maximum number of links between a seed and a page; null removes the limit. Default: 3 with the scopes `domain`"
    " and `any`, otherwise no limit."
)
WIDE_DEPTH = 3  # with a scope that includes other people's sites
EARLIER_DEPTH = 3  # for crawls that were stored without a depth: at that time, this was the default for every scope


def split_wait_for(text: str) -> tuple[str | None, str]:
    """Split a `wait_for` value into its URL pattern (None if it has no pattern) and its selector."""
    pattern, arrow, selector = text.rpartition(WAIT_FOR_AT)
    return (pattern.strip() or None if arrow else None), selector.strip()


def check_wait_for(text: str | None) -> str | None:
    if text is not None:
        pattern, selector = split_wait_for(text)
        check_patterns([] if pattern is None else [pattern])
        check_selector(selector)
    return text


def check_selector(selector: str | None) -> str | None:
    from shoal.extract.selectors import check_css  # few crawls need it: keep this import out of start-up

    if selector is not None:
        check_css(selector)
    return selector


class CrawlConfig(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a crawl, as a caller sends them."""

    seeds: Annotated[list[Text], describe("URLs to start from.", min_length=1, max_length=MOST_SEEDS)]
    depth: Annotated[Depth | None, describe(DEPTH)] = None
    max_pages: Annotated[Count | None, describe("Complete after this many pages.")] = None
    max_bytes: Annotated[Size | None, describe("Complete after this many bytes.")] = None
    max_seconds: Annotated[Seconds | None, describe("Complete after this much crawling time.")] = None
    max_pages_per_host: Annotated[Count | None, describe("Maximum number of pages per host.")] = None
    scope: Annotated[Scope, describe("Which URLs to crawl, relative to the seeds.")] = "host"
    include: Annotated[Patterns, describe("Crawl only URLs that match one of these patterns.")] = []
    exclude: Annotated[Patterns, describe("Skip URLs that match one of these patterns.")] = []
    sort_query: Annotated[bool, describe("Ignore query-parameter order when comparing URLs.")] = False
    drop_params: Annotated[Params, describe("Ignore this query parameter; `NAME*` matches a prefix.")] = []
    keep_params: Annotated[
        Params, describe("Keep this query parameter even if a list ignores it; `NAME*` matches a prefix.")
    ] = []
    tracking_params: Annotated[
        Params | None, describe("Tracking parameters to ignore, instead of the built-in list.")
    ] = None
    session_params: Annotated[
        Params | None, describe("Session parameters to ignore, instead of the built-in list.")
    ] = None
    speed: Annotated[
        Speed | None,
        describe(
            "Request rate per host. Default: `normal`; `max` if all seeds are on this machine, or if concurrency is set"
            " without a delay."
        ),
    ] = None
    concurrency: Annotated[
        Fetches | None,
        describe(
            "Maximum number of concurrent requests, in total and per host. If neither a speed nor a delay is set, "
            "there is no delay between requests."
        ),
    ] = None
    delay_seconds: Annotated[
        Pause | None, describe("Minimum delay between requests to one host; overrides the speed profile.")
    ] = None
    robots: Annotated[Literal["obey", "ignore"], describe("Whether to obey robots.txt.")] = "obey"
    sitemap: Annotated[
        Literal["on", "off", "only"],
        describe("Whether to read sitemaps; `only` fetches just the seeds and the URLs that sitemaps list."),
    ] = "on"
    user_agent: Annotated[
        Line | None, describe("User-Agent header to send; the name at its start selects the rules in robots.txt.")
    ] = None
    headers: Annotated[
        dict[str, Text],
        describe(
            "Extra request headers. Accept… headers are sent to all hosts, all other headers only to the origins of "
            "the seeds."
        ),
    ] = {}
    cookies: Annotated[
        list[CrawlCookie],
        describe("Cookies to start with: {name, value, domain, path, secure}.", max_length=MOST_HEADERS),
    ] = []
    proxy: Annotated[
        Proxied | None, describe("Proxy URL (http, https, socks5 or socks5h), or the label of a configured proxy.")
    ] = None
    render: Annotated[
        Literal["never", "auto", "always"],
        describe(
            "Whether to run the scripts of pages in a browser; `auto` does so only for pages that need a browser."
        ),
    ] = "never"
    wait_for: Annotated[
        WaitFor | None,
        describe(
            "Read a rendered page once this CSS selector matches, or once the time limit is reached. With `RE ->"
            " CSS`, only pages whose URLs match the pattern `RE` wait for the selector."
        ),
    ] = None
    scroll: Annotated[bool, describe("Scroll rendered pages to the end, as long as they grow.")] = False
    click: Annotated[
        Selector | None,
        describe("On rendered pages, click the element with this CSS selector until it is gone, at most 20 times."),
    ] = None
    keep_bodies: Annotated[bool, describe("Store the response bodies unchanged.")] = False
    rules: Annotated[dict[str, Any] | None, describe("Rule set with the data to extract from each page.")] = None
    hooks: Annotated[
        list[HookName], describe("Functions of installed packages to call with each page.", max_length=20)
    ] = []
    analyze: Annotated[bool, describe("Store the page details that analyses need, and analyze the crawl.")] = False
    links: Annotated[bool, describe("Store URL, text and kind of every link; always on with `analyze`.")] = False
    gate: Annotated[Name | None, describe("Name of the gate that judges the analysis.")] = None
    baseline: Annotated[
        Name | None,
        describe("Analysis or crawl that the gate compares with. `previous` is the newest analysis of the same site."),
    ] = None
    commit: Annotated[ForgeCommit | None, describe("Commit whose status shows the verdict of the analysis.")] = None
    recrawl_of: Annotated[
        Name | None,
        describe("Earlier crawl of the same site; conditional requests skip pages that did not change."),
    ] = None
    project: Annotated[Name, describe("Project that the crawl belongs to.")] = "default"
    labels: Annotated[
        dict[Label, LabelText], describe("Labels, as names and values, for finding the crawl.", max_length=64)
    ] = {}
    workers: Annotated[int, describe("Number of walkers that share the frontier.", ge=1, le=64)] = 1
    priority: Annotated[Priority, describe("Priority from 0 to 100; higher runs first.")] = 50
    start: Annotated[bool, describe("Set to false to store the crawl without starting it.")] = True
    more_seeds: Annotated[
        int, describe("Number of seeds that were added later and are not in `seeds`. Shoal counts them.", ge=0)
    ] = 0

    unquoted = SECRET_FIELDS
    raw = frozenset({"seeds"})  # each seed is validated separately, so that errors name its index
    other_names = {
        "since": "recrawl_of",
        "max_time": OtherName("max_seconds", duration_in_seconds),
        "delay": OtherName("delay_seconds", partial(duration_in_seconds, read=read_pause)),
        "processes": "workers",
        "rule_set": "rules",
        "js": OtherName("render", render_of),
    }
    also_called = {
        "url": "seeds",
        "urls": "seeds",
        "start_urls": "seeds",
        "max_depth": "depth",
        "limit": "max_pages",
        "wait": "wait_for",
        "screenshot": "render",
        "javascript": "render",
        "max_concurrency": "concurrency",
    }
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
        "wait_for": check_wait_for,
        "click": check_selector,
        "hooks": hook_names,
        "more_seeds": counted_by_shoal,
    }

    @classmethod
    def read(cls, values: Mapping[str, Any], *, strict: bool = True, called: Callable[[str], str] = str) -> Self:
        """Validate options. If a crawl's scope is wider than one host and no depth is given, a default depth limit
        applies."""
        if "depth" not in values and values.get("scope") in ("domain", "any"):
            values = {**values, "depth": WIDE_DEPTH}
        return super().read(values, strict=strict, called=called)

    @property
    def deepest(self) -> float:
        """The depth of the deepest pages."""
        return math.inf if self.depth is None else self.depth

    @property
    def budgets(self) -> tuple[float | None, ...]:
        return self.max_pages, self.max_bytes, self.max_seconds

    @property
    def has_budget(self) -> bool:
        return any(limit is not None for limit in self.budgets)

    def url_rules(self, max_length: int = DEFAULT_RULES.max_length) -> UrlRules:
        """Return the rules that decide which URLs are the same page in this crawl."""
        return UrlRules(
            max_length=max_length,
            tracking=TRACKING if self.tracking_params is None else tuple(self.tracking_params),
            session=SESSION if self.session_params is None else tuple(self.session_params),
            drop=tuple(self.drop_params),
            keep=tuple(self.keep_params),
            sort_query=self.sort_query,
        )


BUDGETS = frozenset({"max_pages", "max_bytes", "max_seconds"})
"""Limits on pages, bytes and time. When a limit is reached, the crawl completes with that limit's name as reason."""

TRAP = "trap"
"""The skip reason that is reported for URLs in quarantine. It is not stored before their patterns are cleared."""


class Counts(Struct, frozen=True):
    """Counters of a crawl, summed over its walkers."""

    opened: int = 0
    settled: int = 0
    pages: int = 0
    errors: int = 0
    responses: dict[ResponseClass, int] = field(default_factory=lambda: count_responses(()))  # always has every class
    bytes: int = 0
    not_modified: int = 0  # pages with a 304 response
    bytes_saved: int = 0  # bytes that 304 responses saved
    stayed_empty: int = 0  # rendered pages without links and with hardly any words
    depth_reached: int = 0
    walked: timedelta = timedelta(0)  # wall-clock working time: time during which several walkers work counts once
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """The number of URLs that are in quarantine as a crawler trap. They count as settled and as skipped."""
        return self.skipped.get(TRAP, 0)

    @property
    def unanswered(self) -> int:
        """The number of error records of URLs that returned no HTTP response. All other errors belong to pages."""
        return self.responses["none"]

    @property
    def records(self) -> int:
        """The number of records in outputs and in the library's iterator: pages, and errors without a response."""
        return self.pages + self.unanswered

    @property
    def queued(self) -> int:
        return self.opened - self.settled

    @property
    def drained(self) -> bool:
        return self.opened == self.settled


class Crawl(Struct, frozen=True):
    """A crawl as stored in its row."""

    number: int
    key_seed: int  # seed of the URL hashes; secret, so that no site can construct collisions
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
    changed_at: int = 0  # time of the last change of options; 0: never changed
    frontier: FrontierDriver = "sql"  # the driver that the crawl was started with
    policy_id: str | None = None  # the policy that started the crawl

    @property
    def bodies(self) -> str:
        """Return the name under which the crawl's bodies are stored. Crawl ids may be reused, even by other stores, so
        the id alone is not unique."""
        return f"{self.id}-{xxhash.xxh3_64_hexdigest(self.key_seed.to_bytes(8))}"

    @property
    def settles_apart(self) -> bool:
        """Return whether the crawl's frontier is kept outside the database. Changes of such a frontier belong to no
        database commit."""
        return self.frontier != "sql"

    @property
    def took_seconds(self) -> float | None:
        """Return the seconds from start to end; None unless both are known."""
        if self.started_at is None or self.finished_at is None:
            return None
        return (self.finished_at - self.started_at) / 1e6


def shown_config(config: CrawlConfig) -> dict[str, Any]:
    """Return a crawl's options with secrets masked, except the options that the API shows as fields of the crawl."""
    return hidden({name: value for name, value in config.plain().items() if name not in SHOWN_APART})

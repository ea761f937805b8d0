"""The specification of a page job and of a job group, as callers give it and as it is stored."""

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, Struct, field, json

from shoal.base.errors import InvalidInput
from shoal.base.ids import GroupId
from shoal.base.parsing import PROXY_LABEL
from shoal.base.request_form import Form, OtherName, describe, matching
from shoal.base.text import redact_url, shorten
from shoal.base.url import Url, UrlRefusal, UrlRules, canonical, origin
from shoal.egress.address import AddressRule
from shoal.egress.exchange import MOST_HEADERS, RESERVED, check_headers, hidden_headers
from shoal.extract.converter import ContentFormat
from shoal.queue.job import HTTP, JS, SCRAPE, SCRAPE_JS

KIND: Final = "page"
LONGEST_SCRAPE_SECONDS: Final = 120  # maximum time that a request waits
AS_GIVEN: Final = UrlRules(tracking=(), session=())  # the caller wants exactly this URL, so no parameters are removed

_RESERVED: Final = {
    **RESERVED,
    "user-agent": "the operator sets SHOAL_USER_AGENT",
    "host": "name the host in the URL",
}
_ADDRESS_FIX: Final = "use a public one, or ask the operator to allow its network with SHOAL_ALLOW_NETWORKS"
_URL_FIX: Final = "write it as http://host/path or https://host/path"

Text = Annotated[str, Meta(min_length=1, max_length=10_000)]
HeaderText = Annotated[str, Meta(max_length=10_000)]


def js_of(render: Any) -> bool:
    """Return the value of `js_required` for a value of `render`."""
    if render not in ("always", "never"):
        raise ValueError(f"cannot be {shorten(render)!r} for a page job; give always or never")
    return bool(render == "always")


class PageConfig(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fetch options of a page."""

    headers: Annotated[
        dict[str, HeaderText],
        describe(
            "Extra request headers; all except Accept… are sent to the origin of the URL only.", max_length=MOST_HEADERS
        ),
    ] = {}
    js_required: Annotated[bool, describe("Render the page in a browser; the job waits for a worker that has one.")] = (
        False
    )
    timeout_hint: Annotated[
        Annotated[float, Meta(gt=0, le=600)] | None, describe("Timeout per request, in seconds.")
    ] = None
    proxy: Annotated[
        Annotated[str, matching(PROXY_LABEL, "1 to 64 letters, digits and `_.-`")] | None,
        describe("Label of the proxy to use; the operator defines proxies with SHOAL_PROXIES."),
    ] = None

    other_names = {"render": OtherName("js_required", js_of), "js": "js_required"}


def check_config(config: PageConfig) -> PageConfig:
    """Reject headers that would break a request or are reserved for Shoal."""
    try:
        check_headers(config.headers, _RESERVED)
    except ValueError as error:
        raise InvalidInput("crawl_config.headers", str(error), "correct them") from None
    return config


def check_rule_set(rule_set: dict[str, Any] | None) -> dict[str, Any] | None:
    """Reject an invalid rule set."""
    if rule_set is not None:
        _check_rules(json.encode(rule_set))
    return rule_set


@lru_cache(maxsize=32)
def _check_rules(text: bytes) -> None:
    """Validate a rule set. Cached, because a policy file repeats a few rule sets, and their selectors are slow to
    check."""
    from shoal.extract.rules import read_rules  # imported here, so that jobs without a rule set do not pay for it

    read_rules(json.decode(text), "rule_set.")


class PageSpec(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fetch options and extraction rules shared by all URLs of a group."""

    crawl_config: Annotated[PageConfig, describe("Fetch options: {headers, js_required, timeout_hint, proxy}.")] = (
        PageConfig()
    )
    rule_set: Annotated[dict[str, Any] | None, describe("Rule set with the data to extract from the page.")] = None

    unquoted = frozenset({"crawl_config"})
    other_names: ClassVar[Mapping[str, str | OtherName]] = {"rules": "rule_set"}
    checks = {"crawl_config": check_config, "rule_set": check_rule_set}

    @property
    def capability(self) -> str:
        """The capability that a worker or bot needs for the job."""
        return JS if self.crawl_config.js_required else HTTP

    def shown(self) -> dict[str, Any]:
        """Return the spec without the values of headers that may be secrets."""
        values = self.plain()
        values["crawl_config"]["headers"] = hidden_headers(self.crawl_config.headers)
        return values


ScrapeFormat = Literal[ContentFormat, "screenshot"]
ScrapeRender = Literal["never", "auto", "always"]


class PageWork(PageSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One URL with everything its job needs."""

    url: Annotated[Text, describe("URL to fetch.")]
    policy: Annotated[str | None, describe("Id of the policy that created the job.")] = None
    labels: Annotated[dict[str, str], describe("Labels of the policy.")] = {}
    project: Annotated[str | None, describe("Project that the job belongs to.")] = None
    priority: Annotated[dict[str, float], describe("Contributions to the priority.")] = {}
    formats: Annotated[list[ScrapeFormat], describe("Content to return, if the job is a scrape.")] = []
    render: Annotated[ScrapeRender, describe("Whether a browser runs the page of a scrape.")] = "never"


class ScrapeConfig(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request for one page and its content."""

    url: Annotated[Text, describe("URL of the page.")]
    formats: Annotated[
        list[ScrapeFormat],
        describe("Content to return; `json` is the page record, `screenshot` needs `render`.", min_length=1),
    ] = field(default_factory=lambda: list[ScrapeFormat](["markdown"]))
    render: Annotated[
        ScrapeRender,
        describe(
            "`always` runs the page in a browser; `auto` does so if scripts create its content. Needs a worker with "
            "a browser."
        ),
    ] = "never"
    timeout_seconds: Annotated[
        float, describe("How long the request waits for the result.", gt=0, le=LONGEST_SCRAPE_SECONDS)
    ] = 30.0

    @property
    def capability(self) -> str:
        return SCRAPE if self.render == "never" else SCRAPE_JS


def host_of(url: str) -> str:
    """Return the origin whose rate limit applies to a page job; empty if the URL is invalid."""
    found = canonical(url, AS_GIVEN)
    return "" if isinstance(found, UrlRefusal) else origin(found)


def check_url(text: str, rule: AddressRule, field: str) -> Url:
    """Return the canonical URL. A URL that can never be fetched is rejected with an error that names its field. Host
    names are checked later, when they are resolved."""
    url = canonical(text, AS_GIVEN)
    if isinstance(url, UrlRefusal):
        raise InvalidInput(field, f"{redact_url(text[:2000])[:200]!r} {url.problem}", _URL_FIX)
    refusal = rule.judge_url(url)
    if refusal is not None:
        is_ours = refusal.code == "self_connection"
        problem = (
            "is this controller itself" if is_ours else "has an address or port that is not allowed (SSRF protection)"
        )
        raise InvalidInput(field, problem, "use another site" if is_ours else _ADDRESS_FIX)
    return url


MOST_URLS: Final = 10_000

Name = Annotated[str, matching(r"^[A-Za-z0-9_.-]{1,64}\Z", "1 to 64 letters, digits and `_.-`")]
Id = Annotated[
    str, matching(r"^(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,64}\Z", "1 to 64 letters, digits and `_.-`")
]  # the pattern rules out path traversal
Word = Annotated[str, Meta(min_length=1, max_length=200)]


class GroupState(StrEnum):
    OPEN = "open"  # some of its jobs are waiting or running
    COMPLETED = "completed"  # all of its jobs have ended, successfully or not
    CANCELLED = "cancelled"  # cancelled before all of its jobs had ended


MOVES: dict[GroupState, frozenset[GroupState]] = {
    GroupState.OPEN: frozenset({GroupState.COMPLETED, GroupState.CANCELLED}),
    GroupState.COMPLETED: frozenset(),
    GroupState.CANCELLED: frozenset(),
}


class GroupConfig(PageSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request for a group: one job for each URL, all fetched in the same way."""

    urls: Annotated[
        list[Text], describe("URLs to fetch; one job is created for each.", min_length=1, max_length=MOST_URLS)
    ]
    group: Annotated[Id | None, describe("Id of the group; generated if omitted.")] = None
    priority: Annotated[int, describe("Priority from 0 to 100; higher runs first.", ge=0, le=100)] = 50
    max_retry: Annotated[
        Annotated[int, Meta(ge=0, le=99)] | None, describe("Maximum number of retries of a failed page.")
    ] = None
    project: Annotated[Name, describe("Project that the group belongs to.")] = "default"
    labels: Annotated[dict[Word, Word], describe("Labels as name and value.", max_length=64)] = {}

    raw = frozenset({"urls"})  # the URLs are validated one by one, and errors name their index
    other_names = {**PageSpec.other_names, "retries": "max_retry"}


class Group(Struct, frozen=True):
    """A stored group, with the states of its jobs."""

    number: int
    id: GroupId
    state: GroupState
    state_reason: str | None
    project: str
    labels: dict[str, str]
    priority: int
    total: int
    spec: PageSpec | None  # None: this version cannot read the spec
    created_at: int
    finished_at: int | None
    jobs: dict[str, int] = field(default_factory=dict)  # number of jobs by state

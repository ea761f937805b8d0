"""What a crawl is: what a caller asks for, and what Shoal answers."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import xxhash
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from shoal.base.clock import moment
from shoal.base.ids import CrawlId
from shoal.base.params import SESSION, TRACKING, read_name
from shoal.base.url import DEFAULT_RULES, UrlRules
from shoal.crawl.credentials import MOST_HEADERS, GivenCookie, check_headers, check_proxy, hidden
from shoal.crawl.states import CrawlState
from shoal.settings import Speed

Scope = Literal["page", "prefix", "host", "domain", "any"]
Pattern = Annotated[str, Field(min_length=1, max_length=1000)]
Param = Annotated[str, BeforeValidator(read_name)]
Params = Annotated[list[Param], Field(max_length=1000)]
SHOWN_APART = {"seeds", "project", "labels", "priority", "start"}


def _usable(rules: dict[str, Any]) -> dict[str, Any]:
    from shoal.extract.rules import read_rules  # what few crawls have is not worth everybody's start-up time

    read_rules(rules)
    return rules


Rules = Annotated[dict[str, Any], AfterValidator(_usable)]
HookName = Annotated[str, Field(min_length=1, max_length=100)]


class CrawlConfig(BaseModel):
    """What a caller asks for. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_max_length=10_000)

    seeds: list[str] = Field(min_length=1, max_length=10_000, description="Where the crawl begins.")
    depth: int = Field(3, ge=0, le=10_000, description="How many links away from a seed a page may be.")
    max_pages: int | None = Field(None, ge=1, le=10**12, description="Pages after which the crawl completes.")
    max_bytes: int | None = Field(None, ge=1, le=10**15, description="Bytes after which the crawl completes.")
    max_seconds: float | None = Field(None, gt=0, le=10**9, description="Time of work after which it completes.")
    max_pages_per_host: int | None = Field(None, ge=1, le=10**12, description="Pages taken from one host.")
    scope: Scope = Field("host", description="What belongs to the crawl, seen from its seeds.")
    include: list[Pattern] = Field([], max_length=1000, description="Only URLs that match one of these are crawled.")
    exclude: list[Pattern] = Field([], max_length=1000, description="URLs that match one of these are skipped.")
    sort_query: bool = Field(False, description="The order of query parameters makes no other page.")
    drop_params: Params = Field([], description="A query parameter that makes no other page; `NAME*` is any rest.")
    keep_params: Params = Field([], description="A parameter that is kept whatever the lists say; `NAME*` is any rest.")
    tracking_params: Params | None = Field(None, description="Tracking parameters, instead of the listed ones.")
    session_params: Params | None = Field(None, description="Session parameters, instead of the listed ones.")
    speed: Speed = Field("normal", description="How hard one host is asked.")
    concurrency: int | None = Field(None, ge=1, le=1000, description="Fetches in flight; beats the speed profile.")
    delay_seconds: float | None = Field(None, ge=0, le=3600, description="Pause between requests to one host.")
    robots: Literal["obey", "ignore"] = Field("obey", description="Whether robots.txt decides what may be fetched.")
    user_agent: str | None = Field(None, min_length=1, max_length=500, description="How Shoal names itself.")
    headers: dict[str, str] = Field(
        {}, description="Headers of your own; all but Accept… go only to the origins of the seeds."
    )
    cookies: list[GivenCookie] = Field(
        [], max_length=MOST_HEADERS, description="Cookies to begin with: {name, value, domain, path, secure}."
    )
    proxy: str | None = Field(
        None, min_length=1, max_length=2000, description="A proxy to go through: http, https, socks5 or socks5h."
    )
    rules: Rules | None = Field(None, description="A rule set: which data to take from each page.")
    hooks: list[HookName] = Field([], max_length=20, description="Functions of installed packages that read each page.")
    analyze: bool = Field(False, description="Keep what analyses need of each page, beyond its record.")
    keep_bodies: bool = Field(False, description="Keep every answer as it was sent.")
    project: str = Field("default", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="What the crawl is filed under.")
    labels: dict[str, str] = Field({}, max_length=64, description="Words of your own.")
    workers: int = Field(1, ge=1, le=64, description="Walkers over the one frontier.")
    priority: int = Field(50, ge=0, le=100, description="Higher first.")
    start: bool = Field(True, description="False: store it, and start it later.")

    @property
    def has_budget(self) -> bool:
        return any(limit is not None for limit in (self.max_pages, self.max_bytes, self.max_seconds))

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

    @field_validator("include", "exclude")
    @classmethod
    def _patterns_compile(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression ({error})") from None
        return patterns

    @field_validator("headers")
    @classmethod
    def _headers_can_be_sent(cls, headers: dict[str, str]) -> dict[str, str]:
        check_headers(headers)
        return headers

    @field_validator("proxy")
    @classmethod
    def _proxy_has_an_address(cls, proxy: str | None) -> str | None:
        if proxy is not None:
            check_proxy(proxy)
        return proxy

    @field_validator("user_agent")
    @classmethod
    def _one_line(cls, text: str | None) -> str | None:
        if text is not None and not text.isprintable():
            raise ValueError("must be one line of printable text")
        return text


@dataclass(frozen=True, slots=True)
class Counts:
    """What a crawl has done so far: the sum over its walkers."""

    opened: int = 0
    settled: int = 0
    pages: int = 0
    errors: int = 0
    bytes: int = 0
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

    @property
    def bodies(self) -> str:
        """What its kept bodies are filed under. Ids are used again, and by other stores: the id alone will not do."""
        return f"{self.id}-{xxhash.xxh3_64_hexdigest(self.key_seed.to_bytes(8))}"

    def answer(self, counts: Counts) -> dict[str, Any]:
        """The crawl as the API and the CLI show it."""
        return {
            "id": self.id,
            "state": self.state.value,
            "state_reason": self.state_reason,
            "seeds": self.config.seeds,
            "project": self.project,
            "labels": self.config.labels,
            "priority": self.priority,
            "created_at": moment(self.created_at),
            "started_at": moment(self.started_at),
            "finished_at": moment(self.finished_at),
            "pages": counts.pages,
            "errors": counts.errors,
            "queued": counts.queued,
            "skipped": counts.skipped,
            "bytes": counts.bytes,
            "depth_reached": counts.depth_reached,
            "config": hidden(self.config.model_dump(mode="json", exclude=SHOWN_APART)),
        }

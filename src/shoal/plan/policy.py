"""A policy: what is crawled, how often and how, and which changes are allowed."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, get_args

from msgspec import UNSET, Meta, UnsetType, field
from msgspec.structs import asdict, replace

from shoal.base.clock import span, to_micros
from shoal.base.errors import InvalidInput
from shoal.base.parsing import read_duration, read_pause, read_span
from shoal.base.request_form import Form, describe, fields_of, matching
from shoal.base.text import HIDDEN, message
from shoal.crawl.crawl import CrawlConfig
from shoal.egress.exchange import hidden_headers
from shoal.page_jobs.spec import PageConfig, check_config, check_rule_set
from shoal.plan.schedule import MOST_WINDOWS, Schedule, check_cron, check_frequency, check_windows, read_window, zone

DAY = timedelta(days=1)
SITES = "site"
SHORTEST_LOCK, LONGEST_LOCK = timedelta(seconds=5), timedelta(hours=24)

Text = Annotated[str, Meta(min_length=1, max_length=2083)]
Name = Annotated[str, matching(r"^[A-Za-z0-9_.-]{1,64}\Z", "1 to 64 letters, digits and `_.-`")]
Span = Annotated[str, Meta(max_length=20)]
MOST_SITE_SEEDS = 500
Seeds = Annotated[list[Text], Meta(max_length=MOST_SITE_SEEDS)]
Cron = Annotated[str, Meta(max_length=200)]
Zone = Annotated[str, Meta(max_length=64)]
Windows = Annotated[list[Annotated[str, Meta(max_length=50)]], Meta(max_length=MOST_WINDOWS)]
Importance = Annotated[int, Meta(ge=0, le=100)]
Tries = Annotated[int, Meta(ge=0, le=20)]
Overlap = Literal["skip", "queue", "replace"]
Labels = Annotated[dict[Name, Text], Meta(max_length=64)]
Moment = Annotated[datetime, Meta(tz=True)]
Capability = Literal["http", "js", "special"]
CAPABILITIES: tuple[str, ...] = get_args(Capability)
BACKLOG_QUEUES = (*CAPABILITIES, SITES)
"""The queues of policies (see `PolicyForm.backlog_queue`)."""


def check_lock(text: str) -> str:
    if not SHORTEST_LOCK <= read_span(text) <= LONGEST_LOCK:
        raise ValueError(f"{text!r} is not between 5s and 24h; write it as 30s, 10m or 2h")
    return text


def check_jitter(text: str) -> str:
    if read_span(text, read_pause) > DAY:
        raise ValueError(f"{text!r} is longer than a day; write it as 30s, 10m or 2h")
    return text


def check_zone(name: str) -> str:
    zone(name)
    return name


class Adaptive(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of the adaptive frequency: shorter intervals while the page changes, longer ones while it does not."""

    min: Annotated[Span, describe("Shortest interval between runs.")]
    max: Annotated[Span, describe("Longest interval between runs.")]


def check_adaptive(adaptive: Adaptive | None) -> Adaptive | None:
    if adaptive is not None:
        shortest, longest = read_duration(check_frequency(adaptive.min)), read_duration(check_frequency(adaptive.max))
        if shortest >= longest:
            raise ValueError("has a min that is not less than its max; raise max")
    return adaptive


class PolicyForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The definition of a policy. A page policy has `url`, a site policy has `seeds`. The schedule is either
    `frequency` or `cron`."""

    url: Annotated[Text | None, describe("Page to fetch. Give either url or seeds.")] = None
    seeds: Annotated[Seeds, describe("URLs from which to crawl a site. Give either seeds or url.")] = field(
        default_factory=list
    )
    frequency: Annotated[
        Span | None, describe("Interval between runs, from `1m` to `366d`; for example, `6h`, `24h` or `7d`.")
    ] = None
    cron: Annotated[Cron | None, describe("Schedule as a cron expression. Give either cron or frequency.")] = None
    timezone: Annotated[Zone, describe("Time zone of cron and windows.")] = "UTC"
    windows: Annotated[
        Windows, describe("Time windows in which runs may start; for example, `Mon-Fri 08:00-18:00`.")
    ] = field(default_factory=list)
    jitter: Annotated[Span, describe("Maximum random delay of each run, to spread the load.")] = "0s"
    priority_base: Annotated[Importance, describe("Base priority from 0 to 100; higher runs first.")] = 50
    crawl_config: Annotated[dict[str, Any], describe("Fetch options of a page, or the options of a crawl.")] = field(
        default_factory=dict
    )
    rule_set: Annotated[dict[str, Any] | None, describe("Rule set with the data to extract from the page.")] = None
    lock_ttl: Annotated[Span, describe("Lease duration of a bot's job; a heartbeat renews the lease.")] = "10m"
    max_retry: Annotated[Tries, describe("Maximum number of retries.")] = 3
    queue: Annotated[
        Capability | None,
        describe("Capability that a bot or worker needs. Default: `js` if js_required is set, else `http`."),
    ] = None
    overlap: Annotated[Overlap, describe("What to do when a run is due while the previous run is still active.")] = (
        "skip"
    )
    adaptive: Annotated[Adaptive | None, describe("Bounds of the adaptive frequency.")] = None
    not_after: Annotated[Moment | None, describe("No run starts after this time.")] = None
    labels: Annotated[Labels, describe("Labels as name and value.")] = field(default_factory=dict)
    project: Annotated[Name, describe("Project that the policy belongs to.")] = "default"
    enabled: Annotated[bool, describe("False: keep the policy, but do not run it.")] = True

    unquoted: ClassVar = frozenset({"crawl_config"})
    other_names: ClassVar = {"rules": "rule_set", "retries": "max_retry"}
    checks: ClassVar = {
        "frequency": lambda text: None if text is None else check_frequency(text),
        "cron": lambda text: None if text is None else check_cron(text),
        "timezone": check_zone,
        "windows": check_windows,
        "jitter": check_jitter,
        "lock_ttl": check_lock,
        "adaptive": check_adaptive,
        "rule_set": check_rule_set,
    }

    def checked(self) -> "PolicyForm":
        """Return the form if its fields are consistent; the options of a page get their internal names."""
        if (self.url is None) == (not self.seeds):
            raise InvalidInput("url", "or seeds is required, but not both", "pass one of them")
        if (self.frequency is None) == (self.cron is None):
            raise InvalidInput("frequency", "or a cron expression is required, but not both", "pass one of them")
        if self.adaptive is not None and self.frequency is None:
            raise InvalidInput("adaptive", "requires a frequency", "use frequency instead of cron")
        if self.url is not None:
            self._check_option_names()
            check_config(self.page_config)
            return replace(self, crawl_config=PageConfig.own_names(self.crawl_config))
        if self.rule_set is not None:
            raise InvalidInput("rule_set", "is only for a page", "for a site, use crawl_config.rules")
        if self.adaptive is not None:
            raise InvalidInput("adaptive", "is only for a page, since a site has no content hash", "leave it out")
        return self

    def _check_option_names(self) -> None:
        """Raise if a page policy has an option of crawls."""
        for name in self.crawl_config:
            if name in fields_of(CrawlConfig) and name not in {*fields_of(PageConfig), *PageConfig.other_names}:
                fix = "leave it out, or crawl a site"
                raise InvalidInput(
                    f"crawl_config.{name}", "is an option of crawls, and this policy fetches a single page", fix
                )

    @property
    def is_site(self) -> bool:
        return bool(self.seeds)

    @property
    def page_config(self) -> PageConfig:
        return PageConfig.read(self.crawl_config, called=lambda name: f"crawl_config.{name}")

    @property
    def capability(self) -> str:
        return self.queue or ("js" if self.crawl_config.get("js_required") else "http")

    def is_over(self, at: int) -> bool:
        return self.not_after is not None and at > to_micros(self.not_after)

    @property
    def backlog_queue(self) -> str:
        """The queue whose backlog limit applies to the policy: one queue per capability for pages, and one for all
        crawls of sites."""
        return SITES if self.is_site else self.capability

    @property
    def lock(self) -> timedelta:
        return read_duration(self.lock_ttl)

    def schedule(self, frequency: timedelta | None = None) -> Schedule:
        """Return the schedule, with the adapted frequency if there is one."""
        own = None if self.frequency is None else read_duration(self.frequency)
        windows = tuple(read_window(text) for text in self.windows)
        return Schedule(frequency or own, self.cron, self.timezone, windows, read_pause(self.jitter))


class PolicyState(StrEnum):
    DISABLED = "disabled"
    ACTIVE = "active"  # its job is waiting or running
    OVER = "over"  # past `not_after`
    LATE = "late"  # due for more than `LATE`
    DUE = "due"
    PLANNED = "planned"


LATE = timedelta(minutes=1)
LABELS = {
    PolicyState.DISABLED: message("Disabled"),
    PolicyState.ACTIVE: message("Active"),
    PolicyState.OVER: message("Over"),
    PolicyState.LATE: message("Late"),
    PolicyState.DUE: message("Due"),
    PolicyState.PLANNED: message("Planned"),
}


@dataclass(frozen=True)
class Policy:
    """A stored policy. `planned_at` is its next scheduled time; `next_run_at` is when that run will actually start."""

    id: str
    number: int
    spec: str
    enabled: bool
    planned_at: int
    next_run_at: int | None  # `None` if disabled, or past `not_after`
    queued: bool  # a further run is due and starts when the active run ends
    frequency_now: timedelta | None  # the adapted frequency
    last_run_at: int | None
    last_success_at: int | None
    last_hash: str | None
    error_rate: float
    runs: int
    created_at: int
    live_crawl: str | None = None
    live_job_id: str | None = None

    @cached_property
    def form(self) -> PolicyForm:
        return PolicyForm.stored(self.spec)

    @property
    def schedule(self) -> Schedule:
        return self.form.schedule(self.frequency_now)

    @property
    def dedupe_key(self) -> str:
        """The dedupe key of the policy's jobs: the database allows only one active job per key."""
        return f"policy:{self.id}"

    def state(self, now: int) -> PolicyState:
        if not self.enabled:
            return PolicyState.DISABLED
        if self.live_job_id is not None:
            return PolicyState.ACTIVE
        if self.next_run_at is None:
            return PolicyState.OVER
        if self.next_run_at > now:
            return PolicyState.PLANNED
        return PolicyState.LATE if self.next_run_at <= now - span(LATE) else PolicyState.DUE

    def staleness(self, now: int) -> float:
        """Return the age of the last successful run in schedule intervals; 1 if no run was successful."""
        if self.last_success_at is None:
            return 1.0
        last = self.last_success_at
        try:
            step = self.schedule.next_planned(last, last) - last  # with cron, 1 is reached at the next match
        except ValueError:  # unknown time zone: the scheduler reports it, and listings must still work
            step = span(DAY)
        return max(0.0, (now - last) / step)


def shown_options(config: dict[str, Any]) -> dict[str, Any]:
    """Mask the secrets among the options of a policy."""
    secret = {name: HIDDEN for name in ("cookies", "proxy") if name in config}
    if "://" not in str(config.get("proxy")):  # a proxy label, not a URL
        secret.pop("proxy", None)
    headers = {"headers": hidden_headers(config["headers"])} if "headers" in config else {}
    return config | secret | headers


class PolicyChange(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A partial update. Setting `frequency` clears `cron` and vice versa; `null` clears an optional field."""

    url: Annotated[Text | UnsetType | None, describe("Page to fetch. Give either url or seeds.")] = UNSET
    seeds: Annotated[Seeds | UnsetType, describe("URLs from which to crawl a site.")] = UNSET
    frequency: Annotated[
        Span | UnsetType | None, describe("Interval between runs; for example, `6h`, `24h` or `7d`.")
    ] = UNSET
    cron: Annotated[Cron | UnsetType | None, describe("Schedule as a cron expression.")] = UNSET
    timezone: Annotated[Zone | UnsetType, describe("Time zone of cron and windows.")] = UNSET
    windows: Annotated[Windows | UnsetType, describe("Time windows in which runs may start.")] = UNSET
    jitter: Annotated[Span | UnsetType, describe("Maximum random delay of each run.")] = UNSET
    priority_base: Annotated[Importance | UnsetType, describe("Base priority from 0 to 100.")] = UNSET
    crawl_config: Annotated[dict[str, Any] | UnsetType, describe("Fetch or crawl options; replaces all of them.")] = (
        UNSET
    )
    rule_set: Annotated[
        dict[str, Any] | UnsetType | None, describe("Rule set with the data to extract from the page.")
    ] = UNSET
    lock_ttl: Annotated[Span | UnsetType, describe("Lease duration of a bot's job.")] = UNSET
    max_retry: Annotated[Tries | UnsetType, describe("Maximum number of retries.")] = UNSET
    queue: Annotated[Capability | UnsetType | None, describe("Capability that a bot or worker needs.")] = UNSET
    overlap: Annotated[
        Overlap | UnsetType, describe("What to do when a run is due while the previous run is still active.")
    ] = UNSET
    adaptive: Annotated[Adaptive | UnsetType | None, describe("Bounds of the adaptive frequency.")] = UNSET
    not_after: Annotated[Moment | UnsetType | None, describe("No run starts after this time.")] = UNSET
    labels: Annotated[Labels | UnsetType, describe("Labels as name and value; replaces all of them.")] = UNSET
    project: Annotated[Name | UnsetType, describe("Project that the policy belongs to.")] = UNSET
    enabled: Annotated[bool | UnsetType, describe("False: keep the policy, but do not run it.")] = UNSET

    unquoted: ClassVar = PolicyForm.unquoted
    other_names: ClassVar = PolicyForm.other_names
    checks: ClassVar = PolicyForm.checks

    def applied(self, form: PolicyForm) -> PolicyForm:
        given = {name: value for name, value in asdict(self).items() if value is not UNSET}
        for one, other in (("cron", "frequency"), ("frequency", "cron")):
            if given.get(one) is not None:
                given.setdefault(other, None)
        return replace(form, **given)

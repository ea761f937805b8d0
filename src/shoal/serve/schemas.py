"""The shapes of answers: for the OpenAPI document, for clients made from it, and for the tests that hold us to it."""

from datetime import datetime
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, Struct, UnsetType, field

from shoal.access.scopes import TokenScope
from shoal.audit.analysis import Severity
from shoal.audit.states import AnalysisState
from shoal.base.request_form import describe
from shoal.crawl.frontier.explain import UrlState
from shoal.crawl.frontier.traps import TrapState
from shoal.crawl.states import CrawlState
from shoal.page_jobs.group import GroupState
from shoal.page_jobs.result import Status
from shoal.queue.states import JobState

Moment = Annotated[datetime, Meta(tz=True)]


class Crawl(Struct, kw_only=True):
    """A crawl, and what it has done so far."""

    id: str
    state: CrawlState
    state_reason: Annotated[str | None, describe("Why it is in this state.")]
    seeds: list[str]
    project: str
    labels: dict[str, str]
    priority: int
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    pages: Annotated[int, describe("URLs that gave an HTTP answer.")]
    errors: Annotated[int, describe("URLs that gave none, or one that cannot be used.")]
    responses: Annotated["Responses", describe("Pages by the class of their HTTP status.")]
    queued: Annotated[int, describe("URLs that wait or are under way.")]
    skipped: Annotated[dict[str, int], describe("URLs that were not asked for, by the reason.")]
    bytes: int
    not_modified: int
    bytes_saved: int
    depth_reached: int
    worked_seconds: Annotated[float, describe("How long it was walked; time that several walkers share counts once.")]
    config: Annotated[dict[str, Any], describe("The options that it was made with; secrets are hidden.")]
    node_ids: Annotated[list[str], describe("Who walks it now.")]
    error: Annotated["CrawlError | None", describe("Why it failed, if it did.")]


class Responses(Struct, kw_only=True):
    """The statuses that pages ended with, after redirects and retries. The first four add up to `pages`."""

    success: Annotated[int, describe("Answered with 2xx.")] = field(name="2xx")
    redirect: Annotated[int, describe("Answered with 3xx: not modified, or a redirect that leads nowhere.")] = field(
        name="3xx"
    )
    client_error: Annotated[int, describe("Answered with 4xx.")] = field(name="4xx")
    server_error: Annotated[int, describe("Answered with 5xx.")] = field(name="5xx")
    none: Annotated[int, describe("Gave no HTTP answer: the connection failed, or robots.txt could not be had.")]


class CrawlError(Struct, kw_only=True):
    code: str | None
    message: str


class CrawlDetail(Crawl, kw_only=True):
    """A crawl with what it waits for."""

    held_hosts: Annotated[list["HeldHost"], describe("Hosts that asked us to wait, where something of it waits.")]
    failed_seeds: Annotated[
        list["FailedSeed"],
        describe("If it has ended and every seed ended in 4xx, 5xx or no answer: its seeds. Else empty."),
    ]


class CrawlRetried(Crawl, kw_only=True):
    retried: Annotated[int | UnsetType, describe("How many failed URLs will be fetched again, if some were named.")] = (
        UNSET
    )


class FailedSeed(Struct, kw_only=True):
    url: str
    status: int | None
    error: Annotated["CrawlError | None", describe("Why there is no answer.")]


class HeldHost(Struct, kw_only=True):
    origin: str
    held_until: Moment
    status: int


class CrawlList(Struct, kw_only=True):
    items: list[Crawl]
    next: Annotated[str | None, describe("The cursor of the next page; null on the last one.")]


class Trap(Struct, kw_only=True):
    """A pattern of URLs whose pages said the same again and again."""

    pattern: str
    state: TrapState
    sample: str
    count: Annotated[int, describe("How many URLs it holds.")]


class TrapList(Struct, kw_only=True):
    items: list[Trap]
    next: str | None


class Released(Struct, kw_only=True):
    crawl_id: str
    pattern: str
    released: Annotated[int, describe("How many URLs wait again.")]


class Line(Struct, kw_only=True):
    """A line of a crawl's journal. What else is known stands beside these fields."""

    timestamp: Moment
    level: str
    event: Annotated[str, describe("What happened, in a word.")]
    msg: Annotated[str, describe("What happened, in words.")]
    crawl_id: str
    number: int


class LineList(Struct, kw_only=True):
    items: list[Line]
    next: Annotated[str | None, describe("The cursor of what follows; null when the crawl has ended and this was all.")]


class Redirect(Struct, kw_only=True):
    url: str
    status: int


class PageError(Struct, kw_only=True):
    code: str
    message: str | None


class Page(Struct, kw_only=True):
    """The record of one fetched URL."""

    crawl_id: str
    url: str
    final_url: str | None
    status: Annotated[int | None, describe("Of the last answer; null if no server answered.")]
    depth: int
    parent: str | None
    content_type: str | None
    encoding: str | None
    bytes: int
    title: str | None
    description: str | None
    canonical: str | None
    robots: str | None
    lang: str | None
    h1: str | None
    word_count: int | None
    content_hash: str | None
    links_internal: int | None
    links_external: int | None
    redirects: list[Redirect]
    fetched_at: Moment
    duration_ms: float | None
    attempt: int
    rendered: bool
    error: PageError | None
    data: Annotated[dict[str, Any] | None, describe("What the rule set took from it.")]


class PageList(Struct, kw_only=True):
    items: list[Page]
    next: Annotated[str | None, describe("The cursor of the next page of the list; null on the last one.")]


class Health(Struct, kw_only=True):
    status: str
    version: str


class Readiness(Struct, kw_only=True):
    """`detail` says what is wrong, or limps. `bodies` is there while there is no room for kept bodies."""

    status: str
    store: str
    bodies: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class Token(Struct, kw_only=True):
    """What is kept of a token: never the token itself."""

    id: str
    name: str
    state: Annotated[str, describe("valid, expired or revoked.")]
    scopes: list[TokenScope]
    made_by: Annotated[str, describe("The id of the token that made it, or `local`.")]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: Annotated[datetime | None, describe("To the minute.")]
    revoked_at: datetime | None


class TokenMade(Token, kw_only=True):
    token: Annotated[str, describe("The token. It is shown this once and kept nowhere.")]


class TokenList(Struct, kw_only=True):
    items: list[Token]
    next: Annotated[str | None, describe("The cursor of the next page; null on the last one.")]


class AuditEntry(Struct, kw_only=True):
    """What an administrator did."""

    number: int
    at: datetime
    who: Annotated[str, describe("The id of a token, or `local` for who works at the machine.")]
    act: Annotated[str, describe("Such as `token.created`.")]
    subject: Annotated[str, describe("The id of what it was done to.")]
    facts: dict[str, Any]
    address: Annotated[str | None, describe("Where it was asked from.")]


class AuditLog(Struct, kw_only=True):
    items: list[AuditEntry]
    next: Annotated[str | None, describe("The cursor of the next page; null on the last one.")]


class Group(Struct, kw_only=True):
    """Page jobs that were made together."""

    id: str
    state: GroupState
    state_reason: str | None
    project: str
    labels: dict[str, str]
    priority: int
    total: Annotated[int, describe("How many jobs it was made with; a URL that came twice has one.")]
    jobs: Annotated[dict[str, int], describe("How many of them are in which state.")]
    created_at: Moment
    finished_at: Moment | None
    crawl_config: Annotated[dict[str, Any], describe("How its pages are fetched; secrets are hidden.")]
    rule_set: dict[str, Any] | None


class GroupList(Struct, kw_only=True):
    items: list[Group]
    next: Annotated[str | None, describe("The cursor of the next page; null on the last one.")]


class ResultError(Struct, kw_only=True):
    code: str
    message: str | None


class ResultMeta(Struct, kw_only=True):
    crawl_duration: Annotated[float | None, describe("Seconds.")]
    error: ResultError | None
    html_hash: str | None


class Result(Struct, kw_only=True):
    """What a page job gave."""

    job_id: str
    group: str | None
    policy: str | None
    attempt: Annotated[int, describe("Which lease of the job it came from.")]
    state: Annotated[JobState, describe("What became of the job.")]
    status: Annotated[Status, describe("`fail` also if the data lacks a required field.")]
    url: str
    final_url: str | None
    http_status: int | None
    data: Annotated[Any, describe("What the rule set took from the page; without one, its title and other facts.")]
    meta: ResultMeta
    fetched_at: Moment


class ResultList(Struct, kw_only=True):
    items: list[Result]
    next: Annotated[str | None, describe("The cursor of what follows; null when nothing will.")]


class DiffSide(Struct, kw_only=True):
    job_id: str
    status: Status
    html_hash: str | None
    fetched_at: Moment


class DataChange(Struct, kw_only=True, rename={"before": "from", "after": "to"}):
    path: Annotated[str, describe("Where in the data: `price`, `offers[2].name`.")]
    before: Annotated[Any, describe("What was there; null if nothing was.")]
    after: Annotated[Any, describe("What is there; null if nothing is.")]


class ResultDiff(Struct, kw_only=True, rename={"before": "from", "after": "to"}):
    """What changed from one result of a policy to another."""

    policy_id: str
    before: DiffSide
    after: DiffSide
    html_changed: Annotated[bool | None, describe("Whether the page did; null if a hash is missing.")]
    changes: list[DataChange]
    more_changes: Annotated[int, describe("That are not listed.")]


class BotConfig(Struct, kw_only=True):
    headers: dict[str, str]
    js_required: bool
    timeout_hint: float | None
    proxy: Annotated[str | None, describe("The label of a proxy to go through.")]


class BotLease(Struct, kw_only=True):
    epoch: Annotated[int, describe("To be sent with every heartbeat and with the result.")]
    ttl_seconds: Annotated[float, describe("How long the job is yours, from now, without a heartbeat.")]


class BotJob(Struct, kw_only=True):
    """A page to fetch."""

    job_id: str
    url: str
    priority: int
    crawl_config: Annotated[BotConfig, describe("How it is to be fetched.")]
    rule_set: Annotated[dict[str, Any] | None, describe("Which data to take from it.")]
    lease: BotLease


class PulledJobs(Struct, kw_only=True):
    jobs: list[BotJob]


class Beat(Struct, kw_only=True):
    ttl_seconds: Annotated[float, describe("How long the job is yours from now.")]
    cancelled: Annotated[bool, describe("Drop the work: nobody wants its result.")]


class Pushed(Struct, kw_only=True):
    job_id: str
    state: Annotated[str, describe("Where the job is now: DONE, FAILED, or PENDING if it will be retried.")]


class PushedItem(Struct, kw_only=True, omit_defaults=True):
    job_id: str
    status: Annotated[int, describe("As HTTP has it: 200, or 409.")]
    state: str | UnsetType = UNSET
    code: Annotated[str | UnsetType, describe("`lease_lost`, if it was not taken.")] = UNSET
    detail: str | UnsetType = UNSET


class PushedBatch(Struct, kw_only=True):
    results: Annotated[list[PushedItem], describe("In the order in which they came.")]


class Analysis(Struct, kw_only=True):
    """An analysis of a crawl. Its state shows nothing of retries."""

    id: str
    crawl_id: str
    project: str
    state: AnalysisState
    state_reason: str | None
    error: Annotated["CrawlError | None", describe("Why it failed, if it did.")]
    findings: Annotated[int | None, describe("How many there are, once there are.")]
    created_at: Moment
    started_at: Annotated[Moment | None, describe("When its first attempt began.")]
    finished_at: Moment | None


class AnalysisList(Struct, kw_only=True):
    items: list[Analysis]
    next: Annotated[str | None, describe("The cursor of the next page; null on the last one.")]


class Finding(Struct, kw_only=True):
    """What an analyzer reports."""

    analyzer: str
    key: Annotated[str, describe("Names it within its analyzer.")]
    severity: Severity
    message: str
    facts: dict[str, Any]


class FindingList(Struct, kw_only=True):
    items: list[Finding]
    next: str | None


class Job(Struct, kw_only=True):
    """A job: what a machine leases."""

    id: str
    kind: str
    state: JobState
    state_reason: str | None
    url: Annotated[str | None, describe("The page that it is about, if it is about one.")]
    run_id: Annotated[str | None, describe("Its crawl, analysis or group.")]
    lane: str
    capability: str
    priority: int
    scopes: list[str]
    dedupe_key: str | None
    attempts: Annotated[int, describe("Failures that were counted.")]
    max_attempts: int
    crash_count: Annotated[int, describe("Workers that were lost with it since it last settled something.")]
    lease_epoch: int
    locked_by: Annotated[str | None, describe("Who works on it: a node's process, or a bot as `bot/TOKEN/NAME`.")]
    locked_at: Annotated[Moment | None, describe("Since when.")]
    lease_until: Annotated[Moment | None, describe("Until when it is theirs without a sign of life.")]
    not_before: Moment
    error: str | None
    created_at: Moment
    finished_at: Moment | None


class Grant(Struct, kw_only=True):
    """One lease of a job: who had it, and how that ended."""

    epoch: int
    holder: str
    node: str | None
    pid: int | None
    granted_at: Moment
    ended_at: Moment | None
    ended: str | None
    error: str | None


class JobDetail(Job, kw_only=True):
    history: Annotated[list[Grant], describe("Every grant, oldest first.")]


class JobList(Struct, kw_only=True):
    items: list[Job]
    next: str | None


class UrlExplained(Struct, kw_only=True):
    """What became of a URL in a crawl, and why. What else is known stands beside these fields."""

    grows: ClassVar[bool] = True  # by other fields
    crawl_id: str
    url: str
    state: UrlState
    reason: str | None
    explanation: str


class JobExplained(Struct, kw_only=True):
    """Where a job is, and why. What else is known stands beside these fields."""

    grows: ClassVar[bool] = True  # by other fields
    job_id: str
    state: JobState
    reason: str
    explanation: str
    capability: Annotated[str, describe("The queue that it waits in: http, js or special.")]


class JobsRetried(Struct, kw_only=True):
    retried: int


class JobsPurged(Struct, kw_only=True):
    purged: int


class Quota(Struct, kw_only=True):
    """How many jobs of a scope may run at once, how many do, and how many wait for room."""

    scope: str
    most: int
    locked: int
    parked: int


class QuotaList(Struct, kw_only=True):
    items: list[Quota]
    next: str | None


class Hour(Struct, kw_only=True):
    """What happened in an hour."""

    hour: Annotated[Moment, describe("When it began.")]
    created: int
    done: int
    failed: int
    expired: Annotated[int, describe("Dead letters: their workers or bots were lost too often.")]
    retried: int
    lost: Annotated[int, describe("Leases that ended with their worker or bot.")]
    retry_rate: Annotated[float | None, describe("Of all attempts that ended, the part that is tried again.")]
    average_seconds: Annotated[float | None, describe("Of a page job's fetch.")]
    bots: Annotated[int, describe("How many asked for jobs.")]


class BotSeen(Struct, kw_only=True):
    token: str
    bot_id: str
    pulled: Annotated[int, describe("Jobs that it got.")]
    seen_at: Moment


class Stats(Struct, kw_only=True):
    """How many there are."""

    crawls: Annotated[dict[str, int], describe("Crawls by state.")]
    jobs: Annotated[dict[str, dict[str, int]], describe("Jobs by kind and state.")]
    at: Annotated[Moment, describe("When it was counted.")]
    hours: Annotated[list[Hour], describe("The newest first; hours in which nothing happened are left out.")]
    bots: Annotated[list[BotSeen], describe("Up to 100 that asked in these hours, the last one first.")]

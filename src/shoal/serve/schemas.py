"""Response schemas of the HTTP API. Endpoints return them, and the OpenAPI document is generated from them.

`to_api` builds them from the values of the packages, after which most are named. A schema with `open_fields` may be
returned with further fields.
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, Struct, UnsetType, field

from shoal.audit.commit_status.status import CommitState
from shoal.audit.finding import Severity
from shoal.audit.states import AnalysisState
from shoal.audit.verdict import Outcome
from shoal.base.forge_commit import ForgeCommit
from shoal.base.request_form import describe
from shoal.crawl.frontier.explain import UrlState
from shoal.crawl.frontier.traps import TrapState
from shoal.crawl.states import CrawlState
from shoal.hosts.robots import RobotsState

Moment = Annotated[datetime, Meta(tz=True)]
NextPage = Annotated[str | None, describe("Cursor of the next page; null on the last page.")]
NextLater = Annotated[str | None, describe("Cursor of what follows; null once nothing more can follow.")]


class Crawl(Struct, kw_only=True):
    """A crawl and its progress so far."""

    id: Annotated[str, describe("Id of the crawl.")]
    state: CrawlState
    state_reason: Annotated[
        str | None, describe("Why the crawl is in this state, such as drained, drained_partly or max_pages.")
    ]
    seeds: Annotated[list[str], describe("URLs that the crawl started from.")]
    project: str
    labels: dict[str, str]
    priority: int
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    pages: Annotated[int, describe("URLs that returned an HTTP response.")]
    errors: Annotated[int, describe("URLs that returned no response, or one that cannot be used.")]
    responses: Annotated["Responses", describe("Pages by HTTP status class.")]
    queued: Annotated[int, describe("URLs that are waiting or being fetched.")]
    skipped: Annotated[dict[str, int], describe("URLs that were not requested, by reason; trap: those in quarantine.")]
    bytes: Annotated[int, describe("Bytes received.")]
    not_modified: Annotated[int, describe("Pages that a server reported as unchanged (304).")]
    bytes_saved: Annotated[int, describe("Bytes not transferred because pages were unchanged.")]
    depth_reached: Annotated[
        int, describe("Largest `depth` of a page: links on the path that was found first; 1 for an entry of a sitemap.")
    ]
    worked_seconds: Annotated[
        float, describe("Time during which workers ran this crawl; time shared by several workers counts once.")
    ]
    config: Annotated[dict[str, Any], describe("Options of the crawl; secrets are masked.", title="Options")]
    node_ids: Annotated[list[str], describe("Nodes that are running the crawl now.")]
    error: Annotated["CrawlError | None", describe("Why the crawl failed, if it did.")]


class Responses(Struct, kw_only=True):
    """Final statuses of URLs, after redirects and retries. The first four add up to `pages`."""

    success: Annotated[int, describe("2xx responses.")] = field(name="2xx")
    redirect: Annotated[int, describe("3xx responses: not modified, or a redirect without a usable target.")] = field(
        name="3xx"
    )
    client_error: Annotated[int, describe("4xx responses.")] = field(name="4xx")
    server_error: Annotated[int, describe("5xx responses.")] = field(name="5xx")
    none: Annotated[int, describe("No HTTP response: the connection failed, or robots.txt could not be fetched.")]


class CrawlError(Struct, kw_only=True):
    """Why a crawl, an analysis or a seed failed."""

    code: Annotated[str | None, describe("Stable code of the error, if it has one.")]
    message: Annotated[str, describe("The error in one sentence.")]


class CrawlDetail(Crawl, kw_only=True):
    """A crawl with the hosts it is waiting for and the seeds that failed."""

    held_hosts: Annotated[
        list["HeldHost"], describe("Hosts that asked for a pause (429 or 503) and have URLs of this crawl waiting.")
    ]
    failed_seeds: Annotated[
        list["FailedSeed"],
        describe("All seeds, if the crawl has ended and every seed failed with 4xx, 5xx or no response. Else empty."),
    ]
    dead_seeds: Annotated[
        list["FailedSeed"],
        describe(
            "The seeds that failed or were skipped, if the crawl has ended and another seed returned a page. "
            "Of more than 1,000 seeds, only the first 1,000 are looked up."
        ),
    ]


class CrawlRetried(Crawl, kw_only=True):
    """A crawl after a retry."""

    retried: Annotated[
        int | UnsetType, describe("Number of failed URLs that will be fetched again, if the request selected URLs.")
    ] = UNSET


class FailedSeed(Struct, kw_only=True):
    """A seed that returned no page."""

    url: Annotated[str, describe("The seed.")]
    status: Annotated[int | None, describe("HTTP status of its last response; null if there was none.")]
    error: Annotated["CrawlError | None", describe("Why there was no response.")]


class HeldHost(Struct, kw_only=True):
    """A host that receives no requests for a while."""

    origin: Annotated[str, describe("Scheme, host and port.")]
    held_until: Annotated[Moment, describe("No request is sent before this time.")]
    status: Annotated[int, describe("The HTTP status that caused the pause.")]


class HostPoliteness(Struct, kw_only=True):
    """How one host was treated. Delays are seconds between two requests."""

    origin: Annotated[str, describe("Scheme, host and port.")]
    pages: Annotated[int, describe("Pages fetched from the host.")]
    requests_per_second: Annotated[float | None, describe("Pages per second of work; null before the first page.")]
    delay_seconds: Annotated[
        float, describe("Delay between requests: our own or the Crawl-delay of robots.txt, whichever is longer.")
    ]
    robots: Annotated[RobotsState | None, describe("The result of the last request for robots.txt; null if unknown.")]
    robots_hash: Annotated[str | None, describe("Content hash of the robots.txt: its version.")]
    robots_fetched_at: Annotated[Moment | None, describe("When its robots.txt was fetched last.")]
    crawl_delay_asked: Annotated[float | None, describe("The delay that robots.txt asks for.")]
    crawl_delay_honoured: Annotated[float, describe("The part of that delay that is applied.")]
    crawl_delay_clamped: Annotated[bool, describe("Whether it asks for more than the maximum.")]
    holds: Annotated[dict[str, int], describe("How often it asked us to wait, by the status of its response.")]
    hold_seconds: Annotated[float, describe("How long it was not requested because of that.")]
    held_until: Annotated[Moment | None, describe("Until when it is not requested now.")]


class PolitenessReceipt(Struct, kw_only=True):
    """How a crawl treated its hosts, those with most pages first."""

    crawl_id: str
    obeys_robots: Annotated[bool, describe("Whether the crawl obeys robots.txt.")]
    user_agent: Annotated[str, describe("User-Agent header that it sends.")]
    connections_per_host: Annotated[int, describe("Concurrent requests to one host.")]
    delay_seconds: Annotated[float, describe("Our own delay between requests to one host.")]
    hosts: Annotated[list[HostPoliteness], describe("Its hosts, at most 200.")]
    more_hosts: Annotated[bool, describe("Whether the crawl has more hosts than are listed.")]


class CrawlList(Struct, kw_only=True):
    items: list[Crawl]
    next: NextPage


class Trap(Struct, kw_only=True):
    """A URL pattern whose pages repeat the same content."""

    pattern: Annotated[str, describe("The URL pattern.")]
    state: TrapState
    sample: Annotated[str, describe("One of its URLs.")]
    count: Annotated[int, describe("Number of quarantined URLs.")]


class TrapList(Struct, kw_only=True):
    items: list[Trap]
    next: NextPage


class TrapReleased(Struct, kw_only=True):
    """A URL pattern after its release from quarantine."""

    crawl_id: str
    pattern: Annotated[str, describe("The URL pattern.")]
    released: Annotated[int, describe("Number of URLs that are queued again.")]


class JournalEntry(Struct, kw_only=True):
    """An entry of a crawl's journal. Further fields depend on the event."""

    timestamp: Annotated[Moment, describe("When it happened.")]
    level: Annotated[str, describe("info, warning or error.")]
    event: Annotated[str, describe("Stable name of the event.")]
    msg: Annotated[str, describe("Message for people.")]
    crawl_id: str
    number: Annotated[int, describe("Position in the journal.")]


class JournalEntryList(Struct, kw_only=True):
    items: list[JournalEntry]
    next: NextLater


class Redirect(Struct, kw_only=True):
    url: Annotated[str, describe("URL that redirected.")]
    status: Annotated[int, describe("Status of the redirect.")]


class PageError(Struct, kw_only=True):
    code: Annotated[str, describe("Stable code of the error.")]
    message: Annotated[str | None, describe("The error in one sentence.")]


class Page(Struct, kw_only=True):
    """The record of one fetched URL."""

    crawl_id: str
    url: Annotated[str, describe("The requested URL.")]
    final_url: Annotated[str | None, describe("URL after redirects.")]
    status: Annotated[int | None, describe("HTTP status of the last response; null if there was none.")]
    depth: Annotated[int, describe("Number of links on the path that was found first; 1 for an entry of a sitemap.")]
    parent: Annotated[str | None, describe("The page on which the URL was found first.")]
    content_type: Annotated[str | None, describe("The Content-Type header as sent.")]
    encoding: Annotated[str | None, describe("Character encoding that was used to decode the page.")]
    bytes: Annotated[int, describe("Size of the body as sent, before content decoding.")]
    title: Annotated[str | None, describe("Title of the page.")]
    description: Annotated[str | None, describe("Meta description.")]
    canonical: Annotated[str | None, describe("Canonical URL as the page or the Link header has it.")]
    robots: Annotated[str | None, describe("Robots directives of the page and of the X-Robots-Tag header.")]
    lang: Annotated[str | None, describe("Language of the page.")]
    h1: Annotated[str | None, describe("First heading of level 1.")]
    word_count: Annotated[int | None, describe("Number of words in the visible text.")]
    content_hash: Annotated[str | None, describe("Content hash of the decoded body.")]
    links_internal: Annotated[int | None, describe("Number of distinct pages in scope that it links to.")]
    links_external: Annotated[int | None, describe("Number of distinct pages out of scope that it links to.")]
    redirects: Annotated[list[Redirect], describe("The redirects, in order.")]
    fetched_at: Annotated[Moment, describe("When it was fetched.")]
    duration_ms: Annotated[float | None, describe("Duration of the last request in milliseconds.")]
    attempt: Annotated[int, describe("Number of this attempt.")]
    rendered: Annotated[bool, describe("Whether a browser rendered the page.")]
    error: Annotated[PageError | None, describe("What went wrong; a page can have both a status and an error.")]
    data: Annotated[dict[str, Any] | None, describe("Data extracted by the rule set.")]


class PageList(Struct, kw_only=True):
    items: list[Page]
    next: NextLater


class CrawlRemoval(Struct, kw_only=True):
    """A removal that goes on."""

    crawl_id: str
    removed: Annotated[int, describe("Rows that were removed so far.")]


class Analysis(Struct, kw_only=True):
    """An analysis of a crawl. Retries do not change its state."""

    id: Annotated[str, describe("Id of the analysis.")]
    crawl_id: str
    project: str
    site: Annotated[str, describe("The first seed of the crawl.")]
    state: AnalysisState
    state_reason: str | None
    error: Annotated["CrawlError | None", describe("Why the analysis failed, if it did.")]
    findings: Annotated[int | None, describe("Number of findings; null before the analysis has finished.")]
    gate: Annotated[str | None, describe("Name of the gate; null if there is none, or its rules came without a name.")]
    baseline: Annotated[str | None, describe("The analysis that the gate compares with.")]
    commit: Annotated[ForgeCommit | None, describe("The commit whose status shows the verdict.")]
    verdict: Annotated["Verdict | None", describe("Verdict of the gate; null without a gate, or before the end.")]
    created_at: Moment
    started_at: Annotated[Moment | None, describe("Start of the first attempt.")]
    finished_at: Moment | None


class AnalysisList(Struct, kw_only=True):
    items: list[Analysis]
    next: NextPage


class AnalysisDetail(Analysis, kw_only=True):
    """An analysis with what it measured."""

    metrics: Annotated[dict[str, float] | None, describe("What gates compare; null before the analysis has finished.")]
    codes: Annotated[list["FindingCount"], describe("The finding codes with a finding, most serious first.")]
    analyzers: Annotated[list["AnalyzerOutcome"], describe("How each analyzer ended.")]
    summary: Annotated[dict[str, Any] | None, describe("Distributions over all pages, such as status by depth.")]
    commit_status: Annotated["CommitStatus | None", describe("What its commit should show; null without a commit.")]


class CommitStatus(Struct, kw_only=True):
    """The status of a commit on its forge."""

    state: Annotated[CommitState, describe("The state that the commit should show.")]
    description: Annotated[str, describe("Sentence beside the state.")]
    shown: Annotated[CommitState | None, describe("The state that it shows; null if nothing was published yet.")]
    error: Annotated[str | None, describe("Why the last attempt to publish it failed; it is tried again for a day.")]


class Verdict(Struct, kw_only=True):
    """The verdict of a gate."""

    outcome: Annotated[Outcome, describe("Whether the gate passed.")]
    reasons: Annotated[list[str], describe("Why the gate did not pass, as sentences.")]
    rules: Annotated[list["RuleResult"], describe("Each rule with its outcome.")]


class RuleResult(Struct, kw_only=True):
    """A rule of a gate with what was measured."""

    condition: Annotated[str, describe("The rule, such as `broken_links <= 0`.")]
    metric: Annotated[str, describe("Metric or finding code that was compared.")]
    severity: Annotated[str, describe("`warning` if the rule cannot fail the gate.")]
    outcome: Annotated[Outcome, describe("Whether the rule holds.")]
    value: Annotated[float | None, describe("The measured value; null if it could not be measured.")]
    baseline: Annotated[float | None, describe("The value of the baseline, if the rule compares with it.")]
    reason: Annotated[str | None, describe("Why the rule did not pass.")]


class FindingCount(Struct, kw_only=True):
    """All findings of one code."""

    code: Annotated[str, describe("Stable code of the problem.")]
    severity: Severity
    analyzer: Annotated[str, describe("Analyzer that reports it.")]
    title: Annotated[str, describe("What is wrong.")]
    fix: Annotated[str, describe("How to fix it.")]
    count: Annotated[int, describe("Exact number of findings.")]
    stored: Annotated[int, describe("How many of them are stored and listed.")]


class Artifact(Struct, kw_only=True):
    """A file that an analyzer left, to download under its name."""

    name: Annotated[str, describe("Name of the file.")]
    bytes: Annotated[int, describe("Size of the file.")]


class AnalyzerOutcome(Struct, kw_only=True):
    """How one analyzer ended."""

    analyzer: Annotated[str, describe("Name of the analyzer.")]
    error: Annotated[str | None, describe("Why it failed; the findings of the others are kept.")]
    findings: Annotated[int, describe("Number of its findings.")]
    duration_ms: Annotated[float, describe("How long it ran, in milliseconds.")]
    artifacts: Annotated[list[Artifact], describe("Files that it left.")]
    skipped: Annotated[str | None, describe("Why it does not apply to the crawl; null if it does.")]
    optional: Annotated[bool, describe("Its failure does not fail the analysis.")]


class Finding(Struct, kw_only=True):
    """A finding of an analyzer."""

    analyzer: Annotated[str, describe("Analyzer that reported it.")]
    code: Annotated[str, describe("Stable code of the problem.")]
    severity: Severity
    page: Annotated[str | None, describe("URL of the page concerned; null if it concerns the whole site.")]
    key: Annotated[str, describe("Key of the problem; identical in every analysis of the site.")]
    evidence: Annotated[dict[str, Any], describe("What the analyzer saw; the fields depend on the code.")]


class FindingList(Struct, kw_only=True):
    items: list[Finding]
    next: NextPage


class StoredGate(Struct, kw_only=True):
    """A gate under its name."""

    name: Annotated[str, describe("Name of the gate.")]
    rules: Annotated[list["StoredGateRule"], describe("Conditions that must hold.")]
    ignore: Annotated[list[str], describe("Finding codes that the gate ignores.")]
    fail: Annotated[list[str], describe("Finding codes that fail the gate as soon as one finding has them.")]
    min_pages: Annotated[int, describe("With fewer pages the verdict is inconclusive.")]
    min_pages_percent: Annotated[
        float, describe("With fewer pages, in percent of the baseline's, the verdict is inconclusive.")
    ]
    created_at: Moment
    changed_at: Annotated[Moment, describe("When it was changed last.")]


class StoredGateRule(Struct, kw_only=True):
    """A condition that must hold."""

    metric: Annotated[str, describe("Metric or finding code to compare.")]
    op: Annotated[str | None, describe("Comparison that must hold: metric op threshold.")]
    threshold: Annotated[float | None, describe("Value to compare the metric with.")]
    max_increase: Annotated[
        float | None, describe("Maximum increase against the baseline, instead of op and threshold.")
    ]
    severity: Annotated[str, describe("`warning`: the rule is reported, but does not fail the gate.")]


class GateList(Struct, kw_only=True):
    items: list[StoredGate]


class UrlExplained(Struct, kw_only=True):
    """The state of a URL in a crawl, and the reason. Further fields depend on the reason."""

    open_fields: ClassVar[bool] = True
    crawl_id: str
    url: Annotated[str, describe("The URL in canonical form.")]
    state: UrlState
    reason: Annotated[str | None, describe("Stable name of the reason, if there is one.")]
    explanation: Annotated[str, describe("The reason in one sentence.")]

"""The overview page: running crawls, rates, and late or failing items. Each number links to its list."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from shoal.audit.analyses import Analyses
from shoal.audit.verdict import Outcome
from shoal.base.clock import Clock, from_micros
from shoal.base.service import PassResult
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import CrawlState
from shoal.crawl.store import CrawlFilter
from shoal.events.webhook import WebhookState
from shoal.events.webhooks import Webhooks
from shoal.fleet.nodes import Nodes
from shoal.fleet.states import NodeState
from shoal.observe.stats import HOUR, PAGES, HourlyStatsReader
from shoal.plan.policies import Policies
from shoal.plan.policy import LATE
from shoal.plan.store import PolicyCounts
from shoal.serve.console.charts import Column, Part
from shoal.serve.console.crawl_rows import KINDS, class_name, row_of
from shoal.serve.console.feed import LivePage
from shoal.serve.console.format import Formats, Language
from shoal.serve.console.forms import AnyQuery, View, page_endpoint
from shoal.serve.console.shell import Shell
from shoal.serve.console.worker_watch import WorkerWatch
from shoal.serve.endpoint import EndpointRequest, Nothing
from shoal.serve.stats import StateCounts

KEPT: Final = 720  # number of samples: one hour
RECENT: Final = 6  # number of samples that `now` averages: half a minute


@dataclass(frozen=True, slots=True)
class Sample:
    """Pages and errors since the previous sample, and the seconds since then."""

    pages: int
    errors: int
    seconds: float


class RateSampler:
    """Keeps the rates of the last hour in memory. Hourly statistics in the store reach further back."""

    name = "crawl_rate"

    def __init__(self, crawls: Crawls, clock: Clock) -> None:
        self._crawls = crawls
        self._clock = clock
        self._before: dict[int, tuple[int, int]] | None = None
        self._newest = 0
        self._sampled_at = 0.0
        self.samples: deque[Sample] = deque(maxlen=KEPT)

    async def run_once(self) -> PassResult:
        # this is read first, so that crawls that start meanwhile are new in the next sample
        newest = await self._crawls.last_number()
        counts, now = await self._crawls.live_counts(), self._clock.monotonic()
        if self._before is not None and now > self._sampled_at:
            # A new crawl is counted from zero, and a resumed or retried crawl from its previous numbers. A crawl that
            # has ended is no longer in `counts`.
            before = {number: (0, 0) if number > self._newest else count for number, count in counts.items()}
            before |= self._before
            pairs = [(count, before[number]) for number, count in counts.items()]
            pages = sum(max(0, count[0] - before[0]) for count, before in pairs)
            errors = sum(max(0, count[1] - before[1]) for count, before in pairs)
            self.samples.append(Sample(pages, errors, now - self._sampled_at))
        self._before, self._newest, self._sampled_at = counts, newest, now
        return PassResult()

    @property
    def now(self) -> tuple[float, float] | None:
        """Pages and errors per second over the last half minute; None until it is known."""
        recent = list(self.samples)[-RECENT:]
        seconds = sum(one.seconds for one in recent)
        if not seconds:
            return None
        return sum(one.pages for one in recent) / seconds, sum(one.errors for one in recent) / seconds

    @property
    def history(self) -> list[float]:
        """Pages per second, sample by sample, oldest first."""
        return [one.pages / one.seconds for one in self.samples]

    @property
    def seconds(self) -> float:
        """The time span that the history covers."""
        return sum(one.seconds for one in self.samples)


HOURS: Final = 24
STORED: Final = {"none": "error"}  # names of response classes that differ in the hourly statistics
SLOW_OUTBOX: Final = 30.0  # seconds; a longer delay of events is shown as a problem
SHOWN: Final = 8
LATEST_ANALYSES: Final = 100


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of the overview."""

    crawls: Mapping[str, int]
    jobs: Mapping[str, Mapping[str, int]]
    policies: PolicyCounts
    nodes: Counter[NodeState]
    outbox_lag: float
    failing_gates: int  # number of sites whose last gate failed
    failing_webhooks: int
    latest: list[CrawlStatus]

    @property
    def is_empty(self) -> bool:
        """Return whether this store has no crawls, jobs or policies yet."""
        return not (self.latest or any(self.jobs.values()) or self.policies.total)

    def jobs_in(self, *states: str) -> int:
        """Count page jobs and runs in these states."""
        return sum(count for kinds in self.jobs.values() for state, count in kinds.items() if state in states)


class Overview:
    """Reads the figures of the overview from the packages."""

    def __init__(
        self,
        crawls: Crawls,
        counts: StateCounts,
        policies: Policies,
        nodes: Nodes,
        webhooks: Webhooks,
        analyses: Analyses,
    ) -> None:
        self._nodes = nodes
        self._crawls = crawls
        self._counts = counts
        self._policies = policies
        self._webhooks = webhooks
        self._analyses = analyses

    async def read(self) -> Figures:
        running = await self._crawls.matching(CrawlFilter(state=CrawlState.RUNNING), limit=SHOWN)
        latest = running or await self._crawls.matching(CrawlFilter(), limit=SHOWN)
        return Figures(
            crawls=await self._counts.crawls.get(),
            jobs=await self._counts.jobs.get(),
            policies=await self._policies.counts(LATE),
            nodes=Counter(node.state for node in await self._nodes.list_all()),
            outbox_lag=await self._webhooks.lag_seconds(),
            failing_gates=await self._failing_gates(),
            failing_webhooks=sum(one.state is WebhookState.FAILING for one in await self._webhooks.all()),
            latest=latest,
        )

    async def _failing_gates(self) -> int:
        """Count the sites whose last gate failed, among the latest analyses."""
        last: dict[tuple[str, str], Outcome] = {}
        for analysis in await self._analyses.newest(limit=LATEST_ANALYSES):
            if analysis.verdict is not None:
                last.setdefault((analysis.project, analysis.site), analysis.verdict.outcome)
        return sum(outcome is Outcome.FAILED for outcome in last.values())


class OverviewPage(LivePage):
    """`/`."""

    paths = ("/",)
    regions = ("overview",)
    template, section = "overview.html", "overview"

    def __init__(
        self, shell: Shell, overview: Overview, hourly: HourlyStatsReader, rates: RateSampler, workers: WorkerWatch
    ) -> None:
        self._hourly = hourly
        self._workers = workers
        self._shell = shell
        self._overview = overview
        self._rates = rates

    @page_endpoint("/", "Show the overview.")
    async def show_overview(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self.shown(request)

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        figures = await self._overview.read()
        await self._workers.run_once()
        formats = self._shell.formats(view)
        day = {row.hour: row.amounts for row in (await self._hourly.read(HOURS, PAGES, 0))[0]}
        hours = day_columns(day, formats)
        return {
            "figures": figures,
            # Without a script, live pages are reloaded regularly. The empty page is not live, because a reload would
            # clear its form.
            "is_live": not figures.is_empty,
            "rows": [row_of(status, formats) for status in figures.latest],
            "rate_now": self._rates.now,
            "history": self._rates.history,
            "seconds": self._rates.seconds,
            "hours": hours,
            "problems": problems_of(figures, view.language),
            "waiting": figures.crawls.get("queued", 0) + figures.jobs.get("page", {}).get("pending", 0),
            "total_day": sum(column.total for column in hours),
            "classes": [
                (
                    KINDS[kind],
                    class_name(kind, view.language),
                    round(sum(row.get(STORED.get(kind, kind), 0) for row in day.values())),
                )
                for kind in KINDS
            ],
        }


def problems_of(figures: Figures, language: Language) -> list[tuple[str, str]]:
    """Return the problems as texts, each with the path of the page that shows it."""
    dead, gates, late = figures.jobs_in("failed", "expired"), figures.failing_gates, figures.policies.late
    lost, webhooks = figures.nodes[NodeState.LOST], figures.failing_webhooks
    plural, slow = language.plural, int(figures.outbox_lag > SLOW_OUTBOX)
    found = [
        (dead, plural("{count} failed job", "{count} failed jobs", dead), "/jobs?q=state:dead"),
        (gates, plural("{count} site fails its gate", "{count} sites fail their gates", gates), "/analyses"),
        (late, plural("{count} late policy", "{count} late policies", late), "/policies?q=is:late"),
        (lost, plural("{count} lost worker", "{count} lost workers", lost), "/fleet"),
        (webhooks, plural("{count} failing webhook", "{count} failing webhooks", webhooks), "/events"),
        (slow, language("events wait for their webhooks"), "/events"),
    ]
    return [(words, path) for count, words, path in found if count]


def day_columns(hours: Mapping[int, Mapping[str, float]], formats: Formats) -> list[Column]:
    """Return a column for each of the last 24 hours with its pages, divided by response class."""
    this_hour = formats.now // HOUR * HOUR
    found = []
    for hour in range(this_hour - (HOURS - 1) * HOUR, this_hour + 1, HOUR):
        amounts = hours.get(hour, {})
        label = f"{from_micros(hour):%H}"
        parts = []
        for kind in KINDS:
            count = round(amounts.get(STORED.get(kind, kind), 0))
            title = f"{label}:00 UTC, {class_name(kind, formats.language)}: {formats.number(count)}"
            parts.append(Part(KINDS[kind], count, title))
        found.append(Column(label, tuple(parts)))
    return found

"""The page of one crawl, live: progress, charts, log, frontier, hosts, site, attempts and options, each on a tab."""

import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.responses import Response

from shoal.base.clock import Clock
from shoal.base.request_form import fields_of
from shoal.base.text import LONGEST, message
from shoal.base.url import Url
from shoal.crawl.crawl import CrawlConfig, shown_config
from shoal.crawl.frontier.admin import CrawlRemovals, FrontierAdmin
from shoal.crawl.frontier.fates import SKIPS
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.politeness import Politeness
from shoal.crawl.states import CrawlState
from shoal.pages.pages import PageSummaries
from shoal.queue.job import Fence, Grant, Job
from shoal.queue.job_admin import JobAdmin
from shoal.queue.job_admin_store import JobFilter
from shoal.serve.console import crawl_rows as crawl_charts
from shoal.serve.console import texts as url_texts
from shoal.serve.console.crawl_rows import class_name, class_parts, row_of
from shoal.serve.console.exports import at_once, exported, format_of, listed
from shoal.serve.console.feed import LivePage
from shoal.serve.console.format import parted
from shoal.serve.console.forms import AnyQuery, View, page_endpoint
from shoal.serve.console.shell import Shell
from shoal.serve.endpoint import EndpointRequest, Nothing, always
from shoal.serve.resources.crawl import HostPoliteness
from shoal.serve.resources.job import Grant as GrantResource
from shoal.serve.resources.page import Trap

FIRST_LINES: Final = 200
MOST_JOBS: Final = 100
LONGEST_URL: Final = 10_000
RATE_SECONDS: Final = 10.0
KEPT_SAMPLES: Final = 120
KEPT_TRACKS: Final = 100
MOST_IN_FLIGHT: Final = 50
SUMMARY_SECONDS: Final = 5.0  # time limit for counting the pages of an export
FOLDER_COLUMNS: Final = ("host", "folder", "pages", "broken", "bytes")
ENOUGH_SECONDS: Final = 10.0  # minimum working time for a meaningful average rate
TABS: Final = (
    ("", message("Summary")),
    ("pages", message("Pages")),
    ("audit", message("Audit")),
    ("links", message("Links")),
    ("broken", message("Broken links")),
    ("site", message("Site")),
    ("hosts", message("Politeness")),
    ("frontier", message("Frontier")),
    ("log", message("Log")),
    ("attempts", message("Attempts")),
    ("diff", message("Compare")),
    ("options", message("Options")),
)
CHANGEABLE: Final = tuple(CrawlChange.__struct_fields__)


class TabQuery(AnyQuery, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The query of a tab."""

    url: str = ""  # the URL to explain on the frontier tab


@dataclass(slots=True)
class RateTrack:
    """Samples of the number of pages of a crawl; a sample is taken each time somebody opens or watches the crawl."""

    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))

    def add(self, at: float, pages: int) -> None:
        if not self.samples or at - self.samples[-1][0] >= 0.5:
            self.samples.append((at, pages))

    @property
    def now(self) -> float | None:
        """Pages per second in the last seconds; None if the crawl has not been watched long enough."""
        if len(self.samples) < 2:
            return None
        last_at, last = self.samples[-1]
        first_at, first = next(one for one in self.samples if last_at - one[0] <= RATE_SECONDS)
        return (last - first) / (last_at - first_at) if last_at - first_at >= 1 else None

    @property
    def history(self) -> list[float]:
        pairs = zip(self.samples, list(self.samples)[1:], strict=False)
        return [max(0.0, (after[1] - before[1]) / (after[0] - before[0])) for before, after in pairs]

    @property
    def seconds(self) -> float:
        """The time span that the history covers."""
        return self.samples[-1][0] - self.samples[0][0] if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class InFlight:
    """A URL that a walker holds, and the minimum time for which it has been held: since it was first seen here."""

    url: str
    attempt: int
    job_id: str
    seconds: float


class CrawlFigures:
    """Reads the data of the tabs from the packages."""

    def __init__(
        self,
        crawls: Crawls,
        frontier: FrontierAdmin,
        summaries: PageSummaries,
        jobs: JobAdmin,
        politeness: Politeness,
        clock: Clock,
    ) -> None:
        self.crawls = crawls
        self.frontier = frontier
        self.summaries = summaries
        self.jobs = jobs
        self.politeness = politeness
        self.clock = clock
        self._tracks: OrderedDict[str, RateTrack] = OrderedDict()
        # time when each URL in flight was first seen, by crawl
        self._seen: OrderedDict[str, dict[tuple[Url, Fence], float]] = OrderedDict()

    def track(self, status: CrawlStatus) -> RateTrack:
        """Add the current page count to the samples of a crawl, and return the samples."""
        crawl_id = status.crawl.id
        track = self._tracks.pop(crawl_id, None) or RateTrack()
        self._tracks[crawl_id] = track
        if len(self._tracks) > KEPT_TRACKS:
            self._tracks.popitem(last=False)
        if status.crawl.state is CrawlState.RUNNING:
            track.add(self.clock.monotonic(), status.counts.pages)
        return track

    async def in_flight(self, crawl_id: str) -> list[InFlight]:
        """Return URLs that walkers hold, the longest held first. The store does not know when a walker took a URL, so
        the time when this method first saw the URL is used."""
        held = {
            (one.kept.url, one.taken_by): one
            for one in await self.frontier.taken_urls(crawl_id, MOST_IN_FLIGHT)
            if one.taken_by is not None
        }
        now, before = self.clock.monotonic(), self._seen.pop(crawl_id, {})
        seen = self._seen[crawl_id] = {key: before.get(key, now) for key in held}
        if len(self._seen) > KEPT_TRACKS:
            self._seen.popitem(last=False)
        return [
            InFlight(url, held[url, fence].kept.attempts + 1, fence.job_id, now - since)
            for (url, fence), since in sorted(seen.items(), key=lambda one: one[1])
        ]

    async def attempts(self, crawl_id: str) -> list[tuple[Job, Grant]]:
        """Return all leases of a crawl's newest jobs, sorted by lease time (earliest first)."""
        jobs = (await self.jobs.newest(JobFilter(run_id=crawl_id), limit=MOST_JOBS)).items
        found = [(job, grant) for job in jobs for grant in await self.jobs.history(job.id)]
        return sorted(found, key=lambda one: one[1].granted_at)


class Attempt(GrantResource, kw_only=True):
    """A lease of a job of the crawl."""

    job_id: str


class CrawlTab(LivePage):
    """One tab of the page, with its live regions."""

    def __init__(
        self,
        page: "CrawlPage",
        tab: str,
        regions: tuple[str, ...],
        read: Callable[[View, CrawlStatus, Mapping[str, str]], Awaitable[dict[str, Any]]],
        has_log: bool = False,
    ) -> None:
        self.paths = ("/crawls/{crawl_id}" + (f"/{tab}" if tab else ""),)
        self.regions = ("crawl_head", *regions)
        self.tab = tab
        self._page = page
        self._read = read
        self.has_log = has_log

    async def context(self, view: View, params: Mapping[str, str]) -> dict[str, Any]:
        status = await self._page.figures.crawls.get(params["crawl_id"])
        context = self._page.head(view, status, self.tab)
        return context | await self._read(view, status, params)

    async def lines(self, view: View, params: Mapping[str, str], after: int | None) -> list[tuple[int, str]]:
        if not self.has_log:
            return []
        entries = await self._page.figures.crawls.journal.entries(params["crawl_id"], after, FIRST_LINES)
        return [(one.number, self._page.shell.region(view, "log_line", {"entry": one}).strip()) for one in entries]


class CrawlPage:
    """`/crawls/{crawl_id}` and its tabs."""

    def __init__(self, shell: Shell, figures: CrawlFigures, removals: CrawlRemovals) -> None:
        self.shell = shell
        self._removals = removals
        self.figures = figures
        self._tabs = {
            tab.tab: tab
            for tab in (
                CrawlTab(self, "", ("crawl_numbers", "crawl_charts"), self._summary, has_log=True),
                CrawlTab(self, "site", (), self._site),
                CrawlTab(self, "hosts", ("crawl_hosts",), self._hosts),
                CrawlTab(self, "frontier", ("crawl_frontier",), self._frontier),
                CrawlTab(self, "log", (), self._log, has_log=True),
                CrawlTab(self, "attempts", ("crawl_attempts",), self._attempts),
                CrawlTab(self, "options", (), self._options),
            )
        }

    @property
    def tabs(self) -> list[LivePage]:
        return list(self._tabs.values())

    @page_endpoint("/crawls/{crawl_id}", "Show the summary of a crawl.")
    async def show_crawl_page(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return await self._shown(request, "")

    @page_endpoint("/crawls/{crawl_id}/hosts.{format}", "Download the politeness receipt of a crawl.", expensive=always)
    async def export_hosts(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        crawl_id = request.path_param("crawl_id")
        rows = [HostPoliteness.of(one) for one in (await self.figures.politeness.receipt(crawl_id)).hosts]
        return listed(request, f"{crawl_id}.hosts", HostPoliteness, at_once(*rows))

    @page_endpoint("/crawls/{crawl_id}/attempts.{format}", "Download the leases of a crawl's jobs.", expensive=always)
    async def export_attempts(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        crawl_id = (await self.figures.crawls.get(request.path_param("crawl_id"))).crawl.id
        rows = [Attempt.of(grant, job_id=job.id) for job, grant in await self.figures.attempts(crawl_id)]
        return listed(request, f"{crawl_id}.attempts", Attempt, at_once(*rows))

    @page_endpoint(
        "/crawls/{crawl_id}/traps.{format}", "Download the quarantined patterns of a crawl.", expensive=always
    )
    async def export_traps(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        crawl_id = request.path_param("crawl_id")
        rows = [Trap.of(trap) for trap in await self.figures.crawls.traps(crawl_id)]
        return listed(request, f"{crawl_id}.traps", Trap, at_once(*rows))

    @page_endpoint("/crawls/{crawl_id}/site.{format}", "Download the folders of a site.", expensive=always)
    async def export_folders(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        """The file contains the folders with the most pages, as counted so far."""
        name, status = request.path_param("format"), await self.figures.crawls.get(request.path_param("crawl_id"))
        made = format_of(name, dict.fromkeys(FOLDER_COLUMNS, "text"))
        counts, number = status.counts.responses, status.crawl.number
        summary = await self.figures.summaries.of(number, counts, SUMMARY_SECONDS)
        rows = [dict(zip(FOLDER_COLUMNS, row, strict=True)) for row in crawl_charts.folder_rows(summary)]
        return exported(made, f"{status.crawl.id}.folders.{name}", at_once(*rows))

    @page_endpoint(
        "/crawls/{crawl_id}/{tab}",
        "Show a tab of a crawl.",
        query=TabQuery,
        expensive=lambda query: bool(query.url.strip()),
    )
    async def show_crawl_tab(self, request: EndpointRequest[Nothing, TabQuery]) -> Response:
        tab = request.path_param("tab")
        if tab not in self._tabs:
            return self.shell.missing(request.http, 404)
        asked = request.query.url.strip() if tab == "frontier" else ""
        return await self._shown(request, tab, asked)

    async def _shown(self, request: EndpointRequest[Any, Any], tab: str, asked: str = "") -> Response:
        crawl_id, found = request.path_param("crawl_id"), self._tabs[tab]
        params = {**dict(request.http.query_params), "crawl_id": crawl_id}
        view = self.shell.view(request.http)
        context = await found.context(view, params)
        # This is done only when the page is loaded: the feed sends further log lines, and in a region, the URL would be
        # explained again every second.
        context |= {
            "topic": found.paths[0].replace("{crawl_id}", crawl_id),
            "entries": await self.figures.crawls.journal.entries(crawl_id, None, FIRST_LINES) if found.has_log else [],
            "asked": asked,
            "explained": await self._explained(view, crawl_id, asked) if asked else None,
        }
        return self.shell.page(request.http, f"crawl_{tab or 'summary'}.html", context, section="crawls")

    def head(self, view: View, status: CrawlStatus, tab: str) -> dict[str, Any]:
        """Return the values that every tab shows: the title, the state, the actions and the tabs."""
        row = row_of(status, self.shell.formats(view), self._removals.is_running(status.crawl.id))
        return {
            "row": row,
            "status": status,
            "crawl": status.crawl,
            "tab": tab,
            "tabs": [(name, view.language(title)) for name, title in TABS],
            "is_live": row.is_live or row.is_removing,
        }

    async def _summary(self, view: View, status: CrawlStatus, params: Mapping[str, str]) -> dict[str, Any]:
        formats, track = self.shell.formats(view), self.figures.track(status)
        summary = await self.figures.summaries.of(status.crawl.number, status.counts.responses)
        row = row_of(status, formats)
        average = row.rate if row.seconds is not None and row.seconds >= ENOUGH_SECONDS else None
        return {
            "summary": summary,
            "seconds_left": seconds_left(status, track.now or average),
            "responses": class_parts(row, formats),
            "class_name": lambda kind: class_name(kind, view.language),
            "depths": crawl_charts.depth_columns(summary, formats),
            "times": crawl_charts.time_columns(summary, formats),
            "types": summary.types.most_common(6),
            "rate_now": track.now,
            "history": track.history,
            "seconds": track.seconds,
        }

    async def _site(self, view: View, status: CrawlStatus, params: Mapping[str, str]) -> dict[str, Any]:
        summary = await self.figures.summaries.of(status.crawl.number, status.counts.responses)
        formats = self.shell.formats(view)

        def address(text: str) -> str:
            return self.shell.url(f"/crawls/{status.crawl.id}/pages", text=text)

        cells, folders = crawl_charts.folder_cells(summary, formats, address)
        return {"summary": summary, "cells": cells, "folders": folders, "address": address}

    async def _hosts(self, view: View, status: CrawlStatus, params: Mapping[str, str]) -> dict[str, Any]:
        return {"receipt": await self.figures.politeness.receipt(status.crawl.id)}

    async def _frontier(self, view: View, status: CrawlStatus, params: Mapping[str, str]) -> dict[str, Any]:
        crawls, crawl_id = self.figures.crawls, status.crawl.id
        return {
            "in_flight": await self.figures.frontier.taken(crawl_id),
            "held_urls": await self.figures.in_flight(crawl_id),
            "held": await crawls.held_hosts(crawl_id),
            "traps": await crawls.traps(crawl_id),
            "skips": [
                (reason, view.language(SKIPS.get(reason, reason)), count)
                for reason, count in sorted(status.counts.skipped.items(), key=lambda one: -one[1])
            ],
        }

    async def _explained(self, view: View, crawl_id: str, url: str) -> tuple[str, str, list[tuple[str, str]]]:
        """Return the state of a URL, the reason for the state, and the details."""
        explained, formats = await self.figures.frontier.explain(crawl_id, url, LONGEST_URL), self.shell.formats(view)
        return explained.state, formats.sentence(explained.sentence, LONGEST), url_texts.facts_of(explained, formats)

    async def _log(self, view: View, status: CrawlStatus, params: Mapping[str, str]) -> dict[str, Any]:
        return {}

    async def _attempts(self, view: View, status: CrawlStatus, params: Mapping[str, str]) -> dict[str, Any]:
        attempts, formats = await self.figures.attempts(status.crawl.id), self.shell.formats(view)
        return {"attempts": attempts[::-1], "timeline": crawl_charts.attempt_timeline(attempts, formats)}

    async def _options(self, view: View, status: CrawlStatus, params: Mapping[str, str]) -> dict[str, Any]:
        config = status.crawl.config
        return {
            "options": parted(
                {"seeds": config.seeds} | shown_config(config) | {"labels": config.labels},
                {name: one.default for name, one in fields_of(CrawlConfig).items()},
            ),
            "changeable": CHANGEABLE,
            "config": config,
        }


def seconds_left(status: CrawlStatus, rate: float | None) -> float | None:
    """Estimate the number of seconds for the known URLs at a rate in pages per second, within the limits of the crawl.
    Return None if the crawl is not running or no estimate is possible."""
    counts, config = status.counts, status.crawl.config
    if status.crawl.state is not CrawlState.RUNNING or not rate or not counts.queued:
        return None
    pages = counts.queued if config.max_pages is None else min(counts.queued, max(0, config.max_pages - counts.pages))
    left = math.inf if config.max_seconds is None else max(0.0, config.max_seconds - counts.walked.total_seconds())
    return min(pages / rate, left)

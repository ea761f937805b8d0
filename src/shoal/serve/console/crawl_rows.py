"""Crawls as table rows and charts: badge, reason, progress and counts."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from posixpath import commonpath
from typing import Final

from markupsafe import Markup

from shoal.base.text import message, redact_url
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import (
    DRAINED,
    DRAINED_PARTLY,
    LABELS,
    PAUSABLE,
    RELEASABLE,
    STOPPABLE,
    TERMINAL,
    WALKED,
    CrawlState,
    reason_text,
)
from shoal.pages.page import UNCHANGED, with_unchanged
from shoal.pages.pages import LIMITS_MS, OTHER, PageSummary
from shoal.queue.job import Grant, Job
from shoal.serve.console import charts
from shoal.serve.console.charts import Cell, Column, Part, Span
from shoal.serve.console.format import NOTHING, SPACE, Formats, Language

KINDS: Final = {"2xx": "s2", UNCHANGED: "s1", "3xx": "s3", "4xx": "s4", "5xx": "s5", "none": "s0"}
"""The colour class of each response class."""
STATUSES: Final = {UNCHANGED: "304"}
NAMES: Final = {"none": message("No response"), UNCHANGED: message("Unchanged")}
HELD: Final = (
    message("{count} URL is in quarantine and was not crawled"),
    message("{count} URLs are in quarantine and were not crawled"),
)
RELEASE: Final = (
    message("{count} URL is in quarantine: look at its pattern under Frontier, and release it"),
    message("{count} URLs are in quarantine: look at their patterns under Frontier, and release them"),
)
NEW_CRAWL: Final = (
    message("{count} URL is in quarantine and was not crawled; a new crawl may crawl it"),
    message("{count} URLs are in quarantine and were not crawled; a new crawl may crawl them"),
)
REMOVING: Final = message("Being removed")
PLAIN_REASONS: Final = frozenset({None, "asked", DRAINED})  # the badge already shows these reasons


@dataclass(frozen=True, slots=True)
class CrawlRow:
    """A crawl with the texts and numbers of its table row."""

    status: CrawlStatus
    badge: str
    reason: str
    site: str
    more_seeds: int
    done: int  # number of URLs that are settled and not in quarantine
    share: float | None  # estimated share of `done` in the known URLs
    rate: float | None  # pages per second of crawling time
    seconds: float | None  # crawling time
    is_removing: bool = False
    quarantine: str = ""  # a text on the number of quarantined URLs and how to crawl them

    @property
    def id(self) -> str:
        return self.status.crawl.id

    @property
    def state(self) -> CrawlState:
        return self.status.crawl.state

    @property
    def responses(self) -> Mapping[str, int]:
        return with_unchanged(self.status.counts.responses, self.status.counts.not_modified)

    @property
    def is_live(self) -> bool:
        return self.state not in TERMINAL

    @property
    def is_releasable(self) -> bool:
        """Return whether patterns can be released from quarantine."""
        return self.state in RELEASABLE

    @property
    def is_pausable(self) -> bool:
        return self.state in PAUSABLE

    @property
    def is_stoppable(self) -> bool:
        return self.state in STOPPABLE

    @property
    def is_working(self) -> bool:
        return self.state in WALKED


def row_of(status: CrawlStatus, formats: Formats, is_removing: bool = False) -> CrawlRow:
    crawl, counts = status.crawl, status.counts
    seconds = counts.walked.total_seconds() or None
    return CrawlRow(
        status=status,
        badge=formats.language(REMOVING if is_removing else LABELS[crawl.state]),
        reason=reason_of(status, formats.language),
        site=formats.text(redact_url(crawl.config.seeds[0])),
        more_seeds=len(crawl.config.seeds) - 1 + crawl.config.more_seeds,
        done=counts.settled - counts.held,
        share=(counts.settled - counts.held) / counts.opened if counts.opened else None,
        rate=counts.pages / seconds if seconds and counts.pages else None,
        seconds=seconds,
        is_removing=is_removing,
        quarantine=quarantine_text(counts.held, crawl.state, formats.language) if counts.held else "",
    )


def quarantine_text(urls: int, state: CrawlState, language: Language) -> str:
    return language.plural(*(RELEASE if state in RELEASABLE else NEW_CRAWL), urls)


def reason_of(status: CrawlStatus, language: Language) -> str:
    """Return the reason for the state of a crawl, unless the badge already shows it."""
    crawl = status.crawl
    if crawl.state is CrawlState.QUEUED:
        return language("Waiting for a worker…")
    if crawl.state is CrawlState.FAILED and status.error_message:
        return Formats(language, 0).text(status.error_message)
    if crawl.state_reason in PLAIN_REASONS:
        return ""
    if crawl.state_reason == DRAINED_PARTLY:
        return language.plural(*HELD, status.counts.held)
    return Formats(language, 0).text(language(reason_text(crawl.state_reason)))


def class_parts(row: CrawlRow, formats: Formats) -> dict[str, Part]:
    """Return the chart parts of the response classes, by the status filter that selects their pages."""
    return {
        STATUSES.get(kind, kind): Part(
            KINDS[kind], count, f"{class_name(kind, formats.language)}: {formats.number(count)}"
        )
        for kind, count in row.responses.items()
        if count or kind != UNCHANGED
    }


def class_name(kind: str, language: Language) -> str:
    return language(NAMES.get(kind, kind))


MOST_DEPTHS: Final = 20
MOST_CELLS: Final = 40
MOST_ROWS: Final = 200
MOST_SHARE: Final = 0.3  # folders with a larger share of the pages are divided in the treemap
ENDS: Final = {"done": "s2", "released": "s3", "retried": "s4", "failed": "s5", "expired": "s5", "crashed": "s5"}


def depth_columns(summary: PageSummary, formats: Formats) -> list[Column]:
    """Return a column for each depth, divided by response class."""
    deepest = max(summary.depths, default=0)
    found = []
    for depth in range(min(deepest, MOST_DEPTHS) + 1):
        counts: Mapping[str, int] = summary.depths.get(depth, {})
        if depth == MOST_DEPTHS:  # the last column contains all deeper levels
            rest = [one for level, one in summary.depths.items() if level >= depth]
            counts = {kind: sum(one[kind] for one in rest) for kind in KINDS}
        label = f"{depth}+" if depth == MOST_DEPTHS and deepest > depth else str(depth)
        parts = tuple(
            Part(
                KINDS[kind],
                counts.get(kind, 0),
                formats.language(
                    "Depth {depth}, {name}: {count}",
                    depth=label,
                    name=class_name(kind, formats.language),
                    count=formats.number(counts.get(kind, 0)),
                ),
            )
            for kind in KINDS
        )
        found.append(Column(label, parts))
    return found


def time_columns(summary: PageSummary, formats: Formats) -> list[Column]:
    """Return a histogram of response times."""
    labels = [str(limit) if limit < 1000 else f"{formats.number(limit / 1000, 1)}{SPACE}s" for limit in LIMITS_MS]
    found = []
    for place, label in enumerate([*labels, "…"]):
        count = summary.times[place]
        title = formats.language("Up to {time}: {count}", time=label, count=formats.number(count))
        found.append(Column(label, (Part("", count, title),)))
    return found


FolderRow = tuple[str, str, int, int, int]  # host, folder, number of pages, number of broken pages, bytes


def folder_cells(
    summary: PageSummary, formats: Formats, address: Callable[[str], str]
) -> tuple[list[Cell], list[FolderRow]]:
    """Return the folders of the site as cells of a treemap and as rows of a table."""
    rows = folder_rows(summary)
    one_host = len({host for host, *_ in rows}) == 1
    names = {(host, folder): folder if one_host else f"{host}{folder}" for host, folder, *_ in rows}
    shown = [name for (_, folder), name in names.items() if folder != OTHER]
    shared = commonpath(shown).rstrip("/") if len(shown) > 1 else ""  # the common prefix is left out of the labels
    cells = []
    for host, folder, pages, bad, size in rows[:MOST_CELLS]:
        label = names[host, folder] if folder != OTHER else f"{'' if one_host else host}…"
        own = f"…{label.removeprefix(shared)}" if shared and folder != OTHER else label
        share = bad / pages
        title = formats.language(
            "{name}: {pages} pages, {bad} broken, {size}",
            name=formats.text(label, 200),
            pages=formats.number(pages),
            bad=formats.number(bad),
            size=formats.size(size),
        )
        kind = "s5" if share > 0.5 else "s4" if share > 0.05 else ""
        # the parts before are in the label of the parent folder
        last = "/".join(own.split("/")[-2:]) if own.count("/") > 1 else own
        text, short = (f"{formats.text(one, 60)} {formats.short(pages)}" for one in (own, last))
        cells.append(Cell(text, pages, kind, title, address(f"{host}{folder}"), short))
    return cells, rows[:MOST_ROWS]


def folder_rows(summary: PageSummary) -> list[FolderRow]:
    """Return the folders of the site, sorted by number of pages (largest first)."""
    return sorted(_folders(summary), key=lambda row: -row[2])


def _folders(summary: PageSummary) -> Iterator[FolderRow]:
    """Yield the folders of the first level. A folder with a large share of the pages is divided into its subfolders, so
    that it does not fill the map."""
    groups: defaultdict[tuple[str, str], list[tuple[str, Mapping[str, int]]]] = defaultdict(list)
    for (host, folder), counts in summary.folders.items():
        top = "/".join(folder.split("/", 2)[:2]) + "/" if folder not in ("/", OTHER) else folder
        groups[host, top].append((folder, counts))
    for (host, top), parts in groups.items():
        total = [sum(counts[name] for _, counts in parts) for name in ("pages", "bad", "bytes")]
        if total[0] > MOST_SHARE * summary.pages:
            yield from ((host, folder, one["pages"], one["bad"], one["bytes"]) for folder, one in parts)
        else:
            yield host, top, total[0], total[1], total[2]


def attempt_timeline(attempts: list[tuple[Job, Grant]], formats: Formats) -> Markup | None:
    """Draw the leases of the crawl's jobs over time, with one line per node."""
    if not attempts:
        return None
    nodes = sorted({grant.node or grant.holder for _, grant in attempts})
    spans = [
        Span(
            grant.granted_at,
            grant.ended_at or formats.now,
            nodes.index(grant.node or grant.holder),
            ENDS.get("" if grant.ended is None else grant.ended.value, "s3"),
            f"{formats.text(grant.node or grant.holder)}: {formats.clock(grant.granted_at)}"
            f" {NOTHING} {'' if grant.ended_at is None else formats.clock(grant.ended_at)}",
        )
        for _, grant in attempts
    ]
    return charts.timeline(spans, formats.language("Attempts over time"), formats)

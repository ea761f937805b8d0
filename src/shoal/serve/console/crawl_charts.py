"""The charts of a crawl, from its page summary."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from markupsafe import Markup

from shoal.pages.pages import LIMITS_MS, OTHER, PageSummary
from shoal.queue.job import Grant, Job
from shoal.serve.console import charts
from shoal.serve.console.charts import Cell, Column, Part, Span
from shoal.serve.console.crawl_rows import KINDS, class_name
from shoal.serve.console.format import NOTHING, SPACE, Formats

MOST_DEPTHS: Final = 20
MOST_CELLS: Final = 40
MOST_ROWS: Final = 200
MOST_SHARE: Final = 0.3  # a map divides folders with a larger share of the pages
ENDS: Final = {"done": "s2", "released": "s3", "retried": "s4", "failed": "s5", "expired": "s5", "crashed": "s5"}


def depth_columns(summary: PageSummary, formats: Formats) -> list[Column]:
    """Return the pages by depth, each column divided by the class of their status."""
    deepest = max(summary.depths, default=0)
    found = []
    for depth in range(min(deepest, MOST_DEPTHS) + 1):
        counts: Mapping[str, int] = summary.depths.get(depth, {})
        if depth == MOST_DEPTHS:  # the last column holds the rest
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


FolderRow = tuple[str, str, int, int, int]  # host, folder, pages, bad pages, bytes


def folder_cells(
    summary: PageSummary, formats: Formats, address: Callable[[str], str]
) -> tuple[list[Cell], list[FolderRow]]:
    """Return the folders of the site as a treemap, and as a table."""
    rows = sorted(_folders(summary), key=lambda row: -row[2])
    hosts = {host for host, *_ in rows}
    cells = []
    for host, folder, pages, bad, size in rows[:MOST_CELLS]:
        name = folder if folder != OTHER else "…"
        label = name if len(hosts) == 1 else f"{host}{name}"
        share = bad / pages
        title = formats.language(
            "{name}: {pages} pages, {bad} broken, {size}",
            name=formats.text(label, 200),
            pages=formats.number(pages),
            bad=formats.number(bad),
            size=formats.size(size),
        )
        kind = "s5" if share > 0.5 else "s4" if share > 0.05 else ""
        text = f"{formats.text(label, 60)} {formats.short(pages)}"
        cells.append(Cell(text, pages, kind, title, address(f"{host}{folder}")))
    return cells, rows[:MOST_ROWS]


def _folders(summary: PageSummary) -> Iterator[FolderRow]:
    """Yield the folders of the first level. One with many of the pages is divided, so that it does not fill the map."""
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
    """Draw who had the jobs of the crawl when, a line per node."""
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
    start, end = min(span.start for span in spans), max(span.end for span in spans)
    return charts.timeline(spans, start, end, formats.language("Attempts over time"), len(nodes))

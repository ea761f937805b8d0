"""The summary of a crawl: a JSON object for programs, a table for people."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from shoal.base.text import plural, visible
from shoal.cli.api_client import ApiTarget
from shoal.cli.options import flag_of
from shoal.crawl.engine.budget import BUDGETS
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.failed_urls import FailedSeed
from shoal.crawl.states import reason_text
from shoal.observe.logs import as_called
from shoal.pages.page import in_words as in_classes

HERE = ApiTarget()
SHORTEST_BREAK = 5.0  # seconds; less is normal at the start and end of a crawl
BREAKS_BELOW = 0.9  # share of its duration: a crawl that worked for more than this had no pause worth showing


def summary(status: CrawlStatus, elapsed: float | None = None, target: ApiTarget = HERE) -> dict[str, Any]:
    """Return the summary. Until the crawl has ended, its duration is the time it ran, or `elapsed` if that is
    longer. `target`: where the crawl is stored, for the commands in it."""
    crawl, counts = status.crawl, status.counts
    seconds = max(elapsed or 0.0, counts.walked.total_seconds())
    if crawl.finished_at is not None:
        seconds = 0.0 if crawl.started_at is None else (crawl.finished_at - crawl.started_at) / 1e6
    return {
        "crawl_id": crawl.id,
        "state": crawl.state.value,
        "state_reason": crawl.state_reason,
        "pages": counts.pages,
        "errors": counts.errors,
        "responses": counts.responses,
        "skipped": counts.skipped,
        "bytes": counts.bytes,
        "not_modified": counts.not_modified,
        "bytes_saved": counts.bytes_saved,
        "duration_seconds": round(seconds, 3),
        "pages_per_second": round(counts.pages / seconds, 1) if seconds else 0.0,
        "depth_reached": counts.depth_reached,
        "failed_seeds": [_failed_seed(seed) for seed in status.failed_seeds],
        "dead_seeds": [_failed_seed(seed) for seed in status.dead_seeds],
        "cut_off": _cut_off(status, target),
    }


def _failed_seed(seed: FailedSeed) -> dict[str, Any]:
    error = None if seed.error_code is None else {"code": seed.error_code, "message": seed.error_message or ""}
    return {"url": seed.url, "status": seed.status, "error": error}


def rows_of(status: CrawlStatus, totals: dict[str, Any], outputs: Sequence[str]) -> list[tuple[str, str]]:
    """Return the summary as table rows."""
    reason = status.crawl.state_reason
    why = f" ({as_called(reason_text(reason))})" if reason else ""
    rows = [
        ("Crawl", status.crawl.id),
        ("State", status.crawl.state.value + why),
        ("Pages", f"{totals['pages']:,}"),
        *([("Responses", responses)] if (responses := in_classes(totals["responses"], totals["not_modified"])) else []),
        ("Errors", f"{totals['errors']:,}"),
        *([("Seeds", f"none returned a page: {status.why_no_seed}")] if status.failed_seeds else []),
        *([("Seeds", failed)] if (failed := status.which_seeds_failed) else []),
        ("Skipped", _skipped(totals["skipped"])),
        *(("Cut off", what) for what in totals["cut_off"]),
        ("Received", in_bytes(totals["bytes"])),
        ("Took", _took(totals, status.counts.walked.total_seconds())),
        ("Depth", found_at(totals["depth_reached"])),
    ]
    if totals["not_modified"]:
        saved = in_bytes(totals["bytes_saved"])
        place = [name for name, _ in rows].index("Took")
        rows.insert(place, ("Unchanged", f"{totals['not_modified']:,}, saving {saved}"))
    if status.counts.queued and reason not in BUDGETS:
        rows.append(("Not crawled", f"{plural(status.counts.queued, 'URL')} still queued"))
    return rows + [("Output", place) for place in outputs]


def _cut_off(status: CrawlStatus, target: ApiTarget) -> list[str]:
    """Describe what each limit cut off, with the flag that sets it, and what is in quarantine."""

    def flag(name: str, value: float | None) -> str:
        return f"{flag_of(name)} {value or 0:g}s" if name == "max_seconds" else f"{flag_of(name)} {value}"

    return [as_called(sentence) for sentence in status.cut_off(flag, target.command)]


def _took(totals: dict[str, Any], walked: float) -> str:
    """Describe duration and rate; if there were pauses, show the working time separately."""
    seconds, pace = totals["duration_seconds"], totals["pages_per_second"]
    had_breaks = 0 < walked < seconds * BREAKS_BELOW and seconds - walked > SHORTEST_BREAK
    if had_breaks:
        pace = round(totals["pages"] / walked, 1)
    within = f", of which {in_time(walked)} active" if had_breaks else ""
    return in_time(seconds) + within + (f", {pace:g} {'page' if pace == 1 else 'pages'}/s" if pace else "")


def _skipped(skipped: dict[str, int]) -> str:
    if not skipped:
        return "0"
    most_first = sorted(skipped.items(), key=lambda item: -item[1])
    reasons = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in most_first)
    return f"{sum(skipped.values()):,} ({reasons})"


def print_line(totals: dict[str, Any], *, to_stdout: bool) -> None:
    print(json.dumps(totals), file=sys.stdout if to_stdout else sys.stderr, flush=True)


def print_rows(rows: Sequence[tuple[str, str]], *, to_stdout: bool) -> None:
    width = max(len(name) for name, _ in rows)
    text = "\n".join(f"{name:{width}}  {visible(value)}" for name, value in rows)
    print(text, file=sys.stdout if to_stdout else sys.stderr, flush=True)


def found_at(depth: int) -> str:
    """Describe the depth of a crawl: not clicks from a seed, because the first path to a page may not be the shortest
    one, or may begin at a sitemap."""
    return f"{depth} (on the path found first; a sitemap entry is at 1)"


def in_bytes(count: int) -> str:
    """Format a size, such as `12.3 MB`; powers of 1000, as everywhere in Shoal."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{round(size, 1):,g} {unit}"


def in_time(seconds: float) -> str:
    """Format a duration: `0.42 s`, `27 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    for size, unit, part, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"

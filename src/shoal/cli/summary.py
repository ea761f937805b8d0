"""What a crawl came to: one JSON object for programs, a table in words for people."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.base.text import visible
from shoal.crawl.crawls import Seen
from shoal.crawl.telling import in_words


def summary(seen: Seen, elapsed: float | None = None) -> dict[str, Any]:
    """The crawl in numbers; `elapsed` are the seconds that count while it has no end of its own."""
    crawl, counts = seen.crawl, seen.counts
    seconds = elapsed or 0.0
    if crawl.finished_at is not None:
        seconds = 0.0 if crawl.started_at is None else (crawl.finished_at - crawl.started_at) / 1e6
    return {
        "crawl_id": crawl.id,
        "state": crawl.state.value,
        "pages": counts.pages,
        "errors": counts.errors,
        "skipped": counts.skipped,
        "bytes": counts.bytes,
        "not_modified": counts.not_modified,
        "bytes_saved": counts.bytes_saved,
        "duration_seconds": round(seconds, 3),
        "pages_per_second": round(counts.pages / seconds, 1) if seconds else 0.0,
        "depth_reached": counts.depth_reached,
    }


def rows_of(
    seen: Seen, told: dict[str, Any], outputs: Sequence[str], answers: Mapping[int, int] | None = None
) -> list[tuple[str, str]]:
    """The summary for people. `answers`: pages by the first digit of their status, told if it is of all of them."""
    reason = seen.crawl.state_reason
    why = f" ({in_words(reason)})" if reason else ""
    rate = f", {told['pages_per_second']:g} pages/s" if told["pages_per_second"] else ""
    rows = [
        ("Crawl", seen.crawl.id),
        ("State", seen.crawl.state.value + why),
        ("Pages", f"{told['pages']:,}"),
        ("Errors", f"{told['errors']:,}"),
        ("Skipped", _skipped(told["skipped"])),
        ("Received", in_bytes(told["bytes"])),
        ("Took", in_time(told["duration_seconds"]) + rate),
        ("Depth", str(told["depth_reached"])),
    ]
    if told["not_modified"]:
        saved = in_bytes(told["bytes_saved"])
        rows.insert(6, ("Unchanged", f"{told['not_modified']:,}, which saved {saved}"))
    if answers and set(answers) != {2} and sum(answers.values()) == told["pages"]:
        rows.insert(3, ("Answers", ", ".join(f"{digit}xx {count:,}" for digit, count in sorted(answers.items()))))
    if seen.counts.queued:
        rows.append(("Left over", f"{seen.counts.queued:,} known and not crawled"))
    return rows + [("Output", place) for place in outputs]


def _skipped(skipped: dict[str, int]) -> str:
    if not skipped:
        return "0"
    most_first = sorted(skipped.items(), key=lambda item: -item[1])
    reasons = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in most_first)
    return f"{sum(skipped.values()):,} ({reasons})"


def print_line(told: dict[str, Any], *, to_stdout: bool) -> None:
    print(json.dumps(told), file=sys.stdout if to_stdout else sys.stderr, flush=True)


def print_rows(rows: Sequence[tuple[str, str]], *, to_stdout: bool) -> None:
    width = max(len(name) for name, _ in rows)
    text = "\n".join(f"{name:{width}}  {visible(value)}" for name, value in rows)
    print(text, file=sys.stdout if to_stdout else sys.stderr, flush=True)


def in_bytes(count: int) -> str:
    """`12.3 MB`; powers of 1000, as everywhere in Shoal."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{round(size, 1):,g} {unit}"


def in_time(seconds: float) -> str:
    """`0.42 s`, `27 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    for size, unit, part, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"

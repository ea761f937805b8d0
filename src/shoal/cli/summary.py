"""What a crawl came to: one JSON object for programs, a table in words for people."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.base.text import visible
from shoal.crawl.crawls import Seen
from shoal.crawl.telling import in_words

SHORTEST_BREAK = 5.0  # seconds; less is how a crawl begins and ends
BREAKS_BELOW = 0.9  # of its time: a crawl that was walked for more had none that matters


def summary(seen: Seen, elapsed: float | None = None) -> dict[str, Any]:
    """The crawl in numbers. While it has no end of its own, its time is what it was walked, or what has `elapsed`."""
    crawl, counts = seen.crawl, seen.counts
    seconds = max(elapsed or 0.0, counts.walked / 1e6)
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
    rows = [
        ("Crawl", seen.crawl.id),
        ("State", seen.crawl.state.value + why),
        ("Pages", f"{told['pages']:,}"),
        ("Errors", f"{told['errors']:,}"),
        ("Skipped", _skipped(told["skipped"])),
        ("Received", in_bytes(told["bytes"])),
        ("Took", _took(told, seen.counts.walked / 1e6)),
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


def _took(told: dict[str, Any], walked: float) -> str:
    """The time and the pace; those of the walk are told apart from pauses that lie within."""
    seconds, pace = told["duration_seconds"], told["pages_per_second"]
    had_breaks = 0 < walked < seconds * BREAKS_BELOW and seconds - walked > SHORTEST_BREAK
    if had_breaks:
        pace = round(told["pages"] / walked, 1)
    within = f", of which {in_time(walked)} at work" if had_breaks else ""
    return in_time(seconds) + within + (f", {pace:g} {'page' if pace == 1 else 'pages'}/s" if pace else "")


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

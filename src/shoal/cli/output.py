"""Output of commands: tables, JSON, summaries of crawls, and exit codes."""

import json
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar
from unicodedata import category, east_asian_width

import click

from shoal.base.errors import Interrupted, NothingCrawled
from shoal.base.text import escaped, plural, visible
from shoal.cli.api_client import ApiTarget, at, run_on, with_api_target
from shoal.cli.options import flag_of
from shoal.crawl.crawl import BUDGETS, Counts
from shoal.crawl.lifecycle.crawl_status import NO_PAGE, CrawlStatus
from shoal.crawl.lifecycle.failed_urls import FailedSeed
from shoal.crawl.states import TERMINAL, CrawlState, reason_text
from shoal.observe.logs import as_called, has_colour, note
from shoal.pages.page import in_words as in_classes

C = TypeVar("C", bound=Callable[..., Any])
Columns = Mapping[str, str | Callable[[dict[str, Any]], object]]
"""The columns of a table. For each heading: a field of the API object, or a function that takes the object."""

TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def api_options(command: C) -> C:
    """Add the flags of commands that call the API and can print the response as JSON."""
    return with_api_target(json_option(command))


cursor_option = click.option(
    "--cursor", metavar="CURSOR", help="Continue a list: pass `next` from the previous --json output."
)


def limit_option(default: int = 50, most: int = 1000) -> Callable[[C], C]:
    kind = click.IntRange(1, most)
    return click.option("--limit", type=kind, default=default, show_default=True, metavar="N", help="Show at most N.")


def state_option(states: type[StrEnum], words: str) -> Callable[[C], C]:
    return click.option("--state", type=click.Choice([state.value for state in states]), help=words)


def print_json(value: Any) -> None:
    """Print a JSON document on one line; on a terminal, escape control and misleading characters."""
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    if sys.stdout.isatty():
        text = escaped(text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, default=_plain)
    print(text, flush=True)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, set | frozenset | tuple):
        return sorted(map(str, value))
    return str(value)


def to_the_second(time: str | None) -> str:
    """Return an API time for a table, without microseconds."""
    return "" if time is None else f"{time[:19]}Z"


def facts_of(values: Mapping[str, Any], *, without: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the fields of an API object as rows for people, without empty fields."""
    rows = [(name.replace("_", " ").capitalize(), shown(values[name])) for name in values if name not in without]
    return [row for row in rows if row[1]]


def shown(value: Any) -> str:
    """Format an API value for people; empty if there is nothing to show."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value + 0:.3g}" if abs(value) < 100 else f"{value:,.0f}"  # avoid -0
        case str():
            return to_the_second(value) if TIME.fullmatch(value) else value
        case Mapping():
            parts = [(name, shown(part)) for name, part in value.items()]
            return ", ".join(f"{name} {part}" for name, part in parts if part)
        case list():
            return ", ".join(map(shown, value))
        case _:
            return str(value)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str = "Nothing to show.") -> None:
    """Print a table. If it has no rows, print only the sentence `empty`, on stderr. Cells are never wrapped, even on a
    narrow terminal, because a wrapped id cannot be copied."""
    if not rows:
        note(empty)
        return
    cells = [[visible("" if cell is None else str(cell)) for cell in row] for row in rows]
    lines = [[name.upper() for name in columns], *cells]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    head, *rest = [_aligned(line, widths) for line in lines]
    print("\n".join([f"\x1b[1m{head}\x1b[0m" if has_colour(sys.stdout) else head, *rest]))


def print_list(
    items: Sequence[dict[str, Any]],
    more: str | None,
    columns: Columns,
    *,
    as_json: bool,
    empty: str = "Nothing to show.",
    hint: str = "Not all items are shown; raise --limit.",
) -> None:
    """Print the items of an API list, as JSON or as a table. If there are more items, also print how to see them."""
    if as_json:
        print_json({"items": items, "next": more})
        return
    print_table(list(columns), [[_cell(item, column) for column in columns.values()] for item in items], empty)
    if more is not None:
        note(hint)


def _cell(item: dict[str, Any], column: str | Callable[[dict[str, Any]], object]) -> object:
    value = item[column] if isinstance(column, str) else column(item)
    return to_the_second(value) if isinstance(value, str) and TIME.fullmatch(value) else value


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
    return "  ".join(padded).rstrip()


def _width(text: str) -> int:
    """Return the display width of a text. Wide characters take two columns, combining and invisible characters none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if category(char) in ("Mn", "Me", "Cf") else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


HERE = ApiTarget()
SHORTEST_BREAK = 5.0  # seconds; a shorter time without work is normal at the start and end of a crawl
BREAKS_BELOW = 0.9  # if a crawl worked for a larger share of its duration, its pauses are not shown


def summary(status: CrawlStatus, elapsed_seconds: float | None = None, target: ApiTarget = HERE) -> dict[str, Any]:
    """Return the summary of a crawl. Until the crawl has ended, its duration is the time it ran, or `elapsed_seconds`
    if that is longer. `target`: the store or server of the crawl, for the commands in the summary."""
    crawl, counts = status.crawl, status.counts
    seconds = max(elapsed_seconds or 0.0, counts.walked.total_seconds())
    if crawl.finished_at is not None:
        seconds = 0.0 if crawl.started_at is None else (crawl.finished_at - crawl.started_at) / 1e6
    return {
        "crawl_id": crawl.id,
        "state": crawl.state.value,
        "state_reason": crawl.state_reason,
        "records": counts.records,
        "pages": counts.pages,
        "errors": counts.errors,
        "responses": counts.responses,
        "skipped": counts.skipped,
        "bytes": counts.bytes,
        "not_modified": counts.not_modified,
        "bytes_saved": counts.bytes_saved,
        "stayed_empty": counts.stayed_empty,
        "duration_seconds": round(seconds, 3),
        "pages_per_second": round(counts.pages / seconds, 1) if seconds else 0.0,
        "depth_reached": counts.depth_reached,
        "failed_seeds": [_failed_seed(seed) for seed in status.failed_seeds],
        "dead_seeds": [_failed_seed(seed) for seed in status.dead_seeds],
        "cut_off": _cut_off(status, target),
    }


def records_in_words(counts: Counts) -> str:
    """Explain why outputs have more records than the crawl has pages."""
    pages, errors = plural(counts.pages, "page"), plural(counts.unanswered, "error")
    return f"{counts.records:,} = {pages} + {errors} without a response"


def _failed_seed(seed: FailedSeed) -> dict[str, Any]:
    error = None if seed.error_code is None else {"code": seed.error_code, "message": seed.error_message or ""}
    return {"url": seed.url, "status": seed.status, "error": error}


def rows_of(status: CrawlStatus, totals: dict[str, Any], outputs: Sequence[str]) -> list[tuple[str, str]]:
    """Return the summary as table rows."""
    reason, counts = status.crawl.state_reason, status.counts
    why = f" ({as_called(reason_text(reason))})" if reason else ""
    rows = [
        ("Crawl", status.crawl.id),
        ("State", status.crawl.state.value + why),
        ("Pages", f"{totals['pages']:,}"),
        *([("Records", records_in_words(counts))] if counts.unanswered else []),
        *(
            [("Responses", responses)]
            if (responses := str(in_classes(totals["responses"], totals["not_modified"])))
            else []
        ),
        ("Errors", f"{totals['errors']:,}"),
        *([("Stayed empty", plural(counts.stayed_empty, "rendered page"))] if counts.stayed_empty else []),
        *([("Seeds", f"none returned a page: {status.why_no_seed}")] if status.failed_seeds else []),
        *([("Seeds", failed)] if (failed := status.which_seeds_failed) else []),
        ("Skipped", _skipped(totals["skipped"])),
        *(("Cut off", what) for what in totals["cut_off"]),
        ("Received", in_bytes(totals["bytes"])),
        ("Took", _took(totals, counts.walked.total_seconds())),
        ("Depth", found_at(totals["depth_reached"])),
    ]
    if totals["not_modified"]:
        saved = in_bytes(totals["bytes_saved"])
        place = [name for name, _ in rows].index("Took")
        rows.insert(place, ("Unchanged", f"{totals['not_modified']:,}, saving {saved}"))
    if counts.queued and reason not in BUDGETS:
        rows.append(("Not crawled", f"{plural(counts.queued, 'URL')} still queued"))
    return rows + [("Output", place) for place in outputs]


def _cut_off(status: CrawlStatus, target: ApiTarget) -> list[str]:
    """Describe the URLs that each limit excluded, with the flag that sets the limit, and the URLs in quarantine."""

    def flag(name: str, value: float | None) -> str:
        return f"{flag_of(name)} {value or 0:g}s" if name == "max_seconds" else f"{flag_of(name)} {value}"

    return [as_called(sentence) for sentence in status.cut_off(flag, target.command)]


def _took(totals: dict[str, Any], walked: float) -> str:
    """Describe the duration and the rate of a crawl. If there were pauses, show the working time separately."""
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


def print_answer(value: Any, text: str, *, as_json: bool) -> None:
    """Print the response of the API as JSON, or print this sentence instead."""
    if as_json:
        print_json(value)
    else:
        print(text, flush=True)


def print_object(
    value: dict[str, Any], *, as_json: bool, rows: Callable[[dict[str, Any]], Sequence[tuple[str, str]]] = facts_of
) -> None:
    """Print an API object as JSON, or as rows for people. By default, the rows show all fields."""
    if as_json:
        print_json(value)
    else:
        print_rows(rows(value), to_stdout=True)


def add_show(
    group: click.Group,
    path: str,
    argument: Callable[[Any], Any],
    about: str,
    rows: Callable[[dict[str, Any]], Sequence[tuple[str, str]]] = facts_of,
    name: str = "show",
) -> None:
    """Add a command that prints the API object at a path. The argument replaces the braces in the path."""

    @group.command(name, help=about)
    @argument
    @api_options
    def show(target: ApiTarget, as_json: bool, **which: str) -> None:
        print_object(run_on(target, lambda api: api.get(at(path, *which.values()))), as_json=as_json, rows=rows)


def add_rm(group: click.Group, path: str, argument: Callable[[Any], Any], about: str) -> None:
    """Add the command `rm`, which removes the API object at a path."""

    @group.command("rm", help=about)
    @argument
    @api_options
    def remove(target: ApiTarget, as_json: bool, **which: str) -> None:
        [removed] = which.values()
        run_on(target, lambda api: api.delete(at(path, removed)))
        print_answer(which | {"removed": True}, f"Removed {removed}.", as_json=as_json)


def print_rows(rows: Sequence[tuple[str, str]], *, to_stdout: bool) -> None:
    width = max(len(name) for name, _ in rows)
    text = "\n".join(f"{name:{width}}  {visible(value)}" for name, value in rows)
    print(text, file=sys.stdout if to_stdout else sys.stderr, flush=True)


def found_at(depth: int) -> str:
    """Describe the depth of a crawl. It is not the number of clicks from a seed, because the first path that was found
    to a page may be longer than others, or may begin at a sitemap."""
    return f"{depth} (links on the first path found; sitemap entries count as 1)"


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


FAILED = 1
LIMITS = {"max_bytes": 14, "max_seconds": 15}  # exit codes of a crawl that a limit completed


def exit_code_of(status: CrawlStatus, how_to_go_on: str) -> int:
    """Return the exit code, or raise the error that determines it. `how_to_go_on`: the command that resumes a paused
    crawl."""
    state, reason = status.crawl.state, status.crawl.state_reason
    if status.failed_seeds or (state is CrawlState.FAILED and reason == NO_PAGE):
        raise NothingCrawled(status.crawl.id, status.why_no_seed or status.error_message)
    if state is CrawlState.COMPLETED:
        return LIMITS.get(reason or "", 0)
    if state in TERMINAL:
        return FAILED
    how = "is paused" if reason == "asked" else "was interrupted"
    raise Interrupted(f"crawl {status.crawl.id}", f"resume with `{how_to_go_on}`", how)

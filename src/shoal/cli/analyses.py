"""`shoal analyses`: list analyses and show their findings."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Final, TypeVar

import click

from shoal.audit.reports.formats import FORMATS, FormatName
from shoal.audit.states import AnalysisState
from shoal.base.errors import BadConfig, InvalidInput, UsageError
from shoal.cli.api_client import ApiClient, ApiTarget, at, run_on, with_api_target
from shoal.cli.completion import complete_id, id_argument
from shoal.cli.options import may_overwrite
from shoal.cli.output import (
    Columns,
    add_show,
    api_options,
    cursor_option,
    facts_of,
    limit_option,
    print_list,
    state_option,
)
from shoal.cli.root import CommandGroup
from shoal.observe.logs import note
from shoal.pages.export.part_file import PartFile, Stdout, check_replace
from shoal.queue.reasons import reason_text

C = TypeVar("C", bound=Callable[..., Any])
Download = Callable[[FormatName], Awaitable[bytes]]
"""A function that takes the name of a format and returns the report in that format."""

FLAGS: Final[Mapping[FormatName, tuple[str, str]]] = {
    "html": ("--html", "Write a report as one HTML file that opens offline."),
    "json": ("--json-report", "Write a report as JSON that follows a published schema."),
    "junit": ("--junit", "Write a report as JUnit XML, which CI systems show as tests."),
    "sarif": ("--sarif", "Write a report as SARIF 2.1.0, for code scanning."),
    "markdown": ("--markdown", "Write a summary as Markdown, for a comment on a pull request."),
}


class ReportFiles:
    """The report files that a command writes, by format."""

    def __init__(self, names: Mapping[FormatName, str | None]) -> None:
        wanted = {format_name: name for format_name, name in names.items() if name is not None}
        for format_name, name in wanted.items():
            if list(wanted.values()).count(name) > 1:
                raise InvalidInput(
                    FLAGS[format_name][0], f"names {name!r}, as does another flag", "use one file for each"
                )
        self._files: dict[FormatName, PartFile] = {}
        for format_name, name in wanted.items():
            with _named_by_its_flag(format_name):
                self._files[format_name] = PartFile(name)

    def __bool__(self) -> bool:
        return bool(self._files)

    @property
    def words(self) -> list[str]:
        """Return the flags that name the files, for a command line."""
        return [word for format_name, file in self._files.items() for word in (FLAGS[format_name][0], file.name)]

    @property
    def has_html(self) -> bool:
        """Return whether one of the files is a report that people read, with every page and its evidence."""
        return "html" in self._files

    def check(self) -> None:
        """Raise an error if a file cannot be written, or must not be replaced. Call this before any work is done."""
        for format_name, file in self._files.items():
            with _named_by_its_flag(format_name):
                file.check()
            is_ours = partial(FORMATS[format_name].may_replace, file.name)
            check_replace(file.name, is_ours, may_overwrite(), called=FLAGS[format_name][0])

    async def write(self, download: Download) -> list[str]:
        """Write all files; return their names."""
        for format_name, file in self._files.items():
            text = await download(format_name)
            file.begin()
            try:
                file.write([text])
                file.complete()
            finally:
                file.leave()
        return [file.name for file in self._files.values()]


@contextmanager
def _named_by_its_flag(format_name: FormatName) -> Iterator[None]:
    try:
        yield
    except BadConfig as error:
        raise error.called(FLAGS[format_name][0]) from None


def report_flags(command: C) -> C:
    """Add the flags that name report files to a command. The command gets the files as the argument `reports`."""

    @wraps(command)
    def with_files(*args: Any, **given: Any) -> Any:
        names: dict[FormatName, str | None] = {one: given.pop(f"{one}_report") for one in FLAGS}
        return command(*args, reports=ReportFiles(names), **given)

    for format_name, (flag, about) in reversed(list(FLAGS.items())):
        with_files = click.option(flag, f"{format_name}_report", metavar="FILE", help=about)(with_files)
    return with_files  # type: ignore[return-value]


def note_written(names: list[str]) -> None:
    if names:
        note(f"Report written to {', '.join(names)}.")


ANALYSES = "/api/v1/analyses"
LISTED: Columns = {"id": "id", "state": "state", "crawl": "crawl_id", "findings": "findings", "created": "created_at"}


@click.group(cls=CommandGroup)
def analyses() -> None:
    """List analyses of crawls and their findings."""


@analyses.command("ls")
@click.option("--crawl", "crawl_id", metavar="ID", shell_complete=complete_id, help="Show only analyses of this crawl.")
@state_option(AnalysisState, "Show only analyses in this state.")
@limit_option()
@cursor_option
@api_options
def list_analyses(limit: int, cursor: str | None, target: ApiTarget, as_json: bool, **which: str | None) -> None:
    """List analyses, newest first."""
    items, more = run_on(target, lambda api: api.list(ANALYSES, limit, cursor=cursor, **which))
    print_list(items, more, LISTED, as_json=as_json, empty="No analyses.")


def _rows(analysis: dict[str, Any]) -> list[tuple[str, str]]:
    verdict, error = analysis["verdict"] or {}, analysis["error"] or {}
    told = {
        "state_reason": reason_text(analysis["state_reason"]),
        "verdict": verdict.get("outcome"),
        "error": error.get("message"),
    }
    hidden = ("codes", "analyzers", "metrics", "summary", "commit", "commit_status")
    rows = facts_of(analysis | told, without=hidden)
    rows += [("Why", reason) for reason in verdict.get("reasons", ())]
    rows += [("Analyzer failed", _problem(one, "error")) for one in analysis["analyzers"] if one["error"]]
    rows += [("Analyzer skipped", _problem(one, "skipped")) for one in analysis["analyzers"] if one["skipped"]]
    codes = [
        (one["severity"].capitalize(), f"{one['count']:,} {one['code']}: {one['fix']}") for one in analysis["codes"]
    ]
    return rows + codes


def _problem(outcome: dict[str, Any], field: str) -> str:
    return f"{outcome['analyzer']}{' (optional)' if outcome['optional'] else ''}: {outcome[field]}"


add_show(
    analyses,
    f"{ANALYSES}/{{}}",
    id_argument("analysis_id"),
    "Show an analysis, what it found, and the verdict of its gate.",
    _rows,
)


@analyses.command(epilog="Example: shoal analyses report ID --html report.html --sarif report.sarif")
@id_argument("analysis_id")
@report_flags
@click.option("--print", "printed", type=click.Choice(list(FORMATS)), help="Print the report to stdout in this format.")
@with_api_target
def report(analysis_id: str, reports: ReportFiles, printed: FormatName | None, target: ApiTarget) -> None:
    """Write the report of an analysis that has ended."""
    if not reports and printed is None:
        raise UsageError(
            "No report is requested", "pass --html FILE, --print FORMAT or another report flag; see --help"
        )
    reports.check()

    async def write(api: ApiClient) -> tuple[list[str], bytes]:
        async def download(format_name: FormatName) -> bytes:
            return await api.download(at(f"{ANALYSES}/{{}}/report", analysis_id), format=format_name)

        text = b"" if printed is None else await download(printed)
        return await reports.write(download), text

    names, text = run_on(target, write)
    if text:
        Stdout().write([text])
    note_written(names)

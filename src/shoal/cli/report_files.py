"""Flags that write reports of an analysis to files, for `shoal audit` and `shoal analyses report`."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, TypeVar

import click

from shoal.audit.reports.formats import FormatName
from shoal.base.errors import BadConfig, InvalidInput
from shoal.observe.logs import note
from shoal.pages.export.part_file import PartFile

C = TypeVar("C", bound=Callable[..., Any])
Download = Callable[[FormatName], Awaitable[bytes]]
"""Returns the report in a format."""

FLAGS: Final[Mapping[FormatName, tuple[str, str]]] = {
    "html": ("--html", "Write a report as one HTML file that opens offline."),
    "json": ("--json-report", "Write a report as JSON that follows a published schema."),
    "junit": ("--junit", "Write a report as JUnit XML, which CI systems show as tests."),
    "sarif": ("--sarif", "Write a report as SARIF 2.1.0, for code scanning."),
    "markdown": ("--markdown", "Write a summary as Markdown, for a comment on a pull request."),
}


class ReportFiles:
    """The files that a command writes."""

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

    def check(self) -> None:
        """Raise if a file cannot be written, before any work is done."""
        for format_name, file in self._files.items():
            with _named_by_its_flag(format_name):
                file.check()

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
    """Add the flags that name files to a command, which gets them as `reports`."""

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

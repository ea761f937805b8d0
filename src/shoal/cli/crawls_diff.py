"""`shoal crawls diff`: compare two crawls."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from shoal.app import opened
from shoal.audit.diff_formats import FORMATS, RowFormatName, pieces
from shoal.base.errors import InvalidInput
from shoal.base.settings import Settings
from shoal.base.text import shorten
from shoal.cli.api_client import ApiTarget, at, run_on, with_api_target
from shoal.cli.output import json_option, print_json, print_table
from shoal.cli.summary import print_rows
from shoal.observe.logs import note
from shoal.pages.export.part_file import PartFile
from shoal.process.lifetime import quiet

DIFF = "/api/v1/crawls/{}/diff"
SHOWN = 10
LONGEST_VALUE = 60
TITLES = {
    "added": "Pages added",
    "removed": "Pages removed",
    "changed": "Pages changed",
    "finding_new": "New findings",
    "finding_fixed": "Fixed findings",
}


@click.command(epilog="Example: shoal crawls diff OLD NEW --output changes.csv")
@click.argument("before", metavar="EARLIER")
@click.argument("after", metavar="LATER")
@click.option(
    "--output",
    multiple=True,
    metavar="FILE",
    help="Write all differences to a file: .csv, .jsonl or .parquet. Repeatable.",
)
@click.option(
    "--limit",
    type=click.IntRange(0, 1000),
    default=SHOWN,
    show_default=True,
    metavar="N",
    help="Show at most N differences of each kind.",
)
@with_api_target
@json_option
def diff(before: str, after: str, output: Sequence[str], limit: int, target: ApiTarget, as_json: bool) -> None:
    """Compare two crawls of a site. Shows pages added, removed and changed by field, and findings that are new, fixed
    or still open."""
    files = {name: (_format_of(name), PartFile(name)) for name in output}
    for _, file in files.values():
        file.check()
    settings = target.settings()
    found = run_on(target, lambda api: api.get(at(DIFF, after), against=before, limit=limit))
    for format_name, file in files.values():
        if target.is_remote(settings):
            content = run_on(
                target,
                lambda api, name=format_name: api.download(  # type: ignore[misc]
                    at(f"{DIFF}/rows", after), against=before, format=name
                ),
            )
            file.begin()
            file.write([content])
            file.complete()
        else:
            asyncio.run(_write(settings, before, after, format_name, file))
    if as_json:
        print_json(found)
    else:
        _print(found)
    if files:
        note(f"All differences written to {', '.join(files)}.")


def _format_of(name: str) -> RowFormatName:
    ending = Path(name).suffix.lower().removeprefix(".")
    for known in FORMATS:
        if ending == known:
            return known
    raise InvalidInput("--output", f"names {name!r}, whose format is not known", "end it in .csv, .jsonl or .parquet")


async def _write(settings: Settings, before: str, after: str, format_name: RowFormatName, file: PartFile) -> None:
    """Write the rows while they are computed."""
    async with opened(settings, quiet(settings), existing=True) as app:
        compared = await app.audit.diffs.open(before, after)
        file.begin()
        try:
            async for piece in pieces(compared, format_name):
                file.write([piece])
            file.complete()
        finally:
            file.leave()


def _print(found: dict[str, Any]) -> None:
    pages, findings = found["pages"], found["findings"]
    fields = ", ".join(f"{name} {number:,}" for name, number in pages["fields"].items())
    rows = [
        ("Pages", f"{pages['before']:,} before, {pages['after']:,} after"),
        ("Added", f"{pages['added']:,}"),
        ("Removed", f"{pages['removed']:,}"),
        ("Changed", f"{pages['changed']:,}" + (f" ({fields})" if fields else "")),
        ("Unchanged", f"{pages['unchanged']:,}"),
    ]
    if findings is not None:
        new, fixed, still_open = findings["new"], findings["fixed"], findings["open"]
        rows.append(("Findings", f"{new:,} new, {fixed:,} fixed, {still_open:,} still open"))
    print_rows(rows, to_stdout=True)
    listed = [one for one in found["items"] if one["change"] in TITLES]
    if listed:
        print_table(["change", "what", "url", "before", "after"], [_row(one) for one in listed])
    if findings is None:
        note("Findings are not compared, because at least one of the crawls was not analyzed.")
    elif any(not code["complete"] for code in findings["codes"]):
        note("For codes with very many findings, only the stored ones are compared.")


def _row(one: dict[str, Any]) -> list[object]:
    values = ["" if one[name] is None else shorten(one[name], LONGEST_VALUE) for name in ("before", "after")]
    what = one["field"] or (f"{one['severity']} {one['code']}" if one["code"] else "page")
    return [TITLES[one["change"]].lower(), what, one["url"] or "the whole site", *values]

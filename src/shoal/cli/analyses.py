"""`shoal analyses`: list analyses and show their findings."""

from typing import Any

import click

from shoal.cli.api_client import ApiClient, ApiTarget, at, reaching, run_on
from shoal.cli.output import facts_of, note, print_json, print_table, to_the_second
from shoal.cli.root import CommandGroup
from shoal.cli.summary import print_rows

ANALYSES = "/api/v1/analyses"

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(cls=CommandGroup)
def analyses() -> None:
    """List analyses of crawls and their findings."""


@analyses.command("ls")
@click.option("--crawl", "crawl_id", metavar="ID", help="Show only analyses of this crawl.")
@click.option(
    "--state", type=click.Choice(["pending", "running", "success", "failed"]), help="Show only analyses in this state."
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, metavar="N", help="Show at most N."
)
@reaching
@_json
def list_analyses(crawl_id: str | None, state: str | None, limit: int, reach: ApiTarget, as_json: bool) -> None:
    """List analyses, newest first."""
    items, more = run_on(reach, lambda api: api.list(ANALYSES, limit, crawl_id=crawl_id, state=state))
    if as_json:
        print_json({"items": items, "next": more})
        return
    rows = [
        [one["id"], one["state"], one["crawl_id"], one["findings"], to_the_second(one["created_at"])] for one in items
    ]
    print_table(["id", "state", "crawl", "findings", "created"], rows)
    if more is not None:
        note("Not all are shown; raise --limit.")


@analyses.command()
@click.argument("analysis_id", metavar="ID")
@reaching
@_json
def show(analysis_id: str, reach: ApiTarget, as_json: bool) -> None:
    """Show an analysis and its findings."""

    async def look(api: ApiClient) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        analysis = await api.get(at(f"{ANALYSES}/{{}}", analysis_id))
        page = await api.get(at(f"{ANALYSES}/{{}}/findings", analysis_id))
        return analysis, page["items"]

    analysis, findings = run_on(reach, look)
    if as_json:
        print_json({**analysis, "findings": findings})
        return
    error = analysis.pop("error")
    print_rows(facts_of(analysis | ({"error": error["message"]} if error else {})), to_stdout=True)
    if findings:
        print_table(
            ["analyzer", "severity", "finding"],
            [[one["analyzer"], one["severity"], one["message"]] for one in findings],
        )

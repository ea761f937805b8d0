"""`shoal events` lists and follows events; `shoal stats` shows statistics."""

from typing import Any

import click

from shoal.base.clock import Clock
from shoal.base.text import visible
from shoal.cli.api_client import ApiClient, ApiTarget, run_on, with_api_target
from shoal.cli.crawls_follow import LOOK_SECONDS, looking
from shoal.cli.output import (
    Columns,
    api_options,
    cursor_option,
    facts_of,
    limit_option,
    print_answer,
    print_json,
    print_list,
    print_rows,
    print_table,
    to_the_second,
)
from shoal.cli.root import Command, CommandGroup

EVENTS = "/api/v1/events"
STATS = "/api/v1/stats"
MOST = 1000  # items per response
HOUR = ("created", "done", "failed", "expired", "retried", "lost", "bots")

LISTED: Columns = {"sequence": "sequence", "time": "time", "type": "type", "subject": "subject"}


@click.group(cls=CommandGroup)
def events() -> None:
    """List events, or follow them. `shoal webhooks` sends them to HTTP endpoints."""


@events.command("ls")
@limit_option(50, MOST)
@cursor_option
@api_options
def list_events(limit: int, cursor: str | None, target: ApiTarget, as_json: bool) -> None:
    """List the newest events, in order. With --cursor, list the events that follow the cursor."""
    which = {"tail": limit} if cursor is None else {"after": cursor, "limit": limit}
    page = run_on(target, lambda api: api.get(EVENTS, **which))
    if as_json:
        print_json(page)
    else:
        print_list(page["items"], None, LISTED, as_json=False, empty="No events.")


@events.command(epilog="Example: shoal events follow --json | jq .type")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, MOST),
    default=10,
    show_default=True,
    metavar="N",
    help="Begin N events ago.",
)
@cursor_option
@with_api_target
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def follow(lines: int, cursor: str | None, target: ApiTarget, as_json: bool) -> int:
    """Print events as they happen, until Ctrl-C."""

    async def read(api: ApiClient, clock: Clock) -> int:
        which = {"tail": max(1, lines)} if cursor is None else {"after": cursor, "limit": MOST}
        page = await api.get(EVENTS, **which)
        show(page["items"] if lines or cursor is not None else [])
        while True:
            if not page["items"]:
                await clock.sleep(LOOK_SECONDS)
            page = await api.get(EVENTS, after=page["next"], limit=MOST)
            show(page["items"])

    def show(items: list[dict[str, Any]]) -> None:
        for event in items:
            line = f"{to_the_second(event['time'])} {event['type']} {visible(event['subject'])}"
            print_answer(event, line, as_json=as_json)

    return looking(target, read)


@click.command(cls=Command, epilog="Example: shoal stats --hours 72 --kind page")
@click.option(
    "--hours", type=click.IntRange(1, 720), default=24, show_default=True, metavar="N", help="Show the last N hours."
)
@click.option("--kind", type=click.Choice(["page", "crawl", "analysis"]), help="Show only this kind of jobs per hour.")
@api_options
def stats(hours: int, kind: str | None, target: ApiTarget, as_json: bool) -> None:
    """Show the number of crawls and jobs by state, jobs per hour, back-pressure and bots."""
    found = run_on(target, lambda api: api.get(STATS, hours=hours, kind=kind))
    if as_json:
        print_json(found)
        return
    counts = {"crawls": found["crawls"]} | {f"{name} jobs": states for name, states in found["jobs"].items()}
    held = [f"{one['slots']}: {one['reason']}" for one in found["back_pressure"] if one["held"]]
    rows = [*facts_of(counts), *(("Back-pressure", reason) for reason in held)]
    print_rows(rows or [("Crawls", "none")], to_stdout=True)
    if found["hours"]:
        print_table(
            ["hour", *HOUR], [[to_the_second(one["hour"]), *(one[name] for name in HOUR)] for one in found["hours"]]
        )
    if found["bots"]:
        columns = ("bot_id", "pulled", "results", "failures", "late_results", "seen_at")
        print_list(found["bots"], None, {name.replace("_", " "): name for name in columns}, as_json=False)

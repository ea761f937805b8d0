"""`shoal jobs add`, `results`, `groups`, `cancel-group`: create page jobs from URLs, and read their results."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import click

from shoal.base.clock import SystemClock
from shoal.base.errors import InvalidInput, UsageError, WaitTimedOut
from shoal.base.text import plural
from shoal.cli.api_client import ApiClient, ApiTarget, at, run_on
from shoal.cli.completion import id_argument
from shoal.cli.options import ADDED, DURATION, js_flag, read_rules_file, wait_option, with_urls_named
from shoal.cli.output import (
    Columns,
    api_options,
    cursor_option,
    limit_option,
    print_answer,
    print_json,
    print_list,
    state_option,
)
from shoal.cli.root import Command
from shoal.cli.seeds import FORMAT_HELP, Seeds, batches
from shoal.observe.logs import note
from shoal.page_jobs.spec import MOST_URLS, GroupState

JOBS = "/api/v1/jobs"
GROUPS = "/api/v1/groups"
LOOK_AGAIN = 0.5  # seconds
QUIET_SECONDS = 3.0  # if no job has started after this time, the reason is printed
MOST = 100_000  # results per call
FLAGS = {
    "crawl_config.headers": "--header",
    "crawl_config.proxy": "--proxy",
    "crawl_config.timeout_hint": "--timeout",
}


@click.command(cls=Command, epilog="Example: shoal jobs add --seeds urls.txt --rules shop.toml --wait")
@click.argument("urls", nargs=-1, metavar="URL...")
@click.option(
    "--seeds",
    "--file",
    "seeds_file",
    metavar="FILE",
    help=f"Read URLs from this file: {FORMAT_HELP}. More than 10,000 URLs become several groups.",
)
@click.option("--rules", "rule_set", metavar="FILE", help="Rule set with the data to extract from each page.")
@click.option("--header", "headers", multiple=True, metavar="H", help="Send this header, as NAME: VALUE. Repeatable.")
@click.option(
    "--render",
    type=click.Choice(["never", "always"]),
    default="never",
    show_default=True,
    help="Whether to render the pages in a browser. With `always`, only workers that have a browser take the jobs.",
)
@js_flag
@click.option("--proxy", metavar="LABEL", help="Use this proxy, by its label in SHOAL_PROXIES.")
@click.option("--timeout", type=DURATION, metavar="D", help="Timeout per request, such as 10s or 1.5m.")
@click.option("--group", metavar="ID", help="Id of the job group.  [default: generated]")
@click.option("--priority", type=int, metavar="N", help="Priority from 0 to 100; higher runs first.  [default: 50]")
@click.option("--retries", "max_retry", type=int, metavar="N", help="Retry a failed page up to N times.")
@click.option("--project", metavar="NAME", help="Project that the group belongs to.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Add this label. Repeatable.")
@wait_option(
    "Wait until all jobs have ended, and exit with 1 unless all succeeded; with a duration such as 10m, at most that "
    "long."
)
@click.option("--wait-timeout", "timeout_seconds", type=DURATION, metavar="D", hidden=True)
@api_options
def add(
    urls: tuple[str, ...],
    seeds_file: str | None,
    wait_seconds: float | None,
    timeout_seconds: float | None,
    target: ApiTarget,
    as_json: bool,
    **options: Any,
) -> int:
    """Create a page job for each URL. All jobs are in one group, whose id is printed; more than 10,000 URLs become
    several groups."""
    seeds = Seeds(urls, seeds_file)
    if not seeds:
        raise UsageError("No URL given", "pass URLs, or a file with --seeds")
    common = _request_body(options)

    async def work(api: ApiClient) -> list[dict[str, Any]]:
        made = [group async for group in _created(api, seeds, common, is_told=not as_json)]
        if not wait_seconds:
            return made
        over: list[dict[str, Any]] = []
        limit = min(wait_seconds, timeout_seconds or math.inf)
        try:
            async with asyncio.timeout(limit):
                for group in made:
                    over.append(await _until_over(api, group))
        except TimeoutError:
            raise WaitTimedOut(f"{made[len(over)]['id']} did not end", limit) from None
        return over

    groups = run_on(target, work, existing=False)
    for group in groups:
        print_answer(group, group["id"], as_json=as_json)
    if not wait_seconds:
        return 0
    if not as_json:
        for group in groups:
            note(f"{group['state'].capitalize()}: {_counts(group)}.")
    return 0 if all(group["jobs"].get("done", 0) == group["total"] for group in groups) else 1


async def _created(
    api: ApiClient, seeds: Seeds, common: dict[str, Any], *, is_told: bool
) -> AsyncIterator[dict[str, Any]]:
    """Create the job groups and yield each of them. There is only one unless there are too many URLs."""
    parts = [list(seeds)] if seeds.count <= MOST_URLS else batches(iter(seeds))
    for number, part in enumerate(parts, 1):
        body = common | {"urls": [seed.url for seed in part]}
        if number > 1 and "group" in common:
            body["group"] = f"{common['group']}-{number}"
        try:
            group = await api.post(JOBS, body)
        except InvalidInput as error:
            named = error.called(lambda field: FLAGS.get(field, field))
            raise with_urls_named(named, "urls", [seed.place or seed.url for seed in part]) from None
        if is_told:
            note(f"Created {plural(group['total'], 'job')} in {group['id']}.")
        yield group


@click.command(cls=Command, epilog="Example: shoal jobs results grp_… > results.jsonl")
@id_argument("group_id")
@click.option("--limit", type=click.IntRange(1, MOST), default=MOST, metavar="N", help="Show at most N.")
@cursor_option
@api_options
def results(group_id: str, limit: int, cursor: str | None, target: ApiTarget, as_json: bool) -> None:
    """Print the results of a job group. Writes one JSON object per line, in the order in which the jobs ended. With the
    id of a job, it prints the result of each attempt."""

    async def look(api: ApiClient) -> tuple[list[Any], str | None]:
        if group_id.startswith("job_"):
            page = await api.get(at(f"{JOBS}/{{}}/results", group_id))
            return page["items"][:limit], None
        return await api.list(at(f"{GROUPS}/{{}}/results", group_id), limit, cursor=cursor)

    items, more = run_on(target, look)
    if as_json:
        print_json({"items": items, "next": more})
        return
    for item in items:
        print_json(item)
    if more is not None:
        note("More results may follow: raise --limit, or run the command again when the jobs have ended.")


@click.command(cls=Command)
@state_option(GroupState, "Show only groups in this state.")
@limit_option()
@cursor_option
@api_options
def groups(state: str | None, limit: int, cursor: str | None, target: ApiTarget, as_json: bool) -> None:
    """List job groups, newest first."""
    items, more = run_on(target, lambda api: api.list(GROUPS, limit, state=state, cursor=cursor))
    columns: Columns = {"id": "id", "state": "state", "total": "total", "jobs": _counts, "created": "created_at"}
    print_list(items, more, columns, as_json=as_json, empty="No job groups.")


@click.command("cancel-group", cls=Command)
@id_argument("group_id", "GROUP")
@api_options
def cancel_group(group_id: str, target: ApiTarget, as_json: bool) -> None:
    """Cancel the jobs of a group that have not ended."""
    group = run_on(target, lambda api: api.post(at(f"{GROUPS}/{{}}/cancel", group_id)))
    print_answer(group, f"{group['id']} is {group['state']}: {_counts(group)}.", as_json=as_json)


COMMANDS = (add, results, groups, cancel_group)


async def _until_over(api: ApiClient, group: dict[str, Any]) -> dict[str, Any]:
    clock = SystemClock()
    began, is_quiet = clock.monotonic(), True
    while group["state"] == "open":
        await clock.sleep(LOOK_AGAIN)
        group = await api.get(at(f"{GROUPS}/{{}}", group["id"]))
        is_quiet = is_quiet and group["jobs"].get("pending", 0) == group["total"]
        if is_quiet and clock.monotonic() - began > QUIET_SECONDS:
            is_quiet = False
            await _explain_wait(api, group["id"])
    return group


async def _explain_wait(api: ApiClient, group_id: str) -> None:
    """Print the reason why the first job of a group has not started."""
    [job, *_], _ = await api.list(JOBS, 1, run_id=group_id)
    found = await api.get(at(f"{JOBS}/{{}}/explain", job["id"]))
    note(f"No job has started yet: {found['explanation']}")


def _request_body(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the request. `FLAGS` has the flags that are not named after their fields of
    `crawl_config`."""
    config = {
        "js_required": options.pop("render") == "always",
        "timeout_hint": options.pop("timeout"),
        "proxy": options.pop("proxy"),
        "headers": dict(map(ADDED["headers"].read_text, options.pop("headers"))),
    }
    rules, labels = options.pop("rule_set"), options.pop("labels")
    body = options | {
        "crawl_config": {name: value for name, value in config.items() if value},
        "rule_set": None if rules is None else read_rules_file(rules),
        "labels": dict(map(ADDED["labels"].read_text, labels)),
    }
    return {name: value for name, value in body.items() if value not in (None, {})}


def _counts(group: dict[str, Any]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(group["jobs"].items()))

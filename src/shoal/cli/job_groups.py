"""`shoal jobs add`, `results`, `groups`, `cancel-group`: create page jobs from URLs, and read their results."""

import asyncio
import sys
from typing import Any

import click

from shoal.base.clock import SystemClock
from shoal.base.errors import InvalidInput, ShoalError, UsageError, WaitTimedOut
from shoal.base.text import plural
from shoal.cli.api_client import ApiClient, ApiTarget, at, run_on
from shoal.cli.crawls_follow import duration_of
from shoal.cli.options import read_file, read_header, read_label, read_rules_file, with_urls_named
from shoal.cli.output import (
    Columns,
    api_options,
    limit_option,
    print_answer,
    print_json,
    print_list,
    state_option,
)
from shoal.observe.logs import note
from shoal.page_jobs.spec import GroupState

JOBS = "/api/v1/jobs"
GROUPS = "/api/v1/groups"
LOOK_AGAIN = 0.5  # seconds
QUIET_SECONDS = 3.0  # without a job that started, before we say why
MOST = 100_000  # results per call
FLAGS = {
    "rule_set": "--rules",
    "crawl_config.headers": "--header",
    "crawl_config.proxy": "--proxy",
    "crawl_config.timeout_hint": "--timeout",
    "group": "--group",
    "priority": "--priority",
    "max_retry": "--retries",
    "project": "--project",
    "labels": "--label",
}


@click.command(epilog="Example: shoal jobs add --file urls.txt --rules shop.toml --wait")
@click.argument("urls", metavar="URL…", nargs=-1)
@click.option("--file", metavar="FILE", help="Read URLs from this file, one per line; - is stdin.")
@click.option("--rules", metavar="FILE", help="Rule set with the data to extract from each page.")
@click.option("--header", "headers", multiple=True, metavar="H", help="Send this header, as NAME: VALUE. Repeatable.")
@click.option("--js", is_flag=True, help="Render the pages in a browser; the jobs wait for a worker that has one.")
@click.option("--proxy", metavar="LABEL", help="Use this proxy, by its label in SHOAL_PROXIES.")
@click.option("--timeout", type=float, metavar="S", help="Timeout per request, in seconds.")
@click.option("--group", metavar="ID", help="Id of the job group.  [default: generated]")
@click.option("--priority", type=int, metavar="N", help="Priority from 0 to 100; higher runs first.  [default: 50]")
@click.option("--retries", type=int, metavar="N", help="Retry a failed page up to N times.")
@click.option("--project", metavar="NAME", help="Project that the group belongs to.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Add this label. Repeatable.")
@click.option("--wait", is_flag=True, help="Wait until all jobs have ended; exit with 1 unless all succeeded.")
@click.option("--wait-timeout", metavar="D", help="With --wait, stop waiting after this long, such as 30s, 10m or 2h.")
@api_options
def add(
    urls: tuple[str, ...],
    file: str | None,
    wait: bool,
    wait_timeout: str | None,
    target: ApiTarget,
    as_json: bool,
    **options: Any,
) -> int:
    """Create a page job for each URL. All are in one group, whose id is printed."""
    given = [(text, "") for text in urls] + ([] if file is None else _lines_of(file))
    if not given:
        raise UsageError("No URL given", "pass URLs, or a file with --file")
    body = _request_body([text for text, _ in given], options)
    timeout_seconds = None if wait_timeout is None else duration_of(wait_timeout).total_seconds()

    async def work(api: ApiClient) -> dict[str, Any]:
        made: dict[str, Any] = await api.post(JOBS, body)
        if not as_json:
            note(f"Created {plural(made['total'], 'job')} in {made['id']}.")
        return await _until_over(api, made, timeout_seconds) if wait else made

    try:
        group = run_on(target, work, existing=False)
    except InvalidInput as error:
        raise _named(error, given) from None
    print_answer(group, group["id"], as_json=as_json)
    if not wait:
        return 0
    if not as_json:
        note(f"{group['state'].capitalize()}: {_counts(group)}.")
    return 0 if group["jobs"].get("done", 0) == group["total"] else 1


@click.command(epilog="Example: shoal jobs results grp_… > results.jsonl")
@click.argument("group_id", metavar="ID")
@click.option("--limit", type=click.IntRange(1, MOST), default=MOST, metavar="N", help="Show at most N.")
@click.option("--cursor", metavar="C", help="Continue at this cursor: `next` of an earlier --json output.")
@api_options
def results(group_id: str, limit: int, cursor: str | None, target: ApiTarget, as_json: bool) -> None:
    """Print the results of a job group. One JSON object per line, in the order in which the jobs ended; with the id of
    a job, the result of each of its attempts."""

    async def look(api: ApiClient) -> tuple[list[Any], str | None]:
        if group_id.startswith("job_"):
            page = await api.get(at(f"{JOBS}/{{}}/results", group_id))
            return page["items"][:limit], None
        items: list[Any] = []
        after = cursor
        while len(items) < limit:
            page = await api.get(
                at(f"{GROUPS}/{{}}/results", group_id), limit=min(200, limit - len(items)), cursor=after
            )
            items += page["items"]
            after = page["next"]
            if after is None or not page["items"]:
                break
        return items, after

    items, more = run_on(target, look)
    if as_json:
        print_json({"items": items, "next": more})
        return
    for item in items:
        print_json(item)
    if more is not None:
        note("More results may follow: raise --limit, or run the command again when the jobs have ended.")


@click.command()
@state_option(GroupState, "Show only groups in this state.")
@limit_option()
@api_options
def groups(state: str | None, limit: int, target: ApiTarget, as_json: bool) -> None:
    """List job groups, newest first."""
    items, more = run_on(target, lambda api: api.list(GROUPS, limit, state=state))
    columns: Columns = {"id": "id", "state": "state", "total": "total", "jobs": _counts, "created": "created_at"}
    print_list(items, more, columns, as_json=as_json, empty="No job groups.")


@click.command("cancel-group")
@click.argument("group_id", metavar="GROUP")
@api_options
def cancel_group(group_id: str, target: ApiTarget, as_json: bool) -> None:
    """Cancel the jobs of a group that have not ended."""
    group = run_on(target, lambda api: api.post(at(f"{GROUPS}/{{}}/cancel", group_id)))
    print_answer(group, f"{group['id']} is {group['state']}: {_counts(group)}.", as_json=as_json)


COMMANDS = (add, results, groups, cancel_group)


async def _until_over(api: ApiClient, group: dict[str, Any], timeout_seconds: float | None) -> dict[str, Any]:
    clock = SystemClock()
    try:
        async with asyncio.timeout(timeout_seconds):
            began, is_quiet = clock.monotonic(), True
            while group["state"] == "open":
                await clock.sleep(LOOK_AGAIN)
                group = await api.get(at(f"{GROUPS}/{{}}", group["id"]))
                is_quiet = is_quiet and group["jobs"].get("pending", 0) == group["total"]
                if is_quiet and clock.monotonic() - began > QUIET_SECONDS:
                    is_quiet = False
                    await _explain_wait(api, group["id"])
    except TimeoutError:
        raise WaitTimedOut(f"The end of {group['id']}", timeout_seconds or 0) from None
    return group


async def _explain_wait(api: ApiClient, group_id: str) -> None:
    """Say why the first job of a group has not started."""
    [job, *_], _ = await api.list(JOBS, 1, run_id=group_id)
    found = await api.get(at(f"{JOBS}/{{}}/explain", job["id"]))
    note(f"No job has started yet: {found['explanation']}")


def _lines_of(file: str) -> list[tuple[str, str]]:
    """Return the URLs of a file, each with its line; skip empty lines and those that begin with #."""
    data = sys.stdin.buffer.read() if file == "-" else read_file(file, "one URL per line")
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InvalidInput("--file", f"{file} is not UTF-8 text", "save it as UTF-8, one URL per line") from None
    numbered = [(line.strip(), f"line {number} of {file}") for number, line in enumerate(lines, 1)]
    return [(text, place) for text, place in numbered if text and not text.startswith("#")]


def _request_body(urls: list[str], options: dict[str, Any]) -> dict[str, Any]:
    config = {"js_required": options["js"] or None, "timeout_hint": options["timeout"], "proxy": options["proxy"]}
    config["headers"] = dict(_header(text) for text in options["headers"]) or None
    body = {
        "urls": urls,
        "crawl_config": {name: value for name, value in config.items() if value is not None} or None,
        "rule_set": None if options["rules"] is None else read_rules_file(options["rules"]),
        "group": options["group"],
        "priority": options["priority"],
        "max_retry": options["retries"],
        "project": options["project"],
        "labels": dict(_label(text) for text in options["labels"]) or None,
    }
    return {name: value for name, value in body.items() if value is not None}


def _header(text: str) -> tuple[str, str]:
    try:
        return read_header(text)
    except ValueError:
        raise InvalidInput("--header", "is not a header", "write it as NAME: VALUE") from None


def _label(text: str) -> tuple[str, str]:
    try:
        return read_label(text)
    except ValueError as error:
        raise InvalidInput("--label", f"{text!r} {error}", "write it as name=value") from None


def _named(error: InvalidInput, given: list[tuple[str, str]]) -> ShoalError:
    """Return the error in the words of the command line: its flags, URLs, and lines of the file."""
    if str(error.facts.get("field", "")).startswith("urls["):
        return with_urls_named(error, "urls", [place or url for url, place in given])
    return error.called(lambda field: FLAGS.get(field, field))


def _counts(group: dict[str, Any]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(group["jobs"].items()))

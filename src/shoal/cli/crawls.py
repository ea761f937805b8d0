"""`shoal crawls`: list and manage crawls, through a server or directly on the store."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from shoal.base.errors import NotFound, UsageError
from shoal.base.text import plural, visible
from shoal.cli.api_client import ApiClient, ApiTarget, at, run_on, with_api_target
from shoal.cli.completion import id_argument
from shoal.cli.crawls_files import diff, dump, export, load
from shoal.cli.crawls_follow import at_its_end, logs, wait, watch
from shoal.cli.options import (
    ADDED,
    SECTIONS,
    add_flags,
    change_flags,
    changed_values,
    flag_of,
    given_values,
    wait_option,
)
from shoal.cli.output import (
    Columns,
    api_options,
    cursor_option,
    facts_of,
    found_at,
    in_bytes,
    limit_option,
    print_answer,
    print_json,
    print_list,
    print_object,
    print_table,
    state_option,
    to_the_second,
)
from shoal.cli.root import Command, CommandGroup
from shoal.cli.seeds import Seeds, seeds_option
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.crawl_status import LEFT, UNATTENDED
from shoal.crawl.lifecycle.failed_urls import FailedSeed, FailedUrls
from shoal.crawl.lifecycle.failed_urls import in_words as seeds_in_words
from shoal.crawl.states import DRAINED_PARTLY, CrawlState, reason_text
from shoal.observe.logs import note
from shoal.pages.page import in_words as in_classes
from shoal.process.crawl_request import read_config

CRAWLS = "/api/v1/crawls"


@click.command(
    cls=Command,
    sections=SECTIONS,
    epilog="Example: shoal crawls add https://example.com/ --max-pages 500 --project shop --wait",
)
@click.argument("urls", nargs=-1, metavar="URL...")
@seeds_option
@add_flags
@click.option(
    "--hold", is_flag=True, help="Store the crawl without starting it; start it with `shoal crawls start ID`."
)
@wait_option(
    "Wait until the crawl ends or is paused, like `shoal crawls wait`; with a duration such as 10m, at most that long."
)
@with_api_target
@click.option(
    "--json", "as_json", is_flag=True, help="Print the crawl, or with --wait its summary, as one JSON object."
)
def add(
    urls: Sequence[str],
    seeds_file: str | None,
    hold: bool,
    wait_seconds: float | None,
    target: ApiTarget,
    as_json: bool,
    **options: Any,
) -> int:
    """Start a crawl on the workers and print its id. To crawl in this process, use `shoal crawl`."""
    seeds = Seeds(urls, seeds_file)
    if not seeds:
        raise UsageError("No URL given", "give at least one URL to start from, or --seeds FILE")
    if hold and wait_seconds:
        raise UsageError("--hold and --wait cannot be combined", "leave one of them out")
    given = given_values(options, ADDED)
    wanted = read_config({"seeds": [seed.url for seed in seeds.first], **given}, flag_of).plain()
    body = {name: wanted[name] for name in ("seeds", *given)} | ({"start": False} if hold or seeds.has_more else {})
    crawl = run_on(target, lambda api: _created(api, body, seeds, hold=hold), existing=False)
    if wait_seconds:
        note(f"{crawl['id']} is {crawl['state']}.")
        return at_its_end(target, crawl["id"], as_json, wait_seconds)
    if as_json:
        print_json(crawl)
    else:
        note(f"The crawl is {crawl['state']}; follow it with `{target.command('crawls', 'watch', crawl['id'])}`.")
        print(crawl["id"], flush=True)
    return 0


async def _created(api: ApiClient, body: dict[str, Any], seeds: Seeds, *, hold: bool) -> dict[str, Any]:
    """Create a crawl. Seeds that do not fit into the first request are added before the crawl starts."""
    if "recrawl_of" in body:
        with suppress(NotFound):  # the error response of the server tells what is wrong
            body["recrawl_of"] = (await api.get(at(CRAWL, body["recrawl_of"])))["id"]
    crawl: dict[str, Any] = await api.post(CRAWLS, body)
    if not seeds.has_more:
        return crawl
    path = at(CRAWL, crawl["id"])
    note(f"Adding {seeds.count:,} seeds to {crawl['id']}.")
    try:
        for batch in seeds.more():
            crawl = await api.post(f"{path}/seeds", {"seeds": [seed.url for seed in batch]})
        return crawl if hold else await api.post(f"{path}/start")
    except BaseException:
        await api.post(f"{path}/stop")  # stop the crawl, because some of its seeds are missing
        raise


POLITE = ["host", "pages", "per second", "delay", "robots.txt", "version", "asked delay", "pauses", "paused"]
CRAWL = f"{CRAWLS}/{{}}"


@click.group(cls=CommandGroup)
def crawls() -> None:
    """Start, list and manage crawls that workers execute."""


@crawls.command("ls")
@state_option(CrawlState, "Show only crawls in this state.")
@click.option("--project", metavar="NAME", help="Show only crawls of this project.")
@click.option("--label", multiple=True, metavar="K=V", help="Show only crawls with this label. Repeatable.")
@limit_option()
@cursor_option
@api_options
def list_crawls(limit: int, cursor: str | None, target: ApiTarget, as_json: bool, **wanted: Any) -> None:
    """List crawls, newest first."""
    items, more = run_on(target, lambda api: api.list(CRAWLS, limit, after=cursor, **wanted))
    last = items[-1]["id"] if more is not None else None
    hint = f"More crawls: `{target.command('crawls', 'ls', '--cursor', last or '')}`"
    print_list(items, last, LISTED, as_json=as_json, empty="No crawls.", hint=hint)


@crawls.command()
@id_argument("crawl_id")
@api_options
def show(crawl_id: str, target: ApiTarget, as_json: bool) -> None:
    """Show one crawl. Prints its state, options, counts, quarantined patterns and hosts on hold."""

    async def look(api: ApiClient) -> dict[str, Any]:
        crawl: dict[str, Any] = await api.get(at(CRAWL, crawl_id))
        traps = await api.get(at(f"{CRAWL}/traps", crawl_id))
        return crawl | {"traps": traps["items"]}

    print_object(run_on(target, look), as_json=as_json, rows=_rows)


@crawls.command()
@id_argument("crawl_id")
@api_options
def start(crawl_id: str, target: ApiTarget, as_json: bool) -> None:
    """Start a crawl that was stored with `shoal crawls add --hold`."""
    if "://" in crawl_id:
        raise UsageError(f'"{crawl_id}" is a URL, not the id of a crawl', "start a new crawl with `shoal crawls add`")
    _move(target, crawl_id, "start", as_json)


@crawls.command()
@id_argument("crawl_id")
@api_options
def pause(crawl_id: str, target: ApiTarget, as_json: bool) -> None:
    """Pause a crawl. Pages that were fetched are stored first."""
    _move(target, crawl_id, "pause", as_json)


@crawls.command()
@id_argument("crawl_id")
@api_options
def resume(crawl_id: str, target: ApiTarget, as_json: bool) -> None:
    """Resume a paused crawl on the workers. To resume it in this process, use `shoal crawl --resume ID`."""
    _move(target, crawl_id, "resume", as_json)


@crawls.command()
@id_argument("crawl_id")
@click.option("--force", is_flag=True, help="Kill the crawl's processes if they do not stop within SHOAL_FORCE_GRACE.")
@api_options
def stop(crawl_id: str, force: bool, target: ApiTarget, as_json: bool) -> None:
    """Stop a crawl. It cannot be resumed."""
    _move(target, crawl_id, "stop", as_json, {"force": True} if force else None)


@crawls.command()
@id_argument("crawl_id")
@click.option(
    "--status", multiple=True, metavar="S", help="Retry URLs with this status: 503, 5xx, or error. Repeatable."
)
@click.option(
    "--error",
    multiple=True,
    metavar="CODE",
    help="Retry URLs with this error, such as dns_error or timeout. Repeatable.",
)
@click.option("--like", metavar="RE", help="Retry URLs that match this regular expression.")
@click.option("--limit", metavar="N", help="Retry at most N URLs.")
@click.option("--all", "every", is_flag=True, help="Retry all failed URLs.")
@api_options
def retry(crawl_id: str, every: bool, target: ApiTarget, as_json: bool, **which: Any) -> None:
    """Retry failed URLs of a crawl. Without an option, resume a crawl that failed."""
    given = {name: value for name, value in which.items() if value}
    if not given and not every:
        _move(target, crawl_id, "retry", as_json)
        return
    urls = FailedUrls.read(given, strict=False, called=lambda field: f"--{field}")
    crawl = run_on(target, lambda api: api.post(at(f"{CRAWL}/retry", crawl_id), urls.plain() | {"all": True}))
    print_answer(
        crawl,
        f"{plural(crawl['retried'], 'URL')} of {crawl_id} will be retried; the crawl is {crawl['state']}.",
        as_json=as_json,
    )


@crawls.command("set", epilog="Example: shoal crawls set ID --max-pages 5000 --exclude '/calendar/'")
@id_argument("crawl_id")
@change_flags
@api_options
def set_options(crawl_id: str, target: ApiTarget, as_json: bool, **options: Any) -> None:
    """Change limits, filters or rate of a crawl that has not ended. `none` removes a limit or a filter."""
    change = CrawlChange.read(changed_values(options), strict=False, called=flag_of)
    crawl = run_on(target, lambda api: api.patch(at(CRAWL, crawl_id), change.plain()))
    print_answer(crawl, f"Changed the options of {crawl['id']}; it is {crawl['state']}.", as_json=as_json)


@crawls.command()
@id_argument("crawl_id")
@click.argument("pattern", metavar="PATTERN")
@api_options
def release(crawl_id: str, pattern: str, target: ApiTarget, as_json: bool) -> None:
    """Release a URL pattern from quarantine. Its URLs are crawled, and the pattern is not quarantined again. If the
    crawl has completed, it is queued again to fetch these URLs."""

    async def release_it(api: ApiClient) -> tuple[dict[str, Any], str]:
        released = await api.post(at(f"{CRAWL}/release", crawl_id), {"pattern": pattern})
        return released, (await api.get(at(CRAWL, crawl_id)))["state"]

    released, state = run_on(target, release_it)
    if as_json:
        print_json(released)
    else:
        count = released["released"]
        print(f"{plural(count, 'URL')} of {visible(pattern)} queued again.")
        if state == CrawlState.QUEUED.value:
            here = ApiTarget(target.store).command("crawl", "--resume", crawl_id)
            note(f"A worker continues the crawl; without one, use `{here}`.")


@crawls.command()
@id_argument("crawl_id")
@api_options
def rm(crawl_id: str, target: ApiTarget, as_json: bool) -> None:
    """Remove a crawl that has ended. Its pages, URLs and stored bodies are removed with it."""

    async def remove(api: ApiClient) -> None:
        """Repeat the request until everything is removed."""
        path = at(CRAWL, crawl_id)
        removing = await api.delete(path)
        with suppress(NotFound):  # the crawl was removed between two requests
            while removing is not None:
                note(f"{crawl_id} is being removed: {plural(removing['removed'], 'row')} so far.")
                removing = await api.delete(path)

    run_on(target, remove)
    print_answer({"crawl_id": crawl_id, "removed": True}, f"Removed {crawl_id}.", as_json=as_json)


@crawls.command()
@id_argument("crawl_id")
@api_options
def politeness(crawl_id: str, target: ApiTarget, as_json: bool) -> None:
    """Show the rate, delays and pauses of each host."""
    receipt = run_on(target, lambda api: api.get(at(f"{CRAWL}/politeness", crawl_id)))
    if as_json:
        print_json(receipt)
        return
    robots = "obeys robots.txt" if receipt["obeys_robots"] else "ignores robots.txt"
    connections = plural(receipt["connections_per_host"], "connection")
    note(f"{receipt['user_agent']} {robots}; {connections} per host, {receipt['delay_seconds']:g} s apart.")
    print_table(POLITE, [_host_row(host) for host in receipt["hosts"]], "No host was requested.")
    if receipt["more_hosts"]:
        note("The crawl has more hosts.")


for _command in (add, logs, watch, wait, export, diff, dump, load):
    crawls.add_command(_command)


def _move(target: ApiTarget, crawl_id: str, verb: str, as_json: bool, body: Mapping[str, Any] | None = None) -> None:
    crawl = run_on(target, lambda api: api.post(at(f"{CRAWL}/{verb}", crawl_id), body))
    print_answer(crawl, f"{crawl['id']} is {crawl['state']}.", as_json=as_json)


def _seeds(crawl: dict[str, Any]) -> str:
    seeds, more = crawl["seeds"], len(crawl["seeds"]) - 1 + crawl["config"].get("more_seeds", 0)
    return f"{seeds[0]} and {more:,} more" if more else str(seeds[0])


SHORT_REASONS = {DRAINED_PARTLY: " (partly)", LEFT: " (its process is gone)", UNATTENDED: " (no worker)"}
LISTED: Columns = {
    "id": "id",
    "state": lambda crawl: crawl["state"] + SHORT_REASONS.get(crawl["state_reason"], ""),
    "pages": "pages",
    "responses": lambda crawl: str(in_classes(crawl["responses"], crawl["not_modified"])) or "-",
    "errors": "errors",
    "queued": "queued",
    "created": "created_at",
    "seed": _seeds,
}


def _rows(crawl: dict[str, Any]) -> list[tuple[str, str]]:
    traps = [(trap["state"].capitalize(), _trap(trap)) for trap in crawl.pop("traps")]
    held = [("Held", _held(host)) for host in crawl.pop("held_hosts")]
    failed = [("Failed seed", FailedSeed.of(seed).words()) for seed in crawl.pop("failed_seeds")]
    dead = [FailedSeed.of(seed) for seed in crawl.pop("dead_seeds", ())]
    failed += [("Failed seeds", f"{len(dead):,}: {seeds_in_words(dead)}")] if dead else []
    reason = crawl.pop("state_reason")
    crawl["state"] += f" ({reason_text(reason)})" if reason else ""
    crawl |= {name: in_bytes(crawl[name]) for name in ("bytes", "bytes_saved")}
    crawl["depth_reached"] = found_at(crawl["depth_reached"])
    crawl["responses"] = str(in_classes(crawl["responses"], crawl["not_modified"]))
    options = crawl.pop("config")
    return [*facts_of({**crawl, **options}), *failed, *traps, *held]


def _host_row(host: dict[str, Any]) -> list[object]:
    rate, asked = host["requests_per_second"], host["crawl_delay_asked"]
    clamped = " (clamped)" if host["crawl_delay_clamped"] else ""
    pauses = ", ".join(f"{status}: {count}" for status, count in host["holds"].items())
    return [
        host["origin"],
        host["pages"],
        "-" if rate is None else f"{rate:.2f}",
        f"{host['delay_seconds']:g} s",
        host["robots"] or "-",
        (host["robots_hash"] or "-")[:8],
        "-" if asked is None else f"{asked:g} s{clamped}",
        pauses or "-",
        f"{host['hold_seconds']:g} s" if pauses else "-",
    ]


def _held(host: dict[str, Any]) -> str:
    return f"{host['origin']} until {to_the_second(host['held_until'])} (it returned {host['status']})"


def _trap(trap: dict[str, Any]) -> str:
    return f"{trap['pattern']} ({plural(trap['count'], 'URL')}, such as {trap['sample']})"

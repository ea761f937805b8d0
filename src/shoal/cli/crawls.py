"""`shoal crawls`: list and manage crawls, straight on the store."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import click

from shoal.app import App, opened
from shoal.base.clock import from_micros
from shoal.cli.frame import Group
from shoal.cli.options import OUTPUT_HELP, change_flags, changed_flag_of, changed_values
from shoal.cli.output import note, print_json, print_table
from shoal.cli.summary import REASONS, in_bytes, many, print_line, print_rows
from shoal.cli.watching import quiet
from shoal.crawl.change import CrawlChange
from shoal.crawl.crawls import Seen
from shoal.crawl.failures import FailedUrls
from shoal.crawl.states import CrawlState
from shoal.crawl.traps import Trap
from shoal.hosts.pace import HeldHost
from shoal.settings import load

T = TypeVar("T")

MOST = 1000  # of one list

_store = click.option("--store", metavar="URL", help="The store; beats DATABASE_URL.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group(cls=Group)
def crawls() -> None:
    """List and manage crawls."""


@crawls.command("ls")
@click.option("--state", type=click.Choice([state.value for state in CrawlState]), help="Only crawls in this state.")
@click.option("--limit", type=click.IntRange(1, MOST), default=50, show_default=True, metavar="N", help="At most N.")
@click.option("--after", metavar="ID", help="Go on after this crawl, the last one of the list before.")
@_store
@_json
def list_crawls(state: str | None, limit: int, after: str | None, store: str | None, as_json: bool) -> None:
    """List crawls, the newest first."""

    async def look(app: App) -> list[Seen]:
        number = None if after is None else (await app.crawls.get(after)).crawl.number
        return await app.crawls.newest(after=number, limit=limit + 1, state=state)

    found = _on_store(store, look)
    shown, more = found[:limit], found[limit - 1].crawl.id if len(found) > limit else None
    if as_json:
        print_json({"items": [_answer(seen) for seen in shown], "next": more})
        return
    print_table(["id", "state", "pages", "errors", "queued", "created", "seed"], [_row(seen) for seen in shown])
    if more is not None:
        note(f"There are more: shoal crawls ls --after {more}")


@crawls.command()
@click.argument("crawl_id", metavar="ID")
@_store
@_json
def show(crawl_id: str, store: str | None, as_json: bool) -> None:
    """Show one crawl. Its state, options, what it did so far, patterns in quarantine, hosts that it waits for."""

    async def look(app: App) -> tuple[Seen, list[Trap], list[HeldHost]]:
        crawls = app.crawls
        return await crawls.get(crawl_id), await crawls.traps(crawl_id), await crawls.held_hosts(crawl_id)

    seen, traps, held = _on_store(store, look)
    if as_json:
        told = {"traps": [asdict(trap) for trap in traps], "held_hosts": [host.answer() for host in held]}
        print_json(_answer(seen) | told)
    else:
        rows = [(trap.state.capitalize(), _trap(trap)) for trap in traps]
        print_rows([*_rows(seen), *rows, *[("Held", _held(host)) for host in held]], to_stdout=True)


@crawls.command()
@click.argument("crawl_id", metavar="ID")
@_store
@_json
def pause(crawl_id: str, store: str | None, as_json: bool) -> None:
    """Pause a crawl; its walkers settle what they have first."""
    _move(store, crawl_id, as_json, lambda app: app.crawls.pause(crawl_id))


@crawls.command()
@click.argument("crawl_id", metavar="ID")
@_store
@_json
def resume(crawl_id: str, store: str | None, as_json: bool) -> None:
    """Let workers go on with a paused crawl. `shoal crawl --resume ID` goes on with it in this process."""
    _move(store, crawl_id, as_json, lambda app: app.crawls.resume(crawl_id))


@crawls.command()
@click.argument("crawl_id", metavar="ID")
@_store
@_json
def stop(crawl_id: str, store: str | None, as_json: bool) -> None:
    """Stop a crawl for good."""
    _move(store, crawl_id, as_json, lambda app: app.crawls.stop(crawl_id))


@crawls.command()
@click.argument("crawl_id", metavar="ID")
@click.option("--status", multiple=True, metavar="S", help="URLs with this status: 503, 5xx, or error. Repeatable.")
@click.option("--error", multiple=True, metavar="CODE", help="URLs with this error: dns_error, timeout. Repeatable.")
@click.option("--like", metavar="RE", help="URLs in which this regular expression is found.")
@click.option("--limit", metavar="N", help="At most so many URLs.")
@click.option("--all", "every", is_flag=True, help="All URLs that failed.")
@_store
@_json
def retry(crawl_id: str, every: bool, store: str | None, as_json: bool, **which: Any) -> None:
    """Fetch failed URLs again. Without an option: let workers go on with a crawl that failed."""
    given = {name: value for name, value in which.items() if value}
    if not given and not every:
        _move(store, crawl_id, as_json, lambda app: app.crawls.retry(crawl_id))
        return
    urls = FailedUrls.read(given, strict=False, called=lambda field: f"--{field}")

    async def reopen(app: App) -> tuple[int, Seen]:
        return await app.crawls.retry_these(crawl_id, urls), await app.crawls.get(crawl_id)

    count, seen = _on_store(store, reopen)
    if as_json:
        print_json(_answer(seen) | {"retried": count})
    else:
        print(f"{many(count, 'URL')} of {crawl_id} will be fetched again; it is {seen.crawl.state}.")


@crawls.command("set", epilog="Example: shoal crawls set ID --max-pages 5000 --exclude '/calendar/'")
@click.argument("crawl_id", metavar="ID")
@change_flags
@_store
@_json
def set_options(crawl_id: str, store: str | None, as_json: bool, **options: Any) -> None:
    """Change limits, filters or pace of a crawl that has not ended. `none` takes a limit or a filter away."""
    change = CrawlChange.read(changed_values(options), strict=False, called=changed_flag_of)
    seen = _on_store(store, lambda app: app.crawls.change(crawl_id, change))
    if as_json:
        print_json(_answer(seen))
    else:
        print(f"{seen.crawl.id} is {seen.crawl.state}; its options are changed.")


@crawls.command()
@click.argument("crawl_id", metavar="ID")
@click.argument("pattern", metavar="PATTERN")
@_store
@_json
def release(crawl_id: str, pattern: str, store: str | None, as_json: bool) -> None:
    """Release a pattern from quarantine. Its URLs wait again, and it is not caught a second time."""
    freed = _on_store(store, lambda app: app.crawls.release(crawl_id, pattern))
    if as_json:
        print_json({"crawl_id": crawl_id, "pattern": pattern, "released": freed})
    else:
        print(f"{freed} URLs of {pattern} wait again.")


@crawls.command()
@click.argument("crawl_id", metavar="ID")
@click.option("--output", multiple=True, required=True, metavar="FILE", help=OUTPUT_HELP)
@click.option(
    "--status", multiple=True, metavar="S", help="Only pages with this status: 404, 4xx, or error. Repeatable."
)
@_store
@_json
def export(crawl_id: str, output: Sequence[str], status: Sequence[str], store: str | None, as_json: bool) -> None:
    """Write the pages of a crawl to files. While it goes on: what is there so far."""
    from shoal.export.output import Outputs
    from shoal.export.wanted import Wanted
    from shoal.here.export import export as write

    outputs, wanted = Outputs(output), Wanted(status)
    outputs.check()
    pages = _on_store(store, lambda app: write(app, crawl_id, outputs, wanted))
    told = {"crawl_id": crawl_id, "pages": pages, "outputs": outputs.whereabouts}
    if as_json:
        print_line(told, to_stdout=not outputs.to_stdout)
    else:
        note(f"{many(pages, 'page')} of {crawl_id} written to {', '.join(outputs.whereabouts)}.")


@crawls.command()
@click.argument("crawl_id", metavar="ID")
@_store
@_json
def rm(crawl_id: str, store: str | None, as_json: bool) -> None:
    """Remove a crawl that has ended. Its pages, URLs and kept bodies go with it."""
    _on_store(store, lambda app: app.archivist().erase(crawl_id))
    if as_json:
        print_json({"crawl_id": crawl_id, "removed": True})
    else:
        print(f"{crawl_id} is removed.")


def _move(store: str | None, crawl_id: str, as_json: bool, verb: Callable[[App], Awaitable[CrawlState]]) -> None:
    async def move(app: App) -> Seen:
        await verb(app)
        return await app.crawls.get(crawl_id)

    seen = _on_store(store, move)
    if as_json:
        print_json(_answer(seen))
    else:
        print(f"{seen.crawl.id} is {seen.crawl.state}.")


def _on_store(store: str | None, work: Callable[[App], Awaitable[T]]) -> T:
    async def run() -> T:
        settings = load({"DATABASE_URL": store}).settings
        async with opened(settings, quiet(settings), existing=True) as app:
            return await work(app)

    return asyncio.run(run())


def _answer(seen: Seen) -> dict[str, Any]:
    return seen.answer()


def _row(seen: Seen) -> list[object]:
    told = _answer(seen)
    created = told["created_at"].isoformat(timespec="seconds").replace("+00:00", "Z")
    return [told["id"], told["state"], told["pages"], told["errors"], told["queued"], created, _seeds(told["seeds"])]


def _seeds(seeds: list[str]) -> str:
    return seeds[0] if len(seeds) == 1 else f"{seeds[0]} and {len(seeds) - 1} more"


def _rows(seen: Seen) -> list[tuple[str, str]]:
    told = _answer(seen)
    reason = told.pop("state_reason")
    told["state"] += f" ({REASONS.get(reason, reason)})" if reason else ""
    told["bytes"] = in_bytes(told["bytes"])
    told["seeds"] = ", ".join(told["seeds"])
    options = told.pop("config")
    rows = [(name.replace("_", " ").capitalize(), _shown(value)) for name, value in {**told, **options}.items()]
    return [(name, value) for name, value in rows if value]


def _shown(value: Any) -> str:
    """A value for people; empty if there is nothing to tell."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _held(host: HeldHost) -> str:
    until = from_micros(host.until).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{host.origin} until {until} (it answered {host.status})"


def _trap(trap: Trap) -> str:
    return f"{trap.pattern} ({trap.count} URLs, such as {trap.sample})"

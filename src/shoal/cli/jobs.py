"""`shoal jobs`: what machines work on: list, replay, cancel, purge, limit, straight on the store. Page jobs, one by one
or in groups, are `groups.py`'s."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

import click

from shoal.app import App, opened
from shoal.base.errors import InvalidInput, UsageError
from shoal.base.reading import read_duration
from shoal.cli import groups
from shoal.cli.frame import Group
from shoal.cli.output import note, print_json, print_table
from shoal.cli.summary import many, print_rows
from shoal.cli.watching import quiet
from shoal.queue.book import JobFilter, Quota
from shoal.queue.job import Grant, Job
from shoal.queue.jobs import JobPage
from shoal.queue.states import JobState
from shoal.settings import load

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])

MOST = 1000  # of one list
PAGES = 200  # of a list that are looked through for what was asked for

_store = click.option("--store", metavar="URL", help="The store; beats DATABASE_URL.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_state = click.option(
    "--state", type=click.Choice([state.value for state in JobState]), help="Only jobs in this state."
)
_kind = click.option("--kind", metavar="KIND", help="Only jobs of this kind: page, crawl, analysis.")
_run = click.option("--run", "run_id", metavar="ID", help="Only jobs of this crawl, analysis or group.")


@click.group(cls=Group)
def jobs() -> None:
    """Make page jobs, and see what they gave; list and manage jobs, what workers lease."""


for command in groups.COMMANDS:
    jobs.add_command(command)


@jobs.command("ls", epilog="Example: shoal jobs ls --dead")
@_state
@_kind
@_run
@click.option("--lane", metavar="LANE", help="Only jobs of this lane.")
@click.option("--dead", is_flag=True, help="Only dead letters: jobs that failed or expired.")
@click.option("--limit", type=click.IntRange(1, MOST), default=50, show_default=True, metavar="N", help="At most N.")
@click.option("--after", metavar="ID", help="Go on after this job, the last one of the list before.")
@_store
@_json
def list_jobs(limit: int, after: str | None, store: str | None, as_json: bool, **which: Any) -> None:
    """List jobs, the newest first."""
    wanted = _filter(**which)
    page = _on_store(store, lambda app: _page(app, wanted, after, limit))
    if as_json:
        print_json({"items": [job.answer() for job in page.items], "next": page.next})
        return
    columns = ["id", "kind", "state", "attempts", "priority", "created", "about"]
    print_table(columns, [_row(job) for job in page.items])
    if page.next is not None:
        note(f"There are more: shoal jobs ls --after {page.next}")


@jobs.command()
@click.argument("job_id", metavar="ID")
@_store
@_json
def show(job_id: str, store: str | None, as_json: bool) -> None:
    """Show one job and its history: who had it, when, and how that ended."""

    async def look(app: App) -> tuple[Job, list[Grant]]:
        return await app.jobs.get(job_id), await app.jobs.history(job_id)

    job, grants = _on_store(store, look)
    if as_json:
        print_json(job.answer() | {"history": [grant.answer() for grant in grants]})
    else:
        rows = [(name.replace("_", " ").capitalize(), _shown(value)) for name, value in job.answer().items()]
        print_rows([row for row in rows if row[1]] + [("Grant", _grant(grant)) for grant in grants], to_stdout=True)


@jobs.command(epilog="Example: shoal jobs retry --dead --kind page")
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--dead", is_flag=True, help="All dead letters that match, in place of one job.")
@_kind
@_run
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N of them.")
@_store
@_json
def retry(
    job_id: str | None,
    dead: bool,
    kind: str | None,
    run_id: str | None,
    limit: int | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Replay dead letters: they wait again, with all their attempts."""
    _check_choice(job_id, dead)
    if job_id is not None:
        _told(_on_store(store, lambda app: app.jobs.retry(job_id)), as_json)
        return
    wanted = JobFilter(kind=kind, run_id=run_id, dead=True)
    count = _on_store(store, lambda app: app.jobs.retry_dead(wanted, limit))
    if as_json:
        print_json({"retried": count})
    else:
        print(f"{many(count, 'job')} will be tried again.")


@jobs.command()
@click.argument("job_id", metavar="ID")
@_store
@_json
def cancel(job_id: str, store: str | None, as_json: bool) -> None:
    """Cancel a job. What somebody still makes of it is refused."""
    _told(_on_store(store, lambda app: app.jobs.cancel(job_id)), as_json)


@jobs.command(epilog="Example: shoal jobs purge --dead --older-than 7d")
@click.option("--dead", is_flag=True, help="Dead letters: jobs that failed or expired.")
@_state
@_kind
@click.option("--older-than", metavar="D", help="Only what ended so long ago, such as 7d.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="About N of them.")
@_store
@_json
def purge(
    dead: bool,
    state: str | None,
    kind: str | None,
    older_than: str | None,
    limit: int | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Remove jobs that have ended, with their history and results. Those of a crawl or analysis go with it."""
    if not dead and state is None:
        raise UsageError("purge needs to know what", "give --dead, or --state done, failed, expired or cancelled")
    wanted = JobFilter(JobState(state) if state else None, kind, dead=True if dead else None)
    if not wanted.ended_states:
        raise InvalidInput("--state", f"cannot be {state}", "only jobs that have ended can be purged")
    count = _on_store(store, lambda app: app.jobs.purge(wanted, _duration(older_than), limit))
    if as_json:
        print_json({"purged": count})
    else:
        print(f"{many(count, 'job')} removed.")


@jobs.group(cls=Group)
def quota() -> None:
    """Limit how many jobs of a project, a label or a key run at once."""


@quota.command("set", epilog="Example: shoal jobs quota set project:acme 5")
@click.argument("scope", metavar="SCOPE")
@click.argument("most", metavar="N", type=int)
@_store
@_json
def set_quota(scope: str, most: int, store: str | None, as_json: bool) -> None:
    """Let at most N jobs of SCOPE run at once. SCOPE is project:NAME, label:NAME=VALUE or key:ANYTHING."""
    found = _on_store(store, lambda app: app.jobs.set_quota(scope, most))
    if as_json:
        print_json(found.answer())
    else:
        print(f"At most {most} of {scope} run at once; now {found.locked} do.")


@quota.command("ls")
@_store
@_json
def list_quotas(store: str | None, as_json: bool) -> None:
    """List quotas, with how many jobs run and how many wait for room."""
    found: list[Quota] = _on_store(store, lambda app: app.jobs.quotas())
    if as_json:
        print_json({"items": [one.answer() for one in found], "next": None})
    else:
        print_table(["scope", "most", "run", "wait"], [[one.scope, one.most, one.locked, one.parked] for one in found])


@quota.command("rm")
@click.argument("scope", metavar="SCOPE")
@_store
@_json
def remove_quota(scope: str, store: str | None, as_json: bool) -> None:
    """Take a quota away."""
    _on_store(store, lambda app: app.jobs.remove_quota(scope))
    if as_json:
        print_json({"scope": scope, "removed": True})
    else:
        print(f"{scope} is not limited any more.")


def _filter(state: str | None, kind: str | None, run_id: str | None, lane: str | None, dead: bool) -> JobFilter:
    return JobFilter(JobState(state) if state else None, kind, run_id, lane, dead=True if dead else None)


async def _page(app: App, which: JobFilter, before: str | None, limit: int) -> JobPage:
    """At most so many jobs, from as many pages as that takes."""
    items: list[Job] = []
    for _ in range(PAGES):
        page = await app.jobs.newest(which, before=before, limit=limit - len(items))
        items, before = items + page.items, page.next
        if before is None or len(items) == limit:
            break
    return JobPage(items, before)


def _check_choice(job_id: str | None, dead: bool) -> None:
    if (job_id is not None) == dead:
        raise UsageError("retry takes one job, or --dead for all that match", "give one of them")


def _duration(text: str | None) -> timedelta:
    if text is None:
        return timedelta(0)
    try:
        return read_duration(text)
    except ValueError as error:
        raise InvalidInput("--older-than", f'is "{text}", which {error}', "write it as 30m, 12h or 7d") from None


def _on_store(store: str | None, work: Callable[[App], Awaitable[T]]) -> T:
    async def run() -> T:
        settings = load({"DATABASE_URL": store}).settings
        async with opened(settings, quiet(settings), existing=True) as app:
            return await work(app)

    return asyncio.run(run())


def _told(job: Job, as_json: bool) -> None:
    if as_json:
        print_json(job.answer())
    else:
        print(f"{job.id} is {job.state}.")


def _row(job: Job) -> list[object]:
    told = job.answer()
    state = f"{job.state} ({job.state_reason})" if job.state_reason else job.state.value
    attempts = f"{job.attempts}/{job.max_attempts}"
    return [job.id, job.kind, state, attempts, job.priority, _shown(told["created_at"]), job.url or job.run_id or ""]


def _grant(grant: Grant) -> str:
    told = grant.answer()
    where = f" (process {grant.pid} of {grant.node})" if grant.pid is not None else ""
    end = f"{told['ended']} {_shown(told['ended_at'])}" if grant.ended is not None else "still has it"
    error = f": {grant.error}" if grant.error else ""
    return f"{grant.epoch}. {grant.holder}{where} {_shown(told['granted_at'])}, {end}{error}"


def _shown(value: Any) -> str:
    """A value for people; empty if there is nothing to tell."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if hasattr(value, "isoformat"):
        return str(value.isoformat(timespec="seconds")).replace("+00:00", "Z")
    return "" if value is None else str(value)

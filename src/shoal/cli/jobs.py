"""`shoal jobs`: list, retry, cancel and purge jobs, and set quotas. Page jobs and their groups are in
`job_groups.py`."""

from typing import Any

import click

from shoal.base.errors import InvalidInput, UsageError
from shoal.base.text import plural
from shoal.cli import job_groups
from shoal.cli.api_client import ApiTarget, at, run_on
from shoal.cli.completion import id_argument
from shoal.cli.options import DURATION
from shoal.cli.output import (
    Columns,
    add_show,
    api_options,
    cursor_option,
    facts_of,
    limit_option,
    print_answer,
    print_list,
    state_option,
    to_the_second,
)
from shoal.cli.root import CommandGroup
from shoal.queue.job import attempts_made
from shoal.queue.reasons import reason_text
from shoal.queue.states import TERMINAL, JobState

JOBS, QUOTAS = "/api/v1/jobs", "/api/v1/quotas"
MOST = 1000  # per list

_state = state_option(JobState, "Select jobs in this state.")
_kind = click.option("--kind", metavar="KIND", help="Select jobs of this kind: page, crawl or analysis.")
_run = click.option("--run", "run_id", metavar="ID", help="Select jobs of this crawl, analysis or group.")


@click.group(cls=CommandGroup)
def jobs() -> None:
    """Create page jobs and read their results; list and manage all jobs."""


for command in job_groups.COMMANDS:
    jobs.add_command(command)


@jobs.command("ls", epilog="Example: shoal jobs ls --dead")
@_state
@_kind
@_run
@click.option("--lane", metavar="LANE", help="Select jobs of this lane.")
@click.option("--dead", is_flag=True, help="Select dead letters: jobs that failed or expired.")
@limit_option()
@cursor_option
@api_options
def list_jobs(limit: int, cursor: str | None, dead: bool, target: ApiTarget, as_json: bool, **which: Any) -> None:
    """List jobs, newest first."""
    which["dead"] = "true" if dead else None
    items, more = run_on(target, lambda api: api.list(JOBS, limit, cursor=cursor, **which))
    hint = f"More jobs: `{target.command('jobs', 'ls', '--cursor', more or '')}`"
    print_list(items, more, LISTED, as_json=as_json, empty="No such jobs.", hint=hint)


def _rows(job: dict[str, Any]) -> list[tuple[str, str]]:
    grants = [("Grant", _grant(grant)) for grant in job.pop("history")]
    return facts_of(job | {"state_reason": reason_text(job["state_reason"])}) + grants


add_show(jobs, f"{JOBS}/{{}}", id_argument("job_id"), "Show a job and the history of its leases.", _rows)


@jobs.command(epilog="Example: shoal jobs retry --dead --kind page")
@id_argument("job_id", "[ID]", required=False)
@click.option("--dead", is_flag=True, help="Retry all dead letters that match, instead of one job.")
@_kind
@_run
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Retry at most N jobs.")
@api_options
def retry(
    job_id: str | None,
    dead: bool,
    kind: str | None,
    run_id: str | None,
    limit: int | None,
    target: ApiTarget,
    as_json: bool,
) -> None:
    """Retry a dead letter, or all dead letters that match. Attempts are counted from zero again."""
    if (job_id is not None) == dead:
        raise UsageError("retry needs either a job id or --dead", "pass one of them")
    if job_id is not None:
        _move(target, job_id, "retry", as_json)
        return
    answer = run_on(target, lambda api: api.post(f"{JOBS}/retry", _given(kind=kind, run_id=run_id, limit=limit)))
    print_answer(answer, f"{plural(answer['retried'], 'job')} will be retried.", as_json=as_json)


@jobs.command()
@id_argument("job_id")
@api_options
def cancel(job_id: str, target: ApiTarget, as_json: bool) -> None:
    """Cancel a job. A result that arrives later is rejected."""
    _move(target, job_id, "cancel", as_json)


@jobs.command(epilog="Example: shoal jobs purge --dead --older-than 7d")
@click.option("--dead", is_flag=True, help="Remove dead letters: jobs that failed or expired.")
@_state
@_kind
@click.option(
    "--older-than", type=DURATION, metavar="D", help="Remove only jobs that ended longer ago than this, such as 7d."
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Remove at most about N jobs.")
@api_options
def purge(
    dead: bool,
    state: str | None,
    kind: str | None,
    older_than: float | None,
    limit: int | None,
    target: ApiTarget,
    as_json: bool,
) -> None:
    """Remove jobs that have ended, with their history and results. Jobs of a crawl or an analysis are not purged: they
    are removed together with it."""
    if not dead and state is None:
        raise UsageError("Nothing selected to purge", "give --dead, or --state done, failed, expired or cancelled")
    if state is not None and JobState(state) not in TERMINAL:
        raise InvalidInput("--state", f"cannot be {state}", "only jobs that have ended can be purged")
    age = None if older_than is None else int(older_than)
    which = _given(state=state, kind=kind, older_than_seconds=age, limit=limit) | {"dead": dead}
    answer = run_on(target, lambda api: api.post(f"{JOBS}/purge", which))
    print_answer(answer, f"{plural(answer['purged'], 'job')} removed.", as_json=as_json)


@jobs.group(cls=CommandGroup)
def quota() -> None:
    """Limit concurrent jobs of a project, label or key."""


@quota.command("set", epilog="Example: shoal jobs quota set project:acme 5")
@click.argument("key", metavar="KEY")
@click.argument("limit", metavar="N", type=int)
@api_options
def set_quota(key: str, limit: int, target: ApiTarget, as_json: bool) -> None:
    """Limit KEY to N running jobs. KEY is a quota key: project:NAME, label:NAME=VALUE or key:ANYTHING."""
    found = run_on(target, lambda api: api.put(at(f"{QUOTAS}/{{}}", key), {"limit": limit}), existing=False)
    print_answer(found, f"{key} is limited to {limit} running jobs; {found['locked']} running now.", as_json=as_json)


@quota.command("ls")
@api_options
def list_quotas(target: ApiTarget, as_json: bool) -> None:
    """List quotas with the number of running and parked jobs."""
    items, more = run_on(target, lambda api: api.list(QUOTAS, MOST))
    columns: Columns = {"scope": "scope", "limit": "limit", "run": "locked", "wait": "parked"}
    print_list(items, more, columns, as_json=as_json, empty="No quotas.", hint="Not all quotas are shown.")


@quota.command("rm")
@click.argument("key", metavar="KEY")
@api_options
def remove_quota(key: str, target: ApiTarget, as_json: bool) -> None:
    """Remove a quota."""
    run_on(target, lambda api: api.delete(at(f"{QUOTAS}/{{}}", key)))
    print_answer({"scope": key, "removed": True}, f"Removed the quota of {key}.", as_json=as_json)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _move(target: ApiTarget, job_id: str, verb: str, as_json: bool) -> None:
    job = run_on(target, lambda api: api.post(at(f"{JOBS}/{{}}/{verb}", job_id)))
    print_answer(job, f"{job['id']} is {job['state']}.", as_json=as_json)


def _state_of(job: dict[str, Any]) -> str:
    reason = reason_text(job["state_reason"])
    return f"{job['state']} ({reason})" if reason else job["state"]


def _attempts_of(job: Any) -> str:
    made = attempts_made(JobState(job["state"]), job["attempts"], job["lease_epoch"])
    return f"{made}/{job['max_attempts']}"


LISTED: Columns = {
    "id": "id",
    "kind": "kind",
    "state": _state_of,
    "attempts": _attempts_of,
    "priority": "priority",
    "created": "created_at",
    "about": lambda job: job["url"] or job["run_id"],
}


def _grant(grant: dict[str, Any]) -> str:
    where = f" (process {grant['pid']} on {grant['node']})" if grant["pid"] is not None else ""
    end = f"{grant['ended']} {to_the_second(grant['ended_at'])}" if grant["ended"] is not None else "still running"
    error = f": {grant['error']}" if grant["error"] else ""
    return f"{grant['epoch']}. {grant['holder']}{where} {to_the_second(grant['granted_at'])}, {end}{error}"

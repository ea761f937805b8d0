"""`shoal explain`: explain the state of a URL or a job, through a server or directly on the store."""

from typing import Any

import click

from shoal.base.errors import InvalidInput
from shoal.base.text import shorten
from shoal.base.url import UrlRefusal
from shoal.cli.api_client import ApiTarget, at, reaching, run_on
from shoal.cli.output import facts_of, print_json
from shoal.cli.root import CommandGroup
from shoal.cli.summary import print_rows
from shoal.crawl.scope.seeds import SEED_FIX


@click.group(cls=CommandGroup)
def explain() -> None:
    """Explain why a URL or a job waits, was skipped or failed."""


@explain.command()
@click.argument("crawl_id", metavar="CRAWL")
@click.argument("url", metavar="URL")
@reaching
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def url(crawl_id: str, url: str, reach: ApiTarget, as_json: bool) -> None:
    """Explain what happened to URL in CRAWL, and why."""
    said = run_on(reach, lambda api: api.get(at("/api/v1/crawls/{}/explain", crawl_id), url=url))
    if said["reason"] == UrlRefusal.INVALID_URL.code:
        raise InvalidInput("URL", f"{shorten(url)!r} {UrlRefusal.INVALID_URL.problem}", SEED_FIX)
    if as_json:
        print_json(said)
    else:
        print_rows(_rows(said), to_stdout=True)


@explain.command()
@click.argument("job_id", metavar="ID")
@reaching
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def job(job_id: str, reach: ApiTarget, as_json: bool) -> None:
    """Explain why a job waits, who runs it, or why it ended."""
    said = run_on(reach, lambda api: api.get(at("/api/v1/jobs/{}/explain", job_id)))
    if as_json:
        print_json(said)
        return
    facts = facts_of(said, without=("job_id", "state", "reason", "explanation"))
    state = said["state"] if said["reason"] == said["state"] else f"{said['state']} ({said['reason']})"
    print_rows([("Job", said["job_id"]), ("State", state), ("Why", said["explanation"]), *facts], to_stdout=True)


def _rows(said: dict[str, Any]) -> list[tuple[str, str]]:
    reason = f" ({said['reason']})" if said["reason"] else ""
    state = said["state"].replace("_", " ") + reason
    facts = facts_of(said, without=("crawl_id", "url", "state", "reason", "explanation"))
    return [("URL", said["url"]), ("State", state), ("Why", said["explanation"]), *facts]

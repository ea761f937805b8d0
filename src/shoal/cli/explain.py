"""`shoal explain`: explain the state of a URL, a job or a node, through a server or directly on the store."""

from typing import Any

import click

from shoal.base.errors import InvalidInput
from shoal.base.text import shorten
from shoal.base.url import UrlRefusal
from shoal.cli.api_client import ApiTarget, at, run_on, with_api_target
from shoal.cli.output import facts_of, json_option, print_json
from shoal.cli.root import CommandGroup
from shoal.cli.summary import print_rows
from shoal.crawl.scope.seeds import SEED_FIX


@click.group(cls=CommandGroup)
def explain() -> None:
    """Explain why a URL or a job waits, was skipped or failed, and why a node gets jobs."""


@explain.command()
@click.argument("crawl_id", metavar="CRAWL")
@click.argument("url", metavar="URL")
@with_api_target
@json_option
def url(crawl_id: str, url: str, target: ApiTarget, as_json: bool) -> None:
    """Explain what happened to URL in CRAWL, and why."""
    answer = run_on(target, lambda api: api.get(at("/api/v1/crawls/{}/explain", crawl_id), url=url))
    if answer["reason"] == UrlRefusal.INVALID_URL.code:
        raise InvalidInput("URL", f"{shorten(url)!r} {UrlRefusal.INVALID_URL.problem}", SEED_FIX)
    if as_json:
        print_json(answer)
    else:
        print_rows(_rows(answer), to_stdout=True)


@explain.command()
@click.argument("job_id", metavar="ID")
@with_api_target
@json_option
def job(job_id: str, target: ApiTarget, as_json: bool) -> None:
    """Explain why a job waits, who runs it, or why it ended."""
    answer = run_on(target, lambda api: api.get(at("/api/v1/jobs/{}/explain", job_id)))
    if as_json:
        print_json(answer)
        return
    facts = facts_of(answer, without=("job_id", "state", "reason", "explanation"))
    state = answer["state"] if answer["reason"] == answer["state"] else f"{answer['state']} ({answer['reason']})"
    print_rows([("Job", answer["job_id"]), ("State", state), ("Why", answer["explanation"]), *facts], to_stdout=True)


@explain.command()
@click.argument("node_id", metavar="ID")
@with_api_target
@json_option
def node(node_id: str, target: ApiTarget, as_json: bool) -> None:
    """Explain why a node gets jobs, or why it gets none."""
    answer = run_on(target, lambda api: api.get(at("/api/v1/nodes/{}/explain", node_id)))
    if as_json:
        print_json(answer)
        return
    facts = facts_of(answer, without=("node_id", "state", "reason", "explanation"))
    print_rows(
        [("Node", answer["node_id"]), ("State", answer["state"]), ("Why", answer["explanation"]), *facts],
        to_stdout=True,
    )


def _rows(answer: dict[str, Any]) -> list[tuple[str, str]]:
    reason = f" ({answer['reason']})" if answer["reason"] else ""
    state = answer["state"].replace("_", " ") + reason
    facts = facts_of(answer, without=("crawl_id", "url", "state", "reason", "explanation"))
    return [("URL", answer["url"]), ("State", state), ("Why", answer["explanation"]), *facts]

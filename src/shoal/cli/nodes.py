"""`shoal nodes`: list the nodes of the fleet, show a node, and send commands to nodes."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeVar

import click

from shoal.base.clock import SystemClock
from shoal.base.errors import RESPONSES, NotFound, UsageError, WaitTimedOut
from shoal.base.text import plural
from shoal.cli.api_client import ApiClient, ApiTarget, at, run_on
from shoal.cli.completion import id_argument
from shoal.cli.options import wait_option
from shoal.cli.output import (
    Columns,
    add_show,
    api_options,
    cursor_option,
    facts_of,
    limit_option,
    print_json,
    print_list,
    print_table,
    state_option,
    to_the_second,
)
from shoal.cli.root import CommandGroup
from shoal.fleet.states import COMMAND_LABELS, COMMANDS_ENDED, CommandState, NodeState
from shoal.observe.logs import note

C = TypeVar("C", bound=Callable[..., Any])
NODES = "/api/v1/nodes"
NODE = f"{NODES}/{{}}"
MOST = 10_000  # per list
POLL_SECONDS = 0.25

_reason = click.option(
    "--reason", metavar="TEXT", default="", help="Reason, shown in logs and by `shoal explain node`."
)


@click.group(cls=CommandGroup)
def nodes() -> None:
    """List nodes, and pause, drain or resize them."""


@nodes.command("ls")
@state_option(NodeState, "Show only nodes in this state.")
@limit_option(200, MOST)
@cursor_option
@api_options
def list_nodes(state: str | None, limit: int, cursor: str | None, target: ApiTarget, as_json: bool) -> None:
    """List nodes with their health scores."""
    items, more = run_on(target, lambda api: api.list(NODES, limit, state=state, cursor=cursor))
    empty = "No nodes. A worker with GRPC_ANALYZER_ADDR connects to a controller with GRPC_ENABLED=true."
    print_list(items, more, LISTED, as_json=as_json, empty=empty)


def _rows(node: dict[str, Any]) -> list[tuple[str, str]]:
    leases = [f"{one['job_id']} ({one['epoch']})" for one in node["held_leases"]]
    commands = [f"{one['command']} {one['state']} {to_the_second(one['created_at'])}" for one in node["commands"]]
    desired = {name: value for name, value in node["wish"].items() if value not in ("", None, "connected")}
    facts = facts_of(node | {"desired": desired}, without=("wish", "held_leases", "commands"))
    return [*facts, ("Leases", ", ".join(leases)), ("Commands", ", ".join(commands))]


add_show(nodes, NODE, id_argument("node_id"), "Show a node: its health, its work and its newest commands.", _rows)


def sent_to_nodes(command: C) -> C:
    """Add the argument and the flags that all node commands have, and send the request that the command returns."""

    @id_argument("node_id", "[ID]", required=False)
    @click.option("--all", "all_nodes", is_flag=True, help="Send the command to every node that is not lost.")
    @wait_option(
        "Wait this long for the acknowledgement; 0 does not wait.", bare="15s", default="15s", show_default=True
    )
    @api_options
    @wraps(command)
    def sent(
        node_id: str | None, all_nodes: bool, wait_seconds: float, target: ApiTarget, as_json: bool, **values: Any
    ) -> Any:
        if (node_id is None) != all_nodes:
            raise UsageError("Give either the id of a node or --all", "list the nodes with `shoal nodes ls`")
        return _send(command(**values), node_id, wait_seconds, target, as_json)

    return sent  # type: ignore[return-value]


@nodes.command()
@sent_to_nodes
@_reason
def pause(reason: str) -> dict[str, Any]:
    """Stop leasing jobs on a node; the jobs it holds continue. The pause also applies after a restart."""
    return {"command": "pause", "reason": reason}


@nodes.command()
@sent_to_nodes
def resume() -> dict[str, Any]:
    """Resume leasing jobs after a pause or a drain."""
    return {"command": "resume"}


@nodes.command()
@sent_to_nodes
@_reason
def drain(reason: str) -> dict[str, Any]:
    """Finish page jobs, requeue other jobs, and lease no more. The drain also applies after a restart."""
    return {"command": "drain", "reason": reason}


@nodes.command("restart-browser")
@sent_to_nodes
@_reason
def restart_browser(reason: str) -> dict[str, Any]:
    """Requeue jobs in the browsers, then restart the browsers."""
    return {"command": "restart_browser", "reason": reason}


@nodes.command("set", epilog="Example: shoal nodes set crawler-1 --max-concurrency 4 --rate-limit 20")
@sent_to_nodes
@click.option("--max-concurrency", type=int, metavar="N", help="Run N crawls and analyses at the same time.")
@click.option("--page-slots", type=int, metavar="N", help="Run N page jobs at the same time.")
@click.option("--rate-limit", type=float, metavar="N", help="Fetch at most N pages per second.")
@click.option("--no-rate-limit", "unlimited_rate", is_flag=True, help="Remove the rate limit.")
def set_limits(unlimited_rate: bool, **limits: float | None) -> dict[str, Any]:
    """Change the limits of a node without a restart. The new limits also apply after a restart."""
    body: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    body |= {"unlimited_rate": True} if unlimited_rate else {}
    if not body:
        raise UsageError("Nothing to set", "give --max-concurrency, --page-slots, --rate-limit or --no-rate-limit")
    return {"command": "config_update", **body}


def _send(body: dict[str, Any], node_id: str | None, wait_seconds: float, target: ApiTarget, as_json: bool) -> int:
    """Send a command to a node, or to all nodes (None). Wait for the acknowledgement, print it and return the exit
    code."""

    async def work(api: ApiClient) -> list[dict[str, Any]]:
        if node_id is None:
            commands: list[dict[str, Any]] = (await api.post(f"{NODES}/commands", body))["items"]
        else:
            commands = [await api.post(at(f"{NODE}/commands", node_id), body)]
        return await _ended(api, commands, wait_seconds)

    commands = run_on(target, work)
    refused = [one for one in commands if one["state"] in ("failed", "unsupported")]
    waiting = [one for one in commands if one["state"] not in COMMANDS_ENDED] if wait_seconds else []
    if as_json:
        print_json({"items": commands} if node_id is None else commands[0])
    else:
        print_table(["node", "command", "state", "detail"], [_told(one) for one in commands], "No nodes.")
        if refused:
            note(f"{plural(len(refused), 'node')} did not apply the command.")
        if waiting:
            silent, seconds = plural(len(waiting), "node"), wait_seconds
            note(f"{silent} did not acknowledge it within {seconds:g} s; it stays pending.")
    if refused:
        return 1
    return RESPONSES[WaitTimedOut].exit_code if waiting else 0


async def _ended(api: ApiClient, commands: list[dict[str, Any]], wait_seconds: float) -> list[dict[str, Any]]:
    """Wait until every command has ended, up to the time limit; return their states."""
    clock = SystemClock()
    deadline = clock.monotonic() + wait_seconds
    while any(one["state"] not in COMMANDS_ENDED for one in commands) and clock.monotonic() < deadline:
        await clock.sleep(POLL_SECONDS)
        commands = [one if one["state"] in COMMANDS_ENDED else await _newer(api, one) for one in commands]
    return commands


async def _newer(api: ApiClient, command: dict[str, Any]) -> dict[str, Any]:
    try:
        newer: dict[str, Any] = await api.get(at(f"{NODE}/commands/{{}}", command["node_id"], command["id"]))
    except NotFound:  # the node was removed together with its commands
        return command | {"state": "expired"}
    return newer


def _told(command: dict[str, Any]) -> list[object]:
    name = command["command"].replace("_", "-")
    label = COMMAND_LABELS[CommandState(command["state"])]
    return [command["node_id"], name, label[0].lower() + label[1:], command["detail"]]


def _reported(words: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
    """Return a column with a value that nodes report. It is empty for a lost node, whose last report is outdated."""
    return lambda node: "-" if node["state"] == "lost" else words(node)


def _state(node: dict[str, Any]) -> str:
    is_known = node["controller"] or node["state"] == "lost"
    return str(node["state"]) if is_known else f"{node['state']} (no session)"


def _heartbeat(node: dict[str, Any]) -> str:
    age = SystemClock().now() - datetime.fromisoformat(node["heartbeat_at"]).astimezone(UTC)
    return f"{max(0.0, age.total_seconds()):.0f} s ago"


LISTED: Columns = {
    "id": "id",
    "state": _state,
    "score": _reported(lambda node: f"{node['health_score']:.2f}"),
    "runs": _reported(lambda node: f"{node['active_tasks']}/{node['max_concurrency']}"),
    "pages": _reported(lambda node: f"{node['active_pages']}/{node['page_slots']}"),
    "lane": "queue_depth",
    "success": _reported(lambda node: f"{node['success_rate']:.0%}"),
    "latency": _reported(lambda node: f"{node['avg_latency_seconds']:.1f} s"),
    "heartbeat": _heartbeat,
    "version": "version",
}

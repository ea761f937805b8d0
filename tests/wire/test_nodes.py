"""Nodes over HTTP: the fleet as every controller sees it, commands, and why a node gets jobs."""

from typing import Any

import pytest

from shoal.base.ids import NodeId
from shoal.fleet.node import CommandAck, Heartbeat, NodeStatus
from shoal.fleet.states import CommandState, NodeState
from tests.support.api import ServedApi
from tests.support.nodes import EVERY, register

NODES = "/api/v1/nodes"


async def test_nodes_are_listed_by_id_with_their_scores_and_the_parts(api: ServedApi) -> None:
    await register(api.app.fleet.nodes, "b", success_rate=0.5, avg_latency_seconds=150.0, active_tasks=1)
    await register(api.app.fleet.nodes, "a")
    status, answer = await api.ask(NODES)
    assert status == 200
    first, second = answer["items"]
    assert (first["id"], first["health_score"], first["state"]) == ("a", 1.0, "connected")
    assert second["health"] == {"success": 0.5, "load": 0.5, "latency": 0.5, "depth": 1.0}
    assert second["health_score"] == pytest.approx(0.4 * 0.5 + 0.3 * 0.5 + 0.2 * 0.5 + 0.1)


async def test_a_long_list_has_pages_and_can_be_filtered_by_state(api: ServedApi) -> None:
    for number in range(3):
        await register(
            api.app.fleet.nodes, f"n{number}", state=NodeState.PAUSED if number == 1 else NodeState.CONNECTED
        )
    _, page = await api.ask(f"{NODES}?limit=2")
    _, rest = await api.ask(f"{NODES}?limit=2&cursor={page['next']}")
    assert [one["id"] for one in page["items"] + rest["items"]] == ["n0", "n1", "n2"]
    assert rest["next"] is None
    _, paused = await api.ask(f"{NODES}?state=paused")
    assert [one["id"] for one in paused["items"]] == ["n1"]


async def test_a_command_is_stored_shown_and_ends_with_the_acknowledgement(api: ServedApi) -> None:
    await register(api.app.fleet.nodes, "a")
    body = {"command": "config_update", "max_concurrency": 4, "rate_limit": 2.5}
    status, made = await api.ask(f"{NODES}/a/commands", body)
    assert (status, made["state"], made["created_by"]) == (202, "waiting", "local")
    await api.app.fleet.nodes.acknowledge(NodeId("a"), [CommandAck(made["id"], CommandState.APPLIED)])
    _, shown = await api.ask(f"{NODES}/a/commands/{made['id']}")
    assert (shown["state"], shown["max_concurrency"], shown["rate_limit"]) == ("applied", 4, 2.5)
    _, node = await api.ask(f"{NODES}/a")
    assert [one["id"] for one in node["commands"]] == [made["id"]]
    assert (node["desired"]["max_concurrency"], node["desired"]["rate_limit"]) == (4, 2.5)
    assert node["wish"] == node["desired"], "the older name"


async def test_a_broadcast_gives_each_node_a_command_of_its_own(api: ServedApi) -> None:
    for name in ("a", "b"):
        await register(api.app.fleet.nodes, name)
    status, answer = await api.ask(f"{NODES}/commands", {"command": "pause", "reason": "upgrade"})
    assert status == 202
    assert [(one["node_id"], one["command"], one["reason"]) for one in answer["items"]] == [
        ("a", "pause", "upgrade"),
        ("b", "pause", "upgrade"),
    ]
    _, log = await api.ask("/api/v1/audit-log")
    assert log["items"][0]["act"] == "node.commands"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"command": "config_update", "max_concurrency": 0}, "max_concurrency"),
        ({"command": "config_update", "max_concurrency": -1}, "max_concurrency"),
        ({"command": "config_update", "page_slots": 0}, "page_slots"),
        ({"command": "config_update", "rate_limit": 0}, "rate_limit"),
        ({"command": "config_update", "rate_limit": -1}, "rate_limit"),
        ({"command": "config_update"}, "command"),
        ({"command": "pause", "max_concurrency": 2}, "command"),
        ({"command": "reboot"}, "command"),
        ({}, "command"),
    ],
)
async def test_a_command_that_cannot_be_applied_is_refused_by_its_field(
    api: ServedApi, body: dict[str, Any], field: str
) -> None:
    await register(api.app.fleet.nodes, "a")
    status, problem = await api.ask(f"{NODES}/a/commands", body, method="POST")
    assert (status, problem["code"]) == (422, "invalid_input")
    assert field in problem["detail"]
    assert (await api.ask(f"{NODES}/a"))[1]["commands"] == []


async def test_an_unknown_node_is_named_and_nothing_is_stored(api: ServedApi) -> None:
    for path in (f"{NODES}/ghost", f"{NODES}/ghost/explain"):
        assert (await api.ask(path))[0] == 404
    status, problem = await api.ask(f"{NODES}/ghost/commands", {"command": "pause"})
    assert (status, problem["code"]) == (404, "not_found")
    assert "ghost" in problem["detail"]


async def test_explain_says_why_a_node_gets_jobs_or_none(api: ServedApi) -> None:
    begun = await register(api.app.fleet.nodes, "a")
    await register(api.app.fleet.nodes, "b", success_rate=0.0)
    _, told = await api.ask(f"{NODES}/a/explain")
    assert (told["reason"], told["rank"], told["healthy_nodes"]) == ("dispatched", 1, 2)
    assert told["dispatch_share"] == pytest.approx(1 / 1.6)
    paused = NodeStatus(max_concurrency=2, instance="a-1", state=NodeState.PAUSED)
    await api.app.fleet.nodes.heartbeat([Heartbeat(NodeId("a"), begun.epoch, paused, EVERY)])
    _, told = await api.ask(f"{NODES}/a/explain")
    assert told["reason"] == "paused"
    assert "shoal nodes resume a" in told["explanation"]


async def test_a_token_of_a_node_names_its_node_and_only_it_does(api: ServedApi) -> None:
    wanted = {"name": "crawler-1", "role": "node", "node_id": "crawler-1"}
    status, problem = await api.ask("/api/v1/tokens", wanted)
    assert (status, "must be admin" in problem["detail"]) == (422, True)
    await api.ask("/api/v1/tokens", {"name": "me", "role": "admin"})
    status, made = await api.ask("/api/v1/tokens", wanted)
    assert (status, made["node_id"], made["scopes"]) == (201, "crawler-1", ["node"])


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x", "role": "node"},
        {"name": "x", "role": "viewer", "node_id": "a"},
        {"name": "x", "role": "node", "node_id": "a/b"},
        {"name": "x", "role": "node", "node_id": "a" * 64},
    ],
)
async def test_a_token_of_a_node_without_a_valid_node_id_is_refused(api: ServedApi, body: dict[str, Any]) -> None:
    status, problem = await api.ask("/api/v1/tokens", body)
    assert status == 422
    assert "node_id" in problem["detail"]

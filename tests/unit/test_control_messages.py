"""Wire messages of the control plane: what a node may report, and that nothing is lost on the way."""

import math
from datetime import timedelta
from typing import Any

import pytest

from shoal.base.errors import InvalidInput
from shoal.base.ids import NodeId
from shoal.fleet.messages import LISTED, StatusUpdate, command_message, read_command, read_status_update, status_message
from shoal.fleet.node import CommandAck, NodeCommand, NodeStatus
from shoal.fleet.states import CommandState, NodeState
from shoal.fleet.wire.control_pb2 import DESCRIPTOR, ControlCommand, CrawlerStatus

NODE = NodeId("node-1")
FULL = NodeStatus(
    max_concurrency=4,
    active_tasks=2,
    queue_depth=7,
    success_rate=0.5,
    avg_latency_seconds=1.5,
    is_proxy_mode=True,
    uptime_seconds=60,
    total_processed=9,
    sent_at=1_800_000_000,
    instance="4711-abc",
    state=NodeState.PAUSED,
    version="1.2.3",
    capabilities=("http", "js"),
    page_slots=15,
    active_pages=3,
    cpu_percent=12.5,
    memory_bytes=1 << 33,
    browsers=1,
    browser_pages=2,
    browser_slots=5,
    held_leases=(("job_1", 3), ("job_2", 1)),
    recent_tasks=8,
    rate_limit=0.5,
)


def seed(**fields: Any) -> CrawlerStatus:
    """Return a message as a client sends it that knows only the oldest fields."""
    return CrawlerStatus(**{"node_id": "node-1", "max_concurrency": 2, **fields})


def test_a_report_survives_the_wire() -> None:
    acks = [CommandAck("cmd_1", CommandState.FAILED, "why")]
    update = StatusUpdate(node_id=NODE, status=FULL, acks=acks, heartbeat_every=timedelta(seconds=10))
    sent = status_message(update).SerializeToString()
    assert read_status_update(CrawlerStatus.FromString(sent)) == update


def test_a_client_of_the_oldest_fields_is_taken_at_its_word() -> None:
    update = read_status_update(seed(active_tasks=1, success_rate=0.25, total_processed=4, avg_latency_sec=3))
    assert update.heartbeat_every is None
    assert update.acks == []
    assert update.status == NodeStatus(
        max_concurrency=2, active_tasks=1, success_rate=0.25, total_processed=4, avg_latency_seconds=3.0
    )
    assert not update.status.acknowledges


def test_a_node_without_a_finished_task_counts_as_successful() -> None:
    assert read_status_update(seed(success_rate=0)).status.success_rate == 1
    assert read_status_update(seed(success_rate=0, total_processed=1)).status.success_rate == 0


def test_a_success_rate_above_one_is_cut() -> None:
    assert read_status_update(seed(success_rate=1.5, total_processed=1)).status.success_rate == 1


def test_a_timestamp_in_the_future_is_accepted() -> None:
    assert read_status_update(seed(timestamp=99_999_999_999)).status.sent_at == 99_999_999_999


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, NodeState.CONNECTED),
        ({"is_draining": True}, NodeState.DRAINING),
        ({"state": "drained", "is_draining": True}, NodeState.DRAINED),
        ({"state": "stopping", "is_draining": True}, NodeState.DRAINING),
        ({"state": "paused"}, NodeState.PAUSED),
        ({"state": "of a later version"}, NodeState.CONNECTED),
    ],
)
def test_the_state_is_what_the_node_says(fields: dict[str, Any], state: NodeState) -> None:
    assert read_status_update(seed(**fields)).status.state is state


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"node_id": ""}, "node_id"),
        ({"node_id": "a/b"}, "node_id"),
        ({"node_id": "a" * 300}, "node_id"),
        ({"node_id": "a" * 64}, "node_id"),
        ({"node_id": "ä"}, "node_id"),
        ({"node_id": "a b"}, "node_id"),
        *(({"node_id": name}, "node_id") for name in ("a:b", "{a}", "*", "[a]", "a_b", "a" * 512)),
        ({"node_id": "node-1\n"}, "node_id"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"max_concurrency": -1}, "max_concurrency"),
        ({"max_concurrency": 2**31 - 1}, "max_concurrency"),
        ({"page_slots": 2**31 - 1}, "page_slots"),
        ({"active_tasks": -1}, "active_tasks"),
        ({"queue_depth": -1}, "queue_depth"),
        ({"uptime_sec": -1}, "uptime_sec"),
        ({"total_processed": -1}, "total_processed"),
        ({"timestamp": -1}, "timestamp"),
        ({"memory_bytes": -1}, "memory_bytes"),
        *[
            ({field: value}, field)
            for field in ("success_rate", "avg_latency_sec", "cpu_percent", "rate_limit", "heartbeat_seconds")
            for value in (math.nan, math.inf, -0.5)
        ],
        ({"instance": "a" * 101}, "instance"),
        ({"capabilities": ["a"] * 200}, "capabilities"),
        ({"acknowledged": [{"command_id": "cmd_1", "result": "maybe"}]}, "acknowledged"),
        *[
            (fields, named)
            for text in ("a\0", "a" * 101)
            for fields, named in (
                ({"instance": text}, "instance"),
                ({"version": text}, "version"),
                ({"state": text}, "state"),
                ({"capabilities": ["http", text]}, "capabilities"),
                ({"held_leases": [{"job_id": text}]}, "held_leases.job_id"),
                ({"acknowledged": [{"command_id": text, "result": "applied"}]}, "acknowledged.command_id"),
            )
        ],
    ],
)
def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        read_status_update(seed(**fields))


def test_the_detail_of_an_acknowledgement_is_made_storable() -> None:
    update = read_status_update(seed(acknowledged=[{"command_id": "c", "result": "failed", "detail": "a\0b" * 500}]))
    assert update.acks[0].detail == ("ab" * 500)[: len(update.acks[0].detail)]
    assert len(update.acks[0].detail) <= 500


def test_every_text_of_a_message_is_checked() -> None:
    """A text field that is added to the protocol must be added to the table above."""
    checked = {"instance", "version", "state", "capabilities", "job_id", "command_id", "detail", "result", "node_id"}
    fields = [
        field
        for name in ("CrawlerStatus", "HeldLease", "Acknowledgement")
        for field in DESCRIPTOR.message_types_by_name[name].fields
    ]
    assert {field.name for field in fields if field.type == field.TYPE_STRING} == checked


def test_a_refusal_does_not_repeat_a_long_node_id() -> None:
    with pytest.raises(InvalidInput) as refused:
        read_status_update(seed(node_id="x" * 60_000))
    assert len(refused.value.message) < 300


def test_a_worker_with_many_leases_stays_below_the_size_limit() -> None:
    many = tuple((f"job_{number:026}", 2**40) for number in range(50_000))
    status = NodeStatus(max_concurrency=1, held_leases=many)
    message = status_message(StatusUpdate(node_id=NODE, status=status))
    assert len(message.held_leases) == LISTED
    assert message.ByteSize() < 64 * 1024


@pytest.mark.parametrize(
    "command",
    [
        NodeCommand(id="cmd_1", node_id=NODE, command="config_update", max_concurrency=3),
        NodeCommand(id="cmd_1", node_id=NODE, command="config_update", rate_limit=0.5, page_slots=7),
        NodeCommand(id="cmd_1", node_id=NODE, command="config_update", rate_limit=0.0),
        NodeCommand(id="cmd_1", node_id=NODE, command="pause", reason="why"),
        NodeCommand(id="", node_id=NODE, command="resume"),
        NodeCommand(id="cmd_1", node_id=NODE, command="drain", reason="why"),
        NodeCommand(id="cmd_1", node_id=NODE, command="restart_browser", reason="why"),
    ],
    ids=lambda command: command.command,
)
def test_a_command_survives_the_wire(command: NodeCommand) -> None:
    sent = command_message(command).SerializeToString()
    assert read_command(NODE, ControlCommand.FromString(sent)) == command


def test_a_message_without_a_command_is_not_one() -> None:
    assert read_command(NODE, ControlCommand(next_heartbeat_seconds=20)) is None

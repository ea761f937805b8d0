"""Contract of the registry of nodes: sessions and their epochs, lost nodes, lanes that are returned, commands."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from shoal.base.errors import BackendUnavailable, InvalidInput, NotFound, ShoalError
from shoal.base.ids import JobId, NodeId, new_id
from shoal.base.signals import Signal
from shoal.fleet.janitor import FORGET_EVERY_SECONDS, FleetJanitor
from shoal.fleet.node import (
    CommandAck,
    CommandRequest,
    DesiredState,
    Heartbeat,
    NewSession,
    Node,
    NodeCommand,
    NodeStatus,
    SessionBegun,
    commands_to_reach,
)
from shoal.fleet.nodes import (
    COMMAND_TTL,
    KEEP_COMMANDS,
    CommandEnded,
    CommandMade,
    CommandSent,
    LaneReturned,
    NodeLeft,
    NodeLost,
    NodeRegistered,
    Nodes,
)
from shoal.fleet.sessions import Session, SessionRefused, Sessions, SessionSaver
from shoal.fleet.states import MOVES, CommandState, NodeState
from shoal.queue.job import NewJob, Offer, node_lane
from shoal.queue.states import JobState
from tests.contract.conftest import Bench, Severed

EVERY = timedelta(seconds=10)
LOST_AFTER = 30.5
A, B = NodeId("node-a"), NodeId("node-b")
PAUSE = CommandRequest(command="pause", reason="upgrade")


class Links:
    """The sessions of one controller, as a list of what was sent to each."""

    def __init__(self, *node_ids: str, acknowledges: bool = True) -> None:
        self.sent: dict[str, list[NodeCommand]] = {node_id: [] for node_id in node_ids}
        self._acknowledges = acknowledges

    def send(self, node_id: NodeId, command: NodeCommand) -> bool:
        if node_id in self.sent:
            self.sent[node_id].append(command)
        return node_id in self.sent

    def acknowledges(self, node_id: NodeId) -> bool:
        return self._acknowledges


def registry(bench: Bench, controller: str = "c1", links: Links | None = None) -> Nodes:
    app = bench.app
    return Nodes(app.database, app.queue, app.signals, links or Links(), controller=controller)


def status(instance: str = "one", **values: Any) -> NodeStatus:
    return NodeStatus(**{"max_concurrency": 2, "page_slots": 15, "instance": instance} | values)


async def register(nodes: Nodes, node_id: NodeId = A, instance: str = "one", **values: Any) -> SessionBegun:
    session = NewSession(
        node_id=node_id,
        controller=nodes.controller,
        address="127.0.0.1",
        heartbeat_every=EVERY,
        status=status(instance, **values),
    )
    return await nodes.register(session)


async def beat(nodes: Nodes, *beats: tuple[NodeId, int], **values: Any) -> set[NodeId]:
    return await nodes.heartbeat([Heartbeat(node_id, epoch, status(**values), EVERY) for node_id, epoch in beats])


async def offer(bench: Bench, node_id: str = A, kind: str = "page", **more: Any) -> JobId:
    """Enqueue a job in the private lane of a node."""
    offered = Offer(f"{node_id}:1", timedelta(seconds=10))
    [enqueued] = await bench.queue.enqueue(
        [NewJob(JobId(new_id("job")), kind, None, lane=node_lane(node_id), offer=offered, **more)]
    )
    return enqueued.id


def janitor(bench: Bench, nodes: Nodes | None = None) -> FleetJanitor:
    return FleetJanitor(
        nodes or registry(bench),
        bench.queue.recovery.clock_watch(bench.clock),
        bench.clock,
        heartbeat_every=EVERY,
        keep_lost=timedelta(hours=24),
    )


async def patient_janitor(bench: Bench) -> FleetJanitor:
    """A janitor whose grace period is over."""
    found = janitor(bench)
    await found.run_once()
    found._hold_until = 0.0
    return found


async def silence(bench: Bench, sweep: FleetJanitor) -> None:
    """Let three heartbeats be missed while the janitor runs."""
    for _ in range(2):
        await bench.jump(LOST_AFTER / 2)
        await sweep.run_once()


async def lanes(bench: Bench) -> dict[str, str]:
    return {row["id"]: row["lane"] for row in await bench.sql("SELECT id, lane FROM job")}


# Sessions


class EndedStream:
    """A stream that records how the controller ended it."""

    def __init__(self) -> None:
        self.ends: list[ShoalError | None] = []

    def send(self, command: NodeCommand) -> None: ...

    def name_heartbeat(self, every: timedelta) -> None: ...

    def end(self, error: ShoalError | None) -> None:
        self.ends.append(error)


@pytest.mark.parametrize("at", ["status", "ack"])
async def test_a_session_that_cannot_be_stored_costs_only_itself(bench: Bench, at: str) -> None:
    """The edge refuses such values; a field that it forgets must not silence the other nodes."""
    nodes, sessions, streams = registry(bench), Sessions(bench.clock, bench.app.signals), dict[str, EndedStream]()
    unstorable = "\ud800"
    for number in range(5):
        node_id, stream = NodeId(f"node-{number}"), EndedStream()
        begun = await register(nodes, node_id)
        session = Session(node_id, begun.epoch, status(), EVERY, stream, EVERY)
        sessions.begin(session)
        is_bad = number == 3
        sessions.received(
            session,
            status(active_tasks=number, version=unstorable if is_bad and at == "status" else ""),
            [CommandAck(unstorable, CommandState.APPLIED)] if is_bad and at == "ack" else (),
        )
        streams[node_id] = stream
    await SessionSaver(sessions, nodes, bench.app.access.tokens).run_once()
    stored = {node.id: node.status.active_tasks for node in await nodes.list_all()}
    assert stored == {f"node-{number}": 0 if number == 3 and at == "status" else number for number in range(5)}
    assert [name for name, stream in streams.items() if stream.ends] == ["node-3"]
    assert [type(error) for error in streams["node-3"].ends] == [InvalidInput]
    [refused] = [signal for signal in bench.signals_seen if isinstance(signal, SessionRefused)]
    assert refused.node_id == "node-3"


async def test_an_error_that_is_not_in_their_data_ends_no_session(bench: Bench) -> None:
    nodes, sessions, streams = registry(bench), Sessions(bench.clock, bench.app.signals), list[EndedStream]()
    for number in range(3):
        begun, stream = await register(nodes, NodeId(f"node-{number}")), EndedStream()
        session = Session(NodeId(f"node-{number}"), begun.epoch, status(), EVERY, stream, EVERY)
        sessions.begin(session)
        sessions.received(session, status(active_tasks=1))
        streams.append(stream)
    saver = SessionSaver(sessions, nodes, bench.app.access.tokens)
    await bench.sql("ALTER TABLE node RENAME COLUMN status TO status_of_a_newer_version")
    with pytest.raises(Exception, match="status"):
        await saver.run_once()
    await bench.sql("ALTER TABLE node RENAME COLUMN status_of_a_newer_version TO status")
    await saver.run_once()
    assert [node.status.active_tasks for node in await nodes.list_all()] == [1, 1, 1]
    assert not any(stream.ends for stream in streams)


async def test_each_session_of_a_node_has_a_higher_epoch(bench: Bench) -> None:
    nodes = registry(bench)
    assert [(await register(nodes)).epoch for _ in range(3)] == [1, 2, 3]
    node = await nodes.get(A)
    assert (node.state, node.controller, node.session_epoch) == (NodeState.CONNECTED, "c1", 3)
    assert [signal.epoch for signal in bench.signals_seen if isinstance(signal, NodeRegistered)] == [1, 2, 3]


async def test_a_session_of_another_instance_is_displaced_and_a_reconnect_is_not(bench: Bench) -> None:
    first, second = registry(bench, "c1"), registry(bench, "c2")
    assert not (await register(first)).displaced
    assert not (await register(second)).displaced  # the same process on another controller
    assert (await register(first, instance="two")).displaced
    await first.disconnect(A, 3)
    assert not (await register(first, instance="three")).displaced  # the id was free again


async def test_two_clients_that_name_no_instance_displace_each_other(bench: Bench) -> None:
    nodes = registry(bench)
    await register(nodes, instance="")
    assert (await register(nodes, instance="")).displaced


async def test_an_old_session_cannot_change_a_node(bench: Bench) -> None:
    nodes = registry(bench)
    await register(nodes)
    await register(nodes, active_tasks=1)
    assert await beat(nodes, (A, 1), active_tasks=2) == set()
    assert not await nodes.disconnect(A, 1)
    assert not await nodes.deregister(A, 1)
    node = await nodes.get(A)
    assert (node.status.active_tasks, node.controller) == (1, "c1")


async def test_heartbeats_of_many_nodes_are_one_commit_and_say_who_is_current(bench: Bench) -> None:
    nodes = registry(bench)
    await register(nodes, A)
    await register(nodes, B)
    await bench.jump(7)
    current = await beat(nodes, (B, 1), (A, 1), (NodeId("gone"), 1), state=NodeState.PAUSED, active_pages=4)
    assert current == {A, B}
    for node in await nodes.list_all():
        assert (node.state, node.status.active_pages) == (NodeState.PAUSED, 4)
        assert node.heartbeat_at - node.connected_at == pytest.approx(7e6, abs=2e6)
    assert await nodes.heartbeat([]) == set()


@pytest.mark.parametrize("node_id", ["a/b", "", "x" * 512, "a b", "a:1", "ä", "{a}", "a}", "*", "[a", "a_b", "a.b"])
async def test_a_bad_node_id_is_refused(bench: Bench, node_id: str) -> None:
    with pytest.raises(InvalidInput, match="node_id"):
        await register(registry(bench), NodeId(node_id))
    assert await registry(bench).list_all() == []


async def test_only_connected_nodes_take_jobs(bench: Bench) -> None:
    nodes = registry(bench)
    for name, values in {
        "busy": {"active_tasks": 2},
        "idle": {},
        "failing": {"success_rate": 0.2},
        "paused": {"state": NodeState.PAUSED},
        "draining": {"state": NodeState.DRAINING},
        "broken": {},
    }.items():
        await register(nodes, NodeId(name), **values)
    await nodes.disconnect(NodeId("broken"), 1)
    listed = await nodes.list_all()
    assert {node.id for node in listed if node.takes_jobs} == {"idle", "busy", "failing"}
    assert len(listed) == await nodes.count() == 6


async def test_the_depth_of_a_lane_is_counted_by_class_and_only_for_due_jobs(bench: Bench) -> None:
    nodes = registry(bench)
    await register(nodes, A)
    await register(nodes, B)
    for kind in ("page", "page", "crawl", "analysis", "analysis"):
        await offer(bench, A, kind)
    await bench.enqueue()
    found = {node.id: (node.run_depth, node.page_depth) for node in await nodes.list_all()}
    assert found == {A: (3, 2), B: (0, 0)}
    node = await nodes.get(A)
    assert (node.run_depth, node.page_depth, node.depth) == (3, 2, 5)
    assert node.health.depth == 1 - 5 / 20
    for capability in ("js", "js", "special"):
        await offer(bench, A, "page", capability=capability)
    [listed, _] = await nodes.list_all()
    assert (listed.page_depth, listed.browser_depth) == (5, 2)
    assert (await nodes.get(A)).browser_depth == 2


# Lost nodes and their lanes


async def test_a_node_that_missed_three_heartbeats_is_lost_and_its_lane_returned(bench: Bench) -> None:
    nodes, sweep = registry(bench), await patient_janitor(bench)
    await register(nodes, held_leases=(("job_1", 4),))
    jobs = [await offer(bench) for _ in range(3)]
    await bench.jump(29)
    await sweep.run_once()
    assert (await nodes.get(A)).state is NodeState.CONNECTED
    await bench.jump(1.5)
    await sweep.run_once()
    node = await nodes.get(A)
    assert (node.state, node.controller, node.lost_at is not None) == (NodeState.LOST, None, True)
    assert await lanes(bench) == dict.fromkeys(jobs, "shared")
    assert [(await bench.job(job)).attempts for job in jobs] == [0, 0, 0]
    assert await bench.number("SELECT count(*) FROM job WHERE offered_until IS NOT NULL") == 0
    [event] = await bench.sql("SELECT subject, body FROM outbox WHERE type = 'node.lost'")
    assert event["subject"] == A
    assert '"returned_jobs":3' in event["body"]
    assert '"held_leases":1' in event["body"]
    [signal] = [one for one in bench.signals_seen if isinstance(one, NodeLost)]
    assert (signal.node_id, signal.returned) == (A, 3)
    await sweep.run_once()
    assert await bench.number("SELECT count(*) FROM outbox WHERE type = 'node.lost'") == 1


async def test_a_node_that_comes_back_in_time_is_not_lost(bench: Bench) -> None:
    nodes = registry(bench)
    await register(nodes)
    await bench.jump(LOST_AFTER)
    [silent] = await nodes.overdue(10)
    assert await beat(nodes, (A, 1)) == {A}
    assert not await nodes.lose(silent)
    await bench.jump(LOST_AFTER)
    [silent] = await nodes.overdue(10)
    await register(nodes)  # a new session
    assert not await nodes.lose(silent)
    assert (await nodes.get(A)).state is NodeState.CONNECTED


@pytest.mark.parametrize("back", sorted(MOVES[NodeState.LOST]))
async def test_a_lost_node_is_back_with_its_next_heartbeat_or_session(bench: Bench, back: NodeState) -> None:
    nodes = registry(bench)
    await register(nodes)
    for attempt in ("heartbeat", "session"):
        await bench.jump(LOST_AFTER)
        [silent] = await nodes.overdue(10)
        assert await nodes.lose(silent)
        assert not await nodes.lose(silent)
        if attempt == "heartbeat":
            assert await beat(nodes, (A, 1), state=back) == {A}
        else:
            assert (await register(nodes, state=back)).epoch == 2
        node = await nodes.get(A)
        assert (node.state, node.controller, node.lost_at) == (back, "c1", None)


async def test_a_node_whose_session_broke_off_gets_no_jobs_and_is_lost_later(bench: Bench) -> None:
    nodes, sweep = registry(bench), await patient_janitor(bench)
    await register(nodes)
    assert await nodes.disconnect(A, 1)
    assert not (await nodes.get(A)).takes_jobs
    await silence(bench, sweep)
    assert (await nodes.get(A)).state is NodeState.LOST


async def test_a_node_that_says_goodbye_is_removed_and_its_lane_returned_at_once(bench: Bench) -> None:
    nodes = registry(bench)
    await register(nodes)
    job = await offer(bench)
    await nodes.send(A, PAUSE, "tok_1")
    assert await nodes.deregister(A, 1)
    assert await nodes.find(A) is None
    assert (await bench.job(job)).lane == "shared"
    [signal] = [one for one in bench.signals_seen if isinstance(one, NodeLeft)]
    assert signal.returned == 1
    begun = await register(nodes, instance="two")
    assert (begun.epoch, begun.displaced) == (2, False)  # its epochs never repeat
    assert begun.desired == DesiredState(state="paused", reason="upgrade")


async def test_a_janitor_that_has_just_started_gives_every_node_a_grace_period(bench: Bench) -> None:
    nodes = registry(bench)
    await register(nodes)
    await bench.jump(300)  # no controller ran meanwhile
    sweep = janitor(bench)
    await sweep.run_once()
    await bench.jump(29)
    await sweep.run_once()
    assert (await nodes.get(A)).state is NodeState.CONNECTED
    await bench.jump(2)
    await sweep.run_once()
    assert (await nodes.get(A)).state is NodeState.LOST


async def test_nobody_is_lost_right_after_an_outage_of_the_store(bench: Bench) -> None:
    nodes, severed = registry(bench), Severed(bench.database)
    await register(nodes)
    severed_bench = bench.over(severed)
    sweep = await patient_janitor(severed_bench)
    severed.reads = severed.writes = False
    await bench.jump(20)
    with pytest.raises(BackendUnavailable):
        await sweep.run_once()
    await bench.jump(20)
    severed.reads = severed.writes = True
    await sweep.run_once()
    assert (await nodes.get(A)).state is NodeState.CONNECTED
    await silence(bench, sweep)
    assert (await nodes.get(A)).state is NodeState.LOST


async def test_nobody_is_lost_right_after_this_process_was_suspended(bench: Bench) -> None:
    nodes, sweep = registry(bench), await patient_janitor(bench)
    await register(nodes)
    await bench.jump(100)
    await sweep.run_once()
    assert (await nodes.get(A)).state is NodeState.CONNECTED


async def test_after_a_mass_loss_only_a_tenth_of_the_fleet_is_declared_lost_at_a_time(bench: Bench) -> None:
    nodes, sweep = registry(bench), await patient_janitor(bench)
    for number in range(20):
        await register(nodes, NodeId(f"node-{number}"))
    await bench.jump(LOST_AFTER / 2)
    await sweep.run_once()
    await bench.jump(LOST_AFTER / 2)
    lost = []
    for _ in range(3):
        await sweep.run_once()
        lost.append(sum(node.state is NodeState.LOST for node in await nodes.list_all()))
    assert lost == [2, 3, 4]  # a tenth of those that are left, and at least one


async def test_a_few_nodes_of_many_are_lost_at_once(bench: Bench) -> None:
    nodes, sweep = registry(bench), await patient_janitor(bench)
    names = [NodeId(f"node-{number}") for number in range(20)]
    for name in names:
        await register(nodes, name)
    await bench.jump(LOST_AFTER / 2)
    await beat(nodes, *((name, 1) for name in names[:10]))
    await sweep.run_once()
    await bench.jump(LOST_AFTER / 2)
    await sweep.run_once()
    assert sum(node.state is NodeState.LOST for node in await nodes.list_all()) == 10


async def test_a_job_offered_to_a_node_that_is_gone_is_returned(bench: Bench) -> None:
    nodes = registry(bench)
    await register(nodes, B)
    gone, here = await offer(bench, A), await offer(bench, B)
    await janitor(bench).run_once()
    assert await lanes(bench) == {gone: "shared", here: node_lane(B)}
    assert [(one.node_id, one.returned) for one in bench.signals_seen if isinstance(one, LaneReturned)] == [(A, 1)]


@pytest.mark.parametrize("state", [NodeState.PAUSED, NodeState.DRAINING, NodeState.DRAINED])
async def test_the_lane_of_a_node_that_leases_nothing_is_returned(bench: Bench, state: NodeState) -> None:
    nodes, sweep = registry(bench), janitor(bench)
    await register(nodes)
    jobs = [await offer(bench) for _ in range(3)]
    await sweep.run_once()
    assert await lanes(bench) == dict.fromkeys(jobs, node_lane(A))
    await beat(nodes, (A, 1), state=state)
    await sweep.run_once()
    assert await lanes(bench) == dict.fromkeys(jobs, "shared")


async def test_lost_nodes_are_forgotten_after_a_while_and_desired_states_are_not(bench: Bench) -> None:
    nodes, sweep = registry(bench), await patient_janitor(bench)
    await register(nodes, A)
    await register(nodes, B)
    await nodes.send(A, PAUSE, "tok_1")
    await silence(bench, sweep)
    assert await nodes.count() == 0
    for hours, left in ((23, 2), (2, 0)):
        await bench.jump(hours * 3600)
        await sweep.run_once()
        assert len(await nodes.list_all()) == left
    await bench.jump(25 * 3600)
    await sweep.run_once()
    assert [row["id"] for row in await bench.sql("SELECT id FROM departed_node")] == [A]
    assert (await register(nodes)).desired.state == "paused"


# Jobs of private lanes


async def test_a_job_that_returns_from_a_lease_waits_for_every_worker(bench: Bench) -> None:
    for end in ("release", "retry", "lose", "expire"):
        job = await offer(bench)
        lease = await bench.lease("w1", lane=node_lane(A))
        if end == "release":
            await bench.queue.release(lease, "drained")
        elif end == "retry":
            await bench.queue.fail(lease, "boom")
        elif end == "lose":
            await bench.queue.recovery.lose(lease, "the child died")
        else:
            await bench.lose()
        found = await bench.job(job)
        assert (found.state, found.lane) == (JobState.PENDING, "shared")
        await bench.jump(60)
        await bench.queue.finish(await bench.lease("w2"))


async def test_a_retried_dead_letter_waits_for_every_worker(bench: Bench) -> None:
    job = await offer(bench, max_attempts=1)
    await bench.queue.fail(await bench.lease("w1", lane=node_lane(A)), "boom")
    assert (await bench.job(job)).lane == node_lane(A)
    assert (await bench.job_admin.retry(job)).lane == "shared"
    assert (await bench.lease("w2")).fence.job_id == job


async def test_a_job_over_its_quota_waits_for_every_worker(bench: Bench) -> None:
    await bench.job_admin.set_quota("project:p", 0)
    job = await offer(bench, quota_keys=("project:p",))
    assert await bench.queue.lease("w1", ["page"], [node_lane(A)], 1) == []
    await bench.job_admin.remove_quota("project:p")
    assert (await bench.lease("w2")).fence.job_id == job


async def test_a_local_crawl_keeps_its_lane(bench: Bench) -> None:
    await bench.enqueue(lane="local/crl_1")
    lease = await bench.lease("w1", lane="local/crl_1")
    await bench.queue.release(lease, "paused")
    assert (await bench.job(lease.fence.job_id)).lane == "local/crl_1"


async def test_an_offer_that_is_not_taken_in_time_spills_over(bench: Bench) -> None:
    job = await offer(bench, host="http://example.org")
    await bench.jump(9)
    await bench.janitor().run_once()
    assert (await bench.job(job)).lane == node_lane(A)
    await bench.jump(2)
    await bench.janitor().run_once()
    assert (await bench.job(job)).lane == "shared"
    assert (await bench.lease("w2")).fence.job_id == job
    assert (await bench.job(job)).attempts == 0


async def test_cancelled_jobs_leave_no_offers(bench: Bench) -> None:
    for run_id in ("run_1", None):
        [enqueued] = await bench.queue.enqueue(
            [
                NewJob(
                    JobId(new_id("job")),
                    "page",
                    run_id,
                    lane=node_lane(A),
                    offer=Offer("node-a:1", timedelta(seconds=1)),
                )
            ]
        )
        if run_id is None:
            await bench.job_admin.cancel(enqueued.id)
        else:
            assert await bench.database.run(lambda tx: bench.queue.jobs.cancel_waiting(tx, "run_1", "stopped")) == 1
    assert await bench.number("SELECT count(*) FROM job WHERE offered_until IS NOT NULL") == 0


async def test_a_restarted_worker_recovers_its_own_work_at_once(bench: Bench) -> None:
    holders = ("node-a/12", "node-a/12/77", "node-a/123", "node-b/12", "node-a/12")
    leases = {}
    for place, holder in enumerate(holders):
        await bench.enqueue(priority=90 - place)
        lease = await bench.lease(holder)
        leases[lease.fence.job_id] = holder
    assert await bench.queue.recovery.recover("node-a/12") == 3
    for job_id, holder in leases.items():
        job = await bench.job(job_id)
        ours = holder in ("node-a/12", "node-a/12/77")
        assert job.state is (JobState.PENDING if ours else JobState.LOCKED)
        assert (job.attempts, job.crash_count) == (0, int(ours))
    assert await bench.queue.recovery.recover("node-a/12") == 0


# Commands


async def test_a_command_is_stored_with_the_desired_state_and_sent_if_the_session_is_here(bench: Bench) -> None:
    links = Links(A)
    nodes = registry(bench, links=links)
    await register(nodes)
    made = await nodes.send(A, PAUSE, "tok_1")
    assert [command.id for command in links.sent[A]] == [made.id]
    stored = await nodes.command(made.id)
    assert (stored.command, stored.reason, stored.created_by, stored.state) == (
        "pause",
        "upgrade",
        "tok_1",
        CommandState.SENT,
    )
    assert (await nodes.get(A)).desired == DesiredState(state="paused", reason="upgrade")
    assert await nodes.waiting_commands() == []
    update = CommandRequest(command="config_update", max_concurrency=4, rate_limit=2.5)
    await nodes.send(A, update, "tok_1")
    await nodes.send(A, CommandRequest(command="config_update", unlimited_rate=True), "tok_1")
    await nodes.send(A, CommandRequest(command="resume"), "tok_1")
    await nodes.send(A, CommandRequest(command="restart_browser"), "tok_1")
    assert (await nodes.get(A)).desired == DesiredState(max_concurrency=4, rate_limit=0.0)
    names = ["restart_browser", "resume", "config_update", "config_update", "pause"]
    assert [command.command for command in await nodes.commands_of(A)] == names


async def test_a_command_reaches_a_node_through_the_controller_that_has_its_session(bench: Bench) -> None:
    here, there = Links(), Links(A)
    first, second = registry(bench, "c1", here), registry(bench, "c2", there)
    await register(second)
    made = await first.send(A, PAUSE, "tok_1")
    assert (await first.command(made.id)).state is CommandState.WAITING
    assert await first.send_waiting() == 0
    assert await second.send_waiting() == 1
    assert [command.id for command in there.sent[A]] == [made.id]
    assert await second.send_waiting() == 0
    assert [one.command_id for one in bench.signals_seen if isinstance(one, CommandSent)] == [made.id]


async def test_the_first_acknowledgement_of_a_command_counts(bench: Bench) -> None:
    nodes = registry(bench, links=Links(A, B))
    await register(nodes, A)
    await register(nodes, B)
    made = await nodes.send(A, PAUSE, "tok_1")
    await nodes.acknowledge(B, [CommandAck(made.id, CommandState.FAILED, "not mine")])
    assert (await nodes.command(made.id)).state is CommandState.SENT
    await nodes.acknowledge(A, [CommandAck(made.id, CommandState.APPLIED, "ok")] * 2)
    await nodes.acknowledge(
        A, [CommandAck(made.id, CommandState.FAILED, "late"), CommandAck("cmd_?", CommandState.FAILED)]
    )
    await nodes.acknowledge(A, [])
    stored = await nodes.command(made.id)
    assert (stored.state, stored.detail, stored.ended_at is not None) == (CommandState.APPLIED, "ok", True)
    assert len([one for one in bench.signals_seen if isinstance(one, CommandEnded)]) == 1


async def test_a_command_that_was_not_acknowledged_waits_for_the_next_session(bench: Bench) -> None:
    links = Links(A)
    nodes = registry(bench, links=links)
    await register(nodes)
    made = await nodes.send(A, PAUSE, "tok_1")
    await nodes.disconnect(A, 1)
    assert await nodes.waiting_commands() == []  # it has no session
    begun = await register(nodes)
    assert [command.id for command in await nodes.waiting_commands()] == [made.id]
    assert [command.command for command in commands_to_reach(A, begun.desired)] == ["pause"]
    await nodes.send_waiting()
    assert [command.id for command in links.sent[A]] == [made.id] * 2


async def test_a_client_that_acknowledges_nothing_leaves_its_commands_unconfirmed(bench: Bench) -> None:
    nodes = registry(bench, links=Links(A, acknowledges=False))
    await register(nodes, instance="")
    made = await nodes.send(A, PAUSE, "tok_1")
    stored = await nodes.command(made.id)
    assert (stored.state, stored.ended_at is not None) == (CommandState.UNCONFIRMED, True)


async def test_a_broadcast_is_one_command_for_every_node_that_is_not_lost(bench: Bench) -> None:
    links = Links(A)
    nodes = registry(bench, links=links)
    for name in (A, B, NodeId("node-c")):
        await register(nodes, name)
    await bench.jump(LOST_AFTER)
    await beat(nodes, (A, 1), (B, 1))
    [silent] = await nodes.overdue(10)
    await nodes.lose(silent)
    made = await nodes.broadcast(CommandRequest(command="drain"), "tok_1")
    assert [command.node_id for command in made] == [A, B]
    assert len(links.sent[A]) == 1
    desired_states = {node.id: node.desired.state for node in await nodes.list_all()}
    assert desired_states == {A: "drained", B: "drained", "node-c": "connected"}


async def test_a_broadcast_to_many_nodes_is_told_in_parts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command is logged: those of a large fleet at once would keep all requests waiting."""
    monkeypatch.setattr("shoal.fleet.nodes.EMITTED_AT_ONCE", 2)
    nodes, told, parts, all_told = registry(bench), list[str](), list[int](), asyncio.Event()
    names = [NodeId(f"node-{number}") for number in range(5)]
    for name in names:
        await register(nodes, name)

    def note(signal: Signal) -> None:
        if isinstance(signal, CommandMade):
            told.append(signal.node_id)
            asyncio.get_running_loop().call_soon(lambda: parts.append(len(told)))
            if len(told) == len(names):
                all_told.set()

    bench.signals.subscribe(note)
    await nodes.broadcast(PAUSE, "tok_1")
    await asyncio.wait_for(all_told.wait(), 10)
    assert told == names
    assert parts[0] == 2


async def test_a_command_for_an_unknown_node_is_refused_and_stores_nothing(bench: Bench) -> None:
    nodes = registry(bench)
    with pytest.raises(NotFound, match="node"):
        await nodes.send("nobody", PAUSE, "tok_1")
    with pytest.raises(NotFound, match="command"):
        await nodes.command("cmd_1")
    with pytest.raises(NotFound):
        await nodes.get("nobody")
    assert await bench.number("SELECT count(*) FROM node_command") == 0


async def test_commands_expire_and_are_removed_later(bench: Bench) -> None:
    nodes, sweep = registry(bench, links=Links(A)), janitor(bench)
    await register(nodes, A)
    await register(nodes, B)
    made = [await nodes.send(A, PAUSE, "tok_1"), await nodes.send(B, PAUSE, "tok_1")]  # one is sent, the other waits
    await bench.jump(COMMAND_TTL.total_seconds() - 1)
    await sweep.run_once()
    assert CommandState.EXPIRED not in [(await nodes.command(one.id)).state for one in made]
    await bench.jump(FORGET_EVERY_SECONDS + 1)
    await sweep.run_once()
    assert [(await nodes.command(one.id)).state for one in made] == [CommandState.EXPIRED] * 2
    ended = [(one.node_id, one.state) for one in bench.signals_seen if isinstance(one, CommandEnded)]
    assert sorted(ended) == [(A, CommandState.EXPIRED), (B, CommandState.EXPIRED)]
    assert (await nodes.get(A)).desired.state == "paused"  # the desired state is kept
    await bench.jump(KEEP_COMMANDS.total_seconds() + 1)
    await sweep.run_once()
    assert await bench.number("SELECT count(*) FROM node_command") == 0


async def test_everything_about_a_node_is_stored_and_read_back(bench: Bench) -> None:
    nodes = registry(bench)
    full = NodeStatus(
        max_concurrency=3,
        active_tasks=1,
        queue_depth=4,
        success_rate=0.5,
        avg_latency_seconds=1.25,
        is_proxy_mode=True,
        uptime_seconds=99,
        total_processed=12,
        sent_at=1_700_000_000,
        instance="one",
        state=NodeState.PAUSED,
        version="0.1.0",
        capabilities=("http", "js"),
        page_slots=15,
        active_pages=2,
        cpu_percent=12.5,
        memory_bytes=1 << 33,
        browsers=1,
        browser_pages=2,
        browser_slots=5,
        held_leases=(("job_1", 7),),
        recent_tasks=20,
        rate_limit=3.5,
    )
    session = NewSession(node_id=A, controller="c1", address="10.0.0.1", heartbeat_every=EVERY, status=full)
    await nodes.register(session)
    node = await nodes.get(A)
    assert node.status == full
    [listed] = await nodes.list_all()
    assert _as_read(listed) == _as_read(node)
    assert (node.address, node.heartbeat_every, node.desired) == ("10.0.0.1", EVERY, DesiredState())


def _as_read(node: Node) -> Node:
    """The node without the time at which it was read."""
    return replace(node, seen_at=0)

"""The verification plan of the control plane and its checklist of earlier bugs, item by item. Crawls, page jobs,
analyses and the kill of a worker are tested in every mode in which a fleet can run.

The modes are a representative set: the other acceptance tests run without a control plane and cover the legacy modes,
which use the same code.
"""

import ast
import asyncio
import re
import signal
import uuid
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shoal.base.database import Tx
from shoal.base.errors import InvalidInput
from shoal.base.ids import JobId, new_id
from shoal.base.settings_loader import load
from shoal.fleet import nodes as node_registry
from shoal.fleet.control_server import StreamFailed
from shoal.fleet.node import CommandRequest
from shoal.fleet.nodes import HeartbeatReceived, NodeDisconnected, NodeRegistered
from shoal.fleet.states import NodeState
from shoal.observe.log_messages import MESSAGES, LogLevel
from shoal.page_jobs.spec import GroupConfig
from shoal.queue.job import NewJob, Offer, node_lane
from shoal.queue.states import JobState
from tests.support import ledger
from tests.support.control_fleet import control_plane as fleet_settings
from tests.support.control_fleet import wait_for_node
from tests.support.control_plane import ControlPlane, connected, control_plane
from tests.support.fleet import TENTH, Fleet, wait_for
from tests.support.ledger import Expected
from tests.support.nodes import register
from tests.support.oldest_control_client import open_session, status
from tests.support.site import Site

ROOT = Path(__file__).parents[2]
FLEET = ROOT / "src" / "shoal" / "fleet"
HASTE = TENTH | {"SHOAL_PAGE_SPEED": "max", "SHOAL_POISON_LIMIT": "100", "WORKER_BACKOFF_MS": "100"}
SEED_DEFAULTS: dict[str, Any] = {
    "GRPC_ENABLED": False,
    "GRPC_LISTEN_ADDR": ":50051",
    "GRPC_HEARTBEAT_INTERVAL": timedelta(seconds=10),
    "GRPC_RECONNECT_BACKOFF": timedelta(seconds=5),
    "GRPC_MAX_RECONNECT_BACKOFF": timedelta(seconds=60),
}


def new_job(lane: str) -> NewJob:
    offer = Offer(f"{lane}:1", timedelta(seconds=10)) if lane != "shared" else None
    return NewJob(JobId(new_id("job")), "page", None, lane=lane, offer=offer)


async def lanes(plane: ControlPlane, *ids: JobId) -> list[str]:
    app = plane.app

    async def read(tx: Tx) -> list[str]:
        return [job.lane for job_id in ids if (job := await app.queue.jobs.get(tx, job_id)) is not None]

    return await app.database.read(read)


# Phase 1


async def test_phase_1_line_1_registry_server_and_client_work_together(store_url: str) -> None:
    async with control_plane(store_url) as plane, connected(plane.address) as there:
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
        [node] = await plane.app.fleet.nodes.list_all()
        assert (node.id, node.takes_jobs, node.health.value) == ("node-1", True, pytest.approx(1.0))
        await plane.app.fleet.nodes.send("node-1", CommandRequest(command="pause"), "me")
        await there.node.applied.at_least(1)
        await there.goodbye()
        assert await plane.app.fleet.nodes.list_all() == []


async def test_phase_1_line_2_sessions_heartbeats_and_commands_at_once_do_not_race(store_url: str) -> None:
    names = [f"node-{number}" for number in range(8)]
    async with control_plane(store_url) as plane:
        opened = [connected(plane.address, name, GRPC_HEARTBEAT_INTERVAL="100ms") for name in names]
        there = [await one.__aenter__() for one in opened]
        try:
            await plane.until(lambda: len(plane.of(NodeRegistered)) == len(names))
            commands = [plane.app.fleet.nodes.broadcast(CommandRequest(command="pause"), "me") for _ in range(5)]
            saves = [plane.save() for _ in range(5)]
            for session in plane.app.fleet.sessions.all()[:4]:
                session.stream.end(InvalidInput("it", "is ended", "connect again"))
            await asyncio.gather(*commands, *saves)
            for one in there:
                async with asyncio.timeout(30):
                    while len({command.id for command in one.node.applied if command.id}) < 5:
                        await plane.save()
                ids = [command.id for command in one.node.applied if command.id]
                assert len(ids) == len(set(ids)) == 5, "each once"
        finally:
            for session in opened:
                await session.__aexit__(None, None, None)


def test_phase_1_lines_3_to_5_one_node_in_the_metrics_registered_and_heartbeats_in_the_log(
    sqlite_url: str, tmp_path: Path
) -> None:
    with Fleet(tmp_path, sqlite_url, **fleet_settings(GRPC_HEARTBEAT_INTERVAL="200ms")) as fleet:
        controller = fleet.controller()
        fleet.worker("worker-1")
        wait_for(lambda: "shoal_grpc_connected_nodes 1.0" in fleet.metrics(), "one node in the metrics")
        beats = re.compile(r'shoal_grpc_heartbeat_total{node_id="worker-1"} (\d+)')
        wait_for(lambda: int((beats.search(fleet.metrics()) or [0, "0"])[1]) >= 5, "heartbeats, again and again")
        assert controller.said().count('"msg":"node registered"') == 1
        assert controller.said().count('"msg":"heartbeat received"') == 1  # at most once a minute


# Phase 2


async def test_phase_2_line_1_the_queue_takes_a_lane_for_every_verb(store_url: str) -> None:
    async with control_plane(store_url) as plane:
        queue, (mine, other) = plane.app.queue, (node_lane("a"), node_lane("b"))
        made = [job.id for job in await queue.enqueue([new_job(lane) for lane in (mine, mine, other, "shared")])]
        assert [lease.fence.job_id for lease in await queue.lease("a/1", ["page"], [mine], 1)] == made[:1]  # pop
        [own, *_] = leases = await queue.lease("b/1", ["page"], [other, "shared"], 9)
        assert [lease.fence.job_id for lease in leases] == made[2:], "its own lane, then the shared one"
        await queue.finish(own)  # acknowledge
        assert await queue.recovery.recover("a/1") == 1
        assert await queue.recovery.hand_back(mine) == 1
        assert await lanes(plane, *made) == ["shared", "shared", other, "shared"]
        assert await queue.depth_up_to("shared", 10) == 2


async def test_phase_2_line_2_the_dispatcher_prefers_nodes_and_falls_back_to_the_shared_lane(store_url: str) -> None:
    async with control_plane(store_url) as plane:
        app = plane.app
        app.fleet.start()

        async def placed(count: int) -> Counter[str]:
            await app.fleet.refresh.run_once()
            urls = [f"http://a.test/{uuid.uuid4()}" for _ in range(count)]
            group = await app.page_jobs.groups.make(GroupConfig(urls=urls))
            return Counter(
                job.lane for job in await app.database.read(lambda tx: app.queue.jobs.jobs_of_run(tx, group.id))
            )

        assert await placed(2) == {"shared": 2}
        await register(app.fleet.nodes, "a", page_slots=2)
        assert await placed(6) == {node_lane("a"): 4, "shared": 2}


def test_phase_2_lines_3_to_6_two_nodes_their_lanes_a_disconnect_and_the_metrics(
    store_url: str, tmp_path: Path
) -> None:
    env = HASTE | {"SHOAL_OFFER_TTL": "1h", "MAX_CONCURRENT_CURL": "2"}
    with Fleet(tmp_path, store_url, **(fleet_settings() | env)) as fleet, Site(pages=8) as site:
        site.allowed = 0
        fleet.controller()
        workers = [fleet.worker(name) for name in ("worker-1", "worker-2")]
        wait_for(lambda: "shoal_grpc_connected_nodes 2.0" in fleet.metrics(), "two nodes in the metrics")
        group = fleet.fetch(site.urls)
        assert ledger.dispatched(store_url, group) == {"worker-1": 4, "worker-2": 4}
        for worker in workers:
            depth = f'shoal_grpc_node_queue_depth{{node_id="{worker.name}"}} 2.0'
            wait_for(lambda depth=depth: depth in fleet.metrics(), "what waits in its lane")
            total = f'shoal_grpc_dispatch_total{{target="{worker.name}"}} 4.0'
            wait_for(lambda total=total: total in fleet.metrics(), "what was dispatched to it")
        workers[0].send(signal.SIGTERM)
        site.allowed = None
        assert workers[0].wait() == 0
        wait_for(lambda: fleet.group(group)["state"] == "completed", "the end of all of them")
        assert fleet.group(group)["jobs"] == {"done": 8}
        assert ledger.check_jobs(store_url) == []


# Regression


@pytest.mark.parametrize(
    ("mode", "nodes", "dispatched"),
    [
        ({}, 2, True),
        pytest.param({"SHOAL_DISPATCH": "shared"}, 2, False, marks=pytest.mark.exhaustive),
        pytest.param({"GRPC_ANALYZER_ADDR": ""}, 0, False, marks=pytest.mark.exhaustive),
        ({"GRPC_ENABLED": "false"}, 0, False),
    ],
    ids=["private lanes", "SHOAL_DISPATCH=shared", "no GRPC_ANALYZER_ADDR", "GRPC_ENABLED=false"],
)
def test_regression_crawls_page_jobs_analyses_and_a_kill_in_every_mode(
    postgres_url: str, tmp_path: Path, mode: dict[str, str], nodes: int, dispatched: bool
) -> None:
    with (
        Fleet(tmp_path, postgres_url, **(fleet_settings() | HASTE | mode)) as fleet,
        Site(pages=30) as site,
        Site(pages=20) as single,
    ):
        fleet.controller()
        workers = [fleet.worker(name) for name in ("worker-1", "worker-2")]
        for worker in workers:
            wait_for(lambda worker=worker: "Worker service starting" in worker.said(), "both workers")
        if nodes:
            wait_for(lambda: f"shoal_grpc_connected_nodes {nodes}.0" in fleet.metrics(), "the nodes")
        assert len(fleet.get("/api/v1/nodes")["items"]) == nodes
        site.allowed = single.allowed = 4
        crawl_id, group = fleet.submit(site, concurrency=2, analyze=True), fleet.fetch(single.urls)
        wait_for(lambda: site.pages_answered > 3 and single.pages_answered > 3, "work under way")
        for run_id in (crawl_id, group):
            assert bool(ledger.dispatched(postgres_url, run_id)) == dispatched
        workers[0].kill()
        workers[0].start()
        site.allowed = single.allowed = None
        fleet.wait_for_state(crawl_id, "completed", "failed")
        wait_for(lambda: fleet.group(group)["state"] == "completed", "the end of the page jobs")
        assert fleet.group(group)["jobs"] == {"done": 20}
        path = f"/api/v1/analyses?crawl_id={crawl_id}"
        wait_for(lambda: [one["state"] for one in fleet.get(path)["items"]] == ["success"], "the analysis")
        wait_for(lambda: not ledger.open_jobs(postgres_url), "the end of all jobs")
        assert ledger.check(postgres_url, crawl_id, Expected(urls=site.urls)) == []
        assert ledger.check_jobs(postgres_url) == []
        if nodes:
            wait_for_node(fleet, "worker-1", state="connected")


# Earlier bugs


async def test_bug_1_a_node_id_with_hyphens_is_plain_text_and_its_format_is_checked(store_url: str) -> None:
    async with control_plane(store_url) as plane:
        first, longer = str(uuid.uuid4()), "4e-1"
        for name in (first, longer):
            await register(plane.app.fleet.nodes, name)
        ids = [job.id for job in await plane.app.queue.enqueue([new_job(node_lane(n)) for n in (longer, f"{longer}1")])]
        await plane.app.queue.recovery.hand_back(node_lane(longer))
        assert await lanes(plane, *ids) == ["shared", node_lane(f"{longer}1")]
        for name in ("a%", "a_b", "a.*", "a/b", "", "ä", "x" * 64):
            with pytest.raises(InvalidInput, match="node_id"):
                await register(plane.app.fleet.nodes, name)


async def test_bug_2_every_error_path_of_a_stream_warns(sqlite_url: str) -> None:
    async with control_plane(sqlite_url) as plane, plane.channel() as channel:
        for place, sent in enumerate((status("a/b"), status(max_concurrency=0)), 1):
            call = open_session(channel)
            await call.write(sent)
            await plane.until(lambda place=place: len(plane.of(StreamFailed)) == place)
        call = open_session(channel)
        await call.write(status())
        await plane.until(lambda: len(plane.of(NodeRegistered)) == 1)
        call.cancel()
        await plane.until(lambda: len(plane.of(StreamFailed)) == 3 and len(plane.of(NodeDisconnected)) == 1)
    for name in ("StreamFailed", "NodeDisconnected", "NodeLost", "ControlLost"):
        assert MESSAGES[name].level is LogLevel.WARNING


def test_bug_2_no_error_is_swallowed_in_the_package() -> None:
    for path in FLEET.glob("*.py"):
        for found in ast.walk(ast.parse(path.read_text())):
            if isinstance(found, ast.ExceptHandler):
                assert not all(isinstance(line, ast.Pass) for line in found.body), f"{path.name}:{found.lineno}"


async def test_bug_3_the_first_heartbeat_and_a_reconnect_are_treated_like_all_others(store_url: str) -> None:
    async with control_plane(store_url) as plane, plane.channel() as channel:
        for session in (1, 2):
            call = open_session(channel)
            for beat in (1, 2):
                await call.write(status(active_tasks=1, total_processed=7))
                await plane.until(lambda count=2 * session - 2 + beat: len(plane.of(HeartbeatReceived)) == count)
                await plane.save()
                node = await plane.node("seed-1")
                assert node is not None
                seen = (node.status.active_tasks, node.status.total_processed, node.state, node.session_epoch)
                assert seen == (1, 7, NodeState.CONNECTED, session)
            call.cancel()
            await plane.until(lambda session=session: len(plane.of(NodeDisconnected)) == session)


async def test_bug_4_a_dispatch_counts_at_its_entry_although_its_commit_fails(store_url: str) -> None:
    async with control_plane(store_url) as plane:
        app = plane.app
        app.fleet.start()
        await register(app.fleet.nodes, "a", page_slots=1)
        await app.fleet.refresh.run_once()

        async def fail(tx: Tx) -> None:
            await app.queue.enqueue_in(tx, [new_job("shared") for _ in range(3)])
            raise InvalidInput("it", "fails", "never mind")

        with pytest.raises(InvalidInput):
            await app.database.run(fail)
        assert app.fleet.dispatcher.take_counts() == {"a": 2, "shared_queue": 1}


async def test_bug_5_what_a_node_held_or_was_offered_comes_back_without_an_attempt(store_url: str) -> None:
    async with control_plane(store_url) as plane:
        queue, nodes = plane.app.queue, plane.app.fleet.nodes
        begun = await register(nodes, "a")
        ids = [job.id for job in await queue.enqueue([new_job(node_lane("a")) for _ in range(3)])]
        await queue.lease("a/7", ["page"], [node_lane("a")], 1)
        assert await queue.recovery.recover("a/7") == 1  # it was restarted
        await nodes.deregister(node_registry.check_node_id("a"), begun.epoch)  # it deregisters

        async def read(tx: Tx) -> list[tuple[str, JobState, int]]:
            jobs = [await queue.jobs.get(tx, job_id) for job_id in ids]
            return [(job.lane, job.state, job.attempts) for job in jobs if job is not None]

        assert await plane.app.database.read(read) == [("shared", JobState.PENDING, 0)] * 3


@pytest.mark.parametrize("name", SEED_DEFAULTS)
def test_bug_6_each_setting_has_one_default_an_environment_variable_and_a_line_in_the_example(name: str) -> None:
    assert re.search(rf"^#? ?{name}=", (ROOT / ".env.example").read_text(), re.MULTILINE)
    by_name = {
        "GRPC_ENABLED": lambda grpc: grpc.enabled,
        "GRPC_LISTEN_ADDR": lambda grpc: str(grpc.listen).replace("0.0.0.0", "").replace("127.0.0.1", ""),
        "GRPC_HEARTBEAT_INTERVAL": lambda grpc: grpc.heartbeat_interval,
        "GRPC_RECONNECT_BACKOFF": lambda grpc: grpc.reconnect_backoff,
        "GRPC_MAX_RECONNECT_BACKOFF": lambda grpc: grpc.max_reconnect_backoff,
    }
    other = {"GRPC_ENABLED": "true", "GRPC_LISTEN_ADDR": "127.0.0.1:4711"}.get(name, "7s")
    usual, changed = (load({}, env=env).settings.grpc for env in ({}, {name: other}))
    assert by_name[name](usual) == SEED_DEFAULTS[name]
    assert by_name[name](changed) != SEED_DEFAULTS[name]

"""Dispatch on real stores: jobs reach the lanes of nodes, the reasons can be explained, and back-pressure holds back
those who create jobs in batches."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.app import App
from shoal.base.errors import HeldBack
from shoal.base.ids import NodeId
from shoal.base.settings import FleetSettings, GrpcSettings
from shoal.base.signals import Signal
from shoal.crawl.crawl import CrawlConfig
from shoal.fleet.explain import explain_node
from shoal.fleet.node import NewSession, NodeStatus
from shoal.fleet.view import FleetSeen
from shoal.page_jobs.spec import GroupConfig
from shoal.plan.policy import PolicyForm
from shoal.queue.enqueuer import JobsHeldBack
from shoal.queue.job import node_lane
from shoal.queue.states import JobState
from tests.contract.conftest import SITE, Bench

A = NodeId("node-a")


class Controller:
    """A controller's app on the store of a bench, whose chores a test runs."""

    def __init__(self, bench: Bench, **fleet: Any) -> None:
        settings = replace(bench.app.settings, grpc=GrpcSettings(enabled=True), fleet=FleetSettings(**fleet))
        database: Any = bench.database
        self.app = App(bench.open_stores(settings), database, controls=True)
        self.chores = {chore.name: chore for chore in self.app.fleet.start()}

    async def register(self, node_id: NodeId = A, **status: Any) -> None:
        values = {"max_concurrency": 2, "page_slots": 15, "instance": "one"} | status
        session = NewSession(
            node_id=node_id,
            controller=self.app.process_name,
            address="127.0.0.1",
            heartbeat_every=timedelta(seconds=10),
            status=NodeStatus(**values),
        )
        await self.app.fleet.nodes.register(session)
        await self.look()

    async def look(self) -> None:
        await self.chores["fleet view"].run_once()

    async def make(self, count: int) -> list[str]:
        """Make a batch of page jobs; returns their lanes."""
        group = await self.app.page_jobs.groups.make(GroupConfig(urls=[f"{SITE}/{place}" for place in range(count)]))
        rows = await self.app.database.read(lambda tx: self.app.queue.jobs.jobs_of_run(tx, group.id))
        return [job.lane for job in rows]


def held(seen: list[Signal]) -> list[tuple[str, int]]:
    return [(one.source, one.jobs) for one in seen if isinstance(one, JobsHeldBack)]


async def test_every_job_of_a_batch_is_dispatched(bench: Bench) -> None:
    controller = Controller(bench)
    assert await controller.make(3) == ["shared"] * 3
    await controller.register()
    assert await controller.make(5) == [node_lane(A)] * 5
    crawl = await controller.app.crawls.submit(CrawlConfig(seeds=[f"{SITE}/"], sitemap="off"))
    [walker] = await bench.database.read(lambda tx: bench.queue.jobs.jobs_of_run(tx, crawl.id))
    assert walker.lane == node_lane(A)
    node = await controller.app.fleet.nodes.get(A)
    assert (node.run_depth, node.page_depth) == (1, 5)
    leases = await bench.queue.lease("node-a/1", ["page"], [node_lane(A), "shared"], 20)
    assert len(leases) == 8
    assert await bench.number("SELECT count(*) FROM job WHERE offered_until IS NOT NULL") == 1
    counter = controller.chores["dispatch counter"]
    await counter.run_once()
    assert [signal.targets for signal in bench.signals_seen if type(signal).__name__ == "JobsDispatched"] == [
        {"shared_queue": 3, A: 6}
    ]


async def test_each_refresh_signals_the_state_of_the_fleet(bench: Bench) -> None:
    controller = Controller(bench)
    await controller.register()
    await controller.make(6)
    await controller.look()
    seen = [signal for signal in bench.signals_seen if isinstance(signal, FleetSeen)][-1]
    [node] = seen.nodes
    assert (seen.connected, node.id, node.depth, node.health.depth) == (1, A, 6, 0.7)
    assert seen.pressure == [("runs", 0.0, False), ("pages", 0.2, False)]


async def test_a_large_fleet_is_read_less_often(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.fleet.view.READ_PER_SECOND", 2)
    controller = Controller(bench)
    for place in range(6):
        await controller.register(NodeId(f"node-{place}"))
    assert (await controller.chores["fleet view"].run_once()).again_in == timedelta(seconds=3)


async def test_with_shared_dispatch_everything_is_shared(bench: Bench) -> None:
    controller = Controller(bench, dispatch="shared")
    await controller.register()
    assert await controller.make(3) == ["shared"] * 3
    assert "dispatch counter" not in controller.chores


async def test_a_process_that_starts_no_fleet_dispatches_nothing(bench: Bench) -> None:
    await Controller(bench).register()
    job = await bench.enqueue()
    assert (await bench.job(job)).lane == "shared"
    assert "dispatch" not in (await bench.job_admin.explain(job)).facts


async def test_the_explanation_of_a_job_names_the_candidates_and_what_became_of_the_offer(bench: Bench) -> None:
    controller = Controller(bench)
    await controller.register()
    await controller.register(NodeId("node-b"), page_slots=1, success_rate=0.1)
    await controller.make(1)
    [row] = await bench.sql("SELECT id FROM job")
    job = row["id"]

    async def outcome() -> str:
        return str((await bench.job_admin.explain(job)).facts["dispatch"]["outcome"])

    found = await bench.job_admin.explain(job)
    assert found.reason == "offered"
    lane = (await bench.job(job)).lane
    node_id = lane.removeprefix("node/")
    assert f"offered to node {node_id}" in str(found.sentence)
    dispatch = found.facts["dispatch"]
    assert (dispatch["node_id"], dispatch["nodes"], dispatch["outcome"]) == (node_id, 2, "offered")
    assert [one["node_id"] for one in dispatch["candidates"]] == [A, "node-b"]
    assert dispatch["candidates"][0] == {"node_id": A, "score": 1.0, "skipped": ""}
    lease = await bench.lease(f"{node_id}/1", lane=lane)
    assert await outcome() == "taken"
    await bench.queue.release(lease, "drained")
    assert await outcome() == "returned"
    await bench.sql("DELETE FROM job")
    await controller.make(1)
    [row] = await bench.sql("SELECT id FROM job")
    job = row["id"]
    await bench.jump(11)
    await bench.janitor().run_once()
    assert await outcome() == "spilled_over"
    assert (await bench.job_admin.explain(job)).reason == "no_worker"
    await bench.lease("w9")
    assert await outcome() == "spilled_over"


async def test_a_node_that_takes_nothing_gets_less_and_less_until_it_leases_a_job(bench: Bench) -> None:
    controller = Controller(bench)
    await controller.register(max_concurrency=1000, page_slots=1000)
    assert await controller.make(4) == [node_lane(A)] * 4
    score = (await controller.app.fleet.nodes.get(A)).health.value
    await bench.jump(11)
    await bench.janitor().run_once()
    node = await controller.app.fleet.nodes.get(A)
    assert node.lapsed_offers == 1, "one sweep, however many offers"
    assert node.health.value >= score, "its score does not change by that"
    for _ in range(20):  # as many sweeps would find
        await bench.database.run(lambda tx: tx.execute("count_lapse", id=A))
    await controller.look()
    node = await controller.app.fleet.nodes.get(A)
    assert await controller.make(5) == ["shared"] * 5
    found = explain_node(node, [node], private=True, is_flapping=lambda _: False)
    assert (found.reason, found.dispatch_share < 0.00001) == ("offers_lapsed", True)
    assert "did not take jobs that were offered to it (21 times in a row)" in str(found.sentence)

    await controller.chores["fleet janitor"].run_once()
    assert (await controller.app.fleet.nodes.get(A)).lapsed_offers == 21
    await bench.queue.lease("node-a/1", ["page"], [node_lane(A), "shared"], 1)
    await controller.chores["fleet janitor"].run_once()
    await controller.look()
    assert (await controller.app.fleet.nodes.get(A)).lapsed_offers == 0
    assert await controller.make(5) == [node_lane(A)] * 5


async def test_a_batch_is_refused_while_the_nodes_are_used_up(bench: Bench) -> None:
    controller = Controller(bench)
    await controller.register(page_slots=5)
    await controller.make(9)
    with pytest.raises(HeldBack, match="used to 90% for pages") as refused:
        await controller.make(3)
    assert refused.value.problem()["code"] == "back_pressure"
    assert refused.value.facts["retry_after_seconds"] == 5
    assert held(bench.signals_seen) == [("batch", 3)]
    assert await bench.number("SELECT count(*) FROM job") == 9
    leases = await bench.queue.lease("node-a/1", ["page"], [node_lane(A)], 5)
    for lease in leases:
        await bench.queue.finish(lease)
    await controller.look()
    assert len(await controller.make(3)) == 3


async def test_without_nodes_a_batch_is_refused_when_the_shared_lane_is_deep(bench: Bench) -> None:
    controller = Controller(bench, shared_depth_max=4)
    await controller.make(4)
    assert len(await controller.make(1)) == 1  # the view has not been refreshed since
    await controller.look()
    with pytest.raises(HeldBack, match="4 or more jobs wait in the shared lane"):
        await controller.make(1)


@pytest.mark.parametrize("kind", ["page", "site"])
async def test_schedulers_create_nothing_while_the_nodes_are_used_up(bench: Bench, kind: str) -> None:
    controller = Controller(bench)
    app = controller.app
    where = {"url": f"{SITE}/page"} if kind == "page" else {"seeds": [f"{SITE}/"]}
    await app.plan.policies.make(PolicyForm.read({**where, "frequency": "1h"}))
    busy = {"active_pages": 26} if kind == "page" else {"active_tasks": 4}
    await controller.register(**busy)
    scheduler: Any = app.plan.scheduler if kind == "page" else app.plan.site_scheduler
    await bench.jump(1)
    await scheduler.run_once()
    assert await bench.number("SELECT count(*) FROM job") == 0
    assert held(bench.signals_seen) == [(scheduler.name, 0)]
    await controller.register(instance="two")
    await scheduler.run_once()
    [row] = await bench.sql("SELECT state, lane FROM job")
    assert (row["state"], row["lane"]) == (JobState.PENDING, node_lane(A))
    await scheduler.run_once()
    assert len(held(bench.signals_seen)) == 1

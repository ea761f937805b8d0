"""Several controllers on one store that act at the same time or take over from each other."""

import asyncio
from typing import Any

from msgspec.structs import replace

from shoal.app import App
from shoal.base.ids import NodeId
from shoal.base.settings import FleetSettings, GrpcSettings
from shoal.fleet.node import Heartbeat, NodeStatus
from shoal.fleet.nodes import NodeLost
from shoal.fleet.states import NodeState
from shoal.page_jobs.spec import GroupConfig
from shoal.queue.job import node_lane
from tests.contract.conftest import SITE, Bench
from tests.support.nodes import EVERY, register

MANY = 200
LOST_AFTER = 31


def controller(bench: Bench, name: str) -> App:
    """Return another controller on the store of a bench."""
    settings = replace(bench.app.settings, grpc=GrpcSettings(enabled=True), fleet=FleetSettings())
    database: Any = bench.database
    app = App(bench.open_stores(settings), database, controls=True)
    app.process_name = name
    app.fleet.start()
    return app


async def test_two_janitors_declare_a_node_lost_once(bench: Bench) -> None:
    first, second = controller(bench, "c1"), controller(bench, "c2")
    await register(first.fleet.nodes, "a")
    await bench.jump(LOST_AFTER)
    [silent] = await first.fleet.nodes.overdue(10)
    lost = await asyncio.gather(*(app.fleet.nodes.lose(silent) for app in (first, second, first, second)))
    assert sorted(lost) == [False, False, False, True]
    assert await bench.number("SELECT count(*) FROM outbox WHERE type = 'node.lost'") == 1
    assert len([one for one in bench.signals_seen if isinstance(one, NodeLost)]) == 1


async def test_a_controller_that_was_suspended_and_wakes_declares_nobody_lost(bench: Bench) -> None:
    """It still considered itself current while another one took over its nodes."""
    old, new = controller(bench, "c1"), controller(bench, "c2")
    begun = await register(old.fleet.nodes, "a")
    await old.fleet.janitor.run_once()
    await bench.jump(LOST_AFTER)
    again = await register(new.fleet.nodes, "a")
    late = Heartbeat(NodeId("a"), begun.epoch, NodeStatus(max_concurrency=9, instance="a-1"), EVERY)
    assert await old.fleet.nodes.heartbeat([late]) == set()
    assert not await old.fleet.nodes.disconnect(NodeId("a"), begun.epoch)
    await old.fleet.janitor.run_once()
    node = await new.fleet.nodes.get("a")
    assert (node.state, node.controller, node.session_epoch) == (NodeState.CONNECTED, "c2", again.epoch)
    assert node.status.max_concurrency == 2


async def test_two_hundred_nodes_of_a_controller_that_restarts_are_not_lost(bench: Bench) -> None:
    old = controller(bench, "c1")
    names = [f"node-{number}" for number in range(MANY)]
    for name in names:
        await register(old.fleet.nodes, name)
    await bench.jump(300)  # the controller was down
    new = controller(bench, "c2")
    janitor = new.fleet.janitor
    for number, name in enumerate(names):
        if number % 40 == 0:
            await janitor.run_once()
            await bench.jump(4)  # they come back one after the other
        await register(new.fleet.nodes, name)
    status = NodeStatus(max_concurrency=2, instance="one")
    await new.fleet.nodes.heartbeat([Heartbeat(NodeId(name), 2, status, EVERY) for name in names])
    await bench.jump(20)
    await janitor.run_once()  # its grace period is over
    assert {node.state for node in await new.fleet.nodes.list_all()} == {NodeState.CONNECTED}
    assert await bench.number("SELECT count(*) FROM outbox WHERE type = 'node.lost'") == 0


async def test_an_offer_of_which_its_node_never_hears_is_found_when_it_looks_or_goes_to_all(bench: Bench) -> None:
    """Offers are not sent in messages: a node that missed the wake-up finds its offer at the next poll, and other nodes
    once the offer has expired."""
    app = controller(bench, "c1")
    await register(app.fleet.nodes, "a")
    await app.fleet.refresh.run_once()
    group = await app.page_jobs.groups.make(GroupConfig(urls=[f"{SITE}/1", f"{SITE}/2"]))
    jobs = await app.database.read(lambda tx: app.queue.jobs.jobs_of_run(tx, group.id))
    assert {job.lane for job in jobs} == {node_lane("a")}
    [found] = await app.queue.lease("a/1", ["page"], [node_lane("a"), "shared"], 1)
    assert found.fence.job_id in {job.id for job in jobs}
    assert await app.queue.lease("b/1", ["page"], [node_lane("b"), "shared"], 9) == []
    await app.queue.finish(found)
    await bench.jump(11)
    await bench.janitor().run_once()
    [other] = await app.queue.lease("b/1", ["page"], [node_lane("b"), "shared"], 9)
    assert {found.fence.job_id, other.fence.job_id} == {job.id for job in jobs}

"""The dispatcher and back-pressure: who gets a job, how often, and when nobody does."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
import pytest

from shoal.base.errors import InvalidInput
from shoal.base.ids import JobId, NodeId
from shoal.base.signals import Signal, Signals
from shoal.fleet.dispatcher import SHARED_QUEUE, DispatchCounter, Dispatcher, JobsDispatched
from shoal.fleet.explain import explain_node
from shoal.fleet.node import (
    CommandName,
    CommandRequest,
    DesiredState,
    Node,
    NodeStatus,
    commands_to_reach,
    desired_after,
)
from shoal.fleet.nodes import NodeDisconnected, NodeLeft, NodeLost
from shoal.fleet.states import NodeState
from shoal.fleet.view import BackPressureChanged, FleetPressure, FleetView
from shoal.queue.job import JS, NewJob, Offer, local_lane, node_lane

TTL = timedelta(seconds=10)
DRAWS = 20_000


def node(
    name: str, *, runs: int = 0, pages: int = 0, in_browser: int = 0, controller: str | None = "c1", **status: Any
) -> Node:
    values = {"max_concurrency": 2, "page_slots": 15, "instance": "i"} | status
    return Node(
        id=NodeId(name),
        state=values.get("state", NodeState.CONNECTED),
        session_epoch=3,
        controller=controller,
        address="",
        status=NodeStatus(**values),
        desired=DesiredState(),
        heartbeat_every=TTL,
        connected_at=0,
        heartbeat_at=0,
        lost_at=None,
        seen_at=0,
        run_depth=runs,
        page_depth=pages,
        browser_depth=in_browser,
    )


def view_of(*nodes: Node, shared: int = 0) -> FleetView:
    view = FleetView()
    view.install(nodes, shared)
    return view


def dispatcher_of(*nodes: Node, seed: int = 7) -> Dispatcher:
    return Dispatcher(view_of(*nodes), TTL, random.Random(seed).random)


def jobs(count: int = 1, kind: str = "page", **more: Any) -> list[NewJob]:
    return [NewJob(JobId(f"job_{place}"), kind, None, **more) for place in range(count)]


def lanes_of(placed: Sequence[NewJob]) -> Counter[str]:
    return Counter(job.lane for job in placed)


# Distribution


def test_jobs_are_spread_in_proportion_to_the_scores() -> None:
    # Plenty of room, so that only the scores decide.
    nodes = [
        node(f"n{place}", page_slots=DRAWS, success_rate=rate, avg_latency_seconds=latency)
        for place, (rate, latency) in enumerate([(1.0, 0.0), (0.75, 0.0), (0.5, 150.0), (0.0, 0.0), (0.0, 300.0)])
    ]
    placed = dispatcher_of(*nodes).choose_lanes(jobs(DRAWS))
    found = lanes_of(placed)
    total = sum(one.health.value for one in nodes)
    expected = {node_lane(one.id): DRAWS * one.health.value / total for one in nodes}
    chi_square = sum((found[lane] - wanted) ** 2 / wanted for lane, wanted in expected.items())
    assert chi_square < 18.5  # 4 degrees of freedom: exceeded by chance once in a thousand seeds
    assert sum(found.values()) == DRAWS


def test_a_node_that_let_offers_lapse_gets_less_and_another_one_the_rest() -> None:
    wide = {"page_slots": 100_000}
    good, bad = node("good", **wide), replace(node("bad", **wide), lapsed_offers=3)
    lanes = lanes_of(dispatcher_of(good, bad).choose_lanes(jobs(DRAWS)))
    assert lanes[node_lane("bad")] / DRAWS == pytest.approx(1 / 9, abs=0.02)
    assert lanes[node_lane("good")] + lanes[node_lane("bad")] == DRAWS
    assert explain_node(bad, [good, bad], private=True, is_flapping=lambda _: False).dispatch_share == pytest.approx(
        1 / 9
    )
    alone = dispatcher_of(bad).choose_lanes(jobs(DRAWS))
    assert lanes_of(alone)["shared"] / DRAWS == pytest.approx(7 / 8, abs=0.02)
    assert {orjson.loads(job.dispatch or "")["reason"] for job in alone if job.lane == "shared"} == {"offers_lapsed"}


def test_full_nodes_are_skipped_and_the_others_keep_their_proportions() -> None:
    full = [node(f"full{place}", pages=30) for place in range(50)]
    better, worse = node("better", page_slots=DRAWS), node("worse", page_slots=DRAWS, success_rate=0.0)
    found = lanes_of(dispatcher_of(*full, better, worse).choose_lanes(jobs(DRAWS)))
    assert set(found) == {node_lane("better"), node_lane("worse")}
    share = better.health.value / (better.health.value + worse.health.value)
    assert found[node_lane("better")] == pytest.approx(DRAWS * share, rel=0.03)


def test_a_node_gets_no_more_than_twice_its_slots_and_the_rest_is_shared() -> None:
    nodes = [node("a", pages=25), node("b", page_slots=4), node("c", runs=4)]
    found = lanes_of(dispatcher_of(*nodes).choose_lanes(jobs(100)))
    assert found == {node_lane("a"): 5, node_lane("b"): 8, node_lane("c"): 30, "shared": 57}


def test_runs_and_page_jobs_have_room_of_their_own() -> None:
    dispatcher = dispatcher_of(node("a", runs=4))
    assert lanes_of(dispatcher.choose_lanes(jobs(2, "crawl"))) == {"shared": 2}
    assert lanes_of(dispatcher.choose_lanes(jobs(2, "page"))) == {node_lane("a"): 2}
    dispatcher = dispatcher_of(node("a", pages=30))
    assert lanes_of(dispatcher.choose_lanes([*jobs(3, "crawl"), *jobs(3, "analysis")])) == {
        node_lane("a"): 4,
        "shared": 2,
    }


def test_a_client_with_one_kind_of_slots_is_full_for_all_jobs() -> None:
    old = {"instance": "", "page_slots": 0}
    assert lanes_of(dispatcher_of(node("a", runs=3, **old)).choose_lanes(jobs(3))) == {node_lane("a"): 1, "shared": 2}
    both = dispatcher_of(node("a", **old)).choose_lanes([*jobs(2, "crawl"), *jobs(2, "page"), *jobs(1, "crawl")])
    assert lanes_of(both) == {node_lane("a"): 4, "shared": 1}


def test_a_worker_without_page_slots_gets_no_page_jobs() -> None:
    assert lanes_of(dispatcher_of(node("a", page_slots=0)).choose_lanes(jobs())) == {"shared": 1}


@pytest.mark.parametrize(
    "absent",
    [
        node("a", controller=None),
        *(node("a", state=state) for state in NodeState if state is not NodeState.CONNECTED),
        node("a", capabilities=("pdf",)),
        node("a", success_rate=0.0, active_tasks=2, avg_latency_seconds=300.0, pages=20),
    ],
    ids=["no session", *(state for state in NodeState if state is not NodeState.CONNECTED), "incapable", "score 0"],
)
def test_nothing_is_dispatched_to_a_node_that_cannot_take_it(absent: Node) -> None:
    assert lanes_of(dispatcher_of(absent).choose_lanes(jobs(5))) == {"shared": 5}
    found = lanes_of(dispatcher_of(absent, node("b", page_slots=50)).choose_lanes(jobs(5)))
    assert found == {node_lane("b"): 5}


def test_a_job_goes_only_to_nodes_with_its_capability() -> None:
    nodes = [node("plain"), node("browser", capabilities=("http", "js"))]
    assert lanes_of(dispatcher_of(*nodes).choose_lanes(jobs(8, capability=JS))) == {node_lane("browser"): 8}


def test_only_jobs_that_are_due_and_would_be_shared_are_dispatched() -> None:
    given = [
        *jobs(1, not_before=1),
        *jobs(1, lane=local_lane("crl_1")),
        *jobs(1, lane=node_lane("b")),
        *jobs(1, kind="audit"),
    ]
    dispatcher = dispatcher_of(node("a"))
    assert dispatcher.choose_lanes(given) == given
    assert dispatcher.take_counts() == {}


# The stored decision


def test_a_dispatched_job_has_an_offer_and_the_reason() -> None:
    nodes = [node("a"), node("b", pages=30), node("c", capabilities=("pdf",))]
    [placed] = dispatcher_of(*nodes).choose_lanes(jobs())
    assert (placed.lane, placed.offer) == (node_lane("a"), Offer("a:3", TTL))
    assert orjson.loads(placed.dispatch or "") == {
        "node_id": "a",
        "reason": "weighted_random",
        "nodes": 3,
        "candidates": [["a", 1.0, ""], ["c", 1.0, "lacks http"], ["b", 0.9, "full"]],
    }


def test_pages_that_need_a_browser_have_fewer_slots_than_others() -> None:
    browser = node("a", capabilities=("http", "js"), browser_slots=2, pages=3, in_browser=3)
    dispatcher = dispatcher_of(browser, node("b"))
    assert lanes_of(dispatcher.choose_lanes(jobs(3, capability=JS))) == {node_lane("a"): 1, "shared": 2}
    assert node_lane("a") in lanes_of(dispatcher.choose_lanes(jobs(20)))
    full = node("a", capabilities=("http", "js"), browser_slots=20, pages=30)
    assert lanes_of(dispatcher_of(full).choose_lanes(jobs(1, capability=JS))) == {"shared": 1}
    unlimited = node("a", capabilities=("js",), page_slots=4)  # it did not say how many
    assert lanes_of(dispatcher_of(unlimited).choose_lanes(jobs(9, capability=JS))) == {node_lane("a"): 8, "shared": 1}


def test_a_job_that_no_node_has_room_for_says_so() -> None:
    [placed] = dispatcher_of(node("b", pages=30)).choose_lanes(jobs())
    assert (placed.lane, placed.offer) == ("shared", None)
    assert orjson.loads(placed.dispatch or "")["reason"] == "no_room"


def test_without_nodes_jobs_stay_as_they_are() -> None:
    given = jobs(3)
    assert dispatcher_of().choose_lanes(given) == given


def test_the_node_that_was_chosen_is_among_few_candidates() -> None:
    best = [node(f"best{place}", pages=30) for place in range(10)]
    [placed] = dispatcher_of(*best, node("poor", success_rate=0.1)).choose_lanes(jobs())
    names = [name for name, _, _ in orjson.loads(placed.dispatch or "")["candidates"]]
    assert (len(names), names[-1]) == (5, "poor")


def test_all_jobs_of_a_node_share_one_reason() -> None:
    placed = dispatcher_of(node("a")).choose_lanes(jobs(10))
    assert len({id(job.dispatch) for job in placed}) == 1


def test_jobs_keep_their_order_and_everything_else() -> None:
    given = [*jobs(2, priority=90), *jobs(2, "crawl", dedupe_key="k"), *jobs(1, not_before=5)]
    placed = dispatcher_of(node("a")).choose_lanes(given)
    kept = [(job.id, job.kind, job.priority, job.dedupe_key, job.not_before) for job in placed]
    assert kept == [(job.id, job.kind, job.priority, job.dedupe_key, job.not_before) for job in given]


# Counting and the view


async def test_every_job_counts_when_its_lane_is_chosen() -> None:
    dispatcher, signals, seen = dispatcher_of(node("a", pages=27)), Signals(), list[Signal]()
    signals.subscribe(seen.append)
    chore = DispatchCounter(dispatcher, signals)
    dispatcher.choose_lanes(jobs(5))
    dispatcher.choose_lanes(jobs(2))
    await chore.run_once()
    await chore.run_once()
    assert seen == [JobsDispatched(targets={"a": 3, SHARED_QUEUE: 4})]


def test_a_refresh_makes_room_again() -> None:
    view = view_of(node("a", page_slots=1))
    dispatcher = Dispatcher(view, TTL)
    assert lanes_of(dispatcher.choose_lanes(jobs(3))) == {node_lane("a"): 2, "shared": 1}
    view.install([node("a", page_slots=1)], 0)
    assert lanes_of(dispatcher.choose_lanes(jobs(3))) == {node_lane("a"): 2, "shared": 1}


@pytest.mark.parametrize(
    "signal",
    [
        NodeDisconnected(node_id="a", epoch=3),
        NodeLeft(node_id="a", returned=0),
        NodeLost(node_id="a", silent_seconds=31.0, returned=0),
    ],
    ids=["disconnected", "left", "lost"],
)
def test_a_node_whose_session_ended_here_gets_nothing_more_at_once(signal: Signal) -> None:
    view = view_of(node("a"), node("b"))
    dispatcher = Dispatcher(view, TTL)
    dispatcher.choose_lanes(jobs())
    view.listen(signal)
    assert set(lanes_of(dispatcher.choose_lanes(jobs(10)))) == {node_lane("b")}


def test_many_nodes_are_all_used() -> None:
    nodes = [node(f"n{place}", page_slots=1) for place in range(1_000)]
    found = lanes_of(dispatcher_of(*nodes).choose_lanes(jobs(2_100)))
    assert found["shared"] == 100
    assert set(Counter(found.values())) == {2, 100}


# Back-pressure


def pressure_of(*nodes: Node, shared: int = 0, dispatches: bool = True) -> tuple[FleetPressure, list[Signal]]:
    signals, seen = Signals(), list[Signal]()
    signals.subscribe(seen.append)
    return FleetPressure(view_of(*nodes, shared=shared), signals, 100, dispatches=dispatches), seen


@pytest.mark.parametrize(
    ("nodes", "held"),
    [
        ([node("a", pages=24)], False),  # exactly 80 %
        ([node("a", pages=25)], True),
        ([node("a", pages=20, active_pages=4)], False),
        ([node("a", pages=20, active_pages=5)], True),
        ([node("a", pages=30, active_pages=15), node("b")], False),  # 45 of 60
        ([node("a", pages=30, active_pages=15), node("b", pages=4)], True),
        ([node("a", pages=30, active_pages=15), node("b", state=NodeState.PAUSED)], True),  # takes nothing
        ([node("a", runs=4, active_tasks=2)], False),  # these slots are of the other class
    ],
)
def test_page_jobs_are_held_back_above_four_fifths_of_the_capacity(nodes: list[Node], held: bool) -> None:
    pressure, _ = pressure_of(*nodes, shared=1_000)
    assert (pressure.check("page") is not None) == held


def test_runs_are_held_back_by_their_own_load() -> None:
    pressure, _ = pressure_of(node("a", runs=3, active_tasks=1))
    assert (pressure.check("crawl"), pressure.check("analysis"), pressure.check("page")) == (
        "the nodes are used to 100% for runs, more than 80%",
        "the nodes are used to 100% for runs, more than 80%",
        None,
    )


def test_without_nodes_the_depth_of_the_shared_lane_decides() -> None:
    assert pressure_of(shared=99)[0].check("page") is None
    assert pressure_of(shared=100)[0].check("page") == "100 or more jobs wait in the shared lane"
    assert pressure_of(node("a", state=NodeState.DRAINED), shared=100)[0].check("page") is not None
    assert pressure_of(node("a"), shared=100, dispatches=False)[0].check("page") is not None


def test_jobs_dispatched_since_the_last_refresh_count_as_pressure() -> None:
    view = view_of(node("a"))
    pressure = FleetPressure(view, Signals(), 100)
    dispatcher = Dispatcher(view, TTL)
    dispatcher.choose_lanes(jobs(24))
    assert pressure.check("page") is None
    dispatcher.choose_lanes(jobs(1))
    assert pressure.check("page") is not None


def test_a_change_of_back_pressure_is_reported_once() -> None:
    signals, seen, view = Signals(), list[Signal](), view_of(node("a", pages=30))
    signals.subscribe(seen.append)
    pressure = FleetPressure(view, signals, 100)
    for _ in range(2):
        assert [one.load for one in pressure.report()] == [0.0, 1.0]
    view.install([node("a")], 0)
    pressure.report()
    assert [(one.job_class, one.held) for one in seen if isinstance(one, BackPressureChanged)] == [
        ("pages", True),
        ("pages", False),
    ]


# Commands


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"command": "config_update"}, "command"),
        ({"command": "pause", "max_concurrency": 2}, "command"),
        ({"command": "resume", "unlimited_rate": True}, "command"),
        ({"command": "config_update", "max_concurrency": 0}, "max_concurrency"),
        ({"command": "config_update", "max_concurrency": -1}, "max_concurrency"),
        ({"command": "config_update", "max_concurrency": 1_001}, "max_concurrency"),
        ({"command": "config_update", "page_slots": 0}, "page_slots"),
        ({"command": "config_update", "rate_limit": 0.0}, "rate_limit"),
        ({"command": "config_update", "rate_limit": -2.0}, "rate_limit"),
        ({"command": "config_update", "rate_limit": float("nan")}, "rate_limit"),
        ({"command": "config_update", "rate_limit": float("inf")}, "rate_limit"),
        ({"command": "config_update", "rate_limit": 1.0, "unlimited_rate": True}, "rate_limit"),
        ({"command": "pause", "reason": "x" * 501}, "reason"),
    ],
)
def test_a_command_that_cannot_be_applied_is_refused(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        CommandRequest(**values).check()
    assert refused.value.facts["field"] == field


@pytest.mark.parametrize(
    ("command", "names"),
    [("pause", ["pause"]), ("drain", ["drain"]), ("resume", []), ("restart_browser", [])],
)
def test_the_desired_state_is_what_the_last_command_left(command: CommandName, names: list[str]) -> None:
    desired = DesiredState(max_concurrency=4)
    after = desired_after(desired, CommandRequest(command=command, reason="r").for_node(NodeId("a"), "tok_1"))
    found = commands_to_reach(NodeId("a"), after)
    assert [(one.id, one.command) for one in found] == [("", "config_update"), *(("", name) for name in names)]
    assert found[0].max_concurrency == 4
    assert commands_to_reach(NodeId("a"), DesiredState()) == []


# Nodes that connect again and again


def seen(name: str, epoch: int, at_seconds: float, **more: Any) -> Node:
    return replace(node(name, **more), session_epoch=epoch, seen_at=int(at_seconds * 1e6))


def test_a_node_that_flaps_gets_nothing_until_it_has_stayed_connected_for_a_minute() -> None:
    view = FleetView()
    dispatcher = Dispatcher(view, TTL)
    found = {}
    for at, epoch in [(0, 1), (5, 2), (10, 3), (15, 4), (20, 5), (30, 5), (64, 5), (65, 5), (80, 5)]:
        view.install([seen("steady", 1, at), seen("flapping", epoch, at)], 0)
        found[at] = node_lane("flapping") in lanes_of(dispatcher.choose_lanes(jobs(20)))
    assert found == {0: True, 5: True, 10: True, 15: True, 20: False, 30: False, 64: False, 65: True, 80: True}


def test_a_node_that_leaves_and_comes_back_all_the_time_flaps_too() -> None:
    view = FleetView()
    for at in range(0, 50, 10):
        view.install([seen("steady", 1, at), seen("restarting", 1 + at // 10, at)], 0)
        view.install([seen("steady", 1, at + 5)], 0)
    view.install([seen("steady", 1, 50), seen("restarting", 6, 50)], 0)
    assert [one.node_id for one in view.nodes] == ["steady"]
    assert view.is_flapping(NodeId("restarting"))
    view.install([seen("steady", 1, 200)], 0)
    view.install([seen("steady", 1, 201), seen("restarting", 9, 201)], 0)  # forgotten meanwhile
    assert not view.is_flapping(NodeId("restarting"))


def test_a_flapping_node_is_explained_and_is_no_capacity() -> None:
    view = FleetView()
    for at in range(5):
        view.install([seen("a", 1 + at, at)], 100)
    assert view.load("pages") is None
    told = explain_node(seen("a", 5, 4), [seen("a", 5, 4)], private=True, is_flapping=view.is_flapping)
    assert (told.reason, told.dispatch_share, told.rank) == ("flapping", 0.0, None)
    assert "more than 3 times within a minute" in str(told.sentence)


@pytest.mark.parametrize("desired", ["paused", "drained"])
def test_a_node_that_was_told_to_take_nothing_gets_nothing_though_it_has_not_heard_it_yet(desired: Any) -> None:
    told = replace(node("a"), desired=DesiredState(state=desired))
    assert lanes_of(dispatcher_of(told).choose_lanes(jobs(5))) == {"shared": 5}
    assert explain_node(told, [told], private=True, is_flapping=lambda _: False).reason == desired

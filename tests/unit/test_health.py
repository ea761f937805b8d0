"""The health score of a node, against the formula that it is defined by."""

import math
from itertools import product

import pytest

from shoal.fleet.node import HealthScore, NodeStatus, score
from shoal.fleet.states import NodeState


def formula(success: float, active: float, most: float, latency: float, depth: float) -> float:
    """The definition, word for word, for values within its range."""
    return (
        success * 0.4 + (1 - active / most) * 0.3 + (1 - min(latency / 300, 1)) * 0.2 + (1 - min(depth / 20, 1)) * 0.1
    )


def test_the_score_is_the_formula() -> None:
    rates, loads = [0.0, 0.25, 0.9, 1.0], [(0, 1), (1, 4), (2, 2), (15, 15)]
    latencies, depths = [0.0, 7.5, 150.0, 300.0, 1000.0], [0, 1, 10, 20, 50]
    for success, (active, most), latency, depth in product(rates, loads, latencies, depths):
        found = score(success_rate=success, active=active, most=most, latency_seconds=latency, depth=depth)
        assert found.value == pytest.approx(formula(success, active, most, latency, depth)), (success, latency, depth)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, 1.0),  # a node that has finished nothing yet
        ({"success_rate": 0.5}, 0.8),
        ({"active": 2}, 0.7),
        ({"latency_seconds": 300.0}, 0.8),
        ({"latency_seconds": 75.0}, 0.95),
        ({"depth": 20}, 0.9),
        ({"depth": 5}, 0.975),
        ({"success_rate": 0.0, "active": 2, "latency_seconds": 300.0, "depth": 20}, 0.0),
        ({"draining": True}, 0.0),
        # Every part is clamped, whatever a node claims.
        ({"success_rate": 7.0}, 1.0),
        ({"success_rate": -1.0}, 0.6),
        ({"active": 9}, 0.7),
        ({"active": -5}, 1.0),
        ({"latency_seconds": -1.0}, 1.0),
        ({"depth": -3}, 1.0),
        ({"most": 0}, 0.7),
        ({"most": -2}, 0.7),
        ({"success_rate": math.nan}, 0.6),
        ({"latency_seconds": math.inf}, 0.8),
        ({"latency_seconds": math.nan}, 0.8),
    ],
)
def test_examples_of_scores(values: dict[str, float], expected: float) -> None:
    asked = {"success_rate": 1.0, "active": 0, "most": 2, "latency_seconds": 0.0, "depth": 0} | values
    found = score(**asked)  # type: ignore[arg-type]
    assert found.value == pytest.approx(expected)
    for part in (found.success, found.load, found.latency, found.depth):
        assert 0 <= part <= 1


def test_a_draining_node_scores_nothing_and_its_parts_stay_visible() -> None:
    assert score(success_rate=1.0, active=0, most=2, latency_seconds=0.0, depth=0, draining=True) == HealthScore(
        1.0, 1.0, 1.0, 1.0, scores=False
    )


@pytest.mark.parametrize("state", [NodeState.DRAINING, NodeState.DRAINED])
def test_a_node_scores_nothing_while_it_drains_and_afterwards(state: NodeState) -> None:
    assert NodeStatus(max_concurrency=2, state=state).health(0).value == 0


def test_the_load_of_a_node_is_that_of_its_busier_kind_of_slots() -> None:
    assert NodeStatus(max_concurrency=2, active_tasks=1, page_slots=10, active_pages=2).health(0).load == 0.5
    assert NodeStatus(max_concurrency=2, active_tasks=1, page_slots=10, active_pages=9).health(0).load == pytest.approx(
        0.1
    )
    assert NodeStatus(max_concurrency=2, active_tasks=1).health(0).load == 0.5

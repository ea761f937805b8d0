"""The client of the control plane: when it tries again."""

import pytest

from shoal.base.clock import FakeClock
from shoal.base.ids import NodeId
from shoal.base.settings_loader import load
from shoal.base.signals import Signals
from shoal.fleet.control_client import ControlClient
from tests.support.control_plane import ScriptedNode


@pytest.fixture
def client() -> ControlClient:
    settings = load({"GRPC_ANALYZER_ADDR": "127.0.0.1:50051"}, env={}).settings.grpc
    return ControlClient(NodeId("a"), ScriptedNode(), settings, FakeClock(), Signals())


@pytest.mark.parametrize(
    ("failures", "shortest", "longest"),
    [(0, 5, 7.5), (1, 5, 7.5), (2, 10, 15), (3, 20, 30), (4, 40, 60), (5, 40, 60), (10_000, 40, 60)],
)
def test_the_wait_doubles_from_five_seconds_to_a_minute_with_jitter(
    client: ControlClient, failures: int, shortest: float, longest: float
) -> None:
    waits = [client._backoff(failures) for _ in range(200)]
    assert shortest <= min(waits) < 1.1 * shortest, "200 nodes of a controller that restarts do not come at once"
    assert 0.93 * longest < max(waits) <= longest

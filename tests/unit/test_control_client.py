"""The client of the control plane: when it tries again."""

import pytest

from shoal.base.clock import FakeClock
from shoal.base.ids import NodeId
from shoal.base.signals import Signals
from shoal.fleet.control_client import ControlClient
from shoal.settings_loader import load
from tests.support.control_plane import ScriptedNode


@pytest.fixture
def client() -> ControlClient:
    settings = load({"GRPC_ANALYZER_ADDR": "127.0.0.1:50051"}, env={}).settings.grpc
    return ControlClient(NodeId("a"), ScriptedNode(), settings, FakeClock(), Signals())


@pytest.mark.parametrize(("failures", "longest"), [(0, 5), (1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (10_000, 60)])
def test_the_wait_doubles_from_five_seconds_to_a_minute_with_jitter(
    client: ControlClient, failures: int, longest: float
) -> None:
    waits = [client._backoff(failures) for _ in range(200)]
    assert longest / 2 <= min(waits) < 0.6 * longest, "200 nodes of a controller that restarts do not come at once"
    assert 0.9 * longest < max(waits) <= longest

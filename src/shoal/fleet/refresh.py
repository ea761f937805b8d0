"""The chore that keeps a controller's view of the fleet up to date."""

from datetime import timedelta

from shoal.base.service import PassResult
from shoal.base.signals import Signal, Signals
from shoal.fleet.node import Node
from shoal.fleet.nodes import Nodes
from shoal.fleet.pressure import FleetPressure
from shoal.fleet.states import NodeState
from shoal.fleet.view import FleetView
from shoal.queue.job import SHARED_LANE
from shoal.queue.queue import Queue

READ_PER_SECOND = 2_000  # nodes


class FleetSeen(Signal, frozen=True, kw_only=True):
    """A snapshot of the fleet: the nodes that are not lost, how many of them have a session, and for each class of
    jobs the load and whether new jobs are held back."""

    connected: int
    nodes: list[Node]
    pressure: list[tuple[str, float, bool]]


class FleetRefresh:
    """Reads the nodes, the depths of their lanes and of the shared one, and lets back-pressure follow. `shared_most`:
    how far the shared lane is counted. With thousands of nodes it reads less often, so that it takes no more than a
    few percent of a core."""

    name = "fleet view"

    def __init__(
        self,
        view: FleetView,
        nodes: Nodes,
        queue: Queue,
        pressure: FleetPressure,
        signals: Signals,
        *,
        shared_most: int,
    ) -> None:
        self._view = view
        self._nodes = nodes
        self._queue = queue
        self._pressure = pressure
        self._signals = signals
        self._shared_most = shared_most

    async def run_once(self) -> PassResult:
        nodes = await self._nodes.list_all()
        self._view.install(nodes, await self._queue.depth_up_to(SHARED_LANE, self._shared_most))
        present = [node for node in nodes if node.state is not NodeState.LOST]
        self._signals.emit(
            FleetSeen(
                connected=sum(node.controller is not None for node in present),
                nodes=present,
                pressure=[(one.job_class, one.load or 0.0, one.why is not None) for one in self._pressure.report()],
            )
        )
        again_in = max(1.0, len(nodes) / READ_PER_SECOND)
        return PassResult(again_in=timedelta(seconds=again_in) if again_in > 1 else None)

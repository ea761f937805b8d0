"""The chore that keeps a controller's view of the fleet up to date."""

from shoal.base.service import PassResult
from shoal.fleet.nodes import Nodes
from shoal.fleet.pressure import FleetPressure
from shoal.fleet.view import FleetView
from shoal.queue.job import SHARED_LANE
from shoal.queue.queue import Queue


class FleetRefresh:
    """Reads the nodes, the depths of their lanes and of the shared one, and lets back-pressure follow. `shared_most`:
    how far the shared lane is counted."""

    name = "fleet view"

    def __init__(self, view: FleetView, nodes: Nodes, queue: Queue, pressure: FleetPressure, shared_most: int) -> None:
        self._view = view
        self._nodes = nodes
        self._queue = queue
        self._pressure = pressure
        self._shared_most = shared_most

    async def run_once(self) -> PassResult:
        nodes = await self._nodes.list_all()
        self._view.install(nodes, await self._queue.depth_up_to(SHARED_LANE, self._shared_most))
        self._pressure.report()
        return PassResult()

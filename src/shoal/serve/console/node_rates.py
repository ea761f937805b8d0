"""The recent work of each node, sampled while this controller runs."""

from collections import deque
from typing import Final

from shoal.base.clock import Clock
from shoal.base.service import PassResult
from shoal.fleet.nodes import Nodes

KEPT: Final = 60  # samples of a node: five minutes


class NodeRateSampler:
    """Keeps how many tasks per second each node finished in the last minutes, in memory."""

    name = "node_rate"

    def __init__(self, nodes: Nodes, clock: Clock) -> None:
        self._nodes = nodes
        self._clock = clock
        self._before: dict[str, int] = {}
        self._sampled_at = 0.0
        self._rates: dict[str, deque[float]] = {}

    async def run_once(self) -> PassResult:
        counts = {str(node.id): node.status.total_processed for node in await self._nodes.list_all()}
        now, rates = self._clock.monotonic(), dict[str, deque[float]]()
        for node_id, count in counts.items():
            rates[node_id] = self._rates.get(node_id) or deque[float](maxlen=KEPT)
            if node_id in self._before and now > self._sampled_at:
                # A node that restarted counts from nothing again.
                rates[node_id].append(max(0, count - self._before[node_id]) / (now - self._sampled_at))
        self._before, self._sampled_at, self._rates = counts, now, rates
        return PassResult()

    def of(self, node_id: str) -> list[float]:
        """Return the rates of a node, oldest first; none until two samples were taken."""
        return list(self._rates.get(node_id, ()))

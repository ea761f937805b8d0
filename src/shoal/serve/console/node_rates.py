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
        self._before: dict[str, tuple[int, int]] = {}  # the session of each node, and its tasks so far
        self._sampled_at = 0.0
        self._rates: dict[str, deque[float]] = {}

    async def run_once(self) -> PassResult:
        nodes = await self._nodes.list_all()
        counts = {str(node.id): (node.session_epoch, node.status.total_processed) for node in nodes}
        now, rates = self._clock.monotonic(), dict[str, deque[float]]()
        for node_id, (session, count) in counts.items():
            rates[node_id] = self._rates.get(node_id) or deque[float](maxlen=KEPT)
            session_before, count_before = self._before.get(node_id, (None, 0))
            # With a new session come the tasks of the time without one, or a process that counts from nothing.
            if session == session_before and now > self._sampled_at:
                rates[node_id].append(max(0, count - count_before) / (now - self._sampled_at))
        self._before, self._sampled_at, self._rates = counts, now, rates
        return PassResult()

    def of(self, node_id: str) -> list[float]:
        """Return the rates of a node, oldest first; none until two samples were taken."""
        return list(self._rates.get(node_id, ()))

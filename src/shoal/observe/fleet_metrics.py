"""Metrics of the fleet. Their names are those that dashboards of the control plane expect: `shoal_grpc_…`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import Counter, Gauge
from prometheus_client.core import Metric

PARTS = ("success", "load", "latency", "depth")


class FleetMetrics:
    """Counts heartbeats, dispatches and commands, and exports the nodes as the controller last saw them. Their series
    are computed when the metrics are read, because thousands of nodes may report every second."""

    def __init__(
        self,
        counter: Callable[..., Counter],
        gauge: Callable[..., Gauge],
        family: Callable[..., Callable[[], Any]],
    ) -> None:
        self._connected = family("shoal_grpc_connected_nodes", "Nodes that have a session with a controller.")
        self._score = family("shoal_grpc_node_health_score", "Health score of a node, from 0 to 1.", "node_id")
        self._part = family(
            "shoal_grpc_node_health_part", "Parts of the health score of a node, each from 0 to 1.", "node_id", "part"
        )
        self._depth = family("shoal_grpc_node_queue_depth", "Jobs that wait in the private lane of a node.", "node_id")
        self._heartbeat = family(
            "shoal_grpc_heartbeat", "Status messages received from a node.", "node_id", counts=True
        )
        self._heartbeats: dict[str, int] = {}  # by node id: a hundredth of the memory of a counter's series
        self._stream_errors = counter(
            "shoal_grpc_stream_errors",
            "Streams of nodes that were refused, broke off or were ended; without a node id if the peer is unknown.",
            "node_id",
            "type",
        )
        self._dispatched = counter(
            "shoal_grpc_dispatch", "Jobs whose lane was chosen, by target node or `shared_queue`.", "target"
        )
        self._fallbacks = counter(
            "shoal_grpc_dispatch_fallback", "Jobs that went to the shared lane because no node could take them."
        )
        self._lost = counter("shoal_nodes_lost", "Nodes that missed three heartbeats.")
        self._returned = counter(
            "shoal_lane_jobs_returned", "Jobs that went from the lane of an absent node to the shared lane."
        )
        self._commands = counter("shoal_node_commands", "Commands for nodes that have ended, by outcome.", "state")
        self._pressure = gauge(
            "shoal_back_pressure", "Load that back-pressure is based on; jobs are held back above 0.8.", "slots"
        )
        self._held = gauge("shoal_back_pressure_held", "1 while back-pressure holds new jobs back.", "slots")
        self._held_back = counter(
            "shoal_jobs_held_back",
            "Number of times that back-pressure kept jobs from being created, by source.",
            "source",
        )
        self._seen: Any = None  # the last `FleetSeen`
        self.handlers: Mapping[str, Callable[[Any], None]] = {
            "HeartbeatReceived": self._heartbeat_received,
            "StreamFailed": lambda signal: self._stream_errors.labels(signal.node_id, signal.type).inc(),
            "JobsDispatched": self._jobs_dispatched,
            "FleetSeen": self._fleet_seen,
            "NodeLost": self._node_lost,
            "NodeLeft": lambda signal: self._returned.inc(signal.returned),
            "JobsHeldBack": lambda signal: self._held_back.labels(signal.source).inc(),
            "LaneReturned": lambda signal: self._returned.inc(signal.returned),
            "CommandEnded": lambda signal: self._commands.labels(str(signal.state)).inc(),
        }

    def _jobs_dispatched(self, signal: Any) -> None:
        for target, count in signal.targets.items():
            self._dispatched.labels(target).inc(count)
        self._fallbacks.inc(signal.targets.get("shared_queue", 0))

    def _node_lost(self, signal: Any) -> None:
        self._lost.inc()
        self._returned.inc(signal.returned)

    def _fleet_seen(self, signal: Any) -> None:
        self._seen = signal
        for slots, load, held in signal.pressure:
            self._pressure.labels(slots).set(load)
            self._held.labels(slots).set(int(held))

    def _heartbeat_received(self, signal: Any) -> None:
        self._heartbeats[signal.node_id] = self._heartbeats.get(signal.node_id, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of the nodes that were seen last. Called in a thread, while signals arrive."""
        seen = self._seen
        heartbeats = self._heartbeat()
        for node_id, count in list(self._heartbeats.items()):
            heartbeats.add_metric([node_id], count)
        yield heartbeats
        connected, score, part, depths = self._connected(), self._score(), self._part(), self._depth()
        if seen is not None:  # otherwise no node can connect here, and 0 would look like an outage
            connected.add_metric([], seen.connected)
        for node in () if seen is None else seen.nodes:
            health = node.health
            score.add_metric([node.id], health.value)
            for name in PARTS:
                part.add_metric([node.id, name], getattr(health, name))
            depths.add_metric([node.id], node.depth)
        yield from (connected, score, part, depths)

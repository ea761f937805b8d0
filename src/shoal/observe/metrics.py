"""Prometheus metrics, counted from signals in a separate registry. The package `serve` serves them.

Signals are identified by class name, as in `log_messages`. Label values come from closed sets: kinds, states, status
classes and route patterns, but never URLs, hosts or ids. Node ids are the exception: they are few and validated, and
the series of a node are removed with the node.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from shoal.base.signals import Signal

PARTS = ("success", "load", "latency", "depth")


class FleetMetrics:
    """Counts heartbeats, dispatches and commands, and exports the last known state of each node. The series of nodes
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
        self._depth = family(
            "shoal_grpc_node_queue_depth", "Jobs that wait in the private lane (queue) of a node.", "node_id"
        )
        self._heartbeat = family(
            "shoal_grpc_heartbeat", "Status messages received from a node.", "node_id", counts=True
        )
        # counts by node id; they need a hundredth of the memory of a counter with series
        self._heartbeats: dict[str, int] = {}
        self._stream_errors = counter(
            "shoal_grpc_stream_errors",
            "Node streams that were refused, dropped or closed. The node id is empty if the peer is unknown.",
            "node_id",
            "type",
        )
        self._dispatched = counter(
            "shoal_grpc_dispatch", "Jobs that were assigned to a lane, by target node or `shared_queue`.", "target"
        )
        self._fallbacks = counter(
            "shoal_grpc_dispatch_fallback",
            "Jobs that were assigned to the shared lane because no node could accept them.",
        )
        self._lost = counter("shoal_nodes_lost", "Nodes that were declared lost after three missed heartbeats.")
        self._returned = counter(
            "shoal_lane_jobs_returned", "Jobs that were moved from the lane of an absent node to the shared lane."
        )
        self._commands = counter(
            "shoal_node_commands", "Node commands that have reached a final state, by outcome.", "state"
        )
        self._pressure = gauge(
            "shoal_back_pressure", "Load on which back-pressure is based; above 0.8, new jobs are delayed.", "slots"
        )
        self._held = gauge("shoal_back_pressure_held", "1 while back-pressure delays new jobs, else 0.", "slots")
        self._held_back = counter(
            "shoal_jobs_held_back",
            "Number of times that back-pressure prevented the creation of jobs, by source.",
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
        """Return the metrics of the nodes in the last `FleetSeen`. This method is called in a thread, while signals
        arrive."""
        seen = self._seen
        heartbeats = self._heartbeat()
        for node_id, count in list(self._heartbeats.items()):
            heartbeats.add_metric([node_id], count)
        yield heartbeats
        connected, score, part, depths = self._connected(), self._score(), self._part(), self._depth()
        if seen is not None:  # without a control plane no node can connect, and 0 would look like an outage
            connected.add_metric([], seen.connected)
        for node in () if seen is None else seen.nodes:
            health = node.health
            score.add_metric([node.id], health.value)
            for name in PARTS:
                part.add_metric([node.id, name], getattr(health, name))
            depths.add_metric([node.id], node.depth)
        yield from (connected, score, part, depths)


STORAGES = ("store", "bodies")
FINAL = frozenset({"completed", "failed", "stopped"})
SPANS = (1, 10, 60, 300, 900, 3600, 4 * 3600, 24 * 3600, 7 * 24 * 3600)
WAITS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class MetricTable(NamedTuple):
    """A metric as documented in the reference."""

    name: str
    kind: str
    labels: tuple[str, ...]
    description: str


class Metrics:
    """The metrics of one process. Instances share nothing, so tests can have their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tables: list[MetricTable] = []
        self._chore_failures = self._counter("shoal_chore_failures", "Failed runs of a chore.", "chore")
        self._clock_steps = self._counter("shoal_clock_steps", "Steps of the store's clock, by direction.", "direction")
        self._jobs_created = self._counter("shoal_jobs_created", "Jobs enqueued.", "kind")
        self._jobs_done = self._counter("shoal_jobs_done", "Jobs finished.", "kind")
        self._jobs_failed = self._counter("shoal_jobs_failed", "Jobs whose last attempt failed.", "kind")
        self._jobs_expired = self._counter("shoal_jobs_expired", "Jobs that became dead letters.", "kind")
        self._jobs_retried = self._counter("shoal_jobs_retried", "Failed attempts that are retried.", "kind")
        self._leases_ended = self._counter("shoal_leases_ended", "Leases that ended, by outcome.", "kind", "how")
        self._lease_wait = self._histogram(
            "shoal_lease_wait_seconds", "Time between the due time of a job and its lease.", "kind"
        )
        self._pages = self._counter(
            "shoal_pages",
            "Pages stored, by HTTP status class. `unchanged` counts responses with 304 to conditional requests.",
            "status_class",
        )
        self._page_bytes = self._counter(
            "shoal_page_bytes", "Bytes of pages as received (before decompression).", "status_class"
        )
        self._holds = self._counter(
            "shoal_host_holds", "Number of times that a host was put on hold, by reason.", "why"
        )
        self._children_lost = self._counter("shoal_children_lost", "Child processes that died while running a job.")
        self._store_failures = self._counter(
            "shoal_store_failures", "Calls to the store that failed because it was not available."
        )
        self._storage_full = self._gauge(
            "shoal_storage_full",
            "1 while the storage is full, else 0. While it is full, jobs that need the storage are not leased.",
            "storage",
        )
        for storage in STORAGES:
            self._storage_full.labels(storage).set(0)
        self._crawls = self._counter("shoal_crawls", "Crawls that ended, by final state.", "state")
        self._crawl_seconds = self._histogram(
            "shoal_crawl_seconds", "Duration of a crawl from start to end.", "state", buckets=SPANS
        )
        self._results = self._counter("shoal_results", "Accepted results of page jobs.", "kind")
        self._results_timed = self._counter("shoal_results_timed", "Accepted results that report a duration.", "kind")
        self._result_seconds = self._counter(
            "shoal_result_seconds", "Sum of the durations that results report.", "kind"
        )
        self._bot_pulls = self._counter("shoal_bot_pulls", "Requests by bots to pull jobs.")
        self._bot_jobs = self._counter("shoal_bot_jobs", "Jobs leased to bots.")
        self._late = self._histogram(
            "shoal_schedule_late_seconds",
            "Delay between the due time of a policy and the creation of its job. Each scheduler pass adds one sample:"
            " the longest delay of the pass.",
        )
        self._outbox_lag = self._histogram(
            "shoal_outbox_lag_seconds",
            "Time from the commit of an event until the forwarder gives the event its sequence number.",
        )
        self._deliveries = self._counter(
            "shoal_deliveries", "Attempts to deliver events to webhooks, by result.", "result"
        )
        self._refusals = self._counter(
            "shoal_callers_refused",
            "Requests with invalid credentials. Requests from throttled addresses are not counted.",
        )
        self._fleet = FleetMetrics(self._counter, self._gauge, self._family)
        self.registry.register(self._fleet)
        self._rendered = self._counter("shoal_rendered_pages", "Pages that a browser rendered, by outcome.", "outcome")
        self._render_seconds = self._histogram(
            "shoal_render_seconds", "Time to render a page, without the time spent waiting for a browser."
        )
        self._render_requests = self._counter(
            "shoal_render_requests", "Requests that pages sent while they were rendered."
        )
        self._browsers_started = self._counter("shoal_browsers_started", "Browsers started.")
        self._browsers_ended = self._counter("shoal_browsers_ended", "Browsers ended, by reason.", "how")
        self._requests = self._counter("shoal_http_requests", "HTTP requests served.", "method", "route", "status")
        self._request_time = self._histogram("shoal_http_request_seconds", "Time to serve an HTTP request.", "route")
        self.handlers: Mapping[str, Callable[[Any], None]] = {
            "ChoreFailed": lambda signal: self._chore_failures.labels(signal.chore).inc(),
            "ClockStepped": lambda signal: self._clock_steps.labels(signal.direction).inc(),
            "JobEnqueued": lambda signal: self._jobs_created.labels(signal.kind).inc(
                signal.is_new * len(signal.job_ids)
            ),
            "JobLeased": self._leased,
            "JobsLeased": self._leased,
            "JobsMoved": self._jobs_moved,
            "JobMoved": self._job_moved,
            "PagesSettled": self._pages_settled,
            "HoldsBegun": self._holds_begun,
            "ChildLost": lambda signal: self._children_lost.inc(),
            "StoreOutOfReach": lambda signal: self._store_failures.inc(),
            "StorageFilled": lambda signal: self._storage_full.labels(signal.storage).set(1),
            "StorageFreed": lambda signal: self._storage_full.labels(signal.storage).set(0),
            "CrawlMoved": self._crawl_moved,
            "CrawlEnded": self._crawl_moved,
            "ResultsTaken": self._results_taken,
            "JobsScheduled": lambda signal: self._late.observe(signal.late_seconds),
            "EventsNumbered": lambda signal: self._outbox_lag.observe(signal.waited_seconds),
            "DeliveriesSent": self._deliveries_sent,
            "BotAsked": lambda signal: self._bot_pulls.inc(),
            "BotPulled": lambda signal: self._bot_jobs.inc(signal.jobs),
            "CallerRefused": lambda signal: self._refusals.inc(),
            "PageRendered": self._page_rendered,
            "BrowserStarted": lambda signal: self._browsers_started.inc(),
            "BrowserEnded": lambda signal: self._browsers_ended.labels(signal.how).inc(),
            "RequestServed": self._request_served,
            **self._fleet.handlers,
        }

    def listen(self, signal: Signal) -> None:
        count = self.handlers.get(type(signal).__name__)
        if count is not None:
            count(signal)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        self.tables.append(MetricTable(name, "counter", labels, description))
        return Counter(name, description, labels, registry=self.registry)

    def _gauge(self, name: str, description: str, *labels: str) -> Gauge:
        self.tables.append(MetricTable(name, "gauge", labels, description))
        return Gauge(name, description, labels, registry=self.registry)

    def _family(self, name: str, description: str, *labels: str, counts: bool = False) -> Callable[[], Any]:
        """Return a factory for a metric whose series are computed when the metrics are read: a counter if `counts` is
        set, otherwise a gauge."""
        self.tables.append(MetricTable(name, "counter" if counts else "gauge", labels, description))
        return partial(CounterMetricFamily if counts else GaugeMetricFamily, name, description, labels=labels)

    def _histogram(self, name: str, description: str, *labels: str, buckets: Sequence[float] = WAITS) -> Histogram:
        self.tables.append(MetricTable(name, "histogram", labels, description))
        return Histogram(name, description, labels, buckets=buckets, registry=self.registry)

    def _leased(self, signal: Any) -> None:
        """Observe one sample; for a batch, it is the longest wait."""
        self._lease_wait.labels(signal.kind).observe(max(0.0, signal.waited_seconds))

    def _job_moved(self, signal: Any) -> None:
        self._leases_ended.labels(signal.kind, str(signal.how)).inc()
        ended = {"done": self._jobs_done, "failed": self._jobs_failed, "expired": self._jobs_expired}
        if str(signal.to) in ended:
            ended[str(signal.to)].labels(signal.kind).inc()
        if str(signal.how) == "retried":
            self._jobs_retried.labels(signal.kind).inc()

    def _jobs_moved(self, signal: Any) -> None:
        self._leases_ended.labels(signal.kind, str(signal.how)).inc(signal.count)
        counted = {"done": self._jobs_done, "failed": self._jobs_failed, "retried": self._jobs_retried}
        if str(signal.how) in counted:
            counted[str(signal.how)].labels(signal.kind).inc(signal.count)

    def _pages_settled(self, signal: Any) -> None:
        """Count the pages and bytes that one commit stored, by status class (see `PagesSettled`)."""
        for status_class, count in signal.pages.items():
            self._pages.labels(status_class).inc(count)
        for status_class, count in signal.bytes.items():
            self._page_bytes.labels(status_class).inc(count)

    def _results_taken(self, signal: Any) -> None:
        self._results.labels(signal.kind).inc(signal.count)
        self._results_timed.labels(signal.kind).inc(signal.timed)
        self._result_seconds.labels(signal.kind).inc(signal.seconds)

    def _deliveries_sent(self, signal: Any) -> None:
        """Count delivery attempts; a failed attempt counts as `dead` if it was the last attempt."""
        counts = {"delivered": signal.delivered, "failed": signal.failed - signal.dead, "dead": signal.dead}
        for result, count in counts.items():
            self._deliveries.labels(result).inc(count)

    def _holds_begun(self, signal: Any) -> None:
        for why, count in signal.holds.items():
            self._holds.labels(why).inc(count)

    def _crawl_moved(self, signal: Any) -> None:
        if str(signal.state) in FINAL:
            self._crawls.labels(str(signal.state)).inc()
            if signal.seconds is not None:
                self._crawl_seconds.labels(str(signal.state)).observe(signal.seconds)

    def _page_rendered(self, signal: Any) -> None:
        self._rendered.labels(signal.outcome).inc()
        self._render_seconds.observe(signal.seconds)
        self._render_requests.inc(signal.requests)

    def _request_served(self, signal: Any) -> None:
        self._requests.labels(signal.method, signal.route, str(signal.status)).inc()
        self._request_time.labels(signal.route).observe(signal.seconds)

"""The fleet as a controller sees it: the nodes that take jobs, refreshed every second, and the resulting
back-pressure."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from shoal.base.clock import span
from shoal.base.ids import NodeId
from shoal.base.service import PassResult
from shoal.base.signals import Signal, Signals
from shoal.fleet.node import Node
from shoal.fleet.nodes import NodeDisconnected, NodeLeft, NodeLost, Nodes
from shoal.fleet.states import NodeState
from shoal.queue.job import HTTP, JS, RUN_KINDS, SHARED_LANE
from shoal.queue.queue import Queue

JobClass = Literal["runs", "pages"]
CLASSES: tuple[JobClass, ...] = ("runs", "pages")
MOST_RECONNECTS = 3  # maximum number of reconnects of a node within `FLAP_PERIOD`
FLAP_PERIOD = timedelta(minutes=1)


def class_of(kind: str) -> JobClass:
    """Return the slot class of a job kind: a node has separate slots for runs and for page jobs."""
    return "runs" if kind in RUN_KINDS else "pages"


class NodeSlots:
    """A node to which jobs may be dispatched: its score, and for each job class, its slots and the number of jobs in
    its lane."""

    __slots__ = (
        "active",
        "browser_depth",
        "browser_most",
        "capabilities",
        "depth",
        "most",
        "node_id",
        "of_both",
        "score",
        "session",
        "trust",
    )

    def __init__(self, node: Node) -> None:
        status = node.status
        self.node_id = node.id
        self.session = f"{node.id}:{node.session_epoch}"
        self.capabilities = frozenset(status.capabilities)
        self.score = node.health.value
        self.trust = node.trust
        # A client that does not report its instance has only one kind of slots, which is used for all jobs.
        self.of_both = not status.page_slots and not status.acknowledges
        if self.of_both:
            self.most = dict.fromkeys(CLASSES, status.max_concurrency)
            self.active = dict.fromkeys(CLASSES, status.active_tasks)
            self.depth = dict.fromkeys(CLASSES, node.depth)
        else:
            self.most = {"runs": status.max_concurrency, "pages": status.page_slots}
            self.active = {"runs": status.active_tasks, "pages": status.active_pages}
            self.depth = {"runs": node.run_depth, "pages": node.page_depth}
        self.browser_most = status.browser_slots or self.most["pages"]
        self.browser_depth = node.browser_depth

    def is_full(self, job_class: JobClass, capability: str = HTTP) -> bool:
        """Return whether the node's lane holds twice as many jobs as the node has slots for. A page that needs a
        browser uses two slots: a page slot and a browser slot."""
        if capability == JS and job_class == "pages" and self.browser_depth >= 2 * self.browser_most:
            return True
        return self.depth[job_class] >= 2 * self.most[job_class]

    def add(self, job_class: JobClass, capability: str = HTTP) -> None:
        """Count a job that was dispatched to this node after the lane was read."""
        self.browser_depth += capability == JS
        for one in CLASSES if self.of_both else (job_class,):
            self.depth[one] += 1


class FlapWatch:
    """Detects nodes that connect again and again. Each session of a node has a higher epoch, so it is enough to check
    the epochs from time to time, no matter which controllers have the sessions."""

    def __init__(self) -> None:
        # By node: the time when an epoch was first seen, and the epoch.
        self._seen: dict[NodeId, list[tuple[int, int]]] = {}

    def find(self, nodes: Collection[Node]) -> frozenset[NodeId]:
        """Return the nodes that started more than three sessions within the last minute."""
        flapping = frozenset(node.id for node in nodes if self._reconnects(node) > MOST_RECONNECTS)
        since = max((node.seen_at for node in nodes), default=0) - span(FLAP_PERIOD)
        present = {node.id for node in nodes}
        # A node that has just ended its session may be back in a moment.
        self._seen = {name: seen for name, seen in self._seen.items() if name in present or seen[-1][0] > since}
        return flapping

    def _reconnects(self, node: Node) -> int:
        seen = self._seen.setdefault(node.id, [])
        if not seen or seen[-1][1] != node.session_epoch:
            seen.append((node.seen_at, node.session_epoch))
        while len(seen) > 1 and seen[1][0] <= node.seen_at - span(FLAP_PERIOD):
            del seen[0]
        return node.session_epoch - seen[0][1]


class FleetView:
    """The nodes that take jobs, and the depth of the shared lane. `version` changes with each refresh. No jobs are
    dispatched to a flapping node, because they would only wait for the node's return."""

    def __init__(self) -> None:
        self.nodes: list[NodeSlots] = []
        self.shared_depth = 0
        self.version = 0
        self._flap_watch = FlapWatch()
        self._flapping: frozenset[NodeId] = frozenset()

    def install(self, nodes: Collection[Node], shared_depth: int) -> None:
        """Replace the known nodes with the nodes that were just read."""
        self._flapping = self._flap_watch.find(nodes)
        self.nodes = [NodeSlots(node) for node in nodes if node.takes_jobs and node.id not in self._flapping]
        self.shared_depth = shared_depth
        self.version += 1

    def is_flapping(self, node_id: NodeId) -> bool:
        return node_id in self._flapping

    def remove(self, node_id: str) -> None:
        """Stop dispatching jobs to a node immediately, without waiting for the next refresh."""
        self.nodes = [node for node in self.nodes if node.node_id != NodeId(node_id)]
        self.version += 1

    def listen(self, signal: Signal) -> None:
        """Forget a node as soon as its session ends on this controller."""
        if isinstance(signal, NodeDisconnected | NodeLeft | NodeLost):
            self.remove(signal.node_id)

    def load(self, job_class: JobClass) -> float | None:
        """Return the load of the fleet for a job class: running and waiting jobs as a share of the capacity; None
        without capacity."""
        capacity = sum(2 * node.most[job_class] for node in self.nodes)
        used = sum(node.depth[job_class] + node.active[job_class] for node in self.nodes)
        return used / capacity if capacity else None


HIGHEST_LOAD = 0.8


class BackPressureChanged(Signal, frozen=True, kw_only=True):
    """From now on, jobs of a class are held back, or are no longer held back."""

    job_class: str
    held: bool
    why: str


@dataclass(frozen=True, slots=True)
class PressureStatus:
    """The back-pressure on one class of jobs. `load`: the number of running jobs and of jobs in private lanes, divided
    by twice the number of slots; None without nodes. `why`: the reason why jobs are held back; None if they are not
    held back."""

    job_class: JobClass
    load: float | None
    why: str | None


class FleetPressure:
    """Holds jobs back while the load of the nodes is above 80 %. Without nodes, or if no jobs are dispatched to nodes
    (`dispatches` is false), the depth of the shared lane decides."""

    def __init__(self, view: FleetView, signals: Signals, shared_most: int, *, dispatches: bool = True) -> None:
        self._view = view
        self._signals = signals
        self._shared_most = shared_most
        self._dispatches = dispatches
        self._held: set[JobClass] = set()

    def check(self, kind: str) -> str | None:
        """Return the reason why no more jobs of this kind should be created now; None if there is no reason
        (`queue.back_pressure.BackPressure`)."""
        return self.status(class_of(kind)).why

    def status(self, job_class: JobClass) -> PressureStatus:
        load, why = self._view.load(job_class), None
        if load is not None and self._dispatches:
            if load > HIGHEST_LOAD:
                why = f"the nodes are used to {load:.0%} for {job_class}, more than {HIGHEST_LOAD:.0%}"
        elif self._view.shared_depth >= self._shared_most:
            why = f"{self._shared_most} or more jobs wait in the shared lane"
        return PressureStatus(job_class, load, why)

    def report(self) -> list[PressureStatus]:
        """Return the back-pressure on every job class, and emit signals for changes since the last call."""
        found = [self.status(job_class) for job_class in CLASSES]
        for one in found:
            if (one.why is not None) != (one.job_class in self._held):
                self._held ^= {one.job_class}
                changed = BackPressureChanged(job_class=one.job_class, held=one.why is not None, why=one.why or "")
                self._signals.emit(changed)
        return found


READ_PER_SECOND = 2_000  # nodes


class FleetSeen(Signal, frozen=True, kw_only=True):
    """A snapshot of the fleet: the nodes that are not lost, the number of nodes with a session, and for each job class,
    the load and whether new jobs are held back."""

    connected: int
    nodes: list[Node]
    pressure: list[tuple[str, float, bool]]


class FleetRefresh:
    """The chore that reads the nodes, the depths of their lanes and the depth of the shared lane, and updates the
    back-pressure. `shared_most`: the number up to which jobs in the shared lane are counted. With thousands of nodes,
    this chore reads less often, so that it uses only a few percent of a core."""

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

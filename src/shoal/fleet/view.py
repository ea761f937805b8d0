"""What a controller knows about the fleet without asking the store: refreshed every second, and corrected by what it
has dispatched since."""

from collections.abc import Iterable
from typing import Literal

from shoal.base.ids import NodeId
from shoal.base.signals import Signal
from shoal.fleet.node import Node
from shoal.fleet.nodes import NodeDisconnected, NodeLeft, NodeLost
from shoal.queue.job import HTTP, JS, RUN_KINDS

JobClass = Literal["runs", "pages"]
CLASSES: tuple[JobClass, ...] = ("runs", "pages")


def class_of(kind: str) -> JobClass:
    """Return the class of a job kind: runs and page jobs have slots of their own on a node."""
    return "runs" if kind in RUN_KINDS else "pages"


class NodeSlots:
    """A node that jobs may be dispatched to: its score, and for each class the jobs in its lane and its slots."""

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
    )

    def __init__(self, node: Node) -> None:
        status = node.status
        self.node_id = node.id
        self.session = f"{node.id}:{node.session_epoch}"
        self.capabilities = frozenset(status.capabilities)
        self.score = node.health.value
        # A client that does not name its instance knows one kind of slots, for all jobs.
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
        """Return whether its lane holds twice as many jobs as it has slots for. A page that needs a browser takes two
        slots: one of the page jobs, and one of the browsers."""
        if capability == JS and job_class == "pages" and self.browser_depth >= 2 * self.browser_most:
            return True
        return self.depth[job_class] >= 2 * self.most[job_class]

    def add(self, job_class: JobClass, capability: str = HTTP) -> None:
        """Count a job that was dispatched here since the lane was read."""
        self.browser_depth += capability == JS
        for one in CLASSES if self.of_both else (job_class,):
            self.depth[one] += 1


class FleetView:
    """The nodes that take jobs, and the depth of the shared lane. `version` changes with each refresh."""

    def __init__(self) -> None:
        self.nodes: list[NodeSlots] = []
        self.shared_depth = 0
        self.version = 0

    def install(self, nodes: Iterable[Node], shared_depth: int) -> None:
        """Replace what is known by what was just read."""
        self.nodes = [NodeSlots(node) for node in nodes if node.takes_jobs]
        self.shared_depth = shared_depth
        self.version += 1

    def remove(self, node_id: str) -> None:
        """Dispatch nothing more to a node, without waiting for the next refresh."""
        self.nodes = [node for node in self.nodes if node.node_id != NodeId(node_id)]
        self.version += 1

    def listen(self, signal: Signal) -> None:
        """Forget nodes whose sessions end on this controller at once."""
        if isinstance(signal, NodeDisconnected | NodeLeft | NodeLost):
            self.remove(signal.node_id)

    def load(self, job_class: JobClass) -> float | None:
        """Return the share of the fleet's capacity for a class that is in use or waiting; None without capacity."""
        capacity = sum(2 * node.most[job_class] for node in self.nodes)
        used = sum(node.depth[job_class] + node.active[job_class] for node in self.nodes)
        return used / capacity if capacity else None

"""The dispatcher offers each new job that is due to a healthy node. The node is chosen at random, weighted by health
score. If no node can be chosen, the job stays in the shared lane."""

import random
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from heapq import nlargest
from itertools import accumulate
from threading import Lock

import orjson
from msgspec import structs

from shoal.base.service import PassResult
from shoal.base.signals import Signal, Signals
from shoal.fleet.view import FleetView, JobClass, NodeSlots, class_of
from shoal.queue.job import RUN_KINDS, SCRAPES, SHARED_LANE, NewJob, Offer, node_lane

KINDS = frozenset({*RUN_KINDS, "page"})
SHARED_QUEUE = "shared_queue"  # the reported target of jobs that were offered to no node
SHOWN = 5  # number of candidates that a decision names
TRIES = 8  # number of draws that hit full nodes before full nodes are left out


class JobsDispatched(Signal, frozen=True, kw_only=True):
    """The number of jobs that were dispatched to each node, or to `shared_queue`, since the last signal. A job counts
    when its lane is chosen, even if its commit fails afterwards."""

    targets: dict[str, int]


class Dispatcher:
    """Chooses the lanes of new jobs (`queue.lanes.LaneChoice`). Only jobs that are due now and would wait in the shared
    lane are dispatched. It may be called from any thread, because a store may run commits in a separate thread."""

    def __init__(self, view: FleetView, offer_ttl: timedelta, chance: Callable[[], float] = random.random) -> None:
        self._view = view
        self._offer_ttl = offer_ttl
        self._chance = chance
        self._lock = Lock()
        self._counts: Counter[str] = Counter()
        self._tables: dict[tuple[JobClass, str], _Table] = {}
        self._version = view.version

    def choose_lanes(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """Return the jobs in the same order, with their chosen lanes."""
        with self._lock:
            if self._version != self._view.version:
                self._version, self._tables = self._view.version, {}
            return [self._place(job) if _is_dispatched(job) else job for job in jobs]

    def take_counts(self) -> dict[str, int]:
        """Return how many jobs went to each target since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)

    def _place(self, job: NewJob) -> NewJob:
        job_class = class_of(job.kind)
        table = self._tables.get((job_class, job.capability))
        if table is None:
            table = _Table(self._view.nodes, job_class, job.capability, self._offer_ttl)
            self._tables[job_class, job.capability] = table
        node = table.draw(self._chance)
        if node is not None:
            node.add(job_class, job.capability)
            self._counts[node.node_id] += 1
            lane, offer, why = table.placement(node)
            return structs.replace(job, lane=lane, offer=offer, dispatch=why)
        self._counts[SHARED_QUEUE] += 1
        return structs.replace(job, dispatch=table.why_shared) if self._view.nodes else job


def _is_dispatched(job: NewJob) -> bool:
    """Return whether the dispatcher chooses a node for the job. It does not for a scrape, which goes to the first free
    worker."""
    return job.lane == SHARED_LANE and job.not_before is None and job.kind in KINDS and job.capability not in SCRAPES


class _Table:
    """The nodes for one class of jobs and one capability, with their cumulative scores. Drawing is a binary search. If
    a full node is drawn, the draw is repeated. Once full nodes are drawn often, all full nodes are left out."""

    def __init__(self, nodes: Sequence[NodeSlots], job_class: JobClass, capability: str, offer_ttl: timedelta) -> None:
        self._all = nodes
        self._class = job_class
        self._capability = capability
        self._offer_ttl = offer_ttl
        self._best = nlargest(SHOWN, nodes, key=lambda one: one.score)
        self._placements: dict[str, tuple[str, Offer, str]] = {}
        self._why_shared: dict[str, str] = {}
        self._leave_out_full()

    def draw(self, chance: Callable[[], float]) -> NodeSlots | None:
        """Return a node that is not full. The probability of a node is proportional to its score, and lower if the node
        has let offers lapse. Return None if all nodes are full. If all nodes have let offers lapse, return None for
        some of the jobs, so that these do not wait for the nodes."""
        while self._nodes:
            if self._trust < 1 and chance() >= self._trust:
                return None
            for _ in range(TRIES):
                place = bisect(self._weights, chance() * self._weights[-1], hi=len(self._nodes) - 1)
                if not self._nodes[place].is_full(self._class, self._capability):
                    return self._nodes[place]
            self._leave_out_full()
        return None

    def placement(self, node: NodeSlots) -> tuple[str, Offer, str]:
        """Return the lane, the offer and the dispatch reason for jobs that go to this node. They are the same for all
        these jobs until the view is refreshed."""
        found = self._placements.get(node.node_id)
        if found is None:
            offer = Offer(node.session, self._offer_ttl)
            found = (node_lane(node.node_id), offer, self._decision(node))
            self._placements[node.node_id] = found
        return found

    @property
    def why_shared(self) -> str:
        """The reason why jobs go to the shared lane, as JSON. Nodes that were found full are left out until the view is
        refreshed, even if they have room again."""
        why = "offers_lapsed" if self._nodes else "no_room"
        if why not in self._why_shared:
            self._why_shared[why] = self._decision(None, why)
        return self._why_shared[why]

    def _decision(self, node: NodeSlots | None, why: str = "weighted_random") -> str:
        """Return the reason, as JSON, why a job went to a node or to the shared lane. The text is short, because it is
        stored with every job. It names the best candidates, each with its score and the reason why it was not eligible
        (empty if it was eligible)."""
        best = self._best if node is None or node in self._best else [*self._best[:-1], node]
        candidates = [(one.node_id, round(one.score, 3), self._skipped(one)) for one in best]
        values = {"node_id": None if node is None else node.node_id, "reason": why, "nodes": len(self._all)}
        return orjson.dumps(values | {"candidates": candidates}).decode()

    def _skipped(self, node: NodeSlots) -> str:
        """Return the reason why a node was not eligible; empty if it was eligible."""
        if self._capability not in node.capabilities:
            return f"lacks {self._capability}"
        if not node.most[self._class]:
            return f"takes no {self._class}"
        if node.is_full(self._class, self._capability):
            return "full"
        return "" if node.score > 0 else "score 0"

    def _leave_out_full(self) -> None:
        self._nodes = [node for node in self._all if not self._skipped(node)]
        self._weights = list(accumulate(node.score * node.trust for node in self._nodes))
        self._trust = max((node.trust for node in self._nodes), default=1.0)


class DispatchCounter:
    """The chore that reports how many jobs were dispatched to each target."""

    name = "dispatch counter"

    def __init__(self, dispatcher: Dispatcher, signals: Signals) -> None:
        self._dispatcher = dispatcher
        self._signals = signals

    async def run_once(self) -> PassResult:
        if counts := self._dispatcher.take_counts():
            self._signals.emit(JobsDispatched(targets=counts))
        return PassResult()

    async def close(self) -> None:
        """Report the jobs that were dispatched since the last pass."""
        await self.run_once()

"""Dispatch: decisions per second, and the queue with dispatch on and off."""

import statistics
import time
from argparse import Namespace
from collections.abc import Sequence
from datetime import timedelta

import uvloop
from msgspec.structs import replace

from bench.frontier import Store, opened_store
from bench.peers import jobs
from bench.report import Report
from shoal.app import App, opened
from shoal.base.ids import NodeId
from shoal.base.settings import FleetSettings
from shoal.base.settings_loader import load
from shoal.fleet.dispatcher import Dispatcher
from shoal.fleet.node import DesiredState, NewSession, Node, NodeStatus
from shoal.fleet.states import NodeState
from shoal.fleet.view import FleetView
from shoal.queue import states
from shoal.queue.job import SHARED_LANE, Lease, LeaseRequest, node_lane
from tests.support.programs import ServerUnavailable

FLEETS = (1, 100, 10_000)
DECISIONS = 100_000
BATCH = 100
JOBS, FEW_JOBS = 20_000, 4_000
REPS = 9
ENDLESS = 1_000_000_000  # slots: so many that no node is ever full
NODES = 2
EVERY = timedelta(seconds=10)


def measure(options: Namespace, report: Report) -> None:
    decisions(report, DECISIONS // 10 if options.short else DECISIONS)
    columns = ("store", "dispatch", "enqueue µs", "lease and finish µs", "together µs", "ratio")
    table = report.table(f"A job through the queue, in batches of {BATCH}", *columns)
    table.notes.append("Medians of rounds that alternate between dispatch on and off.")
    for driver in (name for name in options.drivers if name != "redis"):  # the measured lanes are in SQL
        try:
            with opened_store(driver) as store:
                report.versions.append(store.version)
                table.rows += uvloop.run(through_queue(store, FEW_JOBS if options.short else JOBS))
        except ServerUnavailable as error:
            print(f"{driver} is not measured: {error}")


def decisions(report: Report, count: int) -> None:
    table = report.table("Decisions", "nodes", "full", "decisions per second", "µs each", "refresh of the view, ms")
    for size in FLEETS:
        for full in (0.0, 0.9) if size > 1 else (0.0,):
            nodes = [node(place, full=place < full * size) for place in range(size)]
            view = FleetView()
            began = time.perf_counter()
            view.install(nodes, 0)
            refresh = time.perf_counter() - began
            dispatcher, batch = Dispatcher(view, EVERY), [jobs.job(number) for number in range(BATCH)]
            began = time.perf_counter()
            for _ in range(count // BATCH):
                dispatcher.choose_lanes(batch)
            each = (time.perf_counter() - began) / count
            table.rows.append([size, f"{full:.0%}", 1 / each, each * 1e6, refresh * 1e3])


def node(place: int, *, full: bool = False) -> Node:
    status = NodeStatus(
        max_concurrency=2, page_slots=1 if full else ENDLESS, instance="i", success_rate=place % 10 / 10
    )
    return Node(
        id=NodeId(f"node-{place}"),
        state=NodeState.CONNECTED,
        session_epoch=1,
        controller="c",
        address="",
        status=status,
        desired=DesiredState(),
        heartbeat_every=EVERY,
        connected_at=0,
        heartbeat_at=0,
        lost_at=None,
        seen_at=0,
        page_depth=2 if full else 0,
    )


async def through_queue(store: Store, count: int) -> list[list[str | int | float | None]]:
    """Enqueue, lease and finish the same jobs, alternately with and without dispatch."""
    loaded = load({"DATABASE_URL": store.url}).settings
    settings = replace(loaded, fleet=FleetSettings(dispatch="private", offer_ttl=timedelta(hours=1)))
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    async with opened(settings, upgrade=True) as plain, opened(settings) as dispatching:
        await join(dispatching)
        lanes = [node_lane(f"node-{place}") for place in range(NODES)]
        for rep in range(REPS + 1):
            for app, private in ((plain, False), (dispatching, True)):
                spent = await round_of(app, count // REPS, lanes if private else [])
                if rep:  # the first round prepares query plans and warms up caches
                    found[private].append(spent)
    middle = {key: [statistics.median(part) * 1e6 for part in zip(*rows, strict=True)] for key, rows in found.items()}
    off = sum(middle[False])
    return [
        [store.name, name, *middle[private], sum(middle[private]), sum(middle[private]) / off]
        for name, private in (("off", False), ("on", True))
    ]


async def join(app: App) -> None:
    """Register nodes, enable dispatch, and refresh the view of the fleet once."""
    for place in range(NODES):
        status = NodeStatus(max_concurrency=2, page_slots=ENDLESS, instance="i")
        session = NewSession(
            node_id=NodeId(f"node-{place}"), controller="c", address="", heartbeat_every=EVERY, status=status
        )
        await app.fleet.nodes.register(session)
    app.fleet.start()
    await app.fleet.refresh.run_once()


async def round_of(app: App, count: int, lanes: Sequence[str]) -> tuple[float, float]:
    """Return the seconds per job to enqueue, and to lease and finish. The nodes take turns; each leases from its
    private lane and the shared lane."""
    began = time.perf_counter()
    for first in range(0, count, BATCH):
        await app.queue.enqueue([jobs.job(number) for number in range(first, first + BATCH)])
    enqueued = time.perf_counter() - began
    requests = [LeaseRequest(lane, ["page"], [lane, SHARED_LANE]) for lane in lanes]
    requests = requests or [LeaseRequest("bench", ["page"])]
    held: list[Lease] = []
    done = place = 0
    began = time.perf_counter()
    while done < count:
        moves = [states.finish(lease.fence.job_id, lease.fence.epoch) for lease in held]
        place += 1
        held = (await app.queue.finish_and_lease(moves, requests[place % len(requests)], BATCH)).leases
        done += len(moves)
    return enqueued / count, (time.perf_counter() - began) / count

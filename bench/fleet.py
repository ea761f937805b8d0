"""The fleet: the cost of sessions for a controller, the speed of dispatch decisions, and the cost of dispatch for the
queue."""

from argparse import Namespace

from bench import fleet_dispatch, fleet_sessions
from bench.report import Report

ABOUT = (
    "Three measurements: (1) the cost of sessions for a controller, with simulated nodes; (2) choosing lanes for new "
    "jobs in memory, with one node, a hundred and ten thousand, when no node is full and when nearly all are full; "
    "(3) enqueuing, leasing and finishing a job, with and without dispatch to private lanes."
)


def run(options: Namespace) -> Report:
    """Measure sessions, the dispatcher, and on each driver the queue with and without dispatch."""
    report = Report("fleet", ABOUT)
    fleet_sessions.measure(options, report)
    fleet_dispatch.measure(options, report)
    return report

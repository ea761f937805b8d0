"""The fleet: what sessions cost a controller, how fast lanes are chosen, and what dispatch costs the queue."""

from argparse import Namespace

from bench import fleet_dispatch, fleet_sessions
from bench.report import Report

ABOUT = (
    "What the sessions of simulated nodes cost a controller; lanes chosen for new jobs, in memory, with one node, a "
    "hundred and ten thousand, of which none is full or nearly all are; and the way of a job through the queue, "
    "enqueue, lease and finish, with and without dispatch to private lanes."
)


def run(options: Namespace) -> Report:
    """Measure sessions, the dispatcher, and the queue with it on each driver."""
    report = Report("fleet", ABOUT)
    fleet_sessions.measure(options, report)
    fleet_dispatch.measure(options, report)
    return report

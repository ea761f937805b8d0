"""The order of analyses, in real processes: one after another with WORKER_CONCURRENCY=1, also when one is killed.

The history of the jobs is the evidence: each lease with its holder, its begin and its end by the clock of the store.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleet import TENTH, Fleet, clean_environment, wait_for
from tests.support.processes import run_shoal
from tests.support.site import Site

ANALYSES = 5
# Writes a line when it starts and when it ends. The run with the number BLOCKED never ends; with TOGETHER, each run
# waits until so many have started.
PROGRAM = """
import json, os, sys, time
path, blocked, together = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def write(line):
    with open(path, "a") as file:
        file.write(line + chr(10))

def started():
    return sum(line.startswith("start") for line in open(path)) if os.path.exists(path) else 0

number = started() + 1
write(f"start {number}")
sys.stdin.read()
while number == blocked or started() < together:
    time.sleep(0.02)
print(json.dumps({"code": "seen", "page": "http://a.test/"}))
write(f"end {number}")
"""


@dataclass(frozen=True, slots=True)
class LeaseSpan:
    """One lease of the job of an analysis."""

    analysis: str
    holder: str
    granted_at: datetime
    ended_at: datetime
    ended: str


class Queued:
    """Analyses of one crawl that were queued before the first worker started, and what became of them."""

    def __init__(self, fleet: Fleet, ids: list[str], log: Path) -> None:
        self.fleet = fleet
        self.ids = ids
        self._log = log

    def lines(self) -> list[str]:
        """Return what the runs of the external analyzer wrote."""
        return self._log.read_text().splitlines() if self._log.exists() else []

    def shown(self) -> list[dict[str, Any]]:
        """Return the analyses in queue order."""
        return [self.fleet.get(f"/api/v1/analyses/{one}") for one in self.ids]

    def wait(self) -> None:
        wait_for(lambda: [one["state"] for one in self.shown()] == ["success"] * len(self.ids), "the analyses to end")

    def leases(self) -> list[LeaseSpan]:
        """Return all leases of their jobs, ordered by begin."""
        found = []
        for analysis in self.ids:
            [job] = self.fleet.get(f"/api/v1/jobs?kind=analysis&run_id={analysis}")["items"]
            found += [
                LeaseSpan(analysis, one["holder"], at(one["granted_at"]), at(one["ended_at"]), one["ended"])
                for one in self.fleet.get(f"/api/v1/jobs/{job['id']}")["history"]
            ]
        return sorted(found, key=lambda one: one.granted_at)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def are_one_after_another(spans: list[tuple[datetime, datetime]]) -> bool:
    return all(one[1] <= two[0] for one, two in pairwise(sorted(spans)))


@contextmanager
def queued(store_url: str, folder: Path, concurrency: int, *, blocked: int = 0, together: int = 0) -> Iterator[Queued]:
    """Queue analyses on a controller that has no worker yet."""
    program, log = folder / "program.py", folder / "runs.log"
    program.write_text(PROGRAM)
    command = f"mine='{sys.executable}' {program} {log} {blocked} {together}"
    env = {"SHOAL_ANALYZERS": command, "WORKER_CONCURRENCY": str(concurrency), **TENTH}
    with Site(pages=6) as site:
        words = ["crawl", site.address, "--id", "site", "--speed", "max", "--store", store_url]
        done = run_shoal(*words, cwd=folder, env=clean_environment(folder), timeout=60)
        assert done.returncode == 0, done.stderr
    with Fleet(folder, store_url, **env) as fleet:
        fleet.controller()
        ids = [str(fleet.post("/api/v1/analyses", crawl_id="site")["id"]) for _ in range(ANALYSES)]
        yield Queued(fleet, ids, log)


def test_one_after_another_in_queue_order(store_url: str, tmp_path: Path) -> None:
    with queued(store_url, tmp_path, 1) as analyses:
        analyses.fleet.worker()
        analyses.wait()
        leases, shown = analyses.leases(), analyses.shown()
    assert [(one.analysis, one.ended) for one in leases] == [(one, "done") for one in analyses.ids]
    assert are_one_after_another([(one.granted_at, one.ended_at) for one in leases])
    spans = [(at(one["started_at"]), at(one["finished_at"])) for one in shown]
    assert spans == sorted(spans)
    assert are_one_after_another(spans)
    assert analyses.lines() == [f"{step} {run}" for run in range(1, ANALYSES + 1) for step in ("start", "end")]


@pytest.mark.exhaustive
def test_one_whose_child_is_killed_runs_again_before_the_next(store_url: str, tmp_path: Path) -> None:
    with queued(store_url, tmp_path, 1, blocked=2) as analyses:
        worker = analyses.fleet.worker()
        killed, before = block(analyses)
        worker.kill_child()
        analyses.wait()
        leases, shown = analyses.leases(), analyses.shown()
        check_findings(analyses)
    first, _, *rest = analyses.ids
    assert [one.analysis for one in leases] == [first, killed, killed, *rest]
    assert [one.ended for one in leases] == ["done", "crashed", *["done"] * (ANALYSES - 1)]
    assert are_one_after_another([(one.granted_at, one.ended_at) for one in leases])
    spans = [(at(one["started_at"]), at(one["finished_at"])) for one in shown]
    assert spans == sorted(spans)
    assert are_one_after_another(spans)
    assert shown[1]["started_at"] == before, "a lost child is not visible"


@pytest.mark.exhaustive
def test_one_whose_worker_is_killed_runs_again_when_its_lease_has_expired(store_url: str, tmp_path: Path) -> None:
    """Another worker goes on with the next ones meanwhile, one after another as well."""
    with queued(store_url, tmp_path, 1, blocked=2) as analyses:
        worker = analyses.fleet.worker()
        killed, before = block(analyses)
        worker.kill()
        analyses.fleet.worker("worker-2")
        analyses.wait()
        leases, shown = analyses.leases(), analyses.shown()
        check_findings(analyses)
    lost, again = (one for one in leases if one.analysis == killed)
    assert (lost.ended, again.ended) == ("expired", "done")
    assert lost.ended_at <= again.granted_at
    living = [one for one in leases if one is not lost]
    assert [one.ended for one in living] == ["done"] * ANALYSES
    assert are_one_after_another([(one.granted_at, one.ended_at) for one in living])
    assert [one.analysis for one in living if one is not again] == [one for one in analyses.ids if one != killed]
    others = [one for one in shown if one["id"] != killed]
    assert are_one_after_another([(at(one["started_at"]), at(one["finished_at"])) for one in others])
    assert shown[1]["started_at"] == before, "a lost worker is not visible"


@pytest.mark.exhaustive
def test_two_at_once_overlap(store_url: str, tmp_path: Path) -> None:
    """Also shows that the history would tell if analyses that must not overlap did."""
    with queued(store_url, tmp_path, 2, together=2) as analyses:
        analyses.fleet.worker()
        analyses.wait()
        leases, shown = analyses.leases(), analyses.shown()
    assert not are_one_after_another([(one.granted_at, one.ended_at) for one in leases])
    assert not are_one_after_another([(at(one["started_at"]), at(one["finished_at"])) for one in shown])
    assert sorted(analyses.lines()[:2]) == ["start 1", "start 2"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("grace", ["300ms", "10m"])
def test_a_worker_that_stops_hands_back_its_analysis_soon(store_url: str, tmp_path: Path, grace: str) -> None:
    """Whatever the grace is, it does not wait for an analyzer that takes long, and leaves no process behind."""
    with queued(store_url, tmp_path, 1, blocked=2) as analyses:
        worker = analyses.fleet.worker(SHOAL_SHUTDOWN_GRACE=grace)
        returned, before = block(analyses)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        [one] = [one for one in analyses.leases() if one.analysis == returned]
        assert one.ended == "released"
        assert analyses.shown()[1]["state"] == "running", "it waits for the next worker"
        analyses.fleet.worker("worker-2")
        analyses.wait()
        assert analyses.shown()[1]["started_at"] == before
        check_findings(analyses)


def block(analyses: Queued) -> tuple[str, str]:
    """Wait until the second analysis is in the run that never ends; return its id and its start."""
    wait_for(lambda: "start 2" in analyses.lines(), "the second analysis to run its last analyzer")
    second = analyses.shown()[1]
    assert second["state"] == "running"
    return second["id"], second["started_at"]


def check_findings(analyses: Queued) -> None:
    """Check that no attempt left findings twice."""
    for one in analyses.shown():
        found = analyses.fleet.get(f"/api/v1/analyses/{one['id']}/findings?code=mine.seen")["items"]
        assert [finding["page"] for finding in found] == ["http://a.test/"]
        assert all(code["count"] == code["stored"] for code in one["codes"])
        assert [analyzer["error"] for analyzer in one["analyzers"] if analyzer["analyzer"] == "mine"] == [None]

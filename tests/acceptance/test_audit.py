"""Analyses in real processes: a killed child, one analysis at a time, and the command `shoal audit`."""

import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.fleet import TENTH, Fleet, clean_environment, wait_for
from tests.support.processes import run_shoal
from tests.support.site import Site

# Blocks in its first run until it is released, and records each run; later runs report one finding and end.
BLOCKING = """
import json, os, sys, time
folder = {folder!r}
runs = len(os.listdir(folder))
open(os.path.join(folder, str(runs)), "w").close()
sys.stdin.read()
while runs == 0:
    time.sleep(0.05)
print(json.dumps({{"code": "seen", "page": "http://a.test/"}}))
"""


def analyses_of(fleet: Fleet) -> list[dict[str, Any]]:
    return list(fleet.get("/api/v1/analyses")["items"])


def test_a_killed_analysis_runs_again_and_one_after_another(store_url: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    program = tmp_path / "blocking.py"
    program.write_text(BLOCKING.format(folder=str(runs)))
    env = {"SHOAL_ANALYZERS": f"mine={sys.executable} {program}", "WORKER_CONCURRENCY": "1", **TENTH}
    with Site(pages=6) as site, Fleet(tmp_path, store_url, **env) as fleet:
        fleet.controller()
        fleet.wait_ready()
        crawls = [fleet.submit(site, analyze=True) for _ in range(2)]
        worker = fleet.worker()
        wait_for(lambda: any(runs.iterdir()), "the analyzer to run")
        [first] = [one for one in analyses_of(fleet) if one["state"] == "running"]
        worker.kill_child()
        wait_for(lambda: [one["state"] for one in analyses_of(fleet)] == ["success"] * 2, "both analyses to end")
        shown = [fleet.get(f"/api/v1/analyses/{one['id']}") for one in analyses_of(fleet)]
        assert {one["crawl_id"] for one in shown} == set(crawls)
        [again] = [one for one in shown if one["id"] == first["id"]]
        assert again["started_at"] == first["started_at"], "a lost worker is not visible"
        for one in shown:
            findings = fleet.get(f"/api/v1/analyses/{one['id']}/findings?code=mine.seen")["items"]
            assert [finding["page"] for finding in findings] == ["http://a.test/"]
            assert all(code["count"] == code["stored"] for code in one["codes"])
            assert [failed for failed in one["analyzers"] if failed["error"]] == []
        assert len(list(runs.iterdir())) == 3
        one, two = sorted(shown, key=lambda each: str(each["started_at"]))
        assert one["finished_at"] <= two["started_at"] or one["id"] == first["id"]


@pytest.mark.parametrize(
    ("rules", "code", "says"),
    [
        ({"rules": [{"metric": "pages", "op": ">=", "threshold": 5}]}, 0, "Gate: passed"),
        ({"rules": [{"metric": "titles_missing", "op": "<", "threshold": 1}]}, 2, "did you mean"),
        ({"rules": [{"metric": "description_missing", "op": "<", "threshold": 1}]}, 10, "description_missing is 6"),
        ({"fail": ["broken_link"], "min_pages": 100}, 12, "The crawl has 6 pages; the gate needs 100."),
    ],
)
def test_the_exit_code_is_the_verdict(tmp_path: Path, rules: dict[str, Any], code: int, says: str) -> None:
    gate = tmp_path / "gate.json"
    gate.write_bytes(orjson.dumps(rules))
    with Site(pages=6) as site:
        words = ["audit", site.address, "--gate", str(gate), "--json", "--speed", "max"]
        done = run_shoal(*words, cwd=tmp_path, env=clean_environment(tmp_path), timeout=60)
    assert done.returncode == code, done.stderr
    if code == 2:
        assert says in done.stderr
        return
    shown = orjson.loads(done.stdout)
    assert shown["metrics"]["pages"] == 6
    outcome = {0: "passed", 10: "failed", 12: "inconclusive"}[code]
    assert shown["verdict"]["outcome"] == outcome
    assert code == 0 or says in shown["verdict"]["reasons"][0]


def test_a_first_look_needs_no_configuration(tmp_path: Path) -> None:
    with Site(pages=6) as site:
        done = run_shoal(
            "audit", site.address, "--speed", "max", cwd=tmp_path, env=clean_environment(tmp_path), timeout=60
        )
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split()[:3] == ["SEVERITY", "CODE", "COUNT"]
    assert [row.split()[0] for row in rows] == sorted([row.split()[0] for row in rows], key="error warning notice".find)
    assert any("description_missing" in row and site.address in row for row in rows)


def test_a_missing_baseline_is_refused_before_the_crawl(tmp_path: Path) -> None:
    with Site(pages=6) as site:
        words = ["audit", site.address, "--baseline", "nothing"]
        done = run_shoal(*words, cwd=tmp_path, env=clean_environment(tmp_path), timeout=60)
        assert site.visits == []
    assert done.returncode == 2
    assert '--baseline is "nothing", which has no successful analysis' in done.stderr

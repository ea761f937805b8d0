"""The command `shoal audit`, in real processes."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.fleet import clean_environment
from tests.support.processes import run_shoal, start_shoal
from tests.support.site import Site


@pytest.mark.parametrize(
    ("rules", "code", "says"),
    [
        ({"rules": [{"metric": "pages", "op": ">=", "threshold": 5}]}, 0, "Gate: passed"),
        ({"rules": [{"metric": "titles_missing", "op": "<", "threshold": 1}]}, 2, "which is not a metric; use"),
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


PROGRAM = """
import pathlib, sys
runs = pathlib.Path(sys.argv[1])
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
sys.stdin.read()
sys.exit(len(runs.read_text()) <= int(sys.argv[2]) and "no dictionary")
"""


@pytest.mark.parametrize(
    ("failures", "optional", "code", "says"),
    [
        (0, "", 0, "description_missing"),
        (1, "", 0, "description_missing"),  # the second attempt succeeds
        (9, "", 13, 'Analysis failed: Analyzer "mine" failed: It ended with exit code 1: no dictionary.'),
        (9, "mine", 0, "Optional analyzer mine failed: It ended with exit code 1: no dictionary."),
    ],
)
def test_an_analyzer_that_fails_is_tried_again_and_then_fails_the_audit(
    tmp_path: Path, failures: int, optional: str, code: int, says: str
) -> None:
    program, runs = tmp_path / "program.py", tmp_path / "runs"
    program.write_text(PROGRAM)
    env = clean_environment(tmp_path) | {
        "SHOAL_ANALYZERS": f"mine='{sys.executable}' {program} {runs} {failures}",
        "SHOAL_OPTIONAL_ANALYZERS": optional,
        "WORKER_BACKOFF_MS": "10",
    }
    with Site(pages=3) as site:
        done = run_shoal("audit", site.address, "--speed", "max", cwd=tmp_path, env=env, timeout=60)
    assert done.returncode == code, done.stderr
    assert "description_missing" in done.stdout, "the findings of the others are shown"
    assert says in done.stdout + done.stderr
    assert done.stderr.count('"level":') == (failures > 0), done.stderr
    assert len(runs.read_text()) == (1 if optional else min(failures + 1, 2))


def test_an_audit_of_a_crawl_without_details_says_once_what_was_skipped(tmp_path: Path) -> None:
    env = clean_environment(tmp_path)
    with Site(pages=3) as site:
        run_shoal("crawl", site.address, "--id", "plain", "--speed", "max", cwd=tmp_path, env=env, timeout=60)
        done = run_shoal("audit", "--resume", "plain", cwd=tmp_path, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "no page details" in line]
    assert line.startswith("Skipped canonicals, cookies, ")


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


def test_an_interrupted_audit_is_resumed_as_it_says(tmp_path: Path) -> None:
    gate = tmp_path / "gate.json"
    gate.write_bytes(orjson.dumps({"fail": ["description_missing"]}))
    env = clean_environment(tmp_path)
    with Site(pages=20) as site:
        site.allowed = 5
        words = ["audit", site.address, "--speed", "max", "--gate", str(gate), "--html", "report.html"]
        process = start_shoal(*words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        site.wait_for_pages(5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 11, err
        site.allowed = None
        [how] = re.findall(r"resume with `shoal (audit --resume \S+ --gate \S+ --html report.html)`", err)
        done = run_shoal(*how.split(), "--json", cwd=tmp_path, env=env, timeout=60)
        assert done.returncode == 10, done.stderr
        assert (tmp_path / "report.html").exists()
        shown = orjson.loads(done.stdout)
        assert (shown["state"], shown["metrics"]["pages"], shown["crawl_id"]) == ("success", 20, how.split()[2])
        again = run_shoal("audit", "--resume", shown["crawl_id"], "--json", cwd=tmp_path, env=env, timeout=60)
    assert again.returncode == 0, "a crawl that has ended is only analyzed"
    assert orjson.loads(again.stdout)["metrics"] == shown["metrics"]

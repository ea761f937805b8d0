"""The command `shoal audit`, in real processes."""

import re
import signal
import subprocess
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
        words = ["audit", site.address, "--speed", "max", "--gate", str(gate)]
        process = start_shoal(*words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        site.wait_for_pages(5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 11, err
        site.allowed = None
        [how] = re.findall(r"resume with `shoal (audit --resume \S+ --gate \S+)`", err)
        done = run_shoal(*how.split(), "--json", cwd=tmp_path, env=env, timeout=60)
        assert done.returncode == 10, done.stderr
        shown = orjson.loads(done.stdout)
        assert (shown["state"], shown["metrics"]["pages"], shown["crawl_id"]) == ("success", 20, how.split()[2])
        again = run_shoal("audit", "--resume", shown["crawl_id"], "--json", cwd=tmp_path, env=env, timeout=60)
    assert again.returncode == 0, "a crawl that has ended is only analyzed"
    assert orjson.loads(again.stdout)["metrics"] == shown["metrics"]

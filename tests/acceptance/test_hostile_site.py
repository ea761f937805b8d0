"""A crawl of the hostile site at full speed ends by itself, uses little memory and has a complete record."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ledger
from tests.support.fleet import LONG_LEASE, clean_environment
from tests.support.hostile import HostileSite, complaints
from tests.support.ledger import Expected

DEADLINE_SECONDS = 180
MOST_MEMORY = 350_000_000  # 280 MB on a quiet machine, 40 of them for trafilatura and its trees
OUTPUTS = ("out.jsonl", "out.csv", "out.warc.gz", "out.md")
DATABASE = ("shoal.db", "shoal.db-wal", "shoal.db-shm")
REASONS = {
    *("robots", "repeating_path", "too_many_segments", "scheme", "credentials", "backslash", "control_characters"),
    *("url_too_long", "invalid_url"),
}
ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_every_page_comes_to_what_it_must_and_nothing_inside_is_touched(tmp_path: Path, sqlite_url: str) -> None:
    with HostileSite() as site:
        crawl = ["crawl", *site.seeds, "--id", "hostile", "--store", sqlite_url, "--json"]
        how = [
            "--speed",
            "max",
            "--depth",
            "50",
            "--scope",
            "any",
            *itertools.chain(*(("--output", out) for out in OUTPUTS)),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.peak_memory", "peak", sys.executable, "-m", "shoal", *crawl, *how],
            cwd=tmp_path,
            env=clean_environment(tmp_path) | site.settings | LONG_LEASE | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert complaints(site, records) == []
    summary = json.loads(done.stdout)
    assert summary["state"] == "completed"
    assert summary["skipped"].keys() >= REASONS
    assert int((tmp_path / "peak").read_text()) < MOST_MEMORY
    assert {path.name for path in tmp_path.iterdir()} <= {*OUTPUTS, "out.cdxj", "bodies", "peak", "home", *DATABASE}
    assert ledger.check(sqlite_url, "hostile", Expected(failed=[*site.bad, *site.statuses])) == []

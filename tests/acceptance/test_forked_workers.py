"""The workers that run our tests lose no report, even if a test ends its worker."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import os, pytest, signal

@pytest.fixture
def broken():
    yield
    raise ValueError("at the end")

@pytest.mark.parametrize("number", range(100))
def test_number(number, tmp_path):
    print("this is", number)
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    assert number != 40
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()

def test_skipped():
    pytest.skip("not here")

def test_broken(broken):
    pass
"""


def run(folder: Path, *options: str) -> str:
    (folder / "test_these.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--workers", "2"]
    done = subprocess.run(
        [*command, *options, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_every_test_is_reported_once_although_one_kills_its_worker(tmp_path: Path) -> None:
    printed = run(tmp_path)
    assert "2 failed, 99 passed, 1 skipped, 1 error" in printed
    assert "ended during this test, with the exit code -9" in printed
    assert "this is 40\n" in printed
    assert "this is 41\n" not in printed
    assert "ValueError: at the end" in printed


def test_the_run_stops_after_the_first_failure_if_it_should(tmp_path: Path) -> None:
    [passed] = re.findall(r"1 failed, (\d+) passed", run(tmp_path, "-x", "-k", "number"))
    assert int(passed) < 90

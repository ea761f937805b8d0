"""Runs of tests lose no report and always end, even if a test ends its process or hangs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import with_load

pytestmark = pytest.mark.exhaustive
ROOT = Path(__file__).parents[2]
ENDED = """
import os, pytest, signal

@pytest.mark.parametrize("number", range(40))
def test_number(number, tmp_path):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
"""
HANGING = """
import asyncio, signal, time

async def test_that_waits():
    await asyncio.Event().wait()

async def test_that_goes_on_after_every_exception():
    while True:
        try:
            await asyncio.sleep(0.01)
        except BaseException:
            pass

def test_that_is_deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(600)

async def test_afterwards():
    pass
"""
SHELL = """
import os

def test_the_environment():
    assert "PYTHONUNBUFFERED" not in os.environ
    assert "SHOAL_LEASE" not in os.environ
"""


def limit() -> str:
    """Two seconds, or as many as a third of which is enough for a busy machine to write the stacks."""
    return f"{min(10.0, with_load(2)):g}"


def run(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_these.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *options, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "SHOAL_LEASE": "1s"},
        capture_output=True,
        text=True,
        timeout=with_load(120),
        check=False,
    )


def test_every_test_is_reported_once_although_one_kills_its_process(tmp_path: Path) -> None:
    done = run(tmp_path, ENDED, "-n", "2", "--dist", "worksteal")
    assert done.returncode == 1
    assert "1 failed, 39 passed" in done.stdout
    assert "crashed while running" in done.stdout


def test_a_test_that_hangs_has_failed_with_its_stacks_and_the_others_run(tmp_path: Path) -> None:
    done = run(tmp_path, HANGING, "-n", "1", "--time-limit", limit())
    assert done.returncode == 1
    assert "in test_that_waits" in done.stdout
    assert "in test_that_is_deaf" in done.stdout
    assert done.stdout.count("crashed while running") >= 2
    assert " 1 passed" in done.stdout


def test_a_run_without_workers_ends_with_the_stacks_of_a_deaf_test_on_stderr(tmp_path: Path) -> None:
    done = run(tmp_path, HANGING, "-n", "0", "--time-limit", limit(), "-k", "deaf")
    assert done.returncode == 1
    assert "in test_that_is_deaf" in done.stderr


def test_a_test_does_not_see_the_variables_of_the_shell(tmp_path: Path) -> None:
    done = run(tmp_path, SHELL)
    assert done.returncode == 0, done.stdout

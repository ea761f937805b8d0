"""Processes that tests fork are what the same command would be if it were started as usual."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.fleet import PATIENCE_SECONDS, clean_environment
from tests.support.processes import FORK, run_shoal, start_shoal
from tests.support.servers import free_port

pytestmark = pytest.mark.exhaustive


@pytest.fixture(params=["0", "1"], ids=["started", "forked"])
def env(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    monkeypatch.setenv(FORK, request.param)
    return clean_environment(tmp_path)


def test_a_command_has_its_arguments_folder_and_environment(env: dict[str, str], tmp_path: Path) -> None:
    words = ["crawls", "ls", "--store", "sqlite:///here.db"]
    done = run_shoal(*words, cwd=tmp_path, env=env, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout) == (5, "")
    assert 'store "here.db" does not exist' in done.stderr
    env["SHOAL_LEASE"] = "soon"
    done = run_shoal("crawl", "http://127.0.0.1:9/", cwd=tmp_path, env=env, timeout=PATIENCE_SECONDS)
    assert done.returncode == 4
    assert "SHOAL_LEASE" in done.stderr


def test_a_server_runs_until_it_is_killed_and_its_exit_code_says_so(env: dict[str, str], tmp_path: Path) -> None:
    env["DATABASE_URL"] = f"sqlite:///{tmp_path}/shoal.db"
    words = ["serve", "--listen", f"127.0.0.1:{free_port()}"]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with start_shoal(*words, cwd=tmp_path, env=env, **streams) as server:
        try:
            assert b"is listening on" in server.stdout.readline()
            assert server.poll() is None
        finally:
            server.kill()
        assert server.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_a_variable_of_the_interpreter_counts(env: dict[str, str], tmp_path: Path) -> None:
    """Only a process that is started reads it, so such a command is not forked."""
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('read')")
    done = run_shoal("--version", cwd=tmp_path, env=env | {"PYTHONPATH": str(tmp_path)}, timeout=PATIENCE_SECONDS)
    assert "read" in done.stderr

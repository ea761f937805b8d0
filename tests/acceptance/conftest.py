"""Commands of `shoal` as processes of their own."""

from pathlib import Path

import pytest

from tests.support.built_package import distribution
from tests.support.fleet import clean_environment
from tests.support.processes import Shoal, run_shoal
from tests.support.servers import Servers

DEADLINE_SECONDS = 120


@pytest.fixture
def shoal(tmp_path: Path) -> Shoal:
    """Runs a command to completion, in the test's own folder and with no settings but those that are given."""

    def run(*words: str, **env: str) -> tuple[int, str, str]:
        done = run_shoal(*words, cwd=tmp_path, env=clean_environment(tmp_path) | env, timeout=DEADLINE_SECONDS)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture(scope="session")
def dist(servers: Servers) -> Path:
    """The folder with the wheel and the source distribution, built once per run."""
    return distribution(servers.folder)

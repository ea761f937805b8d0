"""Fixtures that every test may use: real stores, fresh for each test, and the closing lines that name them.

A server starts when the first test asks for it. The process that was called (with xdist: the controller) owns
the run; workers join it by its folder.
"""

import os
import platform
import secrets
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import PostgresServer, RedisServer, Servers, Service, ask_postgres, ask_redis

SERVERS = pytest.StashKey[Servers]()
FREE_THE_SCHEMA = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_locks
    JOIN pg_class ON pg_class.oid = relation
    JOIN pg_namespace ON pg_namespace.oid = relnamespace AND nspname = '{schema}'
    WHERE pid <> pg_backend_pid()
"""


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    config.stash[SERVERS] = Servers(Path(worker["servers"])) if worker else Servers.open()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """xdist asks what a new worker has to know."""
    node.workerinput["servers"] = str(node.config.stash[SERVERS].folder)  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    used = [str(service) for service in config.stash[SERVERS].used()]
    used += [f"SQLite {sqlite3.sqlite_version}", f"Python {platform.python_version()}"]
    terminalreporter.write_line(f"services: {', '.join(used)}")


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[SERVERS].close()


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> Servers:
    return pytestconfig.stash[SERVERS]


@pytest.fixture(scope="session")
def postgres(servers: Servers) -> Service:
    """The PostgreSQL of the whole run: not to be stopped, and nothing of it but a schema is yours."""
    return servers.postgres()


@pytest.fixture(scope="session")
def redis(servers: Servers) -> Service:
    """The Redis of the whole run: not to be stopped nor flushed."""
    return servers.redis()


@pytest.fixture(scope="session")
def chromium(servers: Servers) -> str:
    """The path of a browser that starts."""
    return servers.chromium().url


@pytest.fixture
def postgres_url(postgres: Service) -> Iterator[str]:
    """An empty schema, gone after the test together with whatever still holds locks in it."""
    schema = f"t_{secrets.token_hex(8)}"
    ask_postgres(postgres.url, f"CREATE SCHEMA {schema}")
    yield f"{postgres.url}{'&' if '?' in postgres.url else '?'}search_path={schema}"
    drop = ("SET lock_timeout = '10s'", "SET client_min_messages = warning", f"DROP SCHEMA {schema} CASCADE")
    ask_postgres(postgres.url, FREE_THE_SCHEMA.format(schema=schema), *drop)


@pytest.fixture
def redis_url(redis: Service) -> Iterator[str]:
    """An empty database: each worker has its own, and runs one test at a time."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    url = f"{redis.url.rsplit('/', 1)[0]}/{worker + 1}"
    ask_redis(url, "FLUSHDB")
    yield url
    ask_redis(url, "FLUSHDB")


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shoal.db"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Every store in turn: the test runs once on each."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def own_postgres(servers: Servers) -> Iterator[PostgresServer]:
    """A server of this test alone, to stop, kill and start again."""
    server = servers.new_postgres()
    yield server
    server.stop("immediate")


@pytest.fixture
def own_redis(servers: Servers) -> Iterator[RedisServer]:
    """A server of this test alone, to stop, kill and start again."""
    server = servers.new_redis()
    yield server
    server.kill()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB, where we may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    may = os.geteuid() == 0 and shutil.which("mount") is not None
    if not may or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root; the page limit below covers the rest")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)

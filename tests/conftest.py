"""Fixtures that every test may use: real stores, fresh for each test, and the closing lines that name them.

A server starts when the first test asks for it. The process that was called owns the run; workers join it.
"""

import asyncio
import gc
import os
import platform
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import asyncpg
import pytest
import uvloop
from hypothesis import HealthCheck, Phase, settings

from shoal.base.clock import FakeClock
from shoal.base.database.sqlite import SqliteDatabase
from shoal.drivers.redis import lane_server
from shoal.process.lifetime import reduce_collections
from tests.support.effort import times
from tests.support.fleet import OURS
from tests.support.kept_pools import KeptPools
from tests.support.one_database import beside_the_other
from tests.support.schemas import Schemas
from tests.support.servers import PostgresServer, RedisServer, Servers, Service, redis_database
from tests.support.time_limit import TimeLimit

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# What a run takes from the shell: any other variable could make it pass here and fail elsewhere. Shoal sets those of
# gRPC itself.
FROM_THE_SHELL = re.compile(
    "PATH|HOME|TMPDIR|LANG|LC_.*|TZ|PYTHONPATH|PYTHONHASHSEED|PYTEST_.*|SHOAL_TEST_.*|"
    "GRPC_VERBOSITY|GRPC_ENABLE_FORK_SUPPORT|PIP_.*|UV_.*|(?i:npm_config_.*)|NODE_EXTRA_CA_CERTS|SSL_CERT_.*|"
    ".*_CA_BUNDLE|(?i:.*_proxy)"
)
SERVERS = pytest.StashKey[Servers]()
MEMORY = Path("/dev/shm")
ROOM_BYTES = 6_000_000_000
LIMIT_SECONDS = 240.0  # for a test, on a machine that does other work as well
# Files with a test that takes ten seconds or more while others run beside it.
LONG = {
    *("test_browser", "test_browser_pool", "test_chaos", "test_compose", "test_fleet_faults", "test_hostile_site"),
    *("test_interleavings", "test_large_sitemaps", "test_nodes", "test_openapi_fuzz", "test_query_plans"),
    *("test_queue_model", "test_rendering", "test_two_days_of_policies", "test_worker", "test_guides"),
    *("test_first_steps", "test_loop_cpu", "test_silent_peers", "test_openapi_clients", "test_distribution"),
    *("test_test_runs", "test_every_page", "test_trap_site", "test_spacing_at_the_target", "test_analysis_order"),
}


# A complete run tries the same cases each time, and reports a failing case without shrinking it, which can take
# minutes. To search for new cases, or to shrink one: pytest --hypothesis-profile=explore
settings.register_profile(
    "steady",
    max_examples=times(100),
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.target],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    limit = max(LIMIT_SECONDS, float(times(int(LIMIT_SECONDS))))
    parser.addoption("--time-limit", type=float, default=limit, help="seconds after which a test has failed")


def pytest_configure(config: pytest.Config) -> None:
    # A run in the background of a script ignores Ctrl-C, and the processes it starts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [name for name in os.environ if not FROM_THE_SHELL.fullmatch(name)]:
        del os.environ[name]
    if "TMPDIR" not in os.environ and memory_can_hold_files():
        tempfile.tempdir = os.environ["TMPDIR"] = str(MEMORY)  # our processes inherit it
    worker: dict[str, str] | None = getattr(config, "workerinput", None)
    config.stash[SERVERS] = servers = Servers(Path(worker["servers"])) if worker else Servers.open()
    stacks = None if worker is None else servers.folder / f"{worker['workerid']}.stacks"
    stderr = os.dup(2)  # tests have another one, which is lost with their process
    config.pluginmanager.register(TimeLimit(config.option.time_limit, partial(open_stacks, stacks, stderr)))


def open_stacks(stacks: Path | None, stderr: int) -> IO[str]:
    """Open the file for the stacks of a test that hangs: that of its worker, which the run reports, or the stderr of a
    run without workers."""
    return os.fdopen(os.dup(stderr), "w") if stacks is None else stacks.open("w")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: "WorkerController") -> None:
    """Tell a worker, before it starts, where the servers of this run are."""
    node.workerinput["servers"] = str(node.config.stash[SERVERS].folder)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: pytest.TestReport) -> None:
    """Add the stacks of a test that was ended together with its worker."""
    worker: WorkerController = report.node  # type: ignore[attr-defined]
    stacks = worker.config.stash[SERVERS].folder / f"{worker.gateway.id}.stacks"
    report.longrepr = f"{report.longrepr}\n\n{stacks.read_text()}"


def memory_can_hold_files() -> bool:
    """Every commit to a SQLite file waits for the disk; files in memory survive a killed process just as well."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return False
    room = os.statvfs(MEMORY)
    return room.f_bavail * room.f_frsize >= ROOM_BYTES and not room.f_flag & os.ST_NOEXEC


def on_further_versions(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that run on one more version of Redis."""
    return [item for item in items if re.search(r"\bredis-(sqlite-)?[67]", item.name)]


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], AbstractEventLoop]]:
    """Run tests on the event loop that our processes use."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: a worker keeps a million objects, and each search would visit all of them
    again, here and in every test. Tests look for it as rarely as our processes do."""
    gc.disable()
    try:
        return (yield)
    finally:
        reduce_collections()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before tests are selected by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run beside the other database. Files with long tests come first: one that began last would
    leave the other workers without work. Asynchronous tests begin and end with the shared loop."""
    for item in [*beside_the_other(items), *on_further_versions(items)]:
        item.add_marker("exhaustive")
    items.sort(key=lambda item: item.path.stem not in LONG)
    for item in items:
        if item.get_closest_marker("asyncio") and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "shared_event_loop")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    used = [str(service) for service in config.stash[SERVERS].used()]
    used += [f"SQLite {sqlite3.sqlite_version}", f"Python {platform.python_version()}"]
    terminalreporter.write_line(f"services: {', '.join(used)}")


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[SERVERS].close()


@pytest.fixture
async def shared_event_loop(kept_pools: KeptPools) -> AsyncIterator[None]:
    """Cancel the tasks that an asynchronous test leaves behind. Every such test has it, before its other fixtures."""
    yield
    if left := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> Servers:
    return pytestconfig.stash[SERVERS]


@pytest.fixture(scope="session")
def postgres(servers: Servers) -> Service:
    """The PostgreSQL of the whole run: do not stop it, and use only a schema of your own."""
    return servers.postgres()


@pytest.fixture(scope="session")
def chromium(servers: Servers) -> str:
    """The path of a Chromium binary that works."""
    return servers.chromium().url


@pytest.fixture(scope="session")
async def kept_pools() -> AsyncIterator[KeptPools]:
    pools = KeptPools(asyncpg.create_pool, asyncio.get_running_loop())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncpg, "create_pool", pools.create_pool)
        yield pools
    await pools.close()


@pytest.fixture(scope="session")
def schemas(postgres: Service, kept_pools: KeptPools) -> Iterator[Schemas]:
    schemas = Schemas(postgres.url, kept_pools)
    yield schemas
    schemas.close()


@pytest.fixture
def postgres_url(schemas: Schemas) -> Iterator[str]:
    """A new store, in a schema of its own. Connections that are still open at the end of the test are closed."""
    schema = schemas.lend()
    yield schema.url
    schemas.take_back(schema)


@pytest.fixture
def bare_postgres_url(schemas: Schemas) -> Iterator[str]:
    """A schema without any table."""
    schema = schemas.lend(empty=True)
    yield schema.url
    schemas.take_back(schema)


@pytest.fixture
def redis_version() -> str:
    """The version of the server behind `redis_url` and `own_redis`; empty for the usual one.

    A test with the mark `on_every_redis` (tests/support/redis_versions.py) runs on all versions. A test, or a fixture
    with parameters, can also choose: it gives `redis_version` as a parameter, or calls `servers.redis(version)` and
    `servers.new_redis(version=version)`. `SHOAL_TEST_REDIS=6.2 make test T=...` runs everything on one version.
    """
    return ""


@pytest.fixture
def redis(servers: Servers, redis_version: str) -> Service:
    """A Redis that the whole run shares. It refuses to be stopped, flushed or configured, or to cut its connections:
    `own_redis` is for that."""
    return servers.redis(redis_version)


@pytest.fixture
def redis_url(redis: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty database: each worker has its own, and runs one test at a time."""
    monkeypatch.setattr(lane_server, "TIMEOUT", timedelta(seconds=30))  # the tests of other workers keep it busy
    with redis_database(redis) as url:
        yield url


@pytest.fixture(scope="session")
def new_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which nothing has happened yet."""
    path = tmp_path_factory.mktemp("new") / "shoal.db"
    SqliteDatabase(path, FakeClock())._prepare(upgrade=True)
    return path


@pytest.fixture
def sqlite_url(new_file: Path, tmp_path: Path) -> str:
    """A new store, in a file of its own."""
    shutil.copy(new_file, tmp_path)
    return f"sqlite:///{tmp_path}/shoal.db"


@pytest.fixture
def bare_sqlite_url(tmp_path: Path) -> str:
    """Return the URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/shoal.db"


@pytest.fixture
def bare_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to work in, which is also the home, and no setting of Shoal in the environment."""
    for name in [name for name in os.environ if name.startswith(OURS)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def default_store(bare_environment: None, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new store that commands in this process use, and no other setting."""
    monkeypatch.setenv("DATABASE_URL", sqlite_url)


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
def own_redis(servers: Servers, redis_version: str) -> Iterator[RedisServer]:
    """A server of this test alone, to stop, kill and start again."""
    server = servers.new_redis(version=redis_version)
    yield server
    server.kill()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB, if we are allowed to mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    may = os.geteuid() == 0 and shutil.which("mount") is not None
    if not may or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root; the page limit below covers the rest")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a killed process may still be ending

"""Contract of the database interface on both drivers: units of work, snapshots, schema, errors with a fix.

F24 and F30-F33 of the fault list are here.
"""

import asyncio
import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec.structs import replace

from shoal.app import database_of
from shoal.app.connect import SchemaWatch
from shoal.base.clock import FakeClock, SystemClock
from shoal.base.database import Conflict, Database, Tx, queries, sqlite
from shoal.base.database import queries as migrations
from shoal.base.database.postgres import PostgresDatabase
from shoal.base.database.queries import Migration
from shoal.base.database.sqlite import SqliteDatabase
from shoal.base.errors import BackendUnavailable, BadConfig, SchemaMismatch, ShoalError, StorageFull
from shoal.base.settings import DatabaseSettings
from shoal.crawl.states import CrawlState
from shoal.fleet.node import CommandName
from shoal.fleet.states import CommandState, NodeState
from shoal.queue.states import GrantEnd, JobState
from tests.contract.conftest import Bench, database_at
from tests.support.full_disk import stuff
from tests.support.patience import wait_until
from tests.support.servers import Service

# Only one dialect needs these: SQLite tells new URLs from known ones by reading, PostgreSQL by inserting; a hint that
# a job waits is a change of the file, or a notification.
SOON = timedelta(seconds=5)
SQLITE_ONLY = {
    *("known_keys", "reserve_seq", "insert_fates", "ends_of_lines", "anchor_machine_clock", "drop_job_hosts"),
    # PostgreSQL does these in one statement, `turn_jobs`.
    *("any_due", "close_grants", "end_jobs", "held_jobs", "lease_jobs", "move_jobs"),
}
POSTGRES_ONLY = {"add_fates", "anchor_server_clock", "notify", "turn_jobs"}


async def add_host(tx: Tx, origin: str) -> None:
    await tx.many("insert_hosts", [{"origin": origin}])


async def hosts(bench: Bench) -> list[str]:
    return [row["origin"] for row in await bench.sql("SELECT origin FROM host ORDER BY origin")]


def adding(*origins: str, then: Exception | None = None) -> Callable[[Tx], Any]:
    async def work(tx: Tx) -> str:
        for origin in origins:
            await add_host(tx, origin)
        if then is not None:
            raise then
        return origins[0]

    return work


@contextlib.contextmanager
def locked_elsewhere(path: str) -> Iterator[sqlite3.Connection]:
    """Another process's write lock, as far as SQLite can tell."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield other
    finally:
        if other.in_transaction:
            other.execute("ROLLBACK")
        other.close()


def file_of(bench: Bench) -> str:
    return bench.url.removeprefix("sqlite:///")


# Units of work


async def test_a_unit_is_stored_whole_and_answers(bench: Bench) -> None:
    assert await bench.database.run(adding("a", "b")) == "a"
    assert await hosts(bench) == ["a", "b"]


async def test_an_error_undoes_its_unit_and_reaches_the_caller_as_it_is(bench: Bench) -> None:
    with pytest.raises(ZeroDivisionError):
        await bench.database.run(adding("a", then=ZeroDivisionError()))
    assert await hosts(bench) == []
    await bench.database.run(adding("b"))
    assert await hosts(bench) == ["b"]


async def test_one_bad_unit_does_not_undo_its_neighbours(bench: Bench) -> None:
    units = [adding(f"h{n}", then=ZeroDivisionError() if n % 3 == 0 else None) for n in range(30)]
    answers = await asyncio.gather(*[bench.database.run(unit) for unit in units], return_exceptions=True)
    good = sorted(f"h{n}" for n in range(30) if n % 3)
    assert sorted(answer for answer in answers if isinstance(answer, str)) == good
    assert sum(isinstance(answer, ZeroDivisionError) for answer in answers) == 10
    assert await hosts(bench) == good


async def test_units_of_one_wake_up_share_a_commit_and_not_their_fate(sqlite_bench: Bench) -> None:
    """While the lock is held elsewhere, requests queue up; then they run in one transaction."""
    with locked_elsewhere(file_of(sqlite_bench)) as other:
        run = sqlite_bench.database.run
        waiting = [asyncio.create_task(run(adding(f"h{n}", then=KeyError() if n == 5 else None))) for n in range(12)]
        await sqlite_bench.clock.sleep(0)  # one iteration of the event loop, so that the tasks start
        other.execute("ROLLBACK")
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(answer, KeyError) for answer in answers].index(True) == 5
    assert len(await hosts(sqlite_bench)) == 11


async def test_a_refused_statement_undoes_only_its_own_unit(bench: Bench) -> None:
    async def twice(tx: Tx) -> None:
        await add_host(tx, "before")
        for _ in range(2):
            await tx.execute("append_event", id="e", type="t", subject="s", body="{}")

    answers = await asyncio.gather(
        bench.database.run(adding("a")),
        bench.database.run(twice),
        bench.database.run(adding("b")),
        return_exceptions=True,
    )
    assert isinstance(answers[1], Exception)
    assert await hosts(bench) == ["a", "b"]


@pytest.mark.parametrize("method", ["run", "once"])
async def test_callbacks_run_in_order_after_the_commit_and_before_the_caller_goes_on(bench: Bench, method: str) -> None:
    called: list[tuple[str, threading.Thread]] = []

    async def work(tx: Tx) -> None:
        for name in ("first", "second"):
            tx.on_commit(lambda name=name: called.append((name, threading.current_thread())))  # type: ignore[misc]
        await add_host(tx, "http://a")
        assert not called

    await getattr(bench.database, method)(work, within=SOON)
    assert called == [("first", threading.main_thread()), ("second", threading.main_thread())]
    assert await hosts(bench) == ["http://a"]


async def test_callbacks_of_a_unit_that_is_rolled_back_are_dropped(bench: Bench) -> None:
    called: list[str] = []

    def audit(origin: str, then: Exception | None = None) -> Callable[[Tx], Any]:
        async def work(tx: Tx) -> None:
            tx.on_commit(lambda: called.append(origin))
            await adding(origin, then=then)(tx)

        return work

    units = (audit("http://a"), audit("http://b", ValueError("no")), audit("http://c"))
    outcomes = await asyncio.gather(*map(bench.database.run, units), return_exceptions=True)
    assert isinstance(outcomes[1], ValueError)
    assert sorted(called) == ["http://a", "http://c"]


async def test_an_attempt_that_is_repeated_runs_only_its_own_callbacks(postgres_bench: Bench) -> None:
    attempts: list[int] = []
    called: list[int] = []

    async def work(tx: Tx) -> None:
        attempts.append(number := len(attempts))
        tx.on_commit(lambda: called.append(number))
        if number == 0:
            raise Conflict

    await postgres_bench.database.run(work)
    assert (attempts, called) == ([0, 1], [1])


async def test_a_unit_is_repeated_if_the_schema_has_changed_since_its_statements_were_prepared(
    postgres_bench: Bench,
) -> None:
    bench = postgres_bench
    for _ in range(2):
        await bench.database.run(lambda tx: tx.value("now"))
    await bench.sql("DROP FUNCTION shoal_now CASCADE")
    await bench.sql("CREATE FUNCTION shoal_now() RETURNS int LANGUAGE sql AS 'SELECT 7'")
    assert await bench.database.run(lambda tx: tx.value("now")) == 7


async def test_a_callback_that_raises_is_reported_and_hides_neither_the_commit_nor_the_others(bench: Bench) -> None:
    called: list[str] = []
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

    async def work(tx: Tx) -> str:
        tx.on_commit(lambda: {}["nothing"])
        tx.on_commit(lambda: called.append("second"))
        return "done"

    assert await bench.database.run(work) == "done"
    assert called == ["second"]
    assert [type(one["exception"]) for one in reported] == [KeyError]


@pytest.mark.parametrize("method", ["run", "once"])
async def test_calls_to_other_systems_follow_the_commit_or_the_rollback(bench: Bench, method: str) -> None:
    made: list[str] = []

    async def call(name: str) -> None:
        made.append(name)

    async def unit(tx: Tx, fails: bool) -> str:
        tx.after_commit(partial(call, "committed"))
        tx.after_rollback(partial(call, "rolled back"))
        await tx.value("now")
        made.append("worked")
        if fails:
            raise ValueError("no")
        return "done"

    commit = partial(getattr(bench.database, method), within=SOON)
    assert await commit(partial(unit, fails=False)) == "done"
    assert made == ["worked", "committed"], "before the caller goes on"
    with pytest.raises(ValueError, match="no"):
        await commit(partial(unit, fails=True))
    assert made[2:] == ["worked", "rolled back"]


async def test_work_that_was_put_off_may_put_off_more(bench: Bench) -> None:
    async def first(tx: Tx) -> None:
        await add_host(tx, "a")
        tx.afterwards(second)

    async def second(tx: Tx) -> None:
        await add_host(tx, "b")
        tx.afterwards(adding("c"))

    await bench.database.run(first)
    assert await hosts(bench) == ["a", "b", "c"]


async def test_a_call_that_raises_is_reported_and_hides_neither_the_commit_nor_the_others(bench: Bench) -> None:
    reported: list[Any] = []
    made: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))

    async def fail() -> None:
        raise KeyError("nothing")

    async def call() -> None:
        made.append("second")

    async def unit(tx: Tx) -> str:
        tx.after_commit(fail)
        tx.after_commit(call)
        return "done"

    assert await bench.database.run(unit) == "done"
    assert made == ["second"]
    await asyncio.to_thread(lambda: None)  # the report of a thread is on its way to the loop
    assert [type(error) for error in reported] == [KeyError]


async def test_callbacks_run_for_a_caller_that_is_gone_if_its_unit_is_committed(sqlite_bench: Bench) -> None:
    called = asyncio.Event()

    async def work(tx: Tx) -> None:
        tx.on_commit(called.set)

    task = asyncio.create_task(sqlite_bench.database.run(work))
    await SystemClock().sleep(0)  # it is queued for the writer thread
    task.cancel()
    await asyncio.wait_for(called.wait(), 10)


async def test_a_unit_sees_what_it_wrote(bench: Bench) -> None:
    async def work(tx: Tx) -> list[str]:
        await add_host(tx, "a")
        return [row["origin"] for row in await tx.all("host_numbers", origins=["a", "b"])]

    assert await bench.database.run(work) == ["a"]


async def test_many_concurrent_units_are_all_stored(bench: Bench) -> None:
    await asyncio.gather(*[bench.database.run(adding(f"h{n}")) for n in range(200)])
    assert len(await hosts(bench)) == 200


async def test_a_batch_reports_how_many_rows_it_touched(bench: Bench) -> None:
    async def work(tx: Tx) -> tuple[int, int, int]:
        rows = [{"origin": "a"}, {"origin": "b"}]
        return (
            await tx.many("insert_hosts", []),
            await tx.many("insert_hosts", rows),
            await tx.many("insert_hosts", rows),
        )

    assert await bench.database.run(work) == (0, 2, 0)


async def test_a_caller_that_is_gone_leaves_the_store_usable(bench: Bench) -> None:
    going = asyncio.create_task(bench.database.run(adding("a")))
    await bench.clock.sleep(0)
    going.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await going
    await asyncio.gather(*[bench.database.run(adding(f"h{n}")) for n in range(20)])
    assert set(await hosts(bench)) - {"a"} == {f"h{n}" for n in range(20)}


# Reads


async def test_a_read_cannot_write(bench: Bench) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - a fault of our own, so each driver may say it its way
        await bench.database.read(adding("a"))
    assert await hosts(bench) == []
    await bench.database.run(adding("b"))
    assert await bench.database.read(lambda tx: tx.value("now"))


async def test_a_read_is_one_snapshot(bench: Bench) -> None:
    """A read does not see commits made between its statements."""

    async def look(tx: Tx) -> list[int]:
        before = len(await tx.all("host_numbers", origins=["a"]))
        writer = threading.Thread(target=lambda: asyncio.run(write_elsewhere(bench)))
        writer.start()
        writer.join()
        return [before, len(await tx.all("host_numbers", origins=["a"]))]

    assert await bench.database.read(look) == [0, 0]
    assert await hosts(bench) == ["a"]


async def write_elsewhere(bench: Bench) -> None:
    other = database_at(bench.url, bench.clock)
    await other.open()
    await other.run(adding("a"))
    await other.close()


async def test_a_closed_store_says_so(bench: Bench) -> None:
    other = database_at(bench.url, bench.clock)
    await other.open()
    await other.close()
    await other.close()
    with pytest.raises(BackendUnavailable, match="closed"):
        await other.run(adding("a"))


# Several processes on one SQLite file (F30)


async def test_a_writer_waits_for_another_process(sqlite_bench: Bench) -> None:
    with locked_elsewhere(file_of(sqlite_bench)) as other:
        writing = asyncio.create_task(sqlite_bench.database.run(adding("a")))
        assert await sqlite_bench.database.read(lambda tx: tx.value("now"))  # readers do not wait
        assert not writing.done()
        other.execute("COMMIT")
        assert await writing == "a"


async def test_a_lock_that_is_never_released_is_a_clear_error_and_is_survived(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 20)
    database = SqliteDatabase(Path(sqlite_url.removeprefix("sqlite:///")), FakeClock())
    await database.open()
    try:
        with locked_elsewhere(sqlite_url.removeprefix("sqlite:///")), pytest.raises(BackendUnavailable, match="lock"):
            await database.run(adding("a"))
        assert await database.run(adding("b")) == "b"
    finally:
        await database.close()


async def test_a_new_file_that_another_process_is_writing_is_waited_for(bare_sqlite_url: str) -> None:
    path = bare_sqlite_url.removeprefix("sqlite:///")
    database = SqliteDatabase(Path(path), FakeClock())
    with locked_elsewhere(path) as other:
        opening = asyncio.create_task(database.open())
        done, _ = await asyncio.wait([opening], timeout=0.2)  # it fails at once, or it waits
        assert not done
        other.execute("COMMIT")
        await opening
    try:
        assert await database.run(adding("a")) == "a"
    finally:
        await database.close()


async def test_two_database_objects_write_one_file_together(sqlite_bench: Bench) -> None:
    other = database_at(sqlite_bench.url, sqlite_bench.clock)
    await other.open()
    try:
        both: list[Database] = [sqlite_bench.database, other]
        await asyncio.gather(*[both[n % 2].run(adding(f"h{n}")) for n in range(100)])
    finally:
        await other.close()
    assert len(await hosts(sqlite_bench)) == 100


# Beginning: the schema


INITIALISE = """
import asyncio, sys
from shoal.app import database_of
from shoal.base.clock import SystemClock
from shoal.base.settings import DatabaseSettings

async def main():
    database = database_of(DatabaseSettings(url=sys.argv[1]), SystemClock())
    await database.open()
    await database.run(lambda tx: tx.many("insert_hosts", [{"origin": sys.argv[2]}]))
    await database.close()
    print("fine")

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def bare_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a store that does not exist yet, for each kind of store."""
    url: str = request.getfixturevalue(f"bare_{request.param}_url")
    return url


def test_processes_that_start_together_initialise_an_empty_store_once(bare_url: str) -> None:
    command = [sys.executable, "-c", INITIALISE, bare_url]
    started = [
        subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    answers = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0] * 4, answers[0][1] + answers[1][1]
    assert {answer[0].strip() for answer in answers} == {"fine"}
    assert_made_once(bare_url, hosts=4)


async def test_objects_that_open_together_initialise_an_empty_store_once(bare_url: str) -> None:
    databases = [database_at(bare_url, FakeClock()) for _ in range(6)]
    await asyncio.gather(*[database.open() for database in databases])
    try:
        await asyncio.wait_for(asyncio.gather(*[database.run(adding("a")) for database in databases]), 60)
    finally:
        for database in databases:
            await database.close()
    await asyncio.to_thread(assert_made_once, bare_url, hosts=1)


def assert_made_once(url: str, hosts: int) -> None:
    """Each migration was applied exactly once, and what was stored while the others waited is still there."""

    async def look() -> list[list[int]]:
        if url.startswith("sqlite"):
            with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
                return [[row[0] for row in file.execute(sql)] for sql in (versions, count)]
        connection = await asyncpg.connect(url)
        try:
            return [[row[0] for row in await connection.fetch(sql)] for sql in (versions, count)]
        finally:
            await connection.close()

    versions, count = "SELECT version FROM schema_version ORDER BY version", "SELECT count(*) FROM host"
    dialect = "sqlite" if url.startswith("sqlite") else "postgres"
    made = [step.version for step in migrations.migrations(dialect)]
    assert asyncio.run(look()) == [made, [hosts]]


async def test_a_newer_schema_is_refused(bench: Bench) -> None:
    newer = "INSERT INTO schema_version VALUES (999, now(), 'newer')"
    await bench.sql("PRAGMA user_version = 999" if bench.dialect == "sqlite" else newer)
    for upgrade in (True, False):
        database = database_at(bench.url, bench.clock)
        with pytest.raises(SchemaMismatch, match=r"999.*update Shoal"):
            await database.open(upgrade=upgrade)
        await database.close()


@pytest.mark.parametrize(
    "change",
    ["UPDATE schema_version SET fingerprint = 'another'", "ALTER TABLE schema_version RENAME COLUMN fingerprint TO x"],
    ids=["made differently", "made before anybody wrote it down"],
)
async def test_a_store_that_an_unreleased_shoal_made_is_refused(bench: Bench, change: str) -> None:
    if bench.dialect == "sqlite" and "ALTER" in change:
        change = "DROP TABLE schema_version"
    await bench.sql(change)
    final = migrations.migrations(bench.dialect)[-1].version
    refused = rf"final version {final}; .* unreleased version of Shoal: (move|use an empty)"
    for upgrade in (True, False):
        database = database_at(bench.url, bench.clock)
        with pytest.raises(SchemaMismatch, match=refused):
            await database.open(upgrade=upgrade)
        await database.close()


def test_a_remark_does_not_make_another_schema() -> None:
    step = migrations.migrations("sqlite")[0]
    said = replace(step, sql=step.sql.replace("\n\n", "\n  -- a remark\n\n"))
    other = replace(step, sql=step.sql.replace("depth", "depths"))
    assert said.fingerprint == step.fingerprint != other.fingerprint


@pytest.fixture
def a_step_ahead(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The program has one more migration than the store."""
    known = migrations.migrations

    def with_one_more(dialect: str) -> tuple[Migration, ...]:
        steps = known(dialect)
        return (*steps, replace(steps[-1], version=steps[-1].version + 1, sql="CREATE TABLE extra (x INTEGER);"))

    monkeypatch.setattr(migrations, "migrations", with_one_more)
    yield migrations.newest(bench.dialect)
    known.cache_clear()


async def test_an_older_schema_is_refused_with_the_command_that_fixes_it(bench: Bench, a_step_ahead: int) -> None:
    database = database_at(bench.url, bench.clock)
    with pytest.raises(SchemaMismatch, match="shoal db upgrade"):
        await database.open(upgrade=False)
    await database.close()
    assert await bench.number(version_query(bench)) == a_step_ahead - 1


async def test_an_older_schema_is_upgraded_when_told_to(bench: Bench, a_step_ahead: int) -> None:
    await bench.database.run(adding("kept"))
    database = database_at(bench.url, bench.clock)
    await database.open(upgrade=True)
    await database.close()
    assert await bench.number(version_query(bench)) == a_step_ahead
    assert await bench.sql("SELECT x FROM extra") == []
    assert await hosts(bench) == ["kept"]


async def test_an_embedded_store_upgrades_itself(sqlite_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = migrations.migrations("sqlite")
    more = (*steps, replace(steps[-1], version=steps[-1].version + 1, sql="CREATE TABLE extra (x INTEGER);"))
    monkeypatch.setattr(migrations, "migrations", lambda dialect: more)
    database = database_at(sqlite_bench.url, sqlite_bench.clock)
    await database.open()
    await database.close()
    assert await sqlite_bench.number(version_query(sqlite_bench)) == more[-1].version


async def test_a_migration_that_fails_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = migrations.migrations(bench.dialect)
    broken = replace(steps[-1], version=99, sql="CREATE TABLE extra (x INTEGER);\nINSERT INTO nowhere VALUES (1);")
    monkeypatch.setattr(migrations, "migrations", lambda dialect: (*steps, broken))
    database = database_at(bench.url, bench.clock)
    with pytest.raises(Exception, match="nowhere"):
        await database.open(upgrade=True)
    await database.close()
    assert await bench.number(version_query(bench)) == steps[-1].version
    with pytest.raises((sqlite3.OperationalError, asyncpg.UndefinedTableError)):
        await bench.sql("SELECT * FROM extra")


def version_query(bench: Bench) -> str:
    return "PRAGMA user_version" if bench.dialect == "sqlite" else "SELECT max(version) FROM schema_version"


def test_both_dialects_have_the_same_migrations() -> None:
    def numbered(dialect: str) -> list[tuple[int, str]]:
        return [(step.version, step.name) for step in migrations.migrations(dialect)]

    assert numbered("sqlite") == numbered("postgres")
    assert [version for version, _ in numbered("sqlite")] == list(range(1, len(numbered("sqlite")) + 1))


# Errors with a fix


async def refusal(database: SqliteDatabase | PostgresDatabase) -> ShoalError:
    """Return the error raised when opening it, after checking that it is ours, has a fix and contains no secret."""
    try:
        with pytest.raises(ShoalError) as caught:
            await database.open()
    finally:
        await database.close()
    assert "hunter2" not in str(caught.value)
    assert "; " in caught.value.message
    return caught.value


def settings_for(url: str) -> DatabaseSettings:
    """This bypasses the check of the settings, which would reject the worst of them: the driver must handle them by
    itself."""
    settings = DatabaseSettings()
    vars(settings)["url"] = url
    return settings


def postgres_at(url: str) -> PostgresDatabase:
    return PostgresDatabase(settings_for(url))


def with_password(url: str, password: str) -> str:
    head, _, tail = url.partition("@")
    return f"{head.rpartition(':')[0]}:{password}@{tail}"


async def test_a_wrong_password_is_unavailable(postgres: Service) -> None:
    asking = urlsplit(postgres.url)._replace(path="/postgres").geturl()  # the database of the tests asks for none
    error = await refusal(postgres_at(with_password(asking, "hunter2")))
    assert isinstance(error, BackendUnavailable)
    assert "password" in error.message


async def test_a_server_that_may_only_be_read_is_unavailable_for_now(postgres_bench: Bench) -> None:
    """A failover: the address leads to a standby for a moment. A caller that waits and retries is served by the next
    connection."""
    standby = postgres_at(f"{postgres_bench.url}&default_transaction_read_only=on")
    await standby.open()
    try:
        with pytest.raises(BackendUnavailable, match="read-only"):
            await standby.run(lambda tx: tx.execute("test_write", name="x"))
    finally:
        await standby.close()


async def test_an_unknown_database_is_unavailable(postgres_url: str) -> None:
    error = await refusal(postgres_at(urlsplit(postgres_url)._replace(path="/nowhere").geturl()))
    assert isinstance(error, BackendUnavailable)
    assert "nowhere" in error.message


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:5432"])
async def test_an_unreachable_server_is_unavailable(address: str) -> None:
    error = await refusal(postgres_at(f"postgresql://shoal:hunter2@{address}/shoal"))
    assert isinstance(error, BackendUnavailable)
    assert address.partition(":")[0] in error.message
    assert "DATABASE_URL" in error.message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shoal:hunter2@127.0.0.1:port/shoal",
        "postgresql://shoal:hunter2@127.0.0.1:99999/shoal",
        "postgresql://shoal:hunter2@[::1/shoal",
        "postgresql://shoal:hunter2@127.0.0.1:1/shoal?sslmode=whatever",
        "postgresql://127.0.0.1:1/shoal?password=x@hunter2",
        "postgresql://shoal:hunter2",
    ],
)
async def test_a_dsn_that_cannot_be_used_is_refused_without_its_secrets(url: str) -> None:
    error = await refusal(postgres_at(url))
    assert isinstance(error, BadConfig | BackendUnavailable)
    assert "DATABASE_URL" in error.message


async def test_a_store_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ShoalError) as caught:
        database_of(settings_for("mysql://shoal:hunter2@localhost/shoal"), FakeClock())
    assert "hunter2" not in str(caught.value)


async def test_a_directory_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    error = await refusal(SqliteDatabase(tmp_path, FakeClock()))
    assert isinstance(error, BadConfig)
    assert str(tmp_path) in error.message


async def test_a_file_instead_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = await refusal(SqliteDatabase(tmp_path / "file" / "shoal.db", FakeClock()))
    assert isinstance(error, BadConfig)


async def test_a_file_that_is_not_a_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("dear diary " * 1000)
    error = await refusal(SqliteDatabase(tmp_path / "notes.txt", FakeClock()))
    assert isinstance(error, BadConfig)
    assert (tmp_path / "notes.txt").read_text() == "dear diary " * 1000


@pytest.fixture
def anybodys_folder() -> Iterator[Path]:
    """A folder that every user may enter: pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def not_as_root() -> Iterator[None]:
    """Root may write everything, so switch to the user nobody for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def close_to_writers(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o555)


async def test_a_folder_that_may_not_be_written_is_refused(anybodys_folder: Path) -> None:
    closed = anybodys_folder / "closed"
    closed.mkdir(mode=0o555)
    with not_as_root():
        error = await refusal(SqliteDatabase(closed / "shoal.db", FakeClock()))
    assert isinstance(error, BadConfig)


async def test_a_file_that_may_not_be_written_is_refused(anybodys_folder: Path) -> None:
    path = anybodys_folder / "shoal.db"
    database = SqliteDatabase(path, FakeClock())
    await database.open()
    await database.close()
    close_to_writers(path)
    database = SqliteDatabase(path, FakeClock())
    with not_as_root():
        try:
            with pytest.raises(BadConfig, match="DATABASE_URL"):
                await write_once(database)
        finally:
            await database.close()


async def write_once(database: SqliteDatabase) -> None:
    await database.open()
    await database.run(adding("a"))


async def test_a_server_that_goes_away_is_unavailable_until_it_is_back(own_postgres: Any) -> None:
    """F18: the same object works again when the server is back."""
    own_postgres.start() if not own_postgres._pid() else None
    database = postgres_at(own_postgres.url)
    await database.open()
    try:
        await database.run(adding("a"))
        own_postgres.stop("immediate")
        for call in (database.run, database.read):
            with pytest.raises(BackendUnavailable):
                await call(adding("b"))
        own_postgres.start()
        await database.run(adding("c"))
    finally:
        await database.close()


async def test_an_outage_is_not_explained_with_the_states_of_the_drivers_protocol(postgres_bench: Bench) -> None:
    """The driver raises this if a call is cancelled while its connection is being lost."""

    async def lose(tx: Tx) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    for call in (postgres_bench.database.run, postgres_bench.database.read):
        with pytest.raises(BackendUnavailable, match="the connection was lost during a call") as caught:
            await call(lose)
        assert "state 15" not in caught.value.message


async def test_a_value_that_does_not_fit_is_not_called_an_outage(bench: Bench) -> None:
    """An outage is retried for ever, but a bug of our own must be reported."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each driver may say it its way
        await bench.database.run(lambda tx: tx.value("crawl_counts", crawl=2**70))
    assert not isinstance(caught.value, BackendUnavailable | BadConfig)


async def test_a_file_that_cannot_be_opened_is_said_to_whoever_asks_and_tried_again(tmp_path: Path) -> None:
    path, away = tmp_path / "shoal.db", tmp_path / "away.db"
    database = SqliteDatabase(path, FakeClock())
    await database.open()
    try:
        path.rename(away)
        path.mkdir()
        async with asyncio.timeout(60):
            for ask in (database.run(adding("a")), database.read(lambda tx: tx.value("now"))):
                with pytest.raises(BadConfig, match="cannot be opened"):
                    await ask
        path.rmdir()
        away.rename(path)
        assert await database.run(adding("a")) == "a"
    finally:
        await database.close()


# Full disk (F33)


async def test_a_full_disk_is_reported_and_survived(small_disk: Path) -> None:
    database = SqliteDatabase(small_disk / "shoal.db", FakeClock())
    await database.open()
    try:
        await database.run(adding("before"))
        stuffing = small_disk / "stuffing"
        stuff(stuffing)
        await fill(database)
        stuffing.unlink()
        await database.run(adding("after"))
        rows = await database.read(lambda tx: tx.all("host_numbers", origins=["before", "after"]))
        assert len(rows) == 2
    finally:
        await database.close()


async def test_a_store_at_its_limit_is_full_and_goes_on_when_there_is_space(sqlite_bench: Bench) -> None:
    """The limit on pages stands in for the disk where none can be mounted."""
    await limit_pages(sqlite_bench, 1)
    await fill(sqlite_bench.database)
    await limit_pages(sqlite_bench, 1 << 30)
    assert await sqlite_bench.database.run(adding("after")) == "after"


async def test_a_full_disk_fails_every_unit_of_its_wake_up_or_only_its_own(sqlite_bench: Bench) -> None:
    """Confirmed writes are stored, and rejected ones are not."""
    await limit_pages(sqlite_bench, 1)
    units = [adding(*[f"h{n}-{k}" + "x" * 500 for k in range(40)]) for n in range(8)]
    answers = await asyncio.gather(*[sqlite_bench.database.run(unit) for unit in units], return_exceptions=True)
    assert any(isinstance(answer, StorageFull) for answer in answers)
    assert all(isinstance(answer, StorageFull | str) for answer in answers)
    await limit_pages(sqlite_bench, 1 << 30)
    stored = {origin.split("-")[0] for origin in await hosts(sqlite_bench)}
    assert stored == {answer.split("-")[0] for answer in answers if isinstance(answer, str)}


async def limit_pages(bench: Bench, pages: int) -> None:
    async def limit(tx: Tx) -> None:
        tx._connection.execute(f"PRAGMA max_page_count = {pages}")  # type: ignore[attr-defined]

    await bench.database.run(limit)


async def fill(database: Database) -> None:
    """Write until the disk is full, and check that our own error is raised."""
    with pytest.raises(StorageFull, match="free some space"):
        await write_for_ever(database)


async def write_for_ever(database: Database) -> None:
    for number in range(1000):
        await database.run(adding(*[f"h{number}-{k}" + "x" * 500 for k in range(20)]))


async def test_a_full_postgres_is_reported(postgres_bench: Bench) -> None:
    """The server's own error code; filling its disk would affect all other tests."""

    async def full(tx: Tx) -> None:
        raise asyncpg.DiskFullError("could not extend file")

    with pytest.raises(StorageFull):
        await postgres_bench.database.run(full)


# Power cut (F31) and old SQLite (F32)


async def test_a_copy_made_in_the_middle_of_writing_is_whole_and_has_what_was_committed(
    sqlite_bench: Bench, tmp_path: Path
) -> None:
    source, committed = Path(file_of(sqlite_bench)), 0
    stop, written = asyncio.Event(), [asyncio.Event() for _ in range(5)]

    async def write() -> None:
        nonlocal committed
        while not stop.is_set():
            await sqlite_bench.database.run(adding(f"h{committed:05d}"))
            committed += 1
            if committed % 20 == 0 and committed <= 100:
                written[committed // 20 - 1].set()

    writing = asyncio.create_task(write())
    for number in range(5):
        await wait_until(written[number].is_set, written[number], writing)
        sure = committed
        copy = tmp_path / f"copy{number}"
        copy.mkdir()
        for suffix in ("", "-wal"):  # the WAL last: its content is newer than the file
            shutil.copyfile(f"{source}{suffix}", copy / f"shoal.db{suffix}")
        assert_whole(copy / "shoal.db", sure)
    stop.set()
    await writing


def assert_whole(path: Path, at_least: int) -> None:
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert connection.execute("SELECT count(*) FROM host").fetchone()[0] >= at_least
    finally:
        connection.close()


KILLED = """
import asyncio, sys
from pathlib import Path
from shoal.base.clock import SystemClock
from shoal.base.database.sqlite import SqliteDatabase

async def main():
    database = SqliteDatabase(Path(sys.argv[1]), SystemClock())
    await database.open()
    for number in range(100_000):
        await database.run(lambda tx: tx.many("insert_hosts", [{"origin": str(number)}]))
        print(number, flush=True)

asyncio.run(main())
"""


def test_a_commit_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 30:
            break
    process.kill()
    told = [30, *[int(line) for line in process.stdout.read().split()]]
    process.stdout.close()
    process.wait(60)
    assert_whole(path, max(told) + 1)


async def test_the_file_is_durable_by_its_settings(sqlite_bench: Bench) -> None:
    async def look(tx: Tx) -> list[Any]:
        connection = tx._connection  # type: ignore[attr-defined]
        names = ("journal_mode", "synchronous", "foreign_keys")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await sqlite_bench.database.run(look) == ["wal", 2, 1]


def test_an_old_sqlite_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    database = SqliteDatabase(Path("shoal.db"), SystemClock())
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 2))
    assert "WAL-reset" in (database.warning or "")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 3))
    assert database.warning is None


# The queries


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_query_is_described(dialect: str) -> None:
    for query in queries.load(dialect).all().values():
        assert query.about.endswith("."), query.name
        assert query.sql, query.name


def test_both_dialects_have_the_same_queries() -> None:
    embedded, server = set(queries.load("sqlite").all()), set(queries.load("postgres").all())
    assert embedded - server == SQLITE_ONLY
    assert server - embedded == POSTGRES_ONLY


def test_both_dialects_of_a_query_take_the_same_values() -> None:
    embedded, server = queries.load("sqlite").all(), queries.load("postgres").all()
    for name in embedded.keys() & server.keys():
        # PostgreSQL numbers rows by a sequence of its own. It locks the rows of hosts, where SQLite deletes them.
        own = {"seq"} | ({"looked", "most"} if name == "take_ready_hosts" else set())
        assert set(embedded[name].parameters) - own == set(server[name].parameters) - own, name


async def test_every_query_can_be_prepared(bench: Bench) -> None:
    if bench.dialect == "sqlite":
        await bench.sql("SELECT 1")
        for query in queries.load("sqlite").all().values():
            bench.connection.execute(f"EXPLAIN {query.sql}", [None] * len(query.parameters)).fetchall()
        return
    connection = await asyncpg.connect(bench.url)
    try:
        for query in queries.load("postgres").all().values():
            statement = await connection.prepare(query.sql)
            assert len(statement.get_parameters()) == len(query.parameters), query.name
    finally:
        await connection.close()


async def test_a_statement_is_planned_once_for_all_values(postgres_bench: Bench) -> None:
    async def look(tx: Any) -> tuple[int, int]:
        for name in ("a", "b", "c"):
            await tx.execute("test_write", name=name)
        plans = "SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE statement = $1"
        return tuple(await tx._connection.fetchrow(plans, queries.load("postgres")["test_write"].sql))

    assert await postgres_bench.database.run(look) == (0, 3)


# Plans stay index scans (F24)

# A list that was passed in, a single row, a batch, the clock, and tables that are read in batches.
SMALL = ("VIRTUAL TABLE", "frontier_seq", "CONSTANT", "chosen", "SCAN c.", "frontier_open", "(subquery", "SCAN skips")


# Statements that may read everything: a table of one row or of a few, a partial index of just what is wanted, a
# subquery that a limit or an index bounds, and counts that are rarely needed.
WHOLE = {
    *("last_event", "set_last_event", "lock_event_number", "clock", "anchor_machine_clock"),
    *(
        "webhooks",
        "due_webhooks",
        "old_events",
        "deliveries",
        "policies_after",
        "policies_of_project",
        "forget_cursors",
        "quotas",
        "all_gates",
        "all_listeners",
        "prune_listeners",
        "any_token",
        "lock_admin_tokens",
        "count_gates",
        "expired_tokens",
        "prune_listeners",
        "all_listeners",
    ),
    *("purge_dead", "unfiled_journals", "delete_stale_job_seats"),
    *(
        "newest_jobs",
        "end_of_scan",
        "queue_position",
        "depth_up_to",
        "all_nodes",
        "overdue_nodes",
        "forget_lapses",
        "count_nodes",
        "waiting_commands",
        "expire_commands",
        "abandoned_lanes",
        "waiting_page_jobs",
        "insert_jobs",
        "insert_dispatched_jobs",
        "lease_jobs",
        "ends_of_lines",
    ),
    # Statements that read rows by ids, or up to a limit.
    *("add_job_hosts", "take_ready_hosts", "put_back_hosts", "queue_position_at_host"),
    *("newest_of_run", "newest_dead", "newest_locked", "kind_waits", "other_run_waits"),
    *("deliveries", "policies_after", "policies_of_project"),
    *("count_crawls", "count_jobs", "count_policies", "count_renderers", "last_crawl", "rows_of_crawls"),
    # The first row; and ids by their beginning, which people on the machine of the store ask for.
    *("newest_crawl_id", "crawl_ids_like"),
}


async def test_no_query_reads_a_growing_table_from_end_to_end(sqlite_bench: Bench) -> None:
    await sqlite_bench.sql("SELECT 1")
    for query in [query for name, query in queries.load("sqlite").all().items() if name not in WHOLE]:
        values = ["[]"] * len(query.parameters)
        plan = sqlite_bench.connection.execute(f"EXPLAIN QUERY PLAN {query.sql}", values).fetchall()
        scans = [row["detail"] for row in plan if row["detail"].startswith("SCAN")]
        assert not [scan for scan in scans if not any(word in f"{scan}." for word in SMALL)], query.name


# Which part of the key a query over the frontier must use: the crawl alone would scan all waiting URLs.
FRONTIER_PLANS = {
    "suspect_waiting": "frontier_suspect",
    "lost_urls": "frontier_taken",
    "release_urls": "frontier_taken",
    "any_held": "frontier_taken",
    "retries_at_hosts": "frontier_again",
    "untried_at_hosts": "host=? AND seq>?",
    "next_due_at_hosts": "frontier_again",
    "ready_hosts": "frontier_ready",
    "next_ready": "frontier_ready",
    "expired_jobs": "job_leased",
    "live_jobs_of_run": "job_live_of_run",
    "ends_of_lines": "lane=? AND kind=? AND capability<?",
}


@pytest.mark.parametrize("name", FRONTIER_PLANS)
async def test_the_queries_of_a_turn_use_an_index(sqlite_bench: Bench, name: str) -> None:
    await sqlite_bench.sql("SELECT 1")
    query = queries.load("sqlite")[name]
    values = [1] * len(query.parameters)
    plan = sqlite_bench.connection.execute(f"EXPLAIN QUERY PLAN {query.sql}", values).fetchall()
    steps = [row["detail"] for row in plan]
    assert any(FRONTIER_PLANS[name] in step for step in steps), steps
    assert not [step for step in steps if "TEMP B-TREE" in step], steps


# The database repeats the rules


STATES = {"job": {state.value for state in JobState}, "crawl": {state.value for state in CrawlState}}


async def checks(bench: Bench, table: str) -> str:
    """The text of a table's rules."""
    if bench.dialect == "sqlite":
        [row] = await bench.sql(f"SELECT sql AS text FROM sqlite_master WHERE type = 'table' AND name = '{table}'")
        return str(row["text"])
    rows = await bench.sql(
        "SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint"
        f" WHERE conrelid = '{table}'::regclass AND contype = 'c'"
    )
    return "\n".join(row["text"] for row in rows)


@pytest.mark.parametrize("table", STATES)
async def test_the_database_knows_exactly_the_states_of_the_machine(bench: Bench, table: str) -> None:
    row = JOB if table == "job" else CRAWL
    for state in STATES[table]:
        await insert(bench, table, row | VALID[table, state])
    with pytest.raises((sqlite3.IntegrityError, asyncpg.CheckViolationError)):
        await insert(bench, table, row | {"id": "x", "state": "unheard_of", "finished_at": 1})
    listed = max(
        (set(re.findall(r"'(\w+)'", part)) for part in re.split(r"CHECK", await checks(bench, table))), key=len
    )
    assert listed == STATES[table]


async def test_the_database_knows_exactly_the_ends_of_a_grant(bench: Bench) -> None:
    await insert(bench, "job", JOB | VALID["job", "pending"])
    for epoch, end in enumerate(GrantEnd):
        await insert(bench, "job_grant", GRANT | {"epoch": epoch, "ended": end.value, "ended_at": 1})
    with pytest.raises((sqlite3.IntegrityError, asyncpg.CheckViolationError)):
        await insert(bench, "job_grant", GRANT | {"epoch": 99, "ended": "unheard_of", "ended_at": 1})


async def test_the_database_knows_exactly_the_states_of_nodes_and_of_their_commands(bench: Bench) -> None:
    node = {"address": "", "session_epoch": 1, "instance": "", "status": "{}", "heartbeat_every": 1, "connected_at": 1}
    command = {"node_id": "n", "form": "{}", "created_by": "", "created_at": 1}
    for state in NodeState:
        lost = {"lost_at": 1} if state is NodeState.LOST else {"controller": "c"}
        await insert(bench, "node", node | {"id": state.value, "state": state.value, "heartbeat_at": 1} | lost)
    for place, (state, name) in enumerate(product(CommandState, get_args(CommandName))):
        ended = {} if state in (CommandState.WAITING, CommandState.SENT) else {"ended_at": 1}
        row = command | {"id": f"cmd_{place}", "command": name, "state": state.value}
        await insert(bench, "node_command", row | ended)
    for wrong in ({"state": "unheard_of"}, {"command": "explode"}):
        row = command | {"id": "cmd_x", "command": "pause", "state": "waiting"} | wrong
        with pytest.raises((sqlite3.IntegrityError, asyncpg.CheckViolationError)):
            await insert(bench, "node_command", row)
    rules = await checks(bench, "node") + await checks(bench, "node_command")
    known = {*NodeState, *CommandState, *get_args(CommandName)}
    assert set(re.findall(r"'(\w+)'", rules)) == known


JOB = {"id": "j", "kind": "page", "payload": "{}", "lane": "shared", "priority": 50, "not_before": 0, "max_attempts": 2,
       "created_at": 0}  # fmt: skip
CRAWL = {"id": "c", "project": "p", "config": "{}", "named": "[]", "priority": 50, "key_seed": 1, "created_at": 0}
GRANT = {"job_id": "job-pending", "holder": "w", "granted_at": 0}
URL = {"seq": 1, "crawl": 1, "host": 1, "kind": 0, "path": "/"}
LEASE = {"lease_holder": "w", "lease_until": 1, "lease_epoch": 1}
ENDED = {"done", "failed", "expired", "cancelled", "completed", "stopped"}
VALID = {
    (table, state): {"id": f"{table}-{state}", "state": state}
    | (LEASE if state == "locked" else {})
    | ({"finished_at": 1} if state in ENDED else {})
    | ({"started_at": 1} if table == "crawl" and state != "queued" else {})
    for table, states in STATES.items()
    for state in states
}


async def insert(bench: Bench, table: str, values: dict[str, Any]) -> None:
    def literal(value: Any) -> str:
        return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)

    await bench.sql(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(map(literal, values.values()))})")


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("job", {"state": "pending", **LEASE}),
        ("job", {"state": "pending", "finished_at": 1}),
        ("job", {"state": "locked"}),
        ("job", {"state": "locked", "lease_until": 1, "lease_epoch": 1}),
        ("job", {"state": "locked", "lease_holder": "w", "lease_epoch": 1}),
        ("job", {"state": "locked", **LEASE, "finished_at": 1}),
        ("job", {"state": "done"}),
        ("job", {"state": "done", "finished_at": 1, **LEASE}),
        ("job", {"state": "failed"}),
        ("job", {"state": "expired", "finished_at": 1, "lease_until": 1}),
        ("job", {"state": "cancelled"}),
        ("job", {"state": "pending", "attempts": 3}),
        ("job", {"state": "pending", "attempts": -1}),
        ("job", {"state": "pending", "crash_count": -1}),
        ("job", {"state": "pending", "lease_epoch": -1}),
        ("job", {"state": "pending", "priority": 101}),
        ("job", {"state": "pending", "priority": -1}),
        ("job", {"state": "pending", "max_attempts": 0}),
        ("crawl", {"state": "queued", "finished_at": 1}),
        ("crawl", {"state": "running"}),
        ("crawl", {"state": "running", "started_at": 1, "finished_at": 1}),
        ("crawl", {"state": "pausing"}),
        ("crawl", {"state": "paused", "finished_at": 1}),
        ("crawl", {"state": "stopping", "started_at": 1, "finished_at": 1}),
        ("crawl", {"state": "stopped", "started_at": 1}),
        ("crawl", {"state": "completed", "started_at": 1}),
        ("crawl", {"state": "completed", "finished_at": 1}),
        ("crawl", {"state": "failed", "started_at": 1}),
        ("crawl", {"state": "queued", "priority": 101}),
        ("job_grant", {"job_id": "j", "epoch": 1, "ended": "done"}),
        ("job_grant", {"job_id": "j", "epoch": 1, "ended_at": 1}),
        ("frontier_touched", {"job_id": "j"}),
        ("frontier_touched", {"epoch": 1}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(f"{key}={value[key]}" for key in value),
)
async def test_the_database_itself_refuses_what_no_state_allows(
    bench: Bench, table: str, values: dict[str, Any]
) -> None:
    rows = {"job": JOB, "crawl": CRAWL, "job_grant": GRANT, "frontier_touched": URL}
    if table == "job_grant":
        await insert(bench, "job", JOB | {"state": "pending"})
    with pytest.raises((sqlite3.IntegrityError, asyncpg.CheckViolationError), match=r"(?i)check"):
        await insert(bench, table, rows[table] | values)


async def test_one_live_job_per_key_and_one_row_per_grant_are_the_databases_rules(bench: Bench) -> None:
    await insert(bench, "job", JOB | {"state": "pending", "dedupe_key": "k"})
    with pytest.raises((sqlite3.IntegrityError, asyncpg.UniqueViolationError)):
        await insert(bench, "job", JOB | {"id": "j2", "state": "pending", "dedupe_key": "k"})
    await insert(bench, "job", JOB | {"id": "j3", "state": "done", "finished_at": 1, "dedupe_key": "k"})
    await insert(bench, "job_grant", GRANT | {"job_id": "j", "epoch": 1})
    with pytest.raises((sqlite3.IntegrityError, asyncpg.UniqueViolationError)):
        await insert(bench, "job_grant", GRANT | {"job_id": "j", "epoch": 1})


async def test_a_process_is_stopped_once_when_its_store_is_newer(bench: Bench) -> None:
    stopped: list[int] = []
    watch = SchemaWatch(bench.app.database, lambda: stopped.append(1))
    await watch.run_once()
    assert (stopped, watch.error) == ([], None)
    newer = "INSERT INTO schema_version VALUES (999, now(), 'newer')"
    await bench.sql("PRAGMA user_version = 999" if bench.dialect == "sqlite" else newer)
    for _ in range(2):
        await watch.run_once()
    assert stopped == [1]
    assert watch.error is not None
    assert "999" in watch.error.message

"""The servers under the tests themselves: fresh for each test, restartable, and stopped when the test run ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.support.schemas import Schemas
from tests.support.servers import (
    PostgresServer,
    RedisServer,
    Servers,
    ask_postgres,
    ask_redis,
    postgres_version,
    wait_until,
)

pytestmark = pytest.mark.exhaustive
ROOT = Path(__file__).parents[2]
RUN_WITH_SERVERS = """
import sys
from tests.support.servers import Servers
servers = Servers.open()
print(servers.folder, servers.postgres().url, servers.redis().url, flush=True)
sys.stdin.read()
"""


async def test_each_test_gets_a_schema_of_its_own_and_its_url_is_enough(bare_postgres_url: str) -> None:
    connection = await asyncpg.connect(bare_postgres_url)
    await connection.execute("CREATE TABLE mine (id bigint)")
    assert await connection.fetchval("SELECT schemaname FROM pg_tables WHERE tablename = 'mine'") in bare_postgres_url
    await connection.close()


async def test_a_schema_is_as_new_for_the_next_test_and_nobody_of_the_last_one_is_left(schemas: Schemas) -> None:
    first = schemas.lend()
    late = await asyncpg.connect(first.url)
    await late.execute("INSERT INTO host (origin) VALUES ('http://example.org')")
    await late.execute("UPDATE store_clock SET shift = 5")
    await late.execute("SELECT nextval('frontier_seq'); BEGIN; LOCK TABLE job")
    schemas.take_back(first)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await late.execute("COMMIT")
    late.terminate()
    again = schemas.lend()
    assert again.name == first.name
    look = "SELECT (SELECT count(*) FROM host), (SELECT shift FROM store_clock), nextval('frontier_seq')"
    connection = await asyncpg.connect(again.url)
    assert tuple(await connection.fetchrow(look)) == (0, 0, 1)
    assert await connection.fetchval("INSERT INTO host (origin) VALUES ('x') RETURNING number") == 1
    await connection.close()
    schemas.take_back(again)


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE mine (id bigint)",
        "ALTER TABLE host ADD COLUMN mine bigint",
        "CREATE OR REPLACE FUNCTION shoal_now() RETURNS BIGINT LANGUAGE sql STABLE AS 'SELECT 1::bigint'",
        "DROP INDEX {index}",
        "ANALYZE host",
    ],
)
async def test_a_schema_that_a_test_has_changed_is_given_to_nobody_else(schemas: Schemas, change: str) -> None:
    schema = schemas.lend()
    connection = await asyncpg.connect(schema.url)
    index = await connection.fetchval(
        "SELECT indexname FROM pg_indexes WHERE tablename = 'job' AND indexdef !~ 'UNIQUE'"
    )
    await connection.execute(change.format(index=index))
    await connection.close()
    schemas.take_back(schema)
    another = schemas.lend()
    assert another.name != schema.name
    schemas.take_back(another)


def test_a_killed_server_still_has_its_commits_after_a_restart(own_postgres: PostgresServer) -> None:
    ask_postgres(own_postgres.url, "CREATE TABLE kept AS SELECT 7 AS value")
    own_postgres.kill()
    with pytest.raises(OSError, match=r"refused|Connect"):
        ask_postgres(own_postgres.url, "SELECT 1")
    own_postgres.start()
    own_postgres.restart("immediate")
    assert ask_postgres(own_postgres.url, "SELECT value FROM kept") == 7


def test_a_wrong_password_is_refused(own_postgres: PostgresServer) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        ask_postgres(own_postgres.url.replace("shoal:", "shoal:x"), "SELECT 1")


def test_a_redis_database_is_empty_and_a_killed_server_starts_again(redis_url: str, own_redis: RedisServer) -> None:
    assert ask_redis(redis_url, "DBSIZE") == "0"
    own_redis.kill()
    own_redis.start()
    assert ask_redis(own_redis.url, "PING") == "PONG"
    own_redis.restart()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_run_that_ends_in_any_way_leaves_no_server_and_no_folder(end: signal.Signals) -> None:
    command = [sys.executable, "-c", RUN_WITH_SERVERS]
    run = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with run:
        assert run.stdout is not None
        folder, postgres_url, redis_url = run.stdout.readline().split()
        run.send_signal(end)
    wait_until(lambda: not Path(folder).exists(), "the removal of the run's folder")
    with pytest.raises(OSError, match=r"refused|Connect"):
        ask_postgres(postgres_url, "SELECT 1")
    with pytest.raises(OSError, match=r"refused|Connect"):
        ask_redis(redis_url, "PING")


@pytest.mark.parametrize("variable", ["SHOAL_TEST_POSTGRES", "SHOAL_TEST_REDIS"])
def test_the_servers_of_the_wheels_start_where_the_machine_has_none(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "wheel")
    with Servers.open() as servers:
        server = servers.postgres() if "POSTGRES" in variable else servers.redis()
        assert "wheel" in server.origin


def test_a_server_that_was_named_is_used_and_not_stopped(
    own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_TEST_POSTGRES", own_postgres.url)
    with Servers.open() as servers:
        assert servers.postgres().url == own_postgres.url
    assert postgres_version(own_postgres.url)
    assert os.environ["SHOAL_TEST_POSTGRES"] == own_postgres.url

"""A PostgreSQL connection that stays open and silent, as behind a router that has forgotten it; new ones work."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from shoal.base.clock import SystemClock
from shoal.base.database import Tx, Work
from shoal.base.database.postgres import BorrowedPoolPostgres, PostgresDatabase
from shoal.base.errors import BackendUnavailable
from shoal.base.settings import DatabaseSettings
from tests.support.delay_proxy import DelayProxy, delay_proxy
from tests.support.patience import with_load

CLOCK = SystemClock()
BOUND = 20.0  # for what would otherwise wait for ever
CONNECTIONS = 4


def first_answer() -> timedelta:
    """How long a connection may be silent before it has begun its work: enough to open one."""
    return timedelta(seconds=with_load(0.3))


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[DelayProxy]:
    with delay_proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
async def database(proxy: DelayProxy) -> AsyncIterator[PostgresDatabase]:
    settings = DatabaseSettings(
        url=proxy.url,
        pool_size=CONNECTIONS,
        connect_timeout=first_answer(),
        statement_timeout=timedelta(seconds=with_load(0.5)),
    )
    database = PostgresDatabase(settings, CLOCK)
    await database.open()
    yield database
    await asyncio.wait_for(database.close(), BOUND)


async def write(tx: Tx) -> None:
    await tx.execute("test_write", name="silent")


async def of_kind(database: PostgresDatabase, unit: str, work: Work[Any]) -> Any:
    """Run `work` as a unit of this kind. What has no `BEGIN` has a deadline."""
    more = {"within": first_answer()} if unit == "once" else {}
    return await getattr(database, unit)(work, **more)


async def use_all_connections(database: PostgresDatabase) -> None:
    together = asyncio.Barrier(CONNECTIONS)

    async def wait(_: Tx) -> None:
        await together.wait()

    await asyncio.gather(*(database.run(wait) for _ in range(CONNECTIONS)))


@pytest.mark.parametrize("unit", ["run", "once", "read"])
async def test_the_first_silent_connection_has_all_idle_ones_replaced(
    database: PostgresDatabase, proxy: DelayProxy, unit: str
) -> None:
    await use_all_connections(database)
    proxy.fall_silent()
    async with asyncio.timeout(BOUND):
        with pytest.raises(BackendUnavailable, match="fell silent"):
            await of_kind(database, unit, lambda tx: tx.value("clock"))
        for _ in range(CONNECTIONS):
            await database.run(write)


async def test_a_statement_whose_answer_is_lost_fails_after_the_statement_timeout(
    database: PostgresDatabase, proxy: DelayProxy
) -> None:
    async def cut_off(tx: Tx) -> None:
        await write(tx)
        proxy.fall_silent()
        await write(tx)

    async with asyncio.timeout(BOUND):
        with pytest.raises(BackendUnavailable, match="fell silent"):
            await database.run(cut_off)
        await database.run(lambda tx: tx.value("clock"))


@pytest.fixture
async def patient(proxy: DelayProxy) -> AsyncIterator[PostgresDatabase]:
    """A database whose statements may take long."""
    short = first_answer()
    database = PostgresDatabase(DatabaseSettings(url=proxy.url, pool_size=2, connect_timeout=short), CLOCK)
    await database.open()
    yield database
    await asyncio.wait_for(database.close(), BOUND)


async def test_a_pool_whose_connections_all_wait_for_lost_answers_recovers(
    patient: PostgresDatabase, proxy: DelayProxy
) -> None:
    """Their deadline is that of a statement; whoever needs a connection has the server asked about them before."""
    together = asyncio.Barrier(3)

    async def cut_off(tx: Tx) -> None:
        await together.wait()
        proxy.fall_silent()
        await write(tx)

    units = [asyncio.create_task(patient.run(cut_off)) for _ in range(2)]
    async with asyncio.timeout(BOUND):
        await together.wait()
        await CLOCK.sleep(0.1)  # so that both are overdue when the server is asked: it is not asked again for one alone
        while True:
            try:
                await patient.run(write)
                break
            except BackendUnavailable:
                continue
        done = await asyncio.gather(*units, return_exceptions=True)
    assert all("fell silent" in str(error) for error in done), done


@pytest.mark.exhaustive
async def test_statements_that_the_server_works_on_keep_their_connections(
    patient: PostgresDatabase, postgres_url: str
) -> None:
    together = asyncio.Barrier(3)

    async def wait_for_row(tx: Tx) -> None:
        await together.wait()
        await write(tx)

    await patient.run(write)
    other = await asyncpg.connect(postgres_url)
    async with other.transaction():
        await other.execute("UPDATE pulse SET at = at WHERE name = 'silent'")
        units = [asyncio.create_task(patient.run(wait_for_row)) for _ in range(2)]
        await asyncio.wait_for(together.wait(), BOUND)
        for _ in range(3):
            with pytest.raises(BackendUnavailable):
                await patient.run(write)
    await asyncio.wait_for(asyncio.gather(*units), BOUND)
    await other.close()


async def test_the_idle_connections_of_a_given_pool_are_replaced(proxy: DelayProxy) -> None:
    settings = DatabaseSettings(connect_timeout=first_answer())
    async with asyncpg.create_pool(proxy.url, min_size=1, max_size=CONNECTIONS) as pool:
        database = BorrowedPoolPostgres(settings, pool)
        await database.open(upgrade=True)
        await use_all_connections(database)
        proxy.fall_silent()
        async with asyncio.timeout(BOUND):
            with pytest.raises(BackendUnavailable, match="fell silent"):
                await database.run(write)
            await use_all_connections(database)
        await database.close()


async def test_a_unit_may_be_given_less_time(patient: PostgresDatabase, proxy: DelayProxy) -> None:
    async def cut_off(tx: Tx) -> None:
        proxy.fall_silent()
        await write(tx)

    async with asyncio.timeout(BOUND):  # the statement timeout is more
        with pytest.raises(BackendUnavailable, match="fell silent"):
            await patient.run(cut_off, within=timedelta(seconds=0.1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("unit", ["run", "once", "read"])
async def test_a_unit_that_is_cancelled_on_a_silent_connection_ends_soon_and_as_cancelled(
    database: PostgresDatabase, proxy: DelayProxy, unit: str
) -> None:
    waiting = asyncio.Event()

    async def cut_off(tx: Tx) -> None:
        proxy.fall_silent()
        asyncio.get_running_loop().call_later(0.05, waiting.set)  # by then the statement is sent
        await tx.value("clock")

    await cancelled_soon(asyncio.create_task(of_kind(database, unit, cut_off)), waiting)
    await asyncio.wait_for(database.run(write), BOUND)


async def test_a_unit_that_is_cancelled_while_it_begins_ends_soon_and_as_cancelled(
    database: PostgresDatabase, proxy: DelayProxy
) -> None:
    await use_all_connections(database)
    proxy.fall_silent()
    waiting = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, waiting.set)
    await cancelled_soon(asyncio.create_task(database.run(write)), waiting)
    for _ in range(CONNECTIONS):
        await asyncio.wait_for(database.run(write), BOUND)


async def cancelled_soon(unit: "asyncio.Task[None]", waiting: asyncio.Event) -> None:
    await asyncio.wait_for(waiting.wait(), BOUND)
    unit.cancel()
    done, _ = await asyncio.wait({unit}, timeout=with_load(1.5))
    assert done
    assert unit.cancelled()


class SilentAtFirst(PostgresDatabase):
    """Its connections fall silent once they are open."""

    proxy: DelayProxy

    async def _connect(self) -> Any:
        pool = await super()._connect()
        self.proxy.fall_silent()
        return pool

    async def connect_apart(self, session: Mapping[str, str]) -> Any:
        connection = await super().connect_apart(session)
        self.proxy.fall_silent()
        return connection


@pytest.mark.parametrize("doing", ["open", "current", "upgrade"])
async def test_a_store_that_falls_silent_at_the_start_is_reported(
    database: PostgresDatabase, proxy: DelayProxy, doing: str
) -> None:
    short, shorter = first_answer(), timedelta(milliseconds=1)
    silent = SilentAtFirst(DatabaseSettings(url=proxy.url, connect_timeout=short, statement_timeout=shorter), CLOCK)
    silent.proxy = proxy
    async with asyncio.timeout(BOUND):
        with pytest.raises(BackendUnavailable, match="fell silent"):
            await getattr(silent, doing)()
        await silent.close()


@pytest.mark.exhaustive
async def test_an_answer_that_waits_in_a_stopped_process_is_not_missed(database: PostgresDatabase) -> None:
    seconds = with_load(0.2)

    async def stop(tx: Tx) -> None:
        await write(tx)  # prepares the statement
        asyncio.get_running_loop().call_soon(threading.Event().wait, 10 * seconds)  # while the statement is answered
        await write(tx)

    await asyncio.wait_for(database.run(stop, within=timedelta(seconds=seconds)), BOUND)


async def test_a_pool_of_silent_connections_is_closed_soon(database: PostgresDatabase, proxy: DelayProxy) -> None:
    await use_all_connections(database)
    proxy.fall_silent()
    await asyncio.wait_for(database.close(), with_load(2.0))

"""PostgreSQL: a statement over several rows locks them in the order of their keys, so that no two wait in a circle."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from shoal.base.database import Tx, queries
from shoal.base.ids import JobId
from shoal.queue.job import Fence, LeaseRequest, NewJob
from shoal.queue.states import finish
from tests.contract.conftest import BLOCKED, PATIENCE, Bench

FIRST, SECOND = JobId("job_1"), JobId("job_2")
Work = Callable[[Bench, Tx], Awaitable[object]]


async def turn(bench: Bench, tx: Tx) -> None:
    request = LeaseRequest("w2", ["page"], ["shared"])
    await bench.queue.finish_and_lease_in(tx, [finish(SECOND, 1), finish(FIRST, 1)], request, 1)


LOCKED: dict[str, Work] = {
    "extend": lambda bench, tx: bench.jobs.extend(tx, [Fence(SECOND, 1), Fence(FIRST, 1)], timedelta(seconds=10)),
    "finish": turn,
    "kill": lambda bench, tx: bench.jobs.kill_run(tx, "run", timedelta(0)),
    "set priority": lambda bench, tx: bench.jobs.set_priority(tx, "run", 70),
}
PENDING: dict[str, Work] = {
    "cancel": lambda bench, tx: bench.jobs.cancel_waiting(tx, "run", "test"),
    "set priority": LOCKED["set priority"],
}


async def stored(bench: Bench) -> None:
    """Store the jobs of a run, the one with the second key first."""
    await bench.queue.enqueue([NewJob(SECOND, "page", "run")])
    await bench.queue.enqueue([NewJob(FIRST, "page", "run")])


async def assert_waits_without_locks(bench: Bench, work: Work, row: str, other: str) -> None:
    """Assert that the work, while it waits for `row`, which somebody else has, has not locked `other`."""
    holder, looker = [await asyncpg.connect(bench.url) for _ in range(2)]
    try:
        async with holder.transaction():
            await holder.execute(f"SELECT 1 FROM job WHERE id = '{row}' FOR UPDATE")
            working = asyncio.create_task(bench.database.run(lambda tx: work(bench, tx)))
            async with asyncio.timeout(PATIENCE):
                while not await looker.fetchval(BLOCKED):
                    assert not working.done(), await working
            await looker.execute(f"SELECT 1 FROM job WHERE id = '{other}' FOR UPDATE NOWAIT")
        await asyncio.wait_for(working, PATIENCE)
    finally:
        await holder.close()
        await looker.close()


@pytest.mark.parametrize("name", LOCKED)
async def test_leased_jobs_are_locked_in_the_order_of_their_ids(postgres_bench: Bench, name: str) -> None:
    await stored(postgres_bench)
    assert len(await postgres_bench.queue.lease("w1", ["page"], ["shared"], 2)) == 2
    await assert_waits_without_locks(postgres_bench, LOCKED[name], FIRST, SECOND)


@pytest.mark.parametrize("name", PENDING)
async def test_waiting_jobs_are_locked_in_the_order_of_their_ids(postgres_bench: Bench, name: str) -> None:
    await stored(postgres_bench)
    await assert_waits_without_locks(postgres_bench, PENDING[name], FIRST, SECOND)


async def test_a_turn_that_waits_for_a_job_to_end_has_granted_none(postgres_bench: Bench) -> None:
    """Otherwise it would wait in a circle with whoever locks a leased job and then a waiting one."""
    await stored(postgres_bench)
    await postgres_bench.queue.lease("w1", ["page"], ["shared"], 2)
    await postgres_bench.queue.enqueue([NewJob(JobId("job_3"), "page", "run")])
    await assert_waits_without_locks(postgres_bench, turn, FIRST, "job_3")


# Statements over several rows without an order of their own, and why they need none.
LOCKED_BEFORE = {
    *("number_events", "try_delivery", "park_jobs", "purge_grants", "purge_results", "delete_job_seats"),
    *("keep_refusals", "save_desired_states", "note_policies"),
    *("set_hosts_ready", "count_host_pages", "unclaim_hosts", "set_fates", "set_settled_fates", "end_targets"),
}
OF_ONE_HOLDER = {  # URLs that one walker holds, or rows that nobody else changes
    *("hold_retries", "drop_untried", "put_back_lost", "close_urls", "put_back_later", "quarantine_urls", "free_urls"),
    *("move_to_redirect_target", "insert_pages", "insert_details", "insert_job_seats", "move_crawl"),
}
BY_A_LEADER = {"forget_events", "forget_results"}  # by one process, of rows that are not changed any more
OF_AN_ENDED_CRAWL = {"drop_touched", "drop_fates", "drop_grants"}
SORTED_BY_THE_CALLER = {"add_to_hours", "add_bots_to_hour"}
UNORDERED = LOCKED_BEFORE | OF_ONE_HOLDER | BY_A_LEADER | OF_AN_ENDED_CRAWL | SORTED_BY_THE_CALLER
SEVERAL = re.compile(r"\b(UPDATE \w+|DELETE FROM|ON CONFLICT)\b.*(unnest|ANY)\(|(unnest|ANY)\(.*\bON CONFLICT\b", re.S)


def test_every_statement_over_several_rows_has_an_order_or_a_reason() -> None:
    several = {name: query.sql for name, query in queries.load("postgres").items() if SEVERAL.search(query.sql)}
    without = {name for name, sql in several.items() if not re.search("ORDER BY|SKIP LOCKED", sql)}
    assert without == UNORDERED


async def test_deliveries_that_change_while_they_are_waited_for_are_deleted(postgres_bench: Bench) -> None:
    bench = postgres_bench
    await bench.sql(
        "INSERT INTO webhook (id, url, events, secret, enabled, seen, created_at) VALUES ('w', 'u', '', '', 1, 0, 0)"
    )
    await bench.sql("INSERT INTO delivery (webhook, sequence, state, attempts, next_at) VALUES ('w', 1, 'dead', 1, 0)")
    holder = await asyncpg.connect(bench.url)
    try:
        async with holder.transaction():
            await holder.execute("UPDATE delivery SET state = 'waiting'")
            forgetting = asyncio.create_task(
                bench.database.run(lambda tx: tx.many("forget_deliveries", [{"sequence": 1}]))
            )
            async with asyncio.timeout(PATIENCE):
                while not await bench.number(BLOCKED):
                    assert not forgetting.done(), await forgetting
        await asyncio.wait_for(forgetting, PATIENCE)
    finally:
        await holder.close()
    assert await bench.number("SELECT count(*) FROM delivery") == 0

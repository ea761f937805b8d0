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


async def assert_waits_without_locks(bench: Bench, work: Work, row: str, other: str, table: str = "job") -> None:
    """Assert that the work, while it waits for `row`, which somebody else has, has not locked `other`. Both are
    conditions, or ids of jobs."""
    row, other = (f"id = '{one}'" if table == "job" else one for one in (row, other))
    holder, looker = [await asyncpg.connect(bench.url) for _ in range(2)]
    try:
        async with holder.transaction():
            await holder.execute(f"SELECT 1 FROM {table} WHERE {row} FOR UPDATE")
            working = asyncio.create_task(bench.database.run(lambda tx: work(bench, tx)))
            async with asyncio.timeout(PATIENCE):
                while not await looker.fetchval(BLOCKED):
                    assert not working.done(), await working
            assert await looker.fetchval(f"SELECT 1 FROM {table} WHERE {other} FOR UPDATE NOWAIT") == 1
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


NODE = (
    "INSERT INTO node (id, state, session_epoch, instance, address, status, heartbeat_every, connected_at, heartbeat_at"
)
COMMAND = "INSERT INTO node_command (id, node_id, command, form, state, created_by, created_at, sent_at)"
DELIVERY = "INSERT INTO delivery (webhook, sequence, state, next_at)"
WEBHOOK = "INSERT INTO webhook (id, url, events, secret, enabled, seen, created_at) VALUES ('w', 'u', '', '', 1, 0, 0)"


async def lapsed_nodes(bench: Bench) -> None:
    """Two nodes that let an offer lapse, and hold a job since."""
    await stored(bench)
    for node in ("n2", "n1"):
        await bench.sql(
            f"{NODE}, lapsed_offers, lapsed_at) VALUES ('{node}', 'connected', 1, '', '', '{{}}', 1, 0, 0, 1, 0)"
        )
        await bench.queue.lease(f"{node}/1", ["page"], ["shared"], 1)


async def sent_commands(bench: Bench) -> None:
    for command in ("c2", "c1"):
        await bench.sql(f"{COMMAND} VALUES ('{command}', 'n', 'pause', '{{}}', 'sent', '', 0, 0)")


async def claimed_hosts(bench: Bench) -> None:
    for host in (2, 1):
        await bench.sql(f"INSERT INTO frontier_host (crawl, host, job_id, epoch) VALUES (1, {host}, '{FIRST}', 1)")


async def quarantined_patterns(bench: Bench) -> None:
    crawl = await bench.submit()
    for pattern in "ba":
        await bench.sql(f"INSERT INTO trap VALUES ({crawl.number}, '{pattern}', 'quarantined', '', 1)")


async def deliveries(bench: Bench) -> None:
    await bench.sql(WEBHOOK)
    for sequence in (2, 1):
        await bench.sql(f"{DELIVERY} VALUES ('w', {sequence}, 'waiting', 0)")


# Each with how its rows come about, the work, their table, and which of them is locked first.
IN_ORDER: dict[str, tuple[Callable[[Bench], Awaitable[None]], Work, str, str, str]] = {
    "forget lapses": (
        lapsed_nodes,
        lambda bench, tx: tx.execute("forget_lapses"),
        *("node", "id = 'n1'", "id = 'n2'"),
    ),
    "wait for commands": (
        sent_commands,
        lambda bench, tx: tx.execute("wait_for_commands_again", node_id="n"),
        *("node_command", "id = 'c1'", "id = 'c2'"),
    ),
    "unclaim hosts": (
        claimed_hosts,
        lambda bench, tx: bench.app.stores.sql_frontier_admin.unclaim(tx, 1, Fence(FIRST, 1)),
        *("frontier_host", "host = 1", "host = 2"),
    ),
    "forget held URLs": (
        quarantined_patterns,
        lambda bench, tx: tx.execute("forget_held", crawl=1),
        *("trap", "pattern = 'a'", "pattern = 'b'"),
    ),
    "empty a webhook": (
        deliveries,
        lambda bench, tx: tx.execute("empty_webhook", webhook="w", limit=10),
        *("delivery", "sequence = 1", "sequence = 2"),
    ),
}


@pytest.mark.parametrize("name", IN_ORDER)
async def test_rows_are_locked_in_the_order_of_their_keys(postgres_bench: Bench, name: str) -> None:
    store, work, table, first, second = IN_ORDER[name]
    await store(postgres_bench)
    await assert_waits_without_locks(postgres_bench, work, first, second, table)


async def test_addresses_that_somebody_announces_are_not_waited_for(postgres_bench: Bench) -> None:
    bench, holder = postgres_bench, await asyncpg.connect(postgres_bench.url)
    for host in "ab":
        await bench.sql(f"INSERT INTO listener VALUES ('m', '{host}', 1, 0)")
    try:
        async with holder.transaction():
            await holder.execute("UPDATE listener SET until = 1 WHERE host = 'a'")
            pruning = bench.database.run(lambda tx: tx.execute("prune_listeners"))
            assert await asyncio.wait_for(pruning, PATIENCE) == 1
    finally:
        await holder.close()
    assert [row["host"] for row in await bench.sql("SELECT host FROM listener")] == ["a"]


# Statements over several rows without an order of their own, and why they need none.
LOCKED_BEFORE = {
    *("put_back_hosts", "drop_idle_job_hosts"),
    *("number_events", "try_delivery", "park_jobs", "purge_grants", "purge_results", "delete_job_seats"),
    *("keep_refusals", "save_desired_states", "note_policies", "drop_first_journal_entries"),
    *("set_hosts_ready", "count_host_pages", "unclaim_hosts", "set_fates", "set_settled_fates", "end_targets"),
    *("forget_targets", "insert_results"),
    *("close_host", "close_retries_at_host", "drop_failed_details", "drop_failed_pages"),
}
OF_ONE_HOLDER = {  # URLs that one walker holds, or rows that nobody else changes
    *("hold_retries", "drop_untried", "put_back_lost", "close_urls", "put_back_later", "quarantine_urls", "free_urls"),
    *("move_to_redirect_target", "insert_pages", "insert_details", "insert_job_seats", "release_urls", "drop_findings"),
}
BY_A_LEADER = {  # by one process, of rows that are not changed any more
    *("forget_events", "forget_results", "forget_cursors", "forget_job_hours", "forget_bot_hours"),
}
OF_AN_ENDED_CRAWL = {
    *(
        "drop_touched",
        "drop_fates",
        "drop_fates_up_to",
        "drop_frontier_hosts",
        "drop_trap_scores",
        "drop_traps",
        "drop_sitemaps",
    ),
    *("drop_targets", "drop_details_up_to", "drop_pages_up_to", "drop_counters", "drop_skips", "drop_journal_entries"),
    "drop_jobs",
}
OF_ONE_ROW = {"anchor_server_clock", "lock_event_number", "set_last_event"}  # their tables have no more
SORTED_BY_THE_CALLER = {"add_to_hours", "add_bots_to_hour", "lock_targets"}
SORTED_BY_A_SUBQUERY = {"lock_groups"}
UNORDERED = LOCKED_BEFORE | OF_ONE_HOLDER | BY_A_LEADER | OF_AN_ENDED_CRAWL | OF_ONE_ROW | SORTED_BY_THE_CALLER
UNORDERED |= SORTED_BY_A_SUBQUERY

CHANGE = re.compile(r"(?<!FOR )(?<!KEY )(?<!DO )\bUPDATE (\w+)|\bDELETE FROM (\w+)")
LOCK = re.compile(r"\bFOR (NO KEY UPDATE|UPDATE|SHARE|KEY SHARE)\b|\bON CONFLICT\b")  # of rows that are read
WHERE = re.compile(r"\bWHERE\b(.*?)(?:\b(?:RETURNING|ORDER BY|LIMIT|FOR|ON CONFLICT)\b|$)", re.S)
EQUAL = re.compile(r"(?:\w+\.)?(\w+) = (?:\$\d+(?:::\w+)?|'[^']*'|\d+)")
IN_ORDER_OF_KEYS = re.compile(
    r"ORDER BY [^()]*\bFOR (NO KEY )?UPDATE|SKIP LOCKED|ORDER BY [\w., ]+(\) AS g\b|\s+ON CONFLICT)"
)
UNIQUE = """
    SELECT i.indrelid::regclass::text AS name,
           ARRAY(SELECT a.attname::text FROM pg_attribute AS a
                 WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)) AS columns
    FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
    WHERE i.indisunique AND i.indpred IS NULL AND c.relnamespace = current_schema()::regnamespace
"""


def within(sql: str, at: int) -> str:
    """Return the statement or subquery that this place is in, without what it has in parentheses."""
    begin, depth = at, 0
    while begin > 0 and depth >= 0:
        begin -= 1
        depth += (sql[begin] == ")") - (sql[begin] == "(")
    begin += depth < 0
    text, depth = "", 0
    for letter in sql[begin:]:
        depth += letter == "("
        if depth == 0 and letter == ")":
            break
        text += letter if depth == 0 else ""
        depth -= letter == ")"
    return text


def names_one_row(text: str, keys: list[set[str]]) -> bool:
    """Return whether a statement is about the row with a key that is given."""
    if "VALUES" in text:
        return True
    found = WHERE.search(text)
    if found is None or re.search(r"\bOR\b", found[1]):
        return False
    parts = [EQUAL.fullmatch(part.strip()) for part in re.split(r"\bAND\b", found[1])]
    columns = {part[1] for part in parts if part}
    return any(key <= columns for key in keys)


async def test_every_statement_over_several_rows_has_an_order_or_a_reason(postgres_bench: Bench) -> None:
    keys: dict[str, list[set[str]]] = {}
    for row in await postgres_bench.sql(UNIQUE):
        keys.setdefault(row["name"], []).append(set(row["columns"]))

    def is_about_several(query: queries.Query) -> bool:
        tables = [(match.start(), match[1] or match[2]) for match in CHANGE.finditer(query.sql)]
        for match in LOCK.finditer(query.sql):
            source = re.search(r"\bFROM (\w+)", within(query.sql, match.start()))
            tables.append((match.start(), source[1] if source else ""))
        return any(
            query.arrays or not names_one_row(within(query.sql, at), keys.get(table, [])) for at, table in tables
        )

    several = {name: query.sql for name, query in queries.load("postgres").all().items() if is_about_several(query)}
    without = {name for name, sql in several.items() if not IN_ORDER_OF_KEYS.search(sql)}
    assert without == UNORDERED


DELETIONS: dict[str, Work] = {
    "forget_deliveries": lambda bench, tx: tx.many("forget_deliveries", [{"sequence": 1}, {"sequence": 2}]),
    "empty_webhook": lambda bench, tx: tx.execute("empty_webhook", webhook="w", limit=10),
}


@pytest.mark.parametrize("name", DELETIONS)
async def test_deliveries_that_change_while_they_are_waited_for_are_deleted(postgres_bench: Bench, name: str) -> None:
    bench = postgres_bench
    await deliveries(bench)
    holder = await asyncpg.connect(bench.url)
    try:
        async with holder.transaction():
            await holder.execute("UPDATE delivery SET state = 'dead' WHERE sequence = 1")
            forgetting = asyncio.create_task(bench.database.run(lambda tx: DELETIONS[name](bench, tx)))
            async with asyncio.timeout(PATIENCE):
                while not await bench.number(BLOCKED):
                    assert not forgetting.done(), await forgetting
        await asyncio.wait_for(forgetting, PATIENCE)
    finally:
        await holder.close()
    assert await bench.number("SELECT count(*) FROM delivery") == 0

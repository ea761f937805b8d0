"""The index conditions with which each statement finds its rows in PostgreSQL: they do not depend on the table
statistics at planning time. A statement with a limit reads its rows in the order of an index, whichever filters are
given. A connection plans again when the store has grown.

A connection keeps its plans, and to the planner all indexes of an empty table cost the same. Which index it chose
depended on when the tables were last analyzed. How long the plan was kept depended on whether somebody created a schema
in the same database, which makes every connection plan again: so bad plans appeared only when a test ran alone, and not
always.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from itertools import combinations
from typing import Any

import asyncpg
import pytest

from shoal.app import database_of
from shoal.base.clock import FakeClock
from shoal.base.database import Tx
from shoal.base.database.postgres import SESSION, PostgresDatabase
from shoal.base.database.queries import Query, load
from shoal.base.database.replanning import EVERY_ROWS, EVERY_SECONDS
from shoal.base.ids import new_id
from shoal.base.settings import DatabaseSettings
from tests.contract import test_query_plans

SIZE = 5_000
BITMAPS = ("Bitmap Index Scan", "BitmapAnd", "BitmapOr")
NUMBERS = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {SIZE})"
# The tables that test_query_plans.py does not fill.
OTHERS = (
    "crawl_counter (crawl, holder) SELECT i, '' FROM n",
    "crawl_skip (crawl, holder, reason, count) SELECT i, '', 'x', 1 FROM n",
    "crawl_journal (crawl, lines, filed) SELECT i, 1, 1 FROM n",
    "crawl_line (crawl, number, at, level, event, message, facts) SELECT 1 + i % 10, i, 1, 'info', '', '', '' FROM n",
    "job_group (id, state, project, labels, priority, total, spec, created_at)"
    " SELECT 'run_' || i, 'open', 'p', '[]', 50, 1, '', i FROM n",
    "job (id, kind, state, lease_holder, lease_until, run_id, payload, lane, priority, not_before, max_attempts,"
    " created_at)"
    " SELECT 'held_' || i, 'page', 'locked', 'w', i, 'run_' || i, '', 'shared', 50, 0, 2, i FROM n WHERE i % 2 = 0",
    "job (id, kind, state, payload, lane, priority, not_before, max_attempts, created_at, finished_at)"
    " SELECT 'dead_' || i, 'page', 'failed', '', 'shared', 50, 0, 2, i, i FROM n WHERE i % 2 = 0",
    "result (job_id, epoch, group_id, policy, state, status, fetched_at, digest, url)"
    " SELECT 'job_' || i, 1, 'run_' || (i / 10), 'pol_' || (i / 10), 'done', 'success', i, '', '' FROM n",
    "job_seat (scope, job_id) SELECT 's_' || (i / 10), 'job_' || i FROM n",
    "quota (scope, most) SELECT 's_' || i, 5 FROM n",
    "sitemap (key, fetched_at, crawl, chk, listed, url) SELECT i * 7919, 1, 1, i, 1, 'http://example.org/' || i FROM n",
    "page_detail (key, crawl, chk, detail) SELECT i * 7919, 1, i, '' FROM n",
    "analysis (id, crawl, crawl_id, project, state, created_at)"
    " SELECT 'anl_' || i, 1 + i % 100, 'crl_' || (1 + i % 100), 'p', 'pending', i FROM n",
    "analyzer_outcome (analysis, analyzer, findings, duration_ms) SELECT 1 + i % 10, 'a' || i, 1, 1 FROM n",
    "finding_count (analysis, code, analyzer, severity, title, fix, count, stored)"
    " SELECT 1 + i % 10, 'c' || (i / 10), 'a', 'error', '', '', 1, 1 FROM n",
    "finding (analysis, code, number, key, evidence) SELECT 1 + i % 10, 'c' || (i / 10), 1, i, '{}' FROM n",
    "commit_status (analysis, state, description, next_at)"
    " SELECT i, 'pending', '', CASE WHEN i % 2 = 0 THEN i END FROM n",
    "gate (name, rules, created_at, changed_at) SELECT 'g' || i, '{}', 1, 1 FROM n",
    "job_hour (hour, kind, name, amount) SELECT i, 'page', 'x', 1 FROM n",
    "bot_hour (hour, token, bot_id, pulled, seen_at) SELECT i, 't', 'b', 1, 1 FROM n",
    "business_signal (subject, boost, until) SELECT i, 1, i FROM n",
    "token (id, name, hash, scopes, made_by, created_at) SELECT 'tok_' || i, '', '', 'read', '', 1 FROM n",
    "audit_entry (at, who, act, subject, facts, address) SELECT 1, '', '', i, '', '' FROM n",
    "node (id, state, session_epoch, instance, controller, address, status, heartbeat_every, connected_at,"
    " heartbeat_at)"
    " SELECT 'node-' || i, 'connected', 1, '', 'c', '', '{}', 1, i, i FROM n WHERE i % 10 > 0",
    "node (id, state, session_epoch, instance, address, status, heartbeat_every, connected_at, heartbeat_at,"
    " lost_at)"
    " SELECT 'node-' || i, 'lost', 1, '', '', '{}', 1, i, i, i FROM n WHERE i % 10 = 0",
    "departed_node (id, wish, session_epoch, left_at) SELECT 'node-' || i, '{}', 1, i FROM n",
    "node_command (id, node_id, command, form, state, created_by, created_at)"
    " SELECT 'cmd_' || i, 'node-' || i, 'pause', '{}', 'waiting', '', i FROM n WHERE i % 10 = 0",
    "node_command (id, node_id, command, form, state, created_by, created_at, ended_at)"
    " SELECT 'cmd_' || i, 'node-' || i, 'pause', '{}', 'applied', '', i, i FROM n WHERE i % 10 > 0",
    "job (id, kind, state, payload, lane, priority, not_before, max_attempts, created_at, offered_session,"
    " offered_until)"
    " SELECT 'offered_' || i, 'page', 'pending', '', 'node/node-' || i, 50, 0, 2, i, 'n:1', i FROM n WHERE i % 10 = 0",
    "request_key (caller, route, key, digest, subject, created_at) SELECT 'c', 'r', i, '', '', i FROM n",
)
CRAWLS = "crawl (id, state, project, config, named, priority, key_seed, created_at)"
CRAWLS += (
    " SELECT 'crl_' || i, 'queued', 'p', '{\"seeds\":[\"http://example.org/\"],\"labels\":{}}', 'x', 50, 1, i FROM n"
)
# Statements that may look up their rows in either of two ways, both of which are fine.
EITHER_WAY = {
    **dict.fromkeys(
        ("delivery_failed", "try_delivery", "give_back_deliveries", "delivered", "empty_webhook"),
        "by webhook and event, or by the event, which has one delivery for each webhook",
    ),
    "grants_of_job": "a job has few grants",
    "result_of_policy": "a job has few results",
    "suspect_waiting": "few URLs are ever suspects; at most all hosts of a crawl are read for them",
    **dict.fromkeys(("lock_traps", "forget_held"), "a crawl has few patterns"),
    "free_host_claims": "all hosts of a crawl are read to find those that a walker has claimed",
    "update_hosts": "by the number of a host, whoever says it",
    "purge_dead": "dead letters, or those that ended before a time",
    "any_token": "the first row of any index",
    "new_events": "those without a number, by an index of them or by that of numbers",
    **dict.fromkeys(
        ("newest_jobs", "end_of_scan", "newest_of_run", "newest_dead", "newest_locked"), "the last row of any"
    ),
}
# Statements that read all of an index, and why they may.
WHOLE = {
    **dict.fromkeys(("last_event", "set_last_event", "lock_event_number", "clock", "anchor_server_clock"), "one row"),
    **dict.fromkeys(("prune_listeners", "all_listeners"), "there are few controllers"),
    **dict.fromkeys(("least_taken", "forget_cursors", "webhooks", "due_webhooks"), "there are few webhooks and sinks"),
    **dict.fromkeys(("newest_jobs", "end_of_scan", "newest_of_run", "newest_dead", "newest_locked"), "its last row"),
    **dict.fromkeys(("any_token", "turn_jobs", "last_crawl", "newest_crawl_id"), "its first row"),
    **dict.fromkeys(
        ("count_crawls", "count_jobs", "count_policies", "count_renderers", "rows_of_crawls"),
        "they count everything, and are asked by people",
    ),
    **dict.fromkeys(("unfiled_journals", "new_events"), "an index of those alone"),
    **dict.fromkeys(("all_nodes", "overdue_nodes", "count_nodes", "forget_lapses"), "they look at the whole fleet"),
    **dict.fromkeys(("waiting_commands", "expire_commands"), "an index of commands that are not answered yet"),
    "schema_version": "one row for each migration",
    "crawl_ids_like": "the beginning of an id, asked by people on the machine of the store",
    "delete_stale_job_seats": "the sweep looks at every seat",
    "purge_dead": "an index of dead letters alone",
    **dict.fromkeys(("lock_admin_tokens", "expired_tokens"), "there are few tokens"),
    **dict.fromkeys(("all_gates", "count_gates"), "there are few gates"),
}
# Statements with a limit that sort rows of a table, and why they may.
SORTED = {
    **dict.fromkeys(("retries_at_hosts", "untried_at_hosts", "take_ready_hosts", "turn_jobs"), "a batch of each host"),
    "hosts_of_crawl": "the hosts with the most pages, for people",
    "held_among_hosts": "the hosts of one crawl",
    "due_deliveries": "a few deliveries that are due at the same microsecond",
    **dict.fromkeys(("last_of_some_fates", "lock_groups"), "a batch"),
    "newest_locked": "locked jobs are as many as workers have slots",
    "overdue_nodes": "it looks at the whole fleet",
    "bots_seen": "the bots of a few hours",
}
OPTIONAL = re.compile(r"\$\d+(?:::\w+| AS \w+\))? (?:IS NULL|= [01]|= '') OR")
LIMIT = 10
SCAN = 5 * LIMIT  # rows that a statement may look at
JOBS = {"before": "job_9", "limit": LIMIT}
JOB_FILTERS = {"state": "pending", "kind": "page", "lane": "shared"}
# Statements with optional filters: their other parameters, and a value for each filter with which all rows match.
FILTERED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **dict.fromkeys(
        ("search_pages", "rank_pages"),
        (
            {"crawl": 1, "number": 100, "upto": 1 << 62, "high": 299, "hop": '%"status":2__}%', "limit": LIMIT},
            {"low": 200, "only_errors": 1, "error": "timeout", "depth": 1}
            | {"only_failed": 1, "type": "text%", "text": "%"},
        ),
    ),
    "newest_crawls": (
        {"before": SIZE, "floor": 0, "limit": LIMIT},
        {"state": "queued", "project": "p", "labels": "{}", "host": "example.org", "text": "example"},
    ),
    "newest_jobs": ({**JOBS, "scan": SCAN}, JOB_FILTERS),
    "newest_of_run": ({**JOBS, "run_id": "run_4"}, JOB_FILTERS),
    "newest_dead": (JOBS, JOB_FILTERS | {"state": "failed"}),
    "newest_locked": ({**JOBS, "before": "zzz"}, JOB_FILTERS | {"state": "locked"}),
    "purge_jobs": ({"after": 100, "until": 100 + LIMIT, "states": "{done}", "spared": "{}"}, {"kind": "page"}),
    "purge_dead": ({"before": SIZE, "states": "{failed}", "spared": "{}", "limit": LIMIT}, {"kind": "page"}),
    "expired_jobs": ({"limit": LIMIT}, {"bots": 1}),
    "next_ready": ({"crawl": 1}, {"job_id": "job_1"}),
    "hours": ({"since": SIZE - LIMIT}, {"kind": "page"}),
    "deliveries": ({"webhook": "whk", "before": SIZE, "scan": SCAN, "limit": LIMIT}, {"state": "delivered"}),
    "policies_after": ({"after": 100, "scan": SCAN, "limit": LIMIT}, {"enabled": 1}),
    "policies_of_project": ({"project": "default", "after": 100, "scan": SCAN, "limit": LIMIT}, {"enabled": 1}),
}
# Values with which no row matches, and those of the parameters that end the search.
NO_MATCH: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("search_pages", "rank_pages"),
        {"upto": 100 + SCAN, "low": 500, "high": 599, "hop": "x", "only_errors": 1, "error": "x", "depth": 9}
        | {"only_failed": 1, "type": "x%", "text": "x%"},
    ),
    "newest_crawls": {"floor": SIZE - SCAN, "state": "failed", "project": "x", "labels": '{"x": "y"}'}
    | {"host": "x.example", "text": "nowhere"},
    "newest_jobs": {"scan": SCAN, "state": "dead", "kind": "x", "lane": "x"},
    "purge_jobs": {"until": 100 + SCAN, "kind": "x"},
    "hours": {"kind": "x"},
    "deliveries": {"state": "waiting"},
    "policies_after": {"enabled": 0},
    "policies_of_project": {"enabled": 0},
    "failed_pages_after": {"crawl": 1, "number": 100, "upto": 100 + SCAN, "limit": LIMIT},
    **{name: {"crawl": 1, "number": 100, "upto": 100 + SCAN} for name in ("links_after", "details_after")},
    "outlinks_after": {"crawl": 1, "number": 100, "upto": 100 + SCAN},
    "first_failure": {"crawl": 1, "number": 100, "upto": 100 + SCAN},
    "fates_after": {"crawl": 1, "key": 0, "chk": 100, "last_key": 0, "last_chk": 100 + SCAN, "fate": 7},
}
# Statements that may read all rows of their index if no row matches, and why.
NO_END = {
    "newest_of_run": "the jobs of one run",
    **dict.fromkeys(("newest_dead", "purge_dead"), "an index of dead letters alone, which are pruned"),
    "newest_locked": "locked jobs are as many as workers have slots",
    "expired_jobs": "leases that have expired, which are few",
    "next_ready": "the hosts of one crawl",
}
WITHOUT = {
    "only_errors": 0,
    "only_failed": 0,
    "bots": 0,
    "job_id": "",
}  # the values of absent filters that are not NULL
SOME_PAGES = re.compile(r"\bFROM page\b.*\bnumber > \$\d+.*?\bAND (?!(?:p\.)?number\b)", re.DOTALL)
"""Statements that look for some of the pages after a number."""
FEW = 100  # rows that such a statement may read of a table


@pytest.fixture
async def store(own_database: str) -> AsyncIterator[tuple[PostgresDatabase, FakeClock]]:
    """One connection: a plan belongs to the connection that made it."""
    clock = FakeClock()
    database = database_of(DatabaseSettings(url=own_database, pool_size=1), clock)
    assert isinstance(database, PostgresDatabase)
    await database.open(upgrade=True)
    yield database, clock
    await database.close()


class Planner:
    """Two connections: one plans as Shoal's do, the other fills and counts the tables."""

    def __init__(self, plans: Any, writes: Any) -> None:
        self._plans = plans
        self._writes = writes
        self.tables: list[str] = []

    async def begin(self) -> None:
        rows = await self._writes.fetch(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
        )
        self.tables = [row[0] for row in rows]
        for table in self.tables:  # nobody but the test counts
            await self._writes.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")

    async def count(self, how: str) -> None:
        for table in self.tables:
            await self._writes.execute(f"{how} {table}")

    async def execute(self, statement: str) -> None:
        await self._writes.execute(statement)

    async def fill(self) -> None:
        await self._writes.execute(f"{NUMBERS} INSERT INTO {CRAWLS}")
        facts = {"crawl": 1, "host": 1, "spec": test_query_plans.SPEC, "then": test_query_plans.THEN, "size": SIZE}
        for statement in test_query_plans.FILL:
            await self._writes.execute(f"{NUMBERS} {statement}".format(**facts))
        for statement in OTHERS:
            await self._writes.execute(f"{NUMBERS} INSERT INTO {statement}")

    async def lookups(self) -> dict[str, list[str]]:
        """Return the index conditions of each statement, for each table that it reads."""
        found = {}
        for name, query in load("postgres").all().items():
            found[name] = sorted(_lookups(await self.plan(query, ["NULL"] * len(query.parameters))))
        return found

    async def plan(self, query: Query, values: list[str], *, how: str = "FORMAT JSON") -> dict[str, Any]:
        given = f"({', '.join(values)})" if values else ""
        await self._plans.execute(f"PREPARE look AS {query.sql}")
        plan = await self._plans.fetchval(f"EXPLAIN ({how}) EXECUTE look{given}")
        await self._plans.execute("DEALLOCATE look")
        found: dict[str, Any] = json.loads(plan)[0]["Plan"]
        return found

    async def rows_read(self, query: Query, values: dict[str, Any]) -> int:
        """Run a statement and undo it; return how many rows of tables it read."""
        literals = [test_query_plans._literal(value) for value in query.ordered(values)]
        undo = self._plans.transaction()
        await undo.start()
        plan = await self.plan(query, literals, how="ANALYZE, TIMING OFF, FORMAT JSON")
        await undo.rollback()
        return _rows_read(plan)


def _lookups(step: dict[str, Any]) -> list[str]:
    found = []
    if "Relation Name" in step and step["Node Type"] != "ModifyTable":
        conditions = _conditions(step) or ["everything"]
        found.append(f"{step['Alias']}: {' and '.join(sorted(conditions))}")
    return found + [lookup for inner in step.get("Plans", []) for lookup in _lookups(inner)]


def _rows_read(step: dict[str, Any]) -> int:
    counts = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    is_scan = "Relation Name" in step and step["Node Type"] != "ModifyTable"
    own = sum(step.get(name, 0) for name in counts) * step["Actual Loops"] if is_scan else 0
    return int(own) + sum(map(_rows_read, step.get("Plans", [])))


def _sorts_a_table(step: dict[str, Any]) -> bool:
    sorts = step["Node Type"] in ("Sort", "Incremental Sort") and bool(_lookups(step))
    return sorts or any(map(_sorts_a_table, step.get("Plans", [])))


def _combinations(names: list[str]) -> Iterator[set[str]]:
    return (set(some) for count in range(len(names) + 1) for some in combinations(names, count))


def _conditions(step: dict[str, Any]) -> list[str]:
    """The conditions of a scan on its index, on the indexes of its bitmap, or on the locations of its rows."""
    own = [step[name] for name in ("Index Cond", "TID Cond") if name in step]
    inner = [one for part in step.get("Plans", []) if part["Node Type"] in BITMAPS for one in _conditions(part)]
    return [_plain(condition) for condition in own] + inner


def _plain(condition: str) -> str:
    """A condition without the numbers of its parameters. A row is found by its id; further columns of the index
    condition do not matter."""
    text = re.sub(r"\(InitPlan \d+\)\.col1|\$\d+", "$", condition)
    by_id = re.search(r"\(id = [^()]*(?:\([^()]*\))?\)", text)
    return by_id[0] if by_id else text


async def test_every_statement_looks_its_rows_up_in_the_same_way_whatever_was_counted(own_database: str) -> None:
    database = PostgresDatabase(DatabaseSettings(url=own_database))
    await database.open(upgrade=True)
    await database.close()
    plans, writes = await asyncpg.connect(own_database, server_settings=SESSION), await asyncpg.connect(own_database)
    planner = Planner(plans, writes)
    await planner.begin()
    seen = {"never counted": await planner.lookups()}
    for how in ("VACUUM", "ANALYZE"):
        await planner.count(how)
        seen[f"{how} while empty"] = await planner.lookups()
    await planner.fill()
    seen["large, and not counted since"] = await planner.lookups()
    await planner.count("ANALYZE")
    wanted = await planner.lookups()
    await plans.close()
    await writes.close()
    differing = [
        f"{name}, {when}: {found[name]} instead of {wanted[name]}"
        for when, found in seen.items()
        for name in wanted
        if found[name] != wanted[name] and name not in EITHER_WAY
    ]
    assert not differing, "\n".join(differing)
    careless = [f"{name}: {how}" for name, how in wanted.items() if any("everything" in one for one in how)]
    careless = [words for words in careless if words.partition(":")[0] not in WHOLE]
    assert not careless, "\n".join(careless)


@pytest.fixture
async def planner(own_database: str) -> AsyncIterator[Planner]:
    """A large store that was never analyzed."""
    database = PostgresDatabase(DatabaseSettings(url=own_database))
    await database.open(upgrade=True)
    await database.close()
    plans, writes = await asyncpg.connect(own_database, server_settings=SESSION), await asyncpg.connect(own_database)
    planner = Planner(plans, writes)
    await planner.begin()
    await planner.fill()
    yield planner
    await plans.close()
    await writes.close()


async def test_a_statement_with_a_limit_reads_rows_in_the_order_of_an_index(planner: Planner) -> None:
    limited = [query for query in load("postgres").all().values() if "LIMIT" in query.sql]
    sorting = set()
    for analyzed in (False, True):
        if analyzed:
            await planner.count("ANALYZE")
        for query in limited:
            plan = await planner.plan(query, ["NULL"] * len(query.parameters))
            sorting |= {query.name} if _sorts_a_table(plan) else set()
    assert sorting <= SORTED.keys(), f"{sorted(sorting - SORTED.keys())} read all rows that follow to sort them"


async def test_a_statement_with_optional_filters_reads_few_rows_with_any_of_them(planner: Planner) -> None:
    queries = load("postgres")
    assert FILTERED.keys() == {name for name, query in queries.items() if OPTIONAL.search(query.sql)}
    problems = []
    for analyzed in (False, True):
        if analyzed:
            await planner.count("ANALYZE")
        for name, (others, filters) in FILTERED.items():
            limit = SIZE if name in SORTED else FEW
            for given in _combinations(list(filters)):
                values = others | {one: filters[one] if one in given else WITHOUT.get(one) for one in filters}
                read = await planner.rows_read(queries[name], values)
                problems += [f"{name} by {sorted(given)}, {analyzed=}: {read:,} rows"] if read > limit else []
    assert not problems, "\n".join(problems)


async def test_a_search_that_matches_nothing_ends_after_a_limited_number_of_rows(planner: Planner) -> None:
    await planner.execute("UPDATE page SET error_code = NULL")
    queries, problems = load("postgres"), []
    assert NO_MATCH.keys() | NO_END.keys() >= FILTERED.keys()
    assert NO_MATCH.keys() >= {name for name, query in queries.items() if SOME_PAGES.search(query.sql)}
    await planner.execute("UPDATE page SET links = NULL")
    for analyzed in (False, True):
        if analyzed:
            await planner.count("ANALYZE")
        for name, none in NO_MATCH.items():
            others, filters = FILTERED.get(name, ({}, {}))
            absent = {one: WITHOUT.get(one) for one in filters}
            for given in filters or [""]:
                values = others | none | absent | {one: none[one] for one in filters if one == given}
                read = await planner.rows_read(queries[name], values)
                problems += [f"{name} by {given}, {analyzed=}: {read:,} rows"] if read > FEW else []
    assert not problems, "\n".join(problems)


# An example statement, because the plans of our own statements never change.
SPOILED = "UPDATE policy SET runs = 1 FROM unnest($1::text[]) AS g (id) WHERE policy.id = g.id"


async def plan_of(tx: Tx) -> str:
    """Return the plan that the connection uses now for a statement it has prepared before."""
    connection = tx._connection  # type: ignore[attr-defined]
    return "\n".join(row[0] for row in await connection.fetch("EXPLAIN EXECUTE spoiled(NULL)"))


async def spoil(tx: Tx) -> str:
    """Plan a statement now, while the table is empty."""
    await tx._connection.execute(f"PREPARE spoiled AS {SPOILED}")  # type: ignore[attr-defined]
    return await plan_of(tx)


def rows(count: int) -> list[tuple[Any, ...]]:
    return [(new_id("pol"), "default", "http", test_query_plans.SPEC, 1, 1, None, 1) for _ in range(count)]


async def vacuum(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("ALTER TABLE policy SET (autovacuum_enabled = off)")
    await connection.execute("VACUUM policy")
    await connection.close()


async def test_a_connection_plans_again_when_the_store_has_grown(
    own_database: str, store: tuple[PostgresDatabase, FakeClock]
) -> None:
    database, clock = store
    await vacuum(own_database)
    assert "Index Cond" not in await database.run(spoil)
    await database.run(lambda tx: tx.many("insert_policies", rows(1_000)))
    assert "Index Cond" not in await database.run(plan_of)  # the sizes of the tables have not been checked yet
    clock.jump(EVERY_SECONDS)
    assert "Index Cond: (id = g.id)" in await database.run(plan_of)
    for query in (database.once, database.read):
        assert "Index Cond: (id = g.id)" in await query(plan_of, within=timedelta(seconds=5))


async def test_a_process_that_writes_much_looks_at_once(
    own_database: str, store: tuple[PostgresDatabase, FakeClock]
) -> None:
    database, _ = store
    await vacuum(own_database)
    await database.run(spoil)
    await database.run(lambda tx: tx.many("insert_policies", rows(EVERY_ROWS)))
    assert "Index Cond: (id = g.id)" in await database.run(plan_of)


async def test_a_connection_keeps_its_plans_while_nothing_grows(
    own_database: str, store: tuple[PostgresDatabase, FakeClock]
) -> None:
    database, clock = store
    await vacuum(own_database)
    bad = await database.run(spoil)
    for _ in range(3):
        clock.jump(EVERY_SECONDS)
        assert await database.run(plan_of) == bad
    await database.run(lambda tx: tx.many("insert_policies", rows(1_000)))
    clock.jump(EVERY_SECONDS)
    good = await database.run(plan_of)
    assert good != bad
    await database.run(lambda tx: tx._connection.execute("DELETE FROM policy"))  # type: ignore[attr-defined]
    await vacuum(own_database)  # it lets the connection plan again, for an empty table
    assert await database.run(plan_of) != good
    clock.jump(EVERY_SECONDS)
    await database.run(plan_of)  # the sizes are checked while it is empty
    await database.run(lambda tx: tx.many("insert_policies", rows(1_000)))
    clock.jump(EVERY_SECONDS)
    assert "Index Cond: (id = g.id)" in await database.run(plan_of)

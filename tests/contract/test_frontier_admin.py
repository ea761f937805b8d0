"""Administration of a frontier: count, explain, delete, dump and load."""

import json
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import asdict

from shoal.base.clock import SystemClock, from_micros
from shoal.base.errors import AlreadyExists, InvalidInput, NotAllowed, NotFound, StateConflict
from shoal.base.url import Url
from shoal.crawl import dump_records as records
from shoal.crawl.crawl import Crawl
from shoal.crawl.dump import CrawlDump
from shoal.crawl.engine.walker_commits import TurnRequest
from shoal.crawl.frontier.admin import FrontierAdmin
from shoal.crawl.frontier.admin_store import FrontierAdminStore, KeptUrl
from shoal.crawl.frontier.explain import UrlState
from shoal.crawl.frontier.fates import Fate, Trap, TrapState
from shoal.crawl.frontier.values import NewUrl, Settled, SitemapRecord, UrlKind, WalkerBatch, key_of
from shoal.crawl.states import CrawlState
from shoal.drivers.folder_bodies import FolderBodies
from shoal.extract.details import Details, packed, unpacked
from shoal.queue.job import Fence
from tests.contract.conftest import SITE, Bench, Walker, failed, fetched, later, new_url, open_bench
from tests.support import ledger

NEVER = 1 << 62  # when a URL in quarantine is due
YEARS = 366 * 86_400 * 3  # more than the difference between the clocks of two stores
TRAP = f"{SITE}/trap/0"
A = "https://a.test/"
PAGE = {"url": A, "depth": 0, "fetched_at": 1, "attempt": 1}
URL = {"url": A, "fate": "open", "depth": 0, "due": None, "parent": None, "attempts": 0, "crashes": 0}
CHAIN = {"steps": [{"url": A, "status": 302, "asked": 2**64 - 1}]}
FRONTIER = (
    "SELECT path, seq >> 40 AS depth, due, parent, attempts, crashes, kind FROM frontier_open WHERE crawl = {}"
    " ORDER BY due, depth, path"
)
ORDER = """
    SELECT h.origin, f.path FROM frontier_open AS f JOIN host AS h ON h.number = f.host
    WHERE f.crawl = {} ORDER BY h.origin, f.due, f.seq
"""


def nested(levels: int) -> dict[str, Any]:
    """Return an object with this many levels."""
    return {"inner": nested(levels - 1)} if levels > 1 else {}


def frontier_admin_store_of(bench: Bench) -> FrontierAdminStore:
    admins = bench.app.stores.frontier_admins
    return admins.sql if bench.frontier.driver == "sql" or admins.redis is None else admins.redis


def frontier_admin_of(bench: Bench) -> FrontierAdmin:
    bodies = FolderBodies(Path("there are none"), SystemClock())
    return FrontierAdmin(bench.database, bench.crawls, bench.queue, bench.app.stores.frontier_admins, bodies)


def dump_of(bench: Bench) -> CrawlDump:
    stores, admin = bench.app.stores, frontier_admin_of(bench)
    return CrawlDump(bench.database, bench.crawls, stores.frontier_admins, stores.sql_frontier_admin, admin)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Each frontier in turn; Redis beside SQLite."""
    name = "sqlite" if request.param == "redis" else request.param
    redis_url = request.getfixturevalue("redis_url") if request.param == "redis" else ""
    bench = await open_bench(request.getfixturevalue(f"{name}_url"), redis_url=redis_url)
    yield bench
    await bench.close()


@pytest.fixture
async def sql_bench(store_url: str) -> AsyncIterator[Bench]:
    """Each frontier on SQL in turn, for behaviour that only they have: a frontier in Redis is removed all at once."""
    bench = await open_bench(store_url)
    yield bench
    await bench.close()


@pytest.fixture
async def sql_other(sql_bench: Bench, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A store of the other kind, beside `sql_bench`."""
    other = await open_bench(request.getfixturevalue("postgres_url" if sql_bench.dialect == "sqlite" else "sqlite_url"))
    yield other
    await other.close()


@pytest.fixture
async def other(bench: Bench, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A store of the other kind."""
    name = "postgres_url" if bench.dialect == "sqlite" else "sqlite_url"
    other = await open_bench(request.getfixturevalue(name))
    yield other
    await other.close()


async def walked(bench: Bench) -> tuple[Crawl, Walker]:
    """A crawl with something in every state: one fetched, one failed, one skipped, two in quarantine, one for later,
    one taken, two waiting at two hosts, one of them a sitemap."""
    crawl = await bench.submit(policy_id="pol_1")
    walker = await bench.walker(crawl)
    [seed] = await walker.take()
    found = [linked(walker, path) for path in ("/fails", "/later", "/taken", "/trap/1")]
    found.append(linked(walker, "/deep", depth=9, fate=Fate.SKIPPED_DEPTH))
    turn = await walker.turn(fetched(seed), found=found)
    fails, waits, _, trap = sorted(turn.work, key=lambda task: task.url)
    rest = [linked(walker, "/waits"), linked(walker, "http://example.net/other", kind=UrlKind.SITEMAP)]
    rest.append(linked(walker, "/trap/2", fate=Fate.QUARANTINED))
    await bench.database.run(lambda tx: bench.frontier.quarantine(tx, walker.crawl.number, {TRAP: trap.url}))
    report = WalkerBatch([failed(fails), later(waits, YEARS), Settled(trap, Fate.QUARANTINED)], rest)
    await walker.commits.turn(report, TurnRequest(0, 1))
    return crawl, walker


def linked(walker: Walker, url: str, depth: int = 1, fate: Fate = Fate.OPEN, kind: UrlKind = UrlKind.PAGE) -> NewUrl:
    """A link from the seed's page."""
    link = new_url(walker.crawl, url, depth, fate, kind)
    link.parent_key = key_of(Url(f"{SITE}/"), walker.crawl.key_seed)[0]
    return link


async def paused(bench: Bench) -> Crawl:
    """The same crawl after its walker ended: its taken URLs wait again."""
    crawl, walker = await walked(bench)
    await bench.crawls.pause(crawl.id)
    await walker.commits.close(WalkerBatch(), "pause")
    return (await bench.crawls.get(crawl.id)).crawl


async def dumped(bench: Bench, crawl: Crawl) -> list[bytes]:
    return [line async for line in dump_of(bench).dump(crawl.id)]


def recount(bench: Bench, crawl_id: str) -> Counter[str]:
    """Count the URLs of a crawl by fate."""
    return Counter(Fate(row["fate"]).word for row in ledger.read(bench.url, crawl_id, bench.redis_url).fates)


async def test_open_and_taken_urls_are_counted(bench: Bench) -> None:
    crawl, _ = await walked(bench)
    assert recount(bench, crawl.id) == {"open": 4, "fetched": 1, "failed": 1, "quarantined": 2, "depth": 1}
    assert (await bench.counts(crawl)).queued == 4
    assert await bench.database.read(lambda tx: frontier_admin_store_of(bench).taken(tx, crawl.number)) == 1


async def test_taken_urls_and_fates_of_many_urls_are_read(bench: Bench) -> None:
    crawl, _ = await walked(bench)
    held = await frontier_admin_of(bench).taken_urls(crawl.id, 10)
    assert [(one.kept.url, one.taken_by is None) for one in held] == [(f"{SITE}/taken", False)]
    assert await frontier_admin_of(bench).taken_urls(crawl.id, 0) == []
    deep, unknown = (key_of(Url(f"{SITE}{path}"), crawl.key_seed) for path in ("/deep", "/nowhere"))
    store = frontier_admin_store_of(bench)
    found = await bench.database.read(lambda tx: store.fates_of(tx, crawl.number, [deep, unknown]))
    assert found == {deep: Fate.SKIPPED_DEPTH}
    assert await bench.database.read(lambda tx: store.fates_of(tx, crawl.number, [])) == {}


@pytest.mark.parametrize(
    ("path", "state", "reason"),
    [
        ("/", UrlState.FETCHED, None),
        ("/fails", UrlState.FAILED, "connect"),
        ("/later", UrlState.WAITING, "retry"),
        ("/taken", UrlState.TAKEN, None),
        ("/deep", UrlState.SKIPPED, "depth"),
        ("/waits", UrlState.WAITING, "turn"),
        ("/trap/1", UrlState.QUARANTINED, "trap"),
        ("/trap/2", UrlState.QUARANTINED, "trap"),
        ("/nowhere", UrlState.NEVER_SEEN, None),
    ],
)
async def test_every_url_has_a_fate_that_can_be_asked_for(
    bench: Bench, path: str, state: UrlState, reason: str | None
) -> None:
    crawl, _ = await walked(bench)
    said = await frontier_admin_of(bench).explain(crawl.id, SITE + path, 2083)
    assert (said.url, said.state, said.reason) == (SITE + path, state, reason)


async def test_a_sitemap_is_reported_as_one(bench: Bench) -> None:
    crawl, _ = await walked(bench)
    said = await frontier_admin_of(bench).explain(crawl.id, "http://example.net/other", 2083)
    assert (said.state, said.facts["kind"]) == (UrlState.WAITING, "sitemap")


async def test_an_open_url_is_reported_with_its_holder_parent_and_time(bench: Bench) -> None:
    crawl, walker = await walked(bench)
    frontier_admin = frontier_admin_of(bench)
    taken = (await frontier_admin.explain(crawl.id, f"{SITE}/taken", 2083)).facts
    assert (taken["job_id"], taken["epoch"]) == (walker.fence.job_id, walker.fence.epoch)
    assert taken["parent"] == f"{SITE}/"
    waits = (await frontier_admin.explain(crawl.id, f"{SITE}/later", 2083)).facts
    now = from_micros(await bench.database.read(lambda tx: tx.value("now")))
    assert (waits["due_at"] - now).total_seconds() == pytest.approx(YEARS, abs=10)
    assert waits["attempts"] == 1


async def test_the_frontier_of_a_running_crawl_is_not_touched(bench: Bench) -> None:
    crawl, _ = await walked(bench)
    for wish in (
        frontier_admin_of(bench).clear(crawl.id),
        frontier_admin_of(bench).erase(crawl.id),
        dumped(bench, crawl),
    ):
        with pytest.raises(StateConflict, match="first"):
            await wish
    assert recount(bench, crawl.id).total() == 9


async def test_the_frontier_of_a_crawl_that_may_start_at_any_moment_is_not_touched(bench: Bench) -> None:
    crawl = await bench.submit()
    with pytest.raises(StateConflict, match="queued"):
        await frontier_admin_of(bench).clear(crawl.id)


async def test_a_crawl_that_a_killed_walker_still_leases_is_not_touched(bench: Bench) -> None:
    crawl = await paused(bench)
    await bench.sql(f"UPDATE crawl SET state = 'stopped', finished_at = 1 WHERE number = {crawl.number}")
    await bench.enqueue(kind="crawl", run_id=crawl.id)
    await bench.lease(kind="crawl")
    with pytest.raises(StateConflict):
        await frontier_admin_of(bench).erase(crawl.id)


async def test_clear_forgets_the_urls_and_keeps_pages_and_counts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.crawl.frontier.admin.BATCH", 2)
    crawl = await paused(bench)
    before = await bench.counts(crawl)
    assert await frontier_admin_of(bench).clear(crawl.id) == 9
    assert not recount(bench, crawl.id)
    after = await bench.counts(crawl)
    assert after.drained
    assert (after.opened, after.pages, after.errors, after.responses, after.skipped) == (
        before.opened, before.pages, before.errors, before.responses, before.skipped,
    )  # fmt: skip
    assert await bench.number(f"SELECT count(*) FROM page WHERE crawl = {crawl.number}") == 2
    for table in ("frontier_host", "trap"):
        assert await bench.number(f"SELECT count(*) FROM {table} WHERE crawl = {crawl.number}") == 0


async def test_a_clear_that_was_cut_off_leaves_counters_that_equal_a_recount(sql_bench: Bench) -> None:
    crawl = await paused(sql_bench)
    await sql_bench.database.run(lambda tx: frontier_admin_store_of(sql_bench).forget(tx, crawl.number, 4))
    kept = await sql_bench.number(f"SELECT count(*) FROM frontier_open WHERE crawl = {crawl.number} AND due < {NEVER}")
    assert 0 < (await sql_bench.counts(crawl)).queued == kept < 4


async def test_clear_leaves_other_crawls_alone(bench: Bench) -> None:
    crawl, neighbour = await paused(bench), await paused(bench)
    await frontier_admin_of(bench).clear(crawl.id)
    assert recount(bench, neighbour.id).total() == 9


async def test_an_erased_crawl_leaves_nothing_behind(bench: Bench) -> None:
    crawl, neighbour = await paused(bench), await paused(bench)
    await bench.crawls.stop(crawl.id)
    await frontier_admin_of(bench).erase(crawl.id)
    with pytest.raises(NotFound):
        await bench.crawls.get(crawl.id)
    for table in ("fate", "frontier", "frontier_host", "page", "crawl_counter", "crawl_skip", "trap"):
        assert await bench.number(f"SELECT count(*) FROM {table} WHERE crawl = {crawl.number}") == 0
    assert await bench.number(f"SELECT count(*) FROM job WHERE run_id = '{crawl.id}'") == 0
    assert await bench.state(neighbour) is CrawlState.PAUSED


async def test_a_paused_crawl_is_cleared_but_not_erased(bench: Bench) -> None:
    crawl = await paused(bench)
    with pytest.raises(StateConflict, match="stop it first"):
        await frontier_admin_of(bench).erase(crawl.id)


async def test_a_frontier_carried_to_another_store_is_the_same(sql_bench: Bench, sql_other: Bench) -> None:
    await sql_other.submit("http://elsewhere.test/")  # so that numbers differ
    crawl = await paused(sql_bench)
    loaded = await dump_of(sql_other).load(dump_of(sql_bench).dump(crawl.id))
    there = (await sql_other.crawls.get(loaded)).crawl
    assert there.number != crawl.number
    assert asdict(there) | {"number": 0} == asdict(crawl) | {"number": 0}
    assert await sql_other.sql(FRONTIER.format(there.number)) == await sql_bench.sql(FRONTIER.format(crawl.number))
    assert await sql_other.sql(ORDER.format(there.number)) == await sql_bench.sql(ORDER.format(crawl.number))
    assert await sql_other.fates(there) == await sql_bench.fates(crawl)
    assert await sql_other.counts(there) == await sql_bench.counts(crawl)
    assert await pages_of(sql_other, there) == await pages_of(sql_bench, crawl)
    assert await traps_of(sql_other, there) == [Trap(TRAP, TrapState.QUARANTINED, f"{SITE}/trap/1", 2)]
    answered = "SELECT h.origin, f.pages FROM frontier_host AS f JOIN host AS h ON h.number = f.host WHERE f.crawl = {}"
    assert await sql_other.sql(f"{answered.format(there.number)} ORDER BY h.origin") == (
        await sql_bench.sql(f"{answered.format(crawl.number)} ORDER BY h.origin")
    )


async def pages_of(bench: Bench, crawl: Crawl) -> list[object]:
    pages = await bench.database.read(lambda tx: bench.pages.after(tx, crawl.number, 0, 100))
    return [page for _, page in pages]


async def traps_of(bench: Bench, crawl: Crawl) -> list[Trap]:
    return await bench.database.read(lambda tx: bench.frontier.traps(tx, crawl.number))


async def test_a_pattern_in_quarantine_is_released_where_it_was_carried_to(bench: Bench, other: Bench) -> None:
    crawl = await paused(bench)
    await dump_of(other).load(dump_of(bench).dump(crawl.id))
    there = (await other.crawls.get(crawl.id)).crawl
    assert await other.crawls.release(there.id, TRAP) == 2
    assert "quarantined" not in recount(other, crawl.id)
    assert (await other.counts(there)).queued == recount(other, crawl.id)["open"] == 6


async def test_dumped_loaded_and_dumped_again_gives_the_same_lines(bench: Bench, other: Bench) -> None:
    crawl = await paused(bench)
    first = await dumped(bench, crawl)
    there = (await other.crawls.get(await dump_of(other).load(first))).crawl
    assert there.policy_id == "pol_1"
    again = await dumped(other, there)
    assert sorted(again) == sorted(first)
    assert (again[0], again[-1]) == (first[0], first[-1])


async def test_a_carried_crawl_is_resumed_and_completes_without_fetching_anything_twice(
    bench: Bench, other: Bench
) -> None:
    await other.submit("http://elsewhere.test/")
    await other.lease(kind="crawl")
    crawl = await paused(bench)
    loaded = await dump_of(other).load(dump_of(bench).dump(crawl.id))
    there = (await other.crawls.get(loaded)).crawl
    seed = there.key_seed
    await other.jump(2 * YEARS)  # delayed URLs are due, by either clock
    await other.crawls.resume(loaded)
    walker = await other.walker(there)
    known = [keyed(seed, path) for path in ("/", "/fails", "/waits")]
    fetched_there = []
    while not (turn := await walker.fetch_all(*known)).drained:
        assert {task.parent for task in turn.work} == {f"{SITE}/"}
        fetched_there += [task.url for task in turn.work]
    assert sorted(fetched_there) == [
        "http://example.net/other", f"{SITE}/later", f"{SITE}/taken", f"{SITE}/waits",
    ]  # fmt: skip
    assert await other.state(there) is CrawlState.COMPLETED
    assert (await other.counts(there)).pages == 5


def keyed(seed: int, path: str) -> NewUrl:
    url = Url(SITE + path)
    return NewUrl(*key_of(url, seed), url, 1, Fate.OPEN)


async def test_a_crawl_is_not_loaded_over_another(bench: Bench) -> None:
    crawl = await paused(bench)
    lines = await dumped(bench, crawl)
    with pytest.raises(AlreadyExists, match="another id"):
        await dump_of(bench).load(lines)
    copy = await dump_of(bench).load(lines, crawl_id="copy")
    assert recount(bench, copy) == recount(bench, crawl.id)


async def test_a_dump_without_a_depth_keeps_the_limit_that_its_crawl_had(bench: Bench, other: Bench) -> None:
    head, *rest = await dumped(bench, await paused(bench))
    values = orjson.loads(head)
    assert values["crawl"]["config"].pop("depth", "missing") != "missing"
    copy = await dump_of(other).load([orjson.dumps(values), *rest])
    assert (await other.crawls.get(copy)).crawl.config.depth == 3


async def test_hosts_that_were_named_elsewhere_are_not_trusted_here(bench: Bench, other: Bench) -> None:
    crawl = await paused(bench)
    await bench.sql(f"""UPDATE crawl SET named = '["http://127.0.0.1:8080/"]' WHERE number = {crawl.number}""")
    lines = await dumped(bench, crawl)
    await dump_of(other).load(lines)
    assert (await other.crawls.get(crawl.id)).crawl.named == frozenset()
    await dump_of(other).load(lines, crawl_id="trusted", trust_named=True)
    assert (await other.crawls.get("trusted")).crawl.named == {"http://127.0.0.1:8080/"}


async def test_of_a_file_that_is_not_whole_nothing_stays(bench: Bench, other: Bench) -> None:
    crawl = await paused(bench)
    lines = await dumped(bench, crawl)
    broken = {
        "no end": lines[:-1],
        "no head": lines[1:],
        "one lost": lines[:2] + lines[3:],
        "one twice": lines[:2] + lines[1:],
        "cut": [*lines[:-2], lines[-2][:-5]],
        "two of them": lines + lines,
        "not ours": [b'{"url": "http://example.org/"}'],
        "nothing": [],
        "a fate of its own": [*lines[:-1], b'{"key": "' + b"0" * 24 + b'", "fate": "lucky"}', lines[-1]],
        "a URL that is none": [lines[0], lines[1].replace(b"http:", b"ftp:"), *lines[2:]],
        "a state that cannot be": [lines[0].replace(b'"state":"paused"', b'"state":"running"'), *lines[1:]],
        "another version": [lines[0].replace(b'"shoal_frontier":1', b'"shoal_frontier":2'), *lines[1:]],
    }
    for name, given in broken.items():
        with pytest.raises(InvalidInput):
            pytest.fail(f"{name}: {await dump_of(other).load(given)} was loaded")
        assert await other.crawls.newest() == [], name
        assert await other.number("SELECT count(*) FROM fate") == 0, name


async def test_a_refusal_names_the_line_and_what_is_wrong_with_it(bench: Bench) -> None:
    crawl = await paused(bench)
    lines = await dumped(bench, crawl)
    head = orjson.loads(lines[0])
    head["crawl"]["config"]["depth"] = -1
    with pytest.raises(InvalidInput, match=r"line 1 .*crawl\.config\.depth"):
        await dump_of(bench).load([orjson.dumps(head), *lines[1:]], crawl_id="copy")
    with pytest.raises(InvalidInput, match="line 3 "):
        await dump_of(bench).load([*lines[:2], b"{", *lines[2:]], crawl_id="copy")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fetched_at", 2**62),
        ("fetched_at", -1),
        ("depth", 2**63),
        ("depth", 2**31),
        ("status", 70_000),
        ("attempt", 2**40),
        ("word_count", -1),
        ("duration_ms", 1e300),
        ("flags", 2**20),
        ("text_hash", 2**63),
        ("redirects", [{"url": 3, "status": "x"}]),
        ("redirects", [{}]),
        ("redirects", [{"url": "https://a.test/", "status": 302}] * 1_001),
        ("title", "x" * 3_000_000),
        ("data", nested(900)),
        ("data", nested(101)),
    ],
)
def test_a_page_with_a_value_that_no_store_could_hold_is_refused(name: str, value: object) -> None:
    assert records.read(orjson.dumps({"page": PAGE | {"data": nested(100)}}), 1)
    line = json.dumps({"page": PAGE | {name: value}})  # orjson writes no numbers of more than 64 bits
    with pytest.raises(InvalidInput, match=f"line 7 is not valid .*{name}"):
        records.read(line, 7)


@pytest.mark.parametrize(
    "values",
    [
        {"final_url": "x", "status": 200},
        {"final_url": "https://a.test", "status": 200},
        {"parent": "javascript:alert(1)"},
        {"redirects": [{"url": "zzz", "status": 302}], "status": 302},
        {"title": "a\0b"},
        {"data": {"deep": [{"a\0": 1}]}},
        {"data": {"deep": [{"a": "b\0"}]}},
        {"detail": b64encode(packed(Details(titles=3))).decode()},  # type: ignore[arg-type]
    ],
)
def test_a_page_with_a_value_that_its_readers_would_fail_on_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="line 7 is not valid"):
        records.read(orjson.dumps({"page": PAGE | values}), 7)


@pytest.mark.parametrize(
    "line",
    [
        {"trap": {"pattern": "https://a.test/" + "a" * 100_000, "state": "quarantined", "sample": A, "count": 1}},
        {"trap": {"pattern": A, "state": "quarantined", "sample": "javascript:1", "count": 1}},
        {"trap": {"pattern": "\0", "state": "quarantined", "sample": A, "count": 1}},
        {"sitemap": {"url": A, "fetched_at": 1, "problem": "x" * 100_000}},
        {"sitemap": {"url": A, "fetched_at": 1, "entries": "AAAA"}},
        URL | {"due": "9999-12-31T23:59:59-12:00"},
        URL | {"due": "0001-01-01T00:00:00Z"},
        URL | {"due": "1969-12-31T23:59:59Z"},
        URL | {"target": A, "chain": CHAIN | {"key": 2**63}},
        URL | {"target": A, "chain": CHAIN | {"chk": 2**31}},
        URL | {"target": A, "chain": CHAIN | {"bytes": 2**63}},
        URL | {"target": A, "chain": CHAIN | {"seconds": 1e308}},
        URL | {"target": A, "chain": CHAIN | {"content_type": "x" * 100_000}},
        URL | {"target": A, "chain": {"steps": [{"url": A, "status": 99_999_999_999, "asked": 1}]}},
        URL | {"target": A, "chain": {"steps": [{"url": A, "status": 302, "asked": -1}]}},
        URL | {"target": A, "chain": {"steps": [{"url": "javascript:1", "status": 302, "asked": 1}]}},
        [],
        {"page": None},
        {"end": None},
    ],
)
def test_a_line_with_a_value_out_of_range_is_refused_by_its_number(line: Any) -> None:
    assert records.read(orjson.dumps(URL), 1)
    assert records.read(orjson.dumps(URL | {"target": A, "chain": CHAIN}), 1)
    with pytest.raises(InvalidInput, match="line 7 is not valid"):
        records.read(json.dumps(line), 7)


def test_a_refusal_of_a_line_is_short_whatever_the_line_has() -> None:
    with pytest.raises(InvalidInput) as refused:
        records.read(orjson.dumps(URL | {"url": "ftp://a.test/" + "x" * 100_000}), 7)
    assert len(str(refused.value)) < 1_000


def test_cookies_and_responses_of_redirects_are_not_loaded() -> None:
    chain = CHAIN | {"cookies": [[A, "a=b"]], "members": "AAAA"}
    kept = records.read(orjson.dumps(URL | {"target": A, "chain": chain}), 1)
    assert isinstance(kept, KeptUrl)
    assert kept.chain is not None
    assert (kept.chain.cookies, kept.chain.members) == ((), b"")


async def test_a_crawl_with_a_value_that_no_store_could_hold_is_refused(bench: Bench) -> None:
    head = orjson.loads((await dumped(bench, await paused(bench)))[0])
    for name, value in (
        ("created_at", "9999-12-31T23:59:59-12:00"),
        ("created_at", "0001-01-01T00:00:00Z"),
        ("started_at", "9999-12-31T23:59:59-12:00"),
        ("finished_at", "0001-01-01T00:00:00Z"),
        ("state_reason", "loading"),
        ("state_reason", "x" * 100_000),
        ("named", ["x" * 100_000]),
        ("named", ["x"] * 100_000),
    ):
        with pytest.raises(InvalidInput, match="line 1 is not valid"):
            records.read(orjson.dumps(head | {"crawl": head["crawl"] | {name: value}}), 1)


async def test_classes_of_responses_that_a_dump_leaves_out_count_zero(bench: Bench) -> None:
    head = orjson.loads((await dumped(bench, await paused(bench)))[0])
    read = records.read(orjson.dumps(head | {"counts": head["counts"] | {"responses": {"2xx": 3}}}), 1)
    assert isinstance(read, records.Head)
    assert read.counts.responses == {"2xx": 3, "3xx": 0, "4xx": 0, "5xx": 0, "none": 0}


@pytest.mark.parametrize(
    "counts",
    [
        {"walked": 2**62},
        {"walked": "P9999999D"},
        {"depth_reached": 2**40},
        {"opened": -1},
        {"skipped": {"a": -1}},
        {"skipped": {str(place): 1 for place in range(2_000)}},
    ],
)
async def test_a_count_that_no_store_could_hold_is_refused(bench: Bench, counts: dict[str, object]) -> None:
    head = orjson.loads((await dumped(bench, await paused(bench)))[0])
    with pytest.raises(InvalidInput, match=r"line 1 is not valid .*(range|between|too many)"):
        records.read(orjson.dumps(head | {"counts": head["counts"] | counts}), 1)


async def test_a_load_replaces_what_a_killed_load_left_behind(bench: Bench, other: Bench) -> None:
    crawl = await paused(bench)
    admin_store = other.app.stores.sql_frontier_admin
    left = await other.database.run(lambda tx: admin_store.receive(tx, crawl.id, crawl.config, [], 5))
    assert left is not None
    with pytest.raises(StateConflict):
        await other.crawls.resume(crawl.id)
    await dump_of(other).load(await dumped(bench, crawl))
    assert recount(other, crawl.id) == recount(bench, crawl.id)


async def test_a_load_that_was_overtaken_leaves_the_other_alone(bench: Bench, other: Bench) -> None:
    crawl = await paused(bench)
    lines = await dumped(bench, crawl)

    async def slow() -> AsyncIterator[bytes]:
        for place, line in enumerate(lines):
            if place == 2:
                await other.sql(f"UPDATE crawl SET state_reason = 'asked' WHERE id = '{crawl.id}'")
            yield line

    with pytest.raises(StateConflict, match="another process"):
        await dump_of(other).load(slow())
    assert (await other.crawls.get(crawl.id)).crawl.state_reason == "asked"


async def test_a_crawl_that_moves_while_it_is_dumped_gives_no_last_line(bench: Bench) -> None:
    crawl = await paused(bench)
    told = []

    async def dump() -> None:
        async for line in dump_of(bench).dump(crawl.id):
            told.append(line)
            if len(told) == 1:
                await bench.crawls.resume(crawl.id)

    with pytest.raises(StateConflict):
        await dump()
    assert b'"end"' not in told[-1]


async def test_a_long_frontier_is_carried_in_batches(
    sql_bench: Bench, sql_other: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.crawl.dump.BATCH", 7)
    crawl = await paused(sql_bench)
    urls = [new_url(crawl, f"/{place}", 1, Fate.SKIPPED_SCOPE if place % 3 else Fate.OPEN) for place in range(60)]
    await sql_bench.database.run(lambda tx: sql_bench.crawls.add_urls(tx, crawl, urls))
    await dump_of(sql_other).load(dump_of(sql_bench).dump(crawl.id))
    there = (await sql_other.crawls.get(crawl.id)).crawl
    assert await sql_other.fates(there) == await sql_bench.fates(crawl)
    assert await sql_other.sql(ORDER.format(there.number)) == await sql_bench.sql(ORDER.format(crawl.number))


async def test_a_host_that_is_not_claimed_is_anybodys(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/1", f"{SITE}/2", workers=2)
    one, two = await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")
    [first] = await one.take(want=1)
    assert await two.take(want=1) == []
    await bench.database.run(lambda tx: frontier_admin_store_of(bench).unclaim(tx, crawl.number, one.fence))
    [second] = await two.take(want=1)
    assert {first.url, second.url} == {f"{SITE}/1", f"{SITE}/2"}
    assert isinstance(one.fence, Fence)


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("touched_after", {"seq": 0, "limit": 10}),
        ("untried_after", {"host": 0, "seq": 0, "limit": 10}),
        ("keys_after", {"key": 0, "chk": 0, "limit": 10}),
        ("last_of_some_fates", {"limit": 10}),
        ("drop_fates_up_to", {"key": 0, "chk": 0}),
        ("taken_count", {}),
        ("kept_url", {"host": 1, "path": "/", "kind": 0, "url": "http://h/"}),
    ],
)
async def test_the_queries_of_the_frontier_admin_use_an_index(
    sqlite_bench: Bench, query: str, values: dict[str, object]
) -> None:
    from shoal.base.database import queries

    found = queries.load("sqlite")[query]
    text = found.sql
    for place, value in enumerate(found.ordered({"crawl": 1, **values}), start=1):
        text = text.replace(f"?{place}", repr(value))
    plan = [row["detail"] for row in await sqlite_bench.sql(f"EXPLAIN QUERY PLAN {text}")]
    assert not [step for step in plan if "SCAN" in step and "chosen" not in step and "frontier_open" not in step]
    assert not [step for step in plan if "TEMP B-TREE" in step and query != "last_of_some_fates"]


async def test_a_dump_leaves_secrets_out_unless_they_are_asked_for(bench: Bench, other: Bench) -> None:
    crawl = await bench.submit(headers={"X-Mine": "hunter2"}, cookies=[{"name": "a", "value": "hunter2"}])
    await bench.crawls.pause(crawl.id)
    with pytest.raises(NotAllowed, match="add --with-secrets"):
        await dumped(bench, crawl)
    whole = [line async for line in dump_of(bench).dump(crawl.id, secrets=True)]
    loaded = await dump_of(other).load(whole)
    assert (await other.crawls.get(loaded)).crawl.config == crawl.config
    await bench.crawls.stop(crawl.id)
    hidden = await dumped(bench, crawl)  # a crawl that has ended needs no secrets
    assert b"hunter2" not in b"".join(hidden)
    await dump_of(other).load(hidden, crawl_id="ended")
    config = orjson.loads(hidden[0])["crawl"]["config"]
    head = orjson.loads(whole[0])
    head["crawl"]["config"] = config
    with pytest.raises(InvalidInput, match="lacks the secrets that the crawl needs to continue"):
        await dump_of(other).load([orjson.dumps(head), *whole[1:]], crawl_id="hidden")


async def test_links_validators_and_details_travel_with_a_dump(bench: Bench, other: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    done = fetched(task)
    assert done.page is not None
    done.page.etag, done.page.links = '"one"', bytes(range(18))
    done.page.detail = packed(Details(titles=["One"]))
    await walker.turn(done)
    loaded = await dump_of(other).load(dump_of(bench).dump(crawl.id))
    number = (await other.crawls.get(loaded)).crawl.number
    [(_, page)] = await other.database.read(lambda tx: other.pages.after(tx, number, 0, 10))
    assert (page.etag, page.links) == ('"one"', bytes(range(18)))
    [(_, detail)], _ = await other.database.read(lambda tx: other.pages.details_after(tx, number, 0, 10))
    assert unpacked(detail) == Details(titles=["One"])


async def test_sitemaps_travel_with_a_dump_and_go_with_their_crawl(bench: Bench, other: Bench) -> None:
    crawl = await bench.submit()
    await bench.database.run(
        lambda tx: bench.crawls.add_urls(tx, crawl, [new_url(crawl, "/map", kind=UrlKind.SITEMAP)])
    )
    walker = await bench.walker(crawl)
    await walker.take()
    page, sitemap = sorted(walker.held, key=lambda task: task.kind)
    record = SitemapRecord(sitemap.url, 5, 200, listed=7, problem="is short")
    await walker.turn(fetched(page), Settled(sitemap, Fate.FETCHED, sitemap=record))
    dumped = [line async for line in dump_of(bench).dump(crawl.id)]
    await dump_of(other).load(dumped)
    assert sorted([line async for line in dump_of(other).dump(crawl.id)]) == sorted(dumped)
    said = await frontier_admin_of(other).explain(crawl.id, sitemap.url, 2083)
    assert str(said.sentence).endswith("and listed 7 URLs, but is short.")
    await frontier_admin_of(other).erase(crawl.id)
    assert await other.number("SELECT count(*) FROM sitemap") == 0

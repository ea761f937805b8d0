"""The ledger: reads all rows of one crawl from a store, and describes each inconsistency.

It trusts nothing of Shoal but its tables: plain SQL over connections of its own, read-only, on one snapshot. What must
hold: nothing is lost (L1), a grant has at most one accepted end (L2), one result and one event for each (L3), attempts
are the counted tries (L4), no lease outlives its time (L5), live keys are unique (L6), counters equal a recount (L7).
"""

import asyncio
import itertools
import json
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg
import xxhash

from tests.support import redis_frontier_rows

Row = dict[str, Any]
T = TypeVar("T")

CLASSES = ("2xx", "3xx", "4xx", "5xx", "none")  # of responses
COUNTED = ("opened", "settled", "pages", "errors", "bytes", *(f"responses_{kind}" for kind in CLASSES))
OPEN, FETCHED, FAILED, QUARANTINED, FETCHED_VIA, FIRST_SKIP = 0, 1, 2, 3, 4, 16
COUNTED_AS_OPEN = {20}  # skips of URLs that are nevertheless in scope: robots
SKIPS = {
    16: "depth",
    17: "scope",
    18: "excluded",
    19: "not_included",
    20: "robots",
    21: "nofollow",
    22: "url_too_long",
    23: "scheme",
    24: "credentials",
    25: "control_characters",
    26: "backslash",
    27: "invalid_url",
    28: "repeating_path",
    29: "too_many_segments",
    30: "host_budget",
    31: "not_in_sitemap",
}
COUNTED_ENDS = ("retried", "failed")  # the ends of a grant that count as an attempt
LOST_ENDS = ("expired", "crashed")
LAST_ENDS = {
    "done": ("done",),
    "failed": ("failed",),
    "expired": LOST_ENDS,
    "cancelled": ("cancelled", "released", *COUNTED_ENDS, *LOST_ENDS),
    "pending": ("released", "retried", *LOST_ENDS),
}
# The current grant of a job is described by the job's own row until it has a history row.
GRANTS = """
    SELECT job_id, epoch, holder, granted_at, settled, ended_at, ended, error, pid FROM job_grant
    UNION ALL
    SELECT j.id, j.lease_epoch, j.lease_holder, j.granted_at, 0, NULL, NULL, NULL, NULL FROM job AS j
    WHERE j.state = 'locked'
          AND NOT EXISTS (SELECT 1 FROM job_grant AS g WHERE g.job_id = j.id AND g.epoch = j.lease_epoch)
"""
LATE_MICROS = 10_000_000  # an expired lease must have been noticed within this time

QUERIES = {
    "now": "SELECT shoal_now() AS now",
    "crawl": "SELECT * FROM crawl WHERE id = $1",
    "counters": "SELECT * FROM crawl_counter WHERE crawl = (SELECT number FROM crawl WHERE id = $1)",
    "skips": "SELECT * FROM crawl_skip WHERE crawl = (SELECT number FROM crawl WHERE id = $1)",
    "fates": "SELECT * FROM fate WHERE crawl = (SELECT number FROM crawl WHERE id = $1)",
    "frontier": "SELECT f.*, h.origin FROM frontier_open AS f JOIN host AS h ON h.number = f.host"
    " WHERE f.crawl = (SELECT number FROM crawl WHERE id = $1)",
    "pages": "SELECT * FROM page WHERE crawl = (SELECT number FROM crawl WHERE id = $1) ORDER BY number",
    "sitemaps": "SELECT * FROM sitemap WHERE crawl = (SELECT number FROM crawl WHERE id = $1)",
    "targets": "SELECT * FROM redirect_target WHERE crawl = (SELECT number FROM crawl WHERE id = $1)",
    "jobs": "SELECT * FROM job WHERE run_id = $1 ORDER BY created_at, id",
    "grants": f"SELECT * FROM ({GRANTS}) AS g WHERE job_id IN (SELECT id FROM job WHERE run_id = $1)"
    " ORDER BY job_id, epoch",
    "live_keys": "SELECT dedupe_key FROM job WHERE finished_at IS NULL AND dedupe_key IS NOT NULL",
    "locked": "SELECT id, lease_holder, lease_until FROM job WHERE state = 'locked'",
    "events": "SELECT * FROM outbox WHERE subject = $1",
}

STORE_QUERIES = {
    "now": QUERIES["now"],
    "jobs": "SELECT * FROM job ORDER BY created_at, id",
    "grants": f"SELECT * FROM ({GRANTS}) AS g ORDER BY job_id, epoch",
    "results": "SELECT job_id, epoch, state FROM result ORDER BY job_id, epoch",
    "events": "SELECT type, subject FROM outbox WHERE type LIKE 'crawl.job.%'",
    "groups": "SELECT * FROM job_group",
}
JOB_EVENTS = {"done": ["crawl.job.completed"], "failed": ["crawl.job.failed"], "expired": ["crawl.job.failed"]}


@dataclass(frozen=True, slots=True)
class Books:
    """Everything that a store knows of one crawl, read on one snapshot."""

    now: int
    crawl: Row
    counters: list[Row]
    skips: list[Row]
    fates: list[Row]
    frontier: list[Row]
    pages: list[Row]
    sitemaps: list[Row]
    targets: list[Row]
    jobs: list[Row]
    grants: list[Row]
    live_keys: list[str]
    locked: list[Row]
    events: list[Row]

    @property
    def counts(self) -> Counter[str]:
        """The counters as Shoal keeps them, summed over the walkers."""
        total: Counter[str] = Counter()
        for row in self.counters:
            total.update({name: int(row[name]) for name in COUNTED})
        return total

    def grants_of(self, job: Row) -> list[Row]:
        return [grant for grant in self.grants if grant["job_id"] == job["id"]]

    @property
    def ends(self) -> list[str | None]:
        """Return how the grants of the crawl's jobs ended, job by job, in order."""
        return [grant["ended"] for grant in self.grants]


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected outcome of a crawl."""

    urls: Collection[str] | None = None  # exactly these pages; None: any pages
    failed: Collection[str] = ()  # pages that may have an error; all others must not
    state: str = "completed"


def read(store_url: str, crawl_id: str, redis_url: str = "") -> Books:
    """All rows of a crawl. The store is not changed. `redis_url`: where its frontier is, if it is in Redis."""
    tables = _read(store_url, QUERIES, crawl_id)
    if not tables["crawl"]:
        raise AssertionError(f"there is no crawl {crawl_id} in the store")
    if tables["crawl"][0]["frontier"] == "redis":
        hosts = _read(store_url, {"hosts": "SELECT number, origin FROM host"})["hosts"]
        tables |= redis_frontier_rows.read(redis_url, crawl_id, {row["number"]: row["origin"] for row in hosts})
    lists = {name: rows for name, rows in tables.items() if name not in ("now", "crawl", "live_keys")}
    keys = [row["dedupe_key"] for row in tables["live_keys"]]
    return Books(now=tables["now"][0]["now"], crawl=tables["crawl"][0], live_keys=keys, **lists)


def violations(books: Books, expected: Expected | None = None) -> list[str]:
    """Return a description of each inconsistency; an empty list if there is none."""
    expected = expected or Expected()
    checks: list[Callable[[Books], Iterator[str]]] = [
        _leases_are_in_time,
        _live_keys_are_unique,
        _jobs_have_their_history,
        _pages_are_stored_once,
        _sitemaps_are_settled,
        _targets_of_redirects_are_whole,
        _frontier_is_what_is_open,
        _counters_equal_a_recount,
    ]
    found = [words for check in checks for words in check(books)]
    if expected.state in ("completed", "failed", "stopped"):
        found += _run_has_ended(books, expected)
    return found + list(_pages_are_the_expected(books, expected))


def check(store_url: str, crawl_id: str, expected: Expected | None = None, redis_url: str = "") -> list[str]:
    """Read all rows and check them."""
    return violations(read(store_url, crawl_id, redis_url), expected)


def open_jobs(store_url: str) -> int:
    """Return how many jobs have not ended."""
    [row] = _read(store_url, {"open": "SELECT count(*) AS number FROM job WHERE finished_at IS NULL"})["open"]
    return int(row["number"])


def holders(store_url: str, kind: str) -> dict[str, str]:
    """Return who holds the locked jobs of a kind."""
    query = "SELECT id, kind, lease_holder FROM job WHERE state = 'locked'"
    rows = _read(store_url, {"locked": query})["locked"]
    return {row["id"]: row["lease_holder"] for row in rows if row["kind"] == kind}


def dispatched(store_url: str, run_id: str) -> Counter[str]:
    """Return how many jobs of a run were dispatched to each node; the empty name is the shared lane."""
    query = "SELECT run_id, dispatch FROM job WHERE dispatch IS NOT NULL"
    rows = _read(store_url, {"jobs": query})["jobs"]
    return Counter(json.loads(row["dispatch"])["node_id"] or "" for row in rows if row["run_id"] == run_id)


def check_jobs(store_url: str) -> list[str]:
    """Every job of the store, whatever it is for: its history, and for a page job its results and its event."""
    tables = _read(store_url, STORE_QUERIES)
    grants: dict[str, list[Row]] = defaultdict(list)
    results: dict[str, list[Row]] = defaultdict(list)
    events: dict[str, list[str]] = defaultdict(list)
    for grant in tables["grants"]:
        grants[grant["job_id"]].append(grant)
    for result in tables["results"]:
        results[result["job_id"]].append(result)
    for event in tables["events"]:
        events[event["subject"]].append(event["type"])
    keys = Counter(job["dedupe_key"] for job in tables["jobs"] if job["finished_at"] is None and job["dedupe_key"])
    found = [f"{count} live jobs have the key {key!r}" for key, count in keys.items() if count > 1]
    for job in tables["jobs"]:
        found += _history_of(job, grants[job["id"]])
        if job["kind"] == "page":
            found += _results_of(job, grants[job["id"]], results[job["id"]], events[job["id"]])
    return found


def _results_of(job: Row, grants: list[Row], results: list[Row], events: list[str]) -> Iterator[str]:
    """Check that every grant with a result has one row, and that the last one has one event."""
    ends = {"done": "done", "retried": "pending", "failed": "failed"}
    wanted = [(grant["epoch"], ends[grant["ended"]]) for grant in grants if grant["ended"] in ends]
    if job["state"] == "expired":  # a dead letter has a result that says so
        wanted.append((job["lease_epoch"], "expired"))
    stored = [(result["epoch"], result["state"]) for result in results]
    if stored != wanted:
        yield f"job {job['id']} has the results {stored}, its grants ended {wanted}"
    if events != JOB_EVENTS.get(job["state"], []):
        yield f"job {job['id']} is {job['state']}, the outbox has {events} of it"


def can_be_written(store_url: str) -> bool:
    """Return whether nobody holds a lock that the end of a lease would have to wait for. Changes nothing."""
    return _sqlite_is_free(store_url) if store_url.startswith("sqlite") else _postgres_is_free(store_url)


def _leases_are_in_time(books: Books) -> Iterator[str]:
    for row in books.locked:
        if row["lease_until"] < books.now - LATE_MICROS:
            late = (books.now - row["lease_until"]) / 1e6
            yield f"job {row['id']} is locked by {row['lease_holder']} though its lease ended {late:.1f} s ago"


def _live_keys_are_unique(books: Books) -> Iterator[str]:
    for key, count in Counter(books.live_keys).items():
        if count > 1:
            yield f"{count} live jobs have the key {key!r}"


def _jobs_have_their_history(books: Books) -> Iterator[str]:
    for job in books.jobs:
        yield from _history_of(job, books.grants_of(job))


def _history_of(job: Row, grants: list[Row]) -> Iterator[str]:
    name = f"job {job['id']}"
    epochs = [grant["epoch"] for grant in grants]
    if epochs != list(range(1, job["lease_epoch"] + 1)):
        yield f"{name} was granted {job['lease_epoch']} times, but its history has the epochs {epochs}"
    open_epochs = [grant["epoch"] for grant in grants if grant["ended"] is None]
    if open_epochs != ([job["lease_epoch"]] if job["state"] == "locked" else []):
        yield f"{name} is {job['state']}, but the grants {open_epochs} have no end"
    if sum(grant["ended"] == "done" for grant in grants) != (job["state"] == "done"):
        yield f"{name} is {job['state']}, but its grants ended {[grant['ended'] for grant in grants]}"
    yield from _last_end_of(job, grants)
    yield from _counted_of(job, grants)
    for earlier, later in itertools.pairwise(grants):
        if earlier["ended_at"] is not None and later["granted_at"] < earlier["ended_at"]:
            yield f"{name} was granted with epoch {later['epoch']} before epoch {earlier['epoch']} had ended"


def _last_end_of(job: Row, grants: list[Row]) -> Iterator[str]:
    allowed = LAST_ENDS.get(job["state"])
    if grants and allowed and grants[-1]["ended"] not in allowed:
        yield f"job {job['id']} is {job['state']}, but its last grant ended {grants[-1]['ended']}"


def _counted_of(job: Row, grants: list[Row]) -> Iterator[str]:
    counted = sum(grant["ended"] in COUNTED_ENDS for grant in grants)
    if job["attempts"] != counted:
        yield f"job {job['id']} has {job['attempts']} attempts, but {counted} of its grants ended in a counted failure"
    lost = sum(grant["ended"] in LOST_ENDS for grant in grants)
    if job["crash_count"] > lost:
        yield f"job {job['id']} has a crash count of {job['crash_count']}, but only {lost} of its grants were lost"


def _pages_are_stored_once(books: Books) -> Iterator[str]:
    for url, count in Counter(page["url"] for page in books.pages).items():
        if count > 1:
            yield f"{url} is stored {count} times"
    for page in books.pages:
        if _key(page) != key_of(page["url"], books.crawl["key_seed"]):
            yield f"{page['url']} is stored under the key of another URL"
    fates = {_key(fate): fate["fate"] for fate in books.fates}
    pages = {_key(page): page for page in books.pages}
    for key, page in pages.items():
        wanted = FAILED if page["status"] is None else FETCHED
        if fates.get(key) != wanted:
            yield f"{page['url']} has the fate {fates.get(key)}, its page says {wanted}"
    known = pages.keys() | {_key(row) for row in (*books.sitemaps, *books.targets)}
    lost = [key for key, fate in fates.items() if fate in (FETCHED, FAILED) and key not in known]
    if lost:
        yield f"{len(lost)} URLs are settled as fetched or failed and have no page"


def _sitemaps_are_settled(books: Books) -> Iterator[str]:
    fates = {_key(fate): fate["fate"] for fate in books.fates}
    for sitemap in books.sitemaps:
        if _key(sitemap) != key_of(f"sitemap:{sitemap['url']}", books.crawl["key_seed"]):
            yield f"the sitemap {sitemap['url']} is stored under the key of another URL"
        if fates.get(_key(sitemap)) not in (FETCHED, FAILED):
            yield f"the sitemap {sitemap['url']} is stored, but has the fate {fates.get(_key(sitemap))}"


def _targets_of_redirects_are_whole(books: Books) -> Iterator[str]:
    """Check that a redirect target names the URL that led to it and is stored only once."""
    fates = {_key(fate): fate["fate"] for fate in books.fates}
    targets = {_key(target): target for target in books.targets}
    pages = {_key(page) for page in books.pages}
    sources = {page["url"] for page in books.pages} | {row["start"] for row in books.frontier}
    for key, target in targets.items():
        if key != key_of(target["url"], books.crawl["key_seed"]):
            yield f"the target {target['url']} is stored under the key of another URL"
        if fates.get(key) not in (OPEN, target["fate"]):
            yield f"the target {target['url']} has the fate {fates.get(key)}, its redirect says {target['fate']}"
        if key in pages:
            yield f"{target['url']} was fetched via {target['via']}, and has a page of its own"
        if target["via"] not in sources:
            yield f"{target['url']} is fetched via {target['via']}, of which nothing is known"
    if lost := [key for key, fate in fates.items() if fate == FETCHED_VIA and key not in targets]:
        yield f"{len(lost)} URLs are settled as fetched via another, and nobody knows which"


def _frontier_is_what_is_open(books: Books) -> Iterator[str]:
    seed = books.crawl["key_seed"]
    urls = [
        ("sitemap:" if row["kind"] else "") + (row["start"] or row["origin"] + row["path"]) for row in books.frontier
    ]
    waiting = Counter(key_of(url, seed) for url in urls)
    doubled = sum(count > 1 for count in waiting.values())
    if doubled:
        yield f"{doubled} URLs are in the frontier more than once"
    kept = {_key(fate) for fate in books.fates if fate["fate"] in (OPEN, QUARANTINED)}
    if missing := kept - set(waiting):
        yield f"{len(missing)} URLs are open or in quarantine, but not in the frontier: they are lost"
    if settled := set(waiting) - kept:
        yield f"{len(settled)} URLs are in the frontier, but settled"
    # A walker that ended normally put its URLs back; the URLs of a lost one are put back by the next walker.
    left = {(grant["job_id"], grant["epoch"]) for grant in books.grants if grant["ended"] in ("done", "released")}
    taken = {(row["job_id"], row["epoch"]) for row in books.frontier if row["job_id"]}
    if stray := taken & left:
        yield f"URLs are still taken by {sorted(stray)}, who have left"


def _counters_equal_a_recount(books: Books) -> Iterator[str]:
    counts = books.counts
    for name, recount in _recount(books).items():
        if counts[name] != recount:
            yield f"the counter {name} is {counts[name]}, a recount gives {recount}"
    kept: Counter[str] = Counter()
    for row in books.skips:
        kept[row["reason"]] += int(row["count"])
    kept = +kept  # a skip that was undone leaves a count of zero
    skipped = Counter(SKIPS.get(fate["fate"], "?") for fate in books.fates if fate["fate"] >= FIRST_SKIP)
    if kept != skipped:
        yield f"the skips are {dict(kept)}, a recount gives {dict(skipped)}"


def _recount(books: Books) -> dict[str, int]:
    by_fate = Counter(fate["fate"] for fate in books.fates)
    ever_open = sum(count for fate, count in by_fate.items() if fate < FIRST_SKIP or fate in COUNTED_AS_OPEN)
    return {
        "opened": ever_open,
        "settled": ever_open - by_fate[OPEN],
        "pages": sum(page["status"] is not None for page in books.pages),
        "errors": sum(page["error_code"] is not None for page in books.pages),
        "bytes": sum(page["bytes"] for page in books.pages if page["status"] != 304),
        **{f"responses_{kind}": sum(_kind(page["status"]) == kind for page in books.pages) for kind in CLASSES},
    }


def _kind(status: int | None) -> str:
    return "none" if status is None else f"{status // 100}xx"


def _run_has_ended(books: Books, expected: Expected) -> Iterator[str]:
    state = books.crawl["state"]
    if state != expected.state:
        yield f"the crawl is {state} ({books.crawl['state_reason']}), not {expected.state}"
    for job in books.jobs:
        if job["finished_at"] is None or job["lease_holder"] is not None:
            yield f"job {job['id']} is {job['state']} though the crawl should be over; held by {job['lease_holder']}"
    left = sum(fate["fate"] == OPEN for fate in books.fates)
    if left and books.crawl["state_reason"] == "drained":
        yield f"the crawl is drained, but {left} URLs are in its frontier"
    done = sum(job["state"] == "done" for job in books.jobs)
    if expected.state == "completed" and not done:
        yield "the crawl completed without a job that is done"
    events = Counter(event["type"] for event in books.events)
    wanted = Counter({"crawl.started": 1, f"crawl.{expected.state}": 1})
    if events != wanted:
        yield f"the outbox has {dict(events)}, not {dict(wanted)}"


def _pages_are_the_expected(books: Books, expected: Expected) -> Iterator[str]:
    stored = {page["url"] for page in books.pages}
    if expected.urls is not None:
        if missing := set(expected.urls) - stored:
            yield f"{len(missing)} pages are missing: {sorted(missing)[:5]}"
        if strange := stored - set(expected.urls):
            yield f"{len(strange)} pages were not expected: {sorted(strange)[:5]}"
    for page in books.pages:
        if page["error_code"] is not None and page["url"] not in expected.failed:
            yield f"{page['url']} is innocent and failed: {page['error_code']} ({page['error_message']})"


def key_of(url: str, key_seed: int) -> tuple[int, int]:
    """The key of a URL in a crawl, computed independently of Shoal's code."""
    digest = xxhash.xxh3_128_digest(url.encode(), key_seed)
    return int.from_bytes(digest[:8], "little", signed=True), int.from_bytes(digest[8:12], "little", signed=True)


def _key(row: Row) -> tuple[int, int]:
    return row["key"], row["chk"]


def _read(store_url: str, queries: Mapping[str, str], crawl_id: str = "") -> dict[str, list[Row]]:
    reader = _read_sqlite if store_url.startswith("sqlite") else _read_postgres
    return reader(store_url, queries, crawl_id)


def _read_sqlite(store_url: str, queries: Mapping[str, str], crawl_id: str) -> dict[str, list[Row]]:
    path = store_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, timeout=10)) as connection:
        connection.row_factory = sqlite3.Row
        connection.create_function("shoal_now", 0, lambda: time.time_ns() // 1000)
        connection.execute("BEGIN")
        return {name: _rows(connection, query, crawl_id) for name, query in queries.items()}


def _rows(connection: sqlite3.Connection, query: str, crawl_id: str) -> list[Row]:
    values = (crawl_id,) if "$1" in query else ()
    return [dict(row) for row in connection.execute(query.replace("$1", "?1"), values)]


def _read_postgres(store_url: str, queries: Mapping[str, str], crawl_id: str) -> dict[str, list[Row]]:
    async def ask() -> dict[str, list[Row]]:
        connection = await asyncpg.connect(store_url, timeout=10)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return {name: await rows(connection, query) for name, query in queries.items()}
        finally:
            await connection.close()

    async def rows(connection: Any, query: str) -> list[Row]:
        values = (crawl_id,) if "$1" in query else ()
        return [dict(row) for row in await connection.fetch(query, *values)]

    return _in_thread(ask)


def _sqlite_is_free(store_url: str) -> bool:
    path = store_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0.1)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True


def _postgres_is_free(store_url: str) -> bool:
    async def ask() -> bool:
        connection = await asyncpg.connect(store_url, timeout=10)
        try:
            async with connection.transaction():
                await connection.execute("SET LOCAL lock_timeout = '100ms'")
                await connection.fetch("SELECT id FROM crawl FOR UPDATE")
                await connection.fetch("SELECT id FROM job FOR UPDATE")
                return True
        except asyncpg.LockNotAvailableError:
            return False
        finally:
            await connection.close()

    return _in_thread(ask)


def _in_thread(ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    # A thread with a loop of its own: the loop of the test, if it has one, stays untouched.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, ask()).result()

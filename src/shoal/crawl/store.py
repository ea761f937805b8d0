"""The store of crawls and their counters, and the contract of frontiers."""

import secrets
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

import orjson
from msgspec import Struct, field, structs
from msgspec.structs import replace

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.ids import CrawlId
from shoal.base.url import Url
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig, FrontierDriver
from shoal.crawl.frontier.fates import Fate, Trap, TrapState
from shoal.crawl.frontier.values import (
    Added,
    FrontierChange,
    FrontierTask,
    NewUrl,
    RedirectState,
    Settled,
    Settlement,
    SitemapRecord,
    Taken,
    TrapPoints,
    UrlKind,
    WalkerBatch,
    key_of,
)
from shoal.crawl.lifecycle.failed_urls import FailedSeed
from shoal.crawl.states import CrawlMove, CrawlState
from shoal.hosts.rate import HeldHost, HostDelay, SlotTiming
from shoal.pages.page import CLASSES, ResponseClass
from shoal.pages.store import LAST_NUMBER, SCAN, DroppedPage
from shoal.queue.job import Fence

RESPONSES: dict[ResponseClass, str] = {kind: f"responses_{kind}" for kind in CLASSES}
"""The column of each response class."""
SUMS = ("opened", "settled", "pages", "errors", "bytes", "not_modified", "bytes_saved", "stayed_empty", "depth_reached")

T = TypeVar("T")

OUTSIDE = ""
"""The counter for changes that no walker made."""


class CrawlFilter(Struct, frozen=True):
    """A filter for crawls; a crawl must match every field that is set."""

    state: str | None = None
    project: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    host: str | None = None  # the host of one of the seeds
    text: str | None = None  # text in the crawl's id or options


class CrawlStore:
    """The store of crawls, their counters and their sitemaps. Each walker has its own row of counters, so that walkers
    do not wait for each other."""

    async def insert(
        self,
        tx: Tx,
        crawl_id: CrawlId,
        config: CrawlConfig,
        named: list[str],
        state: CrawlState,
        key_seed: int | None = None,
        frontier: FrontierDriver = "sql",
        policy_id: str | None = None,
    ) -> Crawl | None:
        """Store a crawl; return None if the id is taken. Without a key seed, the crawl gets a random one. Pass the key
        seed of an earlier crawl if a URL must have the same key in both crawls. A frontier outside the database gets a
        generation."""
        row = await tx.one(
            "insert_crawl",
            id=crawl_id,
            state=state,
            project=config.project,
            config=config.text(),
            named=orjson.dumps(named).decode(),
            priority=config.priority,
            key_seed=secrets.randbits(62) if key_seed is None else key_seed,
            policy_id=policy_id,
        )
        if row is None or frontier == "sql":
            return None if row is None else _crawl(row)
        crawl = _crawl(row)
        await tx.execute("keep_outside", crawl=crawl.number, driver=frontier)
        await tx.execute("insert_crawl_frontier", crawl=crawl.number, generation=secrets.token_hex(8))
        return replace(crawl, frontier=frontier)

    async def keep_seeds(self, tx: Tx, crawl_id: str, config: CrawlConfig, named: list[str]) -> Crawl:
        """Replace the options, and the seeds that the user named, of a crawl that has no walker. Call under the crawl's
        lock."""
        row = await tx.one("keep_seeds", id=crawl_id, config=config.text(), named=orjson.dumps(named).decode())
        assert row is not None
        return _crawl(row)

    async def get(self, tx: Tx, crawl_id: str) -> Crawl | None:
        row = await tx.one("crawl", id=crawl_id)
        return None if row is None else _crawl(row)

    async def ids(self, tx: Tx, text: str) -> list[str]:
        """Return the crawl ids that a text may abbreviate: for `last`, the newest id; otherwise up to two ids that
        begin with the text. Reads the ids of all crawls."""
        if text == "last" and (newest := await tx.value("newest_crawl_id")) is not None:
            return [newest]
        return [row["id"] for row in await tx.all("crawl_ids_like", text=text, length=len(text))]

    async def lock(self, tx: Tx, crawl_id: str) -> Crawl | None:
        """Return the crawl, locked until this transaction ends. Take this lock before any other."""
        row = await tx.one("lock_crawl", id=crawl_id)
        return None if row is None else _crawl(row)

    async def page_of(self, tx: Tx, after: int | None, limit: int, wanted: CrawlFilter, floor: int = 0) -> list[Crawl]:
        """Return crawls, newest first; `after` is the number of the last crawl on the previous page. Crawls with a
        lower number than `floor` are ignored."""
        labels = orjson.dumps(wanted.labels).decode() if wanted.labels else None
        values = {"before": after, "limit": limit, "state": wanted.state, "project": wanted.project, "labels": labels}
        values |= {
            "host": None if wanted.host is None else wanted.host.lower(),
            "text": None if wanted.text is None else wanted.text.lower(),
            "floor": floor,
        }
        return [_crawl(row) for row in await tx.all("newest_crawls", **values)]

    async def count(self, tx: Tx) -> dict[str, int]:
        """Count the crawls by state."""
        return {row["state"]: int(row["count"]) for row in await tx.all("count_crawls")}

    async def live_counts(self, tx: Tx) -> dict[int, tuple[int, int]]:
        """Return the numbers of pages and errors of every running crawl, by crawl number."""
        rows = await tx.all("live_counts")
        return {row["number"]: (int(row["pages"]), int(row["errors"])) for row in rows}

    async def move(self, tx: Tx, crawl_id: str, move: CrawlMove) -> bool:
        """Change the state; return False if the move is not allowed from the current one."""
        values = {"id": crawl_id, "state": move.to, "reason": move.reason, "sources": move.sources}
        return await tx.execute("move_crawl", **values) == 1

    async def counts(self, tx: Tx, number: int) -> Counts:
        """Return the sums over all walkers. One statement reads them, so `drained` is exact."""
        row = await tx.one("crawl_counts", crawl=number)
        skips = await tx.all("crawl_skips", crawl=number)
        assert row is not None
        return _counts(row, {skip["reason"]: int(skip["count"]) for skip in skips if skip["count"]})

    async def last_number(self, tx: Tx) -> int:
        """Return the number of the newest crawl; 0 if there is none."""
        return int(await tx.value("last_crawl") or 0)

    async def counts_of(self, tx: Tx, numbers: list[int]) -> dict[int, Counts]:
        """Return the counts of several crawls."""
        rows = {row["crawl"]: row for row in await tx.all("counts_of_crawls", crawls=numbers)}
        skips: dict[int, dict[str, int]] = {number: {} for number in numbers}
        for row in await tx.all("skips_of_crawls", crawls=numbers):
            if row["count"]:
                skips[row["crawl"]][row["reason"]] = int(row["count"])
        return {number: _counts(rows[number], skips[number]) if number in rows else Counts() for number in numbers}

    async def first_failure(self, tx: Tx, number: int) -> tuple[str, str] | None:
        """Return the URL and the error message of the first page that failed. This reads all pages of the crawl, in
        parts, until it finds one, so call it only for crawls without a good page."""
        after: int | None = 0
        while after is not None:
            last = await tx.value("page_number_after", crawl=number, number=after, skip=SCAN - 1)
            upto = LAST_NUMBER if last is None else last
            row = await tx.one("first_failure", crawl=number, number=after, upto=upto)
            if row is not None:
                return row["url"], row["error_message"]
            after = last
        return None

    async def failed_seeds(self, tx: Tx, number: int, seeds: list[tuple[Url, tuple[int, int]]]) -> list[FailedSeed]:
        """Return the given seeds that ended in 4xx, 5xx or an error, or were skipped, in the given order. Each seed is
        given with its key. The other seeds returned a page or are still open."""
        rows = await tx.batch("url_outcomes", [(number, *key) for _, key in seeds])
        outcomes = {(row["key"], row["chk"]): row for row in rows}
        return [
            FailedSeed(url, row["status"], row["error_code"], row["error_message"])
            if row["has_page"]
            else FailedSeed(url, None, Fate(row["fate"]).word, f"skipped ({Fate(row['fate']).word})")
            for url, key in seeds
            if (row := outcomes.get(key)) is not None
            and ((row["status"] is None or row["status"] >= 400) if row["has_page"] else Fate(row["fate"]).skipped)
        ]

    async def now(self, tx: Tx) -> int:
        """Return the time by the store's clock, in microseconds."""
        return int(await tx.value("now"))

    async def control(self, tx: Tx, crawl_id: str) -> tuple[CrawlState, int]:
        """Return the values that walkers poll: the crawl's state, and the time when its options were last changed."""
        row = await tx.one("crawl_control", id=crawl_id)
        assert row is not None
        return CrawlState(row["state"]), row["changed_at"]

    async def add_counts(self, tx: Tx, number: int, counter: str, counts: Counts) -> None:
        """Add to the counters of a crawl. `counter` is `OUTSIDE` or the job of the walker that counts: each walker has
        its own counters, so that walkers do not wait for each other."""
        skips = [(number, counter, word, more) for word, more in sorted(counts.skipped.items()) if more]
        await tx.many("add_skips", skips)
        sums = {
            "opened": counts.opened,
            "settled": counts.settled,
            "pages": counts.pages,
            "errors": counts.errors,
            "bytes": counts.bytes,
            "not_modified": counts.not_modified,
            "bytes_saved": counts.bytes_saved,
            "stayed_empty": counts.stayed_empty,
            "depth": counts.depth_reached,
            "walked": span(counts.walked),
            **{RESPONSES[kind]: more for kind, more in counts.responses.items()},
        }
        if any(sums.values()):
            await tx.execute("add_counts", crawl=number, holder=counter, **sums)

    async def keep_sitemaps(self, tx: Tx, number: int, sitemaps: list[tuple[tuple[int, int], SitemapRecord]]) -> int:
        """Store sitemap records, each under its key and check; return the number of new records."""
        new = 0
        for (key, chk), record in sitemaps:
            new += await tx.execute("insert_sitemap", crawl=number, key=key, chk=chk, **structs.asdict(record))
        return new

    async def sitemap(self, tx: Tx, number: int, key: tuple[int, int]) -> SitemapRecord | None:
        """Return the record of a sitemap; None if the sitemap is unknown or was not fetched yet."""
        row = await tx.one("sitemap_of", crawl=number, key=key[0], chk=key[1])
        return None if row is None else SitemapRecord(**dict(row))

    async def landed(self, tx: Tx, number: int, keys: list[int]) -> list[str]:
        """Return the final URLs of the given pages. Only pages count that redirected and are HTML, or XML (which may be
        a sitemap)."""
        return [row["final_url"] for row in await tx.all("landed", crawl=number, keys=keys)]

    async def urls_of_dropped(self, tx: Tx, number: int, pages: list[DroppedPage]) -> list[NewUrl]:
        """Return the URLs of these pages. Each comes with the key of the sitemap that listed it or, if there is none,
        of the page that linked to it."""
        seed = await tx.value("key_seed", crawl=number)
        parents = {page.parent: Url(page.parent) for page in pages if page.parent}
        maps = {parent: key_of(url, seed, UrlKind.SITEMAP)[0] for parent, url in parents.items()}
        known = {row["key"] for row in await tx.all("sitemaps_among", crawl=number, keys=sorted(maps.values()))}
        keys = {parent: key if key in known else key_of(parents[parent], seed)[0] for parent, key in maps.items()}
        return [
            NewUrl(page.key, page.chk, page.url, page.depth, Fate.OPEN, keys[page.parent] if page.parent else None)
            for page in pages
        ]

    async def change(self, tx: Tx, crawl_id: str, config: CrawlConfig) -> None:
        """Change the crawl's options; each change gets a new change time. Call under the crawl's lock."""
        await tx.execute("change_crawl", id=crawl_id, config=config.text(), priority=config.priority)


class HostRate(HostDelay, frozen=True):
    """The rate limit for one host. Delays that the host itself requests, and holds on the host, take precedence."""

    probe: bool = False  # whether to take only one URL from a host whose robots.txt is not known yet
    per_host: int | None = None  # maximum pages per host
    walkers: int = 1  # number of walkers that share the hosts
    timing: SlotTiming | None = None  # slot timing of the process that will use the slots


class AdmissionChecks(Protocol):
    """The checks a walker makes on URLs before it fetches them."""

    def skip_fate(self, task: FrontierTask) -> Fate | None:
        """Return the fate of a URL that must not be fetched; None if it may be."""
        ...

    def knows(self, origin: str) -> bool:
        """Return whether the robots.txt of this host is known, so that the result of `skip_fate` is final."""
        ...


class FrontierStore(Protocol):
    """The URLs of crawls: which URLs are known, which ones wait, and which walker has taken them.

    A frontier store holds neither pages nor crawl counters: calls return the changes they made, and the caller stores
    pages and counters in the same transaction. A walker's calls run under its fence. All calls work on batches.

    If a frontier is kept outside the database (`Crawl.settles_apart`), its changes take effect immediately, whether or
    not the transaction commits, and its driver counts them itself. For such a frontier, a walker first commits its
    pages, counting only those that were not stored yet, and then settles their URLs. If the walker dies in between, the
    URLs are taken and fetched again.
    """

    driver: FrontierDriver

    async def begin(self, tx: Tx, crawl: Crawl) -> None:
        """Begin the frontier of a new crawl, in the transaction that stores the crawl."""
        ...

    async def add(self, tx: Tx, crawl: int, urls: list[NewUrl]) -> Added:
        """Add the URLs that are not known yet. URLs with the fate OPEN then wait to be taken. Idempotent."""
        ...

    async def take(
        self,
        tx: Tx,
        crawl: int,
        fence: Fence,
        want: int,
        in_flight: int,
        rate: HostRate,
        admission: AdmissionChecks | None = None,
    ) -> Taken:
        """Take up to `want` URLs that are due: from the hosts that waited longest, shallow URLs first. An empty result
        does not mean that the frontier is empty. URLs that must not be fetched are returned in addition to those `want`
        URLs, and use no slot."""
        ...

    async def settle(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch, *, leaves: bool = False) -> Settlement:
        """Settle the URLs of the batch, or return them to the frontier, and add the URLs found on their pages. URLs
        that this walker does not hold, or no longer holds, are ignored and are not in the settlement. `leaves`: the
        same commit will return all other URLs that this walker holds. A redirect has one of three outcomes: it
        continues, and its target is reserved for it; or it ends with its page; or it waits until the URL that already
        has that target has ended (see `PendingRedirect`)."""
        ...

    async def prepare(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch) -> list[Settled]:
        """Decide which redirects of the batch continue, and return the outcomes of the URLs that this walker still
        holds. Only the pages of these URLs may be committed before `settle`. Call this method for frontiers outside the
        database."""
        ...

    async def score_traps(self, tx: Tx, crawl: int, points: dict[str, TrapPoints]) -> dict[str, Url]:
        """Add points to patterns. Among the patterns that have enough points, quarantine the narrowest ones, and return
        them, each with a sample URL. Scores are never below 0. Walkers that add points to the same pattern wait for
        each other."""
        ...

    async def quarantine(self, tx: Tx, crawl: int, traps: dict[str, Url]) -> list[str]:
        """Quarantine these patterns, each with a sample URL, except patterns that are already known or whose sample is
        already in quarantine. Return the newly quarantined patterns."""
        ...

    async def traps(self, tx: Tx, crawl: int) -> list[Trap]:
        """Return every pattern that was ever quarantined."""
        ...

    async def locked_traps(self, tx: Tx, crawl: int, patterns: Iterable[str]) -> dict[str, TrapState]:
        """Return the states of these patterns. None of the patterns can be released before this transaction ends."""
        ...

    async def free(self, tx: Tx, crawl: int, pattern: str) -> FrontierChange | None:
        """Release a pattern so that its URLs wait again; return the change, or None if it is not in quarantine."""
        ...

    async def reopen(self, tx: Tx, crawl: int, urls: list[NewUrl], answered: list[Url]) -> FrontierChange:
        """Reopen closed URLs as if they had never been tried. `answered`: the URLs that returned pages, which no longer
        count towards the page limits of their hosts. Call under the crawl's lock."""
        ...

    async def redirect_states(self, tx: Tx, crawl: int, urls: Iterable[Url]) -> dict[Url, RedirectState]:
        """Return the states of pages that redirects may lead to. Unknown URLs are omitted."""
        ...

    async def release(self, tx: Tx, crawl: int, fence: Fence) -> int:
        """Put all URLs that this walker still holds back into the frontier; return their number."""
        ...

    async def holds(self, tx: Tx, crawl: int, fence: Fence) -> bool:
        """Return whether this walker holds URLs that are not settled. Exact only under the lock of its job."""
        ...

    async def taken(self, tx: Tx, crawl: int) -> int:
        """Count the URLs that walkers hold. Exact only under the crawl's lock."""
        ...

    async def recover(self, tx: Tx, crawl: int) -> int:
        """Put the URLs of walkers that lost their lease back into the frontier; return the number of these URLs."""
        ...

    async def held_hosts(self, tx: Tx, crawl: int, most: int) -> list[HeldHost]:
        """Return up to `most` hosts that are on hold while URLs wait for them, the longest hold first."""
        ...

    async def shallowest(self, tx: Tx, crawl: int) -> int | None:
        """Return the depth of the shallowest URL that is open and not in quarantine; None if there is none. Reads every
        host of the crawl."""
        ...

    async def next_in_seconds(self, tx: Tx, crawl: int, job_id: str = "") -> float | None:
        """Return the time until a waiting URL becomes due; None if no URL waits. If a job is given, count only hosts
        that are unclaimed or claimed by that job's walker."""
        ...


def _crawl(row: Any) -> Crawl:
    values = {name: row[name] for name in Crawl.__struct_fields__}
    values["state"] = CrawlState(values["state"])
    values["config"] = CrawlConfig.stored(values["config"])
    values["named"] = frozenset(orjson.loads(values["named"]))
    return Crawl(**values)


def _counts(row: Any, skipped: dict[str, int]) -> Counts:
    return Counts(
        **{name: int(row[name]) for name in SUMS},
        walked=timedelta(microseconds=int(row["walked"])),
        responses={kind: int(row[column]) for kind, column in RESPONSES.items()},
        skipped=skipped,
    )


class ByDriver(Generic[T]):
    """A pair of implementations, one for each frontier driver. A crawl keeps the driver that it was started with."""

    def __init__(self, sql: T, redis: T | None = None) -> None:
        """`redis`: None if this process has no Redis server configured. The process then finds no URLs in the frontier
        of a crawl in Redis, and its walkers refuse such a crawl."""
        self.sql = sql
        self.redis = redis

    def of(self, crawl: Crawl) -> T:
        return self.redis if crawl.frontier == "redis" and self.redis is not None else self.sql

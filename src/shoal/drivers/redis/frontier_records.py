"""The format of a frontier in Redis: the keys of a crawl, and the records of its URLs."""

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from shoal.base.database import Tx
from shoal.base.errors import BackendUnavailable, FrontierLost, InvalidInput, StateConflict
from shoal.base.url import Url, origin
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import SUSPECT_FROM, FrontierTask, NewUrl, RedirectTarget, UrlKind, key_of
from shoal.drivers.redis.connection import RedisClient, Value, code_of
from shoal.queue.job import Fence
from shoal.web.page_fetcher import RedirectChain

DEPTH_BITS = 40  # number of low bits of a queue position; the depth is in the bits above
DEEPEST = 32_767
KINDS = tuple(UrlKind)
_KEY = struct.Struct("<qi")
_PARENT = struct.Struct("<q")
_HAS_PARENT = 2  # flag beside the kind, in the first byte of an entry

pack_key = _KEY.pack


def unpack_key(packed: bytes) -> tuple[int, int]:
    key, chk = _KEY.unpack(packed)
    return key, chk


def pack_keys(urls: Sequence[NewUrl]) -> list[bytes]:
    return list(map(_KEY.pack, [url.key for url in urls], [url.chk for url in urls]))


def depth_word(depth: int) -> str:
    return f"{min(depth, DEEPEST):04x}"


def seq_word(seq: int) -> str:
    """Return a position in the form that the scripts use: as text that sorts like the number."""
    return f"{seq:014x}"


def depth_at(seq: int) -> int:
    return seq >> DEPTH_BITS


def entry_of(path: str, kind: int, parent: int | None) -> bytes:
    """Return the queue entry of a new URL, for the queue of its host and depth."""
    if parent is None:
        return bytes((kind,)) + path.encode()
    return bytes((kind | _HAS_PARENT,)) + _PARENT.pack(parent) + path.encode()


class WaitingUrl(Struct, array_like=True):
    """A URL with all that is known about it, as in a record. `host` and `path` are the place of the next request;
    `start` is the original URL if redirects led to that place."""

    host: int
    path: str
    kind: int = 0
    parent: int | None = None
    attempts: int = 0
    crashes: int = 0
    start: str | None = None
    chain: RedirectChain | None = None

    def url(self, host_origin: str) -> Url:
        return Url(self.start or host_origin + self.path)

    def key(self, host_origin: str, key_seed: int) -> tuple[int, int]:
        return key_of(self.url(host_origin), key_seed, KINDS[self.kind])

    def task(self, host_origin: str, key_seed: int, seq: int) -> FrontierTask:
        key, chk = self.key(host_origin, key_seed)
        task = FrontierTask(
            key,
            chk,
            self.host,
            depth_at(seq),
            seq,
            self.url(host_origin),
            None,
            self.attempts,
            self.crashes,
            KINDS[self.kind],
        )
        if self.start is not None:
            task.target, task.chain = Url(host_origin + self.path), self.chain
        return task


_encode = Encoder().encode
_decode = Decoder(WaitingUrl).decode


def read_entry(host: int, entry: bytes) -> WaitingUrl:
    first = entry[0]
    if first & _HAS_PARENT:
        return WaitingUrl(host, entry[9:].decode(), first & 1, _PARENT.unpack_from(entry, 1)[0])
    return WaitingUrl(host, entry[1:].decode(), first & 1)


def record_of(key: bytes, waiting: WaitingUrl) -> bytes:
    flags = (waiting.start is not None) + 2 * (waiting.crashes >= SUSPECT_FROM)
    return key + b"%d" % flags + _encode(waiting)


def read_record(record: bytes) -> WaitingUrl:
    return _decode(record[13:])


def pack_target(fate: Fate, via: bytes, target: str) -> bytes:
    """Return the stored form of a redirect target."""
    return b"%02d%08x" % (int(fate), len(via)) + via + target.encode()


def read_target(stored: bytes) -> RedirectTarget:
    end = 10 + int(stored[2:10], 16)
    return RedirectTarget(stored[end:].decode(), stored[10:end].decode(), Fate(int(stored[:2])))


def waiting_of(task: FrontierTask, parent: int | None, *, attempts: int, target: Url | None = None) -> WaitingUrl:
    """Return the record that puts a taken URL back among the waiting ones; `target`: the URL to which a redirect has
    just led."""
    at = target or task.at
    redirected = task.url if target is not None or task.target is not None else None
    return WaitingUrl(
        task.host,
        at[len(origin(at)) :],
        int(task.kind),
        parent,
        attempts,
        task.crashes,
        redirected,
        task.chain,
    )


ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
COUNTER = "frontier"
"""The row of a crawl's counters that mirrors the counters in Redis. Other rows are named after jobs."""


@lru_cache
def prefix(crawl_id: str) -> str:
    """Return the common prefix of all keys of a crawl. The braces are part of the keys: they make a cluster put all
    these keys into one slot."""
    if not ID.fullmatch(crawl_id):
        raise InvalidInput("id", f"{crawl_id[:80]!r} cannot be part of a key", "use 1 to 64 letters, digits and `_.-`")
    return f"scan:{{{crawl_id}}}:"


def walker_name(fence: Fence) -> str:
    return f"{fence.job_id}:{fence.epoch}"


@dataclass(frozen=True, slots=True)
class CrawlPlace:
    """The frontier of a crawl on a server: runs its scripts, and copies the counters they return into the database.
    `now` is the database's clock."""

    client: RedisClient
    number: int
    id: str
    key_seed: int
    generation: str
    rebuilt_by: str | None
    now: int

    def key(self, name: str) -> str:
        return f"{prefix(self.id)}{name}"

    async def run(self, script: str, *arguments: Value) -> list[Any]:
        """Run a script; return its result without the state."""
        given = (self.generation, self.now, *arguments)
        with self._wrong_type_is_loss():
            state, *result = await self.client.script(f"frontier_{script}", [self.key("generation")], given)
        if state == b"OK":
            return list(result)
        if state == b"STALE":
            raise BackendUnavailable(self.client.name, "it forgot what was written last", "start over")
        if state == b"FOREIGN" and script == "begin":
            fix = "choose another id, or another number of a Redis database in REDIS_URL"
            raise StateConflict("crawl", self.id, "in this Redis already, from another store", "be started", fix)
        raise FrontierLost(self.id, "Redis does not have it any more", self.generation)

    async def command(self, command: str, name: str, *words: Value) -> Any:
        """Send one command about a key of the crawl."""
        with self._wrong_type_is_loss():
            return await self.client.command(command, self.key(name), *words)

    async def change(self, tx: Tx, script: str, *arguments: Value) -> list[Any]:
        """Run a script that changes counters, and mirror them."""
        *result, totals = await self.run(script, *arguments)
        await self.mirror(tx, totals)
        return result

    async def mirror(self, tx: Tx, totals: Sequence[bytes]) -> None:
        """Copy the counters into the database, unless the database has newer ones."""
        values = {totals[at]: int(totals[at + 1]) for at in range(0, len(totals), 2)}
        if b"opened" not in values or b"settled" not in values:
            raise FrontierLost(self.id, "Redis does not have its counters any more", self.generation)
        crawl = self.number
        if not await tx.execute("raise_frontier_version", crawl=crawl, version=values[b"version"]):
            return
        counts = {"opened": values[b"opened"], "settled": values[b"settled"]}
        await tx.execute("set_frontier_counts", crawl=crawl, holder=COUNTER, **counts)
        skips = [
            (crawl, COUNTER, Fate(int(name[5:])).word, value)
            for name, value in sorted(values.items())
            if name.startswith(b"skip:")
        ]
        await tx.many("set_frontier_skips", skips)

    @contextmanager
    def _wrong_type_is_loss(self) -> Iterator[None]:
        try:
            yield
        except BackendUnavailable as error:
            if isinstance(error.__cause__, Exception) and code_of(error.__cause__) == "WRONGTYPE":
                raise FrontierLost(self.id, "one of its keys in Redis has the wrong type", self.generation) from error
            raise


async def place_of(
    client: RedisClient, tx: Tx, crawl: int, *, rebuilding: bool = False, attaching: str = ""
) -> CrawlPlace:
    """Return the place of a crawl's frontier. While a walker rebuilds the frontier, other walkers wait. If that walker
    died, or if it is the walker that attaches now, the rebuilding was interrupted, and the frontier is lost."""
    row = await tx.one("frontier_place", crawl=crawl)
    assert row is not None
    place = CrawlPlace(client, crawl, row["id"], row["key_seed"], row["generation"], row["rebuilt_by"], row["now"])
    if place.rebuilt_by is not None and not rebuilding:
        if place.rebuilt_by == attaching or not await live_walkers(tx, [place.rebuilt_by]):
            raise FrontierLost(place.id, "its rebuilding was interrupted", place.generation)
        raise BackendUnavailable("the frontier", "it is being rebuilt", "wait until that is done")
    return place


async def live_walkers(tx: Tx, names: Sequence[str]) -> set[str]:
    """Return the walkers among these whose lease the database still knows."""
    if not names:
        return set()
    rows = await tx.all("locked_epochs", ids=sorted({name.rpartition(":")[0] for name in names}))
    live = {f"{row['id']}:{row['lease_epoch']}" for row in rows}
    return live & set(names)

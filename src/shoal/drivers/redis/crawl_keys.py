"""Access to the frontier of one crawl in Redis: the names of its keys, its scripts, the check that Redis still has it,
and the copy of its counters in the database."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shoal.base.database import Tx
from shoal.base.errors import BackendUnavailable, FrontierLost, InvalidInput, StateConflict
from shoal.crawl.frontier.fates import Fate
from shoal.drivers.redis.connection import RedisClient, Value
from shoal.drivers.redis.errors import code_of
from shoal.queue.job import Fence

ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
COUNTER = "frontier"
"""The counter of a crawl that mirrors those in Redis. Other counters are named after jobs."""


@dataclass(frozen=True, slots=True)
class CrawlPlace:
    """A crawl as the driver needs it. `now` is the database's clock."""

    number: int
    id: str
    key_seed: int
    generation: str
    rebuilt_by: str | None
    now: int

    def key(self, name: str) -> str:
        return f"{prefix(self.id)}{name}"


@lru_cache
def prefix(crawl_id: str) -> str:
    """Return how all keys of a crawl begin. The braces are part of the keys: a cluster puts them into one slot."""
    if not ID.fullmatch(crawl_id):
        raise InvalidInput("id", f"{crawl_id[:80]!r} cannot be part of a key", "use 1 to 64 letters, digits and `_.-`")
    return f"scan:{{{crawl_id}}}:"


def walker_name(fence: Fence) -> str:
    return f"{fence.job_id}:{fence.epoch}"


class CrawlKeys:
    """Runs the frontier's scripts and copies the counters they return into the database."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def place(self, tx: Tx, crawl: int, *, rebuilding: bool = False, attaching: str = "") -> CrawlPlace:
        """Return where the frontier of a crawl is. While a walker rebuilds it, others wait. If that walker died, or is
        the one that attaches, its rebuilding was interrupted, and the frontier is lost."""
        row = await tx.one("frontier_place", crawl=crawl)
        assert row is not None
        place = CrawlPlace(crawl, row["id"], row["key_seed"], row["generation"], row["rebuilt_by"], row["now"])
        if place.rebuilt_by is not None and not rebuilding:
            if place.rebuilt_by == attaching or not await live_walkers(tx, [place.rebuilt_by]):
                raise FrontierLost(place.id, "its rebuilding was interrupted", place.generation)
            raise BackendUnavailable("the frontier", "it is being rebuilt", "wait until that is done")
        return place

    async def run(self, place: CrawlPlace, script: str, *arguments: Value) -> list[Any]:
        """Run a script on a crawl; return its result without the state."""
        given = (place.generation, place.now, *arguments)
        with _wrong_type_is_loss(place):
            state, *result = await self._client.script(f"frontier_{script}", [place.key("generation")], given)
        if state == b"OK":
            return list(result)
        if state == b"STALE":
            raise BackendUnavailable(self._client.name, "it forgot what was written last", "start over")
        if state == b"FOREIGN" and script == "begin":
            fix = "choose another id, or another number of a Redis database in REDIS_URL"
            raise StateConflict("crawl", place.id, "in this Redis already, from another store", "be started", fix)
        raise FrontierLost(place.id, "Redis does not have it any more", place.generation)

    async def command(self, command: str, place: CrawlPlace, name: str, *words: Value) -> Any:
        """Send one command about a key of a crawl."""
        with _wrong_type_is_loss(place):
            return await self._client.command(command, place.key(name), *words)

    async def change(self, tx: Tx, place: CrawlPlace, script: str, *arguments: Value) -> list[Any]:
        """Run a script that changes counters, and mirror them."""
        *result, totals = await self.run(place, script, *arguments)
        await self.mirror(tx, place, totals)
        return result

    async def mirror(self, tx: Tx, place: CrawlPlace, totals: Sequence[bytes]) -> None:
        """Copy the counters into the database, unless it has newer ones."""
        values = {totals[at]: int(totals[at + 1]) for at in range(0, len(totals), 2)}
        if b"opened" not in values or b"settled" not in values:
            raise FrontierLost(place.id, "Redis does not have its counters any more", place.generation)
        crawl = place.number
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
def _wrong_type_is_loss(place: CrawlPlace) -> Iterator[None]:
    try:
        yield
    except BackendUnavailable as error:
        if isinstance(error.__cause__, Exception) and code_of(error.__cause__) == "WRONGTYPE":
            raise FrontierLost(place.id, "one of its keys in Redis has the wrong type", place.generation) from error
        raise


async def live_walkers(tx: Tx, names: Sequence[str]) -> set[str]:
    """Return those of these walkers whose lease the database still knows."""
    if not names:
        return set()
    rows = await tx.all("locked_epochs", ids=sorted({name.rpartition(":")[0] for name in names}))
    live = {f"{row['id']}:{row['lease_epoch']}" for row in rows}
    return live & set(names)

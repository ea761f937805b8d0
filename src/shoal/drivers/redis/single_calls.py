"""The frontier of one crawl through single calls from threads without an event loop: each call is one script, without a
transaction.

Calls need some data from the database, which is cached for a moment. If this data is not enough, or if Redis does not
know the frontier any more, a call returns None, and its caller uses the database instead.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from shoal.base.clock import Clock
from shoal.base.database import Tx, run_to_end
from shoal.base.errors import FrontierLost
from shoal.base.url import Url, origin
from shoal.crawl.frontier.values import FrontierTask, UrlKind, key_of
from shoal.drivers.redis.connection import RedisClient, Value
from shoal.drivers.redis.frontier_records import (
    CrawlPlace,
    depth_at,
    depth_word,
    entry_of,
    pack_key,
    place_of,
    read_entry,
    record_of,
    seq_word,
    walker_name,
)
from shoal.drivers.redis.frontier_take import WalkerTurns
from shoal.hosts.store import HostStore
from shoal.queue.job import Fence

FRESH_SECONDS = 0.5  # maximum age of data from the database
MOST_HOSTS = 10_000
MOST_FREE = 1_000  # hosts that are read again from the database


class Look(NamedTuple):
    """The last response of the database about a crawl, and the time of the query."""

    place: CrawlPlace
    asked_at: float
    is_running: bool
    free: dict[int, str]  # origins of hosts that may be requested at any time


class NextUrl(NamedTuple):
    """The URL that a walker gets next, unless a different walker takes it or a better URL is added."""

    host: int
    depth: bytes
    entry: bytes


class SingleCalls:
    """Calls for one crawl. `client` blocks its thread; `async_client` is for transactions. Several threads may use this
    object, but only one thread at a time may call `exchange`, and not while the walker uses the frontier in a different
    way."""

    def __init__(self, client: RedisClient, async_client: RedisClient, turns: WalkerTurns, clock: Clock) -> None:
        self._client = client
        self._async_client = async_client
        self._hosts = HostStore()
        self._turns = turns
        self._clock = clock
        self._look: Look | None = None
        self._next: NextUrl | None = None
        self._numbers: dict[str, int] = {}  # numbers of hosts, by origin
        self._changes = 0
        self._copied = 0  # number of changes that the counters in the database already include

    @property
    def has_changes(self) -> bool:
        """Return whether the counters in the database are out of date because of these calls."""
        return self._changes != self._copied

    async def look(self, tx: Tx, crawl: int, url: Url | None = None, *, is_running: bool) -> None:
        """Read the data that calls need, including the host of `url`, and copy the counters into the database. Calls
        use the data once the transaction has committed."""
        asked_at, changes, fresh = self._clock.monotonic(), self._changes, self._fresh()
        place = await place_of(self._async_client, tx, crawl)
        await place.change(tx, "audit")
        origins = set() if url is None else {origin(url)}
        if fresh is None and self._look is not None:
            origins |= set(list(self._look.free.values())[-MOST_FREE:])
        found = await self._hosts.at_origins(tx, sorted(origins)) if origins else {}
        free = {
            number: host_origin
            for host_origin, (number, state) in found.items()
            if not (state.held_seconds or state.crawl_delay_seconds or state.is_recovering)
        }

        def see() -> None:
            if len(self._numbers) >= MOST_HOSTS:
                self._numbers.clear()
            self._numbers |= {host_origin: number for host_origin, (number, _) in found.items()}
            if fresh is not None and fresh.place.generation == place.generation:  # other hosts keep their age
                self._look = Look(fresh.place, fresh.asked_at, is_running, fresh.free | free)
            else:
                self._look = Look(place, asked_at, is_running, free)
            self._copied = changes

        tx.on_commit(see)

    def forget(self) -> None:
        """Until the next `look`, let all calls return None, so that callers use the database."""
        self._look = None

    def add(self, url: Url, depth: int, parent: Url | None) -> bool | None:
        """Add a URL; return whether it was new."""
        look, host_origin = self._fresh(), origin(url)
        number = self._numbers.get(host_origin)
        if look is None or number is None:
            return None
        key_seed = look.place.key_seed
        key = pack_key(*key_of(url, key_seed))
        parent_key = None if parent is None else key_of(parent, key_seed)[0]
        entry = entry_of(url[len(host_origin) :], UrlKind.PAGE, parent_key)
        answer = self._run(look, "add_one", number, depth_word(depth), key, entry)
        if answer is None or answer[0] < 0:
            return None
        self._changes += answer[0]
        return bool(answer[0])

    def waiting(self) -> int | None:
        """Return how many URLs wait."""
        look = self._fresh()
        answer = None if look is None else self._run(look, "waiting")
        return None if answer is None else int(answer[0])

    def exchange(self, fence: Fence, done: list[FrontierTask]) -> FrontierTask | None:
        """Settle URLs that were fetched, and take the next URL. Settled URLs are removed from `done`. After an error,
        it is unknown which URLs were settled."""
        for _ in range(2):  # the first call may find out only which URL is next
            look, ahead = self._fresh(), self._next
            if look is None or not look.is_running or (ahead is not None and ahead.host not in look.free):
                self._next = None
                return None
            taken: FrontierTask | None = None
            values: list[Value] = [len(done)]
            for task in done:
                values += [seq_word(task.seq), pack_key(task.key, task.chk)]
            if ahead is None:
                values += ["", "", "", ""]
            else:
                waiting = read_entry(ahead.host, ahead.entry)
                taken = waiting.task(look.free[ahead.host], look.place.key_seed, 0)
                values += [*ahead, record_of(pack_key(taken.key, taken.chk), waiting)]
            answer = self._run(look, "next", walker_name(fence), self._turns.last(fence), *values)
            if answer is None or not answer[0]:
                return None
            self._turns.made(fence)
            self._changes += 1
            done.clear()
            _, word, host, depth, entry = answer
            self._next = NextUrl(int(host), depth, entry) if host else None
            if word and taken is not None:
                taken.seq = int(word, 16)
                taken.depth = depth_at(taken.seq)
                return taken
            if self._next is None:
                return None
        return None

    def _fresh(self) -> Look | None:
        look = self._look
        is_fresh = look is not None and self._clock.monotonic() - look.asked_at < FRESH_SECONDS
        return look if is_fresh else None

    def _run(self, look: Look, script: str, *arguments: Value) -> list[Any] | None:
        passed = self._clock.monotonic() - look.asked_at
        place = replace(look.place, client=self._client, now=look.place.now + int(1e6 * passed))
        try:
            return run_to_end(place.run(script, *arguments), "a single call needs a client that blocks its thread")
        except FrontierLost:
            self.forget()
            return None

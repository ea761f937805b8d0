"""Single calls of `shoal.compat.PersistentUrlQueueManager`, compared with the class that it replaces. The replaced
class has its URLs in Redis lists and sets, and loses the current URL when its process dies."""

import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from statistics import median
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import redis

from bench.report import Report, ratio
from shoal.compat import PersistentUrlQueueManager
from tests.support.servers import Servers

ROUNDS, SHORT_ROUNDS, CALLS = 40, 5, 50
SEED = "http://example.org/"
ABOUT = (
    "Single calls from one thread, one after the other, with Redis on this machine and SQLite as the store of record. "
    f"The two classes take turns, {CALLS} calls each; the figures are medians over all turns. The class that Shoal "
    "replaces pops URLs from a list; Shoal's `next` also leases the URL, and settles the previous URL."
)


class ReplacedUrlQueue:
    """The queue that `PersistentUrlQueueManager` replaces: a list of waiting URLs, sets of seen and of processed URLs,
    and a hash of depths."""

    def __init__(self, client: "redis.Redis", scan_id: str, seeds: list[str], *, max_depth: int) -> None:
        self._client = client
        self._max_depth = max_depth
        self._queue, self._seen = f"scan:{scan_id}:url_queue", f"scan:{scan_id}:seen_urls"
        self._processed, self._depths = f"scan:{scan_id}:processed_urls", f"scan:{scan_id}:url_depths"
        for seed in seeds:
            self._push(seed, 0)

    def add(self, url: str, parent_url: str | None = None, depth: int = 0) -> bool:
        if parent_url and not urlsplit(url).netloc:
            url = urljoin(parent_url, url)
        scheme, host, path, query, _ = urlsplit(url)
        url = urlunsplit((scheme.lower(), host.lower(), path or "/", query, ""))
        if depth > self._max_depth or self._client.sismember(self._seen, url):
            return False
        self._push(url, depth)
        return True

    def next(self) -> str:
        url: Any = self._client.rpop(self._queue)
        if not url:
            raise IndexError("URL queue is empty")
        self._client.sadd(self._processed, url)
        return str(url)

    def has_next(self) -> bool:
        waiting: Any = self._client.llen(self._queue)
        return bool(waiting > 0)

    def _push(self, url: str, depth: int) -> None:
        with self._client.pipeline() as pipe:
            pipe.lpush(self._queue, url)
            pipe.sadd(self._seen, url)
            pipe.hset(self._depths, url, str(depth))
            pipe.execute()


def run(options: Namespace) -> Report:
    """Measure both classes in turns."""
    rounds = SHORT_ROUNDS if options.short else ROUNDS
    report = Report("compat", ABOUT)
    table = report.table("A scan in Redis", "call", "Shoal per s", "replaced per s", "Shoal to replaced")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder, Servers.open() as servers:
        os.environ |= {"REDIS_URL": servers.redis().url, "DATABASE_URL": f"sqlite:///{folder}/shoal.db"}
        client = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)
        replaced = ReplacedUrlQueue(client, "replaced", [SEED], max_depth=5)
        with PersistentUrlQueueManager("shoal", [SEED], max_depth=5) as ours:
            for name, call in steps():
                turns = [[seconds(call, queue, turn) for queue in (ours, replaced)] for turn in range(rounds)]
                rates = [CALLS / median(one) for one in zip(*turns, strict=True)]
                table.rows.append([name, *rates, ratio(rates[0], rates[1])])
            ours.cleanup()
    return report


def steps() -> list[tuple[str, Callable[[Any, int], object]]]:
    """Return the calls in the order in which a scan makes them."""
    return [
        ("add", lambda queue, place: queue.add(f"/page/{place}", SEED, 1)),
        ("add of a known URL", lambda queue, place: queue.add(f"/page/{place}", SEED, 1)),
        ("has_next", lambda queue, place: queue.has_next()),
        ("next", lambda queue, place: queue.next()),
    ]


def seconds(call: Callable[[Any, int], object], queue: object, turn: int) -> float:
    began = time.perf_counter()
    for place in range(turn * CALLS, (turn + 1) * CALLS):
        call(queue, place)
    return time.perf_counter() - began

"""A storm over a crawl whose frontier is in Redis: what may happen, in random order, and the ledger after it."""

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from shoal.base.errors import BackendUnavailable
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.values import WalkerBatch
from shoal.crawl.states import CrawlState
from tests.contract.conftest import SITE, Bench, Walker, open_bench
from tests.contract.test_redis_frontier import LINKS, advance, attach_again, lease_of, ledger_of, read_page
from tests.support.delay_proxy import DelayProxy, delay_proxy
from tests.support.effort import times
from tests.support.redis_versions import on_every_redis
from tests.support.servers import RedisServer, Servers, ask_redis

pytestmark = pytest.mark.exhaustive


@on_every_redis
@pytest.mark.parametrize("seed", range(times(3)))
async def test_a_storm_over_redis_loses_nothing(
    servers: Servers, redis_version: str, sqlite_url: str, seed: int
) -> None:
    """Flushes, forgotten scripts, kills with and without persistence, evictions, latency, cut connections and dead
    walkers, in random order while a crawl runs. Every page is stored once, and a crawl is completed only if all are."""
    dice = random.Random(seed)
    server = servers.new_redis(version=redis_version, durable=seed % 2 == 0)
    with delay_proxy(server.url) as proxy:
        bench = await open_bench(sqlite_url, redis_url=proxy.url)
        await _weather(bench, _faults(bench, server, proxy, dice), dice)
        await bench.close()
    server.kill()


async def _weather(bench: Bench, faults: list[Callable[[Walker], Any]], dice: random.Random) -> None:
    assert bench.app.stores.redis is not None
    bench.app.stores.redis.recheck_seconds = 0.0
    crawl = await bench.submit(f"{SITE}/0", depth=100)
    walker = await bench.walker(crawl)
    left, drained = 20, False
    for _ in range(2000):
        if left and dice.random() < 0.4:
            left -= 1
            if await dice.choice(faults)(walker):
                walker = await _walker(bench, crawl)
                continue
        try:
            drained = await advance(walker, want=dice.randint(1, 4))
        except BackendUnavailable:
            await attach_again(walker)
        await bench.jump(0.05)
        await bench.queue.extend([walker.fence])
        if drained:
            break
        assert await bench.state(crawl) is CrawlState.RUNNING
    assert drained
    assert await bench.state(crawl) is CrawlState.COMPLETED
    assert ledger_of(bench, crawl) == []


async def _walker(bench: Bench, crawl: Crawl) -> Walker:
    walker = Walker(bench, crawl, await lease_of(bench, crawl))
    await attach_again(walker)
    return walker


def _faults(bench: Bench, server: RedisServer, proxy: DelayProxy, dice: random.Random) -> list[Callable[[Walker], Any]]:
    """Return the faults that may happen; each returns whether the walker is dead."""

    async def flush(_: Walker) -> bool:
        ask_redis(server.url, "FLUSHALL")
        return False

    async def forget_scripts(_: Walker) -> bool:
        ask_redis(server.url, "SCRIPT", "FLUSH")
        return False

    async def cut(_: Walker) -> bool:
        """At some moment of the next calls: before the server has one, or before we have its answer."""
        proxy.cut_in(dice.uniform(0, 0.02))
        return False

    async def slow(_: Walker) -> bool:
        proxy.delay_seconds = dice.choice([0, 0.002, 0.005])
        return False

    async def evict(walker: Walker) -> bool:
        """The policy is changed, nobody may write any more, some keys go, and the policy is changed back."""
        ask_redis(server.url, "CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        with pytest.raises(BackendUnavailable):
            await advance(walker)
        used = re.search(r"used_memory:(\d+)", ask_redis(server.url, "INFO", "memory"))
        assert used is not None
        ask_redis(server.url, "CONFIG", "SET", "maxmemory", str(int(used[1]) - dice.randint(100, 2_000)))
        ask_redis(server.url, "CONFIG", "SET", "maxmemory", "0")
        ask_redis(server.url, "CONFIG", "SET", "maxmemory-policy", "noeviction")
        await attach_again(walker)
        return False

    async def restart(_: Walker) -> bool:
        server.kill()
        server.start()
        return False

    async def kill_worker(walker: Walker) -> bool:
        await bench.settle_something(walker.fence)
        await bench.queue.recovery.lose(walker.lease, "signal 9")
        return True

    async def die_between_commits(walker: Walker) -> bool:
        read = [read_page(walker, task, LINKS) for task in walker.held]
        try:
            await walker.commits._commit_pages(WalkerBatch([done for done, _ in read]))
        except BackendUnavailable:
            return False
        return await kill_worker(walker)

    return [flush, forget_scripts, cut, cut, slow, evict, restart, kill_worker, die_between_commits]

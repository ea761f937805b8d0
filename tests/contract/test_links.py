"""The link graph of a crawl: stored with its pages and read in batches, on both stores."""

import asyncio
import threading

import pytest

from shoal.base.clock import SystemClock
from shoal.base.database import Tx
from shoal.crawl.frontier.values import FrontierTask, Settled
from shoal.pages import pages
from shoal.pages.links import PageLinks, pack, pack_key, unpack
from shoal.pages.pages import LinkCounters, LinkCounts
from tests.contract.conftest import Bench, fetched, new_url
from tests.support.patience import PATIENCE_SECONDS


def linking(task: FrontierTask, *keys: int) -> Settled:
    done = fetched(task)
    assert done.page is not None
    done.page.links = pack(map(pack_key, keys), bytes(len(keys)))
    done.page.etag, done.page.last_modified = '"one"', "Thu, 01 Jan 2026 00:00:00 GMT"
    return done


async def graph_of(bench: Bench, crawl: int, after: int = 0, limit: int = 10) -> list[tuple[int, int, PageLinks]]:
    """Number, key and links of pages after the page with that number."""
    rows, _ = await bench.database.read(lambda tx: bench.pages.links_after(tx, crawl, after, limit))
    return [(number, key, unpack(blob)) for number, key, blob in rows]


async def test_the_graph_is_read_in_batches_and_in_order(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    await walker.take()
    links = [new_url(crawl, f"/{number}") for number in range(7)]
    [seed] = walker.held
    await walker.turn(linking(seed, *(link.key for link in links)), found=links)
    parsed = sorted(walker.held, key=lambda task: task.url)
    await walker.turn(*(linking(task, seed.key, task.key) for task in parsed[:5]), *map(fetched, parsed[5:]))
    found = await graph_of(bench, crawl.number, limit=4)
    found += await graph_of(bench, crawl.number, after=found[-1][0], limit=4)
    assert await graph_of(bench, crawl.number, after=found[-1][0]) == []
    (_, key, targets), *rest = found
    assert (key, list(targets.keys)) == (seed.key, [link.key for link in links])
    assert {(key, tuple(targets.keys)) for _, key, targets in rest} == {
        (task.key, (seed.key, task.key)) for task in parsed[:5]
    }
    assert [number for number, _, _ in found] == sorted(number for number, _, _ in found)


async def test_links_are_counted_once_if_the_client_leaves_and_nobody_else_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawls = [await bench.submit(), await bench.submit()]
    for crawl in crawls:
        walker = await bench.walker(crawl)
        [task] = await walker.take()
        await walker.turn(linking(task, 7, 8))
    first, second = [crawl.number for crawl in crawls]
    counters, add = LinkCounters(bench.database, SystemClock()), LinkCounts.add
    begun, goes_on, ended = [threading.Event() for _ in range(3)]

    def slow(counts: LinkCounts, blobs: list[tuple[int, int, bytes]], last: int | None) -> None:
        if begun.is_set():
            add(counts, blobs, last)
            return
        begun.set()
        assert goes_on.wait(PATIENCE_SECONDS)
        add(counts, blobs, last)
        ended.set()

    monkeypatch.setattr(LinkCounts, "add", slow)
    leaving = asyncio.create_task(counters.of(first, 1, 60))
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    leaving.cancel()
    again = asyncio.create_task(counters.of(first, 1, 60))
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await counters.of(second, 1, 60)).pages == {7: 1, 8: 1}
        goes_on.set()
        assert await asyncio.to_thread(ended.wait, PATIENCE_SECONDS)
        assert (await again).pages == {7: 1, 8: 1}
    monkeypatch.setattr(pages, "MOST_TARGETS", 3)  # only one of them is kept
    assert (await counters.of(second, 1, 60)).is_complete
    monkeypatch.setattr(LinkCounts, "add", lambda counts, blobs, last: None)
    assert (await counters.of(first, 1, 0.0)).pages == {}


async def test_another_crawl_has_a_graph_of_its_own(bench: Bench) -> None:
    crawl, other = await bench.submit(), await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    await walker.turn(linking(task))
    assert [len(targets) for _, _, targets in await graph_of(bench, crawl.number)] == [0]
    assert await graph_of(bench, other.number) == []


async def test_a_page_keeps_its_validators_and_links(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    await walker.turn(linking(task, -1, 1 << 62))
    [(_, page)] = await bench.database.read(lambda tx: bench.pages.after(tx, crawl.number, 0, 10))
    assert (page.etag, page.last_modified) == ('"one"', "Thu, 01 Jan 2026 00:00:00 GMT")
    assert page.links == pack(map(pack_key, [-1, 1 << 62]), bytes(2))


async def test_pages_are_found_by_their_keys(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [seed] = await walker.take()
    links = [new_url(crawl, f"/{number}") for number in range(4)]
    await walker.turn(linking(seed, *(link.key for link in links)), found=links)
    first, second, third, fourth = sorted(walker.held, key=lambda task: task.url)
    moved, gone = linking(second), linking(third)
    assert moved.page is not None and gone.page is not None  # noqa: PT018
    moved.page.redirects = [{"url": second.url, "status": 301}]
    gone.page.status = 404
    await walker.turn(linking(first), moved, gone, fetched(fourth))
    keys = [task.key for task in (seed, first, second, third, fourth)]

    async def look(tx: Tx) -> None:
        validators = await bench.pages.validators(tx, crawl.number, [*keys, 1, -1])
        assert {row.key: (row.depth, row.etag) for row in validators} == {
            seed.key: (0, '"one"'),
            first.key: (1, '"one"'),
            **{task.key: (1, None) for task in (second, third, fourth)},
        }
        pages = await bench.pages.of_keys(tx, crawl.number, [first.key, 1], details=True)
        assert [(key, chk, page.url, page.detail) for key, chk, page in pages] == [
            (first.key, first.chk, first.url, None)
        ]
        assert await bench.pages.urls_of(tx, crawl.number, [third.key, fourth.key, 1]) == {
            third.key: third.url,
            fourth.key: fourth.url,
        }
        assert await bench.pages.urls_of(tx, crawl.number + 1, keys) == {}

    await bench.database.read(look)

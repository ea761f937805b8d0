"""The link graph of a crawl: kept with its pages, walked in batches, on both stores."""

from shoal.crawl.frontier import Settled, Task
from shoal.pages.links import Node, pack, pack_key, walk
from tests.contract.conftest import Bench, fetched, new_url


def linking(task: Task, *keys: int) -> Settled:
    done = fetched(task)
    assert done.page is not None
    done.page.links = pack(map(pack_key, keys), bytes(len(keys)))
    done.page.etag, done.page.last_modified = '"one"', "Thu, 01 Jan 2026 00:00:00 GMT"
    return done


async def nodes(bench: Bench, crawl: int, batch: int) -> list[list[Node]]:
    return [found async for found in walk(bench.database, bench.pages, crawl, batch)]


async def test_the_graph_is_walked_in_batches_and_in_order(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    await walker.take()
    links = [new_url(crawl, f"/{number}") for number in range(7)]
    [seed] = walker.held
    await walker.turn(linking(seed, *(link.key for link in links)), found=links)
    parsed = sorted(walker.held, key=lambda task: task.url)
    await walker.turn(*(linking(task, seed.key, task.key) for task in parsed[:5]), *map(fetched, parsed[5:]))
    found = await nodes(bench, crawl.number, 4)
    assert [len(batch) for batch in found] == [4, 2]
    first, *rest = [node for batch in found for node in batch]
    assert (first.key, list(first.links.keys)) == (seed.key, [link.key for link in links])
    assert {(node.key, tuple(node.links.keys)) for node in rest} == {
        (task.key, (seed.key, task.key)) for task in parsed[:5]
    }
    assert [node.number for node in rest] == sorted(node.number for node in rest)


async def test_another_crawl_has_a_graph_of_its_own(bench: Bench) -> None:
    crawl, other = await bench.submit(), await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    await walker.turn(linking(task))
    assert [[len(node.links) for node in batch] for batch in await nodes(bench, crawl.number, 10)] == [[0]]
    assert await nodes(bench, other.number, 10) == []


async def test_a_page_keeps_its_validators_and_links(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    await walker.turn(linking(task, -1, 1 << 62))
    [(_, page)] = await bench.database.read(lambda tx: bench.pages.after(tx, crawl.number, 0, 10))
    assert (page.etag, page.last_modified) == ('"one"', "Thu, 01 Jan 2026 00:00:00 GMT")
    assert page.links == pack(map(pack_key, [-1, 1 << 62]), bytes(2))

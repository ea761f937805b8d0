"""Details of pages: stored with their pages, read in the same order, gone with their crawl."""

from shoal.crawl.frontier.values import FrontierTask, Settled
from shoal.extract.details import Details, Heading, packed, unpacked
from tests.contract.conftest import Bench, fetched
from tests.contract.test_frontier_admin import frontier_admin_of


def analysed(task: FrontierTask) -> Settled:
    done = fetched(task)
    assert done.page is not None
    done.page.detail = packed(told(task.url))
    return done


def told(url: str) -> Details:
    return Details(headings=[Heading(1, url)], json_ld=[{"\x00": "ä"}], fingerprint=-(2**63))


async def details_of(bench: Bench, number: int, after: int = 0, limit: int = 100) -> list[tuple[int, Details]]:
    rows, _ = await bench.database.read(lambda tx: bench.pages.details_after(tx, number, after, limit))
    return [(page, unpacked(detail)) for page, detail in rows]


async def test_details_come_back_in_the_order_of_their_pages_and_end_with_their_crawl(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [seed] = await walker.take()
    await walker.turn(analysed(seed), found=[walker.link(path) for path in ("/a", "/b", "/c")])
    one, without, other = walker.held
    await walker.turn(analysed(one), fetched(without), analysed(other))
    pages = await bench.database.read(lambda tx: bench.pages.after(tx, crawl.number, 0, 100))
    urls = {number: page.url for number, page in pages}
    found = await details_of(bench, crawl.number)
    assert [urls[number] for number, _ in found] == [seed.url, one.url, other.url]
    assert [details for _, details in found] == [told(task.url) for task in (seed, one, other)]
    assert await details_of(bench, crawl.number, after=found[0][0], limit=1) == found[1:2]
    assert all(page.detail is None for _, page in pages)

    await frontier_admin_of(bench).erase(crawl.id)
    assert await bench.number("SELECT count(*) FROM page_detail") == 0


async def test_a_page_that_is_there_keeps_its_details(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [seed] = await walker.take()
    first, again = analysed(seed), analysed(seed)
    assert first.page is not None
    assert again.page is not None
    again.page.detail = packed(Details())
    for page in (first.page, again.page):
        await bench.database.run(
            lambda tx, page=page: bench.pages.insert(tx, crawl.number, [(seed.key, seed.chk, page)])
        )
    assert [details for _, details in await details_of(bench, crawl.number)] == [told(seed.url)]

"""Export the stored pages of a crawl to outputs, whether or not the crawl has ended."""

from collections.abc import AsyncIterator, Callable

from shoal.app import App
from shoal.base.database import Tx
from shoal.egress import Limits
from shoal.pages.export.output import Outputs
from shoal.pages.page import Page
from shoal.pages.store import PageStore

PAGES_AT_ONCE = 500


async def export(app: App, crawl_id: str, outputs: Outputs, wanted: Callable[[Page], bool]) -> int:
    """Write the wanted pages; return how many. Of a crawl that is still running, write the pages stored so far."""
    crawl = (await app.crawls.get(crawl_id)).crawl
    outputs.check_bodies(crawl.id, crawl.config.keep_bodies)
    await outputs.open(crawl.id, app.clock.micros(), Limits.of(app.settings.egress))
    written = 0
    try:
        async for pages in stored(app, crawl.number):
            chosen = [page for page in pages if wanted(page)]
            await outputs.write(chosen, app.bodies)
            written += len(chosen)
        await outputs.complete()
    finally:
        outputs.leave()
    return written


async def stored(app: App, crawl: int) -> AsyncIterator[list[Page]]:
    """Yield the pages stored now. Pages fetched again meanwhile are stored after them and are not read twice."""
    last, upto = 0, await app.database.read(lambda tx: PageStore().last_number(tx, crawl))

    async def look(tx: Tx) -> list[tuple[int, Page]]:
        return await PageStore().after(tx, crawl, last, PAGES_AT_ONCE)

    while rows := [row for row in await app.database.read(look) if row[0] <= upto]:
        last = rows[-1][0]
        yield [page for _, page in rows]

"""Pages that are stored without being crawled, for tests of what shows them."""

from shoal.app import App
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.values import key_of
from shoal.pages.page import Page
from shoal.pages.store import PageStore

SITE = "http://example.org"


def a_page(path: str = "/", **facts: object) -> Page:
    return Page(**{"url": f"{SITE}{path}", "depth": 0, "attempt": 1, "fetched_at": 1, "status": 200, **facts})  # type: ignore[arg-type]


async def store_pages(app: App, crawl: Crawl, *pages: Page) -> None:
    rows = [(*key_of(Url(page.url), crawl.key_seed), page) for page in pages]
    await app.database.run(lambda tx: PageStore().insert(tx, crawl.number, rows))

"""`await shoal.fetch(url)`: one page, in the process of the caller."""

from typing import Any

from shoal.app import opened
from shoal.library.page import Page, origin_of, settings_of
from shoal.process.page_fetch import fetch_page, read_fetch


async def fetch(
    url: str, *, store: str | None = None, screenshot: bool = False, trust_seeds: bool = True, **options: Any
) -> Page:
    """Fetch one page, politely, and return it with its content.

    `options` are the crawl options that define how a page is fetched: `render`, `wait_for`, `scroll`, `click`,
    `robots`, `user_agent`, `headers`, `cookies` and `proxy`. `store` is where the rate limits of hosts are kept; the
    default is the store of the command line. `trust_seeds` allows a private address; pass False to fetch public
    addresses only. `screenshot` renders the page and takes a picture of it.

    If there is no response, the page has an `error` and no `status`, whatever the reason.
    """
    if screenshot:
        options.setdefault("render", "always")
    crawl = read_fetch(url, options, trusted=trust_seeds)
    async with opened(settings_of(store)) as app:
        fetched = await fetch_page(app, crawl, screenshot=screenshot)
        return Page(fetched.crawled, origin_of(app, crawl, None), screenshot=fetched.screenshot)

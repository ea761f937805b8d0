"""Failed pages of a crawl on SQL: read in order, and removed so that their URLs can be fetched again."""

from typing import Any

from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import NewUrl, UrlKind, key_of
from shoal.crawl.lifecycle.failed_urls import DroppedPage, FailedPage


async def failed_after(tx: Tx, crawl: int, after: int, limit: int) -> list[FailedPage]:
    rows = await tx.all("failed_pages_after", crawl=crawl, number=after, limit=limit)
    return [FailedPage(row["number"], Url(row["url"]), row["status"], row["error_code"]) for row in rows]


async def drop_failed(tx: Tx, crawl: int, pages: list[FailedPage]) -> list[DroppedPage]:
    numbers = [page.number for page in pages]
    await tx.execute("drop_failed_details", crawl=crawl, numbers=numbers)
    rows = await tx.all("drop_failed_pages", crawl=crawl, numbers=numbers)
    parents = await _parents(tx, crawl, rows)
    dropped = []
    for row in rows:
        parent = parents[row["parent"]] if row["parent"] else None
        url = NewUrl(row["key"], row["chk"], Url(row["url"]), row["depth"], Fate.OPEN, parent)
        final_url = Url(row["final_url"] or row["url"])
        dropped.append(DroppedPage(url, row["status"], row["error_code"], row["bytes"], final_url))
    return dropped


async def _parents(tx: Tx, crawl: int, rows: list[Any]) -> dict[str, int]:
    """Return the keys of the sitemaps, or else of the pages, that led to these pages, by their URLs."""
    seed = await tx.value("key_seed", crawl=crawl)
    maps = {row["parent"]: key_of(Url(row["parent"]), seed, UrlKind.SITEMAP)[0] for row in rows if row["parent"]}
    known = {row["key"] for row in await tx.all("sitemaps_among", crawl=crawl, keys=sorted(maps.values()))}
    return {url: key if key in known else key_of(Url(url), seed)[0] for url, key in maps.items()}

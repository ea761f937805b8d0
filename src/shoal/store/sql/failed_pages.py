"""Failed pages on SQL: read in order, and dropped with what they counted. How their URLs wait again is the frontier's
business."""

from typing import Any

from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import NewUrl, UrlKind, key_of
from shoal.crawl.lifecycle.failed_urls import FailedPage
from shoal.pages.response_counts import count_responses
from shoal.store.sql.counters import OUTSIDE, count, response_columns


async def last_page(tx: Tx, crawl: int) -> int:
    number: int = await tx.value("last_page_number", crawl=crawl)
    return number


async def failed_after(tx: Tx, crawl: int, number: int, limit: int) -> list[FailedPage]:
    rows = await tx.all("failed_pages_after", crawl=crawl, number=number, limit=limit)
    return [FailedPage(row["number"], Url(row["url"]), row["status"], row["error_code"]) for row in rows]


async def reopen(tx: Tx, crawl: int, pages: list[FailedPage]) -> list[tuple[NewUrl, str | None]]:
    """Drop the records and take back what they counted; their URLs, each with the URL that was answered, if one was."""
    numbers = [page.number for page in pages]
    await tx.execute("drop_failed_details", crawl=crawl, numbers=numbers)
    rows = await tx.all("drop_failed_pages", crawl=crawl, numbers=numbers)
    await tx.many("set_fates", sorted((row["key"], row["chk"], crawl, int(Fate.OPEN)) for row in rows))
    responses = count_responses(row["status"] for row in rows)
    await count(
        tx,
        crawl,
        OUTSIDE,
        None,
        opened=len(rows),
        pages=-sum(row["status"] is not None for row in rows),
        errors=-sum(row["error_code"] is not None for row in rows),
        bytes=-sum(row["bytes"] for row in rows),
        **response_columns({kind: -number for kind, number in responses.items()}),
    )
    parents = await _parents(tx, crawl, rows)
    return [(_new_url(row, parents), _answered(row)) for row in rows]


def _answered(row: Any) -> str | None:
    return None if row["status"] is None else row["final_url"] or row["url"]


def _new_url(row: Any, parents: dict[str, int]) -> NewUrl:
    parent = parents[row["parent"]] if row["parent"] else None
    return NewUrl(row["key"], row["chk"], Url(row["url"]), row["depth"], Fate.OPEN, parent)


async def _parents(tx: Tx, crawl: int, rows: list[Any]) -> dict[str, int]:
    """The keys of what led to these pages: of a sitemap, or else of a page."""
    seed = await tx.value("key_seed", crawl=crawl)
    maps = {row["parent"]: key_of(Url(row["parent"]), seed, UrlKind.SITEMAP)[0] for row in rows if row["parent"]}
    known = {row["key"] for row in await tx.all("sitemaps_among", crawl=crawl, keys=sorted(maps.values()))}
    return {url: key if key in known else key_of(Url(url), seed)[0] for url, key in maps.items()}

"""The data of a crawl for analyzers, on SQL."""

from collections.abc import Sequence
from typing import Any

from shoal.base.database import Tx
from shoal.crawl.frontier.fates import Fate


class SqlSiteStore:
    """Implements `audit.store.SiteStore`."""

    async def pages_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[Sequence[Any]]:
        return await tx.all("page_columns_after", crawl=crawl, number=number, limit=limit)

    async def compared_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[Sequence[Any]]:
        return await tx.all("compared_columns_after", crawl=crawl, number=number, limit=limit)

    async def pages_numbered(self, tx: Tx, crawl: int, numbers: Sequence[int]) -> list[Sequence[Any]]:
        return await tx.all("page_columns_numbered", crawl=crawl, numbers=list(numbers))

    async def links_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, bytes]]:
        rows = await tx.all("links_after", crawl=crawl, number=number, limit=limit)
        return [(row["number"], row["links"]) for row in rows]

    async def details_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, bytes]]:
        rows = await tx.all("details_after", crawl=crawl, number=number, limit=limit)
        return [(row["number"], row["detail"]) for row in rows]

    async def redirect_targets_after(self, tx: Tx, crawl: int, key: int, limit: int) -> list[tuple[int, str, str]]:
        rows = await tx.all("redirect_targets_after", crawl=crawl, key=key, limit=limit)
        return [(row["key"], row["url"], row["via"]) for row in rows]

    async def blocked_after(
        self, tx: Tx, crawl: int, after: tuple[int, int], limit: int
    ) -> list[tuple[tuple[int, int]]]:
        key, chk = after
        fate = int(Fate.SKIPPED_ROBOTS)
        rows = await tx.all("fates_after", crawl=crawl, key=key, chk=chk, fate=fate, limit=limit)
        return [((row["key"], row["chk"]),) for row in rows]

    async def sitemaps(self, tx: Tx, crawl: int) -> list[tuple[str, int | None, str | None, bytes | None]]:
        rows = await tx.all("sitemaps_of_crawl", crawl=crawl)
        return [(row["url"], row["status"], row["problem"], row["entries"]) for row in rows]

    async def robots(self, tx: Tx, origins: Sequence[str]) -> dict[str, str | None]:
        rows = await tx.all("robots_of_hosts", origins=list(origins))
        return {row["origin"]: row["robots"] if row["robots_state"] == "found" else None for row in rows}

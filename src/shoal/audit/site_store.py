"""Reads the parts of a crawl that analyzers and diffs use."""

from collections.abc import Sequence
from typing import Any, Final

from shoal.base.database import Tx
from shoal.crawl.frontier.fates import Fate

PAGE_COLUMNS: Final = (
    *("number", "key", "status", "depth", "duration_ms", "word_count", "bytes", "flags", "fingerprint"),
    "text_hash",
    *("url", "final_url", "content_type", "title", "description", "canonical", "robots", "lang", "h1"),
    *("content_hash", "redirects", "error_code"),
)
"""The columns of `SiteStore.pages_after`, in this order."""

COMPARED_COLUMNS: Final = (*PAGE_COLUMNS, "has_data")
"""The columns that a diff reads; `has_data`: whether extracted data was stored, which `shoal.pages.pages` reads."""

FIRST_FATE: Final = (-(1 << 63), -(1 << 31))
"""A pair (key, check) that comes before the pair of every URL."""
_LAST_FATE: Final = ((1 << 63) - 1, (1 << 31) - 1)


class SiteStore:
    """Reads the parts of a crawl that analyzers use, in batches and in storage order."""

    async def pages_after(self, tx: Tx, crawl: int, number: int, limit: int) -> tuple[list[Sequence[Any]], int | None]:
        """Return the rows of `PAGE_COLUMNS` after the page with that number, and the number of the last row (None at
        the end). `redirects` is JSON, or None."""
        rows = await tx.all("page_columns_after", crawl=crawl, number=number, limit=limit)
        return rows, rows[-1][0] if len(rows) == limit else None

    async def compared_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[Sequence[Any]]:
        """Return the rows of `COMPARED_COLUMNS` after the page with that number."""
        return await tx.all("compared_columns_after", crawl=crawl, number=number, limit=limit)

    async def pages_numbered(self, tx: Tx, crawl: int, numbers: Sequence[int]) -> list[Sequence[Any]]:
        """Return rows of `COMPARED_COLUMNS` of these pages, ordered by number; fewer if the crawl is gone."""
        return await tx.all("page_columns_numbered", crawl=crawl, numbers=list(numbers))

    async def redirect_targets_after(
        self, tx: Tx, crawl: int, key: int, limit: int
    ) -> tuple[list[tuple[int, str, str]], int | None]:
        """Return key, URL and the redirecting URL of pages that were fetched only as the target of a redirect, ordered
        by key, and the last key (None at the end)."""
        rows = await tx.all("redirect_targets_after", crawl=crawl, key=key, limit=limit)
        found = [(row["key"], row["url"], row["via"]) for row in rows]
        return found, found[-1][0] if len(found) == limit else None

    async def blocked_after(
        self, tx: Tx, crawl: int, after: tuple[int, int], scan: int
    ) -> tuple[list[int], tuple[int, int] | None]:
        """Look at the next `scan` URLs after a pair (key, check), in the order of the index. Return the keys of the
        URLs that robots.txt forbids, and the pair after which to continue (None at the end)."""
        key, chk = after
        last = await tx.one("fate_key_after", crawl=crawl, key=key, chk=chk, skip=scan - 1)
        last_key, last_chk = _LAST_FATE if last is None else (last["key"], last["chk"])
        rows = await tx.all(
            "fates_after",
            crawl=crawl,
            key=key,
            chk=chk,
            last_key=last_key,
            last_chk=last_chk,
            fate=int(Fate.SKIPPED_ROBOTS),
        )
        return [row["key"] for row in rows], None if last is None else (last_key, last_chk)

    async def sitemaps(self, tx: Tx, crawl: int) -> list[tuple[str, int | None, str | None, bytes | None]]:
        """Return URL, status, problem and packed entries of the sitemaps that were read."""
        rows = await tx.all("sitemaps_of_crawl", crawl=crawl)
        return [(row["url"], row["status"], row["problem"], row["entries"]) for row in rows]

    async def robots(self, tx: Tx, origins: Sequence[str]) -> dict[str, str | None]:
        """Return the robots.txt by origin, for the origins whose robots.txt is known; None if the origin has no
        robots.txt."""
        rows = await tx.all("robots_of_hosts", origins=list(origins))
        return {row["origin"]: row["robots"] if row["robots_state"] == "found" else None for row in rows}

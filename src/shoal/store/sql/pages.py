"""The page store on SQL."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import orjson

from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.pages.page import Page
from shoal.pages.store import ANY_ERROR, ChartFacts, PageFilter, PageOutline, Validators

_PLAIN = tuple(name for name in Page.__slots__ if name not in ("redirects", "data", "rendered", "detail"))
_plain = attrgetter(*_PLAIN)
LAST_NUMBER = 2**62
_FOREIGN = ("title", "description", "canonical", "robots", "lang", "h1", "content_type", "error_message")


class SqlPageStore:
    """Implements `pages.store.PageStore`."""

    async def insert(self, tx: Tx, crawl: int, pages: Sequence[tuple[int, int, Page]]) -> int:
        rows = [_row(crawl, key, chk, page) for key, chk, page in pages]
        await tx.many("insert_details", _details(crawl, pages))
        try:
            return await tx.many("insert_pages", rows)
        except UnicodeEncodeError:  # a lone surrogate in some text: rare, so checked only now
            return await tx.many("insert_pages", [_encodable(row) for row in rows])

    async def known(self, tx: Tx, crawl: int, keys: list[tuple[int, int]]) -> set[tuple[int, int]]:
        rows = await tx.all("known_pages", crawl=crawl, keys=sorted({key for key, _ in keys}))
        return {(row["key"], row["chk"]) for row in rows} & set(keys)

    async def after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, Page]]:
        rows = await tx.all("pages_after", crawl=crawl, number=number, limit=limit)
        return [(row["number"], _page(row)) for row in rows]

    async def some_after(
        self, tx: Tx, crawl: int, number: int, limit: int, wanted: PageFilter
    ) -> list[tuple[int, Page]]:
        low, high = (wanted.statuses.start, wanted.statuses.stop - 1) if wanted.statuses else (None, None)
        only_errors = int(wanted.error == ANY_ERROR)
        code = None if only_errors else wanted.error
        values = {"low": low, "high": high, "only_errors": only_errors, "error": code}
        rows = await tx.all("some_pages_after", crawl=crawl, number=number, limit=limit, **values)
        return [(row["number"], _page(row)) for row in rows]

    async def search(
        self, tx: Tx, crawl: int, number: int, limit: int, wanted: PageFilter, scan: int
    ) -> tuple[list[tuple[int, Page]], int | None]:
        low, high = (wanted.statuses.start, wanted.statuses.stop - 1) if wanted.statuses else (None, None)
        only_errors = int(wanted.error == ANY_ERROR)
        values = {
            "low": low,
            "high": high,
            "only_errors": only_errors,
            "error": None if only_errors else wanted.error,
            "type": None if wanted.content_type is None else f"{_like(wanted.content_type.lower())}%",
            "depth": wanted.depth,
            "text": None if wanted.text is None else f"%{_like(wanted.text.lower())}%",
            "only_failed": int(wanted.failed),
        }
        last = await tx.value("page_number_after", crawl=crawl, number=number, skip=scan - 1)
        upto = LAST_NUMBER if last is None else last
        rows = await tx.all("search_pages", crawl=crawl, number=number, upto=upto, limit=limit, **values)
        return [(row["number"], _page(row)) for row in rows], last

    async def facts_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[ChartFacts]:
        rows = await tx.all("page_facts_after", crawl=crawl, number=number, limit=limit)
        return [ChartFacts(*row) for row in rows]

    async def outlines_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[PageOutline]:
        rows = await tx.all("page_outlines_after", crawl=crawl, number=number, limit=limit)
        return [PageOutline(*row) for row in rows]

    async def numbered(self, tx: Tx, crawl: int, number: int) -> Page | None:
        row = await tx.one("page_numbered", crawl=crawl, number=number, limit=1)
        if row is None:
            return None
        page = _page(row)
        for kept in await tx.all("details_of_keys", crawl=crawl, keys=[row["key"]]):
            if kept["chk"] == row["chk"]:
                page.detail = kept["detail"]
        return page

    async def links_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, int, bytes]]:
        rows = await tx.all("links_after", crawl=crawl, number=number, limit=limit)
        return [(row["number"], row["key"], row["links"]) for row in rows]

    async def validators(self, tx: Tx, crawl: int, keys: list[int]) -> list[Validators]:
        rows = await tx.all("page_validators", crawl=crawl, keys=list(set(keys)))
        return [Validators(*(row[name] for name in Validators.__slots__)) for row in rows]

    async def of_keys(
        self, tx: Tx, crawl: int, keys: list[int], *, details: bool = False
    ) -> list[tuple[int, int, Page]]:
        keys = list(set(keys))
        rows = await tx.all("pages_of_keys", crawl=crawl, keys=keys)
        found = [(row["key"], row["chk"], _page(row)) for row in rows]
        if details:
            kept = await tx.all("details_of_keys", crawl=crawl, keys=keys)
            known = {(row["key"], row["chk"]): row["detail"] for row in kept}
            for key, chk, page in found:
                page.detail = known.get((key, chk))
        return found

    async def urls_of(self, tx: Tx, crawl: int, keys: list[int]) -> dict[int, Url]:
        return {row["key"]: Url(row["url"]) for row in await tx.all("urls_of_keys", crawl=crawl, keys=keys)}

    async def details_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, bytes]]:
        rows = await tx.all("details_after", crawl=crawl, number=number, limit=limit)
        return [(row["number"], row["detail"]) for row in rows]


def _like(text: str) -> str:
    """Escape the wildcards of LIKE."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _row(crawl: int, key: int, chk: int, page: Page) -> dict[str, Any]:
    row = dict(zip(_PLAIN, _plain(page), strict=True))
    for name in _FOREIGN:
        if row[name] is not None and "\x00" in row[name]:
            row[name] = row[name].replace("\x00", "")  # PostgreSQL rejects NUL in text
    row["crawl"], row["key"], row["chk"] = crawl, key, chk
    row["rendered"] = int(page.rendered)
    row["redirects"] = orjson.dumps(page.redirects).decode() if page.redirects else None
    row["data"] = orjson.dumps(page.data).decode() if page.data is not None else None
    return row


def _details(crawl: int, pages: Sequence[tuple[int, int, Page]]) -> list[dict[str, Any]]:
    return [
        {"crawl": crawl, "key": key, "chk": chk, "detail": page.detail}
        for key, chk, page in pages
        if page.detail is not None
    ]


def _encodable(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in row.items()
    }


def _page(row: Any) -> Page:
    values = {name: row[name] for name in _PLAIN}
    values["rendered"] = bool(row["rendered"])
    values["redirects"] = orjson.loads(row["redirects"]) if row["redirects"] else []
    values["data"] = orjson.loads(row["data"]) if row["data"] else None
    return Page(**values)

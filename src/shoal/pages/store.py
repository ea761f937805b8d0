"""The store of pages."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import orjson
from msgspec import Struct

from shoal.base.database import Tx
from shoal.base.text import encodable
from shoal.base.url import Url
from shoal.pages.page import RENDER_WAITS, Page


class Validators(Struct, frozen=True):
    """The validators of a page for conditional requests. For a page that cannot be requested conditionally, only depth
    and links are set."""

    key: int
    chk: int
    depth: int
    etag: str | None
    last_modified: str | None
    links: bytes | None

    @property
    def is_condition(self) -> bool:
        return self.etag is not None or self.last_modified is not None


class PageFilter(Struct, frozen=True):
    """A filter for pages; a page must match all given conditions."""

    statuses: range | None = None  # status of the last response, or of a redirect before it
    error: str | None = None  # a code, or ANY_ERROR
    content_type: str | None = None  # beginning of the content type, such as `text/html` or `image/`
    depth: int | None = None
    text: str | None = None  # text in the page's URL or title
    failed: bool = False  # only pages with an error or with a status of 400 or more

    def __bool__(self) -> bool:
        return self != PageFilter()


ANY_ERROR = "any"
_OTHER_FORM = frozenset({"redirects", "data", "rendered", "render_wait", "detail", "outlinks"})
_PLAIN = tuple(name for name in Page.__struct_fields__ if name not in _OTHER_FORM)
_WAITS = (None, None, *RENDER_WAITS)  # by the column `rendered`: 0: not rendered, 1: the end of the wait is unknown
_plain = attrgetter(*_PLAIN)
_FOREIGN = ("title", "description", "canonical", "robots", "lang", "h1", "content_type", "error_message")
LAST_NUMBER = 2**62
SCAN = 5_000  # pages that one query reads, even if few of them match


class ChartFacts(NamedTuple):
    """The facts of a page that charts count."""

    number: int
    url: str
    depth: int
    status: int | None
    duration_ms: float | None
    bytes: int
    content_type: str | None


class PageRank(NamedTuple):
    """The numbers by which a page can be sorted."""

    number: int
    key: int
    status: int | None
    depth: int
    bytes: int
    duration_ms: float | None
    word_count: int | None
    links: int


class PageOutline(NamedTuple):
    """The facts of a page that a comparison of two crawls needs."""

    number: int
    url: str
    status: int | None
    content_hash: str | None
    title: str | None
    robots: str | None = None
    canonical: str | None = None
    has_data: bool = False  # extracted data was stored


class TargetStatus(NamedTuple):
    """The response of a link target: the last status, the error, and the statuses of the redirects."""

    status: int | None = None
    error_code: str | None = None
    hops: tuple[int, ...] = ()


class FailedPage(Struct, frozen=True):
    """A failed page: an error, or a status of 400 or more."""

    number: int
    url: Url
    status: int | None
    error_code: str | None


class DroppedPage(Struct, frozen=True):
    """A failed page whose record was removed, so that its URL can be fetched again."""

    key: int
    chk: int
    url: Url
    depth: int
    parent: str | None
    status: int | None
    error_code: str | None
    bytes: int
    final_url: Url


class PageStore:
    """The stored pages of crawls, with their links and details. Pages are never changed."""

    async def insert(self, tx: Tx, crawl: int, pages: Sequence[tuple[int, int, Page]]) -> int:
        """Insert pages, each under its URL's key; return how many were new. An existing page is left unchanged."""
        rows = [_row(crawl, key, chk, page) for key, chk, page in pages]
        details = [
            {"crawl": crawl, "key": key, "chk": chk, "detail": page.detail or b"", "outlinks": page.outlinks}
            for key, chk, page in pages
            if page.detail is not None or page.outlinks is not None
        ]
        await tx.many("insert_details", details)
        try:
            return await tx.many("insert_pages", rows)
        except UnicodeEncodeError:  # a lone surrogate in some text: rare, so texts are checked only now
            return await tx.many("insert_pages", encodable(rows))

    async def known(self, tx: Tx, crawl: int, keys: list[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return the keys and checks among these that have a page."""
        rows = await tx.all("known_pages", crawl=crawl, keys=sorted({key for key, _ in keys}))
        return {(row["key"], row["chk"]) for row in rows} & set(keys)

    async def after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[tuple[int, Page]]:
        """Return pages in storage order, after the page with that number."""
        rows = await tx.all("pages_after", crawl=crawl, number=number, limit=limit)
        return [(row["number"], _page(row)) for row in rows]

    async def search(
        self, tx: Tx, crawl: int, number: int, limit: int, wanted: PageFilter, scan: int
    ) -> tuple[list[tuple[int, Page]], int | None]:
        """Look at the next `scan` pages after a number; return the pages that match the filter, at most `limit`, and
        the number of the last page that was read (None at the end)."""
        if not wanted:
            found = await self.after(tx, crawl, number, limit)
            return found, found[-1][0] if len(found) == limit else None
        place, last = await self._window(tx, crawl, number, scan)
        rows = await tx.all("search_pages", limit=limit, **place, **_conditions(wanted))
        return [(row["number"], _page(row)) for row in rows], last

    async def ranks(
        self, tx: Tx, crawl: int, number: int, wanted: PageFilter, scan: int
    ) -> tuple[list[PageRank], int | None]:
        """Look at the next `scan` pages after a number; return the ranks of the pages that match the filter, and the
        number of the last page that was read (None at the end)."""
        place, last = await self._window(tx, crawl, number, scan)
        rows = await tx.all("rank_pages", limit=scan, **place, **_conditions(wanted))
        return [PageRank(*row) for row in rows], last

    @staticmethod
    async def _window(tx: Tx, crawl: int, number: int, scan: int) -> tuple[dict[str, int], int | None]:
        """Return the range of the next `scan` pages after a number, and the number of the last of these pages (None at
        the end)."""
        last = await tx.value("page_number_after", crawl=crawl, number=number, skip=scan - 1)
        return {"crawl": crawl, "number": number, "upto": LAST_NUMBER if last is None else last}, last

    async def facts_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[ChartFacts]:
        """Return the facts of pages that charts count, in the order of `after`."""
        rows = await tx.all("page_facts_after", crawl=crawl, number=number, limit=limit)
        return [ChartFacts(*row) for row in rows]

    async def outlines_after(self, tx: Tx, crawl: int, number: int, limit: int) -> list[PageOutline]:
        """Return the outlines of pages, in the order of `after`."""
        rows = await tx.all("page_outlines_after", crawl=crawl, number=number, limit=limit)
        return [PageOutline(*row) for row in rows]

    async def data_sizes(self, tx: Tx, crawl: int, numbers: Sequence[int]) -> dict[int, int]:
        """Return the size of the extracted data of the pages with these numbers; 0 for a page without data. Pages that
        do not exist are omitted."""
        rows = await tx.all("data_sizes", crawl=crawl, numbers=list(numbers))
        return {row["number"]: row["size"] for row in rows}

    async def data_of(self, tx: Tx, crawl: int, numbers: Sequence[int]) -> dict[int, str | None]:
        """Return the extracted data of the pages with these numbers, as JSON. The data of one page may be 1 MB, so find
        out first with `data_sizes` how many pages can be read together."""
        rows = await tx.all("data_of_pages", crawl=crawl, numbers=list(numbers))
        return {row["number"]: row["data"] for row in rows}

    async def numbered(self, tx: Tx, crawl: int, number: int) -> Page | None:
        """Return the page with this number, with its details and links."""
        row = await tx.one("page_numbered", crawl=crawl, number=number, limit=1)
        if row is None:
            return None
        page = _page(row)
        await self._add_details(tx, crawl, [(row["key"], row["chk"], page)])
        return page

    async def number_of(self, tx: Tx, crawl: int, key: int, chk: int) -> int | None:
        """Return the number of the page with this key and check; None if there is none."""
        number: int | None = await tx.value("page_number", crawl=crawl, key=key, chk=chk)
        return number

    async def links_after(
        self, tx: Tx, crawl: int, number: int, scan: int
    ) -> tuple[list[tuple[int, int, bytes]], int | None]:
        """Look at the next `scan` pages after a number; return number, key and link blob of the pages that were parsed,
        in the order of `after`, and the number of the last page that was read (None at the end). `shoal.pages.links`
        reads the blobs."""
        place, last = await self._window(tx, crawl, number, scan)
        return [(row["number"], row["key"], row["links"]) for row in await tx.all("links_after", **place)], last

    async def validators(self, tx: Tx, crawl: int, keys: list[int]) -> list[Validators]:
        """Return the validators of the pages with these keys. A page can be requested conditionally only if it has its
        own response, without a redirect. Two pages may share a key."""
        rows = await tx.all("page_validators", crawl=crawl, keys=list(set(keys)))
        return [Validators(*(row[name] for name in Validators.__struct_fields__)) for row in rows]

    async def of_keys(
        self, tx: Tx, crawl: int, keys: list[int], *, details: bool = False
    ) -> list[tuple[int, int, Page]]:
        """Return the pages with these keys, each with its key and check, optionally with their details and links."""
        rows = await tx.all("pages_of_keys", crawl=crawl, keys=list(set(keys)))
        found = [(row["key"], row["chk"], _page(row)) for row in rows]
        if details:
            await self._add_details(tx, crawl, found)
        return found

    @staticmethod
    async def _add_details(tx: Tx, crawl: int, pages: list[tuple[int, int, Page]]) -> None:
        rows = await tx.all("details_of_keys", crawl=crawl, keys=list({key for key, _, _ in pages}))
        known = {(row["key"], row["chk"]): row for row in rows}
        for key, chk, page in pages:
            if (row := known.get((key, chk))) is not None:
                page.detail, page.outlinks = row["detail"] or None, row["outlinks"]

    async def urls_of(self, tx: Tx, crawl: int, keys: list[int]) -> dict[int, Url]:
        """Return the URLs of the pages with these keys; keys without a page are omitted."""
        return {row["key"]: Url(row["url"]) for row in await tx.all("urls_of_keys", crawl=crawl, keys=keys)}

    async def statuses_of(self, tx: Tx, crawl: int, keys: list[int]) -> dict[int, "TargetStatus | str"]:
        """Return the responses of the URLs with these keys. For a URL that was fetched only as the target of a
        redirect, return the URL that redirects to it. Keys of URLs that were not fetched are omitted."""
        found: dict[int, TargetStatus | str] = {}
        for row in await tx.all("statuses_of_keys", crawl=crawl, keys=keys):
            if row["via"] is None:
                hops = orjson.loads(row["redirects"]) if row["redirects"] else ()
                found[row["key"]] = TargetStatus(row["status"], row["error_code"], tuple(hop["status"] for hop in hops))
            else:
                found.setdefault(row["key"], row["via"])
        return found

    async def details_after(
        self, tx: Tx, crawl: int, number: int, scan: int
    ) -> tuple[list[tuple[int, bytes]], int | None]:
        """Look at the next `scan` pages after a number; return the details of the pages that have details, each with
        its page's number, in the order of `after`, and the number of the last page that was read (None at the end).
        `shoal.extract.details.unpacked` reads them. Pages of a crawl without `analyze`, and pages without a response,
        have no details."""
        place, last = await self._window(tx, crawl, number, scan)
        return [(row["number"], row["detail"]) for row in await tx.all("details_after", **place)], last

    async def outlinks_after(
        self, tx: Tx, crawl: int, number: int, scan: int
    ) -> tuple[list[tuple[int, bytes]], int | None]:
        """Like `details_after`, but for links with URL and text, which `shoal.extract.links.unpack_links` reads. Pages
        of a crawl without `links`, and pages without HTML, have no such links."""
        place, last = await self._window(tx, crawl, number, scan)
        return [(row["number"], row["outlinks"]) for row in await tx.all("outlinks_after", **place)], last

    async def last_number(self, tx: Tx, crawl: int) -> int:
        """Return the number of the page that was stored last; 0 if there is none."""
        last: int = await tx.value("last_page_number", crawl=crawl)
        return last

    async def failed_after(
        self, tx: Tx, crawl: int, number: int, upto: int, limit: int, scan: int
    ) -> tuple[list[FailedPage], int | None]:
        """Look at the next `scan` pages after a number, up to a second number; return the failed pages, at most
        `limit`, in the order of `after`, and the number after which to continue (None at the end)."""
        last = await tx.value("page_number_after", crawl=crawl, number=number, skip=scan - 1)
        following = None if last is None or last >= upto else last
        end = upto if following is None else following
        rows = await tx.all("failed_pages_after", crawl=crawl, number=number, upto=end, limit=limit)
        pages = [FailedPage(row["number"], Url(row["url"]), row["status"], row["error_code"]) for row in rows]
        return pages, pages[-1].number if len(pages) == limit else following

    async def drop_failed(self, tx: Tx, crawl: int, pages: list[FailedPage]) -> list[DroppedPage]:
        """Remove the records of these pages; return the records that still existed. Call this under the crawl's
        lock."""
        numbers = [page.number for page in pages]
        await tx.execute("drop_failed_details", crawl=crawl, numbers=numbers)
        rows = await tx.all("drop_failed_pages", crawl=crawl, numbers=numbers)
        return [DroppedPage(*(row[name] for name in DroppedPage.__struct_fields__)) for row in rows]


def _conditions(wanted: PageFilter) -> dict[str, Any]:
    low, high = (wanted.statuses.start, wanted.statuses.stop - 1) if wanted.statuses else (None, None)
    only_errors = int(wanted.error == ANY_ERROR)
    return {
        "low": low,
        "high": high,
        "hop": _hop(wanted.statuses),
        "only_errors": only_errors,
        "error": None if only_errors else wanted.error,
        "type": None if wanted.content_type is None else f"{_like(wanted.content_type.lower())}%",
        "depth": wanted.depth,
        "text": None if wanted.text is None else f"%{_like(wanted.text.lower())}%",
        "only_failed": int(wanted.failed),
    }


def _hop(statuses: range | None) -> str | None:
    """Return a LIKE pattern for stored redirects with one of these statuses. `statuses` is a single status or a whole
    class."""
    if statuses is None:
        return None
    return f'%"status":{statuses.start if len(statuses) == 1 else f"{statuses.start // 100}__"}}}%'


def _like(text: str) -> str:
    """Escape the wildcards of LIKE."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _row(crawl: int, key: int, chk: int, page: Page) -> dict[str, Any]:
    row = dict(zip(_PLAIN, _plain(page), strict=True))
    for name in _FOREIGN:
        if row[name] is not None and "\x00" in row[name]:
            row[name] = row[name].replace("\x00", "")  # PostgreSQL rejects NUL in text
    row["crawl"], row["key"], row["chk"] = crawl, key, chk
    row["rendered"] = _WAITS.index(page.render_wait, 1) if page.rendered else 0
    row["redirects"] = orjson.dumps(page.redirects).decode() if page.redirects else None
    row["data"] = orjson.dumps(page.data).decode() if page.data is not None else None
    return row


def _page(row: Any) -> Page:
    values = {name: row[name] for name in _PLAIN}
    values["rendered"] = row["rendered"] > 0
    values["render_wait"] = _WAITS[row["rendered"]]
    values["redirects"] = orjson.loads(row["redirects"]) if row["redirects"] else []
    values["data"] = orjson.loads(row["data"]) if row["data"] else None
    return Page(**values)

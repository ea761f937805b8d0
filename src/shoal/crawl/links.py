"""The links of a crawl: source page, target URL, link text, and the status of the target.

Only crawls with the option `links` (which `analyze` sets, too) store link URLs and texts. In all other crawls, the
pages that link to a given URL can still be found, because each page stores the keys of its link targets.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from shoal.base.clock import Clock, SystemClock
from shoal.base.database import Database, Tx
from shoal.base.errors import NotFound
from shoal.base.url import Canonicalizer, Url, UrlRefusal
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.admin_store import FrontierAdminStore, Key
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import key_of
from shoal.extract.links import resolve_links, unpack_links
from shoal.pages.export.output import ExportFilter
from shoal.pages.links import LinkFlag, pack_key, unpack
from shoal.pages.page import Page
from shoal.pages.store import PageStore, TargetStatus

PAGES: Final = 100  # maximum number of pages that one query reads
AT_ONCE: Final = 10  # pages whose links are in memory at the same time: each page may have thousands of links
BATCH: Final = 2_000  # links
BLOBS: Final = 2_000  # pages whose keys are searched at the same time
MOST_CACHED: Final = 100_000  # statuses
FIX: Final = "run the crawl with --links FILE or with the option links"
UNKNOWN: Final = TargetStatus()


class Link(NamedTuple):
    """A link from a page to a URL. Text, rel and kind are None if the crawl does not store them. Status and error
    describe the target; they are None if the target was not fetched."""

    source: Url
    target: Url
    text: str | None
    rel: str | None
    nofollow: bool
    kind: str | None
    status: int | None
    error: str | None

    def record(self) -> dict[str, Any]:
        """Return the public record: see `LINK_COLUMNS`."""
        return {
            "from": self.source,
            "to": self.target,
            "text": self.text,
            "rel": self.rel,
            "nofollow": self.nofollow,
            "kind": self.kind,
            "status": self.status,
            "error": self.error,
        }


class LinkPlace(NamedTuple):
    """A position in the list of links: after the page with a number, or after some of that page's links."""

    number: int = 0
    links: int = 0


@dataclass(frozen=True, slots=True)
class LinkFilter:
    """A filter for links; a link must match all given conditions."""

    source: Url | None = None
    target: Url | None = None
    kind: str | None = None
    status: ExportFilter = field(default_factory=lambda: ExportFilter(()))
    skipped: Fate | None = None  # why the target was not requested


@dataclass(frozen=True, slots=True)
class FoundLinks:
    """Links that match a filter. `place`: the position where the search continues; `is_complete`: there are no more
    matching links at present."""

    links: list[Link]
    place: LinkPlace
    is_complete: bool


class CrawlLinks:
    """Reads the links of one crawl, in the order in which its pages were stored."""

    def __init__(
        self,
        database: Database,
        crawl: Crawl,
        max_url_length: int,
        clock: Clock | None = None,
        frontier: FrontierAdminStore | None = None,
    ) -> None:
        """`frontier`: the crawl's frontier, for filtering links by the reason why their targets were skipped."""
        self._database = database
        self._store = PageStore()
        self._frontier = frontier
        self._crawl = crawl
        self._clock = clock or SystemClock()
        self._urls = Canonicalizer(crawl.config.url_rules(max_url_length))
        self._statuses: dict[int, TargetStatus] = {}

    def check_stored(self) -> None:
        """Raise if the crawl does not store link URLs and texts."""
        if not self._crawl.config.links:
            raise NotFound("stored links of crawl", self._crawl.id, FIX)

    def canonical(self, text: str) -> Url | UrlRefusal:
        """Return the canonical form of a URL in this crawl."""
        return self._urls.canonical(text)

    async def search(
        self, wanted: LinkFilter, after: LinkPlace, limit: int, seconds: float = float("inf")
    ) -> FoundLinks:
        """Return the next matching links, or only some of them if the time is up. If the crawl does not store links,
        the search requires the target URL."""
        if not self._crawl.config.links and wanted.target is not None and wanted.source is None:
            return await self._search_keys(wanted, wanted.target, after, limit, seconds)
        self.check_stored()
        until, found, place = self._clock.monotonic() + seconds, list[Link](), after
        async with aclosing(self._by_page(wanted, after)) as pages:
            async for number, links in pages:
                if len(found) == limit or (place != after and self._clock.monotonic() > until):
                    return FoundLinks(found, place, is_complete=False)
                begin = after.links if number == after.number else 0
                end = begin + limit - len(found)
                found += links[begin:end]
                if len(links) > end:
                    return FoundLinks(found, LinkPlace(number, end), is_complete=False)
                place = LinkPlace(number)
        return FoundLinks(found, place, is_complete=True)

    async def all(self, wanted: LinkFilter) -> AsyncIterator[list[Link]]:
        """Yield every matching link, in batches; see `search` for crawls that do not store links."""
        if not self._crawl.config.links:
            found = FoundLinks([], LinkPlace(), is_complete=False)
            while not found.is_complete:
                found = await self.search(wanted, found.place, BATCH)
                yield found.links
            return
        batch = list[Link]()
        async for _, links in self._by_page(wanted, LinkPlace()):
            batch += links
            if len(batch) >= BATCH:
                yield batch
                batch = []
        yield batch

    async def records(self, wanted: LinkFilter | None = None) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the public records of every matching link, in batches."""
        async for links in self.all(wanted or LinkFilter()):
            yield [link.record() for link in links]

    async def _by_page(self, wanted: LinkFilter, place: LinkPlace) -> AsyncGenerator[tuple[int, list[Link]], None]:
        """Yield the number of each page and its matching links, starting at a position."""
        while pages := await self._pages(wanted.source, place):
            for start in range(0, len(pages), AT_ONCE):
                for found in await self._links_of(pages[start : start + AT_ONCE], wanted):
                    yield found
            if wanted.source is not None:
                return
            place = LinkPlace(pages[-1][0])

    async def _pages(self, source: Url | None, place: LinkPlace) -> list[tuple[int, Page]]:
        """Return the next pages. If only some links of the page at the position were read, start with that page
        again."""
        number = self._crawl.number
        if source is None:
            before = place.number - 1 if place.links else place.number

            async def look(tx: Tx) -> list[tuple[int, Page]]:
                found = await self._store.after(tx, number, before, PAGES)
                links = dict((await self._store.outlinks_after(tx, number, before, PAGES))[0])
                for one, page in found:
                    page.outlinks = links.get(one)
                return found

            return await self._database.read(look)
        key = key_of(source, self._crawl.key_seed)
        rows = await self._database.read(lambda tx: self._store.of_keys(tx, number, [key[0]], details=True))
        return [(place.number, page) for _, chk, page in rows if chk == key[1]]

    async def _links_of(self, pages: list[tuple[int, Page]], wanted: LinkFilter) -> list[tuple[int, list[Link]]]:
        """Return the matching links of each page. Runs in a thread, because a page may have thousands of links."""
        read = await asyncio.to_thread(lambda: [(number, self._read(page, wanted)) for number, page in pages])
        await self._learn({key for _, links in read for (key, _), _ in links})
        if wanted.skipped is not None:
            read = await self._skipped(read, wanted.skipped)
        return await asyncio.to_thread(lambda: [(number, self._judged(links, wanted)) for number, links in read])

    def _read(self, page: Page, wanted: LinkFilter) -> list[tuple[Key, Link]]:
        """Return the links of a page, each with its target's key, before the statuses of the targets are known."""
        if page.outlinks is None:
            return []
        written, source, seed = unpack_links(page.outlinks), Url(page.url), self._crawl.key_seed
        if wanted.kind is not None:
            written = replace(written, links=[link for link in written.links if link.kind == wanted.kind])
        links = resolve_links(
            written,
            page.final_url or page.url,
            self._urls,
            page.encoding,
            page.robots,
            refused=wanted.skipped is not None,
        )
        return [
            (key_of(one.url, seed), Link(source, one.url, one.text, one.rel, one.nofollow, one.kind, None, None))
            for one in links
            if wanted.target is None or one.url == wanted.target
        ]

    async def _skipped(
        self, pages: list[tuple[int, list[tuple[Key, Link]]]], why: Fate
    ) -> list[tuple[int, list[tuple[Key, Link]]]]:
        """Leave out links whose target was not skipped for this reason."""
        assert self._frontier is not None, "filtering links by skip reason requires the frontier"
        frontier, crawl = self._frontier, self._crawl.number
        keys = sorted({key for _, links in pages for key, _ in links if key[0] not in self._statuses})
        fates = await self._database.read(lambda tx: frontier.fates_of(tx, crawl, keys))
        return [(number, [one for one in links if fates.get(one[0]) is why]) for number, links in pages]

    def _judged(self, links: list[tuple[Key, Link]], wanted: LinkFilter) -> list[Link]:
        """Add the statuses of the targets. Leave out links whose target status is not wanted."""
        found = []
        for (key, _), link in links:
            known = self._statuses.get(key, UNKNOWN)
            if wanted.status.words and not wanted.status.accepts((known.status, *known.hops), known.error_code):
                continue
            found.append(link._replace(status=known.status, error=known.error_code))
        return found

    async def _learn(self, keys: set[int]) -> None:
        """Look up the statuses of targets. A URL that was fetched as a redirect target has the status of the page that
        redirected."""
        missing = sorted(keys - self._statuses.keys())
        if not missing:
            return
        if len(self._statuses) + len(missing) > MOST_CACHED:
            self._statuses, missing = {}, sorted(keys)
        crawl, seed = self._crawl.number, self._crawl.key_seed
        known = await self._database.read(lambda tx: self._store.statuses_of(tx, crawl, missing))
        sources = {key: key_of(Url(via), seed)[0] for key, via in known.items() if isinstance(via, str)}
        if sources:
            there = await self._database.read(
                lambda tx: self._store.statuses_of(tx, crawl, sorted(set(sources.values())))
            )
            known |= {key: there.get(source, UNKNOWN) for key, source in sources.items()}
        self._statuses |= {key: status for key, status in known.items() if isinstance(status, TargetStatus)}

    async def _search_keys(
        self, wanted: LinkFilter, target: Url, after: LinkPlace, limit: int, seconds: float
    ) -> FoundLinks:
        """Search for links to one URL in the target keys, which every crawl stores."""
        until, found, number = self._clock.monotonic() + seconds, list[Link](), after.number
        key, crawl = key_of(target, self._crawl.key_seed), self._crawl.number
        await self._learn({key[0]})
        is_complete = wanted.kind is not None  # kinds are not stored
        while not is_complete and len(found) < limit and self._clock.monotonic() <= until:
            start = number
            blobs, last = await self._database.read(
                lambda tx: self._store.links_after(tx, crawl, start, BLOBS)  # noqa: B023 - awaited at once
            )
            hits = (await asyncio.to_thread(_links_to, key[0], blobs))[: limit - len(found)]
            urls = await self._database.read(
                lambda tx: self._store.urls_of(tx, crawl, [source for _, source, _ in hits])  # noqa: B023 - awaited here
            )
            links = [
                (key, Link(urls[source], target, None, None, bool(flags & LinkFlag.NOFOLLOW), None, None, None))
                for _, source, flags in hits
                if source in urls
            ]
            found += self._judged(links, wanted)
            is_complete = last is None and len(found) < limit
            number = hits[-1][0] if len(found) >= limit else number if last is None else last
        return FoundLinks(found, LinkPlace(number), is_complete)


def _links_to(key: int, blobs: Sequence[tuple[int, int, bytes]]) -> list[tuple[int, int, int]]:
    """Return the number and key of each page that links to a key, and the link's flags. Searching for the bytes of a
    key is several times as fast as reading all keys, but the bytes may also match at the border of two neighbouring
    keys."""
    packed, found = pack_key(key), []
    for number, source, blob in blobs:
        if packed in blob:
            links = unpack(blob)
            found += [(number, source, flags) for one, flags in zip(links.keys, links.flags, strict=True) if one == key]
    return found

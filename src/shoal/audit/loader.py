"""Load a crawl from the store as columns, batch by batch: pages first, then links, then details."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.audit.analysis import Analysis
from shoal.audit.analyzer import Analyzer, DetailColumn
from shoal.audit.details import PageDetails, read_page_details
from shoal.audit.prober import Prober, Progress
from shoal.audit.site import NUMBERS, TEXTS, LinkGraph, LinkTargets, PageColumns, Site, SitemapRead, SiteUrls
from shoal.audit.site_store import FIRST_FATE, PAGE_COLUMNS, SiteStore
from shoal.base.database import Database, Tx
from shoal.crawl.store import CrawlStore
from shoal.extract.details import unpacked
from shoal.extract.links import unpack_links
from shoal.pages.store import PageStore

T = TypeVar("T", bound=Sequence[Any])
P = TypeVar("P")  # the place of a row in the order of an index
Read = Callable[[Tx, int, P, int], Awaitable[tuple[list[T], P | None]]]
"""Returns the rows of a crawl after a place, and the place after which to continue (None at the end)."""

BATCH: Final = 5_000  # pages
FATES: Final = 50_000  # URLs per query of fates
MOST_ORIGINS: Final = 50  # maximum number of origins that are probed, and whose robots.txt is read
MOST_BLOCKED: Final = 1_000  # blocked URLs whose text is looked up
MOST_ASKED: Final = 500  # maximum number of probes, and also of other URLs that are requested for analyzers
LONGEST_ASKING: Final = timedelta(minutes=2)  # for all probes, and again for all other URLs
_FIRST_KEY: Final = -(1 << 63)
_LINK: Final = 9  # bytes
_ALWAYS: Final = ("url", "final_url", "content_type", "robots", "redirects", "error_code")


class SiteLoader:
    """Loads what a set of analyzers needs."""

    def __init__(
        self,
        database: Database,
        max_url_length: int,
        prober: Prober | None = None,
    ) -> None:
        """Without a prober, nothing is requested."""
        self._database = database
        self._store = SiteStore()
        self._crawls = CrawlStore()
        self._max_url_length = max_url_length
        self.prober = prober

    async def load(
        self, analysis: Analysis, analyzers: Sequence[Analyzer], progress: Progress, previous: int | None = None
    ) -> Site:
        """Load what the analyzers need. `previous`: the number of the baseline's crawl, if there is one."""
        needs = [analyzer.needs for analyzer in analyzers]
        crawl = analysis.crawl
        stored = await self._database.read(lambda tx: self._crawls.get(tx, analysis.crawl_id))
        assert stored is not None, "an analysis is deleted with its crawl"
        urls = SiteUrls(stored, self._max_url_length)
        site = Site(await self._pages(crawl, {name for need in needs for name in need.pages}, progress), urls)
        site.quarantined = (await self._database.read(lambda tx: self._crawls.counts(tx, crawl))).held
        if any(need.sitemap for need in needs):
            site.sitemaps = await self._sitemaps(crawl)
        site.link_targets = await self._link_targets(crawl, site, progress)
        site.links = await self._links(crawl, site, progress)  # the clicks to each page are measured in any case
        columns = {analyzer.name: analyzer.needs.details for analyzer in analyzers if analyzer.needs.details}
        await self._details(crawl, site, columns, progress)
        if any(need.blocked for need in needs):
            await self._blocked_urls(crawl, site)
        origins = site.origins[:MOST_ORIGINS]
        if any(need.robots for need in needs):
            site.robots = await self._database.read(lambda tx: self._store.robots(tx, origins))
        if previous is not None and any(need.previous for need in needs):
            site.previous = await self._pages(previous, set(TEXTS), progress)
        paths = {path for need in needs for path in need.probes}
        wanted = [origin + path for origin in origins for path in sorted(paths)]
        if wanted and self.prober is not None:
            site.probes = await self.prober.probe(wanted[:MOST_ASKED], LONGEST_ASKING, progress)
        await self._ask(site, analyzers, progress)
        return site

    async def _ask(self, site: Site, analyzers: Sequence[Analyzer], progress: Progress) -> None:
        """Request the URLs that analyzers need, and count those that did not respond."""
        wanted: dict[str, dict[str, None]] = {analyzer.name: {} for analyzer in analyzers}
        for analyzer in analyzers:
            try:
                if site.has_details or not analyzer.needs.details:
                    wanted[analyzer.name] = dict.fromkeys(analyzer.needs.urls(site))
            except Exception as error:  # only this analyzer fails
                site.load_errors[analyzer.name] = f"{type(error).__name__}: {error}"
        urls = list(dict.fromkeys(chain.from_iterable(wanted.values())))
        if urls and self.prober is not None:
            site.asked = await self.prober.check(urls[:MOST_ASKED], LONGEST_ASKING, progress)
        answered = {url for url, answer in site.probes.items() if answer.status is not None}
        for analyzer in analyzers:
            probes = {origin + path for origin in site.origins for path in analyzer.needs.probes}
            targets = wanted[analyzer.name].keys() - site.asked.keys()
            site.unanswered[analyzer.name] = {"targets": len(targets), "probes": len(probes - answered)}

    def close(self) -> None:
        """Close the connections that probes opened."""
        if self.prober is not None:
            self.prober.close()

    async def _pages(self, crawl: int, wanted: set[str], progress: Progress) -> PageColumns:
        chunks: dict[str, list[NDArray[Any]]] = {name: [] for name in NUMBERS}
        texts: dict[str, list[str | None]] = {name: [] for name in TEXTS if name in wanted or name in _ALWAYS}
        shared: dict[str, str] = {}
        async for rows in self._batches(self._store.pages_after, crawl, 0):
            columns = dict(zip(PAGE_COLUMNS, zip(*rows, strict=True), strict=True))
            for name, (kind, missing) in NUMBERS.items():
                values = [missing if value is None else value for value in columns[name]]
                chunks[name].append(np.array(values, kind))
            for name, kept in texts.items():
                kept += _shared(columns[name], columns["url"], name, shared)
            await progress()
        numbers = {
            name: np.concatenate(parts) if parts else np.zeros(0, NUMBERS[name][0]) for name, parts in chunks.items()
        }
        return PageColumns(numbers, texts)

    async def _link_targets(self, crawl: int, site: Site, progress: Progress) -> LinkTargets:
        by_url = {url: page for page, url in enumerate(site.pages.text("url"))}
        aliases: dict[int, int] = {}
        async for rows in self._batches(self._store.redirect_targets_after, crawl, _FIRST_KEY):
            aliases |= {target: by_url[via] for target, _, via in rows if via in by_url}
            await progress()
        blocked: list[int] = []
        after: tuple[int, int] | None = FIRST_FATE
        while after is not None:
            keys, after = await self._database.read(
                lambda tx, at=after: self._store.blocked_after(tx, crawl, at, FATES)  # type: ignore[misc]
            )
            blocked += keys
            await progress()
        return LinkTargets(site.pages["key"], aliases, blocked)

    async def _links(self, crawl: int, site: Site, progress: Progress) -> LinkGraph:
        assert site.link_targets is not None
        numbers, counts = site.pages["number"], np.zeros(len(site.pages), np.int64)
        targets: list[NDArray[np.int32]] = []
        flags: list[NDArray[np.uint8]] = []
        async for rows in self._batches(PageStore().links_after, crawl, 0):
            places = np.searchsorted(numbers, np.array([row[0] for row in rows], np.int64))
            sizes = [len(blob) // _LINK for _, _, blob in rows]
            counts[places] = sizes
            keys = b"".join([blob[: 8 * size] for size, (_, _, blob) in zip(sizes, rows, strict=True)])
            targets.append(site.link_targets.find(np.frombuffer(keys, "<i8")))
            marks = b"".join([blob[8 * size :] for size, (_, _, blob) in zip(sizes, rows, strict=True)])
            flags.append(np.frombuffer(marks, np.uint8))
            await progress()
        offsets = np.zeros(len(site.pages) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        return LinkGraph(
            offsets,
            np.concatenate(targets) if targets else np.zeros(0, np.int32),
            np.concatenate(flags) if flags else np.zeros(0, np.uint8),
            site.link_targets,
        )

    async def _details(
        self, crawl: int, site: Site, columns: Mapping[str, Mapping[str, DetailColumn]], progress: Progress
    ) -> None:
        size, numbers = len(site.pages), site.pages["number"]
        site.details = {analyzer: {name: [None] * size for name in names} for analyzer, names in columns.items()}
        computed = {
            analyzer: [(site.details[analyzer][name], compute) for name, compute in names.items()]
            for analyzer, names in columns.items()
        }
        references: Counter[str] = Counter()
        site.has_details = False
        async for rows in self._batches(PageStore().details_after, crawl, 0):
            site.has_details = True
            places = np.searchsorted(numbers, np.array([row[0] for row in rows], np.int64)).tolist()
            for place, details in _readable(places, rows):
                references["images"] += len(details.images)
                references.update([resource.kind for resource in details.resources])
                for analyzer, parts in computed.items():
                    try:
                        for column, compute in parts:
                            column[place] = compute(details)
                    except Exception as error:  # only this analyzer fails
                        site.load_errors[analyzer] = f"{type(error).__name__}: {error}"
            for failed in computed.keys() & site.load_errors.keys():
                del computed[failed]
            await progress()
        site.references = references if site.has_details else None

    async def _sitemaps(self, crawl: int) -> list[SitemapRead]:
        rows = await self._database.read(lambda tx: self._store.sitemaps(tx, crawl))
        return [
            SitemapRead(url, status, problem, np.frombuffer(keys or b"", "<i8")) for url, status, problem, keys in rows
        ]

    async def _blocked_urls(self, crawl: int, site: Site) -> None:
        """Find the text of blocked URLs among the links of pages that link to them, because the frontier stores only
        hashes of blocked URLs."""
        assert site.link_targets is not None
        assert site.links is not None
        sources = site.links.sources(site.link_targets.is_blocked, 1)
        wanted = {target: pages[0] for target, pages in sources.items() if pages}
        for target, page in list(wanted.items())[:MOST_BLOCKED]:
            if target in site.blocked_urls:
                continue
            number = int(site.pages["number"][page])
            stored = await self._database.read(lambda tx, at=number: PageStore().numbered(tx, crawl, at))  # type: ignore[misc]
            if stored is not None and (stored.outlinks or stored.detail):
                self._match_blocked(site, page, stored.outlinks, stored.detail)

    @staticmethod
    def _match_blocked(site: Site, page: int, outlinks: bytes | None, detail: bytes | None) -> None:
        """Look for blocked URLs among the links of a page; earlier versions stored the links in the page details."""
        assert site.link_targets is not None
        written = unpack_links(outlinks) if outlinks is not None else unpacked(detail or b"")
        base = site.pages.answered_at(page) if written.base is None else written.base
        resolved = site.urls.resolve(base, [link.url for link in written.links])
        for target, url in zip(site.find(resolved).tolist(), resolved, strict=True):
            if url is not None and target >= site.link_targets.pages:
                site.blocked_urls[target] = url

    async def _batches(self, read: Read[P, T], crawl: int, after: P) -> AsyncIterator[list[T]]:
        """Yield batches of rows. The next one is read while the current one is used."""

        async def batch(at: P) -> tuple[list[T], P | None]:
            return await self._database.read(lambda tx: read(tx, crawl, at, BATCH))

        rows, last = await batch(after)
        while rows or last is not None:
            following = None if last is None else asyncio.create_task(batch(last))
            try:
                if rows:
                    yield rows
                rows, last = ([], None) if following is None else await following
            finally:
                if following is not None:
                    following.cancel()


def _shared(
    values: Sequence[str | None], urls: Sequence[str], name: str, shared: dict[str, str]
) -> Sequence[str | None]:
    """Return the values of a text column, with equal texts shared to save memory: most final and canonical URLs equal
    the page URL, and there are only a few content types."""
    if name in ("final_url", "canonical"):
        return [url if value == url else value for value, url in zip(values, urls, strict=True)]
    if name in ("content_type", "lang", "robots", "error_code"):
        return [None if value is None else shared.setdefault(value, value) for value in values]
    return values


def _readable(places: Sequence[int], rows: Sequence[tuple[int, bytes]]) -> Iterator[tuple[int, PageDetails]]:
    """Yield the details that can be read, each with the index of its page."""
    for place, (_, blob) in zip(places, rows, strict=True):
        try:
            yield place, read_page_details(blob)
        except ValueError:  # written by a different version; the page is treated like a page without details
            continue

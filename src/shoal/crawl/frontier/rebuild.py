"""Rebuilds a lost frontier from the pages of the crawl.

A page stores the hashes of its link targets, not the URLs. So some pages have to be fetched again to find the URLs that
have no page yet: as few pages as possible, such that each of these URLs is found at its smallest depth. All other pages
are recorded as settled. Seeds and sitemaps are added again. A page that is fetched again keeps its record and its
redirect targets. Only this page may request these targets again; for all other pages, they count as known.
"""

import secrets
import sys
from typing import NamedTuple, Protocol, runtime_checkable

from shoal.base.database import Database, Tx
from shoal.base.errors import BackendUnavailable, FrontierLost, StateConflict
from shoal.base.url import Url, UrlRefusal, canonical
from shoal.crawl import journal_messages as messages
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.redirects import LOOP
from shoal.crawl.frontier.values import NewUrl, RedirectTarget, key_of
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.scope import first_urls, guesses, seeds_of, wants_sitemaps
from shoal.crawl.store import FrontierStore
from shoal.pages.links import unpack
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from shoal.queue.job import Fence
from shoal.queue.queue import Queue

PAGES_AT_ONCE = 500


def outage(error: FrontierLost) -> BackendUnavailable:
    """Return the error that reports a lost frontier as an outage. After an outage, the walker attaches again, which
    rebuilds the frontier."""
    return BackendUnavailable("the frontier", f"it is lost: {error.why}", "it is rebuilt from the pages")


KnownPage = tuple[tuple[int, int], Url | None]
"""The key of a page, and the URL that responded, or None if none responded."""

ClaimedTarget = tuple[tuple[int, int], RedirectTarget]
"""The key of a redirect target, and the target's record."""


@runtime_checkable
class LosableFrontier(FrontierStore, Protocol):
    """A frontier whose store may lose it."""

    async def restart(
        self, tx: Tx, crawl: int, fence: Fence, generation: str, *, lost_generation: str | None = None
    ) -> None:
        """Replace a lost frontier with an empty one, which only this walker may use until `finish_rebuild`. Raise
        `BackendUnavailable` if the stored generation is no longer the lost one, because then another walker was
        faster."""
        ...

    async def keep_known(self, tx: Tx, crawl: int, fate: Fate, pages: list[KnownPage]) -> None:
        """Record pages that were settled before the frontier was lost, and add them to the page counts of their hosts.
        Idempotent."""
        ...

    async def claim_targets(self, tx: Tx, crawl: int, targets: list[ClaimedTarget]) -> None:
        """Record redirect targets, so that each target is fetched only by the page that redirects to it. Idempotent."""
        ...

    async def finish_rebuild(self, tx: Tx, crawl: int) -> None: ...


class FrontierRebuild:
    """The rebuilding of one crawl's frontier by one of its walkers."""

    def __init__(self, database: Database, crawls: Crawls, frontier: FrontierStore, queue: Queue) -> None:
        assert isinstance(frontier, LosableFrontier)
        self._database = database
        self._crawls = crawls
        self._frontier = frontier
        self._pages = PageStore()
        self._queue = queue
        self._own: set[int] = set()  # keys of URLs that have a page
        self._targets: set[int] = set()  # keys of URLs that were fetched as redirect targets
        self._claimed: set[int] = set()  # keys of redirect targets that are assigned to a page
        # By URL key: the depth at which the URL will be found, because a page that links to it is fetched again.
        self._found_at: dict[int, int] = {}
        self._landed: list[Url] = []  # the URLs that seeds redirected to

    async def run(self, crawl: Crawl, fence: Fence, lost_generation: str | None = None) -> int:
        """Rebuild the frontier, in many commits; return the number of pages that will be fetched again. If the walker
        dies or the store loses the frontier meanwhile, the next attempt starts over. If several walkers find the same
        generation lost, only the first walker rebuilds the frontier."""
        if crawl.config.more_seeds:
            raise FrontierLost(crawl.id, "seeds that were added later were stored only in the frontier")
        generation = secrets.token_hex(8)

        async def begin(tx: Tx) -> None:
            await self._crawls.store.lock(tx, crawl.id)
            await self._queue.fence(tx, fence)
            try:
                await self._frontier.restart(tx, crawl.number, fence, generation, lost_generation=lost_generation)
            except StateConflict as error:
                raise FrontierLost(crawl.id, "Redis holds a frontier of another store under this crawl id") from error

        # The mark that keeps other walkers out is committed before the first page is added (0042).
        await self._database.run(begin)
        try:
            return await self._fill(crawl, fence)
        except FrontierLost as error:
            raise outage(error) from error

    async def _fill(self, crawl: Crawl, fence: Fence) -> int:
        await self._read_keys(crawl)
        again = await self._add_pages(crawl, fence)

        async def end(tx: Tx) -> None:
            await self._queue.fence(tx, fence)
            first = first_urls(seeds_of(crawl.config), crawl.key_seed, crawl.config)
            if wants_sitemaps(crawl.config):
                first += guesses(self._landed, crawl.key_seed)
            await self._frontier.reopen(tx, crawl.number, [url for url in first if not self._is_known(url.key)], [])
            # Remove the mark in the commit of the last URLs: if we die before this commit, the mark stays, and the next
            # walker starts over (0042).
            await self._frontier.finish_rebuild(tx, crawl.number)
            await self._crawls.journal.write(tx, crawl.number, [messages.frontier_rebuilt(again)])

        await self._database.run(end)
        return again

    async def _read_keys(self, crawl: Crawl) -> None:
        after = 0
        while found := await self._pages_after(crawl, after):
            after = found[-1][0]
            for _, page in found:
                self._own.add(key_of(Url(page.url), crawl.key_seed)[0])
                followed = _redirects(crawl, page).followed
                self._targets.update(key_of(url, crawl.key_seed)[0] for url in followed)
                if page.depth == 0 and page.status is not None:
                    self._landed += followed[-1:]

    async def _add_pages(self, crawl: Crawl, fence: Fence) -> int:
        after, again = 0, 0
        while found := await self._pages_after(crawl, after):
            after = found[-1][0]
            settled: dict[Fate, list[KnownPage]] = {}
            claims: list[ClaimedTarget] = []
            reopened: list[NewUrl] = []
            for _, page in found:
                key, redirects = key_of(Url(page.url), crawl.key_seed), _redirects(crawl, page)
                fate = Fate.FAILED if page.status is None else Fate.FETCHED
                ours = self._claims(crawl, page, redirects.followed, fate)
                # If a page cannot follow its redirects again, it cannot find its links either. The page of the redirect
                # target finds them.
                can_follow = len(ours) == len(redirects.followed)
                if fate is Fate.FETCHED and can_follow and self._leads_on(crawl, page, redirects.ahead):
                    reopened.append(NewUrl(*key, Url(page.url), page.depth, Fate.OPEN))
                else:
                    answered = None if page.status is None else Url(page.answered_at)
                    settled.setdefault(fate, []).append((key, answered))
                claims += ours
            again += len(reopened)
            await self._keep(crawl, fence, settled, claims, reopened)
        return again

    async def _keep(
        self,
        crawl: Crawl,
        fence: Fence,
        settled: dict[Fate, list[KnownPage]],
        claims: list[ClaimedTarget],
        reopened: list[NewUrl],
    ) -> None:
        async def commit(tx: Tx) -> None:
            # If we have lost the lease, these pages would go into the frontier that a successor has begun (0042).
            await self._queue.fence(tx, fence)
            await self._frontier.reopen(tx, crawl.number, reopened, [])
            for fate, pages in settled.items():
                await self._frontier.keep_known(tx, crawl.number, fate, pages)
            await self._frontier.claim_targets(tx, crawl.number, claims)

        await self._database.run(commit)

    def _claims(self, crawl: Crawl, page: Page, followed: list[Url], fate: Fate) -> list[ClaimedTarget]:
        """Return the redirect targets that are assigned to this page. If Redis lost a claim, several pages may have
        fetched the same target, or a target may also have its own page. A target with its own page is not assigned;
        otherwise the first page gets it."""
        claims: list[ClaimedTarget] = []
        for place, url in enumerate(followed, 1):
            key = key_of(url, crawl.key_seed)
            if key[0] not in self._own and key[0] not in self._claimed:
                self._claimed.add(key[0])
                is_last = place == len(followed)
                end = Fate.FAILED if is_last and fate is Fate.FAILED else Fate.FETCHED_VIA
                claims.append((key, RedirectTarget(url, page.url, end)))
        return claims

    def _leads_on(self, crawl: Crawl, page: Page, ahead: Url | None) -> bool:
        """Return whether a page links to lost URLs, or to URLs that were so far found only at a greater depth. Later
        calls treat these URLs as found."""
        found: list[tuple[int, int]] = []
        if ahead is not None:
            found.append((key_of(ahead, crawl.key_seed)[0], page.depth))
        follows = crawl.config.sitemap != "only" and page.depth < crawl.config.deepest
        if follows and page.links is not None:
            found += [(key, page.depth + 1) for key in unpack(page.links).followed()]
        nearer = {
            key: depth
            for key, depth in found
            if not self._is_known(key) and self._found_at.get(key, sys.maxsize) > depth
        }
        self._found_at |= nearer
        return bool(nearer)

    def _is_known(self, key: int) -> bool:
        return key in self._own or key in self._targets

    async def _pages_after(self, crawl: Crawl, after: int) -> list[tuple[int, Page]]:
        return await self._database.read(lambda tx: self._pages.after(tx, crawl.number, after, PAGES_AT_ONCE))


class _Redirects(NamedTuple):
    """The URLs that a page's redirects led to, in canonical form: the `followed` URLs, and the URL `ahead` that was not
    followed, if there is one."""

    followed: list[Url]
    ahead: Url | None


def _redirects(crawl: Crawl, page: Page) -> _Redirects:
    # In a redirect loop, every URL that a page links to gets its own record. So the URLs of a loop do not count as
    # redirect targets here, and are found again unless they have a record.
    if not page.redirects or page.final_url is None or page.error_code == LOOP:
        return _Redirects([], None)
    written = [*(hop["url"] for hop in page.redirects), page.final_url]
    *passed, last = [canonical(url, crawl.config.url_rules()) for url in written]
    was_fetched = page.answered_at == page.final_url
    followed = dict.fromkeys([*passed, last] if was_fetched else passed)
    urls = [url for url in followed if not isinstance(url, UrlRefusal) and url != page.url]
    if isinstance(last, UrlRefusal) or last in followed or last == page.url:
        return _Redirects(urls, None)
    return _Redirects(urls, last)

"""Turns a fetched page into its record, its fate and the URLs it links to. Does no I/O and keeps no state except
caches."""

from collections.abc import Callable, Iterable
from itertools import compress
from typing import cast

from msgspec.structs import replace

from shoal.base.clock import Clock
from shoal.base.url import Canonicalizer, Url, UrlRefusal
from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.known_urls import MOST_EACH, RecalledPage, SeenCache
from shoal.crawl.frontier.fates import REOPENING, Fate
from shoal.crawl.frontier.traps import TrapWatch
from shoal.crawl.frontier.values import (
    AWAITED_SECONDS,
    AwaitedTarget,
    FrontierTask,
    NewUrl,
    PendingRedirect,
    Settled,
    WalkerBatch,
    key_of,
)
from shoal.crawl.scope import CrawlScope, guesses, may_be_sitemap, new_sitemap, seeds_of, wants_sitemaps
from shoal.extract.encoding import with_encoded_queries
from shoal.extract.page import PageFacts, forbids_following
from shoal.hosts.robots_cache import FAILURES_OF_THE_HOST, RobotsUnavailable
from shoal.pages.links import LinkFlag, join, pack
from shoal.pages.page import NOT_MODIFIED, Page
from shoal.web.page_fetcher import Fetched, Retries
from shoal.web.page_record import facts_to_page, further_to_page, response_to_page, shown_hops

KEPT_FACTS = (
    *("content_type", "encoding", "bytes", "title", "description", "canonical", "robots", "lang", "h1", "word_count"),
    *("content_hash", "links_internal", "links_external", "rendered", "render_wait"),
    *("data", "text_hash", "fingerprint", "detail", "links", "outlinks", "flags"),
)
"""The fields that are copied to an unchanged page from its record in the previous crawl."""

ROBOTS_RETRY_SECONDS = 5.0
MOST_AWAITED_SECONDS = 30.0  # between two checks of the URL that a redirect waits for
MOST_REMEMBERED = 50_000  # invalid links, or URLs to be judged again
LONGEST_REFUSED = 200  # characters

REFUSED: dict[UrlRefusal, Fate] = {
    UrlRefusal.INVALID_URL: Fate.SKIPPED_INVALID_URL,
    UrlRefusal.SCHEME_NOT_ALLOWED: Fate.SKIPPED_SCHEME,
    UrlRefusal.URL_TOO_LONG: Fate.SKIPPED_URL_TOO_LONG,
    UrlRefusal.HOST_TOO_LONG: Fate.SKIPPED_INVALID_URL,
    UrlRefusal.CREDENTIALS_IN_URL: Fate.SKIPPED_CREDENTIALS,
    UrlRefusal.CONTROL_CHARACTERS: Fate.SKIPPED_CONTROL_CHARACTERS,
    UrlRefusal.BACKSLASH_IN_URL: Fate.SKIPPED_BACKSLASH,
}


class PageReader:
    """Reads the pages of one walker."""

    def __init__(
        self,
        crawl: Crawl,
        urls: Canonicalizer,
        clock: Clock,
        *,
        retries: Retries,
        denies: Callable[[Url], bool] = lambda url: False,
        checks_links: bool = True,
    ) -> None:
        config, seeds = crawl.config, seeds_of(crawl.config)
        self.key_seed = crawl.key_seed
        self.scope = CrawlScope(config, seeds)
        self.urls = urls
        self.clock = clock
        self.retries = retries
        self._lone_seed = seeds[0] if len(set(seeds)) == 1 else None  # set if the crawl has only one seed
        self.is_out_of_reach = False  # whether the lone seed cannot be reached: then nothing is retried
        self._known = SeenCache(crawl.key_seed)
        self._refused: set[str] = set()  # invalid links that were already reported, as written
        self._again: set[Url] = set()  # skipped URLs that are judged again when they are found on a different path
        self._again_length = 0  # in characters
        self._respect_robots = config.robots == "obey"  # robots meta tags, X-Robots-Tag and rel=nofollow
        self._follow = config.sitemap != "only"  # links of pages; sitemaps are followed in any case
        self._guess_sitemaps = wants_sitemaps(config)  # at hosts that seeds redirect to
        self._denies = denies  # returns whether the robots.txt of the URL's host is known and forbids the URL
        self._checks_links = checks_links  # whether links are checked against robots.txt before they are stored
        self.traps = TrapWatch(clock.now().year)

    def read(self, task: FrontierTask, fetched: Fetched, batch: WalkerBatch) -> Settled:
        """Settle a fetched page, and add the URLs in its links to the batch."""
        code = "" if fetched.failure is None else fetched.failure.code
        wait = None if self._has_no_way_in(task, code) else self.retries.retry_in_seconds(task.attempts, fetched)
        if wait is not None:
            return Settled(task, Fate.OPEN, retry_in_seconds=wait, retried_after=code or str(fetched.status))
        page = self._page(task, fetched)
        if fetched.further is not None:
            further_to_page(fetched.further, page)
        if fetched.status == NOT_MODIFIED and not task.is_conditional:
            page.etag = page.last_modified = (
                None  # the request was not conditional, so the validators belong to no known page
            )
        elif fetched.status == NOT_MODIFIED:
            done = Settled(task, Fate.FETCHED, page)
            batch.unchanged.append(done)
            return done
        before = len(batch.found)
        if fetched.facts is not None:
            self._links(task, fetched, fetched.facts, page, batch)
        if fetched.status == 200:  # all error pages look the same, but this does not make them a trap
            new = batch.found[before:]
            known = (page.links_internal or 0) - len(new)
            self.traps.notice(task.url, task.depth, fetched.facts, new, known, batch)
            if fetched.facts is None and task.depth == 0:
                self._read_as_sitemap(fetched, batch)
        return Settled(task, Fate.FETCHED if fetched.status is not None else Fate.FAILED, page)

    def _read_as_sitemap(self, fetched: Fetched, batch: WalkerBatch) -> None:
        """If the content type or the name of a seed suggests a sitemap or a feed, queue the seed to be read as a
        sitemap."""
        url = self.urls.canonical(fetched.final_url)
        if not isinstance(url, UrlRefusal) and may_be_sitemap(url, fetched.content_type):
            if fetched.redirects:
                self.scope.widen(url)
            batch.found.append(new_sitemap(url, 0, self.key_seed))

    def redirect(self, task: FrontierTask, fetched: Fetched, batch: WalkerBatch) -> Settled:
        """Judge the target of a redirect like a link. If the target may be fetched, the task continues there.

        Otherwise the task ends here, and the target gets its own fate. Targets of seeds are always in scope.
        """
        page = self._page(task, fetched)
        url, target = Url(fetched.final_url), self.urls.canonical(fetched.final_url)
        if isinstance(target, UrlRefusal):
            page.error_code, page.error_message = (
                target.code,
                f"The redirect leads to an address that {target.problem}.",
            )
            return Settled(task, Fate.FAILED, page)
        key, chk = key_of(target, self.key_seed)
        fate = self._judge_target(task, target)
        if fate is Fate.OPEN and self.traps.holds(target):
            batch.found.append(NewUrl(key, chk, target, task.depth, Fate.QUARANTINED, task.key))
            return Settled(task, Fate.FETCHED, page)
        if fate is Fate.OPEN and self._denies(url):
            fate = Fate.SKIPPED_ROBOTS
        if fate is not Fate.OPEN:
            self._remember(target, fate)
            batch.skipped.append((key, chk, fate))
            return Settled(task, Fate.FETCHED, page)
        assert fetched.chain is not None
        chain = replace(fetched.chain, key=key, chk=chk, members=self._members(fetched, page))
        own = {task.url, *(self.urls.canonical(step.url) for step in chain.steps)}
        return Settled(task, Fate.OPEN, onward=PendingRedirect(url, target, chain, page, is_new=target not in own))

    def judge_target_again(self, task: FrontierTask) -> Fate:
        """Return the fate of a redirected task after the options of the crawl were changed."""
        target = self.urls.canonical(task.at)
        if isinstance(target, UrlRefusal):
            return REFUSED[target]
        judged = self.judge_again(task)
        return self._judge_target(task, target) if judged is Fate.OPEN else judged

    def turned_away(self, task: FrontierTask, fate: Fate) -> Settled:
        """Settle a page that redirects to a URL that is not fetched. The page gets the fate of that URL."""
        page = self._bare(task)
        if task.chain is not None:
            page.status = task.chain.steps[-1].status
            page.content_type = task.chain.content_type
            page.bytes = task.chain.bytes
            page.duration_ms = round(task.chain.seconds * 1000, 3)
        return Settled(task, Fate.FETCHED, page, target_fate=fate)

    def end_redirects(self, task: FrontierTask, awaited: AwaitedTarget) -> Settled:
        """Settle a page that waited for the outcome of its redirect target, or a page that is itself such a target."""
        chain = task.chain
        page = None if chain is None else chain.page
        if awaited.is_circular and chain is not None and page is not None:
            # Nobody else will request the target again, so this page requests it and finds out where it leads.
            url = Url(page.final_url or page.url)
            onward = PendingRedirect(url, url, replace(chain, page=None), page, is_new=False)
            return Settled(task, Fate.OPEN, onward=onward)
        if awaited.is_open:
            waited_seconds = 4.0 if page is None else (self.clock.micros() - page.fetched_at) / 1e6
            wait_seconds = min(max(waited_seconds / 4, AWAITED_SECONDS), MOST_AWAITED_SECONDS)
            return Settled(task, Fate.OPEN, untried=True, retry_in_seconds=wait_seconds)
        if awaited.failure is not None:
            failed = self._bare(task)
            failed.redirects, failed.final_url = shown_hops(awaited.failure.redirects), awaited.leads_to
            failed.error_code, failed.error_message = awaited.failure.code, awaited.failure.message
            if page is not None:
                failed.fetched_at, failed.body_file = page.fetched_at, page.body_file
                failed.body_offset, failed.body_length = page.body_offset, page.body_length
            return Settled(task, Fate.FAILED, failed)
        return Settled(task, Fate.FETCHED, page)

    def _judge_target(self, task: FrontierTask, target: Url) -> Fate:
        return Fate.OPEN if task.depth == 0 else self.scope.judge(target, task.depth)

    @staticmethod
    def _members(fetched: Fetched, page: Page) -> bytes:
        """Return the redirect responses so far as WARC records, if bodies are stored."""
        if not fetched.captured:
            return b""
        from shoal.pages import warc  # imported only by crawls that store bodies

        return b"".join([warc.exchange_members(one, page.fetched_at) for one in fetched.captured]) + fetched.earlier

    def recall(self, done: Settled, recalled: RecalledPage | None, batch: WalkerBatch) -> None:
        """Complete an unchanged page with data from the previous crawl, and follow its links as if the page had been
        read.

        If the previous record of the page is gone, the page is fetched again, without a condition.
        """
        page = done.page
        if recalled is None or page is None:
            done.fate, done.page = Fate.OPEN, None
            return
        for name in KEPT_FACTS:
            setattr(page, name, getattr(recalled.page, name))
        page.etag = page.etag or recalled.page.etag
        page.last_modified = page.last_modified or recalled.page.last_modified
        urls, why_not = dict.fromkeys(recalled.urls), self._why_not(page)
        if why_not is None:
            self.find(urls, done.task.depth + 1, done.task.key, batch)
        else:
            self._passed_over(urls, why_not, batch)

    def judge_again(self, task: FrontierTask) -> Fate:
        """Return the fate of a waiting URL after the crawl's options were changed. Seeds are always in scope."""
        return Fate.OPEN if task.depth == 0 else self.scope.judge_inside(task.url, task.depth)

    def has_out_of_scope(self, tasks: Iterable[FrontierTask]) -> bool:
        """Return whether some tasks are out of the scope that this walker knows. That happens after another walker has
        fetched a seed that redirects to a new host."""
        return not all(self.scope.inside_flags(task.url for task in tasks))

    def forget(self) -> None:
        """Empty the caches, because some URLs in them may not have reached the store."""
        self._known = SeenCache(self.key_seed)
        self._again.clear()
        self._again_length = 0
        self._refused.clear()

    def killer(self, task: FrontierTask) -> Settled:
        """Fail a URL that was the only one in flight each time the worker died, so that the crawl can continue."""
        page = self._bare(task)
        page.error_code = "worker_killed"
        page.error_message = "The worker died every time it fetched this page with no other page in flight."
        return Settled(task, Fate.FAILED, page)

    def unexpected(self, task: FrontierTask, error: Exception) -> Settled:
        """Fail a page because reading it raised an unexpected error."""
        page = self._bare(task)
        page.error_code = "unexpected"
        page.error_message = f"{type(error).__name__}: {error}"[:500]
        return Settled(task, Fate.FAILED, page)

    def without_robots(self, task: FrontierTask, why: RobotsUnavailable) -> Settled:
        """Schedule a retry for a page if the robots.txt of its host could not be reached. After the last attempt, fail
        the page."""
        if not self._has_no_way_in(task, why.code) and task.attempts + 1 < self.retries.attempts:
            return Settled(task, Fate.OPEN, retry_in_seconds=ROBOTS_RETRY_SECONDS)
        page = self._bare(task)
        page.error_code = why.code
        page.error_message = why.message
        return Settled(task, Fate.FAILED, page)

    def _has_no_way_in(self, task: FrontierTask, code: str) -> bool:
        """Return whether the only seed could not be reached.

        In that case, nothing is retried: there is nothing else to crawl, and the user learns of a mistyped address
        immediately.
        """
        if task.url != self._lone_seed or task.depth > 0 or not code.startswith(FAILURES_OF_THE_HOST):
            return False
        self.is_out_of_reach = True
        return True

    def _bare(self, task: FrontierTask) -> Page:
        return Page(
            url=task.url,
            final_url=task.at,
            redirects=[] if task.chain is None else shown_hops(task.chain.hops),
            depth=task.depth,
            parent=task.parent,
            fetched_at=self.clock.micros(),
            attempt=task.attempts + 1,
        )

    def _page(self, task: FrontierTask, fetched: Fetched) -> Page:
        page = self._bare(task)
        response_to_page(fetched, page)
        return page

    def _links(self, task: FrontierTask, fetched: Fetched, facts: PageFacts, page: Page, batch: WalkerBatch) -> None:
        final = task.url if fetched.final_url == task.url else self.urls.canonical(fetched.final_url)
        if isinstance(final, UrlRefusal):
            return
        if task.depth == 0 and fetched.redirects:
            self.scope.widen(final)
            if self._guess_sitemaps:
                batch.found += guesses([final], self.key_seed)
        facts_to_page(fetched, facts, page)
        base = self.urls.base(final, facts.base)
        known = batch if self.scope.inside(final) else None  # links of pages out of scope are not stored
        written = facts.links + facts.nofollow
        if facts.encoding != "utf-8":
            written = with_encoded_queries(written, facts.encoding)
        resolved = self.urls.resolve(base, written, self._known.texts)
        if known is not None and not REFUSED.keys().isdisjoint(resolved):
            self._refuse(written, resolved, known)
        marked_from = len(facts.links) if self._respect_robots else len(written)
        followed = _valid(resolved[:marked_from])
        in_scope = self.scope.inside_flags(followed)
        page.links_internal = sum(in_scope)
        page.links_external = len(followed) - page.links_internal
        why_not = self._why_not(page)
        if why_not is not None:
            page.links = self._passed_over(followed, why_not, known)
        elif known is None:
            page.links = pack(map(self._known.packed, followed), bytes(in_scope))  # true is the flag INTERNAL
        else:
            page.links = pack(self._find(followed, in_scope, task.depth + 1, task.key, known), bytes(in_scope))
        if marked := {url: None for url in _valid(resolved[marked_from:]) if url not in followed}:
            page.links = join(page.links, self._passed_over(marked, why_not or Fate.SKIPPED_NOFOLLOW, known))

    def _refuse(self, links: list[str], resolved: list[Url | UrlRefusal], batch: WalkerBatch) -> None:
        """Report invalid links once each. Their key is the hash of the link as it was written."""
        if len(self._refused) >= MOST_REMEMBERED:
            self._refused.clear()
        for written, why in zip(links, resolved, strict=True):
            if isinstance(why, UrlRefusal) and written not in self._refused:
                batch.skipped.append((*key_of(Url(written), self.key_seed), REFUSED[why]))
                if len(written) <= LONGEST_REFUSED:  # a longer link may be a whole image; a second report is harmless
                    self._refused.add(written)

    def _why_not(self, page: Page) -> Fate | None:
        """Return the fate of the page's links if they are not followed; None if they are followed."""
        if not self._follow:
            return Fate.SKIPPED_NOT_IN_SITEMAP
        return (
            Fate.SKIPPED_NOFOLLOW if page.robots and self._respect_robots and forbids_following(page.robots) else None
        )

    def _passed_over(self, urls: dict[Url, None], why_not: Fate, batch: WalkerBatch | None) -> bytes:
        """Return the blob of links that are not followed. If there is a batch, report these links to it.

        Links in scope may still be found on a different path.
        """
        mark = LinkFlag.NOFOLLOW.value if why_not is Fate.SKIPPED_NOFOLLOW else 0
        in_scope = self.scope.inside_flags(urls)
        flags = bytes([mark | inside for inside in in_scope])
        if batch is None:
            return pack(map(self._known.packed, urls), flags)
        keys, unknown = self._known.add(urls, in_scope)
        for url, known_by in unknown.items():
            judged = self.scope.judge(url, 0)
            fate = why_not if judged is Fate.OPEN else judged
            self._remember(url, fate)
            batch.skipped.append((*known_by, fate))
        return pack(keys, flags)

    def find(self, urls: dict[Url, None], depth: int, parent: int, batch: WalkerBatch) -> None:
        """Add URLs that a sitemap lists, or that an unchanged page links to."""
        self._find(urls, self.scope.inside_flags(urls), depth, parent, batch)

    def _remember(self, url: Url, fate: Fate) -> None:
        if fate in REOPENING:
            if len(self._again) >= MOST_REMEMBERED or self._again_length >= MOST_REMEMBERED * MOST_EACH:
                self.forget()
            self._again.add(url)
            self._again_length += len(url)

    def _find(
        self, urls: dict[Url, None], in_scope: list[bool], depth: int, parent: int, batch: WalkerBatch
    ) -> list[bytes]:
        """Add the new URLs to the batch; return the packed keys of all given URLs."""
        keys, unknown = self._known.add(urls, in_scope)
        if self._again and self.scope.deep_enough(
            depth
        ):  # skipped URLs that are found again, at a smaller depth or by a link that may be followed
            unknown |= {url: key_of(url, self.key_seed) for url in urls.keys() & self._again}
        if unknown:
            for url in compress(urls, in_scope):  # in the order of the page
                if url in unknown:
                    self._find_inside(url, unknown.pop(url), depth, parent, batch)
            batch.skipped += [(*key, Fate.SKIPPED_SCOPE) for key in unknown.values()]
        return keys

    def _find_inside(self, url: Url, known_by: tuple[int, int], depth: int, parent: int, batch: WalkerBatch) -> None:
        fate = self.scope.judge_inside(url, depth)
        key, chk = known_by
        if fate is not Fate.OPEN:
            self._remember(url, fate)
            batch.skipped.append((key, chk, fate))
            return
        self._again.discard(url)
        if self._checks_links and self._denies(url):
            batch.skipped.append((key, chk, Fate.SKIPPED_ROBOTS))
            return
        if self.traps.holds(url):
            fate = Fate.QUARANTINED
        batch.found.append(NewUrl(key, chk, url, depth, fate, parent))


def _valid(resolved: list[Url | UrlRefusal]) -> dict[Url, None]:
    """Return the distinct valid URLs among resolved links, in the order of the links. (A page has about sixty links,
    and hardly any of them are invalid.)"""
    urls = dict.fromkeys(resolved)
    for refusal in REFUSED:
        urls.pop(refusal, None)
    return cast("dict[Url, None]", urls)

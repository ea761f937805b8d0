"""Ends redirects whose target was already requested for a different URL, without requesting the target again (decision
0031)."""

from shoal.base.database import Tx
from shoal.base.url import Url, UrlRefusal, canonical
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import AwaitedTarget, FrontierTask, RedirectState, Settled, key_of
from shoal.crawl.store import FrontierStore
from shoal.egress import Hop, circular, endless
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from shoal.web.page_fetcher import RedirectChain

LOOP, TOO_MANY = "redirect_loop", "too_many_redirects"


async def end_elsewhere(frontier: FrontierStore, tx: Tx, crawl: int, redirects: list[Settled]) -> None:
    """Decide about redirects to targets that were already requested for other URLs (the holders of these targets). If
    the holder of a target has a response, the redirect ends with the redirecting URL's page record. If the holder is
    still open or has failed, both URLs may be part of a loop, so the redirect waits."""
    targets = {done.onward.target for done in redirects if done.onward is not None}
    if not targets:
        return
    states = await frontier.redirect_states(tx, crawl, targets)
    if vias := {state.via for state in states.values() if state.via is not None} - states.keys():
        states |= await frontier.redirect_states(tx, crawl, vias)
    for done in redirects:
        assert done.onward is not None
        state = states.get(done.onward.target)
        holder = states.get(state.via) if state is not None and state.via is not None else state
        if holder is not None and holder.fate in (Fate.OPEN, Fate.FAILED):
            done.awaits_target = True
        else:
            done.fate, done.page = Fate.FETCHED, done.onward.page


class AwaitedTargets:
    """Finds the outcomes of the redirect targets that tasks wait for, in one transaction."""

    def __init__(self, tx: Tx, frontier: FrontierStore, crawl: Crawl) -> None:
        self._tx = tx
        self._frontier = frontier
        self._crawl = crawl
        self._rules = crawl.config.url_rules()
        self._states: dict[Url, RedirectState | None] = {}
        self._pages: dict[Url, Page] = {}

    async def find(self, tasks: list[FrontierTask]) -> None:
        """Set the outcomes of the tasks' redirect targets. Also set the outcomes of tasks that are redirect targets
        themselves: they were requested for a different URL, and need a record only if they are part of a loop."""
        await self._read([self._first(task) for task in tasks])
        for task in tasks:
            end = await self._end(task)
            if task.awaits_target or end.is_open or end.failure is not None:
                task.awaited, task.skip_fate = end, None

    async def _end(self, task: FrontierTask) -> AwaitedTarget:
        url, own = self._first(task), self._own(task)
        holder = self._holder(url)
        if (page := self._pages.get(holder)) is not None:
            return self._behind(page, url, own)
        state = self._states[holder]
        if state is None or state.fate is not Fate.OPEN:
            return AwaitedTarget()
        return AwaitedTarget(is_open=True, is_circular=await self._is_circular(task, url, own))

    async def _is_circular(self, task: FrontierTask, url: Url, own: dict[Url, Hop]) -> bool:
        """Follow the chain of URLs that wait for each other. Return whether the last URL in the chain waits for this
        task. If these URLs form a loop that does not contain this task, that loop is resolved first."""
        seen: set[Url] = set()
        while url not in seen:
            seen.add(url)
            await self._read([url])
            holder = self._holder(url)
            if url in own or holder == task.url:
                return True
            state = self._states[holder]
            if holder in self._pages or state is None or state.chain is None or state.chain.page is None:
                return False
            url = self._target(state.chain)
        return False

    def _behind(self, page: Page, url: Url, own: dict[Url, Hop]) -> AwaitedTarget:
        """Return how redirects to a URL end if that URL was requested for this page."""
        if page.error_code not in (LOOP, TOO_MANY):
            return AwaitedTarget()
        hops, passed = [Hop(hop["url"], hop["status"]) for hop in page.redirects], dict(own)
        urls = [self._canonical(hop.url) for hop in hops]
        ahead = [*urls[1:], *([self._canonical(page.final_url or page.url)] if page.error_code == LOOP else [])]
        moves = dict(zip(urls, zip(hops, ahead, strict=False), strict=False))
        while url in moves and url not in passed:
            passed[url], url = moves[url]
        redirects = tuple(passed.values())
        if url in passed:
            failure = circular(redirects[-1].url)
        elif page.error_code == TOO_MANY and len(redirects) >= len(hops):
            redirects = redirects[: len(hops)]
            failure, url = endless(redirects[-1].url), Url(redirects[-1].url)
        else:
            return AwaitedTarget()
        failure.redirects = redirects
        return AwaitedTarget(failure=failure, leads_to=url)

    async def _read(self, urls: list[Url]) -> None:
        """Read the states of URLs, and of the URLs for which they were requested. The pages are read last: by then,
        every settled URL has its page, even if the frontier is not in the database (0042)."""
        unknown = {url for url in urls if url not in self._states}
        if not unknown:
            return
        await self._read_states(unknown)
        vias = {state.via for url in unknown if (state := self._states[url]) is not None and state.via is not None}
        await self._read_states(vias - self._states.keys())
        keys = {key_of(url, self._crawl.key_seed): url for url in unknown | vias}
        pages = await PageStore().of_keys(self._tx, self._crawl.number, [key for key, _ in keys])
        self._pages |= {keys[key, chk]: page for key, chk, page in pages if (key, chk) in keys}

    async def _read_states(self, urls: set[Url]) -> None:
        if urls:
            found = await self._frontier.redirect_states(self._tx, self._crawl.number, urls)
            self._states |= {url: found.get(url) for url in urls}

    def _holder(self, url: Url) -> Url:
        """Return the URL whose record shows the fate of the given URL."""
        state = self._states[url]
        if state is None or state.via is None or state.chain is not None or url in self._pages:
            return url
        return state.via

    def _first(self, task: FrontierTask) -> Url:
        return self._target(task.chain) if task.chain is not None else task.url

    def _own(self, task: FrontierTask) -> dict[Url, Hop]:
        return {} if task.chain is None else {self._canonical(hop.url): hop for hop in task.chain.hops}

    def _target(self, chain: RedirectChain) -> Url:
        assert chain.page is not None
        return self._canonical(chain.page.final_url or chain.page.url)

    def _canonical(self, url: str) -> Url:
        found = canonical(url, self._rules)
        return Url(url) if isinstance(found, UrlRefusal) else found

"""Frontier administration: count the taken URLs of a crawl, explain one of its URLs, clear its frontier, or remove the
crawl. Changes are refused while a walker works on the crawl or may start to."""

import asyncio
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from shoal.access.audit_log import AuditHook, no_audit
from shoal.base.database import Database, Tx
from shoal.base.errors import NotFound, StateConflict
from shoal.base.url import Url, UrlRefusal, canonical
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.admin_store import FrontierAdminStore, UrlFacts, Waiting
from shoal.crawl.frontier.explain import (
    UrlExplanation,
    explain_refusal,
    explain_url,
    explained_by_previous,
    found_in_sitemap,
)
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.traps import trap_of, trap_states
from shoal.crawl.frontier.values import UrlKind, key_of
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.crawl.store import ByDriver
from shoal.pages.bodies import BodyStore
from shoal.queue.queue import Queue

AT_REST = TERMINAL | {CrawlState.PENDING, CrawlState.PAUSED}
BATCH = 1000  # URLs or pages per commit


async def no_files(crawl_id: str) -> None:
    """Do nothing, because the crawl has no other files."""


class FrontierAdmin:
    """Administrative operations on the frontier of a crawl."""

    def __init__(
        self,
        database: Database,
        crawls: Crawls,
        queue: Queue,
        stores: ByDriver[FrontierAdminStore],
        bodies: BodyStore,
        forget_files: Callable[[str], Awaitable[None]] = no_files,
    ) -> None:
        """`forget_files` removes a removed crawl's files that are not in the store."""
        self._database = database
        self._crawls = crawls
        self._queue = queue
        self._stores = stores
        self._bodies = bodies
        self._forget_files = forget_files

    async def taken(self, crawl_id: str) -> int:
        """Count the URLs that walkers hold now."""
        crawl = (await self._crawls.get(crawl_id)).crawl
        return await self._database.read(lambda tx: self._stores.of(crawl).taken(tx, crawl.number))

    async def taken_urls(self, crawl_id: str, limit: int) -> list[Waiting]:
        """Return at most `limit` URLs that walkers hold now."""
        crawl = (await self._crawls.get(crawl_id)).crawl
        return await self._database.read(lambda tx: self._stores.of(crawl).taken_urls(tx, crawl.number, limit))

    async def explain(self, crawl_id: str, text: str, longest: int) -> UrlExplanation:
        """Return the fate of a URL and the reason for it. A URL that is both a page and a sitemap is explained as a
        page. `longest`: the maximum length of a URL, in characters."""
        crawl = (await self._crawls.get(crawl_id)).crawl
        url = canonical(text, crawl.config.url_rules(longest))
        if isinstance(url, UrlRefusal):
            return explain_refusal(text, url)
        return await self._database.read(lambda tx: self._explain(tx, crawl, url))

    async def clear(self, crawl_id: str) -> int:
        """Forget every URL of a crawl, in batches; return the number of URLs. Pages and counters stay. An interrupted
        call leaves a consistent state, and the next call continues from there."""

        async def step(tx: Tx) -> int:
            crawl = await self._locked(tx, crawl_id, AT_REST, "be cleared")
            return await self._stores.of(crawl).forget(tx, crawl.number, BATCH)

        total = 0
        while done := await self._database.run(step):
            total += done
        return total

    async def erase(
        self, crawl_id: str, *, audit: AuditHook = no_audit, progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """Remove a crawl that has ended, in batches: first its stored bodies and analysis files, then its frontier,
        pages and jobs, and finally the crawl itself. An interrupted call leaves a consistent state, except for the
        files, and the next call continues from there. `progress` is called with the number of rows in each batch."""

        async def note(tx: Tx) -> Crawl:
            ended = await self._locked(tx, crawl_id, TERMINAL, "be removed")
            await audit(tx, "crawl.removed", crawl_id)
            return ended

        async def step(tx: Tx) -> int:
            crawl = await self._locked(tx, crawl_id, TERMINAL, "be removed")
            store = self._stores.of(crawl)
            return await store.forget(tx, crawl.number, BATCH) or await store.remove(tx, crawl, BATCH)

        ended = await self._database.run(note)
        await self._bodies.forget(ended.bodies)
        await self._forget_files(crawl_id)
        while rows := await self._database.run(step):
            progress(rows)

    async def at_rest(self, crawl_id: str, action: str) -> CrawlStatus:
        """Return the crawl and its counts. Raise `StateConflict` if a walker works on the crawl or may start to."""

        async def look(tx: Tx) -> CrawlStatus:
            crawl = await self._check(tx, crawl_id, await self._crawls.store.get(tx, crawl_id), AT_REST, action)
            return CrawlStatus(crawl, await self._crawls.store.counts(tx, crawl.number))

        return await self._database.read(look)

    async def _explain(self, tx: Tx, crawl: Crawl, url: Url) -> UrlExplanation:
        facts = await self._facts(tx, crawl, url)
        explanation = explain_url(crawl, url, facts)
        if facts is None:
            return await self._explain_by_previous(tx, crawl, url, explanation)
        if facts.parent is not None:
            key = key_of(Url(facts.parent), crawl.key_seed, UrlKind.SITEMAP)
            if await self._crawls.store.sitemap(tx, crawl.number, key) is not None:
                return found_in_sitemap(explanation, facts.parent)
        return explanation

    async def _explain_by_previous(self, tx: Tx, crawl: Crawl, url: Url, explanation: UrlExplanation) -> UrlExplanation:
        """Look for a URL in the previous crawls that this crawl repeats, the latest first."""
        asked, followed = {str(crawl.id)}, crawl.config.recrawl_of
        # Ids can be reused, so the chain of previous crawls may be a circle.
        while followed is not None and followed not in asked:
            earlier = await self._crawls.store.get(tx, followed)
            if earlier is None or earlier.key_seed != crawl.key_seed:
                break
            facts = await self._facts(tx, earlier, url)
            if facts is not None:
                return explained_by_previous(explanation, earlier, explain_url(earlier, url, facts))
            asked.add(followed)
            followed = earlier.config.recrawl_of
        return explanation

    async def _facts(self, tx: Tx, crawl: Crawl, url: Url) -> UrlFacts | None:
        async def of(kind: UrlKind) -> UrlFacts | None:
            return await self._stores.of(crawl).fate_of(tx, crawl.number, url, kind, key_of(url, crawl.key_seed, kind))

        facts = await of(UrlKind.PAGE) or await of(UrlKind.SITEMAP)
        if facts is None or facts.fate is not Fate.QUARANTINED:
            return facts
        return replace(facts, trap=trap_of(url, await trap_states(tx, crawl.number)))

    async def _locked(self, tx: Tx, crawl_id: str, states: AbstractSet[CrawlState], action: str) -> Crawl:
        return await self._check(tx, crawl_id, await self._crawls.store.lock(tx, crawl_id), states, action)

    async def _check(
        self, tx: Tx, crawl_id: str, crawl: Crawl | None, states: AbstractSet[CrawlState], action: str
    ) -> Crawl:
        if crawl is None:
            raise NotFound("crawl", crawl_id)
        _, locked = await self._queue.jobs.live_of_run(tx, crawl_id)
        if locked or crawl.state not in states:
            fix = "pause or stop it first" if CrawlState.PAUSED in states else "stop it first"
            raise StateConflict("crawl", crawl_id, crawl.state, action, fix)
        return crawl


AT_ONCE: Final = 2  # number of removals that may use the store at the same time; further removals wait


@dataclass(slots=True)
class _Removal:
    """A removal in progress."""

    task: "asyncio.Task[None]"
    rows: int = 0  # number of rows removed so far


class CrawlRemovals:
    """Runs the removals of crawls in this process. If the process ends before a removal is finished, the next request
    to remove that crawl continues it."""

    def __init__(self, admin: FrontierAdmin) -> None:
        self._admin = admin
        self._running: dict[str, _Removal] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    def is_running(self, crawl_id: str) -> bool:
        """Return whether this process is removing the crawl, or is about to."""
        removal = self._running.get(crawl_id)
        return removal is not None and not removal.task.done()

    async def remove(self, crawl_id: str, seconds: float, audit: AuditHook) -> int | None:
        """Remove a crawl that has ended. Return None once the crawl is gone. If the removal takes longer than
        `seconds`, return the number of rows removed so far, and continue in the background."""
        removal = self._running.get(crawl_id) or self._begin(crawl_id, audit)
        done, _ = await asyncio.wait({removal.task}, timeout=seconds)
        if not done:
            return removal.rows
        self._running.pop(crawl_id, None)
        return removal.task.result()

    def _begin(self, crawl_id: str, audit: AuditHook) -> _Removal:
        def count(rows: int) -> None:
            removal.rows += rows

        async def erase() -> None:
            async with self._turns:
                await self._admin.erase(crawl_id, audit=audit, progress=count)

        def ended(task: "asyncio.Task[None]") -> None:
            # An error is kept, so that the next request raises it.
            if not task.cancelled() and task.exception() is None:
                self._running.pop(crawl_id, None)

        removal = _Removal(asyncio.create_task(erase()))
        self._running[crawl_id] = removal
        removal.task.add_done_callback(ended)
        return removal

"""Crawls as users see them, with counts, nodes and the reasons of failures; and the search for crawls."""

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from shoal.base.clock import Clock
from shoal.base.database import Tx
from shoal.base.errors import InvalidInput, NotFound
from shoal.base.text import plural
from shoal.crawl import states
from shoal.crawl.crawl import BUDGETS, Counts, Crawl
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import key_of
from shoal.crawl.journal_messages import left_in_quarantine
from shoal.crawl.lifecycle.failed_urls import FailedSeed, in_words
from shoal.crawl.scope import seeds_of
from shoal.crawl.states import CrawlState
from shoal.crawl.store import CrawlFilter, CrawlStore
from shoal.queue.job import Job, local_lane, node_of
from shoal.queue.queue import Queue

NO_PAGE = "no_seed_gave_a_page"
LEFT = "process_gone"
UNATTENDED = "unattended"
SEEDS_AT_ONCE = 100  # seeds looked up per statement
MOST_SEEDS = 1000  # maximum number of seeds to look up once one of them has returned a page
LIVE = states.WALKED | {CrawlState.QUEUED}


class CrawlStatus(Struct, frozen=True):
    """A crawl with its counts, the nodes that crawl it now, and the error if it failed. All of this is read in one
    transaction."""

    crawl: Crawl
    counts: Counts
    node_ids: tuple[str, ...] = ()
    error_message: str = ""
    failed_seeds: tuple[FailedSeed, ...] = ()  # all seeds if the crawl has ended and no seed returned a page
    dead_seeds: tuple[FailedSeed, ...] = ()  # the failed seeds if the crawl has ended and other seeds returned a page

    @property
    def why_no_seed(self) -> str:
        """Return the reasons why no seed returned a page; empty if a seed did, or if the crawl has not ended."""
        return in_words(self.failed_seeds)

    @property
    def which_seeds_failed(self) -> str:
        """Return how many seeds failed, and why, if at least one other seed returned a page; empty if no seed
        failed."""
        if not self.dead_seeds:
            return ""
        seeds = len(dict.fromkeys(self.crawl.config.seeds)) + self.crawl.config.more_seeds
        whole = f"{seeds:,}" if seeds <= MOST_SEEDS else f"the first {MOST_SEEDS:,}"
        return f"{len(self.dead_seeds):,} of {whole} failed: {in_words(self.dead_seeds)}"

    def cut_off(self, option: Callable[[str, float | None], str], command: Callable[..., str]) -> list[str]:
        """Describe the URLs that each limit cut off, and the URLs in quarantine. `option` formats a limit as the reader
        would set it; `command` formats a command line."""
        config, counts, reason = self.crawl.config, self.counts, self.crawl.state_reason
        deeper, at_full_hosts = counts.skipped.get("depth", 0), counts.skipped.get("host_budget", 0)
        reasons = []
        if deeper and config.depth is None:  # the limit was removed, or these were nested sitemap indexes
            reasons.append(f"{plural(deeper, 'URL')} {_verb(deeper)} deeper than the limit when they were found")
        elif deeper:
            reasons.append(f"{plural(deeper, 'URL')} {_verb(deeper)} deeper than `{option('depth', config.depth)}`")
        if at_full_hosts:
            limit = option("max_pages_per_host", config.max_pages_per_host)
            reasons.append(f"{plural(at_full_hosts, 'URL')} {_verb(at_full_hosts)} beyond `{limit}`")
        if counts.held:
            reasons.append(left_in_quarantine(self.crawl.id, self.crawl.state, counts.held, command))
        if reason in BUDGETS and counts.queued:
            limit = option(reason, getattr(config, reason))
            reasons.append(f"{plural(counts.queued, 'URL')} still queued when `{limit}` was reached")
        return reasons


def _verb(count: int) -> str:
    return "is" if count == 1 else "are"


class CrawlReader:
    """Reads crawls with their status. It changes nothing."""

    def __init__(self, queue: Queue) -> None:
        self._database = queue.database
        self._queue = queue
        self.store = CrawlStore()

    async def get(self, crawl_id: str) -> CrawlStatus:
        async def look(tx: Tx) -> CrawlStatus:
            crawl = await self.store.get(tx, crawl_id)
            if crawl is None:
                raise NotFound("crawl", crawl_id)
            status = await self._look_at(tx, crawl)
            failed, are_all = await self._failed_seeds(tx, crawl)
            if are_all and not (crawl.config.more_seeds and status.counts.responses["2xx"]):
                return replace(status, failed_seeds=failed)
            return replace(status, dead_seeds=failed)

        return await self._database.read(look)

    async def whole_id(self, text: str) -> str:
        """Return the crawl id that a text abbreviates: `last` is the newest crawl, and the beginning of an id is enough
        if it is unique. If no crawl matches, return the text itself; if several crawls match, raise."""

        async def look(tx: Tx) -> list[str]:
            return [text] if await self.store.get(tx, text) is not None else await self.store.ids(tx, text)

        ids = await self._database.read(look)
        if len(ids) > 1:
            raise InvalidInput(text, f"is the beginning of {ids[0]} and {ids[1]}", "write more of the id")
        return ids[0] if ids else text

    async def is_active(self, crawl_id: str) -> bool:
        """Return whether a crawl exists and has not ended."""
        crawl = await self._database.read(lambda tx: self.store.get(tx, crawl_id))
        return crawl is not None and crawl.state not in states.TERMINAL

    async def newest(
        self,
        *,
        after: int | None = None,
        limit: int = 50,
        state: str | None = None,
        project: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[CrawlStatus]:
        return await self.matching(CrawlFilter(state, project, labels or {}), after=after, limit=limit)

    async def matching(
        self, wanted: CrawlFilter, *, after: int | None = None, limit: int = 50, floor: int = 0
    ) -> list[CrawlStatus]:
        """Return crawls that match a filter, newest first, down to the crawl with the number `floor`."""

        async def look(tx: Tx) -> list[CrawlStatus]:
            crawls = await self.store.page_of(tx, after, limit, wanted, floor)
            counts = await self.store.counts_of(tx, [crawl.number for crawl in crawls])
            return [await self._look_at(tx, crawl, counts[crawl.number]) for crawl in crawls]

        return await self._database.read(look)

    async def count(self) -> dict[str, int]:
        """Count the crawls by state."""
        return await self._database.read(self.store.count)

    async def last_number(self) -> int:
        """Return the number of the newest crawl; 0 if there is none."""
        return await self._database.read(self.store.last_number)

    async def live_counts(self) -> dict[int, tuple[int, int]]:
        """Return the numbers of pages and errors of every running crawl, by crawl number."""
        return await self._database.read(self.store.live_counts)

    async def _look_at(self, tx: Tx, crawl: Crawl, counts: Counts | None = None) -> CrawlStatus:
        counts = counts or await self.store.counts(tx, crawl.number)
        # The crawl ended before there were separate reasons for URLs in quarantine.
        if crawl.state_reason == states.DRAINED and counts.held:
            crawl = replace(crawl, state_reason=states.DRAINED_PARTLY)
        if crawl.state not in LIVE and crawl.state is not CrawlState.FAILED:
            return CrawlStatus(crawl, counts)
        jobs = await self._queue.jobs.jobs_of_run(tx, crawl.id)
        nodes = sorted({node_of(job.lease_holder) for job in jobs if job.lease_holder is not None})
        if crawl.state in states.WALKED and not await self._is_leased(tx, jobs):
            live = [job for job in jobs if job.finished_at is None]
            if all(job.lane == local_lane(crawl.id) for job in live):  # workers do not take over such a crawl
                return CrawlStatus(replace(crawl, state_reason=LEFT), counts)
            if crawl.state is CrawlState.RUNNING:
                return CrawlStatus(replace(crawl, state_reason=UNATTENDED), counts)
        why = await self._why(tx, crawl, counts, jobs) if crawl.state is CrawlState.FAILED else ""
        return CrawlStatus(crawl, counts, tuple(nodes), why)

    async def _failed_seeds(self, tx: Tx, crawl: Crawl) -> tuple[tuple[FailedSeed, ...], bool]:
        """If the crawl has ended, return the seeds that returned no page, and whether these are all seeds. If some
        seeds returned a page, only the first `MOST_SEEDS` seeds are looked up."""
        failed = list[FailedSeed]()
        if crawl.state not in states.TERMINAL:
            return (), False
        seeds = [(url, key_of(url, crawl.key_seed)) for url in dict.fromkeys(seeds_of(crawl.config))]
        for start in range(0, len(seeds), SEEDS_AT_ONCE):
            if start >= MOST_SEEDS and len(failed) < start:
                break
            failed += await self.store.failed_seeds(tx, crawl.number, seeds[start : start + SEEDS_AT_ONCE])
        return tuple(failed), len(failed) == len(seeds)

    async def _is_leased(self, tx: Tx, jobs: list[Job]) -> bool:
        """Return whether a process holds one of these jobs. A process that died does not report its end."""
        now = await self.store.now(tx)
        return any(job.finished_at is None and (job.lease_until or now) > now for job in jobs)

    async def _why(self, tx: Tx, crawl: Crawl, counts: Counts, jobs: list[Job]) -> str:
        """Return why a crawl failed: the error of its first failed page, or the error of its jobs."""
        if crawl.state_reason != NO_PAGE:
            return next((job.error for job in reversed(jobs) if job.error), crawl.state_reason or "unknown")
        page = await self.store.first_failure(tx, crawl.number)
        if page is not None:
            return f"{page[0]}: {page[1].rstrip('.')}"
        if Fate.SKIPPED_ROBOTS.word in counts.skipped:
            return "robots.txt disallows it, see `shoal robots test URL`"
        return "the options exclude every seed" if counts.skipped else "no seed was requested"


CRAWLS_AT_ONCE = 2_000  # crawls that one query of a search examines
QUICK = 0.05  # seconds after which a search returns how far it got


class FoundCrawls(Struct, frozen=True):
    """Matching crawls, newest first. `next`: the crawl number after which the search continues; None at the end."""

    crawls: list[CrawlStatus]
    next: int | None


class CrawlSearch:
    """Searches crawls in steps."""

    def __init__(self, crawls: CrawlReader, clock: Clock) -> None:
        self._crawls = crawls
        self._clock = clock

    async def find(
        self, wanted: CrawlFilter, *, after: int | None = None, limit: int = 50, seconds: float = QUICK
    ) -> FoundCrawls:
        """Return at most `limit` matching crawls that are older than the crawl with the number `after`."""
        until = self._clock.monotonic() + seconds
        before = await self._crawls.last_number() + 1 if after is None else after
        found: list[CrawlStatus] = []
        while before > 1:
            floor = max(0, before - CRAWLS_AT_ONCE)
            room = limit + 1 - len(found)
            found += await self._crawls.matching(wanted, after=before, limit=room, floor=floor)
            if len(found) > limit:
                return FoundCrawls(found[:limit], found[limit - 1].crawl.number)
            before = floor
            if before > 1 and self._clock.monotonic() > until:
                return FoundCrawls(found, before)
        return FoundCrawls(found, None)

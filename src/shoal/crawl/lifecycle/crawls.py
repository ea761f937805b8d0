"""The lifecycle of crawls: submit, start, pause, resume, stop, change, retry."""

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from shoal.access.audit_log import AuditHook, no_audit
from shoal.base.database import Tx
from shoal.base.errors import AlreadyExists, FrontierLost, InvalidInput, NotFound, StateConflict
from shoal.base.ids import CrawlId, JobId, new_id
from shoal.base.query_params import SESSION, TRACKING
from shoal.base.settings import CrawlSettings
from shoal.base.signals import Signal
from shoal.base.url import Url
from shoal.crawl import journal_messages as messages
from shoal.crawl import states
from shoal.crawl.crawl import BUDGETS, Crawl, CrawlConfig, FrontierDriver
from shoal.crawl.frontier.fates import Trap
from shoal.crawl.frontier.values import FrontierChange, NewUrl
from shoal.crawl.journal_messages import JournalEntry
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.crawl_jobs import left_for_a_budget
from shoal.crawl.lifecycle.crawl_status import LIVE, CrawlReader, CrawlStatus
from shoal.crawl.lifecycle.failed_urls import FailedUrls, taken_back
from shoal.crawl.lifecycle.transitions import CrawlTransitions, conflict
from shoal.crawl.scope import (
    check_addresses,
    check_label,
    check_proxy,
    check_walkers,
    default_speed,
    first_urls,
    guesses,
    seeds_of,
    wants_sitemaps,
    widening,
)
from shoal.crawl.states import CrawlMove, CrawlState
from shoal.crawl.store import OUTSIDE, ByDriver, FrontierStore
from shoal.egress.address import AddressRule, Proxies
from shoal.hosts.rate import HeldHost
from shoal.pages.store import SCAN, FailedPage, PageStore
from shoal.queue.job import NewJob, local_lane, quota_keys, with_retries
from shoal.queue.lanes import lane_of_run
from shoal.queue.queue import Queue

KIND = "crawl"
EARLIER_FIX = "use a crawl that `shoal crawls ls` lists, or another store"
MOST_HELD = 100  # hosts on hold that are reported
REOPENED_AT_ONCE = 500  # failed URLs per commit
SEEDS_INLINE = 500  # more seeds are read in a thread, because ten thousand would block the event loop for 150 ms
URLS_AT_ONCE = 2_000  # URLs that one statement adds to the frontier


class CrawlChanged(Signal, frozen=True, kw_only=True):
    """The options of a crawl were changed."""

    crawl_id: str
    changes: dict[str, Any]


class Crawls(CrawlReader):
    """Operations on crawls."""

    def __init__(
        self,
        queue: Queue,
        frontiers: ByDriver[FrontierStore],
        transitions: CrawlTransitions,
        *,
        rule: AddressRule,
        proxies: Proxies,
        settings: CrawlSettings,
    ) -> None:
        super().__init__(queue)
        self._frontiers = frontiers
        self._pages = PageStore()
        self.journal = transitions.journal
        self._transitions = transitions
        self._rule = rule
        self._proxies = proxies
        self._settings = settings
        self._signals = queue.signals

    async def submit(
        self,
        config: CrawlConfig,
        *,
        crawl_id: CrawlId | None = None,
        named: Sequence[str] | None = None,
        local: bool = False,
        frontier: FrontierDriver | None = None,
        policy_id: str | None = None,
        max_retry: int | None = None,
        audit: AuditHook = no_audit,
    ) -> Crawl:
        """Store a crawl with its seeds and jobs. `named`: hosts that the user named on this machine's command line;
        `local`: whether to put the crawl's job into a local lane, from which workers do not lease; `frontier`: the
        frontier driver, by default the driver in the settings; `policy_id`: the policy that starts this crawl;
        `max_retry`: how many times the crawl's jobs are retried, regardless of the workers' settings. `audit` records
        crawls that ignore robots.txt."""
        config = self._with_lists(config)
        if config.analyze:
            config = replace(config, links=True)
        if len(config.seeds) > SEEDS_INLINE:
            seeds = await asyncio.to_thread(self._seeds, config, is_named=named is not None)
        else:
            seeds = self._seeds(config, is_named=named is not None)
        config = replace(config, speed=config.speed or default_speed(config, seeds))
        check_walkers(config, self._settings.max_concurrent_chrome)
        wanted = crawl_id or CrawlId(new_id("crl"))
        driver = frontier or self._settings.frontier
        state = CrawlState.QUEUED if config.start else CrawlState.PENDING
        jobs = self._walkers(wanted, config, local, max_retry) if config.start else []

        async def commit(tx: Tx) -> Crawl:
            key_seed = await self._seed_of_earlier(tx, config)
            crawl = await self.store.insert(tx, wanted, config, list(named or []), state, key_seed, driver, policy_id)
            if crawl is None:
                raise AlreadyExists("crawl", wanted, "choose another id, or resume that crawl")
            if config.robots == "ignore":
                await audit(tx, "crawl.ignores_robots", crawl.id)
            await self._frontiers.of(crawl).begin(tx, crawl)
            urls = first_urls(seeds, crawl.key_seed, config)
            for start in range(0, len(urls), URLS_AT_ONCE):
                await self.add_urls(tx, crawl, urls[start : start + URLS_AT_ONCE])
            self._transitions.emit_on_commit(tx, crawl.id, CrawlMove(state))
            await self._queue.enqueue_in(tx, jobs)
            await self.journal.write(tx, crawl.number, [messages.submitted(crawl, local=local)])
            return crawl

        return await self._database.run(commit)

    def check(self, config: CrawlConfig) -> None:
        """Raise if a seed or the proxy has a blocked address, or if the proxy label is unknown. Host names are checked
        when they are resolved."""
        self._seeds(config, is_named=False)

    async def _seed_of_earlier(self, tx: Tx, config: CrawlConfig) -> int | None:
        """Return the key seed of the crawl that this crawl repeats, so that a URL has the same key in both crawls."""
        earlier_id = config.recrawl_of
        if earlier_id is None:
            return None
        earlier = await self.store.get(tx, earlier_id)
        if earlier is None:
            raise InvalidInput("recrawl_of", f"{earlier_id!r} is not a crawl in this store", EARLIER_FIX)
        if earlier.state not in states.TERMINAL:
            raise InvalidInput(
                "recrawl_of", f"{earlier_id!r} is {earlier.state}", "wait until it has ended, or stop it"
            )
        return earlier.key_seed

    async def add_seeds(self, crawl_id: str, texts: Sequence[str], *, is_named: bool = False) -> Crawl:
        """Add seeds to a crawl that has not started, in one commit. Seeds that the crawl already has are ignored. Only
        the seeds that the scope needs are stored in the crawl's options, so any number of seeds can be added.
        `is_named`: the user named the seeds on this machine's command line."""
        before = (await self.get(crawl_id)).crawl
        further = replace(before.config, seeds=list(texts))
        seeds = await asyncio.to_thread(self._seeds, further, is_named=is_named)
        kept = await asyncio.to_thread(widening, before.config, seeds)

        async def commit(tx: Tx) -> Crawl:
            crawl = await self._transitions.locked(tx, crawl_id)
            state = crawl.state
            if state is not CrawlState.PENDING:
                raise StateConflict("crawl", crawl_id, state, "get more seeds", "only a crawl that has not started can")
            if crawl.config != before.config:
                raise StateConflict(
                    "crawl", crawl_id, state, "get these seeds now", "other seeds are being added; try again"
                )
            urls = first_urls(seeds, crawl.key_seed, replace(crawl.config, sitemap="off"))
            new = 0
            for start in range(0, len(urls), URLS_AT_ONCE):
                new += await self.add_urls(tx, crawl, urls[start : start + URLS_AT_ONCE])
            if wants_sitemaps(crawl.config):
                await self.add_urls(tx, crawl, guesses(seeds, crawl.key_seed))
            config = replace(
                crawl.config,
                seeds=[*crawl.config.seeds, *kept],
                more_seeds=crawl.config.more_seeds + max(0, new - len(kept)),
            )
            named = [*crawl.named, *kept] if is_named else [*crawl.named]
            return await self.store.keep_seeds(tx, crawl_id, config, named)

        return await self._database.run(commit)

    async def start(self, crawl_id: str, *, local: bool = False) -> CrawlState:
        """Start a crawl that was stored without being submitted."""
        return await self._enqueue(crawl_id, {CrawlState.PENDING}, "be started", local=local)

    async def resume(self, crawl_id: str, *, local: bool = False) -> CrawlState:
        return await self._enqueue(crawl_id, {CrawlState.PAUSED}, "be resumed", local=local)

    async def retry(self, crawl_id: str, *, audit: AuditHook = no_audit) -> CrawlState:
        """Resume a failed crawl with its open URLs; if there are none, retry its failed URLs."""
        status = await self.get(crawl_id)
        if status.crawl.state is CrawlState.FAILED and status.counts.drained:
            if not await self.retry_these(crawl_id, FailedUrls(), audit=audit):
                advice = "none of its URLs was ever requested; start a new one"
                raise StateConflict("crawl", crawl_id, status.crawl.state, "be retried", advice)
            return (await self.get(crawl_id)).crawl.state
        return await self._enqueue(crawl_id, {CrawlState.FAILED}, "be retried", audit=audit)

    async def retry_these(self, crawl_id: str, which: FailedUrls, *, audit: AuditHook = no_audit) -> int:
        """Retry failed URLs, in batches; return how many URLs are retried. If the crawl had ended, the last batch
        queues it again. URLs that fail again in the meantime are left alone."""
        number, reopened = (await self.get(crawl_id)).crawl.number, 0
        upto = await self._database.read(lambda tx: self._pages.last_number(tx, number))
        after: int | None = 0

        async def look(tx: Tx) -> tuple[list[FailedPage], int | None]:
            return await self._pages.failed_after(tx, number, after or 0, upto, REOPENED_AT_ONCE, SCAN)

        while after is not None:
            found, after = await self._database.read(look)
            chosen = [page for page in found if page in which]
            if which.limit is not None:
                chosen = chosen[: which.limit - reopened]
                after = None if reopened + len(chosen) == which.limit else after
            is_last = after is None
            if chosen or is_last:
                reopened += await self._reopen(crawl_id, chosen, reopened if is_last else None, audit)
                audit = no_audit  # the audit log gets one entry, with the first batch
        return reopened

    async def add_urls(self, tx: Tx, crawl: Crawl, urls: list[NewUrl], counter: str = OUTSIDE) -> int:
        """Add URLs to the frontier and count them; return the number of new URLs."""
        added = await self._frontiers.of(crawl).add(tx, crawl.number, urls)
        await self.store.add_counts(tx, crawl.number, counter, added.counts())
        return added.new

    async def reopen(self, tx: Tx, crawl: Crawl, pages: list[FailedPage]) -> int:
        """Reopen the URLs of failed pages as if they had never been tried; return how many were reopened. Remove the
        page records and subtract their counts. Pages that somebody else has reopened are left out. Call under the
        crawl's lock."""
        number = crawl.number
        dropped = await self._pages.drop_failed(tx, number, pages)
        urls = await self.store.urls_of_dropped(tx, number, dropped)
        answered = [page.final_url for page in dropped if page.status is not None]
        try:
            change = await self._frontiers.of(crawl).reopen(tx, number, urls, answered)
        except FrontierLost:  # the walker that rebuilds the frontier finds these URLs, because their pages were removed
            change = FrontierChange(is_counted=True)
        changed = change.counts()
        counts = replace(taken_back(dropped), opened=changed.opened, settled=changed.settled)
        await self.store.add_counts(tx, number, OUTSIDE, counts)
        return len(dropped)

    async def _reopen(self, crawl_id: str, pages: list[FailedPage], before: int | None, audit: AuditHook) -> int:
        """Reopen one batch. `before` is set for the last batch: the number of URLs that the earlier batches
        reopened."""

        async def commit(tx: Tx) -> int:
            crawl = await self._transitions.locked(tx, crawl_id)
            await self._check_retry(tx, crawl)
            await audit(tx, "crawl.retried", crawl_id)
            reopened = await self.reopen(tx, crawl, pages) if pages else 0
            if reopened:
                await self.journal.write(tx, crawl.number, [messages.reopened(reopened)])
            if before is None or crawl.state not in states.TERMINAL:
                return reopened
            # An earlier retry may have been interrupted before its last batch.
            none = not before and not reopened
            if none and (crawl.state_reason in BUDGETS or (await self.store.counts(tx, crawl.number)).drained):
                return reopened
            await self._transitions.move(tx, crawl, states.queue())
            await self._enqueue_walkers(tx, crawl)
            return reopened

        return await self._database.run(commit)

    async def _check_retry(self, tx: Tx, crawl: Crawl) -> None:
        if crawl.state in (CrawlState.STOPPING, CrawlState.STOPPED):
            raise StateConflict("crawl", crawl.id, crawl.state, "retry URLs", "start a new one")
        jobs = await self._queue.jobs.jobs_of_run(tx, crawl.id) if crawl.state in LIVE else []
        if any(job.finished_at is None and job.lane == local_lane(crawl.id) for job in jobs):
            # The process that runs this crawl has already written the failed pages to its outputs. After a retry, it
            # would write them a second time.
            raise StateConflict("crawl", crawl.id, crawl.state, "retry URLs", "pause it in the process that runs it")

    async def change(self, crawl_id: str, change: CrawlChange, *, audit: AuditHook = no_audit) -> CrawlStatus:
        """Change the limits, filters or rate of a crawl. Its walkers apply the change from their next commit on. If
        walkers left because of a limit that has now changed, new walkers replace them."""

        async def commit(tx: Tx) -> None:
            crawl = await self._transitions.locked(tx, crawl_id)
            if crawl.state in states.ENDING:
                raise StateConflict("crawl", crawl_id, crawl.state, "be changed", "start a new one")
            config = change.applied(crawl.config)
            if config == crawl.config:
                return
            left = left_for_a_budget(await self._queue.jobs.jobs_of_run(tx, crawl.id), crawl)
            await self.store.change(tx, crawl_id, config)
            await audit(tx, "crawl.changed", crawl_id)
            if config.priority != crawl.priority:
                await self._queue.jobs.set_priority(tx, crawl_id, config.priority)
            changed = CrawlChanged(crawl_id=crawl_id, changes=change.plain())
            tx.on_commit(lambda: self._signals.emit(changed))
            if crawl.state is CrawlState.RUNNING and config.budgets != crawl.config.budgets:
                # Replace the walkers that left because of the earlier budget, each in its own lane.
                walkers = [self._walker(crawl.id, config, job.lane, job.max_retry) for job in left]
                await self._queue.enqueue_in(tx, walkers)
            await self.journal.write(tx, crawl.number, [messages.changed(change.plain())])

        await self._database.run(commit)
        return await self.get(crawl_id)

    async def pause(self, crawl_id: str, reason: str = "asked") -> CrawlState:
        return await self._quiet(crawl_id, "be paused", states.ask_to_pause(reason), states.pause(reason))

    async def stop(
        self, crawl_id: str, reason: str = "asked", *, force: bool = False, audit: AuditHook = no_audit
    ) -> CrawlState:
        """End a crawl permanently. `force`: workers kill walkers that have not left after a grace period, even
        walkers that were asked to leave earlier."""
        ask, now = states.ask_to_stop(reason), states.stop(reason)
        return await self._quiet(crawl_id, "be stopped", ask, now, force=force, audit=audit)

    async def traps(self, crawl_id: str) -> list[Trap]:
        """Return every pattern that was ever quarantined, with its number of URLs and a sample URL."""
        crawl = (await self.get(crawl_id)).crawl
        return await self._database.read(lambda tx: self._frontiers.of(crawl).traps(tx, crawl.number))

    async def held_hosts(self, crawl_id: str) -> list[HeldHost]:
        """Return at most `MOST_HELD` hosts on hold that have waiting URLs of the crawl, the longest hold first."""
        crawl = (await self.get(crawl_id)).crawl
        return await self._database.read(lambda tx: self._frontiers.of(crawl).held_hosts(tx, crawl.number, MOST_HELD))

    async def release(self, crawl_id: str, pattern: str, *, audit: AuditHook = no_audit) -> int:
        """Release a pattern from quarantine; return how many of its URLs wait again. The pattern is never quarantined
        again in this crawl. If the crawl was completed, it is queued again for these URLs."""

        async def commit(tx: Tx) -> int:
            crawl = await self._transitions.locked(tx, crawl_id)
            if crawl.state not in states.RELEASABLE:
                raise StateConflict("crawl", crawl_id, crawl.state, "release a pattern", "start a new crawl")
            frontier = self._frontiers.of(crawl)
            held = sum(trap.count for trap in await frontier.traps(tx, crawl.number) if trap.pattern == pattern)
            try:
                freed = await frontier.free(tx, crawl.number, pattern)
            except FrontierLost:
                # The walker that rebuilds the frontier finds these URLs again, with their pattern released.
                freed = FrontierChange(requeued=held, is_counted=True)
            if freed is None:
                raise NotFound("quarantined pattern", pattern, "list them with `shoal crawls show`")
            await audit(tx, "crawl.released", crawl_id)
            await self.store.add_counts(tx, crawl.number, OUTSIDE, freed.counts())
            await self.journal.write(tx, crawl.number, [messages.released(pattern, freed.requeued)])
            if crawl.state is CrawlState.COMPLETED and freed.requeued:
                await self._transitions.move(tx, crawl, states.queue())
                await self._enqueue_walkers(tx, crawl)
            return freed.requeued

        return await self._database.run(commit)

    async def started(self, tx: Tx, crawl_id: str, job_id: str) -> list[JournalEntry]:
        """Set a queued crawl to running when its first job is leased; later leases change nothing. Return the journal
        entries, which the caller writes at the end of the commit."""
        crawl = await self._transitions.locked(tx, crawl_id)
        if crawl.state is not CrawlState.QUEUED:
            return [messages.taken_up(job_id)]
        await self._transitions.set_state(tx, crawl_id, states.run(), with_event=crawl.started_at is None)
        self._transitions.emit_on_commit(tx, crawl_id, states.run())
        return [messages.moved(crawl, states.run(), None)]

    async def _quiet(
        self,
        crawl_id: str,
        action: str,
        ask: CrawlMove,
        now: CrawlMove,
        *,
        force: bool = False,
        audit: AuditHook = no_audit,
    ) -> CrawlState:
        """Pause or stop the crawl: immediately if it has no walker, otherwise by asking its walkers."""

        async def commit(tx: Tx) -> None:
            crawl = await self._transitions.locked(tx, crawl_id)
            killed = await self._queue.kill_run(tx, crawl_id) if force else 0
            if killed:
                await self.journal.write(tx, crawl.number, [messages.forced(self._queue.settings.force_grace)])
            if force:
                await audit(tx, "crawl.stopped_by_force", crawl_id)
            if crawl.state in (ask.to, now.to):
                return
            # Cancel waiting jobs first, so that no worker can lease one while we count the walkers.
            await self._queue.jobs.cancel_waiting(tx, crawl_id, now.to.value)
            _, locked = await self._queue.jobs.live_of_run(tx, crawl_id)
            if locked and crawl.state is CrawlState.QUEUED:
                # The walker's job is leased, and the walker is about to start: ask the walker.
                await self._transitions.set_state(tx, crawl_id, states.run(), with_event=crawl.started_at is None)
            if not await self._transitions.move(tx, crawl, ask if locked else now):
                raise conflict(crawl, action)

        await self._database.run(commit)
        return (await self.get(crawl_id)).crawl.state

    async def _enqueue(
        self,
        crawl_id: str,
        sources: set[CrawlState],
        action: str,
        *,
        local: bool = False,
        audit: AuditHook = no_audit,
    ) -> CrawlState:
        async def commit(tx: Tx) -> None:
            crawl = await self._transitions.locked(tx, crawl_id)
            if crawl.state not in sources or not await self._transitions.move(tx, crawl, states.queue()):
                raise conflict(crawl, action)
            await audit(tx, "crawl.retried", crawl_id)
            await self._enqueue_walkers(tx, crawl, local=local)

        await self._database.run(commit)
        return CrawlState.QUEUED

    def _seeds(self, config: CrawlConfig, *, is_named: bool) -> list[Url]:
        """Return the seeds after checking them. Hosts that the user named on this machine's command line may have any
        address."""
        seeds = seeds_of(config)
        check_label(self._proxies, config)
        if not is_named:
            check_addresses(self._rule, seeds)
            check_proxy(self._rule, config)
        return seeds

    def _with_lists(self, config: CrawlConfig) -> CrawlConfig:
        """Copy the operator's parameter lists into the crawl's options, because the process that runs it may have
        different settings."""
        tracking, session = self._settings.tracking_params, self._settings.session_params
        lists = [("tracking_params", tracking, TRACKING), ("session_params", session, SESSION)]
        ours = {name: list(names) for name, names, built_in in lists if names != built_in}
        return replace(config, **{name: names for name, names in ours.items() if getattr(config, name) is None})

    async def _enqueue_walkers(self, tx: Tx, crawl: Crawl, *, local: bool = False) -> None:
        """Continue a crawl with new walkers. Their jobs have the same maximum number of retries as the earlier jobs."""
        earlier = await self._queue.jobs.jobs_of_run(tx, crawl.id)
        max_retry = earlier[0].max_retry if earlier else None
        await self._queue.enqueue_in(tx, self._walkers(crawl.id, crawl.config, local, max_retry))

    def _walkers(self, crawl_id: CrawlId, config: CrawlConfig, local: bool, max_retry: int | None) -> list[NewJob]:
        lane = lane_of_run(crawl_id, local=local)
        return [self._walker(crawl_id, config, lane, max_retry) for _ in range(config.workers)]

    def _walker(self, crawl_id: CrawlId, config: CrawlConfig, lane: str, max_retry: int | None) -> NewJob:
        return NewJob(
            id=JobId(new_id("job")),
            kind=KIND,
            run_id=crawl_id,
            lane=lane,
            priority=config.priority,
            payload=with_retries(max_retry),
            max_attempts=self._queue.settings.job_attempts if max_retry is None else max_retry + 1,
            quota_keys=quota_keys(config.project, config.labels),
        )

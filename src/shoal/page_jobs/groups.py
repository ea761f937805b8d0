"""Job groups (created, counted, cancelled, and ended with their last job), and the results of policies over time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from shoal.access.audit_log import AuditHook, no_audit
from shoal.base.database import Database, Tx
from shoal.base.errors import AlreadyExists, HeldBack, InvalidInput, NotFound
from shoal.base.ids import GroupId, JobId, new_id
from shoal.base.signals import Signal, Signals
from shoal.base.text import shorten
from shoal.base.url import Url, origin
from shoal.egress.address import AddressRule, Proxies
from shoal.events.event import Event, append_events
from shoal.page_jobs.result import StoredResult
from shoal.page_jobs.spec import KIND, Group, GroupConfig, GroupState, PageSpec, check_url
from shoal.page_jobs.store import GroupStore, NewGroup, ResultStore
from shoal.queue import states as job_states
from shoal.queue.enqueuer import BackPressure, JobsHeldBack, no_back_pressure
from shoal.queue.job import NewJob, quota_keys, with_retries
from shoal.queue.queue import Queue

EVENT = "crawl.group.completed"
RETRY_AFTER_SECONDS = 5.0  # how long to wait before a batch that was held back is sent again
URLS_INLINE = 500  # more URLs are read in a thread, because ten thousand would block the event loop for 100 ms
JOBS_AT_ONCE = 2_000  # jobs that one statement enqueues
MAX_LISTED = 10  # indexes of rejected URLs in an error message


GroupHook = Callable[[Tx, Group], Awaitable[None]]
"""Called in the commit that creates a group."""


async def _no_hook(tx: Tx, group: Group) -> None:
    pass


class GroupEnded(Signal, frozen=True, kw_only=True):
    """The last job of a group ended, or the group was cancelled."""

    group_id: str
    state: GroupState
    jobs: dict[str, int]


async def end_group(tx: Tx, signals: Signals, group: Group, state: GroupState, reason: str | None = None) -> None:
    """End an open group. The group is locked."""
    counts = await GroupStore().end(tx, group.id, state, reason)
    body = {"group": group.id, "state": state.value, "project": group.project, "labels": group.labels}
    await append_events(tx, Event(EVENT, group.id, body | {"total": group.total, "jobs": counts}))
    ended = GroupEnded(group_id=group.id, state=state, jobs=counts)
    tx.on_commit(lambda: signals.emit(ended))


async def end_groups_without_jobs(tx: Tx, signals: Signals, group_ids: Iterable[str]) -> None:
    """End each of these groups whose last job has ended. Call this in the commit that ends the jobs. The groups are
    locked."""
    for group_id in group_ids:
        if (group := await GroupStore().lock_ended(tx, group_id)) is not None:
            await end_group(tx, signals, group, GroupState.COMPLETED)


class Groups:
    """Operations on job groups."""

    def __init__(
        self,
        database: Database,
        queue: Queue,
        rule: AddressRule,
        signals: Signals,
        proxies: Proxies | None = None,
        back_pressure: BackPressure = no_back_pressure,
    ) -> None:
        self._database = database
        self._store = GroupStore()
        self._results = ResultStore()
        self._queue = queue
        self._rule = rule
        self._signals = signals
        self._proxies = proxies or Proxies()
        self._back_pressure = back_pressure

    async def make(self, config: GroupConfig, hook: GroupHook = _no_hook) -> Group:
        """Store a group and a job for each of its URLs in one commit, which ends with `hook`. All jobs are queued
        immediately; the rate limit decides how many jobs of a host are leased at the same time. Raise `HeldBack` while
        too many jobs are waiting."""
        self._proxies.check(config.crawl_config.proxy, "crawl_config.proxy")
        group_id = GroupId(config.group or new_id("grp"))
        if len(config.urls) > URLS_INLINE:
            jobs = await asyncio.to_thread(self._jobs, config, group_id)
        else:
            jobs = self._jobs(config, group_id)
        if (why := self._back_pressure(KIND)) is not None:
            self._signals.emit(JobsHeldBack(source="batch", kind=KIND, jobs=len(jobs), why=why))
            raise HeldBack(why, RETRY_AFTER_SECONDS)
        spec = PageSpec(crawl_config=config.crawl_config, rule_set=config.rule_set)
        new = NewGroup(group_id, config.project, config.labels, config.priority, len(jobs), spec)

        async def commit(tx: Tx) -> Group:
            if await self._store.insert(tx, new) is None:
                raise AlreadyExists("job group", group_id, "choose another id, or leave it out")
            # All jobs in one commit: otherwise the first jobs, and then the group, could end before the rest is stored
            # (0022).
            for start in range(0, len(jobs), JOBS_AT_ONCE):
                await self._queue.enqueue_in(tx, jobs[start : start + JOBS_AT_ONCE])
            group = await self._store.get(tx, group_id)
            assert group is not None
            await hook(tx, group)
            return group

        return await self._database.run(commit)

    async def get(self, group_id: str) -> Group:
        group = await self._database.read(lambda tx: self._store.get(tx, group_id))
        if group is None:
            raise NotFound("job group", group_id)
        return group

    async def newest(self, *, after: int | None = None, limit: int = 50, state: str | None = None) -> list[Group]:
        return await self._database.read(lambda tx: self._store.page_of(tx, after, limit, state))

    async def results(self, group_id: str, *, after: int = 0, limit: int = 100) -> list[StoredResult]:
        """Return the results of the group's jobs in the order in which the jobs ended; a job that will be retried has
        no result yet."""
        await self.get(group_id)
        return await self._database.read(lambda tx: self._results.of_group(tx, group_id, after, limit))

    async def results_of_job(self, job_id: str) -> list[StoredResult]:
        """Return the result of each attempt at a page job, oldest first, including attempts that were followed by a
        retry."""

        async def look(tx: Tx) -> list[StoredResult]:
            if await self._queue.jobs.get(tx, JobId(job_id)) is None:
                raise NotFound("job", job_id)
            return await self._results.of_job(tx, JobId(job_id))

        return await self._database.read(look)

    async def cancel(self, group_id: str, reason: str = "asked", *, audit: AuditHook = no_audit) -> Group:
        """Cancel all jobs that have not ended; fetches in progress are dropped. A group that has ended is left
        unchanged."""

        async def commit(tx: Tx) -> None:
            # Lock the group exclusively: a commit with the last result must not end it at the same time (0050).
            group = await self._store.lock(tx, group_id)
            if group is None:
                raise NotFound("job group", group_id)
            if group.state is GroupState.OPEN:
                await audit(tx, "group.cancelled", group_id)
                await self._cancel_jobs(tx, group_id, reason)
                await end_group(tx, self._signals, group, GroupState.CANCELLED, reason)

        await self._database.run(commit)
        return await self.get(group_id)

    async def _cancel_jobs(self, tx: Tx, group_id: str, reason: str) -> None:
        """Cancel waiting jobs first, so that nobody can lease them while the leased jobs are cancelled."""
        await self._queue.jobs.cancel_waiting(tx, group_id, reason)
        held = await self._store.held(tx, group_id)
        moves = [job_states.cancel(fence.job_id, fence.epoch, reason) for fence in held]
        await self._queue.jobs.move(tx, moves)

    def _urls(self, given: Sequence[str]) -> list[Url]:
        """Return the canonical URLs without duplicates. An error names the index of every invalid URL."""
        found: dict[Url, None] = {}
        refused: list[tuple[int, InvalidInput]] = []
        for place, text in enumerate(given):
            try:
                found[check_url(text, self._rule, f"urls[{place}]")] = None
            except InvalidInput as error:
                refused.append((place, error))
        if refused:
            raise _refusal(refused)
        return list(found)

    def _jobs(self, config: GroupConfig, group_id: GroupId) -> list[NewJob]:
        urls = self._urls(config.urls)
        attempts = self._queue.settings.job_attempts if config.max_retry is None else config.max_retry + 1
        common: dict[str, Any] = {
            "kind": KIND,
            "run_id": group_id,
            "priority": config.priority,
            "max_attempts": attempts,
            "capability": config.capability,
            "quota_keys": quota_keys(config.project, config.labels),
        }
        return [
            NewJob(id=JobId(new_id("job")), payload=with_retries(config.max_retry, url=url), host=origin(url), **common)
            for url in urls
        ]


def _refusal(refused: list[tuple[int, InvalidInput]]) -> InvalidInput:
    """Return the first error, with the indexes of the other errors added to its message."""
    _, first = refused[0]
    others = [f"urls[{place}]" for place, _ in refused[1 : MAX_LISTED + 1]]
    if others:
        more = len(refused) - 1 - len(others)
        places = f"{', '.join(others)}{f' and {more} more' if more else ''}"
        first.message = f"{first.message[:-1]}; {places} cannot be fetched either."
        first.args = (first.message,)
    return first


MOST_CHANGES: Final = 1000
ABSENT: Final = object()


class DataChange(Struct, frozen=True):
    """A path at which two results have different values. None means that the result has no value there."""

    path: str
    before: Any
    after: Any


class Diff(Struct, frozen=True):
    """The differences between two results."""

    before: StoredResult
    after: StoredResult

    @property
    def html_changed(self) -> bool | None:
        """Return whether the page changed; None if a hash is missing."""
        before, after = self.before.result.html_hash, self.after.result.html_hash
        return None if before is None or after is None else before != after

    def changes(self) -> "list[DataChange]":
        return changes_of(self.before.result.data, self.after.result.data)


class History:
    """The results of policies. Does not check that the policy exists; callers do."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._results = ResultStore()

    async def of_policy(self, policy: str, *, before: int | None = None, limit: int = 50) -> list[StoredResult]:
        return await self._database.read(lambda tx: self._results.of_policy(tx, policy, before, limit))

    async def diff(self, policy: str, before: str | None = None, after: str | None = None) -> Diff:
        """Compare the results of two jobs; by default the last two successes, or `after` with the success before it."""

        async def look(tx: Tx) -> Diff:
            last = await self._one(tx, policy, after) if after else await self._success(tx, policy, None)
            first = await self._one(tx, policy, before) if before else await self._success(tx, policy, last.number)
            return Diff(first, last)

        return await self._database.read(look)

    async def _one(self, tx: Tx, policy: str, job_id: str) -> StoredResult:
        found = await self._results.one_of_policy(tx, policy, job_id)
        if found is None:
            raise NotFound("result", shorten(job_id), "use a job from the policy's results")
        return found

    async def _success(self, tx: Tx, policy: str, before: int | None) -> StoredResult:
        found = await self._results.success_of_policy(tx, policy, before)
        if found is None:
            what = "success of policy" if before is None else "second success of policy"
            raise NotFound(what, policy, "two runs must have succeeded before they can be compared")
        return found


def changes_of(before: Any, after: Any, path: str = "") -> list[DataChange]:
    """Return where two values differ, by path; lists are compared by index."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [*before, *(name for name in after if name not in before)]
        return _each(before, after, [(f"{path}.{name}" if path else name, name) for name in names])
    if isinstance(before, list) and isinstance(after, list):
        old, new = dict(enumerate(before)), dict(enumerate(after))
        return _each(old, new, [(f"{path}[{place}]", place) for place in range(max(len(before), len(after)))])
    return [] if before == after else [DataChange(path, _known(before), _known(after))]


def _each(before: dict[Any, Any], after: dict[Any, Any], places: list[tuple[str, Any]]) -> list[DataChange]:
    pairs = [(where, before.get(key, ABSENT), after.get(key, ABSENT)) for where, key in places]
    return [change for where, old, new in pairs for change in changes_of(old, new, where)]


def _known(value: Any) -> Any:
    return None if value is ABSENT else value

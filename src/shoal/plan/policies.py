"""Operations on policies: create, read, update, enable, remove and run now; and signals from business systems."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, ClassVar

from msgspec import Meta
from msgspec.structs import replace as replace_fields

from shoal.access.audit_log import AuditHook, no_audit
from shoal.base.clock import span
from shoal.base.database import Conflict, Database, Tx
from shoal.base.errors import InvalidInput, NotFound
from shoal.base.ids import new_id
from shoal.base.parsing import read_duration, read_span
from shoal.base.request_form import Form, describe
from shoal.base.text import HIDDEN
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.egress.address import AddressRule, Proxies
from shoal.page_jobs.spec import check_url
from shoal.plan.policy import Policy, PolicyChange, PolicyForm
from shoal.plan.priority import RULES, Priority, PriorityRule, rate
from shoal.plan.schedule import Schedule
from shoal.plan.scheduler import config_of, facts_of, job_of, start_crawl, subjects_of
from shoal.plan.store import NewPolicy, PolicyCounts, PolicyStore, PriorityBoost, ScheduleStep
from shoal.queue.job import Enqueued
from shoal.queue.queue import Queue


class SignalForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A business system's request to boost a URL or a label."""

    url: Annotated[
        Annotated[str, Meta(max_length=2083)] | None, describe("URL whose priority changes. Give either url or label.")
    ] = None
    label: Annotated[
        Annotated[str, Meta(max_length=500)] | None, describe("Label whose priority changes, as `name=value`.")
    ] = None
    boost: Annotated[
        float,
        describe("Points added to the priority of the jobs; a negative number lowers the priority.", ge=-100, le=100),
    ]
    lasts: Annotated[str, describe("How long the change applies; for example, `24h`.", max_length=20)] = "24h"

    checks: ClassVar = {"lasts": lambda text: read_span(text) and text}


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run started on request: the id of its job or crawl. `duplicate`: this run was already active before the
    request."""

    id: str
    duplicate: bool = False
    is_crawl: bool = False


class Policies:
    """Operations on policies."""

    def __init__(
        self,
        database: Database,
        queue: Queue,
        crawls: Crawls,
        rule: AddressRule,
        rules: tuple[PriorityRule, ...] = RULES,
        proxies: Proxies | None = None,
    ) -> None:
        self._database = database
        self._store = PolicyStore()
        self._queue = queue
        self._crawls = crawls
        self._rule = rule
        self.rules = rules
        self._proxies = proxies or Proxies()

    async def make(self, form: PolicyForm, policy_id: str | None = None, *, audit: AuditHook = no_audit) -> Policy:
        """Store a policy. A policy with a frequency is due immediately. Creating a policy with an existing id changes
        nothing."""
        form = self.judged(form)
        wanted = policy_id or new_id("pol")

        async def commit(tx: Tx) -> None:
            if await self._store.get(tx, wanted) is None:
                await self._store.insert(tx, [new_policy(form, await self._store.now(tx), wanted)])
                await audit(tx, "policy.created", wanted)

        await self._database.run(commit)
        return await self.get(wanted)

    def judged(self, form: PolicyForm) -> PolicyForm:
        """Return the form if it is valid: its fields are consistent and its addresses may be fetched."""
        form = form.checked()
        _check_hidden(form)
        if form.url is not None:
            check_url(form.url, self._rule, "url")
            self._proxies.check(form.page_config.proxy, "crawl_config.proxy")
        else:
            self._crawls.check(config_of(form, form.priority_base))
        return form

    async def get(self, policy_id: str) -> Policy:
        policy = await self._database.read(lambda tx: self._store.get(tx, policy_id))
        if policy is None:
            raise _unknown(policy_id)
        return policy

    async def page_of(
        self, *, after: int = 0, limit: int = 50, project: str | None = None, enabled: bool | None = None
    ) -> tuple[int, list[Policy]]:
        """Return the store's time, and policies in order of creation."""

        async def look(tx: Tx) -> tuple[int, list[Policy]]:
            return await self._store.now(tx), await self._store.page_of(tx, after, limit, project, enabled)

        return await self._database.read(look)

    async def list_due(self, limit: int = 50) -> tuple[int, list[Policy]]:
        """Return the store's time, and the policies that are due, the longest due first."""

        async def look(tx: Tx) -> tuple[int, list[Policy]]:
            return await self._store.now(tx), await self._store.list_due(tx, limit)

        return await self._database.read(look)

    async def counts(self, late: timedelta) -> PolicyCounts:
        """Count all policies, those that are due, and those that are overdue by more than `late`."""
        return await self._database.read(lambda tx: self._store.counts(tx, span(late)))

    async def rewrite(self, policy_id: str, form: PolicyForm, *, audit: AuditHook = no_audit) -> Policy:
        """Replace the definition of a policy. Its run history is kept; a changed schedule starts now."""
        form = self.judged(form)
        return await self._update(policy_id, lambda policy, now: _rewritten(policy, form, now), audit, "policy.changed")

    async def change(self, policy_id: str, change: PolicyChange, *, audit: AuditHook = no_audit) -> Policy:
        """Update some fields of a policy."""
        return await self._update(
            policy_id,
            lambda policy, now: _rewritten(policy, self.judged(change.applied(policy.form)), now),
            audit,
            "policy.changed",
        )

    async def enable(self, policy_id: str, enabled: bool, *, audit: AuditHook = no_audit) -> Policy:
        """Enable a policy, after validating it again, or disable it without validation."""

        def turned(policy: Policy, now: int) -> Policy:
            form = replace_fields(policy.form, enabled=enabled)
            form = self.judged(form) if enabled else form
            return _restarted(replace(policy, spec=form.text()), form, now, fresh=False)

        return await self._update(policy_id, turned, audit, "policy.enabled" if enabled else "policy.disabled")

    async def remove(self, policy_id: str, *, audit: AuditHook = no_audit) -> None:
        """Remove a policy. Its active job, if any, is not cancelled."""

        async def commit(tx: Tx) -> None:
            if not await self._store.remove(tx, policy_id):
                raise _unknown(policy_id)
            await audit(tx, "policy.removed", policy_id)

        await self._database.run(commit)

    async def run_now(self, policy_id: str, *, audit: AuditHook = no_audit) -> StartedRun:
        """Run a policy now, without changing its schedule. If a run is active, return the active run."""
        policy = await self.get(policy_id)
        return await (self._crawl_now(policy, audit) if policy.form.is_site else self._job_now(policy_id, audit))

    async def _job_now(self, policy_id: str, audit: AuditHook) -> StartedRun:
        async def commit(tx: Tx) -> Enqueued:
            policy = await self._store.get(tx, policy_id)
            if policy is None:
                raise _unknown(policy_id)
            now = await self._store.now(tx)
            [enqueued] = await self._queue.enqueue_in(tx, [job_of(policy, await self.rating(tx, policy, now))])
            if not enqueued.duplicate:
                await audit(tx, "policy.run", policy_id)
                if not await self._store.advance(tx, [_begun_now(policy)]):
                    raise Conflict  # it was changed or removed after the read, because jobs are locked before policies
            return enqueued

        enqueued = await self._database.run(commit)
        return StartedRun(enqueued.id, enqueued.duplicate)

    async def _crawl_now(self, policy: Policy, audit: AuditHook) -> StartedRun:
        """Start a crawl whose id contains the number of runs so far, so that concurrent requests get the same crawl."""
        if policy.live_crawl is not None and await self._crawls.is_active(policy.live_crawl):
            return StartedRun(policy.live_crawl, duplicate=True, is_crawl=True)
        crawl_id = f"{policy.id}-{policy.planned_at}n{policy.runs}"
        rating = await self._database.read(lambda tx: self._rating_now(tx, policy))
        await start_crawl(self._crawls, policy, crawl_id, rating.value)

        async def commit(tx: Tx) -> None:
            await audit(tx, "policy.run", policy.id)
            await self._store.advance(tx, [_begun_now(policy, crawl_id)])

        await self._database.run(commit)
        return StartedRun(crawl_id, is_crawl=True)

    async def _rating_now(self, tx: Tx, policy: Policy) -> Priority:
        return await self.rating(tx, policy, await self._store.now(tx))

    async def rating(self, tx: Tx, policy: Policy, now: int) -> Priority:
        boosts = await self._store.boosts(tx, subjects_of(policy))
        return rate(facts_of(policy, now, sum(boosts.values())), self.rules)

    async def signal(self, form: SignalForm) -> PriorityBoost:
        """Store a boost from a business system; it applies to jobs created from now on."""
        if (form.url is None) == (form.label is None):
            raise InvalidInput("url", "or label is required, but not both", "pass one of them")
        if form.label is not None and "=" not in form.label:
            raise InvalidInput("label", "has no value", "write it as name=value")
        subject = f"url:{check_url(form.url, self._rule, 'url')}" if form.url is not None else f"label:{form.label}"

        async def commit(tx: Tx) -> PriorityBoost:
            until = await self._store.now(tx) + span(read_duration(form.lasts))
            boost = PriorityBoost(subject, form.boost, until)
            await self._store.put_boost(tx, boost)
            return boost

        return await self._database.run(commit)

    async def _update(
        self, policy_id: str, change: Callable[[Policy, int], Policy], audit: AuditHook, action: str
    ) -> Policy:
        async def commit(tx: Tx) -> None:
            policy = await self._store.lock(tx, policy_id)
            if policy is None:
                raise _unknown(policy_id)
            await self._store.save(tx, change(policy, await self._store.now(tx)))
            await audit(tx, action, policy_id)

        await self._database.run(commit)
        return await self.get(policy_id)


def _begun_now(policy: Policy, crawl: str | None = None) -> ScheduleStep:
    """Return the step that records a new run and leaves the schedule unchanged."""
    return replace(ScheduleStep.of(policy, policy.next_run_at, queued=policy.queued, begun=True), crawl=crawl)


def new_policy(form: PolicyForm, now: int, policy_id: str | None = None) -> NewPolicy:
    """Return a new policy with the time of its first run, if it is enabled."""
    wanted = policy_id or new_id("pol")
    planned, begins = now, None
    if form.enabled:
        schedule = form.schedule()
        planned = _first_planned(form, schedule, now)
        begins = schedule.begins(wanted, planned)
        begins = None if form.is_over(begins) else begins
    return NewPolicy(wanted, form.project, form.backlog_queue, form.text(), form.enabled, planned, begins, now)


def _first_planned(form: PolicyForm, schedule: Schedule, now: int) -> int:
    """Return the first planned time: now, or the next match of the cron expression."""
    return now if form.cron is None else schedule.next_planned(now, now)


def _restarted(policy: Policy, form: PolicyForm, now: int, *, fresh: bool) -> Policy:
    """Return the policy with its planned times recalculated."""
    if not form.enabled:
        return replace(policy, enabled=False, next_run_at=None, queued=False)
    planned = policy.planned_at
    if fresh or policy.next_run_at is None:
        planned = _first_planned(form, form.schedule(), now)
    kept = replace(policy, enabled=True, planned_at=planned, frequency_now=None if fresh else policy.frequency_now)
    begins = kept.schedule.begins(kept.id, planned)
    return replace(kept, next_run_at=None if form.is_over(begins) else begins)


def _rewritten(policy: Policy, form: PolicyForm, now: int) -> Policy:
    return _restarted(replace(policy, spec=form.text()), form, now, fresh=_schedule_changes(policy.form, form))


def _schedule_changes(before: PolicyForm, after: PolicyForm) -> bool:
    names = ("frequency", "cron", "timezone", "windows", "jitter", "adaptive")
    return any(getattr(before, name) != getattr(after, name) for name in names)


def _check_hidden(form: PolicyForm) -> None:
    """Reject the placeholder that responses show instead of a secret. Storing the placeholder would overwrite the
    secret."""
    fix = "send the real value; responses mask secrets"
    if form.url is not None and HIDDEN in form.url:
        raise InvalidInput("url", f"contains the mask {HIDDEN}", fix)
    headers = form.crawl_config.get("headers")
    if isinstance(headers, dict) and HIDDEN in headers.values():
        raise InvalidInput("crawl_config.headers", f"has the mask {HIDDEN} as a value", fix)


def _unknown(policy_id: str) -> NotFound:
    return NotFound("policy", policy_id, "list them with `shoal policies ls`")

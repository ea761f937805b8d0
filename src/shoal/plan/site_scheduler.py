"""The scheduler of sites: begins the crawl of every policy whose time has come, if its last one has ended.

A crawl's id is made from the policy and the planned time. So a crash between the crawl and the note that it was begun,
or a second scheduler, begins the same crawl again, which is nothing.
"""

from dataclasses import replace
from typing import Any, Protocol

from shoal.base.database import Database, Tx
from shoal.base.errors import TimeError
from shoal.base.service import PassResult
from shoal.base.signals import Signals
from shoal.plan.policy import Policy, PolicyForm
from shoal.plan.priority import RULES, PriorityRule, rate
from shoal.plan.scheduler import PolicyStuck, facts_of, kept_waiting, put_off, step_of, subjects_of
from shoal.plan.store import PolicyStore, ScheduleStep

BATCH = 100


class Crawling(Protocol):
    """Who runs crawls."""

    async def lives(self, crawl_id: str) -> bool:
        """Whether there is such a crawl and it has not ended."""
        ...

    def check(self, options: dict[str, Any]) -> None:
        """Refuse options that no crawl can have."""
        ...

    async def begin(self, crawl_id: str, options: dict[str, Any]) -> None:
        """Begin a crawl with these options under this id, unless there is one."""
        ...

    async def stop(self, crawl_id: str) -> None: ...


def crawl_of(policy: Policy, now: int) -> str:
    """The id of the crawl that a policy begins now: that of its planned time, or one that is owed before it."""
    is_due = policy.next_run_at is not None and policy.planned_at <= policy.next_run_at <= now
    return f"{policy.id}-{policy.planned_at}{'' if is_due else 'o'}"


def policy_of(crawl_id: str) -> str:
    """The policy that a crawl is of; empty if of none."""
    return crawl_id.rpartition("-")[0] if crawl_id.startswith("pol_") else ""


def options_of(form: PolicyForm, priority: int) -> dict[str, Any]:
    """What a policy of a site says about its crawls."""
    own = {"seeds": form.seeds, "project": form.project, "labels": form.labels, "priority": priority, "start": True}
    return form.crawl_config | own


class SiteScheduler:
    name = "site scheduler"

    def __init__(
        self,
        database: Database,
        store: PolicyStore,
        crawling: Crawling,
        signals: Signals,
        rules: tuple[PriorityRule, ...] = RULES,
    ) -> None:
        self._database = database
        self._store = store
        self._crawling = crawling
        self._signals = signals
        self._rules = rules

    async def run_once(self) -> PassResult:
        now, due = await self._database.read(lambda tx: self._store.due_sites(tx, BATCH))
        for policy in due:
            try:
                await self._run(policy, now)
            except (TimeError, OSError):
                raise  # the store is away, and the others would fare no better
            except Exception as error:  # its options may not be taken any more: no other must wait for that
                await self._advance(put_off(policy, now))
                self._signals.emit(PolicyStuck(policy_id=policy.id, error=f"{type(error).__name__}: {error}"))
        return PassResult()

    async def _run(self, policy: Policy, now: int) -> None:
        if (later := kept_waiting(policy, now)) is not None:
            await self._advance(later)
            return
        lives = policy.live_crawl is not None and await self._crawling.lives(policy.live_crawl)
        if lives and policy.live_crawl is not None and policy.form.overlap == "replace":
            await self._crawling.stop(policy.live_crawl)
            lives = False
        step = step_of(policy, now, lives)
        if not lives:
            crawl_id = crawl_of(policy, now)
            await self._crawling.begin(crawl_id, options_of(policy.form, await self._priority(policy, now)))
            step = replace(step, crawl=crawl_id)
        await self._advance(step)

    async def _advance(self, step: ScheduleStep) -> None:
        await self._database.run(lambda tx: self._store.advance(tx, [step]))

    async def _priority(self, policy: Policy, now: int) -> int:
        async def look(tx: Tx) -> dict[str, float]:
            return await self._store.signals(tx, subjects_of(policy))

        return rate(facts_of(policy, now, sum((await self._database.read(look)).values())), self._rules).value

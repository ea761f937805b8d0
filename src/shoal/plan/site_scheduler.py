"""Start a crawl for every site policy that is due; while its last crawl is still active, `overlap` decides.

The crawl id is derived from the policy and the planned time. After a crash between creating the crawl and recording it,
or with a second scheduler, the same crawl is started again, which has no effect.
"""

from contextlib import suppress
from dataclasses import replace

from shoal.base.database import Database, Tx
from shoal.base.errors import AlreadyExists, NotFound, StateConflict, TimeError
from shoal.base.ids import CrawlId
from shoal.base.service import PassResult
from shoal.base.signals import Signals
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.lifecycle.crawls import KIND as CRAWL
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.plan.policy import Policy, PolicyForm
from shoal.plan.priority import RULES, PriorityRule, rate
from shoal.plan.scheduler import PolicyStuck, facts_of, kept_waiting, put_off, step_of, subjects_of
from shoal.plan.store import PolicyStore, ScheduleStep
from shoal.queue.back_pressure import BackPressure, JobsHeldBack, no_back_pressure

BATCH = 100


def crawl_of(policy: Policy, now: int) -> str:
    """Return the id of the crawl a policy starts now: one for its planned time, or one for a queued run before it."""
    is_due = policy.next_run_at is not None and policy.planned_at <= policy.next_run_at <= now
    return f"{policy.id}-{policy.planned_at}{'' if is_due else 'o'}"


def config_of(form: PolicyForm, priority: int) -> CrawlConfig:
    """Return the options of a site policy's crawl; raise if they are not valid."""
    own = {"seeds": form.seeds, "project": form.project, "labels": form.labels, "priority": priority, "start": True}
    return CrawlConfig.read(
        form.crawl_config | own, called=lambda name: name if name in own else f"crawl_config.{name}"
    )


async def start_crawl(crawls: Crawls, policy: Policy, crawl_id: str, priority: int) -> None:
    """Start a crawl of a policy with this id, unless it exists."""
    with suppress(AlreadyExists):
        await crawls.submit(
            config_of(policy.form, priority),
            crawl_id=CrawlId(crawl_id),
            policy_id=policy.id,
            max_retry=policy.form.max_retry,
        )


class SiteScheduler:
    """The chore that starts the crawls of site policies; under back-pressure it starts none."""

    name = "site scheduler"

    def __init__(
        self,
        database: Database,
        crawls: Crawls,
        signals: Signals,
        rules: tuple[PriorityRule, ...] = RULES,
        back_pressure: BackPressure = no_back_pressure,
    ) -> None:
        self._database = database
        self._store = PolicyStore()
        self._crawls = crawls
        self._signals = signals
        self._rules = rules
        self._back_pressure = back_pressure

    async def run_once(self) -> PassResult:
        now, due = await self._database.read(lambda tx: self._store.due_sites(tx, BATCH))
        if due and (why := self._back_pressure(CRAWL)) is not None:
            self._signals.emit(JobsHeldBack(source=self.name, kind=CRAWL, jobs=0, why=why))
            return PassResult()
        for policy in due:
            try:
                await self._run(policy, now)
            except (TimeError, OSError):
                raise  # the store is unavailable, so the other policies would fail too
            except Exception as error:  # its options may have become invalid; that must not block other policies
                await self._advance(put_off(policy, now))
                self._signals.emit(PolicyStuck(policy_id=policy.id, error=f"{type(error).__name__}: {error}"))
        return PassResult()

    async def _run(self, policy: Policy, now: int) -> None:
        if (later := kept_waiting(policy, now)) is not None:
            await self._advance(later)
            return
        last = policy.live_crawl
        lives = last is not None and await self._crawls.is_active(last)
        if lives and last is not None and policy.form.overlap == "replace":
            with suppress(StateConflict, NotFound):  # it has just ended, or was removed
                await self._crawls.stop(last, "replaced")
            lives = False
        step = step_of(policy, now, lives)
        if not lives:
            crawl_id = crawl_of(policy, now)
            await start_crawl(self._crawls, policy, crawl_id, await self._priority(policy, now))
            step = replace(step, crawl=crawl_id)
        await self._advance(step)

    async def _advance(self, step: ScheduleStep) -> None:
        await self._database.run(lambda tx: self._store.advance(tx, [step]))

    async def _priority(self, policy: Policy, now: int) -> int:
        async def look(tx: Tx) -> dict[str, float]:
            return await self._store.boosts(tx, subjects_of(policy))

        return rate(facts_of(policy, now, sum((await self._database.read(look)).values())), self._rules).value

"""Contract of policies: a due policy gets one job if none is active, and never two, even if a scheduler dies."""

import dataclasses
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from shoal.base.clock import FakeClock, from_micros, to_micros
from shoal.base.database import Tx
from shoal.base.errors import InvalidInput, NotFound
from shoal.base.settings import QueueSettings
from shoal.crawl.states import CrawlState
from shoal.egress import AddressRule
from shoal.page_jobs.result import ResultDelivery, Status
from shoal.plan import scheduler as site_scheduler
from shoal.plan.policies import Policies, SignalForm
from shoal.plan.policy import Policy, PolicyForm
from shoal.plan.scheduler import PolicyStuck, Scheduler, SiteScheduler, start_crawl
from shoal.plan.store import BoostRetention, PolicyStore
from shoal.queue.job import Lease
from shoal.queue.job_admin import JobAdmin
from shoal.queue.moves import JobMoved
from shoal.queue.states import TERMINAL, GrantEnd, JobState
from shoal.serve.resources.job import JobExplained
from shoal.serve.resources.policy import Freshness
from shoal.serve.resources.policy import Policy as ShownPolicy
from tests.contract.bad_bots import result_of
from tests.contract.conftest import Bench

LOOPBACK = AddressRule(allow=(ip_network("127.0.0.0/8"),))
HOUR = 3600


class PlanBench:
    """The plan package on a bench."""

    def __init__(self, bench: Bench, backlog: int = 10_000) -> None:
        self.bench = bench
        self.store = PolicyStore()
        jobs = JobAdmin(bench.database, bench.queue, bench.job_admin_store)
        self.policies = Policies(bench.database, bench.queue, bench.crawls, LOOPBACK)
        self.site_scheduler = SiteScheduler(bench.database, bench.crawls, bench.signals)
        self.scheduler = Scheduler(bench.queue, jobs, backlog)

    async def make(self, **values: Any) -> Policy:
        if "cron" not in values:
            values = {"frequency": "6h"} | values
        return await self.policies.make(PolicyForm.read({"url": "http://example.org/", **values}))

    async def pass_(self) -> None:
        await self.scheduler.run_once()

    async def waiting(self) -> list[str]:
        """The policies of the jobs that wait, best first."""
        rows = await self.bench.sql("SELECT payload FROM job WHERE state = 'pending' ORDER BY rank, id")
        return [orjson.loads(row["payload"])["policy"] for row in rows]

    async def live(self) -> int:
        return await self.bench.number("SELECT count(*) FROM job WHERE finished_at IS NULL")

    async def take(self) -> Lease:
        return await self.bench.lease("bot", "page")

    async def end(self, lease: Lease, *, success: bool = True, digest: str | None = None) -> None:
        """Send the result of the last attempt at a job."""
        result = result_of(Status.SUCCESS if success else Status.FAIL, self.bench.clock.micros(), digest)
        [receipt] = (await self.bench.ingest.settle("bot", [ResultDelivery(lease.fence, result)])).receipts
        assert receipt.state in TERMINAL


@pytest.fixture
def plan(bench: Bench) -> PlanBench:
    return PlanBench(bench)


async def test_the_few_policies_that_are_disabled_are_all_found(
    plan: PlanBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.plan.store.SCAN", 3)
    made = [await plan.make(enabled=place not in (1, 2, 10), project="ab"[place % 2]) for place in range(12)]

    async def listed(**which: Any) -> list[int]:
        found = (await plan.policies.page_of(**{"after": 0, "limit": 50} | which))[1]
        return [[one.id for one in made].index(policy.id) for policy in found]

    assert await listed(enabled=False) == [1, 2, 10]
    assert await listed(enabled=False, limit=2) == [1, 2]
    assert await listed(enabled=False, after=made[2].number) == [10]
    assert await listed(enabled=False, project="a") == [2, 10]
    assert await listed(enabled=True, project="a") == [0, 4, 6, 8]
    assert await listed(enabled=False, project="c") == []


async def test_a_new_policy_is_due_at_once_and_then_after_each_frequency(plan: PlanBench) -> None:
    policy = await plan.make(frequency="6h")
    await plan.pass_()
    assert await plan.waiting() == [policy.id]
    await plan.end(await plan.take())
    for _ in range(3):
        await plan.bench.jump(6 * HOUR - 61)
        await plan.pass_()
        assert await plan.live() == 0
        await plan.bench.jump(61)
        await plan.pass_()
        assert await plan.live() == 1
        await plan.end(await plan.take())
    seen = await plan.policies.get(policy.id)
    assert (seen.runs, seen.live_job_id) == (4, None)


async def test_next_run_moves_by_whole_frequencies_from_its_planned_time_however_late(plan: PlanBench) -> None:
    policy = await plan.make(frequency="1h")
    first = policy.next_run_at or 0
    await plan.pass_()
    await plan.end(await plan.take())
    await plan.bench.jump(2.5 * HOUR)
    await plan.pass_()
    seen = await plan.policies.get(policy.id)
    assert (seen.next_run_at or 0) - first == 3 * HOUR * 1_000_000
    assert await plan.live() == 1  # missed runs are made up for by one run


class SlowPolicies(PolicyStore):
    """Time passes while it searches for due policies."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    async def is_ready(self, tx: Tx, queue: str) -> bool:
        return True  # because another policy is due

    async def due(self, tx: Tx, queue: str, limit: int) -> list[Policy]:
        self.clock.jump(10)
        return await super().due(tx, queue, limit)


async def test_a_policy_that_becomes_due_while_it_is_looked_for_runs_once(sqlite_bench: Bench) -> None:
    plan = PlanBench(sqlite_bench)  # the clock of PostgreSQL cannot be set in the middle of a transaction
    await plan.make(frequency="1h")
    await plan.pass_()
    await plan.end(await plan.take())
    await plan.bench.jump(HOUR - 5)
    plan.scheduler._store = SlowPolicies(sqlite_bench.clock)
    await plan.pass_()
    await plan.end(await plan.take())
    await plan.pass_()
    assert await plan.live() == 0


async def test_no_second_job_while_one_lives(plan: PlanBench) -> None:
    policy = await plan.make(frequency="1h")
    await plan.pass_()
    await plan.bench.jump(1.1 * HOUR)
    await plan.pass_()
    await plan.pass_()
    assert await plan.live() == 1
    assert (await plan.policies.get(policy.id)).runs == 1


async def test_two_schedulers_make_one_job(plan: PlanBench) -> None:
    for _ in range(30):
        await plan.make()
    other = PlanBench(plan.bench)
    await plan.pass_()
    await other.pass_()
    assert await plan.live() == 30


async def test_an_overlap_that_is_queued_is_remembered_once(plan: PlanBench) -> None:
    policy = await plan.make(frequency="1h", overlap="queue")
    await plan.pass_()
    for _ in range(3):
        await plan.bench.jump(1.01 * HOUR)
        await plan.pass_()
    assert await plan.live() == 1
    await plan.end(await plan.take())
    await plan.pass_()
    assert await plan.live() == 1
    await plan.end(await plan.take())
    await plan.pass_()
    assert await plan.live() == 0
    assert (await plan.policies.get(policy.id)).runs == 2


async def test_an_overlap_that_replaces_cancels_first_in_the_same_commit(plan: PlanBench) -> None:
    policy = await plan.make(frequency="1h", overlap="replace")
    await plan.pass_()
    old = await plan.take()
    await plan.bench.jump(1.01 * HOUR)
    await plan.pass_()
    assert (await plan.bench.job(old.fence.job_id)).state is JobState.CANCELLED
    assert await plan.waiting() == [policy.id]
    [told] = [one for one in plan.bench.signals_seen if isinstance(one, JobMoved)]
    assert (told.job_id, told.how, told.reason) == (old.fence.job_id, GrantEnd.CANCELLED, "replaced")


async def test_a_disabled_policy_makes_nothing_until_it_is_enabled(plan: PlanBench) -> None:
    policy = await plan.make(enabled=False)
    await plan.pass_()
    assert await plan.live() == 0
    await plan.policies.enable(policy.id, True)
    await plan.pass_()
    assert await plan.live() == 1
    seen = await plan.policies.enable(policy.id, False)
    assert seen.next_run_at is None


async def test_no_run_begins_after_its_last_moment(plan: PlanBench) -> None:
    now = (await plan.policies.page_of())[0]
    end = from_micros(now + 5 * HOUR // 2 * 1_000_000).isoformat()
    policy = await plan.make(frequency="1h", not_after=end)
    for _ in range(5):
        await plan.pass_()
        if await plan.live():
            await plan.end(await plan.take())
        await plan.bench.jump(1.001 * HOUR)
    seen = await plan.policies.get(policy.id)
    assert (seen.runs, seen.next_run_at) == (3, None)


async def test_a_scheduler_that_comes_after_the_last_moment_begins_nothing(plan: PlanBench) -> None:
    now = (await plan.policies.page_of())[0]
    policy = await plan.make(not_after=from_micros(now + HOUR * 1_000_000).isoformat())
    await plan.bench.jump(2 * HOUR)
    await plan.pass_()
    assert await plan.live() == 0
    assert (await plan.policies.get(policy.id)).next_run_at is None


async def window_of(plan: PlanBench, hours: int) -> str:
    """A time window that is open now and closes after this many hours."""
    now = from_micros((await plan.policies.page_of())[0])
    return f"{now:%H:%M}-{now + timedelta(hours=hours):%H:%M}"


@pytest.mark.parametrize("what", [{}, {"url": None, "seeds": ["http://example.org/"]}])
async def test_a_scheduler_that_comes_when_the_window_is_shut_waits_for_the_next(
    plan: PlanBench, what: dict[str, Any]
) -> None:
    policy = await plan.make(windows=[await window_of(plan, 1)], frequency="24h", **what)
    await plan.bench.jump(2 * HOUR)
    await plan.pass_()
    await plan.site_scheduler.run_once()
    seen = await plan.policies.get(policy.id)
    assert (seen.runs, seen.planned_at) == (0, policy.planned_at)
    assert 23 * HOUR - 61 <= ((seen.next_run_at or 0) - policy.planned_at) / 1e6 <= 24 * HOUR
    await plan.bench.jump(22 * HOUR)
    await plan.pass_()
    await plan.site_scheduler.run_once()
    assert (await plan.policies.get(policy.id)).runs == 1


async def test_a_run_that_is_owed_waits_for_its_window_and_takes_the_place_of_no_other(plan: PlanBench) -> None:
    policy = await plan.make(windows=[await window_of(plan, 2)], frequency="1h", jitter="0s", overlap="queue")
    await plan.pass_()
    await plan.bench.jump(1.01 * HOUR)
    await plan.pass_()  # it has missed a run, which is made up for later
    assert (await plan.policies.get(policy.id)).queued
    await plan.bench.jump(2 * HOUR)
    await plan.end(await plan.take())
    await plan.pass_()
    seen = await plan.policies.get(policy.id)
    assert (await plan.live(), seen.queued) == (0, False)
    opens = seen.next_run_at or 0
    assert from_micros(opens).strftime("%H:%M") == policy.form.windows[0][:5]
    await plan.bench.jump(24 * HOUR - 3 * HOUR)
    await plan.pass_()
    assert await plan.live() == 1


async def test_run_now_makes_a_job_and_leaves_the_plan(plan: PlanBench) -> None:
    policy = await plan.make(frequency="24h")
    await plan.pass_()
    await plan.end(await plan.take())
    before = await plan.policies.get(policy.id)
    made = await plan.policies.run_now(policy.id)
    again = await plan.policies.run_now(policy.id)
    assert (made.duplicate, again.duplicate, again.id) == (False, True, made.id)
    seen = await plan.policies.get(policy.id)
    assert (seen.next_run_at, seen.runs) == (before.next_run_at, before.runs + 1)


async def test_back_pressure_leaves_what_is_due_for_later_the_longest_due_first(plan: PlanBench) -> None:
    narrow = PlanBench(plan.bench, backlog=2)
    made = []
    for _ in range(4):
        made.append((await plan.make()).id)
        await plan.bench.jump(1)
    await narrow.pass_()
    await narrow.pass_()
    assert sorted(await plan.waiting()) == sorted(made[:2])
    await plan.end(await plan.take())
    await narrow.pass_()
    assert made[2] in await plan.waiting()


async def test_jobs_that_nobody_takes_hold_back_only_policies_that_ask_for_the_same(plan: PlanBench) -> None:
    narrow = PlanBench(plan.bench, backlog=2)
    rendered = [await plan.make(crawl_config={"js_required": True}, overlap="queue") for _ in range(4)]
    await narrow.pass_()
    await plan.bench.jump(7 * HOUR)
    await narrow.pass_()  # policies whose jobs still wait have missed a run, and are in the same queue
    plain, special = await plan.make(), await plan.make(queue="special")
    await narrow.pass_()
    waiting = await plan.waiting()
    assert {plain.id, special.id} < set(waiting)
    assert len(waiting) == 4
    assert len({one.id for one in rendered} & set(waiting)) == 2


async def test_success_and_failure_are_noted_each_once(plan: PlanBench) -> None:
    policy = await plan.make(max_retry=0)
    await plan.pass_()
    await plan.end(await plan.take(), success=False)
    seen = await plan.policies.get(policy.id)
    assert (seen.last_success_at, seen.error_rate) == (None, pytest.approx(0.2))
    await plan.bench.jump(6.1 * HOUR)
    await plan.pass_()
    await plan.end(await plan.take(), digest="a")
    seen = await plan.policies.get(policy.id)
    assert seen.last_success_at is not None
    assert seen.error_rate == pytest.approx(0.16)


async def test_an_adaptive_policy_runs_less_often_while_nothing_changes_and_more_often_when_it_does(
    plan: PlanBench,
) -> None:
    policy = await plan.make(frequency="4h", adaptive={"min": "1h", "max": "12h"})

    async def run(digest: str) -> float:
        await plan.pass_()
        lease = await plan.take()
        await plan.end(lease, digest=digest)
        seen = await plan.policies.get(policy.id)
        await plan.bench.jump(12.5 * HOUR)
        return (seen.frequency_now or timedelta(0)).total_seconds() / HOUR

    assert await run("a") == 0  # there is nothing to compare with
    assert await run("a") == 6
    assert await run("a") == 9
    assert await run("a") == 12
    assert await run("a") == 12
    assert await run("b") == 6


async def test_a_signal_raises_the_priority_of_jobs_that_are_made_while_it_lasts(plan: PlanBench) -> None:
    plain = await plan.make(url="http://example.org/plain")
    hot = await plan.make(url="http://example.org/hot", labels={"team": "a"})
    await plan.policies.signal(SignalForm.read({"label": "team=a", "boost": 30.0, "lasts": "1h"}))
    await plan.pass_()
    assert await plan.waiting() == [hot.id, plain.id]
    rows = await plan.bench.sql("SELECT payload, priority FROM job ORDER BY priority DESC")
    assert orjson.loads(rows[0]["payload"])["priority"]["signal"] == 30
    assert rows[0]["priority"] - rows[1]["priority"] == 30


async def test_a_signal_that_ended_long_ago_is_removed(plan: PlanBench) -> None:
    bench = plan.bench
    for label, lasts in (("team=a", "1h"), ("team=b", "1h"), ("team=c", "9d")):
        await plan.policies.signal(SignalForm.read({"label": label, "boost": 30.0, "lasts": lasts}))
    retention = BoostRetention(timedelta(days=7))
    now = await bench.database.read(plan.store.now)
    assert await retention.prune(bench.database, now + 3_500_000_000, 1) == (0, False)
    assert await retention.prune(bench.database, now + 3_700_000_000, 1) == (1, True)
    assert await retention.prune(bench.database, now + 3_700_000_000, 2) == (1, False)
    assert await bench.number("SELECT count(*) FROM business_signal") == 1


async def test_a_change_keeps_the_rest_and_a_new_schedule_begins_now(plan: PlanBench) -> None:
    policy = await plan.make(frequency="6h", labels={"a": "b"})
    await plan.pass_()
    await plan.end(await plan.take())
    seen = await plan.policies.rewrite(policy.id, replace(policy.form, priority_base=70))
    assert (seen.form.priority_base, seen.form.labels) == (70, {"a": "b"})
    assert (seen.next_run_at or 0) > (await plan.policies.page_of())[0]
    seen = await plan.policies.rewrite(policy.id, replace(policy.form, frequency="1h"))
    assert (seen.next_run_at or 0) <= (await plan.policies.page_of())[0]


async def test_a_policy_of_a_site_begins_a_crawl_each_time_and_one_at_a_time(plan: PlanBench) -> None:
    policy = await plan.make(url=None, seeds=["http://example.org/"], frequency="1h", crawl_config={"depth": 1})
    await plan.site_scheduler.run_once()
    await plan.site_scheduler.run_once()
    [first] = await plan.bench.crawls.newest()
    assert (first.crawl.config.depth, first.crawl.state) == (1, CrawlState.QUEUED)
    assert first.crawl.policy_id == policy.id
    await plan.bench.jump(1.1 * HOUR)
    await plan.site_scheduler.run_once()
    assert len(await plan.bench.crawls.newest()) == 1
    await plan.bench.crawls.stop(first.crawl.id)
    await plan.bench.jump(1.1 * HOUR)
    await plan.site_scheduler.run_once()
    assert len(await plan.bench.crawls.newest()) == 2
    assert (await plan.policies.get(policy.id)).runs == 2


async def test_the_crawls_of_a_policy_are_retried_as_often_as_it_says_whatever_the_worker_is_set_to(
    plan: PlanBench,
) -> None:
    worker = dataclasses.replace(plan.bench, settings=QueueSettings(job_attempts=5))
    await plan.make(url=None, seeds=["http://example.org/"], max_retry=1)
    await plan.site_scheduler.run_once()
    [seen] = await plan.bench.crawls.newest()
    lease = await worker.lease(kind="crawl")
    assert lease.max_attempts == 2
    assert await worker.queue.fail(lease, "an error") is JobState.PENDING
    await plan.bench.jump(HOUR)
    assert await worker.queue.fail(await worker.lease(kind="crawl"), "an error") is JobState.FAILED
    await plan.bench.crawls.retry(seen.crawl.id)
    assert (await worker.lease(kind="crawl")).max_attempts == 2


async def test_a_scheduler_that_dies_before_it_notes_the_crawl_begins_no_second_one(plan: PlanBench) -> None:
    policy = await plan.make(url=None, seeds=["http://example.org/"])
    crawl_id = f"{policy.id}-{policy.planned_at}"
    await start_crawl(plan.bench.crawls, policy, crawl_id, 50)  # the scheduler dies here
    await plan.site_scheduler.run_once()
    assert [seen.crawl.id for seen in await plan.bench.crawls.newest()] == [crawl_id]
    assert (await plan.policies.get(policy.id)).live_crawl == crawl_id


async def test_a_site_that_is_to_be_replaced_stops_its_last_crawl(plan: PlanBench) -> None:
    await plan.make(url=None, seeds=["http://example.org/"], frequency="1h", overlap="replace")
    await plan.site_scheduler.run_once()
    await plan.bench.jump(1.1 * HOUR)
    await plan.site_scheduler.run_once()
    states = [seen.crawl.state for seen in await plan.bench.crawls.newest()]
    assert states == [CrawlState.QUEUED, CrawlState.STOPPED]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"frequency": "0"}, "frequency"),
        ({"frequency": "-1h"}, "frequency"),
        ({"frequency": "5 minutes!"}, "frequency"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "0 * * * *", "timezone": "Mars/X"}, "timezone"),
        ({"frequency": "1h", "cron": "0 * * * *"}, "frequency"),
        ({"url": "ftp://example.org/"}, "url"),
        ({"url": "http://10.0.0.1/"}, "url"),
        ({"seeds": ["http://example.org/"]}, "url"),
        ({"lock_ttl": "1s"}, "lock_ttl"),
        ({"lock_ttl": 60}, "lock_ttl"),
        ({"max_retry": -1}, "max_retry"),
        ({"crawl_config": {"headers": {"Host": "x"}}}, "crawl_config"),
        ({"crawl_config": {"nonsense": 1}}, "crawl_config.nonsense"),
        ({"url": None, "seeds": ["http://example.org/"], "crawl_config": {"dept": 1}}, "crawl_config.dept"),
        ({"url": None, "seeds": ["http://10.0.0.1/"]}, "seeds[0]"),
        ({"adaptive": {"min": "2h", "max": "1h"}}, "adaptive"),
        ({"url": None, "seeds": ["http://example.org/"], "adaptive": {"min": "1h", "max": "2h"}}, "adaptive"),
        ({"rule_set": {"fields": {"x": {"xpath": "document('file:///etc/passwd')"}}}}, "rule_set"),
        ({"attempts": 3}, "attempts"),
        ({"labels": {"team": "a\0b"}}, "labels"),
        ({"windows": ["08:00-25:00"]}, "windows"),
        (
            {"url": None, "seeds": ["http://example.org/"], "crawl_config": {"proxy": "http://10.0.0.1:3128"}},
            "proxy",
        ),
    ],
)
async def test_a_bad_policy_is_refused_by_its_field_and_nothing_is_stored(
    plan: PlanBench, values: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await plan.make(**values)
    assert refusal.value.facts["field"].startswith(field)
    assert (await plan.policies.page_of())[1] == []


async def test_an_unknown_policy_is_not_found(plan: PlanBench) -> None:
    for verb in (plan.policies.get, plan.policies.remove, plan.policies.run_now):
        with pytest.raises(NotFound):
            await verb("pol_unknown")


async def test_freshness_is_reported(plan: PlanBench) -> None:
    policy = await plan.make(frequency="1h")
    now, _ = await plan.policies.page_of()
    assert ShownPolicy.of(policy, now).freshness == Freshness(age_seconds=None, stale=False)
    await plan.pass_()
    await plan.end(await plan.take())
    seen = await plan.policies.get(policy.id)
    later = (seen.last_success_at or 0) + 2 * HOUR * 1_000_000
    assert ShownPolicy.of(seen, later).freshness == Freshness(age_seconds=2 * HOUR, stale=True)
    assert seen.staleness(later) == pytest.approx(timedelta(hours=2) / timedelta(hours=1))


async def test_a_weekly_policy_is_not_stale_before_its_next_time(plan: PlanBench) -> None:
    policy = await plan.make(cron="0 6 * * 1")
    monday = to_micros(datetime(2026, 3, 2, 6, 5, tzinfo=UTC))
    seen = dataclasses.replace(policy, last_success_at=monday)
    gone = dataclasses.replace(seen, spec=policy.spec.replace('"UTC"', '"Europe/Gone"'))
    assert ShownPolicy.of(gone, monday).timezone == "Europe/Gone"
    assert not ShownPolicy.of(seen, monday + 6 * 24 * HOUR * 1_000_000).freshness.stale
    assert ShownPolicy.of(seen, monday + 7 * 24 * HOUR * 1_000_000).freshness.stale


SITE = {"url": None, "seeds": ["http://example.org/"]}


async def test_a_site_that_cannot_be_crawled_any_more_keeps_no_other_from_its_crawl(plan: PlanBench) -> None:
    broken = await plan.make(**SITE, frequency="1h")
    spec = broken.spec.replace("http://example.org/", "http://10.0.0.1/")
    await plan.bench.sql(f"UPDATE policy SET spec = '{spec}'")  # its network was allowed once
    fine = await plan.make(**SITE, frequency="1h")
    await plan.site_scheduler.run_once()
    assert (await plan.policies.get(fine.id)).live_crawl is not None
    missed = await plan.policies.get(broken.id)
    assert (missed.live_crawl, missed.runs) == (None, 0)
    assert (missed.next_run_at or 0) > (await plan.policies.page_of())[0]
    assert [one.policy_id for one in plan.bench.signals_seen if isinstance(one, PolicyStuck)] == [broken.id]


async def test_a_signal_about_a_url_counts_however_the_policy_writes_it(plan: PlanBench) -> None:
    await plan.policies.signal(SignalForm.read({"url": "http://EXAMPLE.org", "boost": 30}))
    await plan.make(url="http://Example.org:80")
    await plan.pass_()
    assert (await plan.take()).priority == 50 + 5 + 30


async def test_a_signal_needs_something_to_be_about(plan: PlanBench) -> None:
    for values in ({"url": ""}, {"label": ""}, {}):
        with pytest.raises(InvalidInput):
            await plan.policies.signal(SignalForm.read({"boost": 1, **values}))


async def test_sites_whose_crawls_last_hide_no_other_that_is_owed_a_run(
    plan: PlanBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_scheduler, "SITES_AT_ONCE", 1)
    made = [await plan.make(**SITE, frequency="1h", overlap="queue") for _ in range(2)]
    for _ in made:
        await plan.site_scheduler.run_once()
    await plan.bench.jump(1.1 * HOUR)
    for _ in made:
        await plan.site_scheduler.run_once()
    last = (await plan.policies.get(made[1].id)).live_crawl
    await plan.bench.crawls.stop(last or "")
    await plan.site_scheduler.run_once()
    assert (await plan.policies.get(made[1].id)).live_crawl != last


async def test_a_job_is_explained_with_the_parts_of_its_priority(plan: PlanBench) -> None:
    await plan.make(priority_base=60)
    await plan.pass_()
    lease = await plan.take()
    said = JobExplained.with_facts(await plan.bench.job_admin.explain(lease.fence.job_id))
    assert said["priority_parts"] == {"importance": 60.0, "staleness": 5.0, "error_rate": 0.0, "signal": 0.0}

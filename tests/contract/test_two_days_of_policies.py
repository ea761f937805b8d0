"""A simulation of policies, scheduler, bots and events: two days of many policies with all kinds of faults.

Two schedulers, a forwarder and a courier are killed at their commits, or just after them; of four bots,
one dies with the jobs it holds, one is slower than its lease, and one sends false results; all of them use HTTP. Every
policy ran according to its schedule, one job at a time; each accepted result is one event, and each event was delivered
under one id. More: SHOAL_TEST_EFFORT=10.
"""

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import orjson
import pytest

from shoal.events.event import TYPES
from tests.contract.two_days import HOURS, MINUTE, Days, Diary, days_of, forms
from tests.support.effort import times

SEED = 6
ENDS = {"done": "crawl.job.completed", "failed": "crawl.job.failed", "expired": "crawl.job.failed"}


async def live_through(days: Days, count: int, minutes: float) -> None:
    """Policies come in over the first hours; then there is an outage of three hours, and other small ones."""
    await days.hook()
    new = forms(count, days.dice)
    end = days.now + HOURS * 60 * MINUTE
    while days.now < end:
        hour = (days.now - end) / MINUTE / 60 + HOURS
        share, new = new[: max(1, count // 20)], new[max(1, count // 20) :]
        if share:
            await days.begin(share)
        up = not 20 <= hour < 23 and days.dice.random() > 0.03
        await days.live(minutes * days.dice.uniform(0.5, 1.5), schedulers=up)
    assert not new
    await days.settle()


async def check(days: Days) -> None:
    jobs = await days.bench.sql("SELECT * FROM job WHERE kind = 'page' ORDER BY created_at, id")
    crawls = await days.bench.sql("SELECT * FROM crawl ORDER BY created_at, id")
    events = await days.bench.sql("SELECT * FROM outbox ORDER BY sequence")
    policies = await days.bench.sql("SELECT * FROM policy")
    assert not days.believed
    assert not days.lost
    assert min(days.lies, days.late, days.kills, days.dying.died) > 0  # otherwise nothing was tested
    check_runs(days, policies, jobs + crawls, events)
    check_events(days, jobs, crawls, events)
    await check_results(days)


def check_runs(
    days: Days, policies: list[dict[str, Any]], runs_of_all: list[dict[str, Any]], events: list[dict[str, Any]]
) -> None:
    """Each policy ran exactly when it must, one job, or one crawl of a site, at a time."""
    own: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs_of_all:
        own[policy_of_run(run)].append(run)
    hashes = hashes_of(events)
    overlaps: Counter[str] = Counter()
    for policy in policies:
        runs = own[policy["id"]]
        lives = [(run["created_at"], run["finished_at"]) for run in runs]
        assert all(ended <= made for (_, ended), (made, _) in pairwise(lives)), "two lived at once"
        diary = Diary(policy["id"], orjson.loads(policy["spec"]), policy["created_at"], lives, hashes[policy["id"]])
        assert [made for made, _ in lives] == diary.made(days.passes), policy["spec"]
        assert policy["runs"] == len(runs)
        overlaps[diary.form["overlap"]] += diary.overlaps
    assert min(overlaps[kind] for kind in ("skip", "queue", "replace")) > 0


def policy_of_run(run: dict[str, Any]) -> str:
    key = run.get("dedupe_key")
    return key.removeprefix("policy:") if key else run["policy_id"]


def hashes_of(events: list[dict[str, Any]]) -> dict[str, list[tuple[int, str]]]:
    """Return the content hashes of successful runs by policy, and when the runs ended."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for event in events:
        data = orjson.loads(event["body"])
        if event["type"] == "crawl.job.completed":
            found[data["policy"]].append((event["created_at"], data["meta"]["html_hash"]))
    return found


def check_events(
    days: Days, jobs: list[dict[str, Any]], crawls: list[dict[str, Any]], events: list[dict[str, Any]]
) -> None:
    """Each end of a job or crawl is one event, which was delivered, always with the same content."""
    wanted = [(job["id"], ENDS[job["state"]]) for job in jobs if job["state"] != "cancelled"]
    wanted += [(crawl["id"], "crawl.stopped") for crawl in crawls]
    assert {job["state_reason"] for job in jobs if job["state"] == "cancelled"} <= {"replaced"}
    assert sorted((event["subject"], event["type"]) for event in events) == sorted(wanted)
    assert all(set(orjson.loads(event["body"])) == set(TYPES[event["type"]].data) for event in events)
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert set(days.received) == {event["id"] for event in events}
    assert all(len(bodies) == 1 for bodies in days.received.values())
    assert days.deliveries > len(events)  # some deliveries were lost and repeated


async def check_results(days: Days) -> None:
    """Check that each accepted result is stored once, that each job without a result has a record, and that there is
    nothing else."""
    kept = await days.bench.sql("SELECT job_id, epoch, html_hash FROM result WHERE state <> 'expired'")
    told = Counter((one.fence.job_id, one.fence.epoch, one.result.html_hash) for one in days.accepted)
    assert told == Counter((row["job_id"], row["epoch"], row["html_hash"]) for row in kept)
    silent = await days.bench.sql("SELECT job_id AS id FROM result WHERE state = 'expired' ORDER BY job_id")
    assert silent == await days.bench.sql("SELECT id FROM job WHERE state = 'expired' ORDER BY id")


@pytest.mark.exhaustive
async def test_two_days_of_policies_with_kills_and_bad_bots(sqlite_url: str) -> None:
    async with days_of(sqlite_url, SEED) as days:
        await live_through(days, times(300), 15)
        await check(days)


@pytest.mark.exhaustive
async def test_two_days_of_policies_on_postgres(postgres_url: str) -> None:
    async with days_of(postgres_url, SEED) as days:
        await live_through(days, times(60), 40)
        await check(days)

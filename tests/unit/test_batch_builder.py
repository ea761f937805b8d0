"""The batch for the next commit: what it holds, and when it is due."""

import pytest

from shoal.base.clock import SystemClock
from shoal.base.settings import CrawlSettings, HostSettings
from shoal.base.url import Url
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.engine import results as batch_builder
from shoal.crawl.engine.results import STARVING_SECONDS, BatchBuilder, Budget
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import SUSPECT_FROM, FrontierTask, Settled
from shoal.hosts.throttle import ThrottleTracker

WINDOW = 4
LONGEST = 1.0
HERE = Url("https://example.com/")
SETTINGS = CrawlSettings(commit_results=3)


class Wakes:
    """Counts how often the commit loop was woken."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def wakes() -> Wakes:
    return Wakes()


@pytest.fixture
def batch(wakes: Wakes) -> BatchBuilder:
    clock = SystemClock()
    budget = Budget(CrawlConfig(seeds=[HERE]), clock)
    throttle = ThrottleTracker(HostSettings(), clock)
    return BatchBuilder(WINDOW, SETTINGS, budget, throttle, wakes, bodies=None, not_modified=None)


def tasks(count: int, crashes: int = 0) -> list[FrontierTask]:
    return [FrontierTask(seq, seq, 1, 0, seq, HERE, None, 0, crashes) for seq in range(count)]


def settled(task: FrontierTask) -> Settled:
    return Settled(task, Fate.SKIPPED_ROBOTS)


def test_it_takes_what_the_window_and_the_next_commit_need(batch: BatchBuilder) -> None:
    assert batch.capacity() == WINDOW + 3
    batch.take(tasks(5))
    assert (batch.held, batch.capacity()) == (5, 2)


def test_a_url_is_held_until_a_commit_takes_its_result(batch: BatchBuilder) -> None:
    taken = tasks(5)
    batch.take(taken)
    batch.add(settled(taken[0]))
    assert batch.held == 5
    assert [done.task for done in batch.cut().settled] == taken[:1]
    assert (batch.held, batch.pending.settled) == (4, [])


def test_nothing_else_is_taken_while_a_suspect_is_held(batch: BatchBuilder) -> None:
    [suspect] = tasks(1, crashes=SUSPECT_FROM)
    batch.take([suspect])
    assert batch.capacity() == 0
    batch.add(settled(suspect))
    assert batch.capacity() > 0


def test_a_commit_without_results_is_due_after_the_longest_silence(batch: BatchBuilder) -> None:
    batch.take(tasks(10))
    assert batch.due_in_seconds(0.25, LONGEST) == LONGEST - 0.25


def test_the_first_result_starts_the_interval_of_commits(batch: BatchBuilder, wakes: Wakes) -> None:
    taken = tasks(10)
    batch.take(taken)
    batch.add(settled(taken[0]))
    assert batch.due_in_seconds(0.0, LONGEST) == SETTINGS.commit_every.total_seconds()
    assert wakes.count == 1
    batch.add(settled(taken[1]))
    assert wakes.count == 1


def test_enough_results_make_a_commit_due(batch: BatchBuilder, wakes: Wakes) -> None:
    taken = tasks(10)
    batch.take(taken)
    for task in taken[:3]:
        batch.add(settled(task))
    assert batch.due_in_seconds(0.0, LONGEST) == 0
    assert wakes.count == 2


def test_a_window_that_runs_dry_commits_sooner(batch: BatchBuilder) -> None:
    taken = tasks(WINDOW)
    batch.take(taken)
    batch.add(settled(taken[0]))
    assert batch.due_in_seconds(0.0, LONGEST) == STARVING_SECONDS


def test_a_batch_with_too_many_urls_starts_no_further_fetch(
    batch: BatchBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_builder, "MOST_URLS", 2)
    assert not batch.is_closed
    batch.pending.skipped += [(1, 1, Fate.SKIPPED_SCOPE), (2, 2, Fate.SKIPPED_SCOPE)]
    assert batch.is_heavy
    assert batch.is_closed
    assert batch.due_in_seconds(0.0, LONGEST) == 0


def test_after_an_outage_nothing_is_held(batch: BatchBuilder) -> None:
    taken = tasks(5, crashes=SUSPECT_FROM)
    batch.take(taken)
    batch.add(settled(taken[0]))
    batch.forget()
    assert (batch.held, batch.pending.settled, batch.capacity()) == (0, [], WINDOW + 3)

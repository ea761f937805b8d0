"""Changing the limits, filters and speed of a live crawl: stored at once, applied by walkers at their next commit."""

import pytest

from shoal.base.errors import InvalidInput, NotFound, StateConflict
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.values import WalkerBatch
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.crawls import KIND, CrawlChanged
from shoal.crawl.states import CrawlState
from tests.contract.conftest import FREE, SITE, Bench, fetched

S = CrawlState


async def changed(bench: Bench, crawl: Crawl, **values: object) -> Crawl:
    return (await bench.crawls.change(crawl.id, CrawlChange.read(values))).crawl


async def test_a_change_is_stored_and_what_is_not_named_stays(bench: Bench) -> None:
    crawl = await bench.submit(max_pages=5, exclude=["/a"], depth=4)
    after = await changed(bench, crawl, max_pages=None, exclude=["/b"])
    assert (after.config.max_pages, after.config.exclude, after.config.depth) == (None, ["/b"], 4)
    assert after.state is S.QUEUED
    assert [signal.changes for signal in bench.signals_seen if isinstance(signal, CrawlChanged)] == [
        {"max_pages": None, "exclude": ["/b"]}
    ]


async def test_a_change_to_the_same_values_is_not_stored(bench: Bench) -> None:
    crawl = await bench.submit(max_pages=5)
    assert (await changed(bench, crawl, max_pages=5)).changed_at == 0
    assert not [signal for signal in bench.signals_seen if isinstance(signal, CrawlChanged)]


async def test_a_walker_is_reported_once_and_takes_nothing_before_it_knows(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b")
    walker = await bench.walker(crawl)
    [first] = await walker.take(1)
    after = await changed(bench, crawl, max_pages=1)
    turn = await walker.turn(fetched(first))
    assert turn.changed is not None
    assert (turn.changed.config.max_pages, turn.work) == (1, [])
    walker.commits.change(turn.changed, FREE)
    turn = await walker.turn()
    assert (turn.changed, turn.work, turn.drained) == (None, [], False)
    assert turn.counts is not None
    assert turn.counts.pages == 1
    assert after.changed_at > 0


async def test_two_changes_in_one_moment_are_both_noticed(bench: Bench) -> None:
    crawl = await bench.submit()
    first = await changed(bench, crawl, depth=1)
    second = await changed(bench, crawl, depth=2)
    assert second.changed_at > first.changed_at


async def test_the_priority_of_waiting_jobs_follows_their_crawl(bench: Bench) -> None:
    first, second = await bench.submit(f"{SITE}/1"), await bench.submit(f"{SITE}/2")
    assert (await changed(bench, second, priority=90)).priority == 90
    assert (await bench.lease(kind=KIND)).run_id == second.id
    assert (await bench.lease(kind=KIND)).run_id == first.id


async def test_a_limit_raised_while_a_walker_leaves_for_it_does_not_end_the_crawl(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b", max_pages=1)
    walker = await bench.walker(crawl)
    [first] = await walker.take()
    await changed(bench, crawl, max_pages=2)
    await walker.commits.close(WalkerBatch([fetched(first)]), "max_pages")
    assert await bench.state(crawl) is S.RUNNING
    assert await bench.live(crawl) == (1, 0)
    again = await bench.walker((await bench.crawls.get(crawl.id)).crawl)
    assert len(await again.take()) == 1


async def test_walkers_that_left_for_a_limit_come_back_when_it_is_raised(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b", f"{SITE}/c", workers=2, max_pages=1)
    first, second = await bench.walker(crawl, "w1"), await bench.walker(crawl, "w2")
    [task] = await first.take(1)
    await first.commits.close(WalkerBatch([fetched(task)]), "max_pages")
    assert await bench.state(crawl) is S.RUNNING
    await bench.jump(1)
    await changed(bench, crawl, max_pages=3)
    assert await bench.live(crawl) == (1, 1)
    await bench.jump(1)
    await second.commits.hand_back(
        WalkerBatch(), "shutdown"
    )  # no walker has it and no limit is reached, so it continues
    assert await bench.state(crawl) is S.RUNNING
    assert await bench.live(crawl) == (2, 0)


@pytest.mark.parametrize("end", [S.STOPPED, S.COMPLETED, S.FAILED])
async def test_an_ended_crawl_cannot_be_changed(bench: Bench, end: CrawlState) -> None:
    crawl = await bench.submit(hooks=["deadly"])
    if end is S.STOPPED:
        await bench.crawls.stop(crawl.id)
    elif end is S.COMPLETED:
        walker = await bench.walker(crawl)
        await walker.take()
        await walker.fetch_all()
    else:
        for _ in range(4):
            await bench.lease(kind=KIND)  # whose child dies while it loads the hook
            await bench.lose()
    assert await bench.state(crawl) is end
    with pytest.raises(StateConflict, match="so it cannot be changed"):
        await changed(bench, crawl, max_pages=9)
    assert (await bench.crawls.get(crawl.id)).crawl.config.max_pages is None


async def test_a_crawl_that_is_told_to_stop_is_not_changed(bench: Bench) -> None:
    crawl = await bench.submit()
    await bench.walker(crawl)
    await bench.crawls.stop(crawl.id)
    with pytest.raises(StateConflict, match="stopping"):
        await changed(bench, crawl, max_pages=9)


async def test_a_paused_crawl_goes_on_by_what_it_was_given_meanwhile(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b")
    await bench.crawls.pause(crawl.id)
    await changed(bench, crawl, max_pages=1)
    await bench.crawls.resume(crawl.id)
    walker = await bench.walker((await bench.crawls.get(crawl.id)).crawl)
    turn = await walker.turn()
    assert (turn.changed, len(turn.work)) == (None, 1)


async def test_an_unknown_crawl_is_not_changed(bench: Bench) -> None:
    with pytest.raises(NotFound):
        await bench.crawls.change("none", CrawlChange(max_pages=1))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_pages": 0}, "max_pages cannot be '0'"),
        ({"depth": -1}, "depth cannot be '-1'"),
        ({"exclude": ["("]}, "exclude '(' is not a regular expression"),
        ({"speed": "quick"}, "give slow, normal, fast or max"),
        ({"priority": 101}, "priority cannot be '101'"),
        ({"seeds": ["http://x/"]}, "seeds is not a known field"),
    ],
)
def test_a_value_that_cannot_be_taken_is_refused_by_its_field(values: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        CrawlChange.read(values)
    assert said in refused.value.message

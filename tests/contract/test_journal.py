"""The journal of a crawl: entries are written in the commits that cause them, in order, bounded and complete."""

import asyncio
from typing import Any

import pytest

from shoal.base.database import Tx
from shoal.base.errors import NotFound
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.engine.walker_commits import TurnRequest
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import WalkerBatch
from shoal.crawl.journal import Journal
from shoal.crawl.journal_messages import JournalEntry, JournalLevel, JournalUpdate
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.failed_urls import FailedUrls
from shoal.queue import states as job_states
from tests.contract.conftest import (
    SITE,
    Bench,
    Breakpoint,
    BreakpointDatabase,
    Walker,
    failed,
    fetched,
    new_url,
    until_blocked,
)


async def said(bench: Bench, crawl: Crawl) -> list[str]:
    return [written.entry.message for written in await bench.journal.entries(crawl.id)]


async def events(bench: Bench, crawl: Crawl) -> list[str]:
    return [written.entry.event for written in await bench.journal.entries(crawl.id)]


async def facts(bench: Bench, crawl: Crawl, event: str) -> dict[str, Any]:
    return next(one.entry.facts for one in await bench.journal.entries(crawl.id) if one.entry.event == event)


async def turn_with(walker: Walker, news: JournalUpdate, *settled: Any, found: Any = ()) -> Any:
    left = [task for task in walker.held if task not in [done.task for done in settled]]
    turn = await walker.commits.turn(WalkerBatch(list(settled), list(found)), TurnRequest(10, len(left), update=news))
    walker.held = left + turn.work
    return turn


async def test_an_entry_with_text_that_cannot_be_stored_does_not_fail_the_commit(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a")
    entry = JournalEntry("odd", "a\0\ud800b", facts={"url": "a\0\ud800b"})
    await bench.database.run(lambda tx: bench.journal.write(tx, crawl.number, [entry]))
    assert (await said(bench, crawl))[-1] == "a␀<U+D800>b"


async def test_the_journal_shows_a_whole_crawl(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b")
    walker = await bench.walker(crawl)
    await walker.take()
    await walker.fetch_all()
    assert await said(bench, crawl) == [
        "Waiting for a worker",
        "Started",
        "Depth 0 finished",
        "Completed: 2 pages, 0 errors, 0 skipped (no URL was waiting)",
    ]
    assert await facts(bench, crawl, "crawl_completed") == {
        "reason": "drained", "pages": 2, "errors": 0, "bytes": 20, "queued": 0, "skipped": {},
        "not_modified": 0,
            "responses": {"2xx": 2, "3xx": 0, "4xx": 0, "5xx": 0, "none": 0},
    }  # fmt: skip


async def test_a_crawl_that_is_running_where_it_was_made_waits_for_no_worker(bench: Bench) -> None:
    crawl = await bench.crawls.submit(CrawlConfig(seeds=[f"{SITE}/"]), local=True)
    assert await said(bench, crawl) == ["Crawled by the process that created it"]


async def test_pause_resume_change_and_stop_are_reported(bench: Bench) -> None:
    crawl = await bench.submit()
    await bench.crawls.pause(crawl.id)
    await bench.crawls.change(
        crawl.id, CrawlChange(max_pages=5000, exclude=[], include=["/shop/", "/blog/"], delay_seconds=0.5)
    )
    await bench.crawls.resume(crawl.id)
    await bench.crawls.stop(crawl.id)
    assert (await said(bench, crawl))[1:] == [
        "Paused (on request)",
        "Changed: max pages 5,000; include /shop/, /blog/; exclude none; delay seconds 0.5",
        "Resumed, waiting for a worker",
        "Stopped: 0 pages, 0 errors, 0 skipped (on request)",
    ]


async def test_the_journal_records_a_lost_worker_and_its_replacement(bench: Bench) -> None:
    crawl = await bench.submit()
    await bench.walker(crawl, "w1")
    await bench.lose()
    await bench.walker(crawl, "w2")
    assert (await said(bench, crawl))[2:] == [
        "Worker lost, waiting for another worker: the lease of w1 expired",
        "A worker joined",
    ]
    lost = await facts(bench, crawl, "worker_lost")
    assert (lost["reason"], lost["error"]) == ("worker_lost", "the lease of w1 expired")


async def test_a_failed_attempt_a_handed_back_walker_and_a_dead_letter_are_reported(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    await walker.commits.hand_back(WalkerBatch(), "shutdown")
    for _ in range(2):
        await bench.queue.fail((await bench.walker(crawl)).lease, "boom")
        await bench.jump(60)
    assert [event for event in await events(bench, crawl) if event != "walker_began"] == [
        *("crawl_queued", "crawl_running", "walker_handed_back", "walker_retried", "walker_given_up", "crawl_failed")
    ]
    last = (await bench.journal.entries(crawl.id))[-1].entry
    assert (last.level, last.message) == (
        JournalLevel.ERROR,
        "Failed: 0 pages, 0 errors, 0 skipped (its last attempt failed)",
    )


async def test_a_reached_limit_is_reported(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b", max_pages=1)
    walker = await bench.walker(crawl)
    [first] = await walker.take()
    await walker.commits.close(WalkerBatch([fetched(first)]), "max_pages")
    assert (await said(bench, crawl))[2:] == [
        "Completed: 1 page, 0 errors, 0 skipped (the page limit was reached)",
    ]


async def test_of_several_walkers_only_the_first_reports_that_a_limit_is_reached(bench: Bench) -> None:
    crawl = await bench.submit(*[f"{SITE}/{name}" for name in "abcd"], max_pages=2, workers=3)
    first, second, third = [await bench.walker(crawl, f"w{number}") for number in (1, 2, 3)]
    [one, two] = await first.take(2)
    await first.commits.close(WalkerBatch([fetched(one), fetched(two)]), "max_pages")
    await second.commits.close(WalkerBatch(), "max_pages")
    await third.commits.close(WalkerBatch(), "max_pages")
    assert (await said(bench, crawl))[4:] == [
        "The page limit was reached; other workers finish what they are fetching",
        "Completed: 2 pages, 0 errors, 0 skipped (the page limit was reached)",
    ]


async def test_urls_that_are_fetched_again_are_reported(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b")
    walker = await bench.walker(crawl)
    first, second = await walker.take()
    await walker.turn(fetched(first), failed(second))
    await bench.crawls.retry_these(crawl.id, FailedUrls())
    assert (await said(bench, crawl))[-2:] == ["1 failed URL will be retried", "Queued, waiting for a worker"]


async def test_a_released_pattern_is_reported(bench: Bench) -> None:
    crawl = await bench.submit()
    pattern, url = f"{SITE}/cal?month=", Url(f"{SITE}/cal?month=1")

    async def trap(tx: Tx) -> None:
        await bench.frontier.quarantine(tx, crawl.number, {pattern: url})
        await bench.crawls.add_urls(tx, crawl, [new_url(crawl, url, 1, Fate.QUARANTINED)])

    await bench.database.run(trap)
    await bench.crawls.release(crawl.id, pattern)
    assert (await said(bench, crawl))[-1] == f"{pattern} is released from quarantine: 1 URL queued again"


async def test_journal_entries_are_stored_only_if_their_commit_is(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    before = await said(bench, crawl)
    await bench.database.run(
        lambda tx: bench.queue.moves.move_in(
            tx, job_states.finish(walker.fence.job_id, walker.fence.epoch), "crawl", crawl.id
        )
    )
    after = await said(bench, crawl)
    with pytest.raises(Exception, match="no longer leased"):
        await turn_with(walker, JournalUpdate([JournalEntry("x", "of a walker that is gone")]))
    assert await said(bench, crawl) == after
    assert len(after) > len(before)


async def test_a_depth_is_finished_when_nothing_of_it_is_open(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b")
    walker = await bench.walker(crawl)
    first, second = await walker.take()
    turn = await turn_with(walker, JournalUpdate(depth=0), fetched(first), found=[walker.link("/c", 1)])
    assert (turn.is_journaled, turn.finished) == (True, None)  # the second seed is under way
    turn = await turn_with(walker, JournalUpdate(depth=0), fetched(second), found=[walker.link("/d", 3)])
    assert turn.finished == 0
    turn = await turn_with(walker, JournalUpdate(depth=0))
    [third] = [task for task in walker.held if task.depth == 1]
    turn = await turn_with(walker, JournalUpdate(depth=1), fetched(third))
    assert turn.finished == 2
    assert [line for line in await said(bench, crawl) if line.startswith("Depth")] == [
        *("Depth 0 finished", "Depth 1 finished", "Depth 2 finished")
    ]


async def test_a_url_that_waits_for_a_retry_is_open_and_one_in_quarantine_is_not(bench: Bench) -> None:
    crawl = await bench.submit()

    async def shallowest() -> int | None:
        return await bench.database.read(lambda tx: bench.frontier.shallowest(tx, crawl.number))

    assert await shallowest() == 0
    await bench.sql("UPDATE frontier_host SET ready_at = NULL")
    assert await shallowest() == 0
    walker = await bench.walker(crawl)
    await bench.sql("UPDATE frontier_host SET ready_at = 1")
    await walker.take()
    assert await shallowest() == 0
    await bench.sql("UPDATE frontier_touched SET due = 4611686018427387904")
    assert await shallowest() is None


async def test_found_counts_what_the_whole_crawl_was_opened_with(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    await turn_with(walker, JournalUpdate(found=True), fetched(task), found=[walker.link("/b"), walker.link("/c")])
    assert (await said(bench, crawl))[-1] == "Found 3 URLs"


async def test_a_long_journal_keeps_its_last_lines_and_their_numbers(bench: Bench) -> None:
    crawl = await bench.submit()
    journal = Journal(bench.database, most=10)
    for number in range(25):
        await bench.database.run(
            lambda tx, number=number: journal.write(tx, crawl.number, [JournalEntry("x", f"line {number}")])
        )
    lines = await journal.entries(crawl.id)
    assert [line.number for line in lines] == list(range(17, 27))
    assert lines[-1].entry.message == "line 24"


async def test_lines_are_read_from_a_number_on(bench: Bench) -> None:
    crawl = await bench.submit()
    await bench.database.run(
        lambda tx: bench.journal.write(tx, crawl.number, [JournalEntry("x", str(number)) for number in range(5)])
    )
    assert [line.number for line in await bench.journal.entries(crawl.id, after=2, limit=3)] == [3, 4, 5]
    assert [line.number for line in await bench.journal.entries(crawl.id, limit=2)] == [5, 6]
    assert await bench.journal.entries(crawl.id, after=99) == []
    with pytest.raises(NotFound):
        await bench.journal.entries("none")


async def test_text_from_sites_is_cleaned(bench: Bench) -> None:
    crawl = await bench.submit()
    line = JournalEntry("x", "two\nlines and \x1b[31mred", facts={"error": "password=hunter2\r\n"})
    await bench.database.run(lambda tx: bench.journal.write(tx, crawl.number, [line]))
    written = (await bench.journal.entries(crawl.id))[-1].entry
    assert "\n" not in written.message
    assert "\x1b" not in written.message
    assert "hunter2" not in str(written.facts)


async def test_a_reader_that_goes_by_numbers_misses_no_commit(postgres_bench: Bench) -> None:
    """A slow commit that reserved its number first delays the others, so that no number is visible before a smaller
    one."""
    bench = postgres_bench
    crawl = await bench.submit()
    point = Breakpoint("reserve_journal_entries")
    slow = BreakpointDatabase(bench.database, point)
    writing = asyncio.create_task(
        slow.run(lambda tx: bench.journal.write(tx, crawl.number, [JournalEntry("x", "the slow one")]))
    )
    await point.wait_until_reached(writing)
    other = asyncio.create_task(
        bench.database.run(lambda tx: bench.journal.write(tx, crawl.number, [JournalEntry("x", "the quick one")]))
    )
    await until_blocked(bench)
    assert await said(bench, crawl) == ["Waiting for a worker"]
    point.resume()
    await asyncio.gather(writing, other)
    assert (await said(bench, crawl))[1:] == ["the slow one", "the quick one"]


async def test_a_removed_crawl_takes_its_journal_along(bench: Bench) -> None:
    from shoal.crawl.frontier.sql_admin import SqlFrontierAdmin

    crawl = await bench.submit()
    await bench.crawls.stop(crawl.id)
    admin_store = SqlFrontierAdmin(bench.dialect)
    while await bench.database.run(lambda tx: admin_store.forget(tx, crawl.number, 100)):
        pass
    await bench.database.run(lambda tx: admin_store.remove(tx, crawl, 100))
    assert await bench.number("SELECT count(*) FROM crawl_line") == 0
    assert await bench.number("SELECT count(*) FROM crawl_journal") == 0

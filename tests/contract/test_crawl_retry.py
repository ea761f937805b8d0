"""Retrying failed URLs: any subset, each page stored once in the end, and exact counters."""

import asyncio

import pytest

from shoal.access.audit_log import AuditHook
from shoal.base.errors import InvalidInput, NotFound, StateConflict
from shoal.base.ids import CrawlId
from shoal.base.url import Url
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, Settled, SitemapRecord, UrlKind, WalkerBatch
from shoal.crawl.lifecycle import crawls as crawls_module
from shoal.crawl.lifecycle.failed_urls import FailedUrls
from shoal.crawl.states import CrawlState
from shoal.pages.store import FailedPage, PageStore
from tests.contract.conftest import SITE, Bench, Walker, failed, fetched, new_url, page_of
from tests.contract.test_crawl_lifecycle import check_ledger

S = CrawlState
ALL = FailedUrls()


def answered(task: FrontierTask, status: int) -> Settled:
    return Settled(task, Fate.FETCHED, page_of(task, status=status, bytes=7))


def broken(task: FrontierTask, code: str) -> Settled:
    return Settled(task, Fate.FAILED, page_of(task, error_code=code, error_message="it broke"))


async def ended(bench: Bench, **outcome: int | str) -> Crawl:
    """A completed crawl of these paths: a status, or the code of an error."""
    crawl = await bench.submit(*[f"{SITE}/{path}" for path in outcome])
    walker = await bench.walker(crawl)
    tasks = {task.url.removeprefix(f"{SITE}/"): task for task in await walker.take(100)}
    done = [
        answered(tasks[path], how) if isinstance(how, int) else broken(tasks[path], how)
        for path, how in outcome.items()
    ]
    assert (await walker.turn(*done)).drained
    return crawl


async def urls(bench: Bench, table: str = "page") -> list[str]:
    column = "url" if table == "page" else "path"
    rows = await bench.sql(f"SELECT {column} AS url FROM {table} ORDER BY {column}")
    return [row["url"].removeprefix(SITE).removeprefix("/") for row in rows]


async def test_a_retry_returns_failed_urls_to_pending_and_queues_the_crawl(bench: Bench) -> None:
    crawl = await ended(bench, good=200, bad=500, gone=404, lost="dns_error")
    assert await bench.crawls.retry_these(crawl.id, FailedUrls(status=["5xx"])) == 1
    assert await bench.state(crawl) is S.QUEUED
    assert await urls(bench, "frontier_open") == ["bad"]
    assert await urls(bench) == ["gone", "good", "lost"]
    counts = await bench.counts(crawl)
    assert (counts.pages, counts.errors, counts.queued, counts.bytes) == (2, 1, 1, 14)
    assert counts.responses == {"2xx": 1, "3xx": 0, "4xx": 1, "5xx": 0, "none": 1}
    await check_ledger(bench, crawl)


async def test_each_page_is_there_once_when_it_was_fetched_again(bench: Bench) -> None:
    crawl = await ended(bench, good=200, bad=500, lost="dns_error")
    assert await bench.crawls.retry_these(crawl.id, ALL) == 2
    walker = await bench.walker(crawl)
    work = await walker.take()
    assert [(task.attempts, task.crashes) for task in work] == [(0, 0), (0, 0)]
    assert (await walker.fetch_all()).drained
    assert (await bench.state(crawl), await bench.reason(crawl)) == (S.COMPLETED, "drained")
    assert await urls(bench) == ["bad", "good", "lost"]
    counts = await bench.counts(crawl)
    assert (counts.pages, counts.errors, counts.queued) == (3, 0, 0)
    await check_ledger(bench, crawl)


async def test_a_page_that_is_fetched_again_stands_behind_all_that_were_read_before(bench: Bench) -> None:
    crawl = await ended(bench, good=200, bad=500)

    async def read(after: int) -> list[tuple[int, str]]:
        rows = await bench.database.read(lambda tx: bench.pages.after(tx, crawl.number, after, 10))
        return [(number, page.url) for number, page in rows]

    last = (await read(0))[-1][0]
    await bench.crawls.retry_these(crawl.id, ALL)
    walker = await bench.walker(crawl)
    await walker.take()
    await walker.fetch_all()
    assert [url for _, url in await read(last)] == [f"{SITE}/bad"]


async def test_a_url_that_fails_again_is_counted_once(bench: Bench) -> None:
    crawl = await ended(bench, good=200, bad=500)
    for _ in range(2):
        await bench.crawls.retry_these(crawl.id, ALL)
        walker = await bench.walker(crawl)
        [task] = await walker.take()
        assert (await walker.turn(failed(task))).drained
    counts = await bench.counts(crawl)
    assert (counts.pages, counts.errors) == (1, 1)
    await check_ledger(bench, crawl)


@pytest.mark.parametrize(
    ("which", "chosen"),
    [
        (FailedUrls(), ["a503", "b500", "c404", "d", "e"]),
        (FailedUrls(status=["5xx"]), ["a503", "b500"]),
        (FailedUrls(status=["503", "4xx"]), ["a503", "c404"]),
        (FailedUrls(status=["error"]), ["d", "e"]),
        (FailedUrls(error=["timeout"]), ["d"]),
        (FailedUrls(error=["tls_expired"]), ["e"]),
        (FailedUrls(like="/[ab]"), ["a503", "b500"]),
        (FailedUrls(status=["5xx"], like="b"), ["b500"]),
        (FailedUrls(limit=2), ["a503", "b500"]),
        (FailedUrls(status=["410"]), []),
    ],
)
async def test_any_subset_of_failed_urls_can_be_selected(bench: Bench, which: FailedUrls, chosen: list[str]) -> None:
    crawl = await ended(bench, a503=503, b500=500, c404=404, d="idle_timeout", e="tls_expired", good=200)
    assert await bench.crawls.retry_these(crawl.id, which) == len(chosen)
    assert await urls(bench, "frontier_open") == chosen
    assert await bench.state(crawl) is (S.QUEUED if chosen else S.COMPLETED)
    await check_ledger(bench, crawl)


async def test_many_go_in_batches_and_a_limit_holds_over_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawls_module, "REOPENED_AT_ONCE", 3)
    crawl = await ended(bench, **{f"p{number}": 500 if number % 2 else 200 for number in range(20)})
    assert await bench.crawls.retry_these(crawl.id, FailedUrls(limit=4)) == 4
    assert await bench.crawls.retry_these(crawl.id, ALL) == 6
    assert len(await urls(bench, "frontier_open")) == 10
    assert await bench.live(crawl) == (1, 0)
    await check_ledger(bench, crawl)


async def test_a_url_that_fails_again_during_a_retry_is_not_reopened_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crawls_module, "REOPENED_AT_ONCE", 2)
    crawl = await bench.submit(*[f"{SITE}/{number}" for number in range(5)])
    walker = await bench.walker(crawl)
    kept, *tasks = await walker.take(100)
    turn = await walker.turn(*[answered(task, 503) for task in tasks])
    reopen, batches = bench.crawls._reopen, 0

    async def reopen_and_fail(crawl_id: str, pages: list[FailedPage], before: int | None, audit: AuditHook) -> int:
        nonlocal turn, batches
        reopened = await reopen(crawl_id, pages, before, audit)
        batches += 1
        assert batches < 10, "it runs after what fails again"
        turn = await walker.turn()
        turn = await walker.turn(*[answered(task, 503) for task in turn.work])
        return reopened

    monkeypatch.setattr(bench.crawls, "_reopen", reopen_and_fail)
    assert await bench.crawls.retry_these(crawl.id, ALL) == 4
    await walker.turn(fetched(kept))
    await check_ledger(bench, crawl)


async def test_the_few_failures_among_many_pages_are_all_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawls_module, "SCAN", 3)
    monkeypatch.setattr("shoal.crawl.store.SCAN", 3)
    outcome: dict[str, int | str] = {f"p{number:02}": 200 for number in range(20)}
    crawl = await ended(bench, **outcome | {"p07": "timeout", "p09": 404, "p18": 500})
    failure = await bench.database.read(lambda tx: bench.crawls.store.first_failure(tx, crawl.number))
    assert failure == (f"{SITE}/p07", "it broke")
    assert await bench.crawls.retry_these(crawl.id, FailedUrls(limit=2)) == 2
    assert await bench.crawls.retry_these(crawl.id, ALL) == 1
    assert await urls(bench, "frontier_open") == ["p07", "p09", "p18"]
    assert await bench.database.read(lambda tx: bench.crawls.store.first_failure(tx, crawl.number)) is None
    await check_ledger(bench, crawl)


async def test_a_retry_that_died_between_two_batches_is_completed_by_the_next(bench: Bench) -> None:
    crawl = await ended(bench, good=200, bad=500)
    [page], _ = await bench.database.read(lambda tx: PageStore().failed_after(tx, crawl.number, 0, 10, 10, 10))
    await bench.database.run(lambda tx: bench.crawls.reopen(tx, crawl, [page]))
    assert await bench.crawls.retry_these(crawl.id, ALL) == 0
    assert await bench.state(crawl) is S.QUEUED
    await check_ledger(bench, crawl)


async def test_two_at_once_reopen_each_url_once(bench: Bench) -> None:
    crawl = await ended(bench, **{f"p{number}": 500 for number in range(20)})
    both = await asyncio.gather(*[bench.crawls.retry_these(crawl.id, ALL) for _ in range(2)])
    assert sum(both) == 20
    assert await bench.live(crawl) == (1, 0)
    await check_ledger(bench, crawl)


async def test_a_crawl_that_is_running_gets_them_at_its_next_commit(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b")
    walker = await bench.walker(crawl)
    first, second = await walker.take()
    await walker.turn(answered(first, 503))
    assert await bench.crawls.retry_these(crawl.id, ALL) == 1
    turn = await walker.turn(fetched(second))
    assert (turn.drained, [task.url for task in turn.work]) == (False, [first.url])
    assert (await walker.fetch_all()).drained
    assert (await bench.counts(crawl)).pages == 2
    await check_ledger(bench, crawl)


async def test_a_paused_crawl_stays_paused(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", f"{SITE}/b")
    walker = await bench.walker(crawl)
    first, _ = await walker.take()
    await walker.turn(answered(first, 503))
    await walker.commits.hand_back(WalkerBatch(), "shutdown")
    await bench.crawls.pause(crawl.id)
    assert await bench.crawls.retry_these(crawl.id, ALL) == 1
    assert await bench.state(crawl) is S.PAUSED
    await check_ledger(bench, crawl)


@pytest.mark.parametrize("walked", [False, True])
async def test_a_stopped_crawl_cannot_be_retried(bench: Bench, walked: bool) -> None:
    crawl = await bench.submit()
    if walked:
        await bench.walker(crawl)
    await bench.crawls.stop(crawl.id)
    with pytest.raises(StateConflict, match="cannot retry URLs"):
        await bench.crawls.retry_these(crawl.id, ALL)


async def test_a_crawl_in_a_process_of_its_own_is_paused_first(bench: Bench) -> None:
    config = CrawlConfig(seeds=[f"{SITE}/"], sitemap="off")
    crawl = await bench.crawls.submit(config, crawl_id=CrawlId("here"), named=[], local=True)
    with pytest.raises(StateConflict, match="pause it in the process that runs it"):
        await bench.crawls.retry_these(crawl.id, ALL)


async def test_an_unknown_crawl_has_nothing_to_retry(bench: Bench) -> None:
    with pytest.raises(NotFound):
        await bench.crawls.retry_these("none", ALL)


async def test_a_retried_page_keeps_its_parent(bench: Bench) -> None:
    crawl = await bench.submit(sitemap="on")
    walker = await bench.walker(crawl)
    work = {task.kind: task for task in await walker.take()}
    seed, site_map = work[UrlKind.PAGE], work[UrlKind.SITEMAP]
    linked, listed = new_url(crawl, "/linked"), new_url(crawl, "/listed")
    linked.parent_key, listed.parent_key = seed.key, site_map.key
    record = SitemapRecord(site_map.url, 1, 200, 1)
    await walker.turn(fetched(seed), Settled(site_map, Fate.FETCHED, sitemap=record), found=[linked, listed])
    assert (await walker.turn(*[answered(task, 500) for task in walker.held])).drained
    await bench.crawls.retry_these(crawl.id, ALL)
    again = await (await bench.walker(crawl)).take()
    assert {task.url: task.parent for task in again} == {linked.url: seed.url, listed.url: site_map.url}


async def test_a_retried_failure_does_not_count_against_the_page_limit_of_its_host(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/a", max_pages_per_host=1)
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    assert (await walker.turn(answered(task, 500))).drained
    await bench.crawls.retry_these(crawl.id, ALL)
    assert await bench.number("SELECT pages FROM frontier_host") == 0


async def no_page(bench: Bench) -> tuple[Crawl, Walker]:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    await walker.turn(failed(task))
    assert await bench.reason(crawl) == "no_seed_gave_a_page"
    return crawl, walker


async def test_a_crawl_that_failed_for_its_seeds_tries_them_again(bench: Bench) -> None:
    crawl, _ = await no_page(bench)
    assert await bench.crawls.retry(crawl.id) is S.QUEUED
    walker = await bench.walker(crawl)
    assert [task.url for task in await walker.take()] == [f"{SITE}/"]
    assert (await walker.fetch_all()).drained
    assert await bench.state(crawl) is S.COMPLETED
    await check_ledger(bench, crawl)


async def test_a_crawl_none_of_whose_seeds_was_asked_for_has_nothing_to_retry(bench: Bench) -> None:
    crawl = await bench.submit()
    walker = await bench.walker(crawl)
    [task] = await walker.take()
    assert (await walker.turn(Settled(task, Fate.SKIPPED_ROBOTS))).drained
    with pytest.raises(StateConflict, match="none of its URLs was ever requested; start a new one"):
        await bench.crawls.retry(crawl.id)
    assert await bench.state(crawl) is S.FAILED


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"status": ["2xx"]}, "status '2xx' is not the status of a failure"),
        ({"status": "5xx"}, "status cannot be '5xx'"),
        ({"error": ["timout"]}, "error 'timout' is not an error code of a page"),
        ({"like": "("}, "like is not a regular expression"),
        ({"like": "(?=a)"}, "remove look-around"),
        ({"limit": 0}, "limit cannot be '0'"),
        ({"url": "x"}, "url is not a known field"),
    ],
)
def test_a_set_that_cannot_be_named_is_refused_by_its_field(values: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        FailedUrls.read(values)
    assert said in refused.value.message


def test_the_time_of_a_pattern_grows_only_with_the_length_of_the_url() -> None:
    page = FailedPage(1, Url(f"{SITE}/{'a' * 2000}!"), 500, None)
    assert page not in FailedUrls.read({"like": "/(a+)+$"})  # for which Python's `re` would try 2**2000 combinations


def test_an_error_is_named_by_its_code_or_a_word_of_it() -> None:
    page = FailedPage(1, Url(f"{SITE}/x"), None, "total_timeout")
    assert page in FailedUrls(error=["timeout"])
    assert page in FailedUrls(error=["total_timeout"])
    assert page not in FailedUrls(error=["idle_timeout"])

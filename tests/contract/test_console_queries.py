"""The queries of the console: crawls by host and text, pages by filter, counts for charts, hosts of a crawl, and the
politeness receipt."""

from datetime import timedelta

import pytest

from shoal.base.clock import FakeClock, SystemClock
from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.crawl import journal_messages as messages
from shoal.crawl import states
from shoal.crawl.crawl import Counts
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import Settled, key_of
from shoal.crawl.lifecycle import crawl_status
from shoal.crawl.lifecycle.crawl_status import CrawlSearch
from shoal.crawl.states import CrawlMove
from shoal.crawl.store import OUTSIDE, CrawlFilter
from shoal.events.event import Event, append_events
from shoal.events.store import EventStore
from shoal.hosts.robots import RobotsRecord, RobotsState
from shoal.hosts.throttle import HostUpdate
from shoal.observe.stats import read_store_size
from shoal.pages import pages as pages_module
from shoal.pages import pages as summary_module
from shoal.pages.links import LinkFlag, pack, pack_key
from shoal.pages.page import RENDER_WAITS
from shoal.pages.pages import PageComparer, Pages, PageSummaries
from shoal.pages.store import ANY_ERROR, PageFilter
from shoal.plan.policy import PolicyForm
from shoal.serve.console.overview import RateSampler
from tests.contract.conftest import Bench, Measured, page_of
from tests.support.stored_pages import SITE, a_page, store_pages


async def ids(bench: Bench, **wanted: object) -> list[str]:
    found = await bench.crawls.matching(CrawlFilter(**wanted))  # type: ignore[arg-type]
    return [status.crawl.id for status in found]


async def test_crawls_are_found_by_the_host_of_a_seed_and_by_text(bench: Bench) -> None:
    first = await bench.submit("https://shop.example.com/a", "http://other.example:8080/")
    second = await bench.submit("https://EXAMPLE.com", project="shop")
    assert await ids(bench, host="shop.example.com") == [first.id]
    assert await ids(bench, host="Other.example") == [first.id]
    assert await ids(bench, host="example.com") == [second.id]
    assert await ids(bench, host="ample.com") == []
    assert await ids(bench, host="%") == []
    assert await ids(bench, text="SHOP") == [second.id, first.id]
    assert await ids(bench, text=first.id) == [first.id]
    assert await ids(bench, text="nowhere") == []


async def test_the_rate_counts_only_the_new_pages_of_a_crawl_that_was_resumed(bench: Bench) -> None:
    clock, crawl = FakeClock(), await bench.submit("https://example.com/")
    sampler = RateSampler(bench.crawls, clock)

    async def sample(pages: int, move: CrawlMove | None = None) -> float | None:
        async def change(tx: Tx) -> None:
            await bench.crawls.store.add_counts(tx, crawl.number, OUTSIDE, Counts(pages=pages))
            assert move is None or await bench.crawls.store.move(tx, crawl.id, move)

        await bench.database.run(change)
        clock.jump(5)
        await sampler.run_once()
        return sampler.history[-1] if sampler.history else None

    assert await sample(0) is None
    assert await sample(300, states.run()) == 0  # how many of them are new is not known
    assert await sample(10) == 2
    assert await sample(0, states.ask_to_pause()) == 0
    assert await sample(0, states.pause()) == 0
    assert await sample(0, states.queue()) == 0
    assert await sample(5, states.run()) == 0
    assert await sample(5) == 1
    crawl = await bench.submit("https://example.com/")
    assert await sample(15, states.run()) == 3


async def test_live_counts_are_those_of_crawls_that_run(bench: Bench) -> None:
    running, _ = await bench.submit(f"{SITE}/1", f"{SITE}/2"), await bench.submit(f"{SITE}/3", start=False)
    walker = await bench.walker(running)
    first, second = await walker.take()
    broken = Settled(second, Fate.FAILED, page_of(second, error_code="timeout", error_message="late"))
    await walker.turn(Settled(first, Fate.FETCHED, page_of(first, status=200)), found=[walker.link("/4")])
    assert await bench.crawls.live_counts() == {running.number: (1, 0)}
    await walker.turn(broken)
    assert await bench.crawls.live_counts() == {running.number: (1, 1)}


async def test_pages_are_found_by_every_filter(bench: Bench) -> None:
    crawl = await bench.submit()
    await store_pages(
        bench.app,
        crawl,
        a_page("/", title="Home of 100% cotton", content_type="Text/HTML; charset=utf-8"),
        a_page("/a_b", status=404, depth=1, content_type="text/plain"),
        a_page("/c", status=None, error_code="timeout", depth=2),
        a_page("/img", content_type="image/png", depth=1),
    )
    pages = Pages(bench.database, SystemClock())

    async def found(**wanted: object) -> list[str]:
        result = await pages.search(crawl.number, 0, 10, PageFilter(**wanted))  # type: ignore[arg-type]
        assert result.next is None
        return [page.url.removeprefix(SITE) for _, page in result.pages]

    assert await found() == ["/", "/a_b", "/c", "/img"]
    assert await found(statuses=range(400, 500)) == ["/a_b"]
    assert await found(error=ANY_ERROR) == await found(error="timeout") == ["/c"]
    assert await found(depth=1) == ["/a_b", "/img"]
    assert await found(content_type="text/") == ["/", "/a_b"]
    assert await found(text="100%") == await found(text="HOME") == ["/"]
    assert await found(text="a_b") == ["/a_b"]
    assert await found(text="_") == ["/a_b"]
    assert await found(text="\\") == []
    assert await found(failed=True) == ["/a_b", "/c"]
    assert await found(failed=True, depth=2, text="c") == ["/c"]


async def test_pages_know_how_the_wait_for_them_ended_and_those_of_older_stores_do_not(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/")
    pages = [a_page(f"/{wait}", rendered=True, render_wait=wait) for wait in (*RENDER_WAITS, None)]
    await store_pages(bench.app, crawl, *pages, a_page("/plain"))
    found = await bench.database.read(lambda tx: bench.pages.after(tx, crawl.number, 0, 10))
    assert [(page.rendered, page.render_wait) for _, page in found] == [
        (True, "settled"),
        (True, "selector"),
        (True, "timeout"),
        (True, None),  # as older versions stored them
        (False, None),
    ]


async def test_a_search_that_finds_little_says_where_to_continue(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "SCAN", 3)
    crawl, other = await bench.submit(), await bench.submit()
    await store_pages(bench.app, crawl, *[a_page(f"/{number}", depth=number % 5) for number in range(10)])
    await store_pages(bench.app, other, *[a_page(f"/{number}") for number in range(3)])
    pages = Pages(bench.database, SystemClock())
    place, seen, steps = 0, list[str](), 0
    while True:
        found = await pages.search(crawl.number, place, 2, PageFilter(depth=4), seconds=-1)
        seen += [page.url for _, page in found.pages]
        steps += 1
        if found.next is None:
            break
        place = found.next
    assert seen == [f"{SITE}/4", f"{SITE}/9"]
    assert steps > 2
    exported = [page.url async for batch in pages.all(crawl.number, PageFilter()) for page in batch]
    assert exported == [f"{SITE}/{number}" for number in range(10)]


async def test_a_page_is_found_by_its_number_in_its_crawl_only(bench: Bench) -> None:
    crawl, other = await bench.submit(), await bench.submit()
    await store_pages(bench.app, crawl, a_page("/", detail=b"packed"))
    pages = Pages(bench.database)
    [(number, _)] = (await pages.search(crawl.number, 0, 10, PageFilter())).pages
    page = await pages.get(crawl.number, number)
    assert page is not None
    assert (page.url, page.detail) == (f"{SITE}/", b"packed")
    assert await pages.get(other.number, number) is None
    assert await pages.get(crawl.number, number + 1) is None


async def test_referrers_are_the_pages_that_link_to_a_page(bench: Bench) -> None:
    crawl = await bench.submit()
    target = key_of(Url(f"{SITE}/missing"), crawl.key_seed)[0]
    other = key_of(Url(f"{SITE}/other"), crawl.key_seed)[0]
    links = pack([pack_key(other), pack_key(target)], bytes([LinkFlag.INTERNAL] * 2))
    await store_pages(
        bench.app,
        crawl,
        a_page("/a", links=links),
        a_page("/b", links=pack([pack_key(other)], bytes([LinkFlag.INTERNAL]))),
        a_page("/c", links=links),
    )
    found = await Pages(bench.database, SystemClock()).referrers(crawl.number, [target], 10, 60)
    assert found.sources == {target: [f"{SITE}/a", f"{SITE}/c"]}
    assert (found.is_complete, found.searched) == (True, 3)
    few = await Pages(bench.database, SystemClock()).referrers(crawl.number, [target], 1, 60)
    assert few.sources == {target: [f"{SITE}/a"]}


async def test_a_summary_continues_with_new_pages_and_starts_over_when_some_were_removed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary_module, "BATCH", 2)
    crawl = await bench.submit()
    pages = [a_page(f"/shop/{number}", depth=1, duration_ms=30.0, bytes=10) for number in range(3)]
    await store_pages(bench.app, crawl, a_page("/"), *pages)
    summaries = PageSummaries(bench.database, SystemClock())
    counted = await summaries.of(crawl.number, {"2xx": 4}, seconds=60)
    assert (counted.pages, counted.is_complete, counted.depths[1]["2xx"]) == (4, True, 3)
    await store_pages(bench.app, crawl, a_page("/shop/x", status=404, content_type="text/html; charset=x"))
    counted = await summaries.of(crawl.number, {"2xx": 4, "4xx": 1}, seconds=60)
    folder = counted.folders["example.org", "/shop/"]
    assert (counted.pages, dict(folder)) == (5, {"pages": 4, "bytes": 30, "bad": 1})
    assert counted.types == {"text/html": 1}
    assert counted.median_ms() == 50
    await bench.sql(f"DELETE FROM page WHERE status = 404 AND crawl = {crawl.number}")
    counted = await summaries.of(crawl.number, {"2xx": 4, "4xx": 0}, seconds=60)
    assert (counted.pages, counted.responses["4xx"]) == (4, 0)


async def test_policies_are_counted_by_whether_they_are_due(bench: Bench) -> None:
    policies = bench.app.plan.policies
    for path in ("a", "b"):
        await policies.make(PolicyForm.read({"url": f"{SITE}/{path}", "frequency": "1h"}))
    await policies.make(PolicyForm.read({"url": f"{SITE}/c", "frequency": "1h", "enabled": False}))
    counts = await policies.counts(timedelta(minutes=1))
    assert (counts.total, counts.due, counts.late) == (3, 2, 0)
    await bench.jump(120)
    assert (await policies.counts(timedelta(minutes=1))).late == 2


async def test_due_policies_of_all_queues_are_listed_longest_due_first(bench: Bench) -> None:
    policies, made = bench.app.plan.policies, []
    for more in ({"url": f"{SITE}/a"}, {"seeds": [f"{SITE}/"]}, {"url": f"{SITE}/b", "queue": "js"}):
        made.append((await policies.make(PolicyForm.read({"frequency": "1h", **more}))).id)
        await bench.jump(1)
    await policies.make(PolicyForm.read({"url": f"{SITE}/c", "frequency": "1h", "enabled": False}))
    now, found = await policies.list_due()
    assert [policy.id for policy in found] == made
    assert all((policy.next_run_at or now) <= now for policy in found)
    assert [policy.id for policy in (await policies.list_due(2))[1]] == made[:2]


async def test_the_newest_events_are_listed(bench: Bench) -> None:
    for number in range(5):
        event = Event("crawl.started", f"crl_{number}", {})
        await bench.database.run(lambda tx, event=event: append_events(tx, event))
    await bench.database.run(lambda tx: EventStore().number(tx, 10))
    assert [one.subject for one in await bench.app.events.webhooks.latest(3)] == ["crl_4", "crl_3", "crl_2"]
    assert len(await bench.app.events.webhooks.latest(50)) == 5


async def test_the_outbox_lag_is_the_age_of_the_oldest_event_without_a_number(bench: Bench) -> None:
    webhooks = bench.app.events.webhooks
    assert await webhooks.lag_seconds() == 0
    await bench.database.run(lambda tx: append_events(tx, Event("crawl.started", "crl_1", {})))
    await bench.jump(7)
    assert round(await webhooks.lag_seconds()) == 7
    await bench.database.run(lambda tx: EventStore().number(tx, 10))
    assert await webhooks.lag_seconds() == 0


async def test_the_receipt_says_how_each_host_was_treated(bench: Bench) -> None:
    crawl = await bench.submit(f"{SITE}/1", f"{SITE}/2", "http://slow.example/", speed="slow")
    walker = await bench.walker(crawl)
    tasks = await walker.take()
    await walker.turn(*[Settled(task, Fate.FETCHED, page_of(task, status=200)) for task in tasks[:2]])
    robots = RobotsRecord(RobotsState.FOUND, "User-agent: *\nCrawl-delay: 100\n")
    update = HostUpdate("http://slow.example", 429)

    async def note(tx: Tx) -> None:
        await bench.hosts.keep_robots(tx, "http://slow.example", robots, timedelta(seconds=30))
        await bench.journal.write(tx, crawl.number, [messages.held(update, 12.5), messages.held(update, 2.5)])

    await bench.database.run(note)
    receipt = await bench.app.politeness.receipt(crawl.id)
    hosts = {one.host.origin: one for one in receipt.hosts}
    assert (receipt.own_delay_seconds, receipt.connections, receipt.obeys_robots) == (2.0, 1, True)
    slow = hosts["http://slow.example"]
    assert (slow.asked_delay_seconds, slow.honoured_delay_seconds, slow.delay_was_clamped) == (100.0, 30.0, True)
    assert (slow.effective_delay, slow.holds.statuses, slow.holds.seconds) == (30.0, {429: 2}, 15.0)
    assert slow.host.robots_hash == robots.hash
    assert hosts[SITE].holds.count == 0
    assert hosts[SITE].host.robots is None
    assert sum(one.host.pages for one in receipt.hosts) == 2
    assert (await bench.app.politeness.receipt(crawl.id, most=1)).is_cut


async def test_a_search_of_crawls_stops_in_time_and_continues(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crawl_status, "CRAWLS_AT_ONCE", 2)
    ids = [(await bench.submit(project="odd" if number % 3 else "even")).id for number in range(7)]
    search = CrawlSearch(bench.crawls, SystemClock())
    wanted = CrawlFilter(project="even")
    whole = await search.find(wanted, limit=10, seconds=60)
    assert ([one.crawl.id for one in whole.crawls], whole.next) == ([ids[6], ids[3], ids[0]], None)
    seen, after, steps = list[str](), None, 0
    while True:
        found = await search.find(wanted, after=after, limit=1, seconds=-1)
        seen += [one.crawl.id for one in found.crawls]
        after, steps = found.next, steps + 1
        if after is None:
            break
    assert seen == [ids[6], ids[3], ids[0]]
    assert steps > 3
    assert (await search.find(CrawlFilter(), limit=7, seconds=60)).next is None


async def test_two_crawls_are_compared_by_their_pages(bench: Bench) -> None:
    first, second = await bench.submit(), await bench.submit()
    kept = {"title": "T", "content_hash": "1"}
    await store_pages(
        bench.app,
        first,
        a_page("/", **kept),
        a_page("/gone"),
        a_page("/broke", **kept),
        a_page("/named", **kept),
        a_page("/text", **kept),
        a_page("/hidden", **kept),
        a_page("/pointed", **kept),
        a_page("/confirmed", **kept),
        a_page("/priced", **kept, data={"price": 129, "tags": ["a"], "stock": None}),
    )
    await store_pages(
        bench.app,
        second,
        a_page("/", **kept),
        a_page("/new"),
        a_page("/broke", status=500, title="Oops"),
        a_page("/named", title="New", content_hash="2"),
        a_page("/text", title="T", content_hash="2"),
        a_page("/hidden", title="T", content_hash="2", robots="noindex"),
        a_page("/pointed", title="T", content_hash="2", canonical="https://example.com/"),
        a_page("/confirmed", **kept, status=304),
        a_page("/priced", title="T", content_hash="2", data={"price": 119, "tags": ["a"], "colour": "red"}),
    )
    comparer = PageComparer(bench.database)
    found = await comparer.compare(first.number, second.number)
    assert {
        name: [(one.url.removeprefix(SITE), one.before, one.after) for one in some.first]
        for name, some in found.changes.items()
    } == {
        "new": [("/new", None, None)],
        "missing": [("/gone", None, None)],
        "status": [("/broke", 200, 500)],
        "robots": [("/hidden", None, "noindex")],
        "canonical": [("/pointed", None, "https://example.com/")],
        "title": [("/named", "T", "New")],
        "content": [("/text", "T", "T")],
        "data.price": [("/priced", "129", "119")],
        "data.colour": [("/priced", None, "red")],
    }
    assert (found.same, found.is_complete) == (2, True)
    assert not (await comparer.compare(first.number, second.number, most=2)).is_complete


async def test_a_comparison_reads_extracted_data_in_parts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data of one page may be 1 MB, and a comparison reads the pages of both crawls in batches of 2,000."""
    monkeypatch.setattr("shoal.base.database.MOST_DECODED", 100_000)
    first, second = await bench.submit(), await bench.submit()
    for crawl, price in ((first, 129), (second, 119)):
        with_data = [
            a_page(f"/{number}", data={"price": price if number % 3 == 0 else 0, "text": "x" * 10_000})
            for number in range(30)
        ]
        await store_pages(bench.app, crawl, *with_data, *[a_page(f"/plain/{number}") for number in range(30)])
    measured = Measured(bench.database)
    comparer = PageComparer(bench.database)
    found = await comparer.compare(first.number, second.number)
    assert {name: some.count for name, some in found.changes.items()} == {"data.price": 10}
    assert (found.same, found.is_complete) == (50, True)
    assert [one.url.removeprefix(SITE) for one in found.changes["data.price"].first] == [
        f"/{number}" for number in range(0, 30, 3)
    ]
    assert max(measured.sizes) <= 100_000
    assert sum(measured.sizes) > 600_000

    monkeypatch.setattr(pages_module, "MOST_DATA", 300_000)
    cut = await comparer.compare(first.number, second.number)
    assert not cut.is_complete
    assert cut.changes["data.price"].count < 10


async def test_a_comparison_keeps_few_field_names_and_the_beginning_of_values(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "MOST_FIELDS", 2)
    first, second = await bench.submit(), await bench.submit()
    for crawl, value in ((first, "a" * 10_000), (second, "b" * 10_000)):
        fields = [{"x": value, "y": value, "n" * 500: value, "same": 1}, {"z": value, "x": value}, {"z": value}]
        await store_pages(bench.app, crawl, *[a_page(f"/{number}", data=data) for number, data in enumerate(fields)])
    found = await PageComparer(bench.database).compare(first.number, second.number)
    assert {name: some.count for name, some in found.changes.items()} == {"data.x": 2, "data.y": 1, "data": 3}
    assert [one.after for one in found.changes["data"].first] == ["n" * 200, "z", "z"]
    longest = max(len(str(one.before)) for some in found.changes.values() for one in some.first)
    assert longest == 1_000


async def test_the_store_tells_its_size_and_about_how_many_rows_it_has(bench: Bench) -> None:
    crawl = await bench.submit()
    await bench.submit()
    await store_pages(bench.app, crawl, *[a_page(f"/{number}") for number in range(50)])
    if bench.dialect == "postgres":
        await bench.sql("ANALYZE")
    size = await read_store_size(bench.database)
    tables = {table.name: table for table in size.tables}
    assert size.bytes > 50_000
    assert (tables["crawl"].rows, tables["fate"].rows) == (2, 2)  # one seed each
    if bench.dialect == "postgres":
        assert (tables["page"].bytes or 0) > 8_000
        assert sum(table.bytes or 0 for table in size.tables) == size.bytes
    else:
        assert (tables["page"].bytes, size.free is not None) == (None, True)

"""A crawl that leaves URLs in quarantine reports them everywhere, and can be continued with them."""

import json
from typing import Any

import pytest

from shoal.app import App
from shoal.audit.analysis import AnalysisOptions
from shoal.audit.reports.report import load_report
from shoal.base.errors import StateConflict
from shoal.base.url import Url
from shoal.cli.api_client import ApiTarget
from shoal.cli.audit import analyze_locally
from shoal.cli.output import rows_of, summary
from shoal.crawl import states
from shoal.crawl.frontier.traps import pattern_of
from shoal.crawl.journal_messages import JournalEntry
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import CrawlMove, CrawlState
from shoal.events.store import EventStore
from shoal.serve.console.crawl_rows import row_of
from shoal.serve.console.format import ENGLISH, Formats, languages
from shoal.serve.console.texts import text_of
from shoal.serve.resources.crawl import Crawl
from tests.packages.conftest import Crawler, ScriptedSite, html, serving

PAGES = {
    "/": html("home", "/maze?n=1", "/maze?n=2", "/a"),
    "/a": html("a"),
    "/maze?n=1": html("one"),
    "/maze?n=2": html("two"),
}


async def crawled(crawler: Crawler, site: ScriptedSite) -> CrawlStatus:
    """Crawl a site two of whose four pages are in quarantine."""
    crawl = await crawler.submit(site)
    maze = Url(f"{site.url}/maze?n=1")
    traps = {pattern_of(maze): maze}
    await crawler.app.database.run(lambda tx: crawler.app.stores.frontiers.sql.quarantine(tx, crawl.number, traps))
    await crawler.walk(crawl)
    return await crawler.app.crawls.get(crawl.id)


def sentence(crawl_id: str) -> str:
    return (
        "2 URLs were not crawled, but quarantined as a crawler trap. See the patterns with "
        f"`shoal crawls show {crawl_id}`, and release one with `shoal crawls release {crawl_id} PATTERN`."
    )


async def end_event(app: App, kind: str = "crawl.completed") -> dict[str, Any]:
    await app.database.run(lambda tx: EventStore().number(tx, 100))
    events = await app.database.read(lambda tx: EventStore().after(tx, 0, 100))
    [body] = [event.body for event in events if event.type == kind]
    data: dict[str, Any] = json.loads(body)
    return data


async def test_what_a_quarantine_left_out_is_counted_and_named(crawler: Crawler) -> None:
    async with serving(ScriptedSite(PAGES.get)) as site:
        seen = await crawled(crawler, site)
    crawl_id = seen.crawl.id
    assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.COMPLETED, "drained_partly")
    assert (seen.counts.pages, seen.counts.skipped) == (2, {"trap": 2})
    totals = summary(seen)
    assert (totals["state_reason"], totals["skipped"]) == ("drained_partly", {"trap": 2})
    assert totals["cut_off"] == [sentence(crawl_id)]
    rows = dict(rows_of(seen, totals, ()))
    assert rows["State"] == "completed (URLs in quarantine were left out)"
    assert rows["Cut off"] == sentence(crawl_id)
    shown = Crawl.of(seen)
    assert (shown.state_reason, shown.skipped) == ("drained_partly", {"trap": 2})
    reason = {"reason": "drained_partly", "skipped": {"trap": 2}, "message": sentence(crawl_id)}
    assert await end_event(crawler.app) == {"crawl_id": crawl_id, **reason}
    [listed] = await crawler.app.crawls.newest()
    assert (listed.crawl.state_reason, listed.counts.skipped) == ("drained_partly", {"trap": 2})


async def test_the_console_says_what_a_quarantine_left_out(crawler: Crawler) -> None:
    async with serving(ScriptedSite(PAGES.get)) as site:
        seen = await crawled(crawler, site)
    row = row_of(seen, Formats(ENGLISH, 0))
    assert row.reason == "2 URLs are in quarantine and were not crawled"
    assert (row.done, row.share) == (2, 0.5)
    last = (await crawler.app.crawls.journal.entries(seen.crawl.id))[-1].entry
    ending = "Completed: 2 pages, 0 errors, 2 skipped (URLs in quarantine were left out). "
    assert last.message == ending + sentence(seen.crawl.id)
    assert last.level == "warning"
    french = text_of(last, Formats(languages()["fr"], 0))
    assert french.endswith("2 URL sont en quarantaine : regardez leurs motifs sous Frontière, et libérez-les")


async def test_a_crawl_that_ended_before_the_reasons_were_told_apart_is_worded_from_its_rows(crawler: Crawler) -> None:
    async with serving(ScriptedSite(PAGES.get)) as site:
        seen = await crawled(crawler, site)
    app, crawl_id = crawler.app, seen.crawl.id
    again = CrawlMove(CrawlState.QUEUED), CrawlMove(CrawlState.RUNNING), states.complete(states.DRAINED)
    for move in again:
        await app.database.run(lambda tx, move=move: app.crawls.store.move(tx, crawl_id, move))
    stored = await app.database.read(lambda tx: app.crawls.store.get(tx, crawl_id))
    assert stored is not None
    assert stored.state_reason == "drained"
    assert (await app.crawls.get(crawl_id)).crawl.state_reason == "drained_partly"
    assert [one.crawl.state_reason for one in await app.crawls.newest()] == ["drained_partly"]
    claim = "Completed: 2 pages, 0 errors, 0 skipped (all URLs were crawled)"
    entry = JournalEntry("crawl_completed", claim, facts={"reason": "drained", "pages": 2, "errors": 0})
    await app.database.run(lambda tx: app.crawls.journal.write(tx, stored.number, [entry]))
    last = (await app.crawls.journal.entries(crawl_id))[-1].entry
    partly = "Completed: 2 pages, 0 errors, 0 skipped (URLs in quarantine were left out). "
    assert (last.message, last.level) == (partly + sentence(crawl_id), "warning")
    assert (last.facts["reason"], last.facts["skipped"]) == ("drained_partly", {"trap": 2})
    await app.crawls.release(crawl_id, pattern_of(Url(f"{site.url}/maze?n=1")))
    entries = [one.entry for one in await app.crawls.journal.entries(crawl_id)]
    assert not any("all URLs" in one.message for one in entries), "what was in quarantine then is not known any more"


async def test_a_stopped_crawl_does_not_advise_a_release_that_is_refused(crawler: Crawler) -> None:
    async with serving(ScriptedSite(PAGES.get)) as site:
        seen = await crawled(crawler, site)
    app, crawl_id = crawler.app, seen.crawl.id
    await app.database.run(lambda tx: app.crawls.store.move(tx, crawl_id, states.queue()))
    assert await app.crawls.stop(crawl_id) is CrawlState.STOPPED
    with pytest.raises(StateConflict):
        await app.crawls.release(crawl_id, pattern_of(Url(f"{site.url}/maze?n=1")))
    seen = await app.crawls.get(crawl_id)
    said = (
        "2 URLs were not crawled, but quarantined as a crawler trap. "
        f"See the patterns with `shoal crawls show {crawl_id}`. "
        "A stopped crawl cannot release them, but a new crawl may crawl them."
    )
    assert summary(seen)["cut_off"] == [said]
    last = (await app.crawls.journal.entries(crawl_id))[-1].entry
    assert last.message.endswith(said)
    assert (await end_event(app, "crawl.stopped"))["message"] == said
    row = row_of(seen, Formats(ENGLISH, 0))
    assert row.quarantine == "2 URLs are in quarantine and were not crawled; a new crawl may crawl them"
    french = text_of(last, Formats(languages()["fr"], 0))
    assert french.endswith("n'ont pas été parcourues ; un nouveau crawl peut les parcourir")


async def test_advice_names_the_store_and_the_launcher(crawler: Crawler, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(ScriptedSite(PAGES.get)) as site:
        seen = await crawled(crawler, site)
    monkeypatch.setenv("SHOAL_COMMAND", "./shoal")
    [said] = summary(seen, target=ApiTarget(store="sqlite:///my store.db"))["cut_off"]
    assert f"`./shoal crawls show {seen.crawl.id} --store 'sqlite:///my store.db'`" in said
    assert f"`./shoal crawls release {seen.crawl.id} PATTERN --store 'sqlite:///my store.db'`" in said


async def test_a_report_names_how_to_release_what_was_not_checked(crawler: Crawler) -> None:
    async with serving(ScriptedSite(PAGES.get)) as site:
        seen = await crawled(crawler, site)
    analysis = await analyze_locally(crawler.app, seen.crawl.id, AnalysisOptions(), None)
    report = await load_report(crawler.app.audit.analyses, analysis.id, 1)
    assert "pages in quarantine as a crawler trap (2)" in report.not_checked
    assert report.quarantine == sentence(seen.crawl.id)


async def test_a_pattern_of_a_completed_crawl_can_be_released_and_the_crawl_goes_on(crawler: Crawler) -> None:
    async with serving(ScriptedSite(PAGES.get)) as site:
        seen = await crawled(crawler, site)
        pattern = pattern_of(Url(f"{site.url}/maze?n=1"))
        assert await crawler.app.crawls.release(seen.crawl.id, pattern) == 2
        assert (await crawler.app.crawls.get(seen.crawl.id)).crawl.state is CrawlState.QUEUED
        await crawler.walk(seen.crawl)
        seen = await crawler.app.crawls.get(seen.crawl.id)
    assert (seen.crawl.state, seen.crawl.state_reason) == (CrawlState.COMPLETED, "drained")
    assert (seen.counts.pages, seen.counts.skipped) == (4, {})

"""Every page of the console is shown with every kind of content: each list of each template has at least one item, and
each branch is taken, also in French and by somebody who may only read."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader

from shoal.audit.analyses import KIND as ANALYSIS
from shoal.audit.analysis import AnalysisOptions
from shoal.audit.analyzer_run import NO_DETAILS
from shoal.audit.artifacts import Artifact
from shoal.audit.finding import AnalyzerOutcome
from shoal.base.database import Tx
from shoal.base.ids import JobId
from shoal.base.url import Url
from shoal.crawl.journal_messages import JournalEntry
from shoal.crawl.lifecycle.crawls import KIND as CRAWL
from shoal.crawl.store import CrawlFilter
from shoal.fleet.node import CommandRequest
from shoal.hosts.store import HostStore
from shoal.hosts.throttle import HostUpdate
from shoal.queue import states as job_states
from shoal.queue.job import Lease, LeaseRequest, NewJob
from shoal.queue.job_admin_store import JobFilter
from shoal.serve.console.shell import TEMPLATES
from tests.packages.conftest import ScriptedSite, serving
from tests.support.audit_site import planted_site
from tests.support.controller import ServedController, served_controller
from tests.support.fleet import clean_environment
from tests.support.nodes import register
from tests.support.plain_browser import PlainBrowser
from tests.support.processes import run_shoal

TAG = re.compile(r"{%-? (for|if|elif|else|endif|endfor)\b.*?%}", re.DOTALL)
ELSEWHERE = {"confirm.html", "scope_preview.html", "policy_import.html"}  # answers to forms; other tests send them
RARE = {
    # A store with tokens, but none for bots; pages that a recrawl found unchanged.
    "bots.html: {% elif view.may_administer %}",
    "crawl_rows.html: {% if counts.not_modified %}",
    # Answers to forms, which other tests send.
    "layout.html: {% if notice %}",
    "login.html: {% if problem %}",
    "new_crawl.html: {% if preview %}",
    "new_crawl.html: {% if problems.get(name) %}",
    'new_crawl.html: {% if values.get("include") or values.get("exclude") or values.get("labels") or problems %}',
    "policy_form.html: {% if problems.get(name) %}",
    "settings.html: {% if changed %}",
    "settings.html: {% if text %}",
    "webhook.html: {% if secret %}",
    # More rows than a page shows.
    "events.html: {% if others %}",
    "crawl_broken.html: {% elif more %}",
    "crawl_broken.html: {% if not referrers.is_complete %}",
    "crawl_charts.html: {% if not summary.is_complete %}",
    "crawl_diff.html: {% if found.count > found.first | length %}",
    "crawl_diff.html: {% if not diff.is_complete %}",
    "crawl_hosts.html: {% if receipt.is_cut %}",
    "crawl_links.html: {% elif more %}",
    "crawl_pages.html: {% if is_short %}",
    "crawl_rows.html: {% if is_short %}",
    "job_rows.html: {% elif more %}",
    "job_rows.html: {% elif total %}",
    "page.html: {% if not referrers.is_complete %}",
    "policy_rows.html: {% if is_cut %}",
    "policy_rows.html: {% if row.more %}",
    "crawl_pages.html: {% if ranked and not more and ranked.searched > most_sorted %}",
    "crawl_pages.html: {% if ranked and not ranked.is_complete %}",
    "crawl_frontier.html: {% if in_flight > held_urls | length %}",
    "analysis.html: {% if value | length > most_parts %}",
    # Crawls that are fetching, which other tests have.
    "crawl_frontier.html: {% for one in held_urls %}",
    "crawl_frontier.html: {% if held_urls %}",
    "crawl_numbers.html: {% if seconds_left is not none %}",
    "crawl_pages.html: else of {% if name in columns %}",
    # Numbers that take a while.
    "bots.html: {% elif row.is_proven %}",
    "crawl_charts.html: {% if history | length > 1 and row.is_working %}",
    "crawl_hosts.html: {% if host.state.latency_seconds %}",
    'fleet.html: {% if rates | length > 1 and node.state.value != "lost" %}',
    "node.html: {% if rates | length > 1 %}",
    "overview.html: {% if history | length > 1 %}",
    "policy.html: {% elif row.is_stale %}",
    "policy_rows.html: {% elif row.is_stale %}",
    # Less common content.
    "analyses.html: {% if problem %}",
    "analysis.html: else of {% if one.page %}",
    'analysis.html: {% elif analysis.state.value == "success" %}',
    "analysis.html: {% for part in value.values() %}",
    "analysis.html: {% if code.stored < code.count %}",
    "analysis.html: {%- if value is mapping %}",
    "analysis.html: {% for reason in verdict.reasons if reason not in of_rules %}",
    "analysis.html: {% if not loop.last %}",
    'analysis.html: {% if rule.severity == "warning" %}',
    "bots.html: else of {% if row.problems %}",
    "crawl_broken.html: {% if not loop.last %}",
    "crawl_diff.html: {% if view.may_write %}",
    'crawl_diff.html: {% if name in ("new", "missing", "content", "data") %}',
    "crawl_frontier.html: {% if skips and not crawl.config.links %}",
    'crawl_frontier.html: else of {% if trap.state == "quarantined" and view.may_write and row.is_releasable %}',
    "crawl_hosts.html: else of {% if one.asked_delay_seconds is none %}",
    "crawl_hosts.html: else of {% if receipt.hosts %}",
    "crawl_hosts.html: {% if one.delay_was_clamped %}",
    "crawl_links.html: else of {% if given %}",
    "crawl_links.html: {% if link.nofollow %}",
    "crawl_links.html: {% if problem %}",
    "crawl_numbers.html: {% if counts.held %}",
    "crawl_numbers.html: {% if counts.stayed_empty %}",
    "page.html: else of {% if crawl.config.links %}",
    "crawl_pages.html: {% if problem %}",
    "crawls.html: {% elif not rows and not older %}",
    "crawls.html: {% if view.is_signed_in %}",
    "events.html: else of {% if one.type in places %}",
    "job.html: {% if error %}",
    "log.html: else of {% for entry in entries %}",
    "node.html: {% if one.max_concurrency is not none %}",
    "node.html: {% if one.page_slots is not none %}",
    "node.html: {% if status.browsers %}",
    # test_overview.py has a store that is empty, one with a worker, and what fails.
    "overview.html: else of {% if rows %}",
    "overview.html: {% if view.may_write %}",
    "overview.html: else of {% if worker_watch.is_missing %}",
    "overview.html: else of {% if view.may_write %}",
    "overview.html: else of {% if problems %}",
    "overview.html: {% if not loop.last %}",
    "page.html: else of {% if has_body %}",
    "page.html: {% if data %}",
    "page.html: {% if has_screenshot %}",
    "page.html: {% if link.is_nofollow %}",
    "policy.html: {% if one.result.error_code %}",
    "policy.html: {% if policy.live_crawl %}",
    "policy.html: {% if policy.queued %}",
    'settings.html: else of {% if source == "default" %}',
    "settings.html: {% elif kind.is_kept_for_ever %}",
    "settings.html: {% if has_sizes %}",
    "settings.html: {% if size.free %}",
    "settings.html: {% if tokens | length == 1 %}",
    "webhook.html: else of {% if hook.enabled %}",
}
DOWNLOAD = re.compile(r'href="(/[^"]*)" download')
LINK = re.compile(r'href="(/[^"#]*)')
KINDS = re.compile(r"(?<=/)(?:[a-z]{3}_\w+|crawler-\d)")  # each page of a crawl is a kind


class MarkedTemplates(FileSystemLoader):
    """Templates whose loops and branches call `shown` with their number, which is their place in `places`, for each
    item or whenever they are taken."""

    def __init__(self) -> None:
        super().__init__(TEMPLATES)
        self.places: list[str] = []

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool] | None]:
        source, path, is_fresh = super().get_source(environment, template)
        open_tags: list[str] = []

        def mark(found: re.Match[str]) -> str:
            tag, word = found[0], found[1]
            if word.startswith("end"):
                open_tags.pop()
                return tag
            if word in ("for", "if"):
                open_tags.append(tag)
            place = f"else of {open_tags[-1]}" if word == "else" else tag
            self.places.append(f"{template.rpartition('/')[2]}: {place}")
            return tag + "{{ shown(" + str(len(self.places) - 1) + ") }}"

        return TAG.sub(mark, source), path or template, is_fresh


async def fill(shop: ServedController, folder: Path) -> None:
    """Analyze a site with every defect twice. Add a policy with results, jobs in several states, nodes, and a webhook
    with deliveries."""
    answers: dict[str, Any] = {}
    async with serving(ScriptedSite(answers.get)) as site:
        answers |= planted_site(site.url) | dict.fromkeys(("/silent", "/crash"))  # those would be asked again, later
        site.robots = answers["/robots.txt"]
        gate = folder / "gate.json"
        gate.write_text(json.dumps({"rules": [{"metric": "broken_link", "op": "<=", "threshold": 0}]}))
        env = clean_environment(folder) | {"DATABASE_URL": f"sqlite:///{folder}/shoal.db"}
        words = ["audit", site.url, "--speed", "max", "--keep-bodies", "--gate", str(gate), "--json"]
        for _ in range(2):
            done = await asyncio.to_thread(run_shoal, *words, cwd=folder, env=env, timeout=60)
            assert done.returncode == 10, done.stderr
            words += ["--baseline", json.loads(done.stdout)["crawl_id"]]
            answers["/good/tea"], answers["/good/cake"] = answers["/good/cake"], (404, {}, "")

    async def ask(path: str, body: dict[str, Any] | None = None) -> Any:
        answer = await shop.ask(path, method="POST", body=json.dumps(body or {}).encode())
        assert answer.status < 300, (path, answer.body)
        return answer.json

    policy = await ask("/api/v1/policies", {"url": "https://example.com/", "frequency": "6h"})
    options = {"max_pages": 5, "exclude": ["/print/"], "headers": {"X-Api-Key": "secret"}}
    await ask("/api/v1/policies", {"seeds": ["https://example.com/"], "frequency": "6h", "crawl_config": options})
    await ask("/api/v1/crawls", {"seeds": ["https://example.com/"], "headers": options["headers"], "start": False})
    await ask(f"/api/v1/policies/{policy['id']}/run")
    [job] = (await ask("/bot/v1/jobs/pull", {"bot_id": "b1"}))["jobs"]
    result = {
        "epoch": job["lease"]["epoch"],
        "status": "success",
        "data": {"name": "x"},
        "meta": {"crawl_duration": 1.5},
    }
    await ask(f"/bot/v1/jobs/{job['job_id']}/result", result)
    late = json.dumps(result | {"data": {}}).encode()
    assert (await shop.ask(f"/bot/v1/jobs/{job['job_id']}/result", method="POST", body=late)).status == 409
    await shop.app.chores.hourly_stats.run_once()
    await ask("/api/v1/jobs", {"urls": [f"https://example.com/{number}" for number in range(3)]})
    [lease] = (await shop.app.queue.finish_and_lease([], LeaseRequest("crawler-1/7", ["page"]), 1)).leases
    move = job_states.fail(lease.fence.job_id, lease.fence.epoch, "no route to host")
    await shop.app.queue.finish_and_lease([move], LeaseRequest("crawler-1/7", ["page"]), 1)
    crawl = (await shop.app.crawls.get((await ask("/api/v1/crawls", {"seeds": ["https://example.com/"]}))["id"])).crawl
    pattern = "https://example.com/calendar/*"
    traps = {pattern: Url("https://example.com/calendar/1")}
    await shop.app.database.run(lambda tx: shop.app.stores.frontiers.sql.quarantine(tx, crawl.number, traps))
    await ask("/api/v1/gates", {"name": "release", "fail": ["broken_link"]})
    nodes = shop.app.fleet.nodes
    await register(nodes, "crawler-1", held_leases=((str(lease.fence.job_id), 1),), capabilities=("http", "js"))
    await register(nodes, "crawler-2")
    await nodes.send("crawler-1", CommandRequest(command="config_update", rate_limit=2.5), "me")
    await ask(f"/api/v1/policies/{policy['id']}/run")  # the first job may have been the one that was planned


async def fail(shop: ServedController, kind: str, run_id: str, error: str) -> None:
    """Fail the job of a run for good."""
    lease = await leased(shop, run_id)
    move = job_states.fail(lease.fence.job_id, lease.fence.epoch, error)
    await shop.app.database.run(lambda tx: shop.app.queue.moves.move_in(tx, move, kind, run_id, lease))


async def leased(shop: ServedController, run_id: str) -> Lease:
    [job] = await shop.app.database.read(lambda tx: shop.app.queue.jobs.jobs_of_run(tx, run_id))
    lease = await shop.app.queue.lease_one(job.id, "crawler-1/8")
    assert lease is not None
    return lease


async def fill_rare(shop: ServedController) -> None:
    """Add crawls and an analysis that failed, one of each state, a host on hold, an analyzer with files, a job that was
    dispatched, more jobs than the fleet has room for, a lost node and a policy that is disabled."""
    app = shop.app

    async def crawl(**options: Any) -> str:
        body = json.dumps({"seeds": ["https://example.com/", "https://example.org/"], **options}).encode()
        made = await shop.ask("/api/v1/crawls", method="POST", body=body)
        return str(made.json["id"])

    await fail(shop, CRAWL, await crawl(project="shop"), "no route to host")
    running, paused = await crawl(), await crawl()
    lease = await leased(shop, running)
    await app.database.run(lambda tx: app.crawls.started(tx, running, lease.fence.job_id))
    await app.crawls.pause(paused)
    await crawl(start=False)
    stopping = await crawl()
    await leased(shop, stopping)
    await app.crawls.stop(stopping)
    audited = next(one.crawl for one in await app.crawls.matching(CrawlFilter()) if one.counts.pages)
    analysis = await app.audit.analyses.submit(audited.id, AnalysisOptions())
    files = (Artifact("a.json", 1), Artifact("b.json", 2))
    outcomes = [
        AnalyzerOutcome("broken", "it failed", 0, 1.0, files),
        AnalyzerOutcome("odd", "it failed", 0, 1.0, optional=True),
        AnalyzerOutcome("vitals", None, 0, 1.0, skipped="no page was rendered"),
        AnalyzerOutcome("titles", None, 0, 1.0, skipped=NO_DETAILS),
    ]

    async def keep(tx: Tx) -> None:
        for outcome in outcomes:
            await app.audit.analyses.store.keep(tx, analysis, outcome, [], [])

    await app.database.run(keep)
    await fail(shop, ANALYSIS, analysis.id, "an analyzer failed")
    await app.audit.analyses.submit(audited.id, AnalysisOptions())

    async def hold(tx: Tx) -> None:
        number = (await HostStore().numbers(tx, ["https://example.com"]))["https://example.com"]
        await HostStore().record(tx, {number: HostUpdate("https://example.com", status=429, hold_seconds=600.0)})
        facts = {"host": audited.config.seeds[0].rstrip("/"), "status": 429, "seconds": 9.0}
        await app.crawls.journal.write(tx, audited.number, [JournalEntry("host_held", "It is held", facts=facts)])

    await app.database.run(hold)
    decision = {
        "node_id": "crawler-1",
        "nodes": 2,
        "candidates": [["crawler-1", 0.5, None], ["crawler-2", 0.1, "busy"]],
    }
    jobs = [("job_dispatched", decision), ("job_undispatched", {"node_id": None, "nodes": 0})]
    payload = json.dumps({"url": "https://example.com/"})
    await app.queue.enqueue(
        [NewJob(JobId(name), "page", None, payload, dispatch=json.dumps(why)) for name, why in jobs]
    )
    app.controls = True
    app.fleet.view.shared_depth = 10**9
    nodes = app.fleet.nodes
    await register(nodes, "crawler-3", every=timedelta(microseconds=1))
    await nodes.lose(await nodes.get("crawler-3"))
    await nodes.send("crawler-2", CommandRequest(command="pause", reason="new disk"), "me")
    policy = {"url": "https://example.com/", "frequency": "6h", "enabled": False, "project": "shop"}
    await shop.ask("/api/v1/policies", method="POST", body=json.dumps(policy).encode())


async def walk(visitor: PlainBrowser, *first: str, most: int) -> dict[str, str]:
    """Get these pages and those that they link to: of each kind at most so many. Return a download of each kind."""
    wanted, seen, kinds, downloads = list(first), set[str](), dict[str, int](), dict[str, str]()
    language = visitor.headers.get("Accept-Language", "en")
    while wanted:
        path = wanted.pop()
        page = await visitor.get(path)
        assert page.status == 200, (path, page.text[:500])
        assert "data-theme" not in page.html or f'<html lang="{language}"' in page.html, path
        seen.add(path)
        for link in DOWNLOAD.findall(page.html):
            downloads[KINDS.sub("*", link.partition("?")[0])] = link.replace("&amp;", "&")
        for link in sorted({link.replace("&amp;", "&") for link in LINK.findall(page.html)} - seen - set(wanted)):
            kind = KINDS.sub("*", link.partition("?")[0]) + re.sub("=[^&]*", "", link.partition("?")[2])
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] <= most and not re.match(r"/(static|api)|.*(/body|/export|csv|jsonl)", link):
                wanted.append(link)
    return downloads


@pytest.fixture
async def shop(sqlite_url: str) -> AsyncIterator[ServedController]:
    async with served_controller(sqlite_url, SHOAL_LEASE="300s") as shop:  # however long it takes to see every page
        yield shop


@pytest.mark.exhaustive
async def test_every_list_and_branch_of_every_page_is_shown(
    shop: ServedController, visitor: PlainBrowser, tmp_path: Path
) -> None:
    loader, shown = MarkedTemplates(), set[int]()
    environment = shop.app.console.shell._environment
    environment.loader = loader
    environment.globals["shown"] = lambda number: shown.add(number) or ""
    for template in TEMPLATES.rglob("*.html"):
        environment.get_template(str(template.relative_to(TEMPLATES)))
    await walk(visitor, "/", most=1)
    await visitor.post("/events", {"url": "https://example.com/hook", "events": "crawl.*"})
    await fill(shop, tmp_path)
    await fill_rare(shop)
    await shop.token("bot")
    await shop.token("node")
    await visitor.sign_in(await shop.token("admin"))
    crawls = [one.crawl.id for one in await shop.app.crawls.matching(CrawlFilter())]
    states = [f"/crawls/{crawl}{tab}" for crawl in crawls for tab in ("", "/audit", "/frontier", "/hosts", "/attempts")]
    jobs = [f"/jobs/{job.id}" for job in (await shop.app.job_admin.newest(JobFilter())).items]
    bad = [f"{path}?q=state:no" for path in ("/crawls", "/jobs", "/policies", f"/crawls/{crawls[0]}/pages")]
    explained = f"/crawls/{crawls[0]}/frontier?url=https://example.com/"
    bad += [f"/crawls/{crawl}/links?{query}" for crawl in crawls for query in ("status=299", "skipped=scope")]
    chosen = [f"/policies/new?crawl={crawl}" for crawl in crawls]
    chosen += [f"/crawls/{crawl}/pages?sort={order}" for crawl in crawls for order in ("words", "-words")]
    analyses = [f"/analyses/{one.id}" for one in await shop.app.audit.analyses.newest()]
    downloads = await walk(visitor, "/", *jobs, *bad, *chosen, *analyses, *states, explained, most=6)
    for kind, path in downloads.items():
        file = await visitor.get(path)
        assert (file.status, bool(file.html) or "csv" not in kind) == (200, True), path
    reader = PlainBrowser(shop.port, headers={"Accept-Language": "fr"})
    await reader.sign_in(await shop.token("viewer"))
    await walk(reader, "/", *states[::4], most=1)
    missing = {place for number, place in enumerate(loader.places) if number not in shown}
    assert {place for place in missing - RARE if place.partition(":")[0] not in ELSEWHERE} == set()
    assert set(loader.places) >= RARE, "those are no longer in the templates"

"""Requests at the limits of what a controller accepts and returns, and how long each of them keeps others waiting."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import orjson

from shoal.audit import states
from shoal.audit.analysis import AnalysisOptions
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCount, Severity
from shoal.audit.store import NewAnalysis
from shoal.base.database import Tx
from shoal.base.ids import AnalysisId, CrawlId, JobId
from shoal.crawl.crawl import CrawlConfig
from shoal.extract.links import WrittenLink, WrittenLinks, pack_links
from shoal.page_jobs.result import Result, Status
from shoal.page_jobs.store import NewResult, ResultStore
from shoal.pages.page import Page
from shoal.plan.policy import MOST_SITE_SEEDS
from shoal.queue.states import JobState
from shoal.serve.bots import MOST_JOBS
from shoal.serve.endpoint import Finder, routes_of, table_of
from tests.support.controller import CRAWLS, ServedController, served_controller
from tests.support.http_client import HttpAnswer
from tests.support.loop_cpu import longest_callback
from tests.support.nodes import register
from tests.support.stored_pages import store_pages

URLS = [f"https://example.com/section/{number}/a-page-with-a-name?x={number}" for number in range(10_000)]
PAGES = 500
GROUP, ANALYSIS, SCRAPE = "hosts", "anl_1", "job_scraped"
LEFT_OUT = {  # by reason
    "It changes one row, like the small writes that are measured.": """
        act_on_crawl act_on_job act_on_policy cancel_job change_webhook choose command_node command_one
        create_token_from_form create_webhook_from_form disable_policy enable_policy pause_crawl remove_gate
        remove_policy remove_quota remove_webhook remove_webhook_page resume_crawl retry_job revoke_token
        revoke_token_from_form rotate_from_page rotate_webhook run_policy start_crawl stop_crawl switch_webhook""",
    "It reads one row.": "show_command show_token",
    "It takes a few words, and the store changes the rows in batches.": """
        act_on_jobs purge_jobs release_pattern release_trap remove_crawl replay_event replay_events
        retry_crawl retry_jobs retry_urls""",
    "It queues the work of a process of its own.": "analyze_from_form create_analysis",
    "It needs the network.": "test_webhook test_webhook_from_page",
    "It has no end.": "watch watch_crawl",
    "It needs files or results that only a fetch makes.": """
        diff_policy_results download_artifact show_body show_screenshot""",
}
HTML = {"Accept": "text/html"}
LINES = {"Content-Type": "application/x-ndjson"}
FORM = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": "shoal_csrf=token"}
PATTERNS = [f"/s/{number}/[0-9]+$" for number in range(200)] + [f"/s/{number}/{'x' * 100}" for number in range(800)]
CHOSEN = 200  # crawls that one form acts on; creating a thousand, the limit, would take longer than all requests
MANY_LINKS = pack_links(WrittenLinks(None, [WrittenLink("a", url, "text") for url in URLS[:10_000]]))


@dataclass(frozen=True)
class MeasuredRequest:
    """A request, and the longest callback of the event loop while it was served, in CPU seconds."""

    request: str
    seconds: float
    callback: str


@dataclass
class Measured:
    """A controller, and what its requests took."""

    shop: ServedController
    token: str
    requests: list[MeasuredRequest] = field(default_factory=list)

    async def ask(
        self,
        path: str,
        token: str | None = None,
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        with longest_callback() as longest:
            answer = await self.shop.ask(path, token or self.token, method=method, body=body, headers=headers)
        assert answer.status < 400, (method, path, answer.body[:500])
        self.requests.append(MeasuredRequest(f"{method} {path}", longest.seconds, longest.callback))
        return answer

    async def post_form(self, path: str, *pairs: tuple[str, str], **fields: str) -> None:
        """Send a form of the console."""
        body = urlencode([*pairs, *fields.items(), ("csrf", "token")]).encode()
        await self.ask(path, method="POST", body=body, headers=HTML | FORM)

    def forgotten(self) -> list[str]:
        """Return the endpoints that were neither requested nor named as left out, and those that were both."""
        app = self.shop.app
        groups = [*app.rest_api.endpoint_groups, *app.console.endpoint_groups]
        finder, asked = Finder(routes_of(groups, 0)), set[str]()
        for one in self.requests:
            method, path = one.request.partition("?")[0].split(" ")
            found = finder.find({"type": "http", "method": method, "path": path, "root_path": ""})
            asked |= set() if found is None else {found.spec.name}
        known = {spec.name for group in groups for spec in table_of(type(group))}
        left_out = {name for names in LEFT_OUT.values() for name in names.split()}
        return sorted((known - asked) ^ left_out)


async def ended(shop: ServedController, crawl_id: str, title: str) -> None:
    """Store a crawl that has ended, with large pages."""
    config = CrawlConfig.read({"seeds": URLS[:1], "start": False, "links": True})
    crawl = await shop.app.crawls.submit(config, crawl_id=CrawlId(crawl_id))
    await shop.app.crawls.stop(crawl_id)
    text: dict[str, Any] = {"title": title * 50, "description": "d" * 1000, "data": {"prices": ["x" * 100] * 100}}
    pages = [
        Page(
            url=url,
            depth=1,
            attempt=1,
            fetched_at=1,
            status=404 if place % 10 == 0 else 200,
            links=bytes(18_000),
            outlinks=MANY_LINKS if place < 20 else None,
            **text,
        )
        for place, url in enumerate(URLS[:PAGES])
    ]
    for start in range(0, PAGES, 500):
        await store_pages(shop.app, crawl, *pages[start : start + 500])


async def analyzed(shop: ServedController) -> None:
    """Store an analysis with large findings."""
    crawl, store = (await shop.app.crawls.get("later")).crawl, shop.app.audit.analyses.store
    new = NewAnalysis(AnalysisId(ANALYSIS), crawl.number, crawl.id, "default", URLS[0], AnalysisOptions())
    counts = [FindingCount("links", "broken_link", Severity.ERROR, "Title.", "Fix.", PAGES, PAGES)]
    findings = [
        Finding("links", "broken_link", Severity.ERROR, url, key, {"target": url, "text": "x" * 5_000})
        for key, url in enumerate(URLS[:PAGES])
    ]
    outcome = AnalyzerOutcome("links", None, PAGES, 1.0)
    metrics = {"pages": float(PAGES), "findings": float(PAGES), "errors": float(PAGES)}

    async def write(tx: Tx) -> None:
        await store.insert(tx, new)
        assert await store.move(tx, new.id, states.run())
        analysis = await store.get(tx, new.id)
        assert analysis is not None
        await store.keep(tx, analysis, outcome, counts, findings)
        await store.conclude(tx, analysis, metrics, {}, None)
        assert await store.move(tx, new.id, states.succeed())

    await shop.app.database.run(write)


async def ask_bots(measured: Measured) -> str:
    """Pull as many jobs as possible and push their results, as large as possible; return the id of one job."""
    urls = [f"https://host-{number}.example/" for number in range(MOST_JOBS + 1)]
    await measured.ask("/api/v1/jobs", method="POST", body=orjson.dumps({"urls": urls, "group": GROUP}))
    pull = orjson.dumps({"bot_id": "bot", "max": MOST_JOBS})
    bot = await measured.shop.token("bot")
    jobs = (await measured.ask("/bot/v1/jobs/pull", bot, method="POST", body=pull)).json["jobs"]
    jobs += (await measured.ask("/bot/v1/jobs/pull", bot, method="POST", body=pull)).json["jobs"]
    assert len(jobs) == MOST_JOBS + 1
    data = {"rows": [{"name": "n" * 50, "price": 1.5}] * 500}
    results = [
        {"job_id": one["job_id"], "epoch": one["lease"]["epoch"], "status": "success", "data": data} for one in jobs
    ]
    alone = results.pop()
    await measured.ask(
        f"/bot/v1/jobs/{alone['job_id']}/heartbeat", bot, method="POST", body=orjson.dumps({"epoch": alone["epoch"]})
    )
    single = {"epoch": alone["epoch"], "status": "success", "data": {"rows": data["rows"] * 200}}
    await measured.ask(f"/bot/v1/jobs/{alone['job_id']}/result", bot, method="POST", body=orjson.dumps(single))
    await measured.ask("/bot/v1/results", bot, method="POST", body=orjson.dumps({"results": results}))
    return str(alone["job_id"])


async def ask_small_writes(measured: Measured) -> tuple[str, str]:
    """Send writes of one row; return the ids of a policy and a webhook."""

    async def post(path: str, **body: object) -> Any:
        return (await measured.ask(path, method="POST", body=orjson.dumps(body))).json

    rules = [{"metric": "broken_links", "op": "<=", "threshold": number} for number in range(100)]
    await post("/api/v1/gates", name="release", rules=rules)
    await post("/api/v1/tokens", name="viewer", role="viewer")
    await post("/api/v1/signals", label="team=prices", boost=30, lasts="6h")
    await measured.ask("/api/v1/quotas/project:shop", method="PUT", body=b'{"most": 5}')
    policy = await post("/api/v1/policies", url=URLS[0], frequency="1h", enabled=False)
    webhook = await post("/api/v1/webhooks", url="https://receiver.example/", events=["crawl.job.*"])
    return policy["id"], webhook["id"]


async def ask_large_writes(measured: Measured, policy: str) -> None:
    """Send lists and files as long as they may be, over the API and in the forms of the console."""

    async def send(method: str, path: str, **body: object) -> None:
        await measured.ask(f"/api/v1/{path}", method=method, body=orjson.dumps(body))

    await send("POST", "crawls", seeds=URLS, include=PATTERNS)
    held = orjson.dumps({"seeds": ["https://elsewhere.example/"], "start": False})
    crawl = (await measured.ask("/api/v1/crawls", method="POST", body=held)).json
    await send("POST", f"crawls/{crawl['id']}/seeds", seeds=URLS)
    await send("POST", "jobs", urls=URLS)
    lines = [orjson.dumps({"url": url, "frequency": "1h", "enabled": False}) for url in URLS]
    await measured.ask("/api/v1/policies/import", method="POST", body=b"\n".join(lines[:2_000]), headers=LINES)
    await measured.post_form("/policies/import", lines=b"\n".join(lines[2_000:7_000]).decode())

    await measured.post_form("/crawls/new", seeds="\n".join(URLS[:8_000]), include="\n".join(PATTERNS))
    await measured.post_form("/crawls/new/check", seeds="\n".join(URLS[:8_000]), include="\n".join(PATTERNS))

    seeds = {"seeds": URLS[:MOST_SITE_SEEDS], "frequency": "1h", "enabled": False}
    options = {"include": PATTERNS}
    await send("PUT", f"policies/{policy}", **seeds, crawl_config=options)
    await send("PATCH", f"policies/{policy}", crawl_config=options)
    form = {
        "seeds": "\n".join(URLS[:MOST_SITE_SEEDS]),
        "frequency": "1h",
        "crawl_config": orjson.dumps(options).decode(),
    }
    await measured.post_form("/policies/new", **form)
    await measured.post_form(f"/policies/{policy}/edit", **form)
    rules = [{"metric": "broken_links", "op": "<=", "threshold": number} for number in range(200)]
    await send("PUT", "gates/release", rules=rules)


async def ask_scrapes(measured: Measured) -> None:
    """Ask for a page that nobody fetches, and for one whose content is as large as it may be."""
    body = orjson.dumps({"url": URLS[0], "timeout_seconds": 0.01})
    await measured.ask("/api/v1/scrape", method="POST", body=body)
    data = {"page": None, "content": {"text": "word " * 2_000_000}, "is_cut": False}
    result = NewResult(JobId(SCRAPE), 1, None, None, JobState.DONE, "", Result(Status.SUCCESS, URLS[0], 1, data=data))
    await measured.shop.app.database.run(lambda tx: ResultStore().insert(tx, [result]))
    await measured.ask(f"/api/v1/scrape/{SCRAPE}")


async def ask_wide_writes(measured: Measured) -> None:
    """Send writes that change many crawls, nodes or jobs, and large options of a crawl."""
    config = CrawlConfig.read({"seeds": URLS[:1], "start": False})
    ids = [(await measured.shop.app.crawls.submit(config)).id for _ in range(CHOSEN)]
    chosen = [("id", crawl_id) for crawl_id in ids]
    await measured.ask(
        f"{CRAWLS}/{ids[0]}", method="PATCH", body=orjson.dumps({"include": PATTERNS, "exclude": PATTERNS})
    )
    await measured.post_form(f"/crawls/{ids[0]}/options", include="\n".join(PATTERNS))
    await measured.post_form("/crawls/actions", *chosen, action="stop")  # asks for confirmation
    await measured.post_form("/crawls/actions", *chosen, action="stop", confirmed="yes")
    await measured.post_form("/crawls/actions", *chosen, action="remove", confirmed="yes")
    await measured.ask(f"/api/v1/groups/{GROUP}/cancel", method="POST")
    await measured.ask("/api/v1/nodes/commands", method="POST", body=b'{"command": "pause"}')
    await measured.post_form("/fleet/commands", action="resume", confirmed="yes")


async def ask_all(measured: Measured) -> None:
    """Send requests at the limits of what they accept and return."""
    job = await ask_bots(measured)
    policy, webhook = await ask_small_writes(measured)
    await ask_large_writes(measured, policy)
    await ask_scrapes(measured)
    lists = ("crawls", "jobs", "policies", "groups", "analyses", "tokens", "audit-log")
    for path in (
        *(f"{name}?limit=200" for name in lists),
        *(
            "webhooks",
            "events?limit=1000",
            "nodes",
            "nodes/node-1",
            "nodes/node-1/explain",
            "stats",
            "quotas",
            "priority-rules",
            "gates",
        ),
        *(
            "policies/export",
            "policies/export?format=csv",
            f"policies/{policy}",
            f"policies/{policy}/results?limit=200",
        ),
        *(f"jobs/{job}", f"jobs/{job}/explain", f"jobs/{job}/results"),
        *(f"groups/{GROUP}", f"groups/{GROUP}/results?limit=200", "gates/release"),
        *(f"webhooks/{webhook}", f"webhooks/{webhook}/deliveries?limit=200"),
        *(f"analyses/{ANALYSIS}", f"analyses/{ANALYSIS}/findings?limit=200"),
        *(f"analyses/{ANALYSIS}/report?format={name}" for name in ("html", "json", "junit", "sarif")),
        *("crawls/later", "crawls/later/traps", "crawls/later/politeness", "crawls/later/logs?limit=200"),
        *("crawls/later/pages?limit=200", "crawls/later/pages?limit=200&status=500"),
        *(
            "crawls/later/links?limit=200&skipped=scope",
            "crawls/later/links?limit=200",
            f"crawls/later/links?limit=200&to={URLS[0]}&status=4xx",
        ),
        f"crawls/later/explain?url={URLS[0]}",
        *("crawls/later/diff?against=earlier&limit=1000", "crawls/later/diff/rows?against=earlier&format=csv"),
    ):
        await measured.ask(f"/api/v1/{path}")
    listed = await measured.ask("/crawls/later/pages", headers=HTML)
    page = re.findall(r'href="/(pages/[^"?]+)', listed.body.decode())[0]
    await measured.ask(f"/api/v1/crawls/later/pages/{page.rpartition('~')[2]}/content?format=json")
    for path in ("/metrics", "/healthz", "/readyz", "/openapi.json"):
        await measured.ask(path)
    tabs = [
        *("site", "hosts", "frontier", "log", "attempts", "options", "broken", "diff?with=earlier", "pages?text=none"),
        *("audit?code=broken_link", "pages?sort=-words", "pages?sort=-linked", f"page?url={URLS[0]}"),
    ]
    exports = [
        "export/csv",
        "export/jsonl",
        "links",
        "links/csv?status=4xx",
        "links/jsonl",
        "links?skipped=scope",
        "hosts.csv",
        "site.csv",
        "attempts.csv",
        "traps.csv",
    ]
    for path in (
        *("/", "/crawls", "/crawls/new", "/jobs", "/policies", "/policies/new", "/policies/import", "/policies/bots"),
        *(
            "/analyses",
            "/events",
            "/fleet",
            "/fleet/node-1",
            "/settings",
            "/docs",
            f"/jobs/{job}",
            f"/events/{webhook}",
        ),
        *("/crawls/later", *(f"/crawls/later/{tab}" for tab in (*tabs, *exports))),
        *(f"/policies/{policy}", f"/policies/{policy}/edit", f"/{page}"),
        *(f"/analyses/{ANALYSIS}?code=broken_link", f"/analyses/{ANALYSIS}/findings.jsonl"),
        *("/crawls.csv", "/jobs.csv", "/policies.csv", "/analyses.csv", "/fleet.csv", "/policies/new?crawl=later"),
        *("/events.csv", "/webhooks.csv", "/bots.csv", "/settings/tokens.csv", "/settings/audit-log.csv"),
        *(f"/events/{webhook}/deliveries.csv", f"/jobs/{job}/leases.csv", f"/policies/{policy}/runs.csv"),
        "/fleet/node-1/commands.csv",
    ):
        await measured.ask(path, headers=HTML)
    await ask_wide_writes(measured)


async def measured_requests(store_url: str, *, nodes: int) -> Measured:
    """Serve a store with large crawls and so many nodes, and send it such requests. Runs on the event
    loop of Python, not on uvloop."""
    async with served_controller(store_url) as shop:
        measured = Measured(shop, await shop.token("admin"))
        for number in range(nodes):
            await register(shop.app.fleet.nodes, f"node-{number}")
        await ended(shop, "earlier", "before")
        await ended(shop, "later", "after")
        await analyzed(shop)
        await ask_all(measured)
        return measured

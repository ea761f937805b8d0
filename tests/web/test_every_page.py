"""Every page of the console is shown with every kind of content: each list of each template has at least one item."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from shoal.base.url import Url
from shoal.crawl.store import CrawlFilter
from shoal.fleet.node import CommandRequest
from shoal.queue import states as job_states
from shoal.queue.job import LeaseRequest
from shoal.serve.console.shell import TEMPLATES
from tests.packages.conftest import ScriptedSite, serving
from tests.support.audit_site import planted_site
from tests.support.controller import ServedController
from tests.support.fleet import clean_environment
from tests.support.nodes import register
from tests.support.plain_browser import PlainBrowser
from tests.support.processes import run_shoal

LOOP = re.compile(r"{%-? for .*?%}", re.DOTALL)
ELSEWHERE = {"confirm.html", "scope_preview.html", "policy_import.html"}  # answers to forms; other tests send them
RARE = {  # these need a host that is held, a control plane, or an analyzer with files
    "analysis.html: {% for file in one.artifacts %}",
    "crawl_frontier.html: {% for host in held %}",
    "crawl_hosts.html: {% for code, count in one.holds.statuses.items() %}",
    "fleet.html: {% for name, one in pressures %}",
    "job.html: {% for one in dispatch.candidates %}",
}
LINK = re.compile(r'href="(/[^"#]*)')
KINDS = re.compile(r"(?<=/)(?:[a-z]{3}_\w+|crl_\w+~\d+|crawler-\d)")


class MarkedLoops(FileSystemLoader):
    """Templates whose loops call `shown` with their number, which is their place in `loops`, for each item."""

    def __init__(self) -> None:
        super().__init__(TEMPLATES)
        self.loops: list[str] = []

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool] | None]:
        source, path, is_fresh = super().get_source(environment, template)

        def mark(found: re.Match[str]) -> str:
            self.loops.append(f"{template.rpartition('/')[2]}: {found[0]}")
            return found[0] + "{{ shown(" + str(len(self.loops) - 1) + ") }}"

        return LOOP.sub(mark, source), path or template, is_fresh


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
    await ask("/api/v1/policies", {"seeds": ["https://example.com/"], "frequency": "6h"})
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


async def test_every_list_of_every_page_is_shown_with_an_item(
    shop: ServedController, visitor: PlainBrowser, tmp_path: Path
) -> None:
    loader, shown = MarkedLoops(), set[int]()
    environment = shop.app.console.shell._environment
    environment.loader = loader
    environment.globals["shown"] = lambda number: shown.add(number) or ""
    for template in TEMPLATES.rglob("*.html"):
        environment.get_template(str(template.relative_to(TEMPLATES)))
    await visitor.get("/events")
    await visitor.post("/events", {"url": "https://example.com/hook", "events": "crawl.*"})
    await fill(shop, tmp_path)
    await shop.token("bot")
    await visitor.sign_in(await shop.token("admin"))
    [crawl, *_] = await shop.app.crawls.matching(CrawlFilter())
    wanted = ["/", f"/crawls/{crawl.crawl.id}/frontier?url=https://example.com/"]
    seen, kinds = set[str](), dict[str, int]()
    while wanted:
        path = wanted.pop()
        page = await visitor.get(path)
        assert page.status == 200, (path, page.text[:500])
        seen.add(path)
        for link in sorted({link.replace("&amp;", "&") for link in LINK.findall(page.html)} - seen - set(wanted)):
            kind = KINDS.sub("*", link.partition("?")[0]) + re.sub("=[^&]*", "", link.partition("?")[2])
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] <= 6 and not re.match(r"/(static|api)|.*(/body|/export|jsonl)", link):
                wanted.append(link)
    missing = {place for number, place in enumerate(loader.loops) if number not in shown}
    assert {place for place in missing if place.partition(":")[0] not in ELSEWHERE and place not in RARE} == set()

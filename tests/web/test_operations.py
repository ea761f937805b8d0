"""Jobs, the fleet, policies, bots and analyses in the console, as a browser without a script sees them."""

import json
import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Receiver

from shoal.audit import states as audit_states
from shoal.audit.analysis import Analysis, AnalysisOptions
from shoal.audit.analyzer_run import NO_DETAILS
from shoal.audit.artifacts import Artifact
from shoal.audit.codes import CODES
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCount, Severity
from shoal.audit.gate import Gate, GateRule
from shoal.audit.store import NewAnalysis
from shoal.audit.verdict import GateInput, judge
from shoal.base.database import Tx
from shoal.base.ids import AnalysisId, NodeId
from shoal.base.url import Url
from shoal.crawl.crawl import Counts
from shoal.crawl.frontier.values import key_of
from shoal.crawl.store import OUTSIDE
from shoal.events.event import Event, append_events
from shoal.events.store import EventStore
from shoal.events.webhook import NewWebhook
from shoal.fleet.node import CommandAck, CommandRequest
from shoal.fleet.states import CommandState
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from shoal.queue import states
from shoal.queue.job import LeaseRequest
from shoal.queue.job_admin_store import JobFilter
from tests.support.bad_http_server import bad_server, reply
from tests.support.controller import ServedController, served_controller
from tests.support.http_client import HttpAnswer
from tests.support.nodes import register
from tests.support.plain_browser import PlainBrowser

EVIL = "https://example.com/<script>alert(1)</script>\u202e"


async def add_pages(shop: ServedController, *urls: str) -> None:
    body = json.dumps({"urls": urls}).encode()
    assert (await shop.ask("/api/v1/jobs", method="POST", body=body)).status in (200, 201, 202)


async def bury_one(shop: ServedController) -> str:
    """Lease a page job as a worker does, and fail it for good; return its id."""
    [lease] = (await shop.app.queue.finish_and_lease([], LeaseRequest("crawler-1/7", ["page"]), 1)).leases
    await shop.app.queue.began(lease.fence, "crawler-1", 4711)
    move = states.fail(lease.fence.job_id, lease.fence.epoch, "no route <b>to</b> host")
    await shop.app.queue.finish_and_lease([move], LeaseRequest("crawler-1/7", ["crawl"]), 1)
    return str(lease.fence.job_id)


async def test_a_dead_letter_is_found_explained_and_retried(shop: ServedController, visitor: PlainBrowser) -> None:
    await add_pages(shop, "https://example.com/a")
    job_id = await bury_one(shop)
    listed = await visitor.get("/jobs?q=state:dead+kind:page")
    assert (job_id in listed.html, "Failed" in listed.text) == (True, True)
    page = await visitor.get(f"/jobs/{job_id}")
    assert " in the state failed (its last attempt failed): no route " in page.text
    assert "no route <b>to</b> host" in page.text
    assert "<b>to</b>" not in page.html
    assert re.search(r"crawler-1/7.*4711", page.text)
    retried = await visitor.post(f"/jobs/{job_id}/actions", {"action": "retry"})
    assert "The job waits for a worker again" in retried.text
    assert "Cancel the job" in retried.text
    asked = await visitor.post(f"/jobs/{job_id}/actions", {"action": "cancel"})
    assert "Cancel this job?" in asked.text
    assert (await shop.app.job_admin.get(job_id)).state == "pending"
    done = await visitor.post(f"/jobs/{job_id}/actions", {"action": "cancel", "confirmed": "yes"})
    assert " in the state cancelled (on request): no route " in done.text


async def test_the_api_and_the_console_explain_each_job_alike(shop: ServedController, visitor: PlainBrowser) -> None:
    for _ in range(4):
        assert (await shop.ask(method="POST", body=b'{"seeds": ["https://example.com/"]}')).status == 202
    ids = [job.id for job in (await shop.app.job_admin.newest(JobFilter(), limit=4)).items][::-1]
    none = "No worker is running crawl jobs that need http; start one for the shared lane with `shoal worker`."
    assert {await explained_alike(shop, visitor, "jobs", one) for one in ids} == {none}
    await shop.app.queue.finish_and_lease([], LeaseRequest("crawler-1/7", ["crawl"]), 1)
    running = "1 crawl jobs that need http are running."
    assert [await explained_alike(shop, visitor, "jobs", one) for one in ids[1:]] == [
        f"It is next; {running}",
        f"1 job is ahead of it; {running}",
        f"2 jobs are ahead of it; {running}",
    ]
    visitor.headers["Accept-Language"] = "fr"
    assert "2 tâches sont devant elle ; 1 tâches crawl" in (await visitor.get(f"/jobs/{ids[-1]}")).text


async def explained_alike(shop: ServedController, visitor: PlainBrowser, kind: str, subject: str) -> str:
    """Return the explanation of a job or a node, which its page has, too."""
    explanation: str = (await shop.ask(f"/api/v1/{kind}/{subject}/explain")).json["explanation"]
    page = await visitor.get(f"/{'fleet' if kind == 'nodes' else kind}/{subject}")
    assert explanation in page.text
    return explanation


async def test_all_dead_letters_that_match_are_retried_after_a_question(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    await add_pages(shop, "https://example.com/a", "https://example.org/b")
    ids = [await bury_one(shop), await bury_one(shop)]
    await visitor.get("/jobs")
    fields = {"action": "retry", "q": "state:dead", "back": "/jobs?q=state:dead"}
    assert "Retry all dead letters that match?" in (await visitor.post("/jobs/actions", fields)).text
    seen = await visitor.post("/jobs/actions", fields | {"confirmed": "yes"})
    assert "2 dead letters will be retried." in seen.text
    assert {(await shop.app.job_admin.get(one)).state for one in ids} == {"pending"}


async def test_a_wrong_qualifier_is_a_sentence_and_not_an_error_page(visitor: PlainBrowser) -> None:
    for path, problem in (
        ("/jobs?q=stat:dead", "stat: is not a qualifier of this list; the nearest one is state:"),
        ("/jobs?q=state:gone", "use one of pending, locked"),
        ("/policies?q=is:new", "use one of due, late, enabled, disabled"),
        ("/analyses?q=state:gone", "use crawl: or state:"),
    ):
        seen = await visitor.get(path)
        assert (seen.status, problem in seen.text) == (200, True), path


async def test_a_viewer_gets_no_buttons_and_is_refused(shop: ServedController, visitor: PlainBrowser) -> None:
    await register(shop.app.fleet.nodes, "crawler-1")
    await visitor.sign_in(await shop.token("viewer"))
    for path in ("/jobs?q=state:dead", "/fleet", "/fleet/crawler-1", "/policies", "/analyses", "/events"):
        seen = await visitor.get(path)
        assert seen.status == 200
        assert len(re.findall(r'<form[^>]*method="post"', seen.html)) == 2, path  # preferences and sign-out
    for path, fields in (
        ("/jobs/actions", {"action": "retry"}),
        ("/fleet/commands", {"action": "pause"}),
        ("/fleet/crawler-1/commands", {"action": "pause"}),
        ("/policies/new", {"url": "https://example.com/"}),
        ("/analyses", {"crawl_id": "x"}),
        ("/events", {"url": "https://example.com/"}),
    ):
        assert (await visitor.post(path, fields)).status == 403, path


async def test_a_node_is_paused_and_its_acknowledgement_is_shown(shop: ServedController, visitor: PlainBrowser) -> None:
    assert "No nodes yet" in (await visitor.get("/fleet")).text
    nodes = shop.app.fleet.nodes
    await register(nodes, "crawler-1", version="1.2.3", active_tasks=1, success_rate=0.5, total_processed=7)
    listed = await visitor.get("/fleet")
    assert all(word in listed.text for word in ("crawler-1", "Connected", "1 / 2", "0 / 15", "50 %", "1.2.3"))
    page = await visitor.get("/fleet/crawler-1")
    assert "Part of the score" in page.text
    assert "0.4 0.20" in page.text  # half of the points for success
    seen = await visitor.post("/fleet/crawler-1/commands", {"action": "pause", "reason": "new <i>kernel</i>"})
    assert "Waiting for the node" in seen.text
    assert "new <i>kernel</i>" in seen.text
    [command] = await nodes.commands_of("crawler-1")
    await nodes.acknowledge(NodeId("crawler-1"), [CommandAck(command.id, CommandState.APPLIED, "ok")])
    assert "Applied" in (await visitor.get("/fleet/crawler-1")).text
    wrong = await visitor.post("/fleet/crawler-1/commands", {"action": "config_update", "page_slots": "many"})
    assert (wrong.status, "give a number" in wrong.text) == (422, True)


async def test_a_lost_node_has_no_score_and_no_runs(shop: ServedController, visitor: PlainBrowser) -> None:
    nodes = shop.app.fleet.nodes
    await register(nodes, "crawler-1", every=timedelta(microseconds=1), active_tasks=1, held_leases=(("job_1", 1),))
    assert await nodes.lose(await nodes.get("crawler-1"))
    for path in ("/fleet", "/fleet/crawler-1"):
        seen = await visitor.get(path)
        assert "Lost" in seen.text
        assert ("1 / 2" in seen.text, "job_1" in seen.text, "0.85" in seen.text) == (path != "/fleet", False, False)
    assert "Last reported values" in seen.text
    answer = (await shop.ask("/api/v1/nodes/crawler-1")).json
    assert (answer["state"], answer["health_score"]) == ("lost", 0)


async def test_the_api_and_the_console_explain_a_flapping_node_alike(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    nodes, view = shop.app.fleet.nodes, shop.app.fleet.view
    for _ in range(5):
        await register(nodes, "crawler-1")
        view.install([await nodes.get("crawler-1")], 0)
    assert "connected more than 3 times within a minute" in await explained_alike(shop, visitor, "nodes", "crawler-1")
    assert (await shop.ask("/api/v1/nodes/crawler-1/explain")).json["dispatch_share"] == 0.0
    assert "of new jobs" not in (await visitor.get("/fleet/crawler-1")).text
    visitor.headers["Accept-Language"] = "fr"
    assert "connecté plus de 3 fois en une minute" in (await visitor.get("/fleet/crawler-1")).text


async def test_all_nodes_get_a_command_only_after_a_question(shop: ServedController, visitor: PlainBrowser) -> None:
    for name in ("crawler-1", "crawler-2"):
        await register(shop.app.fleet.nodes, name)
    await visitor.get("/fleet")
    asked = await visitor.post("/fleet/commands", {"action": "drain"})
    assert "Send this command to every node?" in asked.text
    assert await shop.app.fleet.nodes.commands_of("crawler-1") == []
    seen = await visitor.post("/fleet/commands", {"action": "drain", "confirmed": "yes"})
    assert "The command was sent to 2 nodes." in seen.text


async def test_a_policy_is_created_changed_run_and_removed(shop: ServedController, visitor: PlainBrowser) -> None:
    form = {"url": "https://example.com/prices", "frequency": "6h", "labels": "team=prices"}
    await visitor.get("/policies/new")
    refused = await visitor.post("/policies/new", form | {"frequency": "sometimes"})
    assert (refused.status, 'id="frequency-problem"' in refused.html) == (422, True)
    assert 'value="sometimes"' in refused.html
    refused = await visitor.post("/policies/new", {"seeds": "https://example.com/\n\nftp://a/\n", "frequency": "6h"})
    assert "line 3 'ftp://a/' has a scheme other than http and https" in refused.text.replace("Line", "line")
    seen = await visitor.post("/policies/new", form)
    assert "The policy was created." in seen.text
    policy_id = seen.path.rpartition("/")[2]
    assert "Disabled" in seen.text
    edited = await visitor.get(f"/policies/{policy_id}/edit")
    assert 'value="6h"' in edited.html
    changed = await visitor.post(f"/policies/{policy_id}/edit", form | {"frequency": "", "cron": "0 4 * * *"})
    assert "0 4 * * * UTC" in changed.text
    for word in ("The policy is running", "The policy is already running."):
        assert word in (await visitor.post(f"/policies/{policy_id}/actions", {"action": "run"})).text
    for action in ("enable", "disable"):
        seen = await visitor.post(f"/policies/{policy_id}/actions", {"action": action})
        assert f"The policy is {action}d" in seen.text
    assert "Remove this policy?" in (await visitor.post(f"/policies/{policy_id}/actions", {"action": "remove"})).text
    gone = await visitor.post(f"/policies/{policy_id}/actions", {"action": "remove", "confirmed": "yes"})
    assert "The policy was removed." in gone.text


async def test_the_form_of_a_policy_accepts_what_a_newcomer_fills_in(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    page, path = {"url": "https://example.com/prices", "enabled": "yes"}, "/policies/new"
    empty = await visitor.get(path)
    prefilled = dict(re.findall(r'<input type="\w+" id="(frequency|cron)".*? value="([^"]*)"', empty.html))
    for fields, schedule in (({"cron": "0 4 * * *"}, (None, "0 4 * * *")), ({}, ("24h", None))):
        made = await visitor.post(path, page | prefilled | fields)
        assert "The policy was created." in made.text
        stored = (await shop.app.plan.policies.get(made.path.rpartition("/")[2])).form
        assert (stored.frequency, stored.cron) == schedule


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "Fill in either the page to fetch, or the start URLs of a site."),
        ({"url": "https://a.example/", "seeds": "https://a.example/"}, "Fill in either the page to fetch, or"),
        ({"url": "https://a.example/", "frequency": "1h", "cron": "0 4 * * *"}, "Fill in either “Every”, or the cron"),
        (
            {"url": "https://a.example/", "crawl_config": "max_pages=500"},
            "max_pages is an option of crawls, and this policy fetches a single page; leave it out, or crawl a site.",
        ),
        ({"url": "http://127.0.0.1/"}, "Page to fetch Has an address or port that is not allowed"),
        ({"url": "https://a.example/", "frequency": "often"}, "Every 'often' is not"),
    ],
)
async def test_the_form_of_a_policy_names_fields_as_it_labels_them(
    visitor: PlainBrowser, fields: dict[str, str], problem: str
) -> None:
    await visitor.get("/policies/new")
    refused = await visitor.post("/policies/new", fields)
    assert (refused.status, problem in refused.text) == (422, True), refused.text


async def test_a_secret_of_a_policy_is_not_shown_and_survives_an_edit(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    config = '{"headers": {"Authorization": "Bearer hunter2"}}'
    form = {"url": "https://example.com/", "frequency": "6h", "crawl_config": config, "enabled": "yes"}
    await visitor.get("/policies/new")
    seen = await visitor.post("/policies/new", form)
    policy_id = seen.path.rpartition("/")[2]
    edited = await visitor.get(f"/policies/{policy_id}/edit")
    assert "hunter2" not in seen.html + edited.html
    shown = re.search(r'<textarea id="crawl_config"[^>]*>([^<]*)<', edited.html)
    assert shown
    hidden = shown[1].replace("&#34;", '"')
    await visitor.post(f"/policies/{policy_id}/edit", form | {"crawl_config": hidden, "frequency": "12h"})
    stored = (await shop.app.plan.policies.get(policy_id)).form
    assert (stored.frequency, stored.crawl_config["headers"]["Authorization"]) == ("12h", "Bearer hunter2")


async def test_an_import_reports_each_invalid_line(visitor: PlainBrowser) -> None:
    lines = "url,frequency\nhttps://example.com/a,6h\nftp://example.com/b,6h\nhttps://example.com/c,often"
    await visitor.get("/policies/import")
    refused = await visitor.post("/policies/import", {"lines": lines, "bad": "refuse"})
    assert (refused.status, "2 lines are invalid." in refused.text) == (422, True)
    assert "Nothing was stored" in refused.text
    seen = await visitor.post("/policies/import", {"lines": lines, "bad": "skip"})
    assert "1 policy was created. 2 lines are invalid." in seen.text
    again = await visitor.post("/policies/import", {"lines": '{"url": "https://example.com/d", "frequency": "1h"}'})
    assert "1 policy was created." in again.text


async def test_bots_are_shown_with_their_tokens_activity_and_conformance(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    await add_pages(shop, "https://example.com/a")
    await visitor.sign_in(await shop.token("admin"))
    bot, hourly_stats = await shop.token("bot", name="price bot"), shop.app.chores.hourly_stats
    assert "No bot has asked for jobs" in (await visitor.get("/policies/bots")).text

    async def ask(path: str, body: dict[str, object]) -> int:
        return (await shop.ask(path, bot, method="POST", body=json.dumps(body).encode())).status

    assert await ask("/bot/v1/jobs/pull", {"bot_id": "scraper-9"}) == 200
    await hourly_stats.run_once()
    seen = await visitor.get("/policies/bots")
    assert all(word in seen.text for word in ("price bot", "scraper-9", "No results yet"))
    [job] = (await shop.app.job_admin.newest(JobFilter())).items
    result = {"epoch": 1, "status": "success", "data": {}}
    assert await ask(f"/bot/v1/jobs/{job.id}/result", result) == 200
    await hourly_stats.run_once()
    assert "Follows the rules" in (await visitor.get("/policies/bots")).text
    assert await ask(f"/bot/v1/jobs/{job.id}/result", result | {"data": {"other": 1}}) == 409
    await hourly_stats.run_once()
    seen = await visitor.get("/policies/bots")
    assert "Breaks rules" in seen.text
    assert "1 result came without a valid lease, and was rejected." in seen.text


async def test_advice_to_create_a_token_works_as_the_first_and_as_a_later_one(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    assert "--role admin" in (await visitor.get("/login")).text
    bots = (await visitor.get("/policies/bots")).text
    assert bots.index("tokens create --role admin") < bots.index("tokens create --role bot")
    await shop.token("admin")
    assert "--role viewer" in (await visitor.get("/login")).text


async def test_more_webhooks_than_can_be_created_today_are_counted_and_not_listed(
    shop: ServedController, visitor: PlainBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.events.webhooks.MOST_WEBHOOKS", 1_000)  # as in an earlier version
    for number in range(103):
        await shop.app.events.webhooks.make(NewWebhook(url=f"https://example.com/{number}"))
    assert "3 more webhooks are not shown; remove others to see them." in (await visitor.get("/events")).text
    assert len((await shop.ask("/api/v1/webhooks")).json["items"]) == 100


async def test_a_webhook_is_created_with_a_secret_and_its_deliveries_are_replayed(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    assert "No webhooks yet" in (await visitor.get("/events")).text
    refused = await visitor.post("/events", {"url": "https://example.com/hook", "events": "crawl.gone"})
    assert "which is not an event type" in refused.text
    made = await visitor.post("/events", {"url": "https://example.com/hook", "events": "crawl.*"})
    [hook] = await shop.app.events.webhooks.all()
    assert hook.secret in made.html
    assert hook.secret not in (await visitor.get("/events")).html
    off = await visitor.post(f"/events/{hook.id}/actions", {"action": "disable"})
    assert "The webhook is disabled" in off.text
    event = Event("crawl.started", "crl_1", {})
    await shop.app.database.run(lambda tx: append_events(tx, event))
    await shop.app.database.run(lambda tx: EventStore().number(tx, 10))
    assert "crawl.started" in (await visitor.get("/events")).text
    again = await visitor.post(f"/events/{hook.id}/replay", {"event_id": event.id})
    assert "The event will be sent again." in again.text
    assert "crawl.started" in again.text
    missing = await visitor.post(f"/events/{hook.id}/replay", {"event_id": "evt_none"})
    assert "evt_none" in missing.text
    assert "Remove this webhook and its queue?" in (await visitor.post(f"/events/{hook.id}/remove", {})).text
    gone = await visitor.post(f"/events/{hook.id}/remove", {"confirmed": "yes"})
    assert "The webhook was removed." in gone.text
    entries = await shop.app.access.audit_log.newest(before=None, limit=10, subject=hook.id)
    actions = [entry.action.name for entry in entries]
    assert actions == ["webhook.removed", "webhook.replayed", "webhook.changed", "webhook.created"]


async def audited(shop: ServedController, subject: str) -> list[str]:
    """Return what the audit log says of a subject, oldest first."""
    return [entry.action.name for entry in await shop.app.access.audit_log.newest(subject=subject)][::-1]


async def test_the_api_and_the_console_write_the_same_audit_entries(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    async def ask(path: str, method: str = "POST", **fields: object) -> dict[str, str]:
        answer = await shop.ask(f"/api/v1{path}", method=method, body=json.dumps(fields).encode())
        assert answer.status < 300, answer.body
        return answer.json if answer.body else {}

    await visitor.get("/policies")
    yearly = "0 0 1 1 *"  # not due now: the scheduler must not be faster than `run`
    await visitor.post("/policies/new", {"url": "https://example.com/a", "cron": yearly})
    [by_form] = (await shop.app.plan.policies.page_of())[1]
    by_request = (await ask("/policies", url="https://example.com/b", cron=yearly))["id"]
    for action in ("run", "disable", "enable"):
        await visitor.post(f"/policies/{by_form.id}/actions", {"action": action})
        await ask(f"/policies/{by_request}/{action}")
    await visitor.post(f"/policies/{by_form.id}/actions", {"action": "remove", "confirmed": "yes"})
    await ask(f"/policies/{by_request}", "DELETE")
    entries = [f"policy.{word}" for word in ("created", "run", "disabled", "enabled", "removed")]
    assert await audited(shop, by_form.id) == await audited(shop, by_request) == entries

    await visitor.post("/crawls/new", {"seeds": "https://example.com/", "robots": "ignore", "start": "no"})
    [crawl] = [status.crawl for status in await shop.app.crawls.newest()]
    bold = (await ask("/crawls", seeds=["https://example.com/"], robots="ignore", start=False))["id"]
    polite = (await ask("/crawls", seeds=["https://example.com/"], start=False))["id"]
    await visitor.post(f"/crawls/{crawl.id}/options", {"max_pages": "7"})
    for crawl_id in (bold, polite):
        await ask(f"/crawls/{crawl_id}", "PATCH", max_pages=7)
    assert await audited(shop, crawl.id) == await audited(shop, bold) == ["crawl.ignores_robots", "crawl.changed"]
    assert await audited(shop, polite) == ["crawl.changed"]

    await add_pages(shop, "https://example.com/a", "https://example.org/b")
    dead = [await bury_one(shop), await bury_one(shop)]
    await visitor.post(f"/jobs/{dead[0]}/actions", {"action": "retry"})
    await ask(f"/jobs/{dead[1]}/retry")
    await visitor.post(f"/jobs/{dead[0]}/actions", {"action": "cancel", "confirmed": "yes"})
    await ask(f"/jobs/{dead[1]}/cancel")
    assert await audited(shop, dead[0]) == await audited(shop, dead[1]) == ["job.retried", "job.cancelled"]


async def test_gates_and_groups_changed_over_the_api_are_in_the_audit_log(shop: ServedController) -> None:
    async def ask(path: str, method: str, body: object = None) -> HttpAnswer:
        return await shop.ask(f"/api/v1{path}", method=method, body=json.dumps(body or {}).encode())

    rules = {"rules": [{"metric": "broken_links", "op": "<=", "threshold": 0}]}
    assert (await ask("/gates", "POST", {"name": "strict", **rules})).status == 201
    assert (await ask("/gates", "POST", {"name": "strict", **rules})).status == 409
    assert (await ask("/gates/strict", "PUT", rules)).status == 200
    assert (await ask("/gates/strict", "DELETE")).status == 204
    assert await audited(shop, "strict") == ["gate.created", "gate.replaced", "gate.removed"]
    group = (await ask("/jobs", "POST", {"urls": ["https://example.com/a"]})).json["id"]
    for _ in range(2):
        await ask(f"/groups/{group}/cancel", "POST")
    assert await audited(shop, group) == ["group.cancelled"]


async def test_a_test_event_is_sent_from_the_page_of_a_webhook_and_its_outcome_is_shown(sqlite_url: str) -> None:
    async with served_controller(sqlite_url, SHOAL_ALLOW_NETWORKS="127.0.0.0/8") as shop:
        visitor = PlainBrowser(shop.port)
        async with bad_server() as server:
            server.answer("/hook", reply(202, b""))
            hook = await shop.app.events.webhooks.make(NewWebhook(url=f"http://127.0.0.1:{server.port}/hook"))
            await visitor.get(f"/events/{hook.id}")
            seen = await visitor.post(f"/events/{hook.id}/test", {})
            assert re.search(r"The receiver accepted the test event with 202 after \d+.ms\.", seen.text)
            [asked] = server.asked
            assert Receiver(hook.secret).verify(asked.body, asked.headers)["type"] == "webhook.test"
        refused = await visitor.post(f"/events/{hook.id}/test", {})
        assert re.search(
            r"The test event was not accepted, after \d+.ms\. The server refused the connection\.", refused.text
        )
        assert (await visitor.post("/events/whk_none/test", {})).status == 404
        entries = await shop.app.access.audit_log.newest(before=None, limit=10, subject=hook.id)
        assert [entry.action.name for entry in entries] == ["webhook.tested", "webhook.tested"]


async def test_a_secret_is_replaced_after_a_question_and_shown_once(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    hook = await shop.app.events.webhooks.make(NewWebhook(url="https://example.com/hook"))
    await visitor.get(f"/events/{hook.id}")
    asked = await visitor.post(f"/events/{hook.id}/rotate", {})
    assert "Replace the secret of this webhook?" in asked.text
    assert (await shop.app.events.webhooks.get(hook.id))[0].secret == hook.secret
    made = await visitor.post(f"/events/{hook.id}/rotate", {"confirmed": "yes"})
    rotated, _ = await shop.app.events.webhooks.get(hook.id)
    assert (rotated.secret != hook.secret, rotated.secret in made.html) == (True, True)
    assert rotated.secret not in (await visitor.get(f"/events/{hook.id}")).html


async def test_the_events_of_a_time_range_are_sent_again(shop: ServedController, visitor: PlainBrowser) -> None:
    hook = await shop.app.events.webhooks.make(NewWebhook(url="https://example.com/hook", events=["crawl.*"]))
    events = [Event(kind, "subject", {}) for kind in ("crawl.started", "crawl.completed", "node.lost")]
    await shop.app.database.run(lambda tx: append_events(tx, *events))
    await shop.app.chores.forwarder.run_once()
    page = await visitor.get(f"/events/{hook.id}")
    fields = dict(re.findall(r'name="(since|until)" type="datetime-local" required value="([^"]+)"', page.html))
    seen = await visitor.post(f"/events/{hook.id}/replay", fields)
    assert "2 events will be sent again." in seen.text
    swapped = await visitor.post(f"/events/{hook.id}/replay", {"since": fields["until"], "until": fields["since"]})
    assert "Since is not before until; swap them." in swapped.text
    wrong = await visitor.post(f"/events/{hook.id}/replay", fields | {"since": "yesterday"})
    assert "Since is not a time; write it as" in wrong.text


async def test_a_token_is_created_shown_once_and_revoked(shop: ServedController, visitor: PlainBrowser) -> None:
    await visitor.sign_in(await shop.token("admin"))
    await visitor.get("/settings")
    refused = await visitor.post("/settings/tokens", {"name": "x", "role": "node"})
    assert "name the node" in refused.text
    made = await visitor.post("/settings/tokens", {"name": "<b>nightly</b>", "role": "operator", "expires_in": "90d"})
    shown = re.search(r"shl_\w+", made.text)
    assert (made.path, bool(shown)) == ("/settings", True), "the page can be reloaded"
    assert shown
    token = await shop.app.access.tokens.verify(shown[0])
    assert token is not None
    seen = await visitor.get("/settings")
    assert (shown[0] in seen.html, "<b>nightly</b>" in seen.html, "token.created" in seen.text) == (False, False, True)
    assert "Revoke this token?" in (await visitor.post(f"/settings/tokens/{token.id}/revoke", {})).text
    done = await visitor.post(f"/settings/tokens/{token.id}/revoke", {"confirmed": "yes"})
    assert "The token was revoked." in done.text
    assert await shop.app.access.tokens.verify(shown[0]) is None


async def test_the_browser_that_creates_the_first_token_stays_signed_in(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    page = await visitor.get("/settings")
    assert "<option>admin</option>" in page.html
    assert "<option>viewer</option>" not in page.html
    made = await visitor.post("/settings/tokens", {"name": "me", "role": "admin"})
    assert "This browser is signed in with the new token." in made.text
    assert ("data-copy" in made.html, "Sign out" in made.text, made.path) == (True, True, "/settings")
    assert (await shop.ask("/api/v1/tokens")).status == 401
    seen = await visitor.get("/settings")
    assert "<option>viewer</option>" in seen.html


async def test_settings_are_for_administrators_and_hide_secrets(sqlite_url: str) -> None:
    async with served_controller(sqlite_url, SHOAL_PROXIES="secret=http://user:hunter2@proxy.example:3128") as shop:
        visitor = PlainBrowser(shop.port)
        page = await visitor.get("/settings")
        assert "DATABASE_URL" in page.text
        assert "hunter2" not in page.html
        assert re.search(r"The store uses [\d.]+.[kM]B\.", page.text)
        assert "Dead letters 30 days SHOAL_DEAD_RETENTION" in page.text
        assert re.search(r"Pages until their crawl is removed 0 ", page.text)
        await visitor.sign_in(await shop.token("viewer"))
        seen = await visitor.get("/settings")
        assert ("Only administrators" in seen.text, "DATABASE_URL" in seen.text) == (True, False)
        assert (await visitor.post("/settings/tokens", {"name": "x", "role": "admin"})).status == 403


async def test_an_analysis_shows_its_verdict_findings_and_baseline(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    assert "No analyses yet" in (await visitor.get("/analyses")).text
    gate = Gate(rules=[GateRule(metric="broken_link", op="<=", threshold=0)])
    counts = [FindingCount("links", "broken_link", Severity.ERROR, "Pages link nowhere.", "Mend them.", 2, 2)]
    metrics = {"pages": 10.0, "findings": 2.0, "errors": 2.0, "warnings": 0.0, "notices": 0.0, "broken_link": 2.0}
    metrics |= {"blocked_pages": 0.0, "quarantined_urls": 0.0, "broken_links": 2.0}
    verdict = judge(gate, GateInput(metrics, counts, [AnalyzerOutcome("links", None, 2, 1.0)]))
    findings = [Finding("links", "broken_link", Severity.ERROR, EVIL, key, {"target": EVIL}) for key in (1, 2)]
    analysis = await completed_analysis(shop)
    store, outcome = (
        shop.app.audit.analyses.store,
        AnalyzerOutcome("links", None, 2, 12.0, (Artifact("links-raw.txt", 2048),)),
    )

    async def keep(tx: Tx) -> None:
        await store.keep(tx, analysis, outcome, counts, findings)
        await store.conclude(tx, analysis, metrics, {}, verdict)

    await shop.app.database.run(keep)
    page_id = await store_page(shop, analysis, EVIL)
    seen = await visitor.get(f"/pages/{page_id}")
    assert "broken_link Pages link to a URL that answers with a 4xx status." in seen.text
    assert "<script>alert" not in seen.html
    assert "Gate failed" in (await visitor.get("/analyses")).text
    page = await visitor.get(f"/analyses/{analysis.id}?code=broken_link")
    assert "broken_link is 2; the gate demands <= 0." in page.text
    french = PlainBrowser(shop.port, headers={"Accept-Language": "fr"})
    assert "broken_link vaut 2 ; le seuil exige <= 0." in (await french.get(f"/analyses/{analysis.id}")).text
    assert "alert(1)" in page.text
    assert "<script>alert" not in page.html
    assert "\u202e" not in page.html
    assert f'href="/api/v1/analyses/{analysis.id}/artifacts/links-raw.txt">links-raw.txt</a>' in page.html
    lines = (await visitor.get(f"/analyses/{analysis.id}/findings.jsonl")).html.splitlines()
    assert [json.loads(line)["code"] for line in lines] == ["broken_link"] * 2
    wrong = await visitor.post("/analyses", {"crawl_id": "crl_none"})
    assert "crl_none" in wrong.text


async def test_findings_are_shown_in_the_language_of_the_reader(shop: ServedController, visitor: PlainBrowser) -> None:
    about, analysis = CODES["broken_link"], await completed_analysis(shop)
    known = FindingCount("links", about.code, about.severity, about.title, about.fix, 1, 1)
    own = FindingCount("own", "own_code", Severity.NOTICE, "The shop has no price.", "Add {one}.", 1, 0)
    finding = Finding("links", about.code, about.severity, EVIL, 1, {})
    store = shop.app.audit.analyses.store

    async def keep(tx: Tx) -> None:
        await store.keep(tx, analysis, AnalyzerOutcome("links", None, 1, 1.0), [known], [finding])
        await store.keep(tx, analysis, AnalyzerOutcome("own", None, 1, 1.0), [own], [])

    await shop.app.database.run(keep)
    page_id = await store_page(shop, analysis, EVIL)
    visitor.headers["Accept-Language"] = "fr"
    title = "Des pages contiennent un lien vers une URL qui répond par un statut 4xx."
    fix = "Corrigez ou supprimez les liens, ou rétablissez la page."
    listed = await visitor.get(f"/analyses/{analysis.id}")
    assert f"Correction : {fix}" in listed.text
    assert (title in listed.text, about.title in listed.text) == (True, False)
    assert "The shop has no price." in listed.text
    assert f"{title} {fix}" in (await visitor.get(f"/pages/{page_id}")).text
    own_code = await visitor.get(f"/analyses/{analysis.id}?code=own_code")
    assert "Correction : Add {one}." in own_code.text


async def test_a_crawl_is_audited_on_its_own_page(shop: ServedController, visitor: PlainBrowser) -> None:
    asked = await shop.ask(method="POST", body=b'{"seeds": ["https://example.com/"]}')
    path = f"/crawls/{asked.json['id']}"
    early = await visitor.get(f"{path}/audit")
    assert "A crawl can be audited once it has ended or is paused." in early.text
    assert '<button class="primary">Audit</button>' not in early.html
    analysis = await completed_analysis(shop)
    path = f"/crawls/{analysis.crawl_id}"
    assert f'href="{path}/audit"' in (await visitor.get(path)).html
    links = FindingCount("links", "broken_link", Severity.ERROR, "Pages link nowhere.", "Mend them.", 2, 1)
    title = FindingCount("titles", "title_missing", Severity.ERROR, "It has no title.", "Write one.", 1, 1)
    page, other = "https://example.com/", "https://example.com/tea"
    found = Finding(
        "links", "broken_link", Severity.ERROR, page, 1, {"linked_from": [other] * 4, "hops": [{"url": page}]}
    )

    async def keep(tx: Tx) -> None:
        store = shop.app.audit.analyses.store
        await store.keep(tx, analysis, AnalyzerOutcome("links", None, 2, 1.0), [links], [found])
        nothing = Finding("titles", "title_missing", Severity.ERROR, other, 2, {})
        await store.keep(tx, analysis, AnalyzerOutcome("titles", None, 1, 1.0), [title], [nothing])

    await shop.app.database.run(keep)
    seen = await visitor.get(f"{path}/audit")
    assert "Pages link nowhere. 2 Mend them. It has no title. 1 Write one." in seen.text
    assert "Fix: Mend them. broken_link · 1 of 2 are stored" in seen.text, "the most serious code is chosen"
    assert f'href="{path}/page?url=https%3A%2F%2Fexample.com%2Ftea"' in seen.html
    assert "and 1 more" in seen.text
    assert "Fix: Write one." in (await visitor.get(f"{path}/audit?code=title_missing")).text
    table = (await visitor.get(f"/analyses/{analysis.id}/findings.csv?code=title_missing")).html.splitlines()
    assert table == ['"code","severity","page","evidence"', f'"title_missing","error","{other}","{{}}"']
    refused = await visitor.post("/analyses", {"crawl_id": analysis.crawl_id, "back": f"{path}/audit"})
    assert (refused.path, "cannot be analyzed" in refused.text) == (f"{path}/audit", True), refused.text


async def test_an_analysis_says_how_many_analyzers_were_skipped(shop: ServedController, visitor: PlainBrowser) -> None:
    analysis, store = await completed_analysis(shop), shop.app.audit.analyses.store

    async def keep(tx: Tx) -> None:
        for name, reason in (("links", None), ("headings", NO_DETAILS), ("images", NO_DETAILS), ("own", "No {price}.")):
            await store.keep(tx, analysis, AnalyzerOutcome(name, None, 0, 1.0, skipped=reason), [], [])

    await shop.app.database.run(keep)
    for path in (f"/analyses/{analysis.id}", f"/crawls/{analysis.crawl_id}/audit"):
        seen = await visitor.get(path)
        assert "Completed 3 of 4 analyzers skipped" in seen.text
        assert f"2 analyzers were skipped: headings, images. {NO_DETAILS}" in seen.text
        assert "1 analyzer was skipped: own. No {price}." in seen.text
        assert f'href="/crawls/new?analyze=yes&amp;from={analysis.crawl_id}"' in seen.html
    visitor.headers["Accept-Language"] = "fr"
    assert "relancez-le avec l'option analyze" in (await visitor.get(f"/analyses/{analysis.id}")).text


async def test_an_audit_of_a_paused_crawl_says_what_was_not_crawled(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    seeds = b'{"seeds": ["https://example.com/", "https://example.com/tea"]}'
    crawl_id = (await shop.ask(method="POST", body=seeds)).json["id"]
    path = f"/crawls/{crawl_id}/audit"
    assert "not crawled" not in (await visitor.get(path)).text
    await shop.app.crawls.pause(crawl_id)
    number, one_page = (await shop.app.crawls.get(crawl_id)).crawl.number, Counts(opened=1, settled=1, pages=1)
    await shop.app.database.run(lambda tx: shop.app.crawls.store.add_counts(tx, number, OUTSIDE, one_page))
    left = (await shop.app.crawls.get(crawl_id)).counts.queued
    shown = f"This crawl is paused, and {left} known URLs were not crawled."
    assert shown in (await visitor.get(path)).text
    await shop.app.audit.analyses.submit(crawl_id, AnalysisOptions())
    [analysis] = await shop.app.audit.analyses.newest()
    assert shown in (await visitor.get(path)).text
    assert shown in (await visitor.get(f"/analyses/{analysis.id}")).text


async def test_every_table_of_operators_is_a_file_with_the_fields_of_the_api(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    webhook = await shop.app.events.webhooks.make(NewWebhook(url="https://example.com/hook"))
    crawl = (await shop.ask(method="POST", body=b'{"seeds": ["https://example.com/"]}')).json["id"]
    [job] = (await shop.app.job_admin.newest(JobFilter(run_id=crawl))).items
    assert await shop.app.queue.lease_one(job.id, "crawler-1/7") is not None
    await shop.app.database.run(lambda tx: append_events(tx, Event("node.lost", "crawler-1", {})))
    await shop.app.chores.forwarder.run_once()
    await register(shop.app.fleet.nodes, "crawler-1")
    await shop.app.fleet.nodes.send("crawler-1", CommandRequest(command="pause"), "me")
    await visitor.sign_in(await shop.token("admin"))

    async def rows(path: str) -> list[dict[str, Any]]:
        file = await visitor.get(f"{path}.jsonl")
        table = await visitor.get(f"{path}.csv")
        found = [json.loads(line) for line in file.html.splitlines()]
        assert table.html.splitlines()[0] == ",".join(f'"{name}"' for name in found[0])
        return found

    assert [one["type"] for one in await rows("/events")] == ["node.lost"]
    assert [one["id"] for one in await rows("/webhooks")] == [webhook.id]
    assert "secret" not in (await rows("/webhooks"))[0]
    assert [one["state"] for one in await rows(f"/events/{webhook.id}/deliveries")] == ["waiting"]
    assert (await visitor.get(f"/events/{webhook.id}/deliveries.jsonl?state=dead")).html == ""
    assert [one["holder"] for one in await rows(f"/jobs/{job.id}/leases")] == ["crawler-1/7"]
    assert [one["job_id"] for one in await rows(f"/crawls/{crawl}/attempts")] == [job.id]
    assert [one["command"] for one in await rows("/fleet/crawler-1/commands")] == ["pause"]
    assert [one["name"] for one in await rows("/settings/tokens")] == ["test"]
    assert {"webhook.created", "token.created"} & {one["act"] for one in await rows("/settings/audit-log")}
    assert (await visitor.get(f"/events/{webhook.id[:-1]}/deliveries.csv")).status == 404
    reader = PlainBrowser(shop.port)
    await reader.sign_in(await shop.token("viewer"))
    assert (await reader.get("/settings/audit-log.csv")).status == 403


async def test_a_crawl_is_scheduled_with_its_options_but_not_its_secrets(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    options = {
        "seeds": ["https://example.com/"],
        "scope": "domain",
        "depth": None,
        "exclude": ["/a=b", "123"],
        "user_agent": "true",
        "headers": {"Authorization": "Bearer hunter2"},
        "tracking_params": [],
        "project": "shop",
        "priority": 70,
        "labels": {"team": "prices"},
    }
    crawl_id = (await shop.ask(method="POST", body=json.dumps(options).encode())).json["id"]
    path = f"/policies/new?crawl={crawl_id}"
    assert f'href="{path}"' in (await visitor.get(f"/crawls/{crawl_id}")).html
    form = await visitor.get(path)
    assert "Options with secrets were not copied: headers" in form.text
    assert "hunter2" not in form.html
    fields = {
        name: unescape(value) for name, value in re.findall(r'<textarea id="(\w+)"[^>]*>([^<]*)<', form.html) if value
    }
    fields |= dict(re.findall(r'<input type="\w+" id="(\w+)".*? value="([^"]*)"', form.html))
    made = await visitor.post("/policies/new", fields)
    assert "The policy was created." in made.text
    policy = (await shop.app.plan.policies.get(made.path.rpartition("/")[2])).form
    kept = {name: options[name] for name in ("scope", "depth", "exclude", "user_agent", "tracking_params")}
    assert policy.crawl_config == kept | {"speed": "normal"}
    assert (policy.seeds, policy.project, policy.priority_base) == (options["seeds"], "shop", 70)
    assert policy.labels == {"team": "prices"}
    assert '{"' not in made.text, "options are shown without JSON"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_pages", "write each option as name=value."),
        ("max_pages=1\nmax_pages=2", "Has max_pages twice; write it once."),
        ('{"max_pages"', "Is not JSON"),
        ("max_page=1", "max_page"),
    ],
)
async def test_options_that_cannot_be_read_are_a_sentence(visitor: PlainBrowser, text: str, problem: str) -> None:
    await visitor.get("/policies/new")
    form = {"seeds": "https://example.com/", "frequency": "6h", "crawl_config": text}
    refused = await visitor.post("/policies/new", form)
    assert (refused.status, problem in refused.text) == (422, True), refused.text


async def store_page(shop: ServedController, analysis: Analysis, url: str) -> str:
    """Store a page of the analyzed crawl; return its id."""
    crawl = (await shop.app.crawls.get(analysis.crawl_id)).crawl
    page = Page(url=url, depth=0, attempt=1, fetched_at=1, status=200)
    rows = [(*key_of(Url(url), crawl.key_seed), page)]
    await shop.app.database.run(lambda tx: PageStore().insert(tx, crawl.number, rows))
    [(number, _)] = await shop.app.database.read(lambda tx: PageStore().after(tx, crawl.number, 0, 1))
    return f"{crawl.id}~{number}"


async def test_findings_of_a_failed_analysis_come_with_what_was_not_checked(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    analysis = await completed_analysis(shop, audit_states.fail("attempts_exhausted", "speed failed"))
    path = f"/analyses/{analysis.id}"
    assert "Not checked:" not in (await visitor.get(path)).text
    counts = [FindingCount("links", "broken_link", Severity.ERROR, "Pages link nowhere.", "Mend them.", 2, 2)]
    store, outcome = shop.app.audit.analyses.store, AnalyzerOutcome("links", None, 2, 1.0)

    async def keep(tx: Tx) -> None:
        await store.keep(tx, analysis, outcome, counts, [])
        await store.conclude(tx, analysis, {"quarantined_urls": 268.0}, {}, None)

    await shop.app.database.run(keep)
    shown = "Not checked: links to other sites, pages in quarantine as a crawler trap (268), #fragments of links"
    assert shown in (await visitor.get(path)).text


async def completed_analysis(shop: ServedController, end: audit_states.AnalysisMove | None = None) -> Analysis:
    """Store an analysis that has ended, without findings yet."""
    asked = await shop.ask(method="POST", body=b'{"seeds": ["https://example.com/"], "start": false}')
    await shop.app.crawls.stop(asked.json["id"])
    crawl, store = (await shop.app.crawls.get(asked.json["id"])).crawl, shop.app.audit.analyses.store
    new = NewAnalysis(AnalysisId("anl_1"), crawl.number, crawl.id, "default", "https://example.com/", AnalysisOptions())

    async def write(tx: Tx) -> None:
        await store.insert(tx, new)
        for move in (audit_states.run(), end or audit_states.succeed()):
            assert await store.move(tx, new.id, move)

    await shop.app.database.run(write)
    return await shop.app.audit.analyses.get("anl_1")

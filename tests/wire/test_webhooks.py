"""Webhooks and events over HTTP."""

import asyncio
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Receiver

from shoal.events.event import Event, append_events
from tests.support.api import ServedApi
from tests.support.bad_http_server import bad_server, reply


async def ask(api: ServedApi, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    return await api.ask(path, body, method=method)


async def happen(api: ServedApi, kind: str) -> str:
    event = Event(kind, "crl_x", {"crawl_id": "crl_x"})
    await api.app.database.run(lambda tx: append_events(tx, event))
    return event.id


async def carry(api: ServedApi) -> None:
    courier = api.app.chores.courier
    await api.app.chores.forwarder.run_once()
    await courier.run_once()
    await courier.rest()
    await courier.close()


async def test_a_webhook_is_made_told_of_events_looked_at_changed_and_removed(api: ServedApi) -> None:
    async with bad_server() as server:
        server.answer("/hook", reply(204, b""))
        url = f"http://127.0.0.1:{server.port}/hook"
        status, made = await ask(api, "POST", "/api/v1/webhooks", {"url": url, "events": ["crawl.completed"]})
        assert (status, made["enabled"], made["secret"][:6]) == (201, True, "whsec_")
        here = f"/api/v1/webhooks/{made['id']}"
        event_id = await happen(api, "crawl.completed")
        await carry(api)
        assert [asked.headers["webhook-id"] for asked in server.asked] == [event_id]

        _, listed = await ask(api, "GET", "/api/v1/webhooks")
        assert [one["id"] for one in listed["items"]] == [made["id"]]
        assert "secret" not in listed["items"][0]
        _, seen = await ask(api, "GET", here)
        assert (seen["waiting"], seen["dead"]) == (0, 0)
        _, deliveries = await ask(api, "GET", f"{here}/deliveries")
        assert [one["state"] for one in deliveries["items"]] == ["delivered"]

        assert (await ask(api, "POST", f"{here}/replay", {"event_id": event_id}))[1] == {"replayed": 1}
        await carry(api)
        assert len(server.asked) == 2
        _, rotated = await ask(api, "POST", f"{here}/rotate")
        assert rotated["secret"] != made["secret"]
        assert (await ask(api, "PATCH", here, {"enabled": False}))[1]["reason"] == "asked"
        assert (await ask(api, "DELETE", here))[0] == 204
        assert (await ask(api, "GET", here))[0] == 404


async def test_a_test_event_is_signed_sent_once_and_leaves_no_trace_but_the_audit_log(api: ServedApi) -> None:
    async with bad_server() as server:
        server.answer("/hook", reply(204, b""))
        url = f"http://127.0.0.1:{server.port}/hook"
        _, made = await ask(api, "POST", "/api/v1/webhooks", {"url": url, "events": ["node.lost"]})
        here = f"/api/v1/webhooks/{made['id']}"
        await ask(api, "PATCH", here, {"enabled": False})
        status, tested = await ask(api, "POST", f"{here}/test")
        assert (status, tested["delivered"], tested["status"], tested["error"]) == (200, True, 204, None)
        [asked] = server.asked
        sent = Receiver(made["secret"]).verify(asked.body, asked.headers)
        assert (sent["type"], sent["subject"], sent["id"]) == ("webhook.test", made["id"], tested["event_id"])
        await carry(api)
        assert len(server.asked) == 1
        assert (await ask(api, "GET", f"{here}/deliveries"))[1]["items"] == []
        assert (await ask(api, "GET", "/api/v1/events"))[1]["items"] == []
        entries = await api.app.access.audit_log.newest(before=None, limit=1, subject=made["id"])
        assert [entry.action.name for entry in entries] == ["webhook.tested"]


async def test_a_test_event_that_is_not_accepted_says_why(api: ServedApi) -> None:
    async with bad_server() as server:
        server.answer("/hook", reply(410, b""))
        url = f"http://127.0.0.1:{server.port}/hook"
        _, made = await ask(api, "POST", "/api/v1/webhooks", {"url": url})
        here = f"/api/v1/webhooks/{made['id']}"
        status, tested = await ask(api, "POST", f"{here}/test")
        assert (status, tested["delivered"], tested["status"]) == (200, False, 410)
        assert tested["error"] == "the endpoint returned an error (410)"
    _, tested = await ask(api, "POST", f"{here}/test")
    assert (tested["status"], tested["error"]) == (None, "The server refused the connection.")
    seen = (await ask(api, "GET", here))[1]
    assert (seen["enabled"], seen["failing_since"]) == (True, None)
    assert (await ask(api, "POST", "/api/v1/webhooks/whk_none/test"))[0] == 404


async def test_a_webhook_that_is_asked_for_again_with_its_key_is_made_once(api: ServedApi) -> None:
    body, key = {"url": "https://core.example/"}, {"Idempotency-Key": "k"}
    answers = await asyncio.gather(*[api.send("POST", "/api/v1/webhooks", body, key) for _ in range(10)])
    answers.append(await api.send("POST", "/api/v1/webhooks", body, key))
    assert {one.status for one in answers} == {201}
    assert len({one.body for one in answers}) == 1
    assert len((await api.ask("/api/v1/webhooks"))[1]["items"]) == 1


async def test_events_are_read_by_a_cursor_that_misses_none(api: ServedApi) -> None:
    ids = [await happen(api, "crawl.started") for _ in range(3)]
    await carry(api)
    _, first = await ask(api, "GET", "/api/v1/events?limit=2")
    _, second = await ask(api, "GET", f"/api/v1/events?after={first['next']}")
    assert sorted(one["id"] for one in first["items"] + second["items"]) == sorted(ids)
    _, third = await ask(api, "GET", f"/api/v1/events?after={second['next']}")
    assert (third["items"], third["next"]) == ([], second["next"])


async def test_events_after_the_largest_number_there_is_are_none(api: ServedApi) -> None:
    largest = 2**63 - 1
    assert await ask(api, "GET", f"/api/v1/events?after={largest}") == (200, {"items": [], "next": largest})
    status, problem = await ask(api, "GET", f"/api/v1/events?after={largest + 1}")
    assert (status, problem["detail"]) == (
        422,
        f"after cannot be '{largest + 1}'; give a whole number from 0 to {largest}.",
    )


async def test_an_empty_address_changes_no_webhook(api: ServedApi) -> None:
    _, made = await ask(api, "POST", "/api/v1/webhooks", {"url": "https://example.org/"})
    path = f"/api/v1/webhooks/{made['id']}"
    status, problem = await ask(api, "PATCH", path, {"url": ""})
    assert (status, problem["field"]) == (422, "url")
    assert (await ask(api, "PATCH", path, {"url": None, "events": []}))[1]["url"] == "https://example.org/"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"url": "http://10.0.0.1/hook"}, "url has an address or port that is not allowed (SSRF protection)"),
        ({"url": "file:///etc/passwd"}, "url"),
        ({"url": "https://example.org/", "events": ["page.done"]}, "is not an event type"),
        ({"url": "https://example.org/", "secret": "x"}, "is not a secret"),
        ({"url": "https://example.org/", "secret": ""}, "is not a secret"),
        ({"url": ""}, "url is not an absolute http or https URL; use an http or https URL."),
        ({}, "url is missing"),
    ],
)
async def test_a_bad_webhook_is_refused_and_nothing_is_stored(api: ServedApi, body: dict[str, Any], says: str) -> None:
    status, problem = await ask(api, "POST", "/api/v1/webhooks", body)
    assert status == 422
    assert says in problem["detail"]
    assert (await ask(api, "GET", "/api/v1/webhooks"))[1] == {"items": []}


async def test_a_replay_needs_an_event_or_a_time(api: ServedApi) -> None:
    _, made = await ask(api, "POST", "/api/v1/webhooks", {"url": "https://example.org/"})
    for body in ({}, {"since": "2026-01-01T00:00:00Z"}, {"event_id": "evt_x", "since": "2026-01-01T00:00:00Z"}):
        status, problem = await ask(api, "POST", f"/api/v1/webhooks/{made['id']}/replay", body)
        assert (status, problem["code"]) == (422, "invalid_input")

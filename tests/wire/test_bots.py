"""The bot API over HTTP: pull, heartbeat, results; who owns what, and what is refused."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import orjson
import pytest

from shoal.base.signals import Signal
from shoal.observe.metrics import Metrics
from shoal.page_jobs.bots import BotPulled, Bots, Pull
from shoal.page_jobs.leasing import PageTask
from shoal.queue.states import JobState
from tests.support.api import ServedApi, served_api
from tests.support.controller import ME, served_controller
from tests.support.http_client import HttpAnswer
from tests.support.page_jobs import add_page_jobs
from tests.support.refused_results import accept_results, refuse_all_results

RULES = {"fields": {"name": {"css": "h1", "required": True}}}
SECRETS = {"policy": "pol_1", "labels": {"tenant": "acme"}, "project": "acme", "priority": {"importance": 50.0}}
FREE = {"SHOAL_PAGE_SPEED": "max"}


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[ServedApi]:
    async with served_api(store_url, **FREE) as api:
        yield api


@pytest.fixture
async def lite(sqlite_url: str) -> AsyncIterator[ServedApi]:
    """Yield an API with a SQLite store, for tests that do not depend on the kind of store."""
    async with served_api(sqlite_url, **FREE) as api:
        yield api


async def pull(api: ServedApi, **more: Any) -> list[dict[str, Any]]:
    status, answer = await api.ask("/bot/v1/jobs/pull", {"bot_id": "b1", **more})
    assert status == 200, answer
    jobs: list[dict[str, Any]] = answer["jobs"]
    return jobs


def success(job: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"epoch": job["lease"]["epoch"], "status": "success", "data": {"name": "Anchor"}, **more}


async def push(api: ServedApi, job: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
    return await api.ask(f"/bot/v1/jobs/{job['job_id']}/result", body)


async def state(api: Any, job_id: str) -> JobState:
    return (await api.app.job_admin.get(job_id)).state  # type: ignore[no-any-return]


async def test_a_job_is_pulled_kept_alive_and_answered(api: ServedApi) -> None:
    config = {"proxy": "eu"}
    [job_id] = await add_page_jobs(api.app, payload={"rule_set": RULES, "crawl_config": config, **SECRETS}, priority=70)
    [job] = await pull(api)
    assert job == {
        "job_id": job_id,
        "url": "https://a.example/1",
        "priority": 70,
        "crawl_config": {"headers": {}, "js_required": False, "timeout_hint": None, "proxy": "eu"},
        "rule_set": RULES,
        "lease": {"epoch": 1, "ttl_seconds": 600.0},
    }, "and nothing of policy, project or labels"
    _, locked = await api.ask(f"/api/v1/jobs/{job_id}")
    assert (locked["state"], locked["locked_by"]) == ("locked", "bot/local/b1")
    assert locked["locked_at"] < locked["lease_until"]
    assert await api.ask(f"/bot/v1/jobs/{job_id}/heartbeat", {"epoch": 1}) == (
        200,
        {"ttl_seconds": 600.0, "cancelled": False},
    )
    assert await push(api, job, success(job)) == (200, {"job_id": job_id, "state": "DONE"})
    _, done = await api.ask(f"/api/v1/jobs/{job_id}")
    assert (done["state"], done["locked_by"], done["locked_at"]) == ("done", None, None)


async def test_an_empty_pull_is_not_an_error(api: ServedApi) -> None:
    assert await pull(api) == []


async def test_a_pull_gets_what_it_can_do_and_js_does_not_include_http(api: ServedApi) -> None:
    await add_page_jobs(api.app, "https://a.example/http")
    await add_page_jobs(api.app, "https://b.example/js", capability="js")
    await add_page_jobs(api.app, "https://c.example/special", capability="special")
    assert [job["url"] for job in await pull(api, capabilities=["js"], max=10)] == ["https://b.example/js"]
    rest = await pull(api, capabilities=["http", "special"], max=10)
    assert {job["url"] for job in rest} == {"https://a.example/http", "https://c.example/special"}


async def test_the_same_result_sent_twice_gets_the_same_answer_and_one_event(api: ServedApi) -> None:
    [job_id] = await add_page_jobs(api.app)
    [job] = await pull(api)
    for _ in range(3):
        assert await push(api, job, success(job)) == (200, {"job_id": job_id, "state": "DONE"})
    status, problem = await push(api, job, success(job, data={"name": "Another"}))
    assert (status, problem["code"]) == (409, "lease_lost")
    assert len(await outbox(api)) == 1


async def test_a_bot_is_not_told_to_discard_a_result_that_cannot_be_stored_now(api: ServedApi, store_url: str) -> None:
    [job_id] = await add_page_jobs(api.app)
    [job] = await pull(api)
    await refuse_all_results(store_url)
    for path, body in (
        (f"jobs/{job_id}/result", success(job)),
        ("results", {"results": [{**success(job), "job_id": job_id}]}),
    ):
        status, problem = await api.ask(f"/bot/v1/{path}", body)
        assert (status, problem["code"]) == (500, "unexpected")
    assert await state(api, job_id) is JobState.LOCKED
    await accept_results(store_url)
    assert await push(api, job, success(job)) == (200, {"job_id": job_id, "state": "DONE"})


async def test_a_failed_result_is_retried_as_the_server_decides_and_then_reported(api: ServedApi) -> None:
    [job_id] = await add_page_jobs(api.app, payload=SECRETS, max_attempts=1)
    [job] = await pull(api)
    failed = {"epoch": 1, "status": "fail", "meta": {"error": {"code": "timeout", "message": "No answer."}}}
    assert await push(api, job, failed) == (200, {"job_id": job_id, "state": "FAILED"})
    [event] = await outbox(api)
    assert event["meta"]["error"] == {"code": "timeout", "message": "No answer."}
    assert (event["url"], event["policy"], event["labels"]) == ("https://a.example/1", "pol_1", {"tenant": "acme"})


async def test_a_failed_job_that_has_tries_left_is_pending_again(api: ServedApi) -> None:
    [job_id] = await add_page_jobs(api.app, max_attempts=2)
    [job] = await pull(api)
    pushed = await push(api, job, {"epoch": 1, "status": "fail", "meta": {"error": "no answer"}})
    assert pushed == (200, {"job_id": job_id, "state": "PENDING"})


async def test_a_success_without_a_required_field_counts_as_a_fail(api: ServedApi) -> None:
    await add_page_jobs(api.app, payload={"rule_set": RULES}, max_attempts=1)
    [job] = await pull(api)
    _, answer = await push(api, job, success(job, data={"price": 3}))
    assert answer["state"] == "FAILED"
    assert (await outbox(api))[0]["meta"]["error"]["code"] == "invalid_data"


@pytest.mark.parametrize("data", [{"a": [1, {"b": None}]}, "<html>raw</html>", ["a", "b"], None, "", {"x": "\x00"}])
async def test_data_may_be_an_object_or_raw_text(api: ServedApi, data: Any) -> None:
    await add_page_jobs(api.app)
    [job] = await pull(api)
    assert (await push(api, job, success(job, data=data)))[0] == 200
    assert (await outbox(api))[0]["data"] == data


async def test_a_batch_has_a_status_for_each_item(api: ServedApi) -> None:
    await add_page_jobs(api.app, *[f"https://{letter}.example/" for letter in "abc"])
    jobs = await pull(api, max=10)
    assert len(jobs) == 3
    items = [{"job_id": job["job_id"], **success(job)} for job in jobs]
    items[1]["epoch"] = 7
    items.append({"job_id": "job_nobody", **success(jobs[0])})
    items[0]["data"]["name"] = "An\x00chor"
    status, answer = await api.ask("/bot/v1/results", {"results": items})
    assert status == 200
    assert [one["status"] for one in answer["results"]] == [200, 409, 200, 409]
    assert [one.get("code") for one in answer["results"]] == [None, "lease_lost", None, "lease_lost"]
    assert answer["results"][0]["state"] == "DONE"


async def test_late_foreign_and_unknown_get_the_same_answer_and_change_nothing(store_url: str) -> None:
    async with served_controller(store_url, SHOAL_PAGE_SPEED="max") as shop:
        ours, theirs = await shop.token("bot"), await shop.token("bot")
        [job_id] = await add_page_jobs(shop.app)

        async def ask(token: str, path: str, body: dict[str, Any]) -> HttpAnswer:
            return await shop.ask(path, token, method="POST", body=orjson.dumps(body))

        pulled = (await ask(ours, "/bot/v1/jobs/pull", {"bot_id": "b1"})).json["jobs"]
        assert [job["job_id"] for job in pulled] == [job_id]
        before = await shop.app.job_admin.get(job_id)
        tries = [
            (theirs, job_id, 1),  # another bot's
            (ours, job_id, 0),
            (ours, job_id, 2),
            (ours, job_id, -1),
            (ours, job_id, 2**63 - 1),
            (ours, "job_nobody", 1),
            (theirs, "job_nobody", 1),
        ]
        for token, name, epoch in tries:
            bodies: dict[str, dict[str, Any]] = {
                "result": {"epoch": epoch, "status": "success"},
                "heartbeat": {"epoch": epoch},
            }
            for verb, body in bodies.items():
                answer = await ask(token, f"/bot/v1/jobs/{name}/{verb}", body)
                said = answer.json
                assert answer.status == 409
                assert set(said) == {"type", "title", "status", "code", "detail", "job_id", "epoch"}
                assert (said["code"], said["job_id"], said["epoch"]) == ("lease_lost", name, epoch)
                worded = said["detail"].replace(name, "ID").replace(f"epoch {epoch}", "epoch N")
                assert worded == 'job "ID" is no longer leased with epoch N; discard this work.'
        after = await shop.app.job_admin.get(job_id)
        assert (after.state, after.lease_until, after.lease_epoch) == (before.state, before.lease_until, 1)
        assert (await ask(ours, f"/bot/v1/jobs/{job_id}/result", {"epoch": 1, "status": "success"})).status == 200


@pytest.mark.parametrize("epoch", [None, "1", 1.5, 2**63, -(2**64), 10**30])
async def test_an_epoch_that_can_be_none_is_refused_by_its_name(lite: ServedApi, epoch: Any) -> None:
    await add_page_jobs(lite.app)
    [job] = await pull(lite)
    status, problem = await push(lite, job, success(job, epoch=epoch))
    assert (status, problem["field"]) == (422, "epoch")
    assert await state(lite, job["job_id"]) is JobState.LOCKED


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "bot_id"),
        ({"bot_id": ""}, "bot_id"),
        ({"bot_id": "a/b"}, "bot_id"),
        ({"bot_id": "b\x00"}, "bot_id"),
        ({"bot_id": "b", "max": 0}, "max"),
        ({"bot_id": "b", "max": -1}, "max"),
        ({"bot_id": "b", "max": 10**9}, "max"),
        ({"bot_id": "b", "max": "5"}, "max"),
        ({"bot_id": "b", "wait_seconds": -1}, "wait_seconds"),
        ({"bot_id": "b", "wait_seconds": 31}, "wait_seconds"),
        ({"bot_id": "b", "capabilities": []}, "capabilities"),
        ({"bot_id": "b", "capabilities": ["fly"]}, "capabilities[0]"),
        ({"bot_id": "b", "tenant": "acme"}, "tenant"),
    ],
)
async def test_a_pull_that_cannot_be_taken_is_refused_by_its_field(
    lite: ServedApi, body: dict[str, Any], field: str
) -> None:
    [job_id] = await add_page_jobs(lite.app)
    status, problem = await lite.ask("/bot/v1/jobs/pull", body)
    assert (status, problem["code"]) == (422, "invalid_input")
    assert problem["field"].startswith(field)
    assert await state(lite, job_id) is JobState.PENDING


async def test_a_capability_that_there_is_not_is_refused_with_those_that_there_are(lite: ServedApi) -> None:
    _, problem = await lite.ask("/bot/v1/jobs/pull", {"bot_id": "b", "capabilities": ["http", "fly"]})
    assert problem["detail"] == "capabilities[1] is not an allowed value; give http, js or special."


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"state": "done"}, "state"),
        ({"lease_epoch": 9}, "lease_epoch"),
        ({"status": "ok"}, "status"),
        ({"data": 7}, "data"),
        ({"meta": {"crawl_duration": -1}}, "meta.crawl_duration"),
        ({"meta": {"crawl_duration": "fast"}}, "meta.crawl_duration"),
        ({"meta": {"node": "x"}}, "meta"),
        ({"meta": {"error": "no"}}, "meta.error"),
        ({"meta": {"html_hash": "x" * 201}}, "meta.html_hash"),
        ({"meta": 5}, "meta"),
        ({"meta": {"html_hash": "a\x00"}}, "meta"),
        ({"status": "fail", "meta": {"error": {"code": "a\x00"}}}, "meta"),
    ],
)
async def test_a_result_that_cannot_be_taken_is_refused_by_its_field(
    lite: ServedApi, more: dict[str, Any], field: str
) -> None:
    await add_page_jobs(lite.app)
    [job] = await pull(lite)
    status, problem = await push(lite, job, success(job, **more))
    assert (status, problem["code"], problem["field"]) == (422, "invalid_input", field)
    item = {"job_id": job["job_id"], **success(job, **more)}
    good = {"job_id": job["job_id"], **success(job)}
    status, problem = await lite.ask("/bot/v1/results", {"results": [good, item]})
    assert status == 422
    assert problem["field"].startswith("results[1]")
    assert await state(lite, job["job_id"]) is JobState.LOCKED, "nothing of the batch was taken"


async def test_a_result_of_fifty_megabytes_is_refused(lite: ServedApi) -> None:
    await add_page_jobs(lite.app)
    [job] = await pull(lite)
    path = f"/bot/v1/jobs/{job['job_id']}/result"
    status, problem = await lite.ask(path, success(job, data="x" * 50_000_000))
    assert (status, problem["code"]) == (413, "too_large")
    assert "SHOAL_MAX_RESULT" in problem["detail"]
    assert await state(lite, job["job_id"]) is JobState.LOCKED


@pytest.mark.parametrize("depth", [100, 800, 990, 5000])
async def test_data_nested_without_end_is_taken_or_refused_in_words(lite: ServedApi, depth: int) -> None:
    await add_page_jobs(lite.app)
    [job] = await pull(lite)
    raw = b'{"epoch": 1, "status": "success", "data": ' + b"[" * depth + b"]" * depth + b"}"
    answer = await lite.send("POST", f"/bot/v1/jobs/{job['job_id']}/result", raw=raw)
    assert answer.status in (200, 422), answer.body


async def test_a_bots_token_opens_nothing_else_and_no_other_token_opens_this(sqlite_url: str) -> None:
    async with served_controller(sqlite_url) as shop:
        bot, admin = await shop.token("bot"), await shop.token("admin")
        body = orjson.dumps({"bot_id": "b"})
        assert (await shop.ask("/bot/v1/jobs/pull", bot, method="POST", body=body)).status == 200
        assert (await shop.ask("/bot/v1/jobs/pull", admin, method="POST", body=body)).status == 403
        assert (await shop.ask("/bot/v1/jobs/pull", method="POST", body=body)).status == 401
        for path in ("/api/v1/jobs", "/api/v1/policies", "/api/v1/crawls", "/api/v1/events"):
            assert (await shop.ask(path, bot)).status == 403


async def test_a_revoked_token_takes_no_job_brings_no_result_and_holds_nothing(store_url: str) -> None:
    async with served_controller(store_url, SHOAL_PAGE_SPEED="max") as shop:
        token = await shop.token("bot", expires_in="1h")
        await add_page_jobs(shop.app)
        body = orjson.dumps({"bot_id": "b"})
        [job] = (await shop.ask("/bot/v1/jobs/pull", token, method="POST", body=body)).json["jobs"]
        name = token.split("_")[1]
        await shop.app.access.tokens.revoke(f"tok_{name}", ME)
        released = await shop.app.job_admin.get(job["job_id"])
        assert (released.state, released.state_reason) == (JobState.PENDING, "token_revoked")
        assert (released.attempts, released.crash_count) == (0, 0)
        path = f"/bot/v1/jobs/{job['job_id']}/result"

        async def refused() -> bool:
            answer = await shop.ask(path, token, method="POST", body=orjson.dumps({"epoch": 9, "status": "success"}))
            return answer.status == 401

        async with asyncio.timeout(60):
            while not await refused():
                await shop.app.clock.sleep(0.2)
        other = await shop.token("bot")
        [again] = (await shop.ask("/bot/v1/jobs/pull", other, method="POST", body=body)).json["jobs"]
        assert again["job_id"] == job["job_id"]


async def test_a_token_that_is_revoked_while_its_bot_pulls_gets_no_job(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served_controller(store_url, SHOAL_PAGE_SPEED="max") as shop:
        token = await shop.token("bot")
        [job_id] = await add_page_jobs(shop.app)
        lease = Bots._lease

        async def revoke_and_lease(bots: Bots, pull: Pull) -> list[PageTask]:
            """The token was verified before, and the revocation has nothing to release yet."""
            await shop.app.access.tokens.revoke(f"tok_{token.split('_')[1]}", ME)
            return await lease(bots, pull)

        monkeypatch.setattr(Bots, "_lease", revoke_and_lease)
        answer = await shop.ask("/bot/v1/jobs/pull", token, method="POST", body=orjson.dumps({"bot_id": "b"}))
        assert answer.status == 401
        assert await state(shop, job_id) is JobState.PENDING


async def test_a_token_that_is_revoked_while_its_bot_waits_gets_no_job(sqlite_url: str) -> None:
    async with served_controller(sqlite_url, SHOAL_PAGE_SPEED="max") as shop:
        token = await shop.token("bot")
        body = orjson.dumps({"bot_id": "b", "wait_seconds": 20})
        waiting = asyncio.create_task(shop.ask("/bot/v1/jobs/pull", token, method="POST", body=body))
        await until_waiting(shop)
        await shop.app.access.tokens.revoke(f"tok_{token.split('_')[1]}", ME)
        [job_id] = await add_page_jobs(shop.app)
        async with asyncio.timeout(60):
            assert (await waiting).status == 401
        assert await state(shop, job_id) is JobState.PENDING


async def test_a_token_may_hold_only_so_many_jobs(store_url: str) -> None:
    async with served_api(store_url, **FREE, SHOAL_BOT_JOBS="3") as api:
        await add_page_jobs(api.app, *[f"https://h{number}.example/" for number in range(5)])
        assert len(await pull(api, max=2)) == 2
        [last] = await pull(api, max=2)
        answer = await api.send("POST", "/bot/v1/jobs/pull", {"bot_id": "b2"})
        assert (answer.status, answer.json["code"]) == (429, "rate_limited")
        assert answer.headers["retry-after"] == "1"
        await push(api, last, success(last))
        assert len(await pull(api, max=2)) == 1


async def test_a_token_may_pull_only_so_often(lite: ServedApi, sqlite_url: str) -> None:
    async with served_api(sqlite_url, SHOAL_BOT_PULLS="1") as api:
        statuses = [(await api.ask("/bot/v1/jobs/pull", {"bot_id": "b"}))[0] for _ in range(10)]
        assert 429 in statuses
        assert set(statuses) <= {200, 429}


async def test_a_pull_waits_for_a_job_to_come(api: ServedApi) -> None:
    waiting = asyncio.create_task(pull(api, wait_seconds=20))
    await until_waiting(api)
    [job_id] = await add_page_jobs(api.app)
    async with asyncio.timeout(60):
        assert [job["job_id"] for job in await waiting] == [job_id]


async def test_a_pull_that_waits_in_vain_is_empty(lite: ServedApi) -> None:
    assert await pull(lite, wait_seconds=0.1) == []


async def test_a_bot_that_leaves_while_it_waits_gets_nothing(api: ServedApi) -> None:
    body = orjson.dumps({"bot_id": "gone", "wait_seconds": 20})
    head = f"POST /bot/v1/jobs/pull HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(head + body)
    await until_waiting(api)
    writer.close()
    await writer.wait_closed()
    await until_nobody_waits(api)
    [job_id] = await add_page_jobs(api.app)
    assert [job["job_id"] for job in await pull(api, wait_seconds=2)] == [job_id]
    held = await api.app.database.read(lambda tx: api.app.queue.jobs.held_by_owner(tx, "bot/local/gone"))
    assert held == 0


async def test_one_job_for_many_idle_bots_costs_the_store_few_looks(sqlite_url: str) -> None:
    async with served_api(sqlite_url, **FREE) as api:
        asked: list[str] = []
        told: list[Signal] = []
        api.app.signals.subscribe(told.append)
        lease = api.app.queue.finish_and_lease_in

        async def counted(*args: Any, **more: Any) -> Any:
            asked.append("lease")
            return await lease(*args, **more)

        api.app.queue.finish_and_lease_in = counted  # type: ignore[method-assign]
        idle_bots = [asyncio.create_task(idle(api)) for _ in range(300)]
        await until_waiting(api, 300)
        asked.clear()
        await add_page_jobs(api.app)
        async with asyncio.timeout(60):
            done, _ = await asyncio.wait(idle_bots, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        assert [signal.jobs for signal in told if isinstance(signal, BotPulled)] == [1]
        assert len(asked) < 20, "not one look for each of those who wait"
        for task in idle_bots:
            task.cancel()
        await asyncio.gather(*idle_bots, return_exceptions=True)


async def idle(api: ServedApi) -> bytes:
    body = orjson.dumps({"bot_id": "idle", "wait_seconds": 25})
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    try:
        writer.write(
            f"POST /bot/v1/jobs/pull HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        return await reader.readline()
    finally:
        writer.close()


async def until_waiting(api: ServedApi, count: int = 1) -> None:
    async with asyncio.timeout(60):
        while api.app.page_jobs.long_poll.waiting < count:
            await api.app.clock.sleep(0.01)


async def until_nobody_waits(api: ServedApi) -> None:
    async with asyncio.timeout(60):
        while api.app.page_jobs.long_poll.waiting:
            await api.app.clock.sleep(0.01)


async def test_a_pull_hands_out_only_jobs_whose_host_may_be_asked_now(store_url: str) -> None:
    async with served_api(store_url, SHOAL_PAGE_SPEED="slow") as api:
        ids = await add_page_jobs(
            api.app, *[f"https://a.example/{number}" for number in range(4)], "https://b.example/"
        )
        jobs = await pull(api, max=10)
        assert sorted(job["url"] for job in jobs) == ["https://a.example/0", "https://b.example/"]
        waiting = [await api.app.job_admin.get(job_id) for job_id in ids[1:4]]
        assert [(job.lease_epoch, job.attempts) for job in waiting] == [(0, 0)] * 3
        assert [await api.app.job_admin.history(job_id) for job_id in ids[1:4]] == [[]] * 3, (
            "they were not leased at all"
        )


async def test_the_jobs_of_a_group_reach_bots_with_what_their_group_says(api: ServedApi) -> None:
    _, group = await api.ask(
        "/api/v1/jobs",
        {"urls": ["https://a.example/1"], "rule_set": RULES, "labels": {"team": "a"}, "project": "acme"},
    )
    [job] = await pull(api)
    assert (job["rule_set"], "labels" in job, "project" in job) == (RULES, False, False)
    await push(api, job, success(job))
    _, seen = await api.ask(f"/api/v1/groups/{group['id']}")
    assert seen["state"] == "completed"
    event = next(one for one in await outbox(api) if one.get("job_id") == job["job_id"])
    assert (event["labels"], event["group"]) == ({"team": "a"}, group["id"])


async def test_a_cancelled_job_is_reported_by_the_heartbeat_and_its_result_refused(api: ServedApi) -> None:
    [job_id] = await add_page_jobs(api.app)
    [job] = await pull(api)
    await api.ask(f"/api/v1/jobs/{job_id}/cancel", method="POST")
    _, beat = await api.ask(f"/bot/v1/jobs/{job_id}/heartbeat", {"epoch": 1})
    assert beat["cancelled"]
    assert (await push(api, job, success(job)))[0] == 409


@pytest.mark.parametrize("lock", ["0s", "-1s", "4s", "25h", "1000000000s", "4", 60, None])
async def test_a_lock_outside_of_five_seconds_to_a_day_is_refused(lite: ServedApi, lock: Any) -> None:
    body = {"url": "https://a.example/", "frequency": "1h", "lock_ttl": lock}
    status, problem = await lite.ask("/api/v1/policies", body)
    assert (status, problem["field"]) == (422, "lock_ttl")


async def test_the_mistakes_of_a_bot_are_counted_under_its_name(api: ServedApi) -> None:
    hourly_stats = api.app.chores.hourly_stats
    await add_page_jobs(
        api.app, "https://a.example/1", "https://b.example/2", max_attempts=1, payload={"rule_set": RULES}
    )
    first, second = await pull(api, max=2)
    beat = {"epoch": first["lease"]["epoch"]}
    assert (await api.ask(f"/bot/v1/jobs/{first['job_id']}/heartbeat", beat))[0] == 200
    assert (await push(api, first, success(first, data={"price": 3})))[0] == 200
    for _ in range(2):  # the second time, it is the same result: that is allowed
        assert (await push(api, second, success(second)))[0] == 200
    assert (await push(api, second, success(second, data={"name": "Other"})))[0] == 409
    assert (await api.ask(f"/bot/v1/jobs/{first['job_id']}/heartbeat", beat))[0] == 409
    assert (await push(api, {"job_id": "job_nobody"}, success(second)))[0] == 409
    await hourly_stats.run_once()
    seen = {bot["bot_id"]: bot for bot in (await api.ask("/api/v1/stats"))[1]["bots"]}
    names = ("pulled", "results", "failures", "invalid_data", "late_results", "heartbeats", "late_heartbeats")
    assert [seen["b1"][name] for name in names] == [2, 2, 0, 1, 2, 1, 1]
    assert list(seen) == ["b1"]
    await pull(api, bot_id="b2")
    assert (await push(api, {"job_id": "job_nobody"}, success(second)))[0] == 409
    await hourly_stats.run_once()
    seen = {bot["bot_id"]: bot for bot in (await api.ask("/api/v1/stats"))[1]["bots"]}
    assert {name: bot["late_results"] for name, bot in seen.items()} == {"b1": 2, "b2": 0, "": 1}  # by either of them


async def test_a_lease_that_a_bot_lets_expire_is_counted_by_its_name(lite: ServedApi, sqlite_url: str) -> None:
    hourly_stats = lite.app.chores.hourly_stats
    await add_page_jobs(lite.app)
    await pull(lite)
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file, file:
        file.execute("UPDATE job SET lease_until = 1")
    lost = await lite.app.queue.recovery.expired(10, bots=True)
    assert await lite.app.queue.recovery.expire(lost) == 1
    await hourly_stats.run_once()
    [bot] = (await lite.ask("/api/v1/stats"))[1]["bots"]
    assert (bot["bot_id"], bot["pulled"], bot["lost_leases"]) == ("b1", 1, 1)


async def outbox(api: ServedApi) -> list[dict[str, Any]]:
    """Return the data of all events, in order."""
    await api.app.chores.forwarder.run_once()
    _, answer = await api.ask("/api/v1/events")
    return [one["data"] for one in answer["items"]]


async def test_stats_and_metrics_count_the_work_of_bots_alike(lite: ServedApi) -> None:
    metrics, hourly_stats = Metrics(), lite.app.chores.hourly_stats
    lite.app.signals.subscribe(metrics.listen)
    await add_page_jobs(lite.app, "https://a.example/1", "https://b.example/2", max_attempts=1)
    await add_page_jobs(lite.app, "https://c.example/3", max_attempts=2)
    ends: dict[str, Any] = {
        "https://a.example/1": {"status": "success", "data": {}, "meta": {"crawl_duration": 3.0}},
        "https://b.example/2": {"status": "fail", "meta": {"crawl_duration": 1.0, "error": "no answer"}},
        "https://c.example/3": {"status": "fail", "meta": {"error": "no answer"}},
    }
    for job in await pull(lite, max=3):
        assert (await push(lite, job, {"epoch": job["lease"]["epoch"], **ends[job["url"]]}))[0] == 200
    await pull(lite, bot_id="b2")
    await hourly_stats.run_once()
    _, stats = await lite.ask("/api/v1/stats?kind=page")
    [hour] = stats["hours"]
    del hour["hour"]
    assert hour == {
        "created": 3,
        "done": 1,
        "failed": 1,
        "expired": 0,
        "retried": 1,
        "lost": 0,
        "retry_rate": 0.3333,
        "average_seconds": 2.0,
        "bots": 2,
    }
    assert sorted((bot["bot_id"], bot["pulled"]) for bot in stats["bots"]) == [("b1", 3), ("b2", 0)]

    def counted(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"shoal_{name}_total", labels)

    page = {"kind": "page"}
    assert [counted(f"jobs_{name}", **page) for name in ("created", "done", "failed", "retried")] == [3, 1, 1, 1]
    assert [counted(name, **page) for name in ("results", "results_timed", "result_seconds")] == [3, 2, 4]
    assert [counted("bot_pulls"), counted("bot_jobs")] == [2, 3]

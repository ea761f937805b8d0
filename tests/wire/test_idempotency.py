"""`Idempotency-Key`: a repeated request does not create a second crawl, at any time and on any controller."""

import asyncio
from datetime import timedelta

import pytest

from shoal.access.idempotency import KEPT, Idempotency, IdempotencyKey
from shoal.access.token import LOCAL
from shoal.app import opened
from shoal.base.clock import span
from shoal.page_jobs.spec import GroupConfig
from tests.support.api import ServedApi, listening
from tests.support.http_client import HttpAnswer

CRAWLS, JOBS = "/api/v1/crawls", "/api/v1/jobs"
BODY = {"seeds": ["http://127.0.0.1:9/"]}


async def make(api: ServedApi, key: str, **config: object) -> HttpAnswer:
    return await api.send("POST", CRAWLS, BODY | config, {"Idempotency-Key": key})


async def count(api: ServedApi) -> int:
    return len((await api.ask(CRAWLS))[1]["items"])


async def test_a_repeat_gets_the_first_answer(api: ServedApi) -> None:
    first = await make(api, "k")
    await api.ask(f"{CRAWLS}/{first.json['id']}/stop", method="POST")
    again = await make(api, "k")
    assert (again.status, again.body, again.headers["location"]) == (202, first.body, first.headers["location"])
    assert await count(api) == 1


async def test_twenty_at_once_on_two_controllers_make_one_crawl(api: ServedApi) -> None:
    async with opened(api.app.settings) as app, listening(app) as other:
        answers = await asyncio.gather(*[make(one, "k") for one in (api, other) for _ in range(10)])
    assert {answered.status for answered in answers} == {202}
    assert len({answered.body for answered in answers}) == 1
    assert await count(api) == 1


async def test_another_body_with_the_same_key_is_refused(api: ServedApi) -> None:
    await make(api, "k")
    answered = await make(api, "k", depth=1)
    assert (answered.status, answered.json["field"]) == (422, "Idempotency-Key")
    assert await count(api) == 1


async def test_the_same_body_in_other_words_is_the_same(api: ServedApi) -> None:
    first = await make(api, "k")
    assert (await make(api, "k", depth=None)).body == first.body


async def test_a_key_whose_request_was_refused_is_free_again(api: ServedApi) -> None:
    assert (await make(api, "k", seeds=["nonsense"])).status == 422
    assert (await make(api, "k")).status == 202


async def test_a_repeated_request_after_a_crash_creates_what_the_first_one_began(api: ServedApi) -> None:
    """The crawl was stored, the answer was not: as after a kill between the two commits."""
    first = await make(api, "k")
    await api.app.database.run(forget_answer)
    again = await make(api, "k")
    assert again.json["id"] == first.json["id"]
    assert await count(api) == 1


async def test_a_repeat_after_a_death_in_the_middle_finds_the_group_that_it_named(api: ServedApi) -> None:
    body, key = {"urls": ["https://a.example/"], "group": "monday"}, {"Idempotency-Key": "k"}
    config = GroupConfig.read(body)
    await Idempotency(api.app.database).begin(IdempotencyKey(LOCAL, f"POST {JOBS}", "k"), config.text(), "grp_1")
    await api.app.page_jobs.groups.make(config)
    again = await api.send("POST", JOBS, body, key)
    assert (again.status, again.json["id"], again.json["jobs"]) == (202, "monday", {"pending": 1})
    assert (await api.send("POST", JOBS, body, {"Idempotency-Key": "another"})).status == 409
    assert (await api.send("POST", JOBS, body)).status == 409


async def test_a_named_group_is_created_once_by_requests_that_come_together(api: ServedApi) -> None:
    body, key = {"urls": ["https://a.example/"], "group": "monday"}, {"Idempotency-Key": "k"}
    async with opened(api.app.settings) as app, listening(app) as other:
        found = await asyncio.gather(*[one.send("POST", JOBS, body, key) for one in (api, other) for _ in range(10)])
    assert {answered.status for answered in found} == {202}
    assert len({answered.body for answered in found}) == 1
    assert (await api.send("POST", JOBS, body, key)).body == found[0].body


async def test_a_key_does_not_own_a_group_that_was_there_before(api: ServedApi) -> None:
    """Several repeats at the same time: one must not take the key of another for proof that the group is theirs."""
    body, key = {"urls": ["https://a.example/"], "group": "monday"}, {"Idempotency-Key": "k"}
    assert (await api.send("POST", JOBS, body)).status == 202
    found = await asyncio.gather(*[api.send("POST", JOBS, body, key) for _ in range(20)])
    assert {answered.status for answered in found} == {409}


async def forget_answer(tx: object) -> None:
    key = {"caller": LOCAL, "route": f"POST {CRAWLS}", "key": "k"}
    kept = await tx.one("keep_key", digest="", subject="", **key)
    await tx.execute("drop_old_key", age=span(-timedelta(days=1)), **key)
    await tx.one("keep_key", digest=kept["digest"], subject=kept["subject"], **key)


async def test_a_key_is_forgotten_after_a_day(api: ServedApi) -> None:
    first = await make(api, "k")

    async def age(tx: object) -> None:
        await tx.execute("prune_keys", age=-span(KEPT), limit=10)  # as if a day had passed

    await api.app.database.run(age)
    assert (await make(api, "k")).json["id"] != first.json["id"]


@pytest.mark.parametrize("key", ["", "x" * 256, "\xe9", "a\tb"])
async def test_a_key_that_cannot_be_kept_is_refused(api: ServedApi, key: str) -> None:
    assert (await make(api, key)).status == 422
    assert await count(api) == 0


async def test_requests_without_a_key_are_each_carried_out(api: ServedApi) -> None:
    await api.ask(CRAWLS, BODY)
    await api.ask(CRAWLS, BODY)
    assert await count(api) == 2

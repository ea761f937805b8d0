"""`Idempotency-Key`: a repeated request does not create a second crawl, at any time and on any controller."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.access.idempotency import KEPT, Idempotency, IdempotencyKey, StoredResponse
from shoal.access.token import LOCAL
from shoal.app import opened
from shoal.base.clock import span
from shoal.base.errors import BackendUnavailable
from shoal.page_jobs.groups import Groups
from shoal.page_jobs.spec import GroupConfig
from tests.support.api import ServedApi, listening, served_api
from tests.support.http_client import HttpAnswer

CRAWLS, JOBS = "/api/v1/crawls", "/api/v1/jobs"
BODY = {"seeds": ["http://127.0.0.1:9/"]}
A, B = "https://a.example/", "https://b.example/"


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


async def test_a_repeat_after_a_death_in_the_middle_finds_the_group_that_it_named(
    api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group = Groups.make

    async def die_after_the_commit(*given: Any) -> None:
        await make_group(*given)
        raise BackendUnavailable("the store", "the test has stopped it", "go on")

    with monkeypatch.context() as killed:
        killed.setattr(Groups, "make", die_after_the_commit)
        assert (await make_monday(api, "k")).status == 503
    again = await make_monday(api, "k")
    assert (again.status, again.json["id"], again.json["jobs"]) == (202, "monday", {"pending": 1})
    assert again.headers["location"] == "/api/v1/groups/monday"
    assert (await make_monday(api, "another")).status == 409
    assert (await make_monday(api, None)).status == 409
    assert (await make_monday(api, "k")).body == again.body


@pytest.mark.parametrize("other", ["another", None], ids=["other key", "no key"])
async def test_only_one_of_two_requests_that_name_the_same_group_creates_it(api: ServedApi, other: str | None) -> None:
    async with opened(api.app.settings) as app, listening(app) as second:
        for name in map(str, range(5)):
            first, again, theirs = await asyncio.gather(
                make_monday(api, name, group=name, urls=[A, B]),
                make_monday(second, name, group=name, urls=[A, B]),
                make_monday(second, other and other + name, group=name),
            )
            assert {first.status, theirs.status} == {202, 409}
            assert (again.status, again.json) == (first.status, first.json)
            total = first.json["total"] if first.status == 202 else theirs.json["total"]
            assert (await api.ask(f"/api/v1/groups/{name}"))[1]["total"] == total


async def test_a_key_that_was_held_back_does_not_own_the_group_that_another_made_meanwhile(store_url: str) -> None:
    async with served_api(store_url, GRPC_ENABLED="true") as api:
        api.app.fleet.view.install([], api.app.settings.fleet.shared_depth_max)
        assert (await make_monday(api, "k")).json["code"] == "back_pressure"
        api.app.fleet.view.install([], 0)
        theirs = await make_monday(api, "another", urls=[B])
        assert theirs.status == 202
        assert (await make_monday(api, "k")).json["code"] == "already_exists"
        assert (await make_monday(api, "another", urls=[B])).body == theirs.body


@pytest.mark.parametrize(("name", "status"), [(None, 202), ("monday", 409)], ids=["no name", "a name"])
async def test_a_group_without_a_stored_response_belongs_to_the_key_that_has_its_id(
    api: ServedApi, name: str | None, status: int
) -> None:
    """An earlier version stored the group and the response in two commits, and died between them."""
    config = GroupConfig.read({"urls": [A], "group": name})
    await Idempotency(api.app.database).begin(IdempotencyKey(LOCAL, f"POST {JOBS}", "k"), config.text(), "grp_1")
    await api.app.page_jobs.groups.make(replace(config, group=name or "grp_1"))
    again = await make_monday(api, "k", group=name)
    assert again.status == status
    assert status == 409 or again.json["id"] == "grp_1"
    assert (await make_monday(api, "k", group=name)).body == again.body


async def test_a_response_is_not_stored_with_a_key_that_a_later_request_has_taken(api: ServedApi) -> None:
    idempotency, key = Idempotency(api.app.database), IdempotencyKey(LOCAL, f"POST {JOBS}", "k")
    ours, theirs = StoredResponse(202, "ours", None), StoredResponse(202, "theirs", None)
    await idempotency.begin(key, "one", "grp_1")
    await idempotency.forget(key, "grp_1")
    await idempotency.begin(key, "two", "grp_2")
    assert await idempotency.end(key, "grp_1", ours) == ours
    assert [await idempotency.answer(key, subject) for subject in ("grp_1", "grp_2")] == [None, None]
    assert await idempotency.end(key, "grp_2", theirs) == theirs
    assert await idempotency.end(key, "grp_2", ours) == theirs
    assert (await idempotency.begin(key, "two", "grp_3")).answer == theirs


async def make_monday(api: ServedApi, key: str | None, **more: Any) -> HttpAnswer:
    body = {"urls": [A], "group": "monday", **more}
    return await api.send("POST", JOBS, body, {} if key is None else {"Idempotency-Key": key})


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

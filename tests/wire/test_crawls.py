"""The life of a crawl over HTTP: created, listed, changed, moved and removed, with the errors of each step."""

import asyncio
from typing import Any

import pytest

from shoal.process.runners import make_walker
from tests.support.api import MAX_BODY, ServedApi
from tests.support.site import Site

CRAWLS = "/api/v1/crawls"
SEED = "http://127.0.0.1:9/"


async def made(api: ServedApi, **config: Any) -> str:
    status, crawl = await api.ask(CRAWLS, {"seeds": [SEED], **config})
    assert status == 202
    return str(crawl["id"])


async def act(api: ServedApi, crawl_id: str, verb: str, body: Any = None) -> tuple[int, Any]:
    return await api.ask(f"{CRAWLS}/{crawl_id}/{verb}", body, method="POST")


async def walked(api: ServedApi, crawl_id: str) -> None:
    """Let a worker run the crawl to completion."""
    [lease] = await api.app.queue.lease("test", ["crawl"], ["shared"], 1)
    crawl = (await api.app.crawls.get(crawl_id)).crawl
    await make_walker(api.app, crawl, lease.fence, lambda: True).run()


async def test_a_crawl_that_was_made_says_where_it_is(api: ServedApi) -> None:
    answered = await api.send("POST", CRAWLS, {"seeds": [SEED]})
    assert (answered.status, answered.json["state"]) == (202, "queued")
    assert (await api.ask(answered.headers["location"]))[1]["id"] == answered.json["id"]


async def test_a_stored_crawl_waits_for_its_start(api: ServedApi) -> None:
    crawl_id = await made(api, start=False)
    assert (await api.ask(f"{CRAWLS}/{crawl_id}"))[1]["state"] == "pending"
    status, crawl = await act(api, crawl_id, "start")
    assert (status, crawl["state"]) == (202, "queued")
    assert (await act(api, crawl_id, "start"))[0] == 409


async def test_a_crawl_is_paused_resumed_and_stopped(api: ServedApi) -> None:
    crawl_id = await made(api)
    assert (await act(api, crawl_id, "pause"))[1]["state"] == "paused"
    assert (await act(api, crawl_id, "resume"))[1]["state"] == "queued"
    assert (await act(api, crawl_id, "stop"))[1]["state"] == "stopped"


async def test_a_running_crawl_is_asked_to_pause(api: ServedApi) -> None:
    crawl_id = await made(api)
    await api.app.queue.lease("test", ["crawl"], ["shared"], 1)
    status, crawl = await act(api, crawl_id, "pause", {})
    assert (status, crawl["state"], crawl["state_reason"]) == (202, "pausing", "asked")


async def test_two_stops_at_once_stop_it_once(api: ServedApi) -> None:
    crawl_id = await made(api)
    answers = await asyncio.gather(*[act(api, crawl_id, "stop") for _ in range(4)])
    assert {(status, crawl["state"]) for status, crawl in answers} == {(202, "stopped")}


@pytest.mark.parametrize("verb", ["start", "pause", "resume", "retry"])
async def test_a_stopped_crawl_stays_stopped(api: ServedApi, verb: str) -> None:
    crawl_id = await made(api)
    await act(api, crawl_id, "stop")
    status, problem = await act(api, crawl_id, verb)
    assert (status, problem["code"], problem["state"]) == (409, "state_conflict", "stopped")
    assert (await api.ask(f"{CRAWLS}/{crawl_id}"))[1]["state"] == "stopped"


async def test_a_finished_crawl_cannot_be_stopped(api: ServedApi) -> None:
    with Site(pages=2) as site:
        crawl_id = await made(api, seeds=[site.address], robots="ignore", sitemap="off", speed="max")
        await walked(api, crawl_id)
    status, problem = await act(api, crawl_id, "stop")
    assert (status, problem["code"], problem["state"]) == (409, "state_conflict", "completed")


WAYS = [
    ("GET", ""),
    ("PATCH", ""),
    ("DELETE", ""),
    *[("POST", f"/{verb}") for verb in ("start", "pause", "resume", "stop", "retry")],
    ("GET", "/pages"),
    ("GET", "/links"),
    ("GET", "/traps"),
]


@pytest.mark.parametrize("crawl_id", ["crl_nobody", "%00", "a%2Fb%20c", "x" * 400])
async def test_an_unknown_crawl_is_not_found(api: ServedApi, crawl_id: str) -> None:
    for method, path in WAYS:
        body = {"max_pages": 1} if method == "PATCH" else None
        answered = await api.send(method, f"{CRAWLS}/{crawl_id}{path}", body)
        assert answered.status == 404
        assert answered.json["code"] in ("not_found", "no_such_path")


async def test_limits_are_changed_while_the_crawl_lives(api: ServedApi) -> None:
    crawl_id = await made(api, max_pages=5)
    status, crawl = await api.ask(f"{CRAWLS}/{crawl_id}", {"max_pages": None, "depth": 7}, method="PATCH")
    assert (status, crawl["config"]["max_pages"], crawl["config"]["depth"]) == (200, None, 7)


async def test_a_change_out_of_range_changes_nothing(api: ServedApi) -> None:
    crawl_id = await made(api, max_pages=5)
    before = (await api.ask(f"{CRAWLS}/{crawl_id}"))[1]
    for change, says in (
        ({"max_pages": 0}, "max_pages cannot be '0'; give a whole number from 1 to 1000000000000."),
        ({"depth": -1}, "depth cannot be '-1'; give a whole number from 0 to 10000."),
        ({"delay_seconds": 1e9}, "delay_seconds cannot be '1000000000.0'; give a number from 0 to 3600."),
        ({"exclude": ["("]}, "exclude '(' is not a regular expression"),
        ({"seeds": [SEED]}, "seeds is not a known field"),
    ):
        status, problem = await api.ask(f"{CRAWLS}/{crawl_id}", change, method="PATCH")
        assert (status, problem["code"]) == (422, "invalid_input")
        assert problem["detail"].startswith(says)
    assert (await api.ask(f"{CRAWLS}/{crawl_id}"))[1] == before


async def test_a_removed_crawl_is_gone_and_the_act_is_kept(api: ServedApi) -> None:
    crawl_id = await made(api)
    assert (await api.ask(f"{CRAWLS}/{crawl_id}", method="DELETE"))[0] == 409
    await act(api, crawl_id, "stop")
    assert (await api.ask(f"{CRAWLS}/{crawl_id}", method="DELETE")) == (204, None)
    assert (await api.ask(f"{CRAWLS}/{crawl_id}"))[0] == 404
    [entry] = await api.app.access.audit_log.newest(subject=crawl_id)
    assert entry.action.name == "crawl.removed"


async def test_a_list_is_filtered_and_goes_on_where_it_ended(api: ServedApi) -> None:
    ids = [await made(api, project="shop", labels={"team": "a", "n": str(n)}) for n in range(3)]
    await made(api, project="blog", labels={"team": "b"})
    await act(api, ids[0], "stop")
    first = (await api.ask(f"{CRAWLS}?project=shop&limit=2"))[1]
    assert [crawl["id"] for crawl in first["items"]] == [ids[2], ids[1]]
    rest = (await api.ask(f"{CRAWLS}?project=shop&limit=2&cursor={first['next']}"))[1]
    assert ([crawl["id"] for crawl in rest["items"]], rest["next"]) == ([ids[0]], None)
    assert len((await api.ask(f"{CRAWLS}?label=team%3Da"))[1]["items"]) == 3
    assert [crawl["id"] for crawl in (await api.ask(f"{CRAWLS}?label=team%3Da&label=n%3D1"))[1]["items"]] == [ids[1]]
    assert [crawl["id"] for crawl in (await api.ask(f"{CRAWLS}?label=team=a&state=stopped"))[1]["items"]] == [ids[0]]
    assert (await api.ask(f"{CRAWLS}?label=team=c"))[1]["items"] == []


async def test_a_list_refuses_what_it_does_not_know(api: ServedApi) -> None:
    for query, says in (
        ("limit=201", "limit cannot be '201'; give a whole number from 1 to 200."),
        ("state=walking", "state cannot be 'walking'; give pending, queued, running"),
        ("cursor=MTIz!", "cursor is not a cursor of this list"),
        ("label=team", "label 'team' is not a label; write it as name=value."),
        ("xyz=1", "xyz is not a known field; the known ones are limit, cursor, state, project, label, after."),
    ):
        status, problem = await api.ask(f"{CRAWLS}?{query}")
        assert (status, problem["code"]) == (422, "invalid_input")
        assert problem["detail"].startswith(says)


async def test_labels_that_could_not_be_looked_for_are_refused(api: ServedApi) -> None:
    many = {str(n): "" for n in range(65)}
    for labels in ({"a=b": "c"}, {"": "x"}, {"a": "\x00"}, {"a\n": "b"}, {"a": 1}, many):
        status, problem = await api.ask(CRAWLS, {"seeds": [SEED], "labels": labels})
        assert (status, problem["code"]) == (422, "invalid_input")
    assert (await api.ask(CRAWLS))[1]["items"] == []


async def test_a_trap_is_listed_and_released(api: ServedApi) -> None:
    crawl_id = await made(api)
    number = (await api.app.crawls.get(crawl_id)).crawl.number
    pattern, sample = "http://127.0.0.1:9/0", "http://127.0.0.1:9/7"
    await api.app.database.run(lambda tx: api.app.stores.frontiers.sql.quarantine(tx, number, {pattern: sample}))
    listed = (await api.ask(f"{CRAWLS}/{crawl_id}/traps"))[1]["items"]
    assert listed == [{"pattern": pattern, "state": "quarantined", "sample": sample, "count": 0}]
    status, freed = await act(api, crawl_id, "release", {"pattern": pattern})
    assert (status, freed["released"]) == (200, 0)
    assert (await act(api, crawl_id, "release", {"pattern": "nothing"}))[0] == 404
    status, problem = await act(api, crawl_id, "release", {"pattern": "nothing\x00"})
    assert (status, problem["detail"]) == (422, "pattern contains a NUL character; remove it.")
    assert (await act(api, crawl_id, "release"))[0] == 422


async def test_links_in_and_out_of_a_page_are_listed(api: ServedApi) -> None:
    with Site(pages=5) as site:
        crawl_id = await made(api, seeds=[site.address], depth=9, speed="max", sitemap="off", links=True)
        bare = await made(api, seeds=[site.address], depth=9, speed="max", sitemap="off")
        [empty, _] = [(await api.ask(f"{CRAWLS}/{one}/links?to={site.address}"))[1] for one in (crawl_id, bare)]
        for one in (crawl_id, bare):
            await walked(api, one)
    assert (empty["items"], empty["stored"]) == ([], True)
    assert empty["next"] is not None
    out = (await api.ask(f"{CRAWLS}/{crawl_id}/links?from={site.url(0)}"))[1]
    assert out["next"] is None
    assert {link["from"] for link in out["items"]} == {site.url(0)}
    fetched = [link for link in out["items"] if link["status"] == 200]
    assert all(link["kind"] == "a" and link["text"] for link in fetched)
    target = fetched[0]["to"]
    inside = (await api.ask(f"{CRAWLS}/{crawl_id}/links?to={target}"))[1]["items"]
    assert fetched[0] in inside
    without = (await api.ask(f"{CRAWLS}/{bare}/links?to={target}"))[1]
    assert {link["from"] for link in without["items"]} == {link["from"] for link in inside}
    assert (without["stored"], {link["text"] for link in without["items"]}) == (False, {None})
    every, cursor = list[Any](), ""
    while cursor is not None:
        found = (await api.ask(f"{CRAWLS}/{crawl_id}/links?limit=3{cursor and '&cursor='}{cursor}"))[1]
        every, cursor = every + found["items"], found["next"]
    assert len(every) > len(inside)
    status, problem = await api.ask(f"{CRAWLS}/{bare}/links")
    assert (status, problem["code"]) == (404, "not_found")
    assert "run the crawl with --links" in problem["detail"]
    for wrong in ("cursor=MTI", "cursor=MS4tMQ", "from=nowhere", "kind=x", "status=many", "to="):
        assert (await api.ask(f"{CRAWLS}/{crawl_id}/links?{wrong}"))[0] == 422, wrong


async def test_pages_are_listed_as_their_records(api: ServedApi) -> None:
    with Site(pages=3) as site:
        crawl_id = await made(api, seeds=[site.address, site.address + "nothing"], robots="ignore", speed="max")
        empty = (await api.ask(f"{CRAWLS}/{crawl_id}/pages"))[1]
        assert empty["items"] == []
        assert empty["next"] is not None, "it goes on"
        await walked(api, crawl_id)
    every = (await api.ask(f"{CRAWLS}/{crawl_id}/pages?cursor={empty['next']}"))[1]
    urls = [page["url"] for page in every["items"]]
    assert every["next"] is None
    assert len(urls) == len(set(urls)) == (await api.ask(f"{CRAWLS}/{crawl_id}"))[1]["pages"]
    found, cursor = [], ""
    while cursor is not None:
        page = (await api.ask(f"{CRAWLS}/{crawl_id}/pages?limit=2{cursor and '&cursor='}{cursor}"))[1]
        found += page["items"]
        cursor = page["next"]
    assert found == every["items"]
    missing = (await api.ask(f"{CRAWLS}/{crawl_id}/pages?status=4xx"))[1]["items"]
    assert [page["url"] for page in missing] == [page["url"] for page in every["items"] if page["status"] == 404]
    assert missing
    assert (await api.ask(f"{CRAWLS}/{crawl_id}/pages?status=404"))[1]["items"] == missing
    assert (await api.ask(f"{CRAWLS}/{crawl_id}/pages?error=any"))[1]["items"] == []
    status, problem = await api.ask(f"{CRAWLS}/{crawl_id}/pages?status=abc")
    assert (status, problem["detail"]) == (422, "status cannot be 'abc'; give text such as 404 or 4xx.")


async def test_failed_urls_are_fetched_again_by_what_they_failed_of(api: ServedApi) -> None:
    with Site(pages=2) as site:
        options = {"robots": "ignore", "sitemap": "off", "speed": "max"}
        crawl_id = await made(api, seeds=[site.address, site.address + "nothing"], **options)
        await walked(api, crawl_id)
        assert (await act(api, crawl_id, "retry"))[0] == 409, "it did not fail"
        status, crawl = await act(api, crawl_id, "retry", {"status": ["404"]})
        assert (status, crawl["state"], crawl["queued"]) == (202, "queued", 1)
        await walked(api, crawl_id)
    assert (await api.ask(f"{CRAWLS}/{crawl_id}"))[1]["state"] == "completed"
    assert len((await api.ask(f"{CRAWLS}/{crawl_id}/pages?status=404"))[1]["items"]) == 1
    for which in ({"status": ["200"]}, {"error": ["nonsense"]}, {"like": "("}, {"limit": 0}, {"everything": True}):
        assert (await act(api, crawl_id, "retry", which))[0] == 422


async def test_a_body_of_ten_megabytes_is_refused_with_an_answer(api: ServedApi) -> None:
    answered = await api.send("POST", CRAWLS, {"seeds": [SEED], "user_agent": "x" * 10_000_000})
    assert (answered.status, answered.json["code"]) == (413, "too_large")
    assert str(MAX_BODY) in answered.json["detail"]


async def test_a_body_that_is_not_json_is_refused_by_its_kind(api: ServedApi) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answered = await api.send("POST", CRAWLS, raw=b'{"seeds": []}', headers=form)
    assert (answered.status, answered.json["code"]) == (415, "wrong_media_type")
    assert "application/json" in answered.json["detail"]


async def test_a_body_that_is_not_a_json_object_is_refused(api: ServedApi) -> None:
    for raw in (b"", b"{", b"null", b"[]", b'{"seeds": ["http://a/"], "seeds": []}', b"\xff"):
        answered = await api.send("POST", CRAWLS, raw=raw)
        assert (answered.status, answered.json["code"]) == (422, "invalid_input")


@pytest.mark.parametrize(
    ("options", "depth"),
    [
        ({}, None),
        ({"scope": "prefix"}, None),
        ({"scope": "domain"}, 3),
        ({"scope": "any"}, 3),
        ({"scope": "any", "depth": None}, None),
        ({"scope": "any", "depth": 7}, 7),
        ({"depth": None}, None),
    ],
)
async def test_only_crawls_of_more_than_a_host_have_a_depth_limit_by_default(
    api: ServedApi, options: dict[str, Any], depth: int | None
) -> None:
    status, crawl = await api.ask(CRAWLS, {"seeds": ["http://one.example/"], "start": False, **options})
    assert (status, crawl["config"]["depth"]) == (202, depth)
    status, crawl = await api.ask(f"{CRAWLS}/{crawl['id']}", {"depth": None}, method="PATCH")
    assert (status, crawl["config"]["depth"]) == (200, None)


async def test_numbers_and_depths_that_no_parser_agrees_on_are_refused(api: ServedApi) -> None:
    deep = b"[" * 10_000 + b"]" * 10_000
    for field in (b"NaN", b"Infinity", b"-Infinity", b"1e400", str(2**63).encode(), b"9" * 5000, deep):
        for name in (b"max_pages", b"max_seconds", b"rules"):
            raw = b'{"seeds": ["http://127.0.0.1:9/"], "%s": %s}' % (name, field)
            answered = await api.send("POST", CRAWLS, raw=raw)
            assert (answered.status, answered.json["code"]) == (422, "invalid_input"), (name, field[:20])


async def test_nobody_sets_what_is_not_theirs_to_set(api: ServedApi) -> None:
    for field in ("id", "state", "attempts", "lease_epoch", "node_ids", "named", "key_seed", "created_at", "__class__"):
        status, problem = await api.ask(CRAWLS, {"seeds": [SEED], field: "x"})
        assert (status, problem["field"]) == (422, field)
    assert (await api.ask(CRAWLS))[1]["items"] == []


async def test_an_id_is_a_name_and_no_path(api: ServedApi) -> None:
    for crawl_id in ("../../etc/passwd", "..%2f..%2fx", "%2e%2e", "%2e%2e%2fadmin", "a%00b", "%ff", "a%0d%0ab", "'--"):
        for path in ("", "/pages", "/logs", "/events"):
            answered = await api.send("GET", f"{CRAWLS}/{crawl_id}{path}")
            assert answered.status == 404
            assert b"Traceback" not in answered.body


async def test_a_wrong_method_and_a_wrong_path_are_named(api: ServedApi) -> None:
    wrong = await api.send("PUT", CRAWLS, {})
    assert (wrong.status, wrong.json["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"]
    assert (await api.ask("/api/v1/crowls"))[1]["code"] == "no_such_path"

"""Pagination of all lists: a cursor from elsewhere is rejected or selects nothing, and does no harm."""

from shoal.base.request_form import fields_of
from shoal.serve.api import GROUPS
from shoal.serve.endpoint import public_endpoints
from shoal.serve.requests import cursor_of
from tests.support.api import ServedApi

NUMBERS = (0, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 10**30)
WORDS = ("x", "job_zzz", "é", "a|b", "-1", "1.5")


async def test_a_cursor_that_no_list_gave_is_refused_or_leads_nowhere(api: ServedApi) -> None:
    crawl_id = (await api.ask("/api/v1/crawls", {"seeds": ["http://127.0.0.1:9/"]}))[1]["id"]
    group_id = (await api.ask("/api/v1/jobs", {"urls": ["http://127.0.0.1:9/"]}))[1]["id"]
    lists = [line for line in public_endpoints(GROUPS) if "cursor" in fields_of(line.query)]
    assert len(lists) > 5
    for line in lists:
        path = line.path.replace("{crawl_id}", crawl_id).replace("{group_id}", group_id)
        for text in (*map(str, NUMBERS), *WORDS):
            status, _ = await api.ask(f"{path}?cursor={cursor_of(text)}")
            assert status in (200, 404, 422), (path, text)


async def test_the_head_of_a_stream_comes_at_once(api: ServedApi) -> None:
    crawl_id = (await api.ask("/api/v1/crawls", {"seeds": ["http://127.0.0.1:9/"]}))[1]["id"]
    answered = await api.send("HEAD", f"/api/v1/crawls/{crawl_id}/events")
    assert (answered.status, answered.body) == (200, b"")
    assert answered.headers["content-type"].startswith("text/event-stream")

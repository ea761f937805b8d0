"""Bodies that the API refuses: the answer names the field and what is wrong with it, and nothing is stored."""

import json
from typing import Any

import pytest

from tests.support.api import ServedApi
from tests.support.controller import served_controller

URL = "http://127.0.0.1:9/a"
PAGE = {"url": "http://example.org/"}
CRAWLS = [
    ({"seeds": [URL], "depth": "3"}, "depth", "depth cannot be '3'; give a whole number from 0 to 10000."),
    ({"seeds": [URL], "exclude": ["("]}, "exclude", "exclude '(' is not a regular expression"),
    ({"seeds": ["nonsense"]}, "seeds[0]", "seeds[0] 'nonsense' is not an absolute http or https URL"),
    ({"seeds": [URL], "dept": 1}, "dept", "dept is not a known field; the nearest one is depth."),
]
JOBS = [
    ({}, "urls", "is missing"),
    ({"urls": []}, "urls", "cannot be"),
    ({"urls": [URL, "ftp://example.org/", "nothing"]}, "urls[1]", "urls[2] cannot be fetched either"),
    ({"urls": [URL, f"{URL}\0"]}, "urls[1]", "control characters"),
    ({"urls": [URL] * 10_001}, "urls", "of 1 to 10000"),
    ({"urls": [URL], "max_retry": -1}, "max_retry", "from 0 to 99"),
    ({"urls": [URL], "crawl_config": {"headers": {"Host": "x"}}}, "crawl_config.headers", "name the host"),
    ({"urls": [URL], "rule_set": {"fields": {"a": {"css": "["}}}}, "rule_set.fields.a.css", "is"),
    ({"urls": [URL], "group": "a/b"}, "group", "cannot be"),
    ({"urls": [URL], "group": ".."}, "group", "cannot be"),
]
POLICIES = [
    (PAGE, "frequency", "pass one of them."),
    (PAGE | {"frequency": "0"}, "frequency", "'0' is zero or less; write"),
    (PAGE | {"frequency": "6 moons"}, "frequency", "is a duration without a valid unit; write"),
    (PAGE | {"frequency": "5s"}, "frequency", "is not between 1m and 366d; write it"),
    (PAGE | {"cron": "61 * * * *"}, "cron", "; write five fields, such as 30 6 * * 1-5."),
    (PAGE | {"timezone": "Nowhere"}, "timezone", "zone; write it as Europe/Berlin."),
    ({"url": "http://10.0.0.1/", "frequency": "6h"}, "url", "SHOAL_ALLOW_NETWORKS"),
    (PAGE | {"frequency": "6h", "lease_epoch": 3}, "lease_epoch", "is not a known field;"),
    (PAGE | {"frequency": "6h", "crawl_config": {"proxy": "eu"}}, "crawl_config.proxy", "define it in SHOAL_PROXIES."),
    (
        {"seeds": ["http://example.org/"], "frequency": "6h", "crawl_config": {"proxy": "eu"}},
        "proxy",
        "define it in SHOAL_PROXIES.",
    ),
]


@pytest.mark.parametrize(
    ("path", "listed", "body", "field", "says"),
    [
        *[("crawls", "crawls", *refused) for refused in CRAWLS],
        *[("jobs", "groups", *refused) for refused in JOBS],
        *[("policies", "policies", *refused) for refused in POLICIES],
    ],
)
async def test_a_bad_body_is_refused_by_its_field_and_nothing_is_stored(
    api: ServedApi, path: str, listed: str, body: dict[str, Any], field: str, says: str
) -> None:
    status, problem = await api.ask(f"/api/v1/{path}", body)
    assert (status, problem["code"], problem["field"]) == (422, "invalid_input", field)
    assert says in problem["detail"]
    assert (await api.ask(f"/api/v1/{listed}"))[1]["items"] == []


async def test_a_body_over_the_limit_is_refused_with_the_setting_to_raise(sqlite_url: str) -> None:
    async with served_controller(sqlite_url, SHOAL_MAX_REQUEST="1KB") as shop:
        token, body = await shop.token("operator"), {"seeds": [URL], "exclude": ["x" * 1000]}
        refused = await shop.ask(token=token, method="POST", body=json.dumps(body).encode())
        assert (refused.status, refused.json["code"]) == (413, "too_large")
        assert "larger than 1000 bytes; send less, or ask the operator to raise SHOAL_MAX_REQUEST" in refused.text
        assert (await shop.ask(token=token)).json["items"] == []

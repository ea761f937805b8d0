"""Valid page job options, and the error messages for invalid ones."""

from ipaddress import ip_network
from typing import Any

import pytest

from shoal.base.errors import InvalidInput
from shoal.egress.address import AddressRule
from shoal.extract.rules import missing_fields
from shoal.page_jobs.spec import PageWork, check_url

URL = "https://example.org/a"
RULES = {"fields": {"name": {"css": "h1", "required": True}}}


def test_a_url_is_all_that_is_needed() -> None:
    work = PageWork.read({"url": URL})
    assert (work.capability, work.rule_set, work.crawl_config.headers) == ("http", None, {})
    assert PageWork.stored(work.text()) == work


def test_a_page_that_needs_a_browser_is_for_whoever_has_one() -> None:
    assert PageWork.read({"url": URL, "crawl_config": {"js_required": True}}).capability == "js"


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({}, "url", "is missing"),
        ({"url": 7}, "url", "cannot be"),
        ({"url": ""}, "url", "cannot be"),
        ({"url": URL, "uri": URL}, "uri", "not a known field; the nearest one is url"),
        ({"url": URL, "crawl_config": {"headers": {"Host": "x"}}}, "crawl_config.headers", "name the host in the URL"),
        ({"url": URL, "crawl_config": {"headers": {"a b": "x"}}}, "crawl_config.headers", "invalid name"),
        ({"url": URL, "crawl_config": {"headers": {"A": "x\r\nB: y"}}}, "crawl_config.headers", "control characters"),
        ({"url": URL, "crawl_config": {"headers": {"User-Agent": "x"}}}, "crawl_config.headers", "SHOAL_USER_AGENT"),
        ({"url": URL, "crawl_config": {"timeout_hint": 0}}, "crawl_config.timeout_hint", "is not valid"),
        ({"url": URL, "crawl_config": {"timeout_hint": "5"}}, "crawl_config.timeout_hint", "is not valid"),
        ({"url": URL, "crawl_config": {"wait": 1}}, "crawl_config", "unknown field wait"),
        ({"url": URL, "rule_set": {}}, "rule_set.fields", "is missing"),
        ({"url": URL, "rule_set": {"fields": {"a": {"xpath": "document('/etc/passwd')"}}}}, "rule_set.fields.a", "is"),
    ],
)
def test_bad_input_is_refused_by_its_field(given: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        PageWork.read(given)
    assert caught.value.facts["field"].startswith(field)
    assert words in caught.value.message


def test_a_url_is_asked_for_as_it_was_given() -> None:
    assert check_url("HTTP://Example.org/a?utm_source=x&b=1#top", AddressRule(), "urls[0]") == (
        "http://example.org/a?utm_source=x&b=1"
    )


@pytest.mark.parametrize(
    "url", ["ftp://example.org/", "example.org", "http://", "http://user:secret@example.org/", "http://127.0.0.1/"]
)
def test_a_url_that_can_never_be_fetched_is_refused_by_its_place(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_url(url, AddressRule(), "urls[3]")
    assert caught.value.facts["field"] == "urls[3]"
    assert "secret" not in caught.value.message


def test_an_address_that_the_operator_opened_is_taken() -> None:
    rule = AddressRule(allow=(ip_network("127.0.0.0/8"),))
    assert check_url("http://127.0.0.1:8000/", rule, "url") == "http://127.0.0.1:8000/"


def test_the_values_of_headers_that_may_be_secrets_are_not_shown() -> None:
    config = {"headers": {"Authorization": "Bearer x", "Accept-Language": "de"}}
    shown = PageWork.read({"url": URL, "crawl_config": config}).shown()
    assert shown["crawl_config"]["headers"] == {"Authorization": "***", "Accept-Language": "de"}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"name": "x"}, None),
        ({"name": 0}, None),
        ({"name": False}, None),
        ({}, "name is required and missing."),
        ({"name": None}, "name is required and missing."),
        ("x", "the data is not an object, but the rule set has required fields."),
    ],
)
def test_a_required_field_must_be_there(data: Any, problem: str | None) -> None:
    assert missing_fields(RULES, URL, data) == problem


def test_a_required_field_of_a_list_must_be_in_each_item() -> None:
    rules = {"fields": {"reviews": {"css": "li", "each": {"by": {"css": "b", "required": True}}}}}
    assert missing_fields(rules, URL, {"reviews": [{"by": "a"}, {}]}) == "reviews[1].by is required and missing."
    assert missing_fields(rules, URL, {"reviews": []}) is None


def test_a_rule_set_for_other_pages_requires_nothing_here() -> None:
    assert missing_fields({**RULES, "urls": ["/product/"]}, URL, None) is None
    assert missing_fields({**RULES, "urls": ["/product/"]}, f"{URL}/product/1", None) is not None
    assert missing_fields(None, URL, None) is None

"""Forms: reading them as a whole or field by field gives the same result, and errors name the field."""

import json
from typing import Any

import pytest
from msgspec import ValidationError

from shoal.base.errors import InvalidInput
from shoal.base.forge_commit import ForgeCommit
from shoal.base.request_form import Form
from shoal.crawl.crawl import CrawlConfig
from shoal.page_jobs.spec import PageWork
from shoal.plan.policy import PolicyForm
from shoal.serve.bots import BatchForm, PullForm

POLICY = {"url": "http://example.org/", "frequency": "6h"}


@pytest.mark.parametrize(
    ("form", "values", "strict"),
    [
        (PullForm, {"bot_id": "a", "max": 3}, True),
        (PullForm, {"bot_id": "a", "max": "3", "wait_seconds": "0.5"}, False),
        (BatchForm, {"results": [{"job_id": "j", "epoch": 1, "status": "success", "data": {"a": "\0"}}]}, True),
        (
            PolicyForm,
            POLICY | {"rule_set": {"fields": {"a": {"css": "h1"}}}, "not_after": "2026-03-01T09:00:00Z"},
            True,
        ),
        (PolicyForm, {"url": "http://example.org/", "cron": "  0 6  * * * ", "windows": ["Mon 08:00-09:00"]}, True),
        (PolicyForm, POLICY | {"priority_base": "7", "enabled": "false"}, False),
    ],
)
def test_a_form_is_the_same_read_as_a_whole_or_field_by_field(form: type[Form], values: Any, strict: bool) -> None:
    assert form.read(values, strict=strict) == form._read_by_fields(values, strict, str)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (POLICY | {"frequncy": "1h"}, "frequncy is not a known field; the nearest one is frequency."),
        (POLICY | {"priority_base": 101}, "priority_base cannot be '101'; give a whole number from 0 to 100."),
        (POLICY | {"priority_base": 101, "cron": "61 * * * *"}, "priority_base cannot be"),
        (POLICY | {"cron": "61 * * * *", "priority_base": 101}, "cron '61 * * * *' is not a cron expression"),
        (POLICY | {"labels": {"a": "\0"}}, "labels contains a NUL character; remove it."),
        (POLICY | {"labels": {"a": "\ud800"}}, "labels contains an invalid character (an unpaired surrogate)"),
        (POLICY | {"rule_set": {"fields": {"a": {"css": "["}}}}, "rule_set.fields.a"),
    ],
)
def test_the_first_field_that_cannot_be_taken_is_named_each_time(values: Any, says: str) -> None:
    for _ in range(2):  # only valid values are cached
        with pytest.raises(InvalidInput) as refused:
            PolicyForm.read(values)
        assert says in refused.value.message


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (
            CrawlConfig,
            {"seeds": ["https://a.example/"], "cookies": [{"name": "a", "value": "b", "domain": "a.example"}]},
        ),
        (PolicyForm, {"url": "https://a.example/", "frequency": "6h", "adaptive": {"min": "1h", "max": "7d"}}),
        (PageWork, {"url": "https://a.example/"}),
        (ForgeCommit, {"forge": "gitea", "repo": "a/b", "sha": "0" * 40}),
    ],
)
def test_a_stored_form_with_fields_of_a_newer_version_is_read_without_them(
    form: type[Form], values: dict[str, Any]
) -> None:
    def newer(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: newer(part) for name, part in value.items()} | {"added_later": [{"a": 1}]}
        return [newer(part) for part in value] if isinstance(value, list) else value

    with pytest.raises(InvalidInput, match="added_later"):
        form.read(newer(values))
    assert form.stored(json.dumps(newer(values))) == form.stored(json.dumps(values))
    with pytest.raises(ValidationError):
        form.stored('{"added_later": 1, "seeds": 5, "url": 5, "forge": 5}')

"""Invalid input to policies and webhooks: the error names the field, and nothing is stored."""

import tracemalloc
from collections.abc import AsyncIterator, Iterator
from itertools import zip_longest
from typing import Any

import pytest

from shoal.base.errors import InvalidInput
from shoal.egress import AddressRule, Egress
from shoal.events.courier import Courier
from shoal.events.event import Event, append_events
from shoal.events.webhook import NewWebhook
from shoal.plan.importer import MAX_BAD
from shoal.plan.policy import PolicyForm
from shoal.plan.policy_file import PolicyFileRow, read_csv, read_json_lines
from tests.contract.two_days import Days, days_of

LINES, BAD_LINE = 150_100, 150_000
MOST_MEMORY = 10_000_000


@pytest.fixture
async def days(sqlite_url: str) -> AsyncIterator[Days]:
    """Return days on SQLite only: this input is rejected before it reaches a store."""
    async with days_of(sqlite_url, 1) as days:
        days.dying.chance = 0.0
        yield days


async def kept(days: Days) -> int:
    return await days.bench.number("SELECT count(*) FROM policy")


def xpath(expression: str) -> dict[str, Any]:
    return {"rule_set": {"fields": {"secret": {"xpath": expression}}}}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        (xpath("document('file:///etc/passwd')"), "rule_set"),
        (xpath("unparsed-text('file:///etc/passwd')"), "rule_set"),
        (xpath("json-doc('file:///etc/passwd')"), "rule_set"),
        (xpath("doc('http://169.254.169.254/')"), "rule_set"),
        (xpath("//a[document('x')]"), "rule_set"),
        ({"rule_set": {"fields": {"a": {"css": "x" * 10_000_000}}}}, "rule_set"),
        ({"rule_set": {"fields": {"a": {"jq": "env"}}}}, "rule_set"),
        ({"lock_ttl": "0"}, "lock_ttl"),
        ({"lock_ttl": "-1s"}, "lock_ttl"),
        ({"lock_ttl": "1000000000s"}, "lock_ttl"),
        ({"lock_ttl": None}, "lock_ttl"),
        ({"queue": "*"}, "queue"),
        ({"queue": "my queue"}, "queue"),
        ({"project": "../x"}, "project"),
        ({"project": "*"}, "project"),
        ({"crawl_config": {"headers": {"Transfer-Encoding": "chunked"}}}, "crawl_config"),
        ({"crawl_config": {"headers": {"Connection": "close"}}}, "crawl_config"),
        ({"crawl_config": {"headers": {"X-A": "b\r\nX-Evil: 1"}}}, "crawl_config"),
        ({"crawl_config": {"headers": {"X\r\nA": "b"}}}, "crawl_config"),
    ],
)
async def test_a_policy_that_cannot_be_taken_is_refused_by_its_field(
    days: Days, values: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await days.policies.make(PolicyForm.read({"url": "http://example.org/", "frequency": "1h", **values}))
    assert refusal.value.facts["field"].startswith(field)
    assert len(refusal.value.message) < 1000
    assert await kept(days) == 0


def test_a_template_is_only_text() -> None:
    form = PolicyForm.read({"url": "http://example.org/{{config}}", "frequency": "1h", "labels": {"a": "${HOME}"}})
    assert (form.url, form.labels) == ("http://example.org/{{config}}", {"a": "${HOME}"})


def sheet(line: str) -> Iterator[str]:
    yield "url,frequency\r\n"
    for number in range(2, LINES + 1):
        filled = f"http://www{number % 100}.example.org/{number},6h\r\n" if number % 100 == 0 else ",\r\n"
        yield line if number == BAD_LINE else filled


@pytest.mark.exhaustive
@pytest.mark.parametrize("line", ["ftp://example.org/,6h\r\n", "http://example.org/,6h,more\r\n", '"a"b,6h\r\n'])
async def test_a_bad_line_far_down_a_file_is_named_and_nothing_is_kept(days: Days, line: str) -> None:
    report = await days.importer.take(read_csv(sheet(line)), skip_bad=False)
    assert (report.made, report.bad) == (0, 1)
    assert [number for number, _ in report.problems] == [BAD_LINE]
    assert await kept(days) == 0


@pytest.mark.exhaustive
async def test_a_large_file_is_never_in_memory_as_a_whole(days: Days) -> None:
    """As many bad lines as are read, and more good ones, which together are many times larger than the limit."""
    wide = "x" * 1900

    def rows() -> Iterator[PolicyFileRow]:
        good = (
            f'{{"url": "http://example.org/", "frequency": "6h", "labels": {{"a": "{wide}"}}}}' for _ in range(12_000)
        )
        bad = (
            f'{{"url": "ftp://example.org/", "frequency": "6h", "labels": {{"a": "{wide}"}}}}'
            for _ in range(MAX_BAD - 1)
        )
        yield from read_json_lines(line for pair in zip_longest(good, bad) for line in pair if line is not None)

    tracemalloc.start()
    try:
        report = await days.importer.take(rows(), skip_bad=False)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (report.made, report.bad) == (0, MAX_BAD - 1)
    assert most < MOST_MEMORY


async def test_a_webhook_whose_name_leads_to_a_private_address_is_sent_nothing(days: Days) -> None:
    url = f"http://localhost:{days.server.port}/hook"
    webhook = await days.webhooks.make(NewWebhook(url=url))
    await days.bench.database.run(lambda tx: append_events(tx, Event("crawl.started", "c", {})))
    await days.forwarder.run_once()
    public = Courier(days.bench.database, lambda: Egress(AddressRule()), days.bench.clock, days.bench.signals)
    await public.run_once()
    await public.rest()
    await public.close()
    [delivery] = await days.webhooks.deliveries(webhook.id, None, 2**62, 10)
    assert (delivery.state.value, delivery.status) == ("waiting", None)
    assert "address" in (delivery.error or "")
    assert days.server.asked == []

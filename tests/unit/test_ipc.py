"""Messages between a worker and its children survive the wire, and those of another version do no harm."""

import pytest
from msgspec import DecodeError

from shoal.base.ids import JobId
from shoal.pages.page import PagesSettled
from shoal.queue.job import Fence, Lease
from shoal.queue.moves import JobsMoved
from shoal.queue.states import GrantEnd
from shoal.work.ipc import (
    Alone,
    Configure,
    Done,
    HandBack,
    Leave,
    Nudge,
    Order,
    Renewed,
    Report,
    Start,
    Status,
    encode,
    orders,
    reports,
)

FENCE = Fence(JobId("job_1"), 2)
LEASE = Lease(FENCE, "crawl", "crl_1", "{}", 1, 3, 0, 0.5, 60, 10.0)
ORDERS = [
    Start(LEASE),
    Configure(3, slots=8, leasing=False),
    Nudge(),
    Renewed([FENCE]),
    HandBack("draining"),
    Leave(finish_first=True),
]
REPORTS = [
    Status(1 << 40, 1.5, [FENCE], 3),
    Alone(FENCE),
    Alone(None),
    Done("failed", "boom"),
    PagesSettled(pages={"2xx": 1}, bytes={"2xx": 10}),
    JobsMoved(kind="page", how=GrantEnd.DONE, count=2),
]


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_an_order_arrives_as_it_was_sent(order: Order) -> None:
    assert orders.decode(encode(order)) == order


@pytest.mark.parametrize("report", REPORTS, ids=repr)
def test_a_report_arrives_as_it_was_sent(report: Report) -> None:
    assert reports.decode(encode(report)) == report


def test_unknown_messages_and_fields_of_another_version_are_ignored() -> None:
    assert reports.decode(b'{"type": "Confessed", "sins": 3}') is None
    assert reports.decode(b'{"type": "Done", "ending": "left", "tired": true}') == Done("left")


@pytest.mark.parametrize("line", [b"Traceback\n", b"{}", b"[1]", b'{"type": "Done", "ending": 5}'])
def test_what_is_not_a_message_is_an_error(line: bytes) -> None:
    with pytest.raises(DecodeError):
        reports.decode(line)

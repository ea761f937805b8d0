"""Messages between a worker and its children survive the wire."""

import pytest

from shoal.base.ids import JobId
from shoal.queue.job import Fence, Lease
from shoal.work.ipc import Alone, Configure, Drop, HandBack, Holding, Leave, Message, Nudge, Work, decode, encode

LEASE = Lease(Fence(JobId("job_1"), 2), "crawl", "crl_1", "{}", 1, 3, 0, 0.5, 60, 10.0)


MESSAGES = [
    Work(LEASE),
    Leave("shutdown", finish_first=True),
    Configure(3, slots=8, leasing=False),
    HandBack("draining"),
    Nudge(),
    Alone(None),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("kind", [Drop, Holding])
def test_fences_are_sent_as_pairs(kind: type[Drop] | type[Holding]) -> None:
    assert decode(encode(kind([("job_1", 2)]))) == kind([["job_1", 2]])  # type: ignore[list-item]

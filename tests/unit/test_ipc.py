"""What parent and child say to each other arrives as it was said."""

import pytest

from shoal.base.ids import JobId
from shoal.queue.job import Fence, Lease
from shoal.work.ipc import Alone, Drop, Holding, Leave, Message, Nudge, Work, decode, encode

LEASE = Lease(Fence(JobId("job_1"), 2), "crawl", "crl_1", "{}", 1, 3, 0, 0.5, 60, 10.0)


@pytest.mark.parametrize("said", [Work(LEASE), Leave("shutdown", patient=True), Nudge(), Alone(None)], ids=repr)
def test_a_message_arrives_as_it_was_said(said: Message) -> None:
    assert decode(encode(said)) == said


@pytest.mark.parametrize("kind", [Drop, Holding])
def test_holders_arrive_as_pairs(kind: type[Drop] | type[Holding]) -> None:
    assert decode(encode(kind([("job_1", 2)]))) == kind([["job_1", 2]])  # type: ignore[list-item]

"""Which events may be removed."""

import pytest

from shoal.events.forwarder import last_prunable
from shoal.events.store import ReadingProgress


@pytest.mark.parametrize(
    ("hooks", "sinks", "last"),
    [
        (None, None, 50),  # nobody reads them
        (90, 90, 50),  # all old ones were read
        (20, 90, 20),  # a webhook is waited for however old they are
        (5, 5, 5),
        (90, 20, 20),
        (90, 5, 10),  # a sink is not waited for longer than that
        (None, 0, 10),
    ],
)
def test_old_events_are_removed_once_they_were_read(hooks: int | None, sinks: int | None, last: int) -> None:
    assert last_prunable(50, 10, ReadingProgress(hooks, sinks)) == last

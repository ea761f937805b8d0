"""Consequences of a settled URL for other URLs."""

import pytest

from shoal.base.url import Url
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import SUSPECT_FROM, FrontierTask, Settled, crashes_after
from shoal.web.page_fetcher import RedirectChain

OWN, TARGET = (1, 2), (3, 4)


def settled(fate: Fate, target_fate: Fate | None = None, chain: tuple[int, int] | None = TARGET) -> Settled:
    task = FrontierTask(*OWN, 0, 0, 1, Url("https://example.com/"), None, 0)
    task.chain = None if chain is None else RedirectChain((), *chain)
    return Settled(task, fate, target_fate=target_fate)


@pytest.mark.parametrize(
    ("done", "ended"),
    [
        (settled(Fate.FAILED), (TARGET, Fate.FAILED)),
        (settled(Fate.FETCHED, Fate.SKIPPED_ROBOTS), (TARGET, Fate.SKIPPED_ROBOTS)),
        (settled(Fate.QUARANTINED, Fate.FAILED), (TARGET, Fate.FAILED)),
        (settled(Fate.FETCHED), None),  # the target was fetched
        (settled(Fate.OPEN, Fate.FAILED), None),  # it is retried
        (settled(Fate.FAILED, chain=None), None),
        (settled(Fate.FAILED, chain=OWN), None),  # it led back to the URL itself
    ],
)
def test_a_redirect_target_that_was_not_fetched_ends_with_its_url(
    done: Settled, ended: tuple[tuple[int, int], Fate] | None
) -> None:
    assert done.ended_target == ended


def test_crashes_in_company_only_make_a_suspect() -> None:
    assert [crashes_after(before, alone=False) for before in range(5)] == [1, SUSPECT_FROM, 2, 3, 4]
    assert [crashes_after(before, alone=True) for before in range(5)] == [1, 2, 3, 4, 5]

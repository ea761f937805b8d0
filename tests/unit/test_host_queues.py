"""Queues per host: hosts take turns, none exceeds its limit, and no task is lost."""

from shoal.base.url import Url
from shoal.crawl.frontier.values import FrontierTask
from shoal.web.fetch_pool import HostQueues


def task(host: int, seq: int) -> FrontierTask:
    return FrontierTask(seq, seq, host, 0, seq, Url(f"http://h{host}/{seq}"), None, 0)


def lines(per_host: int, *places: tuple[int, int]) -> HostQueues:
    made = HostQueues(per_host)
    for host, seq in places:
        made.join(task(host, seq))
    return made


def started(made: HostQueues) -> list[int]:
    found = []
    while (one := made.next()) is not None:
        found.append(one.seq)
    return found


def test_hosts_take_turns_and_each_keeps_its_order() -> None:
    assert started(lines(9, (1, 10), (1, 11), (1, 12), (2, 20), (2, 21))) == [10, 20, 11, 21, 12]


def test_a_host_at_its_limit_continues_when_a_fetch_ends() -> None:
    made = lines(1, (1, 10), (1, 11), (2, 20))
    assert started(made) == [10, 20]
    made.ended(2)
    assert started(made) == []
    made.ended(1)
    assert started(made) == [11]


def test_a_task_that_joins_a_host_at_its_limit_starts_later() -> None:
    made = lines(1, (1, 10))
    assert started(made) == [10]
    made.join(task(1, 11))
    assert started(made) == []
    made.ended(1)
    assert started(made) == [11]


def test_a_removed_queue_starts_nothing_and_fetches_in_flight_still_count() -> None:
    made = lines(1, (1, 10), (1, 11), (2, 20), (2, 21))
    assert started(made) == [10, 20]
    assert [one.seq for one in made.dissolve(1)] == [11]
    assert [one.seq for one in made.dissolve_all()] == [21]
    made.join(task(1, 12))
    assert started(made) == []
    made.ended(1)
    assert started(made) == [12]
    made.clear()
    made.join(task(1, 13))
    assert started(made) == [13]

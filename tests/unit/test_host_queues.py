"""Lines of tasks: hosts take turns, none has more under way than it may, and nobody is forgotten."""

from shoal.base.url import Url
from shoal.crawl.engine.host_queues import HostQueues
from shoal.crawl.frontier.values import FrontierTask


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


def test_a_host_that_has_enough_to_do_gets_its_turn_when_something_ended() -> None:
    made = lines(1, (1, 10), (1, 11), (2, 20))
    assert started(made) == [10, 20]
    made.ended(2)
    assert started(made) == []
    made.ended(1)
    assert started(made) == [11]


def test_who_joins_a_host_that_is_busy_is_not_forgotten() -> None:
    made = lines(1, (1, 10))
    assert started(made) == [10]
    made.join(task(1, 11))
    assert started(made) == []
    made.ended(1)
    assert started(made) == [11]


def test_a_line_that_is_given_up_starts_nothing_and_what_is_under_way_still_counts() -> None:
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

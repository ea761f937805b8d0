"""The rotation over hosts: fair to hosts and to walkers, and within the limits of each host."""

from collections.abc import Sequence

from shoal.base.url import Url
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.rotation import (
    AWAITED_SECONDS,
    MOST_ROUNDS,
    ROUNDS,
    UNCLAIMED_SECONDS,
    HostBatch,
    HostCandidate,
    Rotation,
    share_hosts,
)
from shoal.crawl.frontier.values import FrontierTask
from shoal.crawl.store import HostRate
from shoal.hosts.rate import HostState, SlotRequest, SlotsGranted
from shoal.web.page_fetcher import RedirectChain

FREE = HostRate(0.0)
WARY = HostState(is_recovering=True)


def task(host: int, seq: int) -> FrontierTask:
    return FrontierTask(seq, seq, host, 0, seq, Url(f"http://h{host}/{seq}"), None, 0)


def tasks(host: int, *places: int) -> list[FrontierTask]:
    return [task(host, place) for place in places]


def candidate(host: int, state: HostState | None = None, pages: int = 0) -> HostCandidate:
    return HostCandidate(host, f"http://h{host}", state or HostState(), pages)


def claimed(host: int, by: str | None = None, overdue_seconds: float = 0.0) -> HostCandidate:
    return HostCandidate(host, f"http://h{host}", HostState(), claimed_by=by, overdue_seconds=overdue_seconds)


def shares(rotation: Rotation) -> dict[int, int]:
    return {batch.host: number for batch, number in rotation.shares()}


def read(rotation: Rotation, lines: dict[int, list[FrontierTask]]) -> list[FrontierTask]:
    """One round, as a driver reads it: each host gives the next URLs of its line."""
    found = []
    for batch, most in rotation.shares():
        line = lines.get(batch.host, [])
        given, lines[batch.host] = line[:most], line[most:]
        batch.add_untried(given, most)
        found += given
    return found


def read_all(rotation: Rotation, lines: dict[int, list[FrontierTask]]) -> int:
    """Read rounds until the rotation has enough; return the number of rounds."""
    rounds = 0
    while rotation.has_rounds:
        rotation.end_round(has_excluded=rotation.exclude(read(rotation, lines), {}))
        rounds += 1
    return rounds


class Forbids:
    """Knows the robots.txt of some hosts, and which URLs it forbids."""

    def __init__(self, *places: int, knows: Sequence[int] = (1, 2, 3)) -> None:
        self._places = places
        self._known = [f"http://h{host}" for host in knows]

    def skip_fate(self, task: FrontierTask) -> Fate | None:
        return Fate.SKIPPED_ROBOTS if task.seq in self._places else None

    def knows(self, origin: str) -> bool:
        return origin in self._known


# Shares of hosts


def test_hosts_give_equal_parts_and_the_first_ones_the_rest() -> None:
    assert shares(Rotation(map(candidate, (3, 1, 2)), FREE, 8)) == {1: 3, 2: 3, 3: 2}


def test_with_more_hosts_than_urls_wanted_only_some_hosts_are_asked() -> None:
    assert shares(Rotation(map(candidate, range(5)), FREE, 2)) == {0: 1, 1: 1}


def test_nothing_is_asked_when_no_host_is_ready() -> None:
    rotation = Rotation([], FREE, 8)
    assert shares(rotation) == {}
    assert read_all(rotation, {}) == ROUNDS
    assert rotation.tasks == []


def test_hosts_that_have_more_make_up_for_hosts_that_run_dry() -> None:
    rotation = Rotation(map(candidate, (1, 2, 3)), FREE, 9)
    read_all(rotation, {1: tasks(1, 10), 2: tasks(2, *range(20, 40)), 3: tasks(3, 30)})
    assert [len(batch.tasks) for batch in rotation.batches] == [1, 7, 1]
    assert [batch.is_dry for batch in rotation.batches] == [True, False, True]


def test_a_dry_host_is_not_asked_again() -> None:
    rotation = Rotation(map(candidate, (1, 2)), FREE, 4)
    read(rotation, {1: [], 2: tasks(2, 20, 21)})
    assert shares(rotation) == {2: 2}


def test_urls_that_were_tried_before_come_first_and_count() -> None:
    rotation = Rotation([candidate(1)], FREE, 3)
    [batch] = rotation.batches
    batch.add_tried(tasks(1, 50))
    assert shares(rotation) == {1: 2}
    batch.add_untried(tasks(1, 10, 11), 2)
    assert ([one.seq for one in batch.tasks], batch.tried) == ([50, 10, 11], 1)


# Slots and delays


def test_a_host_with_a_delay_gives_what_fits_into_its_slots() -> None:
    rotation = Rotation([candidate(1), candidate(2)], HostRate(1.0), 20)
    assert shares(rotation) == {1: 3, 2: 3}


def test_a_host_that_is_busy_for_long_gives_nothing_and_is_looked_at_before_its_slot() -> None:
    rotation = Rotation([candidate(1, HostState(busy_seconds=5.0))], HostRate(1.0), 20)
    assert shares(rotation) == {}
    [batch] = rotation.batches
    assert (batch.look_again_in_seconds, batch.is_spent) == (4.0, False)


def test_only_hosts_with_a_delay_reserve_slots() -> None:
    slow = HostState(crawl_delay_seconds=0.5)
    rotation = Rotation([candidate(1), candidate(2, slow)], FREE, 4)
    read(rotation, {1: tasks(1, 10, 11), 2: tasks(2, 20, 21)})
    assert rotation.slot_requests() == [SlotRequest(2, 2, 0.5)]
    rotation.grant({2: SlotsGranted(1, 0.25)})
    assert [(one.seq, one.start_in_seconds) for one in rotation.tasks] == [(10, 0.0), (11, 0.0), (20, 0.25)]


def test_slots_of_one_host_are_a_delay_apart_and_its_next_turn_is_before_the_next_one() -> None:
    rotation = Rotation([candidate(1)], HostRate(1.0), 3)
    read(rotation, {1: tasks(1, 10, 11, 12)})
    rotation.grant({1: SlotsGranted(3, 0.5)})
    assert [one.start_in_seconds for one in rotation.tasks] == [0.5, 1.5, 2.5]
    assert rotation.batches[0].look_again_in_seconds == 1.5


def test_a_host_that_was_granted_no_slot_keeps_its_urls_waiting() -> None:
    rotation = Rotation([candidate(1)], HostRate(1.0), 3)
    [batch] = rotation.batches
    batch.add_tried(tasks(1, 50))
    rotation.grant({})
    assert (rotation.tasks, batch.tried) == ([], 0)


# Hosts that get one URL first


def test_a_host_whose_robots_txt_was_never_read_gets_one_url() -> None:
    known, new = HostState(robots_known=True), HostState()
    rotation = Rotation([candidate(1, known), candidate(2, new)], HostRate(0.0, probe=True), 8)
    assert shares(rotation) == {1: 4, 2: 1}


def test_a_paced_host_whose_rules_the_walker_does_not_know_gets_one_url() -> None:
    rate = HostRate(0.5)
    rotation = Rotation([candidate(1), candidate(2)], rate, 4, Forbids(knows=[1]))
    assert shares(rotation) == {1: 2, 2: 1}


def test_a_recovering_host_gets_one_url() -> None:
    rotation = Rotation([candidate(1, WARY)], FREE, 8)
    assert rotation.needs_in_flight
    assert rotation.limit({}) == []
    assert shares(rotation) == {1: 1}
    read(rotation, {1: tasks(1, 10)})
    rotation.grant({})
    assert [one.is_recovering for one in rotation.tasks] == [True]


def test_a_recovering_host_with_a_url_in_flight_waits_for_the_answer() -> None:
    rotation = Rotation([candidate(1, WARY), candidate(2)], FREE, 8)
    assert rotation.limit({1: 1, 2: 3}) == []
    assert shares(rotation) == {2: 8}
    awaited = rotation.batches[0]
    assert (awaited.is_spent, awaited.look_again_in_seconds) == (False, AWAITED_SECONDS)


def test_urls_in_flight_are_not_needed_without_recovering_hosts_and_limits() -> None:
    assert not Rotation([candidate(1)], FREE, 8).needs_in_flight


# Pages of one host


def limited(*hosts: HostCandidate, per_host: int = 5) -> Rotation:
    return Rotation(hosts, HostRate(0.0, per_host=per_host), 20)


def hosts_of(batches: list[HostBatch]) -> list[int]:
    return [batch.host for batch in batches]


def test_a_host_gives_no_more_pages_than_its_limit_with_those_in_flight() -> None:
    rotation = limited(candidate(1, pages=2), candidate(2))
    assert rotation.needs_in_flight
    assert rotation.limit({1: 1}) == []
    assert shares(rotation) == {1: 2, 2: 5}


def test_a_host_that_has_given_all_its_pages_is_closed() -> None:
    rotation = limited(candidate(1, pages=5), candidate(2, pages=7), candidate(3, pages=4))
    assert hosts_of(rotation.limit({})) == [1, 2]
    assert shares(rotation) == {3: 1}
    assert [batch.is_spent for batch in rotation.batches] == [True, True, False]


def test_a_host_whose_last_pages_are_in_flight_is_not_closed_yet() -> None:
    rotation = limited(candidate(1, pages=4))
    assert rotation.limit({1: 1}) == []
    assert shares(rotation) == {}


# URLs that are not to be fetched


def test_a_forbidden_url_is_set_aside_and_another_one_takes_its_slot() -> None:
    rotation = Rotation([candidate(1)], HostRate(1.0), 2, Forbids(10))
    lines = {1: tasks(1, 10, 11, 12, 13)}
    read_all(rotation, lines)
    rotation.grant({1: SlotsGranted(2)})
    assert [(one.seq, one.skip_fate) for one in rotation.tasks] == [(11, None), (12, None), (10, Fate.SKIPPED_ROBOTS)]


def test_a_host_without_a_delay_leaves_the_check_to_the_walker() -> None:
    rotation = Rotation([candidate(1)], FREE, 2, Forbids(10))
    assert not rotation.exclude(read(rotation, {1: tasks(1, 10, 11)}), {})
    assert [one.seq for one in rotation.tasks] == [10, 11]


def test_many_forbidden_urls_do_not_leave_a_slot_unused_but_reading_ends() -> None:
    rotation = Rotation([candidate(1)], HostRate(1.0), 1, Forbids(*range(30)))
    read_all(rotation, {1: tasks(1, *range(40))})
    assert [one.seq for one in rotation.batches[0].tasks] == [30]
    rotation = Rotation([candidate(1)], HostRate(1.0), 1, Forbids(*range(100)))
    assert read_all(rotation, {1: tasks(1, *range(200))}) == MOST_ROUNDS


def test_the_target_of_another_urls_redirects_is_set_aside_unless_it_redirects_itself() -> None:
    rotation = Rotation([candidate(1)], FREE, 3)
    [batch] = rotation.batches
    plain, redirected, other = tasks(1, 10, 11, 12)
    redirected.chain = RedirectChain(())
    batch.add_tried([plain, redirected, other])
    fates = {(10, 10): Fate.FETCHED_VIA, (11, 11): Fate.FETCHED_VIA}
    assert rotation.exclude([plain, redirected, other], fates)
    assert batch.tasks == [redirected, other]
    assert (batch.tried, batch.set_aside) == (2, [(plain, True)])
    assert plain.skip_fate is Fate.FETCHED_VIA


# Shares of walkers


def test_walkers_leave_each_other_an_equal_share_of_the_free_hosts() -> None:
    share = share_hosts([claimed(host) for host in range(6)], 0, 3, "me")
    assert ([one.host for one in share.chosen], share.let_go) == ([0, 1], [])


def test_hosts_that_others_have_claimed_count_for_the_share() -> None:
    share = share_hosts([claimed(1), claimed(2), claimed(3)], 3, 2, "me")
    assert [one.host for one in share.chosen] == [1, 2, 3]
    share = share_hosts([claimed(1), claimed(2), claimed(3)], 1, 2, "me")
    assert [one.host for one in share.chosen] == [1, 2]


def test_a_walker_with_more_than_its_share_lets_the_rest_go() -> None:
    share = share_hosts([claimed(1, "me"), claimed(2, "me"), claimed(3, "me"), claimed(4)], 0, 2, "me")
    assert ([one.host for one in share.chosen], share.let_go) == ([1, 2], [3])


def test_a_walker_keeps_its_hosts_before_it_claims_free_ones() -> None:
    share = share_hosts([claimed(1), claimed(2, "me"), claimed(3), claimed(4)], 0, 2, "me")
    assert [one.host for one in share.chosen] == [2, 1]


def test_hosts_of_a_dead_walker_are_free() -> None:
    share = share_hosts([claimed(1, "dead"), claimed(2, "dead")], 0, 1, "me")
    assert [one.host for one in share.chosen] == [1, 2]


def test_a_host_that_nobody_took_for_a_while_belongs_to_whoever_comes() -> None:
    late = UNCLAIMED_SECONDS + 0.1
    share = share_hosts(
        [claimed(1), claimed(2, overdue_seconds=late), claimed(3, overdue_seconds=UNCLAIMED_SECONDS)], 0, 3, "me"
    )
    assert [one.host for one in share.chosen] == [1, 2]


def test_a_walker_that_no_longer_counts_as_live_takes_everything() -> None:
    assert len(share_hosts([claimed(1), claimed(2)], 0, 0, "me").chosen) == 2

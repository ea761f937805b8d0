"""The fetch pool: slots that have passed, robots.txt, holds, isolation, and what is withdrawn."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from shoal.base.clock import FakeClock
from shoal.base.settings import HostSettings
from shoal.base.url import Url
from shoal.egress import Failure
from shoal.egress.exchange import LATE, NO_DEADLINE
from shoal.hosts.robots import RobotsRecord, RobotsState, Rules
from shoal.hosts.robots_cache import RobotsAnswer, RobotsRules
from shoal.hosts.throttle import ThrottleTracker
from shoal.web.fetch_pool import LATE_SECONDS, Admitted, FetchPool, WindowSize
from shoal.web.page_fetcher import Fetched
from tests.support.patience import wait_until

HOST = 7
DELAY = 1.0
TOLERANCE = 0.1


@dataclass(eq=False)
class Task:
    seq: int
    host: int = HOST
    delay_seconds: float = 0.0
    slot_at: float = 0.0
    start_in_seconds: float = 0.0
    attempts: int = 0
    at: Url = field(init=False)

    def __post_init__(self) -> None:
        self.at = Url(f"http://host-{self.host}.example/{self.seq}")


class Handle:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Source:
    """Robots.txt rules that allow everything, requested at this time."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    async def rules_of(self, origin: str) -> Rules:
        record = RobotsRecord(RobotsState.FOUND, "")
        return Rules(record, "shoal", timedelta(seconds=30), self._clock.monotonic())


class Caller:
    """Records what the pool does with its tasks."""

    def __init__(self, *, per_host: int = 2, asks_robots: bool = False) -> None:
        self.clock = FakeClock()
        self.clock.jump(100)
        self.throttle = ThrottleTracker(HostSettings(), self.clock)
        self.pool: FetchPool[Task] = FetchPool(WindowSize(4, per_host), self, self.throttle)
        self.robots = RobotsRules(Source(self.clock))
        self.asks_robots = asks_robots
        self.is_closed = self.is_out_of_reach = False
        self.started: list[int] = []
        self.send_by: list[float] = []
        self.handed_back: list[tuple[int, float]] = []
        self.got: list[int] = []
        self.done: dict[int, Callable[[Fetched], None]] = {}
        self.handles: dict[int, Handle] = {}
        self.changed = asyncio.Event()

    def task(self, seq: int, *, late: float = 0.0, host: int = HOST) -> Task:
        """A task whose slot is now, or was a while ago."""
        return Task(seq, host, DELAY, self.clock.monotonic() - late)

    def admit(self, task: Task) -> Admitted | None:
        if self.asks_robots and self.robots.judge(task.at) is RobotsAnswer.UNKNOWN:
            return Admitted.AFTER_ROBOTS
        return Admitted.NOW

    def robots_of(self, task: Task) -> RobotsRules:
        return self.robots

    def start(self, task: Task, send_by: float, done: Callable[[Fetched], None]) -> Handle:
        self.started.append(task.seq)
        self.send_by.append(send_by)
        self.done[task.seq] = done
        self.handles[task.seq] = Handle()
        return self.handles[task.seq]

    def fetched(self, task: Task, fetched: Fetched) -> None:
        self.got.append(task.seq)

    def hand_back(self, task: Task, wait_seconds: float) -> None:
        self.handed_back.append((task.seq, wait_seconds))
        self.changed.set()

    def failed(self, task: Task | None, error: Exception) -> None:
        raise error


def page(task: Task, status: int = 200) -> Fetched:
    return Fetched(task.at, 0.01, status=status)


async def test_a_request_is_sent_in_its_slot_and_not_later_than_a_tenth_of_the_delay_after_it() -> None:
    caller = Caller()
    caller.pool.accept([Task(0)])
    caller.clock.jump(10)
    caller.pool.accept([caller.task(1, late=0.9 * TOLERANCE)])
    assert caller.started == [0, 1]
    assert caller.send_by[0] == NO_DEADLINE
    assert caller.send_by[1] <= caller.clock.monotonic() + TOLERANCE


async def test_of_requests_that_are_late_none_is_sent_soon_after_another() -> None:
    caller = Caller(per_host=10)
    caller.pool.accept([caller.task(0)])
    caller.clock.jump(0.5 * DELAY)
    caller.pool.accept([caller.task(seq, late=0.4) for seq in (1, 2)])
    assert caller.started == [0]
    assert caller.handed_back == [(1, 0.0), (2, 0.0)]


async def test_after_a_long_stop_one_late_request_goes_out() -> None:
    caller = Caller(per_host=10)
    caller.pool.accept([caller.task(0)])
    caller.clock.jump(6)
    caller.pool.accept([caller.task(seq, late=5 - seq) for seq in (1, 2, 3)])
    assert caller.started == [0, 1]
    assert [seq for seq, _ in caller.handed_back] == [2, 3]


async def test_a_slot_in_time_is_not_used_right_after_another_request_of_ours() -> None:
    caller = Caller(per_host=10)
    caller.pool.accept([caller.task(0), caller.task(1)])
    assert (caller.started, caller.handed_back) == ([0], [(1, 0.0)])
    caller.clock.jump(DELAY)
    caller.pool.accept([caller.task(2)])
    assert caller.started == [0, 2]


async def test_a_short_delay_tolerates_some_milliseconds() -> None:
    caller = Caller(per_host=10)
    for seq in range(3):
        caller.pool.accept([Task(seq, HOST, 0.05, caller.clock.monotonic() - 0.9 * LATE_SECONDS)])
        caller.clock.jump(0.05)
    assert caller.started == [0, 1, 2]


async def test_a_request_that_could_not_be_sent_in_time_is_handed_back() -> None:
    caller = Caller()
    task = caller.task(0)
    caller.pool.accept([task])
    caller.done[0](Fetched(task.at, 0.0, failure=Failure(LATE, "", retryable=True)))
    assert (caller.handed_back, caller.got, caller.pool.in_flight) == ([(0, 0.0)], [], 0)


async def test_robots_txt_uses_the_slot_of_the_page_that_waits_for_it() -> None:
    caller = Caller(asks_robots=True)
    caller.pool.accept([caller.task(0)])
    assert caller.started == []
    await wait_until(lambda: bool(caller.handed_back), caller.changed)
    assert caller.started == []
    caller.clock.jump(DELAY)
    caller.pool.accept([caller.task(1)])
    assert caller.started == [1]
    caller.robots.close()


async def test_the_queue_of_a_host_is_handed_back_when_it_asks_us_to_wait() -> None:
    caller = Caller(per_host=1)
    tasks = [Task(seq) for seq in range(3)]
    caller.pool.accept(tasks)
    caller.done[0](page(tasks[0], 429))
    assert caller.got == [0]
    assert [seq for seq, _ in caller.handed_back] == [1, 2]
    assert all(wait > 1 for _, wait in caller.handed_back)
    caller.pool.accept([Task(3), Task(4, host=8)])
    assert caller.started == [0, 4]


async def test_a_task_that_may_kill_the_process_runs_alone() -> None:
    caller = Caller()
    others = [Task(seq, host=seq) for seq in range(6)]
    caller.pool.accept(others)
    assert caller.started == [0, 1, 2, 3]
    caller.pool.isolate(Task(9, host=9))
    assert [seq for seq, _ in caller.handed_back] == [4, 5]
    for seq in range(4):
        assert 9 not in caller.started
        caller.done[seq](page(others[seq]))
    assert caller.started[-1] == 9
    caller.pool.accept([Task(10, host=10)])
    assert caller.started[-1] == 9
    caller.pool.cancel(9)
    caller.pool.end_isolation()
    assert caller.started[-1] == 10


async def test_what_has_not_started_can_be_withdrawn() -> None:
    caller = Caller(per_host=1, asks_robots=True)
    caller.robots = RobotsRules(Source(caller.clock))
    caller.pool.accept([Task(0, host=1), Task(1, start_in_seconds=60.0), Task(2, start_in_seconds=60.0)])
    assert [task.seq for task in caller.pool.withdraw({1})] == [1]
    assert caller.pool.waiting_for_slots == 1
    assert sorted(task.seq for task in caller.pool.withdraw()) == [0, 2]
    assert caller.pool.waiting_for_slots == 0
    caller.asks_robots = False
    caller.pool.accept([Task(seq) for seq in (3, 4, 5)])
    assert caller.started == [3]
    assert [task.seq for task in caller.pool.queued()] == [4, 5]
    assert [task.seq for task in caller.pool.withdraw({5})] == [5]
    caller.done[3](page(Task(3)))
    assert caller.started == [3, 4]
    caller.robots.close()


async def test_a_cancelled_fetch_frees_its_place_and_reports_nothing() -> None:
    caller = Caller(per_host=1)
    caller.pool.accept([Task(0), Task(1)])
    caller.pool.cancel(0)
    assert caller.handles[0].is_cancelled
    caller.done[0](page(Task(0)))
    assert (caller.started, caller.got) == ([0, 1], [])


async def test_waiting_for_a_slot_ends_when_it_is_useless() -> None:
    caller = Caller()
    caller.pool.accept([Task(0, start_in_seconds=60.0)])
    assert caller.started == []
    caller.is_out_of_reach = True
    caller.pool.fill()
    assert caller.started == [0]


async def test_nothing_starts_while_the_caller_is_closed() -> None:
    caller = Caller()
    caller.is_closed = True
    caller.pool.accept([Task(0)])
    assert caller.started == []
    caller.is_closed = False
    caller.pool.fill()
    assert caller.started == [0]

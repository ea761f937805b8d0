"""The fetch pool, which alone decides when a page is requested.

A task has a URL and a slot at its host; the store has reserved this slot. The task first waits for its slot (a timer),
then for the robots.txt of its host (parked), then in the queue of its host, and is then started. All steps run in
callbacks, without an asyncio task per page: when a fetch ends, its caller gets the response immediately, and the next
fetch starts.

A `PoolCaller` is a part of Shoal that wants pages, such as a walker. Callers do not handle slots: if a task may not
start because its host asks us to wait or because its slot has passed, the task is returned to its caller, which asks
the store for a new slot.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable
from enum import Enum
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from shoal.base.url import Url, origin
from shoal.egress import Cancellable
from shoal.egress.exchange import LATE, NO_DEADLINE
from shoal.hosts.rate import AHEAD_SECONDS, FetchRate
from shoal.hosts.robots_cache import RobotsRules
from shoal.hosts.throttle import THROTTLED, HostAnswer, ThrottleTracker
from shoal.web.page_fetcher import Fetched

LATE_SHARE: Final = 0.1  # tolerance for a late request, as a share of the delay
LATE_SECONDS: Final = 0.02  # minimum of this tolerance, for short delays
MOST_HOSTS: Final = 10_000  # maximum number of hosts whose last request is remembered


class WindowSize(Struct, frozen=True):
    """The maximum number of fetches in flight, in total and per host."""

    total: int
    per_host: int


class Admitted(Enum):
    """The condition under which an admitted task may start."""

    NOW = "now"  # as soon as there is a place in the pool
    AFTER_ROBOTS = "after_robots"  # once the robots.txt of its host is known


class PoolTask(Protocol):
    """A URL to request, and its slot at its host."""

    host: int
    start_in_seconds: float  # time until the task may start, if it has no delay
    slot_at: float  # time of its slot, by the clock of this process; 0 if it has no delay
    delay_seconds: float  # time between its slot and the neighbouring slots; 0 if it needs no slot

    @property
    def seq(self) -> Hashable: ...  # unique among the tasks in the pool

    @property
    def at(self) -> Url: ...  # the URL to request

    @property
    def attempts(self) -> int: ...  # number of earlier attempts


T = TypeVar("T", bound=PoolTask)
T_contra = TypeVar("T_contra", bound=PoolTask, contravariant=True)


class PoolCaller(Protocol[T_contra]):
    """A part of Shoal that wants pages. All methods are called in the pool's event loop."""

    @property
    def is_closed(self) -> bool:
        """Return whether no fetch may start now. When this changes, the caller calls `FetchPool.fill`."""
        ...

    @property
    def is_out_of_reach(self) -> bool:
        """Return whether waiting for slots is useless, because every task will fail without a request."""
        ...

    def admit(self, task: T_contra) -> Admitted | None:
        """Return the condition under which a task whose slot has come may start; None if the caller has ended the task
        without a fetch."""
        ...

    def robots_of(self, task: T_contra) -> RobotsRules:
        """Return the rules that an admitted task waits for."""
        ...

    def start(self, task: T_contra, send_by: float, done: Callable[[Fetched], None]) -> Cancellable:
        """Send the request of a task, not later than `send_by`, and call `done` once, unless cancelled first."""
        ...

    def fetched(self, task: T_contra, fetched: Fetched) -> None:
        """Accept the response of a task, which has left the pool."""
        ...

    def hand_back(self, task: T_contra, wait_seconds: float) -> None:
        """Accept a task that may not start. `wait_seconds`: for how long its host is held, or 0 if its slot has
        passed."""
        ...

    def failed(self, task: T_contra | None, error: Exception) -> None:
        """Accept an unexpected error of a callback. `task` is None if the error does not concern a single task."""
        ...


class HostQueues(Generic[T]):
    """The queues of the hosts. Hosts take turns, and no host has more fetches in flight than its limit."""

    def __init__(self, per_host: int) -> None:
        self.per_host = per_host
        self._queues: dict[int, deque[T]] = {}
        self.length = 0  # total length of all queues
        self._turns: deque[int] = deque()  # hosts with a queue, some of which may be at their limit
        self._in_flight: Counter[int] = Counter()

    def join(self, task: T) -> None:
        """Add a task to the end of its host's queue."""
        queue = self._queues.setdefault(task.host, deque())
        queue.append(task)
        self.length += 1
        if len(queue) == 1:
            self._turns.append(task.host)

    def next(self) -> T | None:
        """Return the next task that may start, and count it as in flight; None if every host is at its limit."""
        while self._turns:
            host = self._turns.popleft()
            queue = self._queues.get(host)
            if not queue or self._in_flight[host] >= self.per_host:
                continue
            task = queue.popleft()
            self.length -= 1
            self._in_flight[host] += 1
            if queue:
                self._turns.append(host)
            else:
                del self._queues[host]
            return task
        return None

    def ended(self, host: int) -> None:
        """Count the end of a fetch from this host."""
        self._in_flight[host] -= 1
        if host in self._queues:
            self._turns.append(host)
        elif not self._in_flight[host]:
            del self._in_flight[host]

    def tasks(self) -> list[T]:
        """Return the tasks in all queues."""
        return [task for queue in self._queues.values() for task in queue]

    def dissolve(self, host: int) -> Iterable[T]:
        """Remove the queue of a host and return its tasks."""
        queue = self._queues.pop(host, deque())
        self.length -= len(queue)
        return queue

    def dissolve_all(self) -> list[T]:
        """Remove all queues and return their tasks. Fetches in flight still count."""
        tasks = self.tasks()
        self.length = 0
        self._queues.clear()
        self._turns.clear()
        return tasks

    def clear(self) -> None:
        """Remove all queues, and set the number of fetches in flight to zero."""
        self.dissolve_all()
        self._in_flight.clear()


class LastSent(NamedTuple):
    """When this process last sent a request to a host, and since when it has sent none although it had a task for the
    host."""

    at: float
    silent_since: float


NEVER: Final = LastSent(float("-inf"), float("-inf"))


class FetchPool(Generic[T]):
    """Keeps as many fetches in flight as the window, the hosts and their robots.txt allow."""

    def __init__(self, size: WindowSize, caller: PoolCaller[T], throttle: ThrottleTracker) -> None:
        self._total = size.total
        self._caller = caller
        self._throttle = throttle
        self._clock = throttle.clock
        self._queues: HostQueues[T] = HostQueues(size.per_host)
        self._timers: dict[Hashable, tuple[asyncio.TimerHandle, T]] = {}  # tasks that wait for their slot
        self._parked: dict[tuple[RobotsRules, str], list[T]] = {}  # tasks that wait for the robots.txt of an origin
        self._fetching: dict[Hashable, tuple[Cancellable, T]] = {}
        self._alone: T | None = None  # while this task is in the pool, no other task starts
        self._sent: dict[int, LastSent] = {}  # last requests to hosts with a delay
        self._rate: FetchRate | None = None
        self._rate_timer: asyncio.TimerHandle | None = None  # runs until the rate limit allows the next fetch

    @property
    def in_flight(self) -> int:
        return len(self._fetching)

    @property
    def waiting_for_slots(self) -> int:
        """Return how many tasks wait for their slot."""
        return len(self._timers)

    @property
    def waiting_for_robots(self) -> int:
        """Return how many tasks wait for the robots.txt of their host."""
        return sum(map(len, self._parked.values()))

    @property
    def waiting_for_place(self) -> int:
        """Return how many tasks wait only for a place in the pool."""
        return self._queues.length

    @property
    def waits_for_rate(self) -> bool:
        """Return whether nothing is in flight, because the next fetch has to wait for the rate limit."""
        return self._rate_timer is not None and not self._fetching

    @property
    def waits_for(self) -> str | None:
        """Return what the next fetch waits for; None if it waits only for the response to an earlier fetch, or for
        nothing."""
        if self._rate_timer is not None or (self._timers and len(self._fetching) < self._queues.per_host):
            return "the rate limit"
        return "robots.txt" if self.waiting_for_robots and not self._fetching else None

    def first_slot_at(self) -> float:
        """Return the time of the first slot that a task waits for; infinite if no task waits for a slot."""
        return min((task.slot_at for _, task in self._timers.values()), default=float("inf"))

    def queued(self) -> list[T]:
        """Return the tasks that wait only for a place in the pool."""
        return self._queues.tasks()

    def limit_rate(self, rate: FetchRate | None) -> None:
        """Limit the rate at which fetches start; None removes the limit."""
        self._rate = rate
        if self._rate_timer is not None:
            self._rate_timer.cancel()
            self._rate_timer = None
        self.fill()

    def resize(self, size: WindowSize) -> None:
        """Change the maximum number of fetches in flight, and check again whether the queued tasks may start."""
        self._total, self._queues.per_host = size.total, size.per_host
        for task in self._queues.dissolve_all():
            self._admit(task)
        self.fill()

    def accept(self, tasks: Iterable[T]) -> None:
        """Accept tasks, and start the tasks that may start now."""
        loop, now = asyncio.get_running_loop(), self._clock.monotonic()
        for task in tasks:
            if not task.slot_at:
                task.slot_at = now + task.start_in_seconds
            elif task.host not in self._sent:
                self._stamp(task.host, LastSent(float("-inf"), now))
            if (wait := task.slot_at - now) > 0 and not self._caller.is_out_of_reach:
                self._timers[task.seq] = loop.call_later(wait, self._slot_came, task), task
            else:
                self._admit(task)
        self.fill()

    def isolate(self, task: T) -> None:
        """Isolate a task that may kill this process: start it only when no other fetch is in flight, and start no other
        task until `end_isolation`. Tasks that have not started are returned to their callers."""
        for other in self.withdraw():
            self._caller.hand_back(other, 0.0)
        self._alone = task
        self.accept([task])

    def end_isolation(self) -> None:
        self._alone = None
        self.fill()

    def put_back(self, host: int) -> None:
        """Return all queued tasks of a held host to their caller.

        If these tasks waited here, all of them would start at the same time when the hold ends, and other processes
        could not take them.
        """
        for task in self._queues.dissolve(host):
            self._caller.hand_back(task, self._throttle.held_seconds(host))

    def withdraw(self, seqs: Collection[Hashable] | None = None) -> list[T]:
        """Remove the tasks that have not started and return them. If `seqs` is given, remove only the tasks with these
        numbers."""
        waiting = [task for _, task in self._timers.values()]
        waiting += [task for tasks in self._parked.values() for task in tasks]
        queued = self._queues.dissolve_all()
        gone = [task for task in [*waiting, *queued] if seqs is None or task.seq in seqs]
        left = set() if seqs is None else {task.seq for task in [*waiting, *queued]}.difference(seqs)
        for task in gone:
            if (entry := self._timers.pop(task.seq, None)) is not None:
                entry[0].cancel()
        for tasks in self._parked.values():  # keep the lists, because robots.txt has already been requested
            tasks[:] = [task for task in tasks if task.seq in left]
        for task in queued:
            if task.seq in left:
                self._queues.join(task)
        return gone

    def cancel(self, seq: Hashable) -> None:
        """Forget a task, and stop its fetch if it is in flight."""
        if (entry := self._fetching.pop(seq, None)) is not None:
            fetch, task = entry
            fetch.cancel()
            self._queues.ended(task.host)
            self.fill()

    def drop(self) -> None:
        """Cancel the fetches in flight and forget the waiting tasks."""
        for timer, _ in self._timers.values():
            timer.cancel()
        for fetch, _ in self._fetching.values():
            fetch.cancel()
        self._timers.clear()
        self._fetching.clear()
        if self._rate_timer is not None:
            self._rate_timer.cancel()
            self._rate_timer = None
        self._queues.clear()
        self._parked.clear()
        self._alone = None

    def fill(self) -> None:
        """Start the tasks that may start now."""
        if self._timers and self._caller.is_out_of_reach:
            waiting, self._timers = self._timers, {}
            for timer, hopeless in waiting.values():
                timer.cancel()
                self._admit(hopeless)
        total = self._total if self._alone is None else 1
        while len(self._fetching) < total and not self._caller.is_closed:
            if self._rate is not None and (wait_seconds := self._rate.seconds_left()) > 0:
                if self._rate_timer is None:
                    self._rate_timer = asyncio.get_running_loop().call_later(wait_seconds, self._rate_allows)
                return
            if (task := self._queues.next()) is None:
                return
            send_by = NO_DEADLINE
            if task.delay_seconds and (send_by := self._send_by(task)) < 0:
                self._queues.ended(task.host)
                self._caller.hand_back(task, 0.0)
                continue
            if self._rate is not None:
                self._rate.spend()
            try:
                self._fetching[task.seq] = self._caller.start(task, send_by, partial(self._fetched, task)), task
            except Exception as error:
                self._queues.ended(task.host)
                self._caller.failed(task, error)

    def _send_by(self, task: T) -> float:
        """Return the time by which the request of a task must be sent; negative if the request must not be sent.

        If the slot of a task has passed, the task needs a new slot, because its request could come too close to the
        request in the next slot. The exception: if we have sent nothing to the host for a while, send the late request
        anyway. Otherwise, a machine that is always late would never fetch a page.
        """
        now, delay = self._clock.monotonic(), task.delay_seconds
        last = self._sent.get(task.host, NEVER)
        tolerance = max(LATE_SHARE * delay, LATE_SECONDS)
        is_in_time = now - task.slot_at <= tolerance and now - last.at >= delay - tolerance
        if not is_in_time and now - last.silent_since < max(AHEAD_SECONDS, 2 * delay):
            return -1.0
        self._stamp(task.host, LastSent(now, now))
        return max(now, task.slot_at) + tolerance

    def _stamp(self, host: int, last: LastSent) -> None:
        if len(self._sent) >= MOST_HOSTS:
            self._sent.clear()
        self._sent[host] = last

    def _slot_came(self, task: T) -> None:
        self._timers.pop(task.seq, None)
        try:
            self._admit(task)
            self.fill()
        except Exception as error:
            self._caller.failed(task, error)

    def _admit(self, task: T) -> None:
        """Queue a task, or park it until the robots.txt of its host is known, unless its caller ends it without a
        fetch."""
        if self._throttle.counts_successes and (held_seconds := self._throttle.held_seconds(task.host)) > 0:
            self._caller.hand_back(task, held_seconds)
            return
        admitted = self._caller.admit(task)
        if admitted is Admitted.NOW:
            self._queues.join(task)
        elif admitted is Admitted.AFTER_ROBOTS:
            rules, host_origin = self._caller.robots_of(task), origin(task.at)
            if (rules, host_origin) in self._parked:
                self._parked[rules, host_origin].append(task)
            else:
                self._parked[rules, host_origin] = [task]
                rules.ask(host_origin, partial(self._unpark, rules, host_origin))

    def _unpark(self, rules: RobotsRules, host_origin: str) -> None:
        known = rules.known(host_origin)
        for task in self._parked.pop((rules, host_origin), []):
            if known is not None and known.sent_at is not None:  # the robots.txt request has used the slot
                at = max(known.sent_at, self._sent.get(task.host, NEVER).at)
                self._stamp(task.host, LastSent(at, at))
            try:
                self._admit(task)
            except Exception as error:
                self._caller.failed(task, error)
        self._refill()

    def _refill(self) -> None:
        try:
            self.fill()
        except Exception as error:
            self._caller.failed(None, error)

    def _rate_allows(self) -> None:
        self._rate_timer = None
        self._refill()

    def _fetched(self, task: T, fetched: Fetched) -> None:
        if self._fetching.pop(task.seq, None) is None:
            return  # cancelled
        self._queues.ended(task.host)
        try:
            if fetched.failure is not None and fetched.failure.code == LATE:
                self._caller.hand_back(task, 0.0)
            else:
                if fetched.status in THROTTLED or self._throttle.counts_successes:
                    self._record(task, fetched)
                self._caller.fetched(task, fetched)
        except Exception as error:
            self._caller.failed(task, error)
        self._refill()

    def _record(self, task: T, fetched: Fetched) -> None:
        """Record the response for the throttling of its host."""
        host_origin = origin(task.at)
        if fetched.chain is None and not fetched.final_url.startswith(f"{host_origin}/"):
            return  # redirects were followed, and a different host responded
        error = fetched.failure.code if fetched.failure is not None else None
        answer = HostAnswer(
            host_origin,
            task.host,
            xxh3_64_intdigest(task.at.encode()),
            task.attempts,
            fetched.status,
            fetched.seconds,
            error,
            fetched.retry_after,
        )
        if self._throttle.record(answer):
            self.put_back(task.host)

"""The fetch pool: the one place that decides when a page is requested.

A task has a URL and a slot at its host, which the store has reserved. It waits for its slot (a timer), then for the
robots.txt of its host (parked), then in the queue of its host, and is then started. All of this runs on callbacks,
without an asyncio task per page: when a fetch ends, its caller gets the response on the spot, and the next one starts.

A `PoolCaller` wants pages: walkers, page jobs, single fetches. None of them knows about slots: what may not start (its
host asks us to wait, or its slot has passed) is returned to its caller, which asks the store for another slot.
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

LATE_SHARE: Final = 0.1  # of the delay: by so much a request may be late for its slot
LATE_SECONDS: Final = 0.02  # the same for short delays
MOST_HOSTS: Final = 10_000  # whose last request is remembered


class WindowSize(Struct, frozen=True):
    """The maximum number of fetches in flight, in total and per host."""

    total: int
    per_host: int


class Admitted(Enum):
    """The moment from which an admitted task may start."""

    NOW = "now"  # only for its place in the pool
    AFTER_ROBOTS = "after_robots"  # the robots.txt of its host, which is not known yet


class PoolTask(Protocol):
    """A URL to request, and the slot that its host has for it."""

    host: int
    start_in_seconds: float  # until its slot, if it has no delay
    slot_at: float  # its slot, by the clock of this process; 0 if it has no delay
    delay_seconds: float  # between its slot and those before and after it; 0 if it needs none

    @property
    def seq(self) -> Hashable: ...  # distinguishes it from all others in the pool

    @property
    def at(self) -> Url: ...  # the URL to request

    @property
    def attempts(self) -> int: ...  # how often it was tried before


T = TypeVar("T", bound=PoolTask)
T_contra = TypeVar("T_contra", bound=PoolTask, contravariant=True)


class PoolCaller(Protocol[T_contra]):
    """Who wants pages. All methods are called in the event loop of the pool."""

    @property
    def is_closed(self) -> bool:
        """Return whether nothing may start now; `FetchPool.fill` is called when that changes."""
        ...

    @property
    def is_out_of_reach(self) -> bool:
        """Return whether waiting for slots is useless, because every task will fail without a request."""
        ...

    def admit(self, task: T_contra) -> Admitted | None:
        """Return when a task whose slot has come may start; None if the caller has ended it without a fetch."""
        ...

    def robots_of(self, task: T_contra) -> RobotsRules:
        """Return the rules that an admitted task waits for."""
        ...

    def start(self, task: T_contra, send_by: float, done: Callable[[Fetched], None]) -> Cancellable:
        """Send the request of a task, not later than `send_by`, and call `done` once, unless cancelled first."""
        ...

    def fetched(self, task: T_contra, fetched: Fetched) -> None:
        """Take the response of a task, which has left the pool."""
        ...

    def hand_back(self, task: T_contra, wait_seconds: float) -> None:
        """Take a task that may not start: its host is held for this time, or its slot has passed (0)."""
        ...

    def failed(self, task: T_contra | None, error: Exception) -> None:
        """Take an unexpected error of a callback about a task; None: about no single one."""
        ...


class HostQueues(Generic[T]):
    """Hosts take turns, and none has more fetches in flight than its limit."""

    def __init__(self, per_host: int) -> None:
        self.per_host = per_host
        self._queues: dict[int, deque[T]] = {}
        self.length = 0  # of all queues together
        self._turns: deque[int] = deque()  # hosts with a queue, some of which may be at their limit
        self._in_flight: Counter[int] = Counter()

    def join(self, task: T) -> None:
        """Put a task at the end of its host's queue."""
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
        """Remove all queues, and count nothing as in flight."""
        self.dissolve_all()
        self._in_flight.clear()


class LastSent(NamedTuple):
    """When this process sent its last request to a host, and since when it has sent none although it had a task for
    it."""

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
        self._alone: T | None = None  # while it is in the pool, nothing else starts
        self._sent: dict[int, LastSent] = {}  # to hosts with a delay
        self._rate: FetchRate | None = None
        self._rate_timer: asyncio.TimerHandle | None = None  # until the rate limit allows the next fetch

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
        """Return how many tasks could start if there were a place for them."""
        return self._queues.length

    @property
    def waits_for_rate(self) -> bool:
        """Return whether nothing is in flight because of the rate limit."""
        return self._rate_timer is not None and not self._fetching

    @property
    def waits_for(self) -> str | None:
        """Return what the next fetch waits for; None if that is the response to an earlier one, or nothing."""
        if self._rate_timer is not None or (self._timers and len(self._fetching) < self._queues.per_host):
            return "the rate limit"
        return "robots.txt" if self.waiting_for_robots and not self._fetching else None

    def first_slot_at(self) -> float:
        """Return the time of the first slot that a task waits for; infinite if none does."""
        return min((task.slot_at for _, task in self._timers.values()), default=float("inf"))

    def queued(self) -> list[T]:
        """Return the tasks that could start if there were a place for them."""
        return self._queues.tasks()

    def limit_rate(self, rate: FetchRate | None) -> None:
        """Start fetches only at this rate; None: as soon as possible."""
        self._rate = rate
        if self._rate_timer is not None:
            self._rate_timer.cancel()
            self._rate_timer = None
        self.fill()

    def resize(self, size: WindowSize) -> None:
        """Change how many fetches may be in flight, and have the tasks that wait in queues admitted again."""
        self._total, self._queues.per_host = size.total, size.per_host
        for task in self._queues.dissolve_all():
            self._admit(task)
        self.fill()

    def accept(self, tasks: Iterable[T]) -> None:
        """Take over tasks, and start what may start."""
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
        """Start a task that may kill this process only when nothing else is in flight, and nothing beside it until
        `end_isolation`. What has not started is returned."""
        for other in self.withdraw():
            self._caller.hand_back(other, 0.0)
        self._alone = task
        self.accept([task])

    def end_isolation(self) -> None:
        self._alone = None
        self.fill()

    def put_back(self, host: int) -> None:
        """Return the queue of a host that is held.

        If it waited here, all of it would start at the same time when the hold ends, and others could not take it.
        """
        for task in self._queues.dissolve(host):
            self._caller.hand_back(task, self._throttle.held_seconds(host))

    def withdraw(self, seqs: Collection[Hashable] | None = None) -> list[T]:
        """Remove the tasks that have not started, or those of them with these numbers, and return them."""
        waiting = [task for _, task in self._timers.values()]
        waiting += [task for tasks in self._parked.values() for task in tasks]
        queued = self._queues.dissolve_all()
        gone = [task for task in [*waiting, *queued] if seqs is None or task.seq in seqs]
        left = set() if seqs is None else {task.seq for task in [*waiting, *queued]}.difference(seqs)
        for task in gone:
            if (entry := self._timers.pop(task.seq, None)) is not None:
                entry[0].cancel()
        for tasks in self._parked.values():  # the lists stay: robots.txt is on its way
            tasks[:] = [task for task in tasks if task.seq in left]
        for task in queued:
            if task.seq in left:
                self._queues.join(task)
        return gone

    def cancel(self, seq: Hashable) -> None:
        """Stop the fetch of a task, if it is in flight, and forget it."""
        if (entry := self._fetching.pop(seq, None)) is not None:
            fetch, task = entry
            fetch.cancel()
            self._queues.ended(task.host)
            self.fill()

    def drop(self) -> None:
        """Cancel what is in flight and forget what waits."""
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
        """Start what may start."""
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
        """Return until when the request of a task may be sent, if it is sent now; negative if it must not be.

        A slot that has passed belongs to nobody: whoever has the next one must not be followed too closely. So the task
        needs another slot. Only if we have sent nothing to the host for a while does a late one go out, because on a
        machine that is always late no page would be fetched otherwise.
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
        """Queue a task, have its caller end it, or park it until the robots.txt of its host is known."""
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
            if known is not None and known.sent_at is not None:  # the request for robots.txt has used the slot
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
        """Record what a response says about its host."""
        host_origin = origin(task.at)
        if fetched.chain is None and not fetched.final_url.startswith(f"{host_origin}/"):
            return  # redirects were followed on the way, and another host responded
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

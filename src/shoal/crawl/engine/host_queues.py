"""Queues of tasks that may start, one per host. `FetchWindow` decides when the next one starts."""

from collections import Counter, deque
from collections.abc import Iterable

from shoal.crawl.frontier.values import FrontierTask


class HostQueues:
    """Hosts take turns, and none has more fetches in flight than its limit."""

    def __init__(self, per_host: int) -> None:
        self.per_host = per_host
        self._queues: dict[int, deque[FrontierTask]] = {}
        self._turns: deque[int] = deque()  # hosts with a queue, some of which may be at their limit
        self._in_flight: Counter[int] = Counter()

    def join(self, task: FrontierTask) -> None:
        """Put a task at the end of its host's queue."""
        queue = self._queues.setdefault(task.host, deque())
        queue.append(task)
        if len(queue) == 1:
            self._turns.append(task.host)

    def next(self) -> FrontierTask | None:
        """Return the next task that may start, and count it as in flight; None if every host is at its limit."""
        while self._turns:
            host = self._turns.popleft()
            queue = self._queues.get(host)
            if not queue or self._in_flight[host] >= self.per_host:
                continue
            task = queue.popleft()
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

    def dissolve(self, host: int) -> Iterable[FrontierTask]:
        """Remove the queue of a host and return its tasks."""
        return self._queues.pop(host, ())

    def dissolve_all(self) -> list[FrontierTask]:
        """Remove all queues and return their tasks. Fetches in flight still count."""
        queues, self._queues = self._queues, {}
        self._turns.clear()
        return [task for queue in queues.values() for task in queue]

    def clear(self) -> None:
        """Remove all queues, and count nothing as in flight."""
        self.dissolve_all()
        self._in_flight.clear()

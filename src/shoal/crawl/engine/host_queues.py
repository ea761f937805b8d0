"""The lines of tasks whose time has come, one for each host. When the next one starts is the engine's to say."""

from collections import Counter, deque
from collections.abc import Iterable

from shoal.crawl.frontier.values import FrontierTask


class HostQueues:
    """Hosts take turns; each has no more under way than it may."""

    def __init__(self, per_host: int) -> None:
        self.per_host = per_host
        self._lines: dict[int, deque[FrontierTask]] = {}
        self._turns: deque[int] = deque()  # hosts with a line, and perhaps room for one more
        self._under_way: Counter[int] = Counter()

    def join(self, task: FrontierTask) -> None:
        """Wait behind the others of the same host."""
        line = self._lines.setdefault(task.host, deque())
        line.append(task)
        if len(line) == 1:
            self._turns.append(task.host)

    def next(self) -> FrontierTask | None:
        """The next task that may start; it is under way from now on. None if every host has enough to do."""
        while self._turns:
            host = self._turns.popleft()
            line = self._lines.get(host)
            if not line or self._under_way[host] >= self.per_host:
                continue
            task = line.popleft()
            self._under_way[host] += 1
            if line:
                self._turns.append(host)
            else:
                del self._lines[host]
            return task
        return None

    def ended(self, host: int) -> None:
        """One task of the host is under way no longer."""
        self._under_way[host] -= 1
        if host in self._lines:
            self._turns.append(host)
        elif not self._under_way[host]:
            del self._under_way[host]

    def dissolve(self, host: int) -> Iterable[FrontierTask]:
        """Give up the line of a host: who stood there."""
        return self._lines.pop(host, ())

    def dissolve_all(self) -> list[FrontierTask]:
        """Give up every line; what is under way stays so."""
        lines, self._lines = self._lines, {}
        self._turns.clear()
        return [task for line in lines.values() for task in line]

    def clear(self) -> None:
        """Nobody waits, and nothing is under way."""
        self.dissolve_all()
        self._under_way.clear()

"""The recent tasks of a worker: how many succeeded, and how long they took."""

from collections import deque

from shoal.base.clock import Clock

WINDOW_SECONDS = 300.0
STEP_SECONDS = 1.0  # tasks that end within it are one entry


class TaskWindow:
    """Counts the tasks that ended within the last five minutes, and all since the start. A task is a job that ended:
    one that was handed back did not."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: deque[list[float]] = deque()  # when, done, failed, timed, seconds
        self.total = 0

    def record(self, *, done: int = 0, failed: int = 0, timed: int = 0, seconds: float = 0.0) -> None:
        """Count tasks that ended now; `timed` of them took `seconds` in total."""
        now = self._clock.monotonic()
        self.total += done + failed
        if not self._entries or now - self._entries[-1][0] >= STEP_SECONDS:
            self._entries.append([now, 0, 0, 0, 0.0])
        for place, value in enumerate((done, failed, timed, seconds), 1):
            self._entries[-1][place] += value
        self._forget(now)

    def recent(self) -> tuple[int, float, float]:
        """Return the number of recent tasks, the part that succeeded (1 if there are none), and the mean seconds of
        those whose time is known (0 if there are none)."""
        self._forget(self._clock.monotonic())
        done, failed, timed, seconds = (sum(entry[place] for entry in self._entries) for place in range(1, 5))
        count = int(done + failed)
        return count, done / count if count else 1.0, seconds / timed if timed else 0.0

    def _forget(self, now: float) -> None:
        while self._entries and now - self._entries[0][0] > WINDOW_SECONDS:
            self._entries.popleft()

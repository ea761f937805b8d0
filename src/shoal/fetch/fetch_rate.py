"""A limit on how many fetches a process starts per second, whatever their hosts."""

from shoal.base.clock import Clock

BURST_SECONDS = 0.1  # seconds: starts missed within this time are made up for


class FetchRate:
    """Spaces the starts of fetches evenly. None instead of an instance means unlimited, which costs nothing."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self.per_second = per_second
        self._clock = clock
        self._next_at = clock.monotonic()

    def seconds_left(self) -> float:
        """Return the seconds until the next fetch may start; 0: it may start now."""
        return max(0.0, self._next_at - self._clock.monotonic())

    def spend(self) -> None:
        """Count a fetch that starts now."""
        self._next_at = max(self._next_at, self._clock.monotonic() - BURST_SECONDS) + 1 / self.per_second

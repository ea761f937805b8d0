"""A limit on how many fetches a process starts per second, whatever their hosts."""

from shoal.base.clock import Clock

BURST_SECONDS = 0.1  # seconds: starts missed within this time are made up for


class FetchRate:
    """Spaces the starts of fetches evenly. None instead of an instance means unlimited, which costs nothing."""

    def __init__(self, per_second: float, clock: Clock) -> None:
        self.per_second = per_second
        self._clock = clock
        self._next_at = clock.monotonic()

    def change(self, per_second: float) -> None:
        """Use another rate from now on. The time since the last start counts, so changes add no starts."""
        now = self._clock.monotonic()
        if self._next_at > now:
            self._next_at = now + (self._next_at - now) * self.per_second / per_second
        self.per_second = per_second

    def seconds_left(self) -> float:
        """Return the seconds until the next fetch may start; 0: it may start now."""
        return max(0.0, self._next_at - self._clock.monotonic())

    def spend(self) -> None:
        """Count a fetch that starts now."""
        self._next_at = max(self._next_at, self._clock.monotonic() - BURST_SECONDS) + 1 / self.per_second


def changed(rate: FetchRate | None, per_second: float | None, clock: Clock) -> FetchRate | None:
    """Return the limit that follows `rate`: the same one with a new rate, a new one, or none."""
    if rate is None or per_second is None:
        return None if per_second is None else FetchRate(per_second, clock)
    rate.change(per_second)
    return rate

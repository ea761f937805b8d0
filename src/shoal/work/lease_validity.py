"""The period for which a process may rely on its lease, measured by its own clock."""

from datetime import timedelta

from shoal.base.clock import Clock

VALID_PART = 0.8  # share of a lease's term; after it, nothing is taken until the lease is renewed


class LeaseValidity:
    """The time since the last renewal that is known to have happened."""

    def __init__(self, term: timedelta, clock: Clock) -> None:
        self._valid_seconds = term.total_seconds() * VALID_PART
        self._clock = clock
        self._renewed_at = clock.monotonic()

    def renew(self, requested_at: float | None = None) -> None:
        """Record a renewal. It happened no earlier than it was requested; without a time, it happened just now."""
        self._renewed_at = self._clock.monotonic() if requested_at is None else requested_at

    def holds(self) -> bool:
        return self._clock.monotonic() - self._renewed_at < self._valid_seconds

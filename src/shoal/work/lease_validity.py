"""How far a lease can be trusted by the clock of whoever works under it."""

from datetime import timedelta

from shoal.base.clock import Clock

TRUSTED_PART = 0.8  # of a lease's term: after that nothing more is taken until it is renewed


class LeaseValidity:
    """Counts from the last renewal that is known to have happened."""

    def __init__(self, term: timedelta, clock: Clock) -> None:
        self._seconds = term.total_seconds() * TRUSTED_PART
        self._clock = clock
        self._renewed_at = clock.monotonic()

    def renew(self, asked_at: float | None = None) -> None:
        """The lease was extended, as far as we know no earlier than when it was asked for."""
        self._renewed_at = self._clock.monotonic() if asked_at is None else asked_at

    def holds(self) -> bool:
        return self._clock.monotonic() - self._renewed_at < self._seconds

"""Back-pressure of the fleet: hold back jobs that nobody has room for."""

from dataclasses import dataclass

from shoal.base.signals import Signal, Signals
from shoal.fleet.view import CLASSES, FleetView, JobClass, class_of

HIGHEST_LOAD = 0.8


class BackPressureChanged(Signal, frozen=True, kw_only=True):
    """Jobs of a class are held back from now on, or are no longer."""

    job_class: str
    held: bool
    why: str


@dataclass(frozen=True, slots=True)
class PressureStatus:
    """The back-pressure on one class of jobs. `load`: running jobs plus jobs in private lanes, divided by twice the
    slots; None without nodes. `why`: the reason why jobs are held back; None if they are not."""

    job_class: JobClass
    load: float | None
    why: str | None


class FleetPressure:
    """Holds jobs back while the load of the nodes is above 80 %. Without nodes, or if nothing is dispatched to
    them (`dispatches`), the depth of the shared lane decides."""

    def __init__(self, view: FleetView, signals: Signals, shared_most: int, *, dispatches: bool = True) -> None:
        self._view = view
        self._signals = signals
        self._shared_most = shared_most
        self._dispatches = dispatches
        self._held: set[JobClass] = set()

    def check(self, kind: str) -> str | None:
        """Return why no more jobs of this kind should be created now (`queue.back_pressure.BackPressure`)."""
        return self.status(class_of(kind)).why

    def status(self, job_class: JobClass) -> PressureStatus:
        load, why = self._view.load(job_class), None
        if load is not None and self._dispatches:
            if load > HIGHEST_LOAD:
                why = f"the nodes are used to {load:.0%} for {job_class}, more than {HIGHEST_LOAD:.0%}"
        elif self._view.shared_depth >= self._shared_most:
            why = f"{self._shared_most} or more jobs wait in the shared lane"
        return PressureStatus(job_class, load, why)

    def report(self) -> list[PressureStatus]:
        """Return the back-pressure on every class, and signal what changed since the last call."""
        found = [self.status(job_class) for job_class in CLASSES]
        for one in found:
            if (one.why is not None) != (one.job_class in self._held):
                self._held ^= {one.job_class}
                changed = BackPressureChanged(job_class=one.job_class, held=one.why is not None, why=one.why or "")
                self._signals.emit(changed)
        return found

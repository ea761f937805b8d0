"""The health score of a node: four weighted parts, each from 0 to 1. Pure."""

from dataclasses import dataclass

SUCCESS, LOAD, LATENCY, DEPTH = 0.4, 0.3, 0.2, 0.1  # the weights
SLOWEST_SECONDS = 300.0  # an average latency that scores 0
DEEPEST = 20  # waiting jobs that score 0


@dataclass(frozen=True, slots=True)
class HealthScore:
    """The parts of a score before they are weighted, and the score. A node that is draining or lost scores 0,
    whatever its parts."""

    success: float
    load: float
    latency: float
    depth: float
    scores: bool = True

    @property
    def weighted(self) -> dict[str, float]:
        """The parts as they enter the score."""
        parts = {
            "success": SUCCESS * self.success,
            "load": LOAD * self.load,
            "latency": LATENCY * self.latency,
            "depth": DEPTH * self.depth,
        }
        return parts if self.scores else dict.fromkeys(parts, 0.0)

    @property
    def value(self) -> float:
        if not self.scores:
            return 0.0
        return SUCCESS * self.success + LOAD * self.load + LATENCY * self.latency + DEPTH * self.depth


def score(
    *,
    success_rate: float,
    active: int,
    most: int,
    latency_seconds: float,
    depth: int,
    draining: bool = False,
) -> HealthScore:
    """Rate a node that runs `active` of `most` tasks and has `depth` jobs waiting in its lane."""
    return HealthScore(
        success=_part(success_rate),
        load=_part(1 - active / most) if most > 0 else 0.0,
        latency=_part(1 - latency_seconds / SLOWEST_SECONDS),
        depth=_part(1 - depth / DEEPEST),
        scores=not draining,
    )


def _part(value: float) -> float:
    """Clamp a part to [0, 1]. A value that is not a number counts as 0: nothing good is known about that part."""
    return min(max(value, 0.0), 1.0) if value == value else 0.0

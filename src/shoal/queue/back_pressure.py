"""Back-pressure: whether to create more jobs now. Code that creates jobs in batches checks it first."""

from collections.abc import Callable

from shoal.base.signals import Signal

BackPressure = Callable[[str], str | None]
"""Return why no more jobs of this kind should be created now, in words; None: create them. Does no I/O."""


class JobsHeldBack(Signal, frozen=True, kw_only=True):
    """Jobs were not created because of back-pressure: a scheduler left what is due for later (`jobs` is then 0, because
    nobody counted), or a batch of jobs was refused."""

    source: str
    kind: str
    jobs: int
    why: str


def no_back_pressure(kind: str) -> None:
    """Never hold jobs back."""

"""The signal of pages that were fetched and stored, whoever wanted them: counted where metrics are asked for."""

from dataclasses import dataclass

from shoal.base.signals import Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesSettled(Signal):
    """What one commit stored, by class of HTTP status (`2xx`, or `error` without one)."""

    pages: dict[str, int]
    bytes: dict[str, int]


def status_class(status: int | None) -> str:
    return f"{status // 100}xx" if status else "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsTaken(Signal):
    """So many results of page jobs were taken; of `timed` of them the fetch took so many seconds in all."""

    kind: str
    count: int
    timed: int
    seconds: float

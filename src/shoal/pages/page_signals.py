"""Signals about stored pages and ingested results, for metrics."""

from shoal.base.signals import Signal


class PagesSettled(Signal, frozen=True, kw_only=True):
    """The pages stored in one commit, by class of HTTP status (`2xx`, or `error` without one)."""

    pages: dict[str, int]
    bytes: dict[str, int]


def status_class(status: int | None) -> str:
    return f"{status // 100}xx" if status else "error"


class ResultsTaken(Signal, frozen=True, kw_only=True):
    """Results of page jobs were ingested; `timed` of them reported a fetch time, which is summed up here."""

    kind: str
    count: int
    timed: int
    seconds: float

"""Statistics, back-pressure and the health of a process."""

from typing import Annotated, ClassVar, Self

from msgspec import UNSET, UnsetType

from shoal.base.request_form import describe
from shoal.fleet.view import PressureStatus
from shoal.observe.stats import HourRow
from shoal.serve.resources.bot import BotSeen
from shoal.serve.resources.resource import Moment, Resource


class Hour(Resource, kw_only=True):
    """Statistics of one hour."""

    hour: Annotated[Moment, describe("Start of the hour.")]
    created: Annotated[int, describe("Jobs created.")]
    done: Annotated[int, describe("Jobs that succeeded.")]
    failed: Annotated[int, describe("Jobs that failed.")]
    expired: Annotated[int, describe("Dead letters: jobs that lost their worker or bot too many times.")]
    retried: Annotated[int, describe("Attempts that were followed by a retry.")]
    lost: Annotated[int, describe("Leases that expired because their worker or bot was lost.")]
    retry_rate: Annotated[float | None, describe("Share of finished attempts that were followed by a retry.")]
    average_seconds: Annotated[float | None, describe("Average duration of page fetches in seconds.")]
    bots: Annotated[int, describe("Number of bots that asked for jobs.")]

    @classmethod
    def of(cls, row: HourRow) -> Self:
        counted = ("created", "done", "failed", "expired", "retried", "lost")
        return super().of(row, **{name: row.count(name) for name in counted})


class BackPressure(Resource, kw_only=True):
    """State of the back-pressure, which delays new jobs while the fleet is busy."""

    slots: Annotated[str, describe("Kind of slots: `runs` (crawls and analyses) or `pages` (page jobs).")]
    load: Annotated[
        float | None,
        describe("Load: running jobs plus jobs in private lanes, divided by twice the slots; null without nodes."),
    ]
    held: Annotated[
        bool,
        describe(
            "Whether new jobs are delayed: no jobs are created for policies, and batches of page jobs are rejected."
        ),
    ]
    reason: Annotated[str | None, describe("Why new jobs are delayed, if they are.")]

    @classmethod
    def of(cls, status: PressureStatus) -> Self:
        load = None if status.load is None else round(status.load, 4)
        return cls(slots=status.job_class, load=load, held=status.why is not None, reason=status.why)


class Stats(Resource, kw_only=True):
    """Counts of crawls and jobs, and hourly statistics."""

    crawls: Annotated[dict[str, int], describe("Number of crawls by state.")]
    jobs: Annotated[dict[str, dict[str, int]], describe("Number of jobs by kind and state.")]
    at: Annotated[Moment, describe("When crawls and jobs were counted.")]
    hours: Annotated[list[Hour], describe("Statistics by hour, newest first; hours without activity are omitted.")]
    bots: Annotated[list[BotSeen], describe("Up to 100 bots that asked for jobs in these hours, latest first.")]
    back_pressure: Annotated[
        list[BackPressure], describe("Back-pressure by kind of slots; empty without a control plane.")
    ]

    example: ClassVar = {
        "crawls": {"completed": 12, "running": 2},
        "jobs": {"crawl": {"done": 12, "locked": 2}, "page": {"done": 4000, "failed": 12, "pending": 380}},
        "at": "2026-03-01T09:00:07Z",
        "hours": [
            {
                "hour": "2026-03-01T09:00:00Z",
                "created": 400,
                "done": 380,
                "failed": 2,
                "expired": 0,
                "retried": 18,
                "lost": 1,
                "retry_rate": 0.045,
                "average_seconds": 0.312,
                "bots": 3,
            }
        ],
        "bots": [
            {
                "token": "tok_7h3k9m2pxw",
                "bot_id": "spider-1",
                "pulled": 120,
                "results": 118,
                "failures": 3,
                "invalid_data": 1,
                "late_results": 0,
                "heartbeats": 14,
                "late_heartbeats": 0,
                "lost_leases": 1,
                "seen_at": "2026-03-01T09:00:05Z",
            }
        ],
        "back_pressure": [{"slots": "pages", "load": 0.35, "held": False, "reason": None}],
    }


class Health(Resource, kw_only=True):
    """Liveness of the process."""

    status: Annotated[str, describe("`ok`.")]
    version: Annotated[str, describe("Version of Shoal.")]


class Readiness(Resource, kw_only=True):
    """Readiness of the process. `bodies` is present while the body store is full."""

    status: Annotated[str, describe("`ok` or `unavailable`.")]
    store: Annotated[str, describe("`ok`, or the error code of the store.")]
    bodies: Annotated[str | UnsetType, describe("`storage_full` while the body store is full.")] = UNSET
    detail: Annotated[str | UnsetType, describe("Explanation, if something is unavailable or degraded.")] = UNSET

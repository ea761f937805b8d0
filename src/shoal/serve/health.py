"""`/healthz` (liveness), `/readyz` (readiness) and `/metrics`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from msgspec import UNSET
from starlette.responses import Response

from shoal import __version__
from shoal.access.token import TokenScope
from shoal.base.clock import Clock
from shoal.base.errors import ShoalError, StorageFull
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.problems import Json
from shoal.serve.resources.stats import Health, Readiness

FRESH_SECONDS = 1.0  # check results are cached for this time, because each check writes to the store


class HealthApi:
    """Health checks and metrics for monitoring."""

    def __init__(
        self,
        check_store: Callable[[], Awaitable[object]],
        metrics: Callable[[], tuple[bytes, str]],
        clock: Clock,
        wake_problem: Callable[[], str | None] = lambda: None,
        full_storage: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._full_storage = full_storage
        self._wake_problem = wake_problem
        self._check_store = check_store
        self._metrics = metrics
        self._clock = clock
        self._checking = asyncio.Lock()
        self._checked_at = -FRESH_SECONDS
        self._error: ShoalError | None = None

    @endpoint(
        "GET",
        "/healthz",
        scope=None,
        summary="Check that the process is alive.",
        response=Health,
        response_example={"status": "ok", "version": __version__},
    )
    async def show_health(self, request: EndpointRequest[Nothing, Nothing]) -> Health:
        return Health(status="ok", version=__version__)

    @endpoint(
        "GET",
        "/readyz",
        scope=TokenScope.READ,
        summary="Check that the store and the body store accept writes.",
        response=Readiness,
        response_example={"status": "ok", "store": "ok"},
    )
    async def show_readiness(self, request: EndpointRequest[Nothing, Nothing]) -> Json:
        """If either store does not accept writes, the status is 503, with the same fields; `bodies` is present while
        the body store is full."""
        async with self._checking:  # concurrent requests share one check
            if self._clock.monotonic() - self._checked_at >= FRESH_SECONDS:
                await self._check()
        error = self._error
        if error is not None:
            return Json(Readiness(status="unavailable", store=error.code, detail=error.message), 503)
        if full := self._full_storage():
            store = StorageFull.code if "store" in full else "ok"
            bodies = StorageFull.code if "bodies" in full else UNSET
            detail = " ".join(full.values())
            return Json(Readiness(status="unavailable", store=store, bodies=bodies, detail=detail), 503)
        if (why := self._wake_problem()) is not None:  # the process is still ready, because workers poll instead
            return Json(Readiness(status="ok", store="ok", detail=f"notify degraded: {why}"))
        return Json(Readiness(status="ok", store="ok"))

    async def _check(self) -> None:
        self._error = None
        try:
            await self._check_store()
        except ShoalError as error:
            self._error = error
        self._checked_at = self._clock.monotonic()

    @endpoint(
        "GET",
        "/metrics",
        scope=TokenScope.READ,
        summary="Show metrics in Prometheus format.",
        response=str,
        media_type="text/plain",
    )
    async def show_metrics(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        # in a thread, because a large fleet has 100,000 time series
        body, media_type = await asyncio.to_thread(self._metrics)
        return Response(body, media_type=media_type)

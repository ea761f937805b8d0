"""`/healthz` (this process lives), `/readyz` (its store answers), `/metrics`."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import Response

from shoal import __version__
from shoal.access.scopes import TokenScope
from shoal.base.clock import Clock
from shoal.base.errors import ShoalError, StorageFull
from shoal.serve import schemas
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.problems import Json

FRESH_SECONDS = 1.0  # an answer is given again for so long: anybody may ask, and each check writes to the store


class HealthApi:
    """What whoever watches this process asks."""

    def __init__(
        self,
        check_store: Callable[[], Awaitable[object]],
        metrics: Callable[[], tuple[bytes, str]],
        clock: Clock,
        deaf: Callable[[], str | None] = lambda: None,
        full_storage: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._full_storage = full_storage
        self._deaf = deaf
        self._check_store = check_store
        self._metrics = metrics
        self._clock = clock
        self._checking = asyncio.Lock()
        self._checked_at = -FRESH_SECONDS
        self._trouble: ShoalError | None = None

    @endpoint(
        "GET",
        "/healthz",
        scope=None,
        summary="Whether this process lives.",
        answer=schemas.Health,
        response_example={"status": "ok", "version": __version__},
    )
    async def show_health(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        return Json({"status": "ok", "version": __version__})

    @endpoint(
        "GET",
        "/readyz",
        scope=TokenScope.READ,
        summary="Whether its store takes what is written, and so does all that its workers need.",
        answer=schemas.Readiness,
        response_example={"status": "ok", "store": "ok"},
    )
    async def show_readiness(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        """503 with the same fields while it does not; `bodies` is there while there is no room for kept bodies."""
        async with self._checking:  # those who ask meanwhile get what it finds
            if self._clock.monotonic() - self._checked_at >= FRESH_SECONDS:
                await self._check()
        error = self._trouble
        if error is not None:
            return Json({"status": "unavailable", "store": error.code, "detail": error.message}, status_code=503)
        if full := self._full_storage():
            told = dict.fromkeys(full, StorageFull.code)
            detail = " ".join(full.values())
            return Json({"status": "unavailable", "store": "ok", **told, "detail": detail}, status_code=503)
        if (why := self._deaf()) is not None:  # jobs are still found, only a moment later: ready all the same
            return Json({"status": "ok", "store": "ok", "detail": f"notify degraded: {why}"})
        return Json({"status": "ok", "store": "ok"})

    async def _check(self) -> None:
        self._trouble = None
        try:
            await self._check_store()
        except ShoalError as error:
            self._trouble = error
        self._checked_at = self._clock.monotonic()

    @endpoint(
        "GET",
        "/metrics",
        scope=TokenScope.READ,
        summary="Metrics, as Prometheus reads them.",
        answer=str,
        media_type="text/plain",
    )
    async def show_metrics(self, ask: EndpointRequest[Nothing, Nothing]) -> Response:
        body, media_type = self._metrics()
        return Response(body, media_type=media_type)

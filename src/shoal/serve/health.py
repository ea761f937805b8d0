"""`/healthz` (this process lives), `/readyz` (its store answers), `/metrics`."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal import __version__
from shoal.base.errors import ShoalError
from shoal.serve.problems import Json


class HealthRoutes:
    def __init__(self, check_store: Callable[[], Awaitable[object]], metrics: Callable[[], tuple[bytes, str]]) -> None:
        self._check_store = check_store
        self._metrics = metrics

    def routes(self) -> list[Route]:
        return [
            Route("/healthz", self.alive),
            Route("/readyz", self.ready),
            Route("/metrics", self.metrics),
        ]

    async def alive(self, request: Request) -> Json:
        return Json({"status": "ok", "version": __version__})

    async def ready(self, request: Request) -> Json:
        try:
            await self._check_store()
        except ShoalError as error:
            return Json({"status": "unavailable", "store": error.code, "detail": error.message}, status_code=503)
        return Json({"status": "ok", "store": "ok"})

    async def metrics(self, request: Request) -> Response:
        body, media_type = self._metrics()
        return Response(body, media_type=media_type)

"""The HTTP application: its routes, what it refuses before any route, and its errors."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from shoal.access.scopes import Scope
from shoal.base.clock import Clock
from shoal.base.errors import ShoalError, Unauthenticated
from shoal.base.signals import Signal, Signals
from shoal.serve.endpoint import reached
from shoal.serve.keeper import SAFE_METHODS, Keeper, Loopback
from shoal.serve.problems import http_error, shoal_error, unexpected

PROBES = frozenset({"/readyz", "/metrics"})
OPEN = ("/login", "/logout", "/static/")
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestServed(Signal):
    method: str
    route: str
    status: int
    seconds: float


def site(
    routes: Sequence[BaseRoute],
    clock: Clock,
    signals: Signals,
    keeper: Keeper | None = None,
    *,
    open_probes: bool = False,
) -> ASGIApp:
    """The application over these routes. Without a keeper only this machine is let in."""
    app = Starlette(
        routes=list(routes),
        exception_handlers={ShoalError: shoal_error, HTTPException: http_error, Exception: unexpected},
    )
    return Door(app, routes, keeper or Loopback(), open_probes, clock, signals)


class Door:
    """Every request passes here: its keeper lets it in or not, the answer gets its headers, and is counted."""

    def __init__(
        self,
        app: ASGIApp,
        routes: Sequence[BaseRoute],
        keeper: Keeper,
        open_probes: bool,
        clock: Clock,
        signals: Signals,
    ) -> None:
        self._app = app
        self._routes = routes
        self._keeper = keeper
        self._open_probes = open_probes
        self._clock = clock
        self._signals = signals

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock.monotonic()
        status = 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        try:
            refusal = await self._refusal(Request(scope))
            await (refusal or self._app)(scope, receive, answer)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            seconds = self._clock.monotonic() - began
            self._signals.emit(RequestServed(method=scope["method"], route=route, status=status, seconds=seconds))

    async def _refusal(self, request: Request) -> Response | None:
        """The answer to who is not let in. Who is let in is known to handlers as `request.state.caller`."""
        try:
            request.state.caller = await self._keeper.admit(request, self._needed(request))
        except Unauthenticated as error:
            return RedirectResponse("/login", 303) if _is_visit(request) else await shoal_error(request, error)
        except ShoalError as error:
            return await shoal_error(request, error)
        return None

    def _needed(self, request: Request) -> Scope | None:
        """What a request needs. What is in no table, or not there at all, is open to nobody else."""
        if request.url.path in PROBES:
            return None if self._open_probes else Scope.READ
        found = reached(self._routes, request.scope)
        if found is not None:
            return found.scope
        if request.url.path.startswith(OPEN):
            return None
        return Scope.READ if request.method in SAFE_METHODS else Scope.WRITE


def _is_visit(request: Request) -> bool:
    """Whether a person opened a page."""
    is_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    return is_page and not request.url.path.startswith(("/api/", "/bot/")) and "authorization" not in request.headers

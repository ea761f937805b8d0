"""The HTTP application: its routes, what it refuses before any route, and its errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.base.clock import Clock
from shoal.base.errors import NotAllowed, ShoalError
from shoal.base.signals import Signal, Signals
from shoal.serve.problems import Problem, http_error, shoal_error, unexpected

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
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


def site(routes: Sequence[BaseRoute], clock: Clock, signals: Signals) -> ASGIApp:
    """The application over these routes."""
    app = Starlette(
        routes=list(routes),
        exception_handlers={ShoalError: shoal_error, HTTPException: http_error, Exception: unexpected},
    )
    return Door(app, clock, signals)


class Door:
    """Every request passes here: who it says it talks to is checked, the answer gets its headers, and is counted."""

    def __init__(self, app: ASGIApp, clock: Clock, signals: Signals) -> None:
        self._app = app
        self._clock = clock
        self._signals = signals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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

        refusal = _refusal(Request(scope))
        try:
            await (refusal or self._app)(scope, receive, answer)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            seconds = self._clock.monotonic() - began
            self._signals.emit(RequestServed(method=scope["method"], route=route, status=status, seconds=seconds))


def _refusal(request: Request) -> Problem | None:
    """Without tokens only this machine may ask; a web page open in its browser is not this machine."""
    if not is_loopback(request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")):
        return _problem(
            NotAllowed("this server only answers to its loopback name", "use http://127.0.0.1 or localhost")
        )
    foreign = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    origin = request.headers.get("origin")
    foreign |= origin is not None and origin.partition("//")[2] != request.headers.get("host")
    if request.method not in SAFE_METHODS and foreign:
        return _problem(NotAllowed("this request comes from another site", "send it from this server's own pages"))
    return None


def _problem(error: ShoalError) -> Problem:
    return Problem(error.problem(), status_code=error.response.http_status)


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False

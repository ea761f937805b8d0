"""The HTTP application: its routes, what it refuses before any route, and its errors."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from shoal.access.audit_log import AuditLog
from shoal.access.scopes import TokenScope
from shoal.base.clock import Clock
from shoal.base.errors import CallerError, ShoalError, Unauthenticated
from shoal.base.signals import Signal, Signals
from shoal.serve.authentication import SAFE_METHODS, Authenticator, LoopbackAuthenticator
from shoal.serve.connections import EXTENSION
from shoal.serve.endpoint import EndpointRoute, Finder
from shoal.serve.problems import http_error, shoal_error, unexpected

PROBES = frozenset({"/readyz", "/metrics"})
OPEN = frozenset({"/login", "/logout"})
FILES = "/static/"
LOOK_EVERY_SECONDS = 3.0  # at the caller of an answer that goes on and on
CLIENT_GONE = 499  # in metrics: the client closed the connection before there was an answer
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


def application(
    routes: Sequence[BaseRoute],
    clock: Clock,
    signals: Signals,
    keeper: Authenticator | None = None,
    *,
    acts: AuditLog | None = None,
    open_probes: bool = False,
) -> ASGIApp:
    """The application over these routes. Without a keeper only this machine is let in."""
    app = Starlette(
        routes=list(routes),
        exception_handlers={ShoalError: shoal_error, HTTPException: http_error, Exception: unexpected},
    )
    app.state.acts = acts
    return Gateway(app, Finder(routes), keeper or LoopbackAuthenticator(), open_probes, clock, signals)


class RequestBounds:
    """The way of one answer out. A stream ends soon after its caller is no longer welcome: tokens are revoked."""

    def __init__(self, send: Send, clock: Clock, is_welcome: Callable[[], Awaitable[bool]]) -> None:
        self._send = send
        self._clock = clock
        self._is_welcome = is_welcome
        self._looked_at = clock.monotonic()
        self.status = 500
        self.is_closed = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], *HEADERS]
        elif message.get("more_body") and await self._must_end():
            self.is_closed = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            raise ConnectionError("the caller is no longer welcome")  # how a server tells that nobody reads any more
        await self._send(message)

    async def _must_end(self) -> bool:
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_EVERY_SECONDS:
            return False
        self._looked_at = now
        return not await self._is_welcome()


class Gateway:
    """Every request passes here: its keeper lets it in or not, the answer gets its headers, and is counted. Endpoints
    answer it straight: the framework's way to them costs as much as what most of them do."""

    def __init__(
        self,
        app: Starlette,
        finder: Finder,
        keeper: Authenticator,
        open_probes: bool,
        clock: Clock,
        signals: Signals,
    ) -> None:
        self._app = app
        self._finder = finder
        self._keeper = keeper
        self._open_probes = open_probes
        self._clock = clock
        self._signals = signals

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, began = Request(scope, receive), self._clock.monotonic()
        passage = RequestBounds(send, self._clock, lambda: self._is_welcome(request))
        try:
            found = self._finder.find(scope)
            answer: ASGIApp | None = await self._refusal(request)
            if answer is None and found is not None:
                answer = await self._answer(found, request, passage)
            await (answer or self._app)(scope, receive, passage.send)
        except ClientDisconnect:  # it sent a part of a body and went, or was cut for being slow: nobody to tell
            passage.status = CLIENT_GONE
        except Exception:
            if not passage.is_closed:
                raise
        finally:
            route = getattr(scope.get("route"), "path", "none")
            seconds = self._clock.monotonic() - began
            served = RequestServed(method=scope["method"], route=route, status=passage.status, seconds=seconds)
            self._signals.emit(served)

    async def _answer(self, found: EndpointRoute, request: Request, passage: RequestBounds) -> Response:
        """What an endpoint answers, as the framework would give it."""
        request.scope["app"] = self._app
        try:
            answer: Response = await found.endpoint(request)
        except ShoalError as error:
            return await shoal_error(request, error)
        except ClientDisconnect:
            raise
        except Exception as error:
            await (await unexpected(request, error))(request.scope, request.receive, passage.send)
            raise  # whoever serves us tells of it
        return answer

    async def _is_welcome(self, request: Request) -> bool:
        """Whether who was let in still would be. A store that cannot say so throws nobody out."""
        try:
            await self._keeper.admit(request, self._needed(request))
        except CallerError:
            return False
        except ShoalError:
            return True
        return True

    async def _refusal(self, request: Request) -> Response | None:
        """The answer to who is not let in. Who is let in is known to handlers as `request.state.caller`."""
        try:
            caller = request.state.caller = await self._keeper.admit(request, self._needed(request))
            if caller is not None and (proven := request.scope.get("extensions", {}).get(EXTENSION)) is not None:
                proven["prove"]()
        except Unauthenticated as error:
            return RedirectResponse("/login", 303) if _is_visit(request) else await shoal_error(request, error)
        except ShoalError as error:
            return await shoal_error(request, error)
        return None

    def _needed(self, request: Request) -> TokenScope | None:
        """What a request needs. What is in no table, or not there at all, is open to nobody else."""
        path = request.scope["path"]  # what is routed by; `request.url` would believe the Host header
        if path in PROBES:
            return None if self._open_probes else TokenScope.READ
        found = request.scope["route"]
        if isinstance(found, EndpointRoute):
            return found.line.scope
        if path in OPEN or path.startswith(FILES):
            return None
        return TokenScope.READ if request.method in SAFE_METHODS else TokenScope.WRITE


def _is_visit(request: Request) -> bool:
    """Whether a person opened a page."""
    is_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    return (
        is_page and not request.scope["path"].startswith(("/api/", "/bot/")) and "authorization" not in request.headers
    )

"""The HTTP application: the gateway that authenticates every request, the routes behind it, and error handlers."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from shoal.access.audit_log import AuditLog
from shoal.access.token import TokenScope
from shoal.base.clock import Clock
from shoal.base.errors import CallerError, ShoalError, Unauthenticated
from shoal.base.signals import Signal, Signals
from shoal.serve.authentication import EXTENSION, SAFE_METHODS, Authenticator, LoopbackAuthenticator
from shoal.serve.endpoint import EndpointRoute, Finder
from shoal.serve.problems import http_error, shoal_error, unexpected

if TYPE_CHECKING:
    from shoal.serve.console.shell import Shell

PROBES = frozenset({"/readyz", "/metrics"})
OPEN = frozenset({"/login", "/logout"})
FILES = "/static/"
CHECK_EVERY_SECONDS = 3.0  # interval at which the token of a streaming response is checked
CLIENT_GONE = 499  # status in metrics if the client closed the connection before the response
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # without this header, browsers send forms with the origin `null`
    (
        b"content-security-policy",
        b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
]


class RequestServed(Signal, frozen=True, kw_only=True):
    method: str
    route: str
    status: int
    seconds: float


def application(
    routes: Sequence[BaseRoute],
    clock: Clock,
    signals: Signals,
    authenticator: Authenticator | None = None,
    *,
    audit_log: AuditLog | None = None,
    open_probes: bool = False,
    shell: "Shell | None" = None,
) -> ASGIApp:
    """Build the application. Without an authenticator, only requests from this machine are allowed. `shell` renders
    error pages for browsers; without `shell`, every error is a problem document."""
    errors = Errors(shell)
    app = Starlette(
        routes=list(routes),
        exception_handlers={
            ShoalError: errors.shoal_error,
            HTTPException: errors.http_error,
            Exception: errors.unexpected,
        },
    )
    app.state.audit_log = audit_log
    admits = authenticator or LoopbackAuthenticator()
    return Gateway(app, errors, admits, open_probes=open_probes, clock=clock, signals=signals)


class Errors:
    """Turns errors into responses: an error page for browsers, a problem document for other clients."""

    def __init__(self, shell: "Shell | None") -> None:
        self._shell = shell
        self.prefix = "" if shell is None else shell.prefix

    async def shoal_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, ShoalError)
        if self._shell is None or not wants_page(request):
            return await shoal_error(request, error)
        if isinstance(error, Unauthenticated):
            return self._to_login(request)
        return self._shell.error(request, error)

    async def http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if self._shell is None or not wants_page(request):
            return await http_error(request, error)
        return self._shell.missing(request, error.status_code)

    async def unexpected(self, request: Request, error: Exception) -> Response:
        if self._shell is not None and wants_page(request):
            with suppress(Exception):  # rendering the frame of the pages may be what failed
                return self._shell.failed(request)
        return await unexpected(request, error)

    def _to_login(self, request: Request) -> Response:
        """Redirect a browser without a console session to the login page, which redirects it back to the requested
        page."""
        wanted = request.scope["path"] + (f"?{query}" if (query := request.url.query) else "")
        is_home = request.method != "GET" or wanted == "/"
        return RedirectResponse(f"{self.prefix}/login" + ("" if is_home else f"?next={quote(wanted, safe='')}"), 303)


class ResponseSender:
    """Sends one response with security headers. If the caller's token is revoked, a streaming response is closed soon
    afterwards."""

    def __init__(self, send: Send, clock: Clock, is_allowed: Callable[[], Awaitable[bool]]) -> None:
        self._send = send
        self._clock = clock
        self._is_allowed = is_allowed
        self._checked_at = clock.monotonic()
        self.status = 500
        self.is_closed = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = {name for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in given)]
        elif message.get("more_body") and await self._must_end():
            self.is_closed = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            # servers report a closed connection with the same exception
            raise ConnectionError("the caller's token is no longer valid")
        await self._send(message)

    async def _must_end(self) -> bool:
        now = self._clock.monotonic()
        if now - self._checked_at < CHECK_EVERY_SECONDS:
            return False
        self._checked_at = now
        return not await self._is_allowed()


class Gateway:
    """Authenticates every request, adds security headers to the response, and counts the request.

    Endpoints are called directly, because the dispatch of the framework takes as long as most endpoints.
    """

    def __init__(
        self,
        app: Starlette,
        errors: Errors,
        authenticator: Authenticator,
        *,
        open_probes: bool,
        clock: Clock,
        signals: Signals,
    ) -> None:
        self._app = app
        self._finder = Finder(app.routes)
        self._errors = errors
        self._authenticator = authenticator
        self._open_probes = open_probes
        self._clock = clock
        self._signals = signals

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        prefix = self._errors.prefix
        # a proxy did not remove the prefix
        if prefix and (scope["path"] == prefix or scope["path"].startswith(f"{prefix}/")):
            scope = {**scope, "path": scope["path"].removeprefix(prefix) or "/"}
        request, began = Request(scope, receive), self._clock.monotonic()
        sender = ResponseSender(send, self._clock, lambda: self._is_allowed(request))
        try:
            found = self._finder.find(scope)
            response: ASGIApp | None = await self._refusal(request)
            if response is None and found is not None:
                response = await self._respond(found, request, sender)
            await (response or self._app)(scope, receive, sender.send)
        except ClientDisconnect:  # the client left while sending its body, or was disconnected because it was too slow
            sender.status = CLIENT_GONE
        except Exception:
            if not sender.is_closed:
                raise
        finally:
            route = getattr(scope.get("route"), "path", "none")
            seconds = self._clock.monotonic() - began
            served = RequestServed(method=scope["method"], route=route, status=sender.status, seconds=seconds)
            self._signals.emit(served)

    async def _respond(self, found: EndpointRoute, request: Request, sender: ResponseSender) -> ASGIApp:
        """Call an endpoint, with the error handling of the framework."""
        request.scope["app"] = self._app
        try:
            response: ASGIApp = await found.endpoint(request)
        except ShoalError as error:
            return await self._errors.shoal_error(request, error)
        except ClientDisconnect:
            raise
        except Exception as error:
            await (await self._errors.unexpected(request, error))(request.scope, request.receive, sender.send)
            raise  # the HTTP server logs the error
        return response

    async def _is_allowed(self, request: Request) -> bool:
        """Check whether the caller is still allowed. If the store is unavailable, the stream continues."""
        try:
            await self._authenticator.admit(request, self._needed(request))
        except CallerError:
            return False
        except ShoalError:
            return True
        return True

    async def _refusal(self, request: Request) -> Response | None:
        """If the caller is not allowed, return the error response. Otherwise set `request.state.caller` for the
        handlers and return None."""
        try:
            caller = request.state.caller = await self._authenticator.admit(request, self._needed(request))
            if caller is not None and (proven := request.scope.get("extensions", {}).get(EXTENSION)) is not None:
                proven["prove"]()
        except ShoalError as error:
            request.state.caller = None
            return await self._errors.shoal_error(request, error)
        return None

    def _needed(self, request: Request) -> TokenScope | None:
        """Return the token scope that a request needs. Paths outside the endpoint table, even unknown paths, need a
        scope too."""
        path = request.scope["path"]  # the path used for routing; `request.url` would depend on the Host header
        if path in PROBES:
            return None if self._open_probes else TokenScope.READ
        found = request.scope["route"]
        if isinstance(found, EndpointRoute):
            return found.spec.scope
        if path in OPEN or path.startswith(FILES):
            return None
        return TokenScope.READ if request.method in SAFE_METHODS else TokenScope.WRITE


def wants_page(request: Request) -> bool:
    """Return whether the request is a browser navigation rather than an API call by a program."""
    path = request.scope["path"]
    return (
        "text/html" in request.headers.get("accept", "")
        and not path.startswith(("/api/", "/bot/", FILES))
        and "authorization" not in request.headers
    )

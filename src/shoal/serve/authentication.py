"""Authentication: check the host, origin and token of each request before it reaches a route.

Until the first token is created, only requests from this machine are allowed, except requests that a web page of a
different site sends through a local browser. From then on, every request needs a token. Each endpoint declares the
token scope that it requires.
"""

import hmac
import re
from typing import Protocol
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from shoal.access.limits import AuthThrottle
from shoal.access.token import Caller, Token, TokenScope, local_caller
from shoal.access.tokens import Tokens
from shoal.base.errors import InvalidInput, NotAllowed, Unauthenticated
from shoal.base.parsing import is_loopback
from shoal.base.settings import ServeSettings
from shoal.base.signals import Signal, Signals

EXTENSION = "shoal.proven"  # in the ASGI scope: the callback for a valid credential
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
FORWARDED = ("x-forwarded-for", "forwarded", "x-real-ip")
COOKIE = "shoal_token"
_BROWSERS = frozenset(
    {b"origin", b"sec-fetch-site", b"cookie"}
)  # a request without any of these headers does not come from a web page
_BEARER = re.compile(r"bearer +([\x21-\x7e]+) *", re.IGNORECASE)
_TOKEN_SHAPED = re.compile(rb"shl_[0-9a-z]{10}_[0-9a-z]{20}")


class CallerRefused(Signal, frozen=True, kw_only=True):
    """A credential was invalid. This signal is not emitted while the address is throttled, so that nobody can flood the
    log."""

    address: str
    waits: bool


class Authenticator(Protocol):
    async def admit(self, request: Request, needed: TokenScope | None) -> Caller | None:
        """Return the caller if it has the needed token scope, or None for endpoints that need no token. Raise
        otherwise."""
        ...


class InProcessAuthenticator:
    """Authenticates in-process requests, which act as the local user."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def admit(self, request: Request, needed: TokenScope | None) -> Caller | None:
        if needed is not None:
            self._caller.demand(needed)
        return self._caller


class LoopbackAuthenticator:
    """Authenticates network requests without tokens: only this machine is allowed."""

    def __init__(self, listen: str = "127.0.0.1", public_url: str = "") -> None:
        self._public_host = urlsplit(public_url).hostname
        self._public_origin = "{0.scheme}://{0.netloc}".format(urlsplit(public_url)).lower()
        self._is_local = is_loopback(listen)

    async def admit(self, request: Request, needed: TokenScope | None) -> Caller | None:
        self._check_site(request)
        if needed is None and request.method in SAFE_METHODS:
            return None
        self._check_host(request)
        if needed is None:
            return None
        caller = await self._caller(request)
        caller.demand(needed)
        return caller

    async def _caller(self, request: Request) -> Caller:
        """Return the local user of this machine."""
        address = address_of(request)
        if not is_loopback(address):
            raise Unauthenticated
        if any(name in request.headers for name in FORWARDED):
            raise NotAllowed(
                "this request came through a proxy, but without tokens only local requests are accepted",
                "create a token with `shoal tokens create --role admin --name NAME`",
            )
        return local_caller(address)

    def _check_host(self, request: Request) -> None:
        """Reject foreign host names, because an attacker's name may resolve to this server (DNS rebinding)."""
        host = _host_of(request)
        ours = {self._public_host, (request.scope.get("server") or ("",))[0]}
        if is_loopback(host) or host in ours:
            return
        if self._is_local or self._public_host is not None:
            where = self._public_host or "http://127.0.0.1 or localhost"
            fix = f"use {where}, or ask the operator to set SHOAL_PUBLIC_URL"
            raise NotAllowed("this server does not serve that host name", fix)

    def _check_site(self, request: Request) -> None:
        """Reject cross-site requests (CSRF), except navigation by a link to this server."""
        if _BROWSERS.isdisjoint(name for name, _ in request.scope["headers"]):
            return
        fetched_from = request.headers.get("sec-fetch-site")
        origin = request.headers.get("origin")
        foreign = fetched_from not in (None, "none", "same-origin")
        ours = origin is None or origin.partition("//")[2] == request.headers.get("host")
        # a proxy may have replaced the Host header, so the public origin is accepted, too
        foreign |= not ours and origin != self._public_origin
        visit = request.method in SAFE_METHODS and request.headers.get("sec-fetch-mode", "navigate") == "navigate"
        if foreign and not (visit and origin is None):
            raise NotAllowed("this request comes from another site", "send it from a page of this server")
        # Browsers send an Origin header with every write, so a write with a cookie but without Origin may be forged.
        if request.method not in SAFE_METHODS and origin is None and fetched_from is None and _cookie(request):
            raise NotAllowed("this request has no Origin header", "send the token in a header")


class TokenAuthenticator(LoopbackAuthenticator):
    """Authenticates network requests by token, once a token has been created."""

    def __init__(self, tokens: Tokens, throttle: AuthThrottle, settings: ServeSettings, signals: Signals) -> None:
        super().__init__(settings.listen.host or "127.0.0.1", settings.public_url)
        self._tokens = tokens
        self._throttle = throttle
        self._signals = signals

    async def identify(self, text: str, address: str) -> Token:
        """Return the token for this text. If the address has sent too many invalid tokens, it is throttled, unless this
        token was valid before."""
        if not self._tokens.remembers(text):
            self._throttle.check(address)
        token = await self._tokens.verify(text)
        if token is None:
            waits = self._throttle.count(address)
            self._signals.emit(CallerRefused(address=address, waits=waits))
            raise Unauthenticated
        return token

    async def any_token_made(self) -> bool:
        return await self._tokens.any_made()

    async def _caller(self, request: Request) -> Caller:
        text = _token_in(request)
        if text is not None:
            address = address_of(request)
            token = await self.identify(text, address)
            return Caller(who=token.id, scopes=token.scopes, address=address, until=token.expires_at)
        if await self.any_token_made():
            raise Unauthenticated
        return await super()._caller(request)


class SharedTokenAuthenticator(LoopbackAuthenticator):
    """Authenticates network requests by one token from the settings, because the render service has no store."""

    def __init__(self, token: str, throttle: AuthThrottle, listen: str, signals: Signals) -> None:
        super().__init__(listen)
        self._token = token.encode()
        self._throttle = throttle
        self._signals = signals

    async def _caller(self, request: Request) -> Caller:
        if not self._token:
            return await super()._caller(request)
        text, address = _token_in(request), address_of(request)
        self._throttle.check(address)
        if text is None or not hmac.compare_digest(text.encode(), self._token):
            waits = self._throttle.count(address)
            self._signals.emit(CallerRefused(address=address, waits=waits))
            raise Unauthenticated
        return local_caller(address)


def caller_of(request: Request) -> Caller:
    """Return the authenticated caller of this request."""
    caller = request.state.caller
    assert isinstance(caller, Caller), "open endpoints have no caller"
    return caller


def address_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def cookie_name(request: Request) -> str:
    """Return the cookie name. With TLS it has a prefix that browsers accept only for cookies set by this very host."""
    return f"__Host-{COOKIE}" if is_secure(request) else COOKIE


def sign_in(request: Request, response: Response, text: str) -> None:
    """Set the cookie that makes the browser send the token with later requests."""
    response.set_cookie(cookie_name(request), text, httponly=True, samesite="strict", secure=is_secure(request))


def is_secure(request: Request) -> bool:
    return bool(request.scope["scheme"] == "https")


def _host_of(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _cookie(request: Request) -> str | None:
    return request.cookies.get(cookie_name(request))


def _token_in(request: Request) -> str | None:
    """Return the token of a request: from the Authorization header if there is one, otherwise from the console's
    cookie. Reject tokens in the URL."""
    if _TOKEN_SHAPED.search(request.scope["query_string"]):
        fix = "revoke that token and send a new one as `Authorization: Bearer …`"
        raise InvalidInput("the address", "contains a token, and URLs end up in logs and browser histories", fix)
    given = request.headers.getlist("authorization")
    if not given:
        return _cookie(request)
    match = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
    if match is None:
        raise Unauthenticated
    return match[1]

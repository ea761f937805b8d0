"""Errors as RFC 9457 problem documents."""

from typing import Any

import orjson
from msgspec import Struct
from msgspec.json import Encoder
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from shoal.base.errors import ShoalError, Unauthenticated
from shoal.base.text import shorten

_ENCODER = Encoder()


class Json(Response):
    """A JSON response. Times are UTC, with `Z`."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        if isinstance(content, Struct):
            return _ENCODER.encode(content)
        return orjson.dumps(content, option=orjson.OPT_UTC_Z)


class ProblemResponse(Json):
    media_type = "application/problem+json"


async def shoal_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ShoalError)
    headers = {}
    if error.response.http_status in (429, 503):
        headers["Retry-After"] = str(int(error.facts.get("retry_after_seconds", 5)))
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="shoal"'
    return ProblemResponse(error.problem(), status_code=error.response.http_status, headers=headers)


async def http_error(request: Request, error: Exception) -> Response:
    """Describe an error of the router: an unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    code = {404: "no_such_path", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    detail = f"{request.method} {shorten(request.url.path, 300)}: {error.detail}; /docs lists the endpoints."
    body = {
        "type": "about:blank",
        "title": error.detail,
        "status": error.status_code,
        "code": code,
        "detail": detail,
    }
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request))
    return ProblemResponse(body, status_code=error.status_code, headers=headers)


def _allowed(request: Request) -> list[str]:
    """Return all methods of a path. Several routes may share a path, but the router reports only the methods of the
    first route."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return sorted(methods) or ["GET", "HEAD"]  # a mount of static files


async def unexpected(request: Request, error: Exception) -> Response:
    body = {
        "type": "about:blank",
        "title": "unexpected",
        "status": 500,
        "code": "unexpected",
        "detail": "An unexpected error occurred; see the server log for details.",
    }
    return ProblemResponse(body, status_code=500)

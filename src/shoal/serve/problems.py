"""Errors as RFC 9457 problem documents."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from shoal.base.errors import InvalidInput, RateLimited, ShoalError


class Json(Response):
    """A JSON answer."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_UTC_Z)


class Problem(Json):
    media_type = "application/problem+json"


async def shoal_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ShoalError)
    headers = {}
    if error.response.http_status == 503 or isinstance(error, RateLimited):
        headers["Retry-After"] = str(int(error.facts.get("retry_after_seconds", 5)))
    return Problem(error.problem(), status_code=error.response.http_status, headers=headers)


async def http_error(request: Request, error: Exception) -> Response:
    """What the router itself refuses: unknown path, wrong method."""
    assert isinstance(error, HTTPException)
    code = {404: "no_such_path", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    detail = f"{request.method} {request.url.path}: {error.detail}"
    body = {
        "type": "about:blank",
        "title": error.detail,
        "status": error.status_code,
        "code": code,
        "detail": detail,
    }
    return Problem(body, status_code=error.status_code, headers=dict(error.headers or {}))


async def unexpected(request: Request, error: Exception) -> Response:
    body = {
        "type": "about:blank",
        "title": "unexpected",
        "status": 500,
        "code": "unexpected",
        "detail": "Shoal did not expect this; its log has the details.",
    }
    return Problem(body, status_code=500)


def invalid(error: ValidationError, fields: Iterable[str]) -> InvalidInput:
    """The first thing that is wrong with a body, as one sentence that names the field."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = _path(first["loc"])
    if first["type"] == "extra_forbidden":
        close = get_close_matches(field, list(fields), n=1, cutoff=0.5)
        fix = f"the nearest one is {close[0]}" if close else f"the known ones are {', '.join(fields)}"
        return InvalidInput(field, "is not a known field", fix)
    said = first["msg"].removeprefix("Value error, ")
    return InvalidInput(field, f"cannot be taken: {said[:1].lower()}{said[1:]}", "correct it and send it again")


def _path(places: tuple[int | str, ...]) -> str:
    """Where in the body, as the body's author would write it."""
    text = "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in places)
    return text.removeprefix(".") or "the body"

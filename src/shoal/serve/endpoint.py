"""The endpoint table: the input, response schema and token scope of each endpoint.

Routes, scope checks and the OpenAPI document are generated from it. Callers are authenticated before they get here, in
`application.py`.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import getdoc, getmembers_static
from json import JSONDecoder
from typing import Any, Generic, TypeVar, get_origin

import orjson
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp
from starlette.types import Scope as AsgiScope

from shoal.access.audit_log import AuditEntry, AuditLog
from shoal.access.token import TokenScope
from shoal.base.database import Tx
from shoal.base.errors import InvalidInput, NotFound, ShoalError, TooLarge, WrongMediaType
from shoal.base.request_form import Form, fields_of
from shoal.base.text import shorten
from shoal.serve.authentication import caller_of
from shoal.serve.expensive_reads import ExpensiveReads
from shoal.serve.problems import Json

F = TypeVar("F", bound=Form)
B = TypeVar("B", bound=Form)
Q = TypeVar("Q", bound=Form)

MOST_DRAINED = 32_000_000
PARSED_INLINE = 64_000  # bytes; a body of this size is parsed in a few milliseconds, so the event loop may do it
LONGEST_NAME = 300  # maximum number of characters in a path parameter
JSON_TYPE = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE)
WHOLE = re.compile(r"-?[0-9]{1,19}")  # as many digits as a 64-bit integer has
MARK = "shoal_endpoint"


def always(query: Form) -> bool:
    """Mark an endpoint as expensive for every query."""
    return True


class Nothing(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of an endpoint without a body, or without query parameters."""


@dataclass(frozen=True, slots=True)
class EndpointRequest(Generic[B, Q]):
    """A request with its validated body and query parameters."""

    http: Request
    body: B
    query: Q

    def path_param(self, name: str) -> str:
        return str(self.http.path_params[name])

    async def audit(self, tx: Tx, action: str, subject: str) -> None:
        """Write an action of the caller to the audit log, in the commit that carries it out (`AuditHook`)."""
        audit_log: AuditLog | None = getattr(self.http.app.state, "audit_log", None)
        if audit_log is not None:
            await audit_log.note_in(tx, caller_of(self.http), AuditEntry(action, subject))

    async def audit_alone(self, action: str, subject: str) -> None:
        """Write an action that changes nothing else in the store to the audit log."""
        audit_log: AuditLog | None = getattr(self.http.app.state, "audit_log", None)
        if audit_log is not None:
            await audit_log.note(caller_of(self.http), AuditEntry(action, subject))


Handler = Callable[[Any, EndpointRequest[Any, Any]], Awaitable[Response | Struct | dict[str, Any]]]
"""Returns a response schema, the fields of an open schema, or a complete HTTP response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One entry of the table."""

    name: str  # name of the method that handles it, and of the operation in the OpenAPI document
    method: str
    path: str
    scope: TokenScope | None  # None: no token needed
    summary: str  # one sentence
    about: str  # further description
    body: type[Form]
    needs_body: bool
    file: tuple[str, ...]  # media types of an uploaded file; the handler reads the file from the request
    query: type[Form]
    status: int
    response: Any  # a type, or None without a response body
    accepted: Any  # response type of status 202, if work may continue after the response; else None
    media_type: str  # several media types are joined with ` or `
    problems: tuple[type[ShoalError], ...]  # beside the errors that every endpoint may return
    request_example: Any
    response_example: Any
    idempotency_key: bool  # honours `Idempotency-Key`
    public: bool  # part of the OpenAPI document
    expensive: Callable[[Any], bool]  # whether a query may read a large part of a crawl; such reads are limited

    @property
    def path_params(self) -> list[str]:
        return re.findall(r"{(\w+)", self.path)


def endpoint(
    method: str,
    path: str,
    *,
    scope: TokenScope | None,
    summary: str,
    body: type[Form] = Nothing,
    needs_body: bool | None = None,
    file: tuple[str, ...] = (),
    query: type[Form] = Nothing,
    status: int = 200,
    response: Any = None,
    accepted: Any = None,
    media_type: str = "application/json",
    problems: Sequence[type[ShoalError]] = (),
    request_example: Any = None,
    response_example: Any = None,
    idempotency_key: bool = False,
    public: bool = True,
    expensive: Callable[[Any], bool] = lambda _: False,
) -> Callable[[Handler], Handler]:
    """Add the decorated method to the table. Unless `needs_body` is set, a body is required if it has a required field.
    Without `response_example`, the example of the response type is used."""

    def mark(handler: Handler) -> Handler:
        spec = Endpoint(
            name=handler.__name__,
            method=method,
            path=path,
            scope=scope,
            summary=summary,
            about=getdoc(handler) or "",
            body=body,
            needs_body=any(one.required for one in fields_of(body).values()) if needs_body is None else needs_body,
            file=file,
            query=query,
            status=status,
            response=response,
            accepted=accepted,
            media_type=media_type,
            problems=tuple(problems),
            request_example=request_example,
            response_example=getattr(response, "example", None) if response_example is None else response_example,
            idempotency_key=idempotency_key,
            public=public,
            expensive=expensive,
        )
        setattr(handler, MARK, spec)
        return handler

    return mark


def table_of(group: type) -> tuple[Endpoint, ...]:
    """Return the endpoints of a class in the order of their definition."""
    endpoints = [getattr(found, MARK) for _, found in getmembers_static(group) if hasattr(found, MARK)]
    order = {name: place for kind in group.__mro__ for place, name in enumerate(vars(kind))}
    return tuple(sorted(endpoints, key=lambda one: order[one.name]))


class EndpointRoute(Route):
    """The route of an endpoint. It validates the request, calls the handler, and encodes the returned value."""

    def __init__(
        self,
        spec: Endpoint,
        group: object,
        max_body: int,
        parsing: asyncio.Semaphore,
        reads: ExpensiveReads | None = None,
    ) -> None:
        self.spec = spec
        self._reads = reads
        self._handler = getattr(group, spec.name)
        self._max_body = getattr(group, "max_body", max_body)  # a group of endpoints may set its own limit
        self._max_body_setting = getattr(group, "max_body_setting", "SHOAL_MAX_REQUEST")
        self._parsing = parsing
        super().__init__(spec.path, self._respond, methods=[spec.method], name=spec.name)

    async def _respond(self, request: Request) -> ASGIApp:
        spec = self.spec
        check_path_params(request.path_params)
        query = read_query(spec.query, request)
        unread = spec.method == "GET" or bool(spec.file)
        text = b"" if unread else await read_body(request, self._max_body, self._max_body_setting)
        body = await self._parse(text) if text or spec.needs_body else spec.body()

        async def respond() -> Response:
            found = await self._handler(EndpointRequest(request, body, query))
            return found if isinstance(found, Response) else Json(found, spec.status)

        if self._reads is not None and spec.expensive(query):
            return await self._reads.respond(request, respond)
        return await respond()

    async def _parse(self, text: bytes) -> Form:
        """Parse a body. Large bodies are parsed in a thread, because that may take seconds."""
        if len(text) <= PARSED_INLINE:
            return parse(self.spec.body, text)
        async with self._parsing:
            return await asyncio.to_thread(parse, self.spec.body, text)


def routes_of(groups: Sequence[object], max_body: int, reads: ExpensiveReads | None = None) -> list[BaseRoute]:
    """Return the routes of all endpoints in these groups. Without `reads`, expensive reads are not limited.

    Only one large body is parsed at a time, because threads share one interpreter, and a parsed body needs several
    times its size in memory.
    """
    parsing = asyncio.Semaphore(1)
    return [EndpointRoute(spec, group, max_body, parsing, reads) for group in groups for spec in table_of(type(group))]


class Finder:
    """Finds the endpoint of a request: by one lookup if the path has no parameters, otherwise by trying each
    pattern."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        known = [route for route in routes if isinstance(route, EndpointRoute)]
        self._exact = {(name, one.path): one for one in known if not one.spec.path_params for name in one.methods or ()}
        self._patterns = [one for one in known if one.spec.path_params]

    def find(self, scope: AsgiScope) -> EndpointRoute | None:
        """Return the endpoint and store it in the ASGI scope. Return None if the table has no endpoint for the
        request."""
        found = scope["route"] = self._exact.get((scope["method"], scope["path"])) or self._search(scope)
        return found

    def _search(self, scope: AsgiScope) -> EndpointRoute | None:
        for route in self._patterns:
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                scope.update(child_scope)
                return route
        return None


def check_path_params(params: Mapping[str, Any]) -> None:
    """Reject values that cannot be ids before the store is queried."""
    for name, value in params.items():
        if not value.isprintable() or len(value) > LONGEST_NAME:
            raise NotFound(name.removesuffix("_id"), shorten(value))


def read_query(form: type[F], request: Request) -> F:
    """Read the query parameters. Reject unknown and repeated parameters."""
    values: dict[str, Any] = {}
    known = fields_of(form)
    for name, value in request.query_params.multi_items() if request.scope["query_string"] else ():
        field = known.get(name) or known.get(str(form.other_names.get(name)))
        if "\x00" in value:
            raise InvalidInput(shorten(name), "contains a NUL character", "leave it out")
        if field is not None and field.kind is int and not WHOLE.fullmatch(value):
            raise InvalidInput(name, f"cannot be {shorten(value)!r}", f"give {field.accepts}")
        # `null` would be read as an absent parameter
        if field is not None and value.lower() == "null" and field.kind is not str:
            raise InvalidInput(name, f"cannot be {value!r}", f"give {field.accepts}")
        if field is not None and get_origin(field.kind) is list:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidInput(shorten(name), "is given twice", "pass it once")
        else:
            values[name] = value
    return form.read(values, strict=False)


async def read_body(request: Request, limit: int, setting: str) -> bytes:
    """Read the body. A body that is too large is drained first, up to a limit, because a client that is still sending
    does not read the response. `setting` names the setting that raises the limit; it is empty if the limit is fixed."""
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            body += chunk
        elif size > limit + MOST_DRAINED:
            break
    if size > limit:
        fix = f"send less, or ask the operator to raise {setting}" if setting else "send less"
        raise TooLarge("the body", f"{limit} bytes", fix)
    if body:
        _check_type(request)
    return bytes(body)


def _check_type(request: Request) -> None:
    named = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if not JSON_TYPE.fullmatch(named):
        raise WrongMediaType(shorten(named), "application/json")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise WrongMediaType(f"{shorten(coding)}-encoded", "application/json without a Content-Encoding")


def parse(form: type[F], body: bytes) -> F:
    """Read a form from a JSON body."""
    try:
        values = orjson.loads(body)
        _PAIRS.decode(body.decode())
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise InvalidInput("the body", f"is not JSON ({shorten(str(error))})", "send one JSON object") from None
    if not isinstance(values, dict):
        raise InvalidInput("the body", "is not a JSON object", "send one JSON object")
    return form.read(values)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject duplicate keys, because parsers differ in which of the values they use."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidInput(shorten(name), "is given twice", "pass it once")
            seen.add(name)
    return found


_PAIRS = JSONDecoder(object_pairs_hook=_each_once)


def public_endpoints(groups: Sequence[type]) -> Iterator[Endpoint]:
    """Yield the endpoints of the OpenAPI document."""
    return (one for group in groups for one in table_of(group) if one.public)

"""The endpoint table: what each endpoint takes and answers, who may call it, and what is refused before it is called.

Routes, scope checks and the OpenAPI document are made from it. Who a caller is, is the door's business (`site.py`).
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import getdoc, getmembers_static
from json import JSONDecoder
from typing import Any, Generic, TypeVar, get_origin

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope as AsgiScope

from shoal.access.audit_log import AuditEntry, AuditLog
from shoal.access.scopes import TokenScope
from shoal.base.database import Tx
from shoal.base.errors import InvalidInput, NotFound, ShoalError, TooLarge, WrongMediaType
from shoal.base.request_form import Form, fields_of
from shoal.base.text import shorten
from shoal.serve.authentication import caller_of

F = TypeVar("F", bound=Form)
B = TypeVar("B", bound=Form)
Q = TypeVar("Q", bound=Form)

MOST_DRAINED = 32_000_000
PARSED_AT_ONCE = 64_000  # bytes of a body that are parsed on the event loop: a few milliseconds
LONGEST_NAME = 300  # characters of a part of a path
JSON_TYPE = re.compile(r"application/(?:[\w.+-]+\+)?json", re.IGNORECASE)
WHOLE = re.compile(r"-?[0-9]{1,19}")  # as many digits as the largest of 64 bits has
MARK = "shoal_endpoint"


class Nothing(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """No fields at all: of an endpoint that takes no body, or no query parameters."""


@dataclass(frozen=True, slots=True)
class EndpointRequest(Generic[B, Q]):
    """One request, read and judged: what its handler needs, and nothing that was not declared."""

    request: Request
    body: B
    query: Q
    act: str | None = None  # what the log of administrative acts calls it

    def part(self, name: str) -> str:
        """A part of the path by its name in the endpoint's path."""
        return str(self.request.path_params[name])

    async def note(self, tx: Tx, subject: str) -> None:
        """Log what is done, in the commit that does it: what verbs take as `noting`."""
        acts: AuditLog | None = getattr(self.request.app.state, "acts", None)
        if acts is not None and self.act is not None:
            await acts.note_in(tx, caller_of(self.request), AuditEntry(self.act, subject))

    async def note_alone(self, subject: str) -> None:
        """Log what changes nothing in the store."""
        acts: AuditLog | None = getattr(self.request.app.state, "acts", None)
        if acts is not None and self.act is not None:
            await acts.note(caller_of(self.request), AuditEntry(self.act, subject))


Handler = Callable[[Any, EndpointRequest[Any, Any]], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One line of the table."""

    name: str  # of its handler, and of the operation in the OpenAPI document
    method: str
    path: str
    scope: TokenScope | None  # None: anybody may call it
    summary: str  # one sentence
    about: str  # what else is to be said
    body: type[Form]
    needs_body: bool
    file: tuple[str, ...]  # media types of a body that is a file, which its handler reads
    query: type[Form]
    status: int
    answer: Any  # a type, or None if it has no body
    media_type: str  # or several, as `one or another`
    problems: tuple[type[ShoalError], ...]  # besides those that every endpoint may answer
    request_example: Any  # an example of a body
    response_example: Any  # an example of an answer
    once: bool  # honours `Idempotency-Key`
    act: str | None  # what the log of administrative acts calls it; its handler hands `ask.note` on
    public: bool  # part of the OpenAPI document

    @property
    def parts(self) -> list[str]:
        """The names of the parts of its path that a caller fills in."""
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
    answer: Any = None,
    media_type: str = "application/json",
    problems: Sequence[type[ShoalError]] = (),
    request_example: Any = None,
    response_example: Any = None,
    once: bool = False,
    act: str | None = None,
    public: bool = True,
) -> Callable[[Handler], Handler]:
    """Put the method below into the table. A body is needed if one of its fields is, unless `needs_body` says else."""

    def mark(handler: Handler) -> Handler:
        line = Endpoint(
            name=handler.__name__,
            method=method,
            path=path,
            scope=scope,
            summary=summary,
            about=getdoc(handler) or "",
            body=body,
            needs_body=_needs(body) if needs_body is None else needs_body,
            file=file,
            query=query,
            status=status,
            answer=answer,
            media_type=media_type,
            problems=tuple(problems),
            request_example=request_example,
            response_example=response_example,
            once=once,
            act=act,
            public=public,
        )
        setattr(handler, MARK, line)
        return handler

    return mark


def _needs(body: type[Form]) -> bool:
    return any(field.required for field in fields_of(body).values())


def table_of(group: type) -> tuple[Endpoint, ...]:
    """The endpoints of a class, in the order in which they stand there."""
    lines = [getattr(found, MARK) for _, found in getmembers_static(group) if hasattr(found, MARK)]
    order = {name: place for kind in group.__mro__ for place, name in enumerate(vars(kind))}
    return tuple(sorted(lines, key=lambda line: order[line.name]))


class EndpointRoute(Route):
    """The route of an endpoint: reads and judges the request, then calls the handler."""

    def __init__(self, line: Endpoint, group: object, max_body: int, parsing: asyncio.Semaphore) -> None:
        self.line = line
        self._handler = getattr(group, line.name)
        self._max_body = max_body
        self._parsing = parsing
        super().__init__(line.path, self._answer, methods=[line.method], name=line.name)

    async def _answer(self, request: Request) -> Response:
        check_parts(request.path_params)
        query = read_query(self.line.query, request)
        unread = self.line.method == "GET" or bool(self.line.file)
        text = b"" if unread else await read_body(request, self._max_body)
        body = await self._parse(text) if text or self.line.needs_body else self.line.body()
        answer: Response = await self._handler(EndpointRequest(request, body, query, self.line.act))
        return answer

    async def _parse(self, text: bytes) -> Form:
        """Parse a body. A large one takes seconds at worst, so it is parsed in a thread while others are served."""
        if len(text) <= PARSED_AT_ONCE:
            return parse(self.line.body, text)
        async with self._parsing:
            return await asyncio.to_thread(parse, self.line.body, text)


def routes_of(groups: Sequence[object], max_body: int) -> list[BaseRoute]:
    """The routes of these groups' endpoints. They parse one large body at a time: threads share one interpreter, and
    each body takes a multiple of its size in memory."""
    parsing = asyncio.Semaphore(1)
    most = [(group, getattr(group, "max_body", max_body)) for group in groups]  # some take more than others
    return [EndpointRoute(line, group, limit, parsing) for group, limit in most for line in table_of(type(group))]


class Finder:
    """Finds the endpoint of a request: by its whole path if that has no parts to fill in, else one after the other."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        known = [route for route in routes if isinstance(route, EndpointRoute)]
        self._whole = {(name, one.path): one for one in known if not one.line.parts for name in one.methods or ()}
        self._others = [one for one in known if one.line.parts]

    def find(self, scope: AsgiScope) -> EndpointRoute | None:
        """The endpoint, which the scope is told; None if the request goes to something outside of the table."""
        found = scope["route"] = self._whole.get((scope["method"], scope["path"])) or self._search(scope)
        return found

    def _search(self, scope: AsgiScope) -> EndpointRoute | None:
        for route in self._others:
            match, told = route.matches(scope)
            if match is Match.FULL:
                scope.update(told)
                return route
        return None


def check_parts(parts: Mapping[str, Any]) -> None:
    """No store has to be asked for what cannot be a name."""
    for name, value in parts.items():
        if not value.isprintable() or len(value) > LONGEST_NAME:
            raise NotFound(name.removesuffix("_id"), shorten(value))


def read_query(form: type[F], request: Request) -> F:
    """The query parameters; unknown and repeated ones are refused."""
    values: dict[str, Any] = {}
    known = fields_of(form)
    for name, value in request.query_params.multi_items() if request.scope["query_string"] else ():
        if "\x00" in value:
            raise InvalidInput(shorten(name), "has a NUL in it", "leave it out")
        if name in known and known[name].kind is int and not WHOLE.fullmatch(value):
            raise InvalidInput(name, f"cannot be {shorten(value)!r}", f"give {known[name].accepts}")
        if name in known and value.lower() == "null" and known[name].kind is not str:  # which would stand for nothing
            raise InvalidInput(name, f"cannot be {value!r}", f"give {known[name].accepts}")
        if name in known and get_origin(known[name].kind) is list:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidInput(shorten(name), "is given twice", "give it once")
        else:
            values[name] = value
    return form.read(values, strict=False)


async def read_body(request: Request, limit: int) -> bytes:
    """The body as sent. What is too much is read, within reason, and dropped: who still sends reads no answer."""
    body, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= limit:
            body += chunk
        elif size > limit + MOST_DRAINED:
            break
    if size > limit:
        raise TooLarge("the body", f"{limit} bytes", "send less, or let the operator allow more")
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
    """The form that a body fills in."""
    try:
        values = orjson.loads(body)
        _PAIRS.decode(body.decode())
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise InvalidInput("the body", f"is not JSON ({shorten(str(error))})", "send one JSON object") from None
    if not isinstance(values, dict):
        raise InvalidInput("the body", "is not a JSON object", "send one JSON object")
    return form.read(values)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Parsers differ in which of two equal keys they take, so neither is taken."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidInput(shorten(name), "is given twice", "give it once")
            seen.add(name)
    return found


_PAIRS = JSONDecoder(object_pairs_hook=_each_once)


def public_lines(groups: Sequence[type]) -> Iterator[Endpoint]:
    """What the OpenAPI document tells of."""
    return (line for group in groups for line in table_of(group) if line.public)

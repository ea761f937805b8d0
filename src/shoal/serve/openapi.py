"""The OpenAPI 3.1 document, made from the endpoint table."""

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

from msgspec import Struct
from msgspec.json import schema_components

from shoal import __version__
from shoal.base.errors import (
    BackendUnavailable,
    InvalidInput,
    NotAllowed,
    NotFound,
    RateLimited,
    ShoalError,
    StorageFull,
    TooLarge,
    Unauthenticated,
    WrongMediaType,
)
from shoal.serve.endpoint import Endpoint, Nothing

ABOUT = """The REST API of Shoal, a self-hosted crawl platform.

Every error is a problem document (RFC 9457) with a stable `code`. Unknown fields and query parameters are refused.
Lists answer `{items, next}`; `next` is the `cursor` of the next page. Times are UTC. Fields may be added to answers."""
ALWAYS: tuple[type[ShoalError], ...] = (BackendUnavailable, StorageFull)
WITH_TOKEN: tuple[type[ShoalError], ...] = (Unauthenticated, NotAllowed, RateLimited)
WITH_BODY: tuple[type[ShoalError], ...] = (InvalidInput, TooLarge, WrongMediaType)
REFERENCE = "#/components/schemas/{name}"

KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "A key of your own: whatever comes with the same key within 24 hours is carried out once.",
}


class Problem(Struct, kw_only=True):
    """An error as RFC 9457 has it. What else is known stands beside these fields, such as `field` and `id`."""

    type: str
    title: str
    status: int
    code: str
    detail: str


def document(lines: Sequence[Endpoint]) -> dict[str, Any]:
    """The whole document."""
    schemas = Schemas(lines)
    paths: dict[str, Any] = {}
    for line in lines:
        paths.setdefault(re.sub(r":\w+}", "}", line.path), {})[line.method.lower()] = _operation(line, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shoal", "version": __version__, "description": ABOUT},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A token, `shl_…`."}},
        },
    }


class Schemas:
    """The schemas of everything that the lines take and answer."""

    def __init__(self, lines: Iterable[Endpoint]) -> None:
        kinds = {kind: None for line in lines for kind in (line.body, line.query, line.answer) if kind is not None}
        kinds[Problem] = None
        references, components = schema_components(list(kinds), ref_template=REFERENCE)
        self._found = dict(zip(kinds, references, strict=True))
        self._queries = {self._name(line.query) for line in lines}
        self._all = components
        self.components = {name: _portable(one) for name, one in components.items() if name not in self._queries}

    def of(self, kind: Any) -> dict[str, Any]:
        return self._found[kind]

    def parameters(self, line: Endpoint) -> list[dict[str, Any]]:
        """Parts of the path, then the query."""
        parts = [_parameter("path", name, {"type": "string", "minLength": 1}, required=True) for name in line.parts]
        parts += [KEY] if line.once else []
        form = self._all[self._name(line.query)]
        needed = form.get("required", ())
        return parts + [
            _parameter("query", name, _without_null(_portable(one)), required=name in needed)
            for name, one in form["properties"].items()
        ]

    def _name(self, kind: Any) -> str:
        return str(self._found[kind]["$ref"]).rpartition("/")[2]


def _operation(line: Endpoint, schemas: Schemas) -> dict[str, Any]:
    scope = f"Needs a token with the scope `{line.scope}`." if line.scope else "Needs no token."
    told = {
        "operationId": line.name,
        "tags": [tag_of(line)],
        "summary": line.summary.rstrip("."),
        "description": " ".join([*line.about.split(), scope]),
        "parameters": schemas.parameters(line),
        "security": [{"token": []}] if line.scope else [],
        "responses": _responses(line, schemas),
    }
    if line.body is not Nothing:
        content = {"schema": schemas.of(line.body)} | (
            {"example": line.request_example} if line.request_example is not None else {}
        )
        told["requestBody"] = {"required": line.needs_body, "content": {"application/json": content}}
    if line.file:
        content = {kind: {"schema": {"type": "string"}} for kind in line.file}
        told["requestBody"] = {"required": True, "content": content}
    return told


def tag_of(line: Endpoint) -> str:
    """The group of an endpoint: what its path is about."""
    found = re.match(r"/(?:api|bot)/v1/(\w+)", line.path)
    return found[1] if found else "server"


def problems_of(line: Endpoint) -> list[type[ShoalError]]:
    """Every error that an endpoint may answer, by its status."""
    takes = line.query is not Nothing or line.method != "GET"
    kinds = {*line.problems, *(ALWAYS if line.path.startswith(("/api", "/bot")) else ())}
    kinds |= {*(WITH_TOKEN if line.scope else ()), *(WITH_BODY if line.method != "GET" else ())}
    kinds |= {*([InvalidInput] if takes else ()), *([NotFound] if line.parts else ())}
    return sorted(kinds, key=lambda kind: (_status(kind), kind.code))


def _responses(line: Endpoint, schemas: Schemas) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(line.status).phrase}
    if line.answer is not None:
        content = {"schema": schemas.of(line.answer)} | (
            {"example": line.response_example} if line.response_example is not None else {}
        )
        answer["content"] = dict.fromkeys(line.media_type.split(" or "), content)
    told = {str(line.status): answer}
    codes: dict[int, list[str]] = {422: ["invalid_input"]}  # every endpoint refuses query parameters that it has not
    for kind in problems_of(line):
        codes.setdefault(_status(kind), [])
        codes[_status(kind)] += [kind.code] if kind.code not in codes[_status(kind)] else []
    for status, found in sorted(codes.items()):
        told.setdefault(str(status), _problem(found, schemas))
    return told


def _problem(codes: list[str], schemas: Schemas) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": schemas.of(Problem)}}
    return {"description": ", ".join(f"`{code}`" for code in codes), "content": content}


def _status(kind: type[ShoalError]) -> int:
    from shoal.base.errors import RESPONSES

    return RESPONSES[kind].http_status


def _parameter(where: str, name: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    told = {"name": name, "in": where, "required": required, "schema": schema}
    summary = schema.pop("description", None)
    return told | ({"description": summary} if summary else {})


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is absent is absent: there is no null in a query."""
    schema = {name: value for name, value in schema.items() if not (name == "default" and value is None)}
    rest = [one for one in schema.pop("anyOf", []) if one != {"type": "null"}]
    return schema | (rest[0] if len(rest) == 1 else {"anyOf": rest} if rest else {})


def _portable(schema: Any) -> Any:
    """The same for readers that are not Python: the end of a text is `$` to them."""
    if isinstance(schema, dict):
        return {name: _pattern(value) if name == "pattern" else _portable(value) for name, value in schema.items()}
    return [_portable(one) for one in schema] if isinstance(schema, list) else schema


def _pattern(value: Any) -> Any:
    return value.replace(r"\Z", "$") if isinstance(value, str) else _portable(value)

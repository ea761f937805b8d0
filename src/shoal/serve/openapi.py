"""The OpenAPI 3.1 document, generated from the endpoint table."""

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

Every error is a problem document (RFC 9457) with a stable `code`. Unknown fields and query parameters are rejected.
Lists return `{items, next}`; `next` is the `cursor` of the next page. Times are UTC. Responses may get new fields."""
ALWAYS: tuple[type[ShoalError], ...] = (BackendUnavailable, StorageFull)
WITH_TOKEN: tuple[type[ShoalError], ...] = (Unauthenticated, NotAllowed, RateLimited)
WITH_BODY: tuple[type[ShoalError], ...] = (InvalidInput, TooLarge, WrongMediaType)
REFERENCE = "#/components/schemas/{name}"

KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "A key of your choice: a request repeated with the same key within 24 hours is executed once.",
}


class Problem(Struct, kw_only=True):
    """An error in RFC 9457 format. Further fields, such as `field` and `id`, depend on the error."""

    type: str
    title: str
    status: int
    code: str
    detail: str


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the whole document."""
    schemas = Schemas(endpoints)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        path = re.sub(r":\w+}", "}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
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
    """The schemas of the inputs and responses of the endpoints."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        used = [kind for one in endpoints for kind in (one.body, one.query, one.response) if kind is not None]
        kinds = dict.fromkeys(used)
        kinds[Problem] = None
        references, components = schema_components(list(kinds), ref_template=REFERENCE)
        self._found = dict(zip(kinds, references, strict=True))
        self._queries = {self._name(endpoint.query) for endpoint in endpoints}
        self._all = components
        self.components = {name: _portable(one) for name, one in components.items() if name not in self._queries}

    def of(self, kind: Any) -> dict[str, Any]:
        return self._found[kind]

    def parameters(self, endpoint: Endpoint) -> list[dict[str, Any]]:
        """Return the path parameters, headers and query parameters."""
        schema = {"type": "string", "minLength": 1}
        found = [_parameter("path", name, dict(schema), required=True) for name in endpoint.path_params]
        found += [KEY] if endpoint.idempotency_key else []
        form = self._all[self._name(endpoint.query)]
        needed = form.get("required", ())
        return found + [
            _parameter("query", name, _without_null(_portable(one)), required=name in needed)
            for name, one in form["properties"].items()
        ]

    def _name(self, kind: Any) -> str:
        return str(self._found[kind]["$ref"]).rpartition("/")[2]


def _operation(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    scope = f"Needs a token with the scope `{endpoint.scope}`." if endpoint.scope else "Needs no token."
    operation = {
        "operationId": endpoint.name,
        "tags": [tag_of(endpoint)],
        "summary": endpoint.summary.rstrip("."),
        "description": " ".join([*endpoint.about.split(), scope]),
        "parameters": schemas.parameters(endpoint),
        "security": [{"token": []}] if endpoint.scope else [],
        "responses": _responses(endpoint, schemas),
    }
    if endpoint.body is not Nothing:
        content = {"schema": schemas.of(endpoint.body)} | (
            {"example": endpoint.request_example} if endpoint.request_example is not None else {}
        )
        operation["requestBody"] = {"required": endpoint.needs_body, "content": {"application/json": content}}
    if endpoint.file:
        content = {kind: {"schema": {"type": "string"}} for kind in endpoint.file}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def tag_of(endpoint: Endpoint) -> str:
    """Return the group of an endpoint: the first word of its path after the version."""
    found = re.match(r"/(?:api|bot)/v1/(\w+)", endpoint.path)
    return found[1] if found else "server"


def problems_of(endpoint: Endpoint) -> list[type[ShoalError]]:
    """Return every error that an endpoint may respond with, sorted by status."""
    has_input = endpoint.query is not Nothing or endpoint.method != "GET"
    kinds = {*endpoint.problems, *(ALWAYS if endpoint.path.startswith(("/api", "/bot")) else ())}
    kinds |= {*(WITH_TOKEN if endpoint.scope else ()), *(WITH_BODY if endpoint.method != "GET" else ())}
    kinds |= {*([InvalidInput] if has_input else ()), *([NotFound] if endpoint.path_params else ())}
    return sorted(kinds, key=lambda kind: (_status(kind), kind.code))


def _responses(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    response: dict[str, Any] = {"description": HTTPStatus(endpoint.status).phrase}
    if endpoint.response is not None:
        content = {"schema": schemas.of(endpoint.response)} | (
            {"example": endpoint.response_example} if endpoint.response_example is not None else {}
        )
        response["content"] = dict.fromkeys(endpoint.media_type.split(" or "), content)
    responses = {str(endpoint.status): response}
    codes: dict[int, list[str]] = {422: ["invalid_input"]}  # every endpoint rejects unknown query parameters
    for kind in problems_of(endpoint):
        codes.setdefault(_status(kind), [])
        codes[_status(kind)] += [kind.code] if kind.code not in codes[_status(kind)] else []
    for status, found in sorted(codes.items()):
        responses.setdefault(str(status), _problem(found, schemas))
    return responses


def _problem(codes: list[str], schemas: Schemas) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": schemas.of(Problem)}}
    return {"description": ", ".join(f"`{code}`" for code in codes), "content": content}


def _status(kind: type[ShoalError]) -> int:
    from shoal.base.errors import RESPONSES

    return RESPONSES[kind].http_status


def _parameter(where: str, name: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    parameter = {"name": name, "in": where, "required": required, "schema": schema}
    summary = schema.pop("description", None)
    return parameter | ({"description": summary} if summary else {})


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null: a query parameter is either present or absent."""
    schema = {name: value for name, value in schema.items() if not (name == "default" and value is None)}
    rest = [one for one in schema.pop("anyOf", []) if one != {"type": "null"}]
    return schema | (rest[0] if len(rest) == 1 else {"anyOf": rest} if rest else {})


def _portable(schema: Any) -> Any:
    """Translate patterns for readers other than Python, which spell the end of the text `$`."""
    if isinstance(schema, dict):
        return {name: _pattern(value) if name == "pattern" else _portable(value) for name, value in schema.items()}
    return [_portable(one) for one in schema] if isinstance(schema, list) else schema


def _pattern(value: Any) -> Any:
    return value.replace(r"\Z", "$") if isinstance(value, str) else _portable(value)

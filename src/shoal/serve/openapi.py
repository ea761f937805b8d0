"""The OpenAPI 3.1 document, generated from the endpoint table."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import Annotated, Any

import orjson
from msgspec import Struct
from msgspec.json import schema_components
from starlette.responses import Response

from shoal import __version__
from shoal.access.token import TokenScope
from shoal.base.errors import (
    RESPONSES,
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
from shoal.base.request_form import describe
from shoal.serve.console.shell import Shell
from shoal.serve.endpoint import Endpoint, EndpointRequest, Nothing, endpoint, public_endpoints
from shoal.serve.problems import Json

ABOUT = """The REST API of Shoal, a self-hosted crawl platform.

Every error is a problem document (RFC 9457) with a stable `code`. Unknown fields and query parameters are rejected.
Lists return `{items, next}`; `next` is the `cursor` of the next page. Times are UTC. Responses may get new fields.

Every endpoint may respond with `invalid_input`, `backend_unavailable` or `storage_full`; with `unauthenticated`,
`not_allowed` or `rate_limited`, if it needs a token; with `too_large` or `wrong_media_type`, if it accepts a body; and
with `not_found`, if its path contains an id. Further codes are listed with each endpoint."""
ALWAYS: tuple[type[ShoalError], ...] = (BackendUnavailable, StorageFull)
WITH_TOKEN: tuple[type[ShoalError], ...] = (Unauthenticated, NotAllowed, RateLimited)
WITH_BODY: tuple[type[ShoalError], ...] = (InvalidInput, TooLarge, WrongMediaType)
REFERENCE = "#/components/schemas/{name}"
TAGS = {
    "analyses": "Analyses of crawls, their findings and reports.",
    "audit-log": "The audit log of administrative actions.",
    "bots": "The bot API: lease page jobs, extend the leases, send the results.",
    "crawls": "Crawls of sites: start, control and compare crawls, and read their pages and journals.",
    "events": "List of the events that webhooks deliver.",
    "gates": "Quality gates: named rules that a crawl must meet.",
    "groups": "Groups of page jobs that were created together, and their results.",
    "jobs": "Page jobs for single URLs, and the jobs of crawls and analyses.",
    "nodes": "Workers that are connected to a control plane, and commands for them.",
    "policies": "Recurring crawls of pages and sites.",
    "priority-rules": "The rules that set the priority of a policy's jobs.",
    "quotas": "Limits on the number of jobs that run at the same time, by quota key.",
    "scrape": "One page and its content, fetched by a worker while the caller waits.",
    "server": "The server process: health, metrics and this document.",
    "signals": "Temporary changes of the priority of URLs and labels.",
    "stats": "Numbers of crawls and jobs, and hourly statistics.",
    "tokens": "API tokens.",
    "webhooks": "Receivers of events, and their deliveries.",
}
# Descriptions of parameters and fields that have none themselves; `thing_id` is described as the id of the thing.
COMMON = {
    "created_at": "Time of creation.",
    "finished_at": "Time of the end; null until then.",
    "items": "The items of this page, in order.",
    "labels": "Labels as name and value.",
    "name": "Name of the stored object.",
    "number": "Number of the page.",
    "priority": "Priority from 0 to 100; higher runs first.",
    "project": "Project that the object belongs to.",
    "scope": "Quota key, such as `project:NAME`.",
    "started_at": "Time of the start; null until then.",
    "state": "Current state.",
    "state_reason": "Reason for the state, if there is one.",
}
LOCATION = {"Location": {"description": "Path of the new object.", "schema": {"type": "string"}}}

KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "A key of your choice. Requests with the same key within 24 hours are executed only once.",
}


class Problem(Struct, kw_only=True):
    """An error in RFC 9457 format. Further fields, such as `field` and `id`, depend on the error."""

    type: Annotated[str, describe("URI of the error type.")]
    title: Annotated[str, describe("The kind of error, in a few words.")]
    status: Annotated[int, describe("The HTTP status.")]
    code: Annotated[str, describe("Stable code of the error.")]
    detail: Annotated[str, describe("A sentence that explains the error and how to fix it.")]


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the whole document."""
    schemas = Schemas(endpoints)
    tags = sorted({tag_of(one) for one in endpoints})
    paths: dict[str, Any] = {}
    for one in endpoints:
        path = re.sub(r":\w+}", "}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Shoal",
            "version": __version__,
            "description": ABOUT,
            "contact": {"name": "The operator of this server"},
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag, "description": TAGS[tag]} for tag in tags],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A token, `shl_…`."}},
        },
    }


class Schemas:
    """The schemas of the inputs and responses of the endpoints."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        used = [
            kind for one in endpoints for kind in (one.body, one.query, one.response, one.accepted) if kind is not None
        ]
        kinds = dict.fromkeys(used)
        kinds[Problem] = None
        references, components = schema_components(list(kinds), ref_template=REFERENCE)
        self._found = dict(zip(kinds, references, strict=True))
        self._queries = {self._name(endpoint.query) for endpoint in endpoints}
        self._all = components
        self.components = {
            name: self._described(_portable(one)) for name, one in components.items() if name not in self._queries
        }

    def of(self, kind: Any) -> dict[str, Any]:
        return self._found[kind]

    def parameters(self, endpoint: Endpoint) -> list[dict[str, Any]]:
        """Return the path parameters, headers and query parameters."""
        schema = {"type": "string", "minLength": 1}
        found = [_parameter("path", name, schema | {"description": _common(name)}) for name in endpoint.path_params]
        found += [KEY] if endpoint.idempotency_key else []
        form = self._all[self._name(endpoint.query)]
        needed = form.get("required", ())
        return found + [
            _parameter("query", name, _without_null(_portable(one)), required=name in needed)
            for name, one in form["properties"].items()
        ]

    def _name(self, kind: Any) -> str:
        return _referred(self._found[kind])

    def _described(self, component: dict[str, Any]) -> dict[str, Any]:
        """Describe every property: by its own description, by a common description, or by the description of the
        component to which it refers."""
        for name, one in component.get("properties", {}).items():
            parts = [one, *one.get("anyOf", ())]
            own = [part.pop("description") for part in parts if "description" in part]
            referred = [self._all[_referred(part)].get("description", "") for part in parts if "$ref" in part]
            one["description"] = next(filter(None, [*own, _common(name), *referred]), "")
        return component


def _common(name: str) -> str:
    return f"Id of the {name.removesuffix('_id')}." if name.endswith("_id") else COMMON.get(name, "")


def _referred(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


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
    """Return the group of an endpoint: the first part of its path after the version."""
    found = re.match(r"/api/v1/([\w-]+)", endpoint.path)
    return found[1] if found else "bots" if endpoint.path.startswith("/bot/") else "server"


def problems_of(endpoint: Endpoint) -> list[type[ShoalError]]:
    """Return every error that an endpoint may respond with, sorted by status."""
    has_input = endpoint.query is not Nothing or endpoint.method != "GET"
    kinds = {*endpoint.problems, *(ALWAYS if endpoint.path.startswith(("/api", "/bot")) else ())}
    kinds |= {*(WITH_TOKEN if endpoint.scope else ()), *(WITH_BODY if endpoint.method != "GET" else ())}
    kinds |= {*([InvalidInput] if has_input else ()), *([NotFound] if endpoint.path_params else ())}
    return sorted(kinds, key=lambda kind: (_status(kind), kind.code))


def own_problems_of(endpoint: Endpoint) -> list[type[ShoalError]]:
    """Return the errors of an endpoint that are not listed in `ABOUT`."""
    return [kind for kind in problems_of(endpoint) if kind not in (*ALWAYS, *WITH_TOKEN, *WITH_BODY, NotFound)]


def _responses(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    response: dict[str, Any] = {"description": HTTPStatus(endpoint.status).phrase}
    if endpoint.response is not None:
        content = {"schema": schemas.of(endpoint.response)} | (
            {"example": endpoint.response_example} if endpoint.response_example is not None else {}
        )
        response["content"] = dict.fromkeys(endpoint.media_type.split(" or "), content)
    if endpoint.name.startswith("create_"):
        response["headers"] = LOCATION
    responses = {str(endpoint.status): response}
    if endpoint.accepted is not None:
        content = {"schema": schemas.of(endpoint.accepted)}
        responses["202"] = {"description": HTTPStatus.ACCEPTED.phrase, "content": {"application/json": content}}
    codes: dict[int, list[str]] = {422: ["invalid_input"]}  # every endpoint rejects unknown query parameters
    for kind in problems_of(endpoint):
        codes.setdefault(_status(kind), [])
        codes[_status(kind)] += [kind.code] if kind.code not in codes[_status(kind)] else []
    for status, found in sorted(codes.items()):
        content = {"application/problem+json": {"schema": schemas.of(Problem)}}
        description = ", ".join(f"`{code}`" for code in found)
        responses.setdefault(str(status), {"description": description, "content": content})
    return responses


def _status(kind: type[ShoalError]) -> int:
    return RESPONSES[kind].http_status


def _parameter(where: str, name: str, schema: dict[str, Any], *, required: bool = True) -> dict[str, Any]:
    description = schema.pop("description")
    return {"name": name, "in": where, "required": required, "description": description, "schema": schema}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove null: a query parameter is either present or absent."""
    schema = {name: value for name, value in schema.items() if not (name == "default" and value is None)}
    rest = [one for one in schema.pop("anyOf", []) if one != {"type": "null"}]
    return schema | (rest[0] if len(rest) == 1 else {"anyOf": rest} if rest else {})


def _portable(schema: Any) -> Any:
    """Return a schema in the form that client generators need: patterns end with `$`, arrays have `items`, and enums
    have a type."""
    if isinstance(schema, list):
        return [_portable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    portable = {name: _portable(value) for name, value in schema.items()}
    if isinstance(schema.get("pattern"), str):
        portable["pattern"] = schema["pattern"].replace(r"\Z", "$")
    if schema.get("type") == "array":
        portable["items"] = portable.get("items") or {}  # `items` is false for tuples, whose length is fixed
    if isinstance(schema.get("enum"), list):
        portable["type"] = "string"
    return portable


class DocsApi:
    """The OpenAPI document and the reference page."""

    def __init__(self, groups: Sequence[type], shell: Shell) -> None:
        self._groups = groups
        self._shell = shell

    @endpoint(
        "GET",
        "/openapi.json",
        scope=TokenScope.READ,
        summary="Return the OpenAPI 3.1 document of this server.",
        response=dict[str, Any],
    )
    async def show_openapi(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        return Response(await asyncio.to_thread(lambda: self._document), media_type="application/json")

    @endpoint(
        "GET", "/docs", scope=TokenScope.READ, summary="Show the API reference.", response=str, media_type="text/html"
    )
    async def show_docs(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        context = await asyncio.to_thread(lambda: self._context)  # in a thread, because the first request needs 100 ms
        return self._shell.page(request.http, "docs.html", context)

    @cached_property
    def _endpoints(self) -> list[Endpoint]:
        return list(public_endpoints(self._groups))

    @cached_property
    def _document(self) -> bytes:
        return bytes(Json(document(self._endpoints)).body)

    @cached_property
    def _context(self) -> dict[str, Any]:
        reference = orjson.loads(self._document)
        tags: dict[str, list[dict[str, Any]]] = {}
        for spec in self._endpoints:
            operation = reference["paths"][spec.path.replace(":path}", "}")][spec.method.lower()]
            codes = [kind.code for kind in own_problems_of(spec)]
            tags.setdefault(tag_of(spec), []).append({"endpoint": spec, "operation": operation, "codes": codes})
        schemas = reference["components"]["schemas"]
        return {"tags": tags, "schemas": schemas, "about": reference["info"], "as_json": _as_json}


def _as_json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()

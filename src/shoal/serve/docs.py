"""`/openapi.json` and `/docs`: the reference of the API, for programs and for people."""

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import orjson
from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.serve.console.shell import Shell
from shoal.serve.endpoint import Endpoint, EndpointRequest, Nothing, endpoint, public_endpoints
from shoal.serve.openapi import document, problems_of, tag_of
from shoal.serve.problems import Json


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
        context = await asyncio.to_thread(lambda: self._context)  # 100 ms for the first request
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
            codes = [kind.code for kind in problems_of(spec)]
            tags.setdefault(tag_of(spec), []).append({"endpoint": spec, "operation": operation, "codes": codes})
        schemas = reference["components"]["schemas"]
        return {"tags": tags, "schemas": schemas, "about": reference["info"], "as_json": _as_json}


def _as_json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()

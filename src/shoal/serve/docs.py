"""`/openapi.json` and `/docs`: what this server takes and answers, for programs and for people."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import orjson
from starlette.responses import HTMLResponse, Response

from shoal import __version__
from shoal.access.scopes import TokenScope
from shoal.serve.console import templates
from shoal.serve.endpoint import Endpoint, EndpointRequest, Nothing, endpoint, public_lines
from shoal.serve.openapi import document, problems_of, tag_of
from shoal.serve.problems import Json


class DocsApi:
    """The reference of the API that it is part of."""

    def __init__(self, groups: Sequence[type]) -> None:
        self._groups = groups

    @endpoint(
        "GET",
        "/openapi.json",
        scope=TokenScope.READ,
        summary="The OpenAPI 3.1 document of this server.",
        answer=dict[str, Any],
    )
    async def show_openapi(self, ask: EndpointRequest[Nothing, Nothing]) -> Response:
        return Response(self._document, media_type="application/json")

    @endpoint("GET", "/docs", scope=TokenScope.READ, summary="The same for people.", answer=str, media_type="text/html")
    async def show_docs(self, ask: EndpointRequest[Nothing, Nothing]) -> Response:
        return HTMLResponse(self._page)

    @cached_property
    def _lines(self) -> list[Endpoint]:
        return list(public_lines(self._groups))

    @cached_property
    def _document(self) -> bytes:
        return bytes(Json(document(self._lines)).body)

    @cached_property
    def _page(self) -> str:
        told = orjson.loads(self._document)
        tags: dict[str, list[dict[str, Any]]] = {}
        for line in self._lines:
            operation = told["paths"][line.path.replace(":path}", "}")][line.method.lower()]
            codes = [kind.code for kind in problems_of(line)]
            tags.setdefault(tag_of(line), []).append({"line": line, "told": operation, "codes": codes})
        schemas = told["components"]["schemas"]
        return (
            templates()
            .get_template("docs.html")
            .render(tags=tags, schemas=schemas, about=told["info"], version=__version__, as_json=_as_json)
        )


def _as_json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()

"""The OpenAPI document matches the endpoint table, and its examples match real requests and responses."""

from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from shoal.serve.api import GROUPS
from shoal.serve.console.shell import Shell
from shoal.serve.docs import DocsApi
from shoal.serve.endpoint import Endpoint, EndpointRequest, Nothing, public_endpoints
from shoal.serve.openapi import document

ENDPOINTS = list(public_endpoints(GROUPS))
DOCUMENT = document(ENDPOINTS)


def ids(endpoint: Endpoint) -> str:
    return endpoint.name


def test_every_endpoint_has_an_operation_of_its_own_name() -> None:
    names = [one["operationId"] for path in DOCUMENT["paths"].values() for one in path.values()]
    assert sorted(names) == sorted(endpoint.name for endpoint in ENDPOINTS)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=ids)
def test_every_endpoint_is_described_with_examples(endpoint: Endpoint) -> None:
    assert endpoint.summary.endswith(".")
    if endpoint.media_type == "application/json" and endpoint.response is not None and endpoint.path.startswith("/api"):
        assert endpoint.response_example is not None, "an example of its response"
    if endpoint.needs_body:
        assert endpoint.request_example is not None, "an example of its body"


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if one.request_example is not None], ids=ids)
def test_the_example_of_a_body_is_accepted(endpoint: Endpoint) -> None:
    assert endpoint.body.read(endpoint.request_example)


@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if one.response_example is not None], ids=ids)
def test_the_example_of_a_response_matches_its_schema(endpoint: Endpoint) -> None:
    taken = msgspec.convert(endpoint.response_example, endpoint.response)
    assert set(msgspec.to_builtins(taken)) == set(endpoint.response_example)


def test_every_reference_leads_somewhere() -> None:
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) <= known


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for one in value.values() for found in references(one)]
    return [found for one in value for found in references(one)] if isinstance(value, list) else []


def test_an_operation_that_needs_a_token_names_its_scope() -> None:
    made = DOCUMENT["paths"]["/api/v1/crawls"]["post"]
    assert made["security"] == [{"token": []}]
    assert "`write`" in made["description"]
    assert DOCUMENT["paths"]["/healthz"]["get"]["security"] == []


def test_a_query_parameter_has_no_null() -> None:
    listed = {one["name"]: one for one in DOCUMENT["paths"]["/api/v1/crawls"]["get"]["parameters"]}
    assert listed["limit"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}
    assert listed["state"]["schema"] == {"$ref": "#/components/schemas/CrawlState"}


async def test_the_page_for_people_names_every_endpoint_and_loads_nothing_from_elsewhere() -> None:
    scope = {"type": "http", "method": "GET", "path": "/docs", "query_string": b"", "headers": [], "scheme": "http"}
    request = EndpointRequest(Request({**scope, "server": ("127.0.0.1", 8700)}), Nothing(), Nothing())
    page = bytes((await DocsApi(GROUPS, Shell(())).show_docs(request)).body).decode()
    assert all(f'id="{endpoint.name}"' in page for endpoint in ENDPOINTS)
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert "<script" not in page
    assert "a stable <code>code</code>" in page

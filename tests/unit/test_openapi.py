"""The OpenAPI document matches the endpoint table, and its examples match real requests and responses."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from shoal.serve.api import GROUPS
from shoal.serve.console.shell import Shell
from shoal.serve.endpoint import EndpointRequest, Nothing, public_endpoints
from shoal.serve.openapi import DocsApi, document
from shoal.serve.renderer import RendererApi

ENDPOINTS = list(public_endpoints(GROUPS))
DOCUMENT = document(ENDPOINTS)
DOCUMENTS = pytest.mark.parametrize(
    "openapi", [DOCUMENT, document(list(public_endpoints([RendererApi])))], ids=["serve", "renderer"]
)
VERBS = (
    *(
        "create",
        "add",
        "list",
        "show",
        "change",
        "replace",
        "set",
        "remove",
        "download",
        "scrape",
        "compare",
        "diff",
        "explain",
        "watch",
    ),
    *("start", "pause", "resume", "stop", "retry", "cancel", "release", "purge", "run", "enable", "disable"),
    *("pull", "send", "push", "command", "import", "export", "rotate", "test", "replay", "revoke", "render", "restart"),
)


def test_every_endpoint_has_an_operation_of_its_own_name() -> None:
    names = [one["operationId"] for path in DOCUMENT["paths"].values() for one in path.values()]
    assert sorted(names) == sorted(endpoint.name for endpoint in ENDPOINTS)
    assert len(set(names)) == len(names)


def test_every_endpoint_is_described_with_examples() -> None:
    for one in ENDPOINTS:
        assert one.summary.endswith("."), one.name
        if one.media_type == "application/json" and one.response is not None and one.path.startswith("/api"):
            assert one.response_example is not None, f"{one.name} has no example of its response"
        if one.needs_body:
            assert one.request_example is not None, f"{one.name} has no example of its body"


def test_the_example_of_a_body_is_accepted() -> None:
    for endpoint in ENDPOINTS:
        if endpoint.request_example is not None:
            assert endpoint.body.read(endpoint.request_example), endpoint.name


def test_the_example_of_a_response_matches_its_schema() -> None:
    for endpoint in ENDPOINTS:
        if endpoint.response_example is not None:
            taken = msgspec.convert(endpoint.response_example, endpoint.response)
            assert set(msgspec.to_builtins(taken)) == set(endpoint.response_example), endpoint.name


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


def test_work_that_may_go_on_after_the_response_has_a_202() -> None:
    responses = DOCUMENT["paths"]["/api/v1/crawls/{crawl_id}"]["delete"]["responses"]
    assert {"202", "204"} <= set(responses)
    schema = responses["202"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/CrawlRemoval"}


def operations(openapi: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in openapi["paths"].values() for operation in path.values()]


def schemas(value: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each schema below a value under the name that generators of clients give to it."""
    if isinstance(value, list):
        for one in value:
            yield from schemas(one, name)
    elif isinstance(value, dict):
        yield name, value
        for key in ("items", "prefixItems", "anyOf", "oneOf", "allOf", "additionalProperties"):
            yield from schemas(value.get(key), name)
        for key, one in value.get("properties", {}).items():
            yield from schemas(one, name + one.get("title", key.title().replace("_", "")))


def all_schemas(openapi: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, component in openapi["components"]["schemas"].items():
        yield from schemas(component, name)
    for operation in operations(openapi):
        parts = [*operation["parameters"], *operation["responses"].values(), operation.get("requestBody", {})]
        for part in parts:
            for content in (part, *part.get("content", {}).values()):
                yield from schemas(content.get("schema"))


@DOCUMENTS
def test_no_generated_class_has_the_name_of_another(openapi: dict[str, Any]) -> None:
    components = openapi["components"]["schemas"]
    assert [name for name in components if not re.fullmatch("[A-Z][A-Za-z0-9]+", name)] == []
    for name, schema in all_schemas(openapi):
        is_class = schema.get("type") == "object" or "enum" in schema
        assert not is_class or name not in components or schema is components[name], name


@DOCUMENTS
def test_every_array_has_items_and_every_enum_a_type(openapi: dict[str, Any]) -> None:
    for name, schema in all_schemas(openapi):
        assert schema.get("type") != "array" or isinstance(schema.get("items"), dict), name
        assert "enum" not in schema or schema["type"] == "string", name


@DOCUMENTS
def test_every_property_parameter_and_tag_is_described(openapi: dict[str, Any]) -> None:
    for name, schema in all_schemas(openapi):
        for key, one in schema.get("properties", {}).items():
            assert one.get("description", "").endswith("."), f"{name}.{key}"
    for operation in operations(openapi):
        for parameter in operation["parameters"]:
            assert parameter["description"].endswith("."), f"{operation['operationId']} {parameter['name']}"
    described = {tag["name"] for tag in openapi["tags"] if tag["description"]}
    assert described == {tag for operation in operations(openapi) for tag in operation["tags"]}


@DOCUMENTS
def test_the_name_of_an_operation_is_a_verb_and_what_it_acts_on(openapi: dict[str, Any]) -> None:
    for operation in operations(openapi):
        verb, _, thing = operation["operationId"].partition("_")
        assert verb in VERBS, operation["operationId"]
        assert thing or verb == "render"


def test_a_creation_declares_the_location_of_what_it_created() -> None:
    with_location = {
        operation["operationId"]
        for operation in operations(DOCUMENT)
        if any("Location" in response.get("headers", {}) for response in operation["responses"].values())
    }
    resources = ("analysis", "crawl", "gate", "jobs", "policy", "token", "webhook")
    assert with_location == {f"create_{one}" for one in resources}

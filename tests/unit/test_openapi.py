"""The OpenAPI document says what the endpoint table says, and its examples are such as the server takes and gives."""

from typing import Any

import msgspec
import pytest

from shoal.serve.api import GROUPS
from shoal.serve.docs import DocsApi
from shoal.serve.endpoint import Endpoint, EndpointRequest, Nothing, public_lines
from shoal.serve.openapi import document

LINES = list(public_lines(GROUPS))
DOCUMENT = document(LINES)


def ids(line: Endpoint) -> str:
    return line.name


def test_every_endpoint_has_an_operation_of_its_own_name() -> None:
    names = [one["operationId"] for path in DOCUMENT["paths"].values() for one in path.values()]
    assert sorted(names) == sorted(line.name for line in LINES)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("line", LINES, ids=ids)
def test_every_endpoint_is_described_with_examples(line: Endpoint) -> None:
    assert line.summary.endswith(".")
    if line.media_type == "application/json" and line.answer is not None and line.path.startswith("/api"):
        assert line.response_example is not None, "an example of its answer"
    if line.needs_body:
        assert line.request_example is not None, "an example of its body"


@pytest.mark.parametrize("line", [line for line in LINES if line.request_example is not None], ids=ids)
def test_the_example_of_a_body_is_taken(line: Endpoint) -> None:
    assert line.body.read(line.request_example)


@pytest.mark.parametrize("line", [line for line in LINES if line.response_example is not None], ids=ids)
def test_the_example_of_an_answer_has_its_shape(line: Endpoint) -> None:
    taken = msgspec.convert(line.response_example, line.answer)
    assert set(msgspec.to_builtins(taken)) == set(line.response_example)


def test_every_reference_leads_somewhere() -> None:
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) <= known


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for one in value.values() for found in references(one)]
    return [found for one in value for found in references(one)] if isinstance(value, list) else []


def test_what_needs_a_token_says_which_scope() -> None:
    made = DOCUMENT["paths"]["/api/v1/crawls"]["post"]
    assert made["security"] == [{"token": []}]
    assert "`write`" in made["description"]
    assert DOCUMENT["paths"]["/healthz"]["get"]["security"] == []


def test_a_query_parameter_has_no_null() -> None:
    listed = {one["name"]: one for one in DOCUMENT["paths"]["/api/v1/crawls"]["get"]["parameters"]}
    assert listed["limit"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}
    assert listed["state"]["schema"] == {"$ref": "#/components/schemas/CrawlState"}


async def test_the_page_for_people_names_every_endpoint_and_loads_nothing_from_elsewhere() -> None:
    page = bytes((await DocsApi(GROUPS).show_docs(EndpointRequest(None, Nothing(), Nothing()))).body).decode()
    assert all(f'id="{line.name}"' in page for line in LINES)
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert "<script" not in page
    assert "a stable <code>code</code>" in page

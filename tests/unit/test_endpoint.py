"""The endpoint table: what is rejected before a handler is called, and what the gateway can read from it."""

import threading
from typing import Annotated, Any, ClassVar, Literal

import orjson
import pytest
from msgspec import field
from starlette.applications import Starlette
from starlette.requests import Request

from shoal.access.token import TokenScope
from shoal.base.errors import InvalidInput, NotFound, TooLarge, WrongMediaType
from shoal.base.request_form import Check, Form, describe
from shoal.crawl.crawl import CrawlConfig
from shoal.page_jobs.spec import GroupConfig
from shoal.plan.policy import PolicyForm
from shoal.serve.bots import BatchForm
from shoal.serve.endpoint import (
    PARSED_INLINE,
    EndpointRequest,
    EndpointRoute,
    Finder,
    Nothing,
    _each_once,
    endpoint,
    parse,
    routes_of,
    table_of,
)
from shoal.serve.problems import Json
from shoal.serve.requests import Paging, cursor_of, growing_page_of, number_of, page_of

MAX_BODY = 100


class Fish(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    scales: int = 0


class Shoals(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    label: Annotated[list[str], describe("Only those with this label.")] = field(default_factory=list)
    deep: bool | None = False
    kind: Literal["round", "flat"] | None = None
    name: str | None = None


class FishApi:
    @endpoint("POST", "/fish", scope=TokenScope.WRITE, summary="Add a fish.", body=Fish)
    async def add_fish(self, request: EndpointRequest[Fish, Nothing]) -> Json:
        return Json({"name": request.body.name, "scales": request.body.scales})

    @endpoint("GET", "/fish/{fish_id}", scope=TokenScope.READ, summary="Show a fish.")
    async def show_fish(self, request: EndpointRequest[Nothing, Nothing]) -> Json:
        return Json(request.path_param("fish_id"))

    @endpoint("GET", "/fish", scope=TokenScope.READ, summary="List fish.", query=Shoals)
    async def list_fish(self, request: EndpointRequest[Nothing, Shoals]) -> Json:
        return Json({"limit": request.query.limit, "label": request.query.label, "deep": request.query.deep})

    @endpoint("POST", "/fish/{fish_id}/feed", scope=TokenScope.WRITE, summary="Feed a fish.")
    async def feed_fish(self, request: EndpointRequest[Nothing, Nothing]) -> Json:
        return Json("fed")


ROUTES = routes_of([FishApi()], MAX_BODY)


def scope_of(method: str, path: str, query: str = "", headers: dict[str, str] | None = None) -> dict[str, Any]:
    sent = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": sent}


async def call(
    method: str, path: str, query: str = "", body: bytes = b"", headers: dict[str, str] | None = None
) -> Any:
    """Call the endpoint; return its response, or raise its error."""
    scope = scope_of(method, path, query, headers) | {"app": Starlette()}
    [(route, found)] = [(one, one.matches(scope)) for one in ROUTES if one.matches(scope)[0].value == 2]
    assert isinstance(route, EndpointRoute)
    chunks = [body[start : start + 60] for start in range(0, len(body), 60)] or [b""]

    async def receive() -> dict[str, Any]:
        chunk = chunks.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}

    answer = await route.endpoint(Request(scope | found[1], receive))
    return orjson.loads(answer.body)


def test_the_table_keeps_the_order_of_the_class_and_what_was_declared() -> None:
    lines = table_of(FishApi)
    assert [line.name for line in lines] == ["add_fish", "show_fish", "list_fish", "feed_fish"]
    assert [line.needs_body for line in lines] == [True, False, False, False]
    assert lines[1].path_params == ["fish_id"]


def test_the_gateway_knows_the_endpoint_of_a_request() -> None:
    finder, scope = Finder(ROUTES), scope_of("GET", "/fish/carp")
    found = finder.find(scope)
    assert found is not None
    assert (found.spec.name, found.spec.scope) == ("show_fish", TokenScope.READ)
    assert (scope["route"], scope["path_params"]) == (found, {"fish_id": "carp"})
    whole = finder.find(scope_of("GET", "/fish"))
    assert whole is not None
    assert whole.spec.name == "list_fish"
    assert finder.find(scope_of("DELETE", "/fish/carp")) is None
    assert finder.find(scope_of("DELETE", "/fish")) is None
    assert finder.find(scope_of("GET", "/birds")) is None


async def test_a_body_is_read_by_its_form() -> None:
    assert await call("POST", "/fish", body=b'{"name": "carp", "scales": 3}') == {"name": "carp", "scales": 3}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON"),
        (b"[]", "the body is not a JSON object; send one JSON object."),
        (b'{"name": "carp", "fins": 2}', "fins is not a known field"),
        (b'{"name": "carp", "name": "pike"}', "name is given twice; pass it once."),
        (b'{"name": "carp", "scales": NaN}', "the body is not JSON"),
        (b'{"name": "\\ud800"}', "the body is not JSON"),
        (b'{"name": ' + b"[" * 40 + b"]" * 40 + b"}", "name cannot be"),
        (b'{"scales": 3}', "name is missing; give text."),
    ],
)
async def test_a_body_that_cannot_be_taken_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await call("POST", "/fish", body=body)
    assert message in refused.value.message


def test_looking_for_a_repeated_key_compares_each_key_only_a_few_times() -> None:
    class Key(str):
        __slots__ = ()
        compared: ClassVar[int] = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Key.compared += 1
            return str.__eq__(self, other)

    names = [str(number) for number in range(3_000)]
    with pytest.raises(InvalidInput) as refused:
        _each_once([(Key(name), 1) for name in [*names, names[-1]]])
    assert refused.value.message == "2999 is given twice; pass it once."
    assert Key.compared < 10 * len(names)


class Watched(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    checks: ClassVar[dict[str, Check]] = {"name": lambda _: threading.current_thread().name}


class WatchedApi:
    @endpoint("POST", "/watched", scope=TokenScope.WRITE, summary="Say where it was parsed.", body=Watched)
    async def parse_watched(self, request: EndpointRequest[Watched, Nothing]) -> Json:
        return Json(request.body.name)


@pytest.mark.parametrize(("size", "on_the_loop"), [(10, True), (PARSED_INLINE, False)])
async def test_a_large_body_is_parsed_outside_of_the_event_loop(size: int, on_the_loop: bool) -> None:
    [route] = routes_of([WatchedApi()], 10 * PARSED_INLINE)
    assert isinstance(route, EndpointRoute)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"name": "%s"}' % (b"x" * size), "more_body": False}

    answer = await route.endpoint(Request(scope_of("POST", "/watched") | {"path_params": {}}, receive))
    assert (orjson.loads(answer.body) == threading.current_thread().name) == on_the_loop


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (PolicyForm, b'{"%s": 1}' % (b"frequency" * 10_000)),
        (CrawlConfig, b'{"seeds": ["http://example.org/"], "cookies": [{"%s": 1}]}' % (b"x" * 100_000)),
        (CrawlConfig, b'{"seeds": ["http://example.org/"], "cookies": [{"%s": 1}]}' % (b" - at `$" * 10_000)),
    ],
)
def test_a_refusal_quotes_little_of_a_long_name(form: type[Form], body: bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse(form, body)
    assert len(refused.value.message) < 1_000


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_nul_in_a_deep_value_is_refused_like_any_other(opening: bytes, closing: bytes) -> None:
    deep = opening * 900 + b'"\\u0000"' + closing * 900
    with pytest.raises(InvalidInput, match="rule_set contains a NUL character"):
        parse(PolicyForm, b'{"url": "http://example.org/", "frequency": "1h", "rule_set": {"x": %s}}' % deep)


async def test_a_body_over_the_limit_is_refused_in_the_middle() -> None:
    with pytest.raises(TooLarge):
        await call("POST", "/fish", body=b'{"name": "' + b"x" * MAX_BODY + b'"}')


@pytest.mark.parametrize(
    "headers",
    [{"content-type": "text/plain"}, {"content-type": "application/json", "content-encoding": "gzip"}],
)
async def test_a_body_of_another_kind_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(WrongMediaType):
        await call("POST", "/fish", body=b'{"name": "carp"}', headers=headers)


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "application/merge+json"])
async def test_json_is_known_by_its_names(kind: str) -> None:
    assert await call("POST", "/fish", body=b'{"name": "carp"}', headers={"content-type": kind})


async def test_an_action_needs_no_body_and_takes_no_unknown_field() -> None:
    assert await call("POST", "/fish/carp/feed") == "fed"
    assert await call("POST", "/fish/carp/feed", body=b"{}") == "fed"
    with pytest.raises(InvalidInput, match="bread is not a known field; leave it out"):
        await call("POST", "/fish/carp/feed", body=b'{"bread": 1}')


@pytest.mark.parametrize(("sent", "taken"), [("2.0", 2), ("2e3", 2000), ("-0.0", 0)])
async def test_a_number_without_a_fraction_is_whole_however_it_is_written(sent: str, taken: int) -> None:
    answer = await call("POST", "/fish", body=b'{"name": "carp", "scales": %s}' % sent.encode())
    assert orjson.dumps(answer["scales"]) == b"%d" % taken
    inner = b'{"results": [{"job_id": "a", "epoch": %s, "status": "success"}]}' % sent.encode()
    assert parse(BatchForm, inner).results[0].epoch == taken


@pytest.mark.parametrize("sent", ["2.5", "1e30", "9007199254740993.0"])
async def test_a_number_that_is_not_surely_whole_is_refused(sent: str) -> None:
    with pytest.raises(InvalidInput, match=r"scales cannot be .*; give a whole number"):
        await call("POST", "/fish", body=b'{"name": "carp", "scales": %s}' % sent.encode())


async def test_a_text_may_be_null() -> None:
    assert (await call("GET", "/fish", "name=null"))["limit"] == 50


def test_a_name_that_does_not_fit_its_pattern_is_refused_with_what_fits() -> None:
    fits = r"project cannot be '../../x'; give 1 to 64 letters, digits and `_.-`."
    seeded = {"seeds": ["http://example.org/"], "project": "../../x"}
    for form, body in (
        (CrawlConfig, seeded),
        (GroupConfig, {"urls": ["http://example.org/"], "project": "../../x"}),
        (PolicyForm, {"url": "http://example.org/", "frequency": "6h", "project": "../../x"}),
    ):
        with pytest.raises(InvalidInput) as refused:
            parse(form, orjson.dumps(body))
        assert refused.value.message == fits


@pytest.mark.parametrize("field", ["frequency", "cron"])
def test_an_empty_schedule_is_refused(field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field} "):
        parse(PolicyForm, orjson.dumps({"url": "http://example.org/", field: ""}))


async def test_query_parameters_are_declared_and_typed() -> None:
    answer = await call("GET", "/fish", "limit=5&label=a&label=b&deep=true")
    assert answer == {"limit": 5, "label": ["a", "b"], "deep": True}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("limt=5", "limt is not a known field; the nearest one is limit."),
        ("limit=0", "limit cannot be '0'; give a whole number from 1 to 200."),
        ("limit=5&limit=6", "limit is given twice; pass it once."),
        ("label=%00", "label contains a NUL character; leave it out."),
        ("kind=null", "kind cannot be 'null'; give round or flat."),
        ("deep=null", "deep cannot be 'null'; give true or false."),
        ("limit=99999999999999999999", "limit cannot be '99999999999999999999'; give a whole number from 1 to 200."),
    ],
)
async def test_query_parameters_that_cannot_be_taken_are_refused(query: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await call("GET", "/fish", query)
    assert refused.value.message == message


async def test_an_id_that_cannot_exist_is_not_found() -> None:
    with pytest.raises(NotFound):
        await call("GET", "/fish/\x00")
    with pytest.raises(NotFound):
        await call("GET", f"/fish/{'x' * 301}")


def test_a_list_ends_with_the_cursor_of_its_next_page() -> None:
    items, following = page_of([1, 2, 3], 2, int)
    assert items == [1, 2]
    assert number_of(following) == 2
    assert page_of([3], 2, int) == ([3], None)


def test_a_growing_list_always_has_a_next_page() -> None:
    assert growing_page_of([], 2, 7, int, growing=True) == ([], cursor_of("7"))
    assert growing_page_of([8], 2, 7, int, growing=True) == ([8], cursor_of("8"))
    assert growing_page_of([8, 9, 10], 2, 7, int, growing=False) == ([8, 9], cursor_of("9"))
    assert growing_page_of([8], 2, 7, int, growing=False) == ([8], None)


@pytest.mark.parametrize("cursor", ["", "!", "MTIz=", "LTE", cursor_of("1e5"), cursor_of("9" * 30), "\x00", "é"])
def test_a_cursor_that_no_list_gave_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidInput):
        number_of(cursor)

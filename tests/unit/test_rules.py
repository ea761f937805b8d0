"""Rule sets: what they extract from a page, what is rejected, and that neither a page nor a rule set can do harm."""

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shoal.base.errors import InvalidInput
from shoal.crawl.crawl import CrawlConfig
from shoal.extract.rule_reader import (
    LARGEST_DATA,
    MOST_VALUES,
    Extracted,
    RuleReader,
    read_bool,
    read_date,
    read_float,
    read_int,
    read_url,
)
from shoal.extract.rules import DEEPEST, LARGEST, MOST_FIELDS, RuleSet, read_rules, rules_of
from shoal.extract.selectors import MAX_COSTLY_CSS_TAGS, MAX_XPATH_DEPTH, MAX_XPATH_TAGS, find_json_ld
from shoal.extract.tree import Source

URL = "http://shop.example/tea/1"


def take(html: str, **fields: Any) -> Extracted:
    return RuleReader(read_rules({"fields": fields}), time.perf_counter).read(page(html))


def page(html: str) -> Source:
    return Source(URL, html.encode(), "text/html; charset=utf-8")


def judge(rules: Any) -> RuleSet | InvalidInput:
    try:
        return read_rules(rules)
    except InvalidInput as bad:
        return bad


def refusal(**fields: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_rules({"fields": fields})
    return caught.value.message


SHOP = """<base href="/shop/"><h1>Green <b>tea</b></h1><p class=price>EUR 1.234,50</p><img src=a.png><img src=b.png>
<p id=stock>yes</p><time datetime="2024-05-01T10:00Z">May</time>
<div class=about>Good<p>very</p><script>no()</script></div>
<ul><li class=review data-stars=5><i>Ann</i> liked it <li class=review data-stars=none><i>Bob</i></ul>
<script type="application/ld+json">{"@graph": [{"@type": ["Thing", "https://schema.org/Product"],
"sku": 12345678901234567, "offers": [{"price": "12.5"}, {"price": {"@value": 3}}]}]}</script>
<script type="application/ld+json">{broken</script>"""
IMAGES = ["http://shop.example/shop/a.png", "http://shop.example/shop/b.png"]


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ({"css": "h1"}, "Green tea"),
        ({"css": "h1", "transform": ["upper"]}, "GREEN TEA"),
        ({"css": "h2"}, None),
        ({"css": "h2", "default": "none"}, "none"),
        ({"css": ".price", "type": "float"}, 1234.5),
        ({"css": ".price", "regex": "([A-Z]+) [0-9]"}, "EUR"),
        ({"css": ".price", "transform": ["digits"], "type": "int"}, 123450),
        ({"css": "img", "attribute": "src", "type": "url", "list": True}, IMAGES),
        ({"css": "nav a", "list": True}, []),
        ({"css": "#stock", "type": "bool"}, True),
        ({"css": "h1", "type": "bool"}, None),
        ({"css": "time", "attribute": "datetime", "type": "date"}, "2024-05-01T10:00:00+00:00"),
        ({"css": ".about"}, "Good very"),
        ({"css": "h1 b", "type": "html"}, "<b>tea</b>"),
        ({"xpath": "//img/@src", "list": True}, ["a.png", "b.png"]),
        ({"xpath": "count(//img)", "type": "int"}, 2),
        ({"xpath": "//li[i[.='Bob']]/@data-stars"}, "none"),
        ({"xpath": "//ul[.//li[contains(@data-stars, 'n') and not(@x='1')]][.//i]/li[last()]/i"}, "Bob"),
        ({"css": "ul:has(> li i):has(i) li:nth-last-child(1) i"}, "Bob"),
        ({"xpath": "//li[.//i = 'Bob']/@data-stars"}, "none"),
        ({"xpath": "//li[1]/following-sibling::li[1]/i"}, "Bob"),
        ({"xpath": "boolean(//h2)", "type": "bool"}, False),
        ({"jsonld": "Product.offers.price", "type": "float", "list": True}, [12.5, 3.0]),
        ({"jsonld": "Product.sku", "type": "int"}, 12345678901234567),
        ({"jsonld": "*.offers"}, None),
        ({"regex": "liked (\\w+)"}, "it"),
    ],
)  # fmt: skip
def test_a_field_becomes_what_its_rule_says(rule: dict[str, Any], value: Any) -> None:
    assert take(SHOP, field=rule) == Extracted({"field": value})


def test_each_makes_an_object_of_every_element() -> None:
    stars = {"attribute": "data-stars", "type": "int"}
    extracted = take(SHOP, reviews={"css": ".review", "each": {"who": {"css": "i"}, "stars": stars}})
    assert extracted.data == {"reviews": [{"who": "Ann", "stars": 5}, {"who": "Bob", "stars": None}]}
    assert extracted.message is None


def test_a_required_field_that_is_missing_is_reported_by_name() -> None:
    inner = {"stars": {"attribute": "data-stars", "type": "int", "required": True}}
    extracted = take(
        SHOP,
        name={"css": "h2", "required": True},
        price={"css": "h1", "type": "float", "required": True},
        reviews={"css": ".review", "each": inner, "required": True},
        authors={"css": ".author", "each": {"name": {"css": "b"}}, "required": True},
    )
    assert extracted.message == (
        "name is required and missing; price is required, and 'Green tea' is not a valid float; "
        "reviews[1].stars is required, and 'none' is not a valid int; authors is required and missing."
    )
    assert extracted.data["name"] is None


def test_only_pages_whose_url_matches_are_read() -> None:
    reader = RuleReader(read_rules({"urls": ["/tea/[0-9]+$"], "fields": {"a": {"css": "b"}}}), time.perf_counter)
    assert reader.reads(URL)
    assert not reader.reads("http://shop.example/tea/")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({}, "fields.a has no source; add css, xpath, jsonld or regex"),
        ({"css": "p["}, "fields.a.css is 'p[', which is not a CSS selector (expected an identifier at"),
        ({"css": "p", "xpath": "//p"}, "fields.a has both css and xpath; keep one of them"),
        ({"csss": "p"}, "fields.a.csss is not a known field; the nearest one is css"),
        ({"css": "p", "type": "integer"}, "fields.a.type cannot be 'integer'; give text, int, float"),
        ({"css": ""}, "fields.a.css cannot be ''; give text of 1 to 2000"),
        ({"jsonld": "A..b"}, "fields.a.jsonld is 'A..b', which has an empty step; write a type and keys"),
        ({"regex": "(?=x)"}, "fields.a.regex is '(?=x)', which is not a regular expression that RE2 supports"),
        ({"css": "p", "date_format": "%Y"}, 'fields.a.date_format is only for dates; set type = "date"'),
        ({"css": "p", "each": {}}, "fields.a.each has no fields"),
        ({"css": "p", "type": "int", "each": {"b": {}}}, "fields.a.type cannot be combined with each"),
        ({"css": "p", "each": {"b": {"css": "["}}}, "fields.a.each.b.css is '['"),
        ({"jsonld": "A", "attribute": "b"}, "fields.a.attribute cannot be combined with jsonld"),
        ({"css": "p", "attribute": "x", "type": "html"}, "fields.a.type html cannot be combined with jsonld"),
        ({"xpath": "document('file:///etc/passwd')"}, "calls document(), which is not allowed"),
        ({"xpath": "//p[unparsed-text('x')]"}, "calls unparsed-text()"),
        ({"xpath": "//p[re:test(., '(a+)+$')]"}, "calls re:test(), which is not allowed; use the regex of the rule"),
        ({"xpath": "//p[preceding::p]"}, "uses the axis preceding::"),
        ({"xpath": "//p[//a]"}, "searches the whole page inside [ ]; start that path with a dot"),
        ({"xpath": "//p[count( //a) > 1]"}, "searches the whole page inside [ ]"),
        ({"xpath": "//p[a or //b]"}, "searches the whole page inside [ ]"),
        ({"xpath": "//p[a[b[c]]]"}, "nests [ ] more than 2 levels deep"),
        ({"xpath": "//p[count(preceding-sibling::p)>5]"}, "goes up or sideways inside [ ]"),
        ({"xpath": "//p[../p[../p='zz']]"}, "goes up or sideways inside [ ]"),
        ({"xpath": "//p[ancestor :: div]"}, "goes up or sideways inside [ ]"),
        ({"xpath": "//*/ancestor::*[.//text()]"}, "searches below an ancestor"),
        ({"xpath": "//p/parent :: div[@id][contains(., 'x')]"}, "searches below an ancestor"),
        ({"xpath": "//p/ancestor::*[1][p]"}, "searches below an ancestor"),
        ({"xpath": "//p/following-sibling::p"}, "select one, such as following-sibling::p[1]"),
        ({"xpath": "//p/following-sibling::p[position()<900]"}, "selects all siblings"),
        ({"xpath": "//p[id('x')]"}, "calls id() inside [ ]"),
        ({"xpath": "//*[.//* = .//text()]"}, "searches below an element twice inside one [ ]"),
        ({"xpath": "//*[.//text() = *]"}, "compares the result of [.// ] with other elements"),
        ({"xpath": "//*[.//*[.='zz']]"}, "looks at more than attributes in a [ ] inside [.// ]"),
        ({"xpath": "//p" + "[.='zz']" * 80}, "has more than 500 characters"),
        ({"css": "p:has(~ p:has(~ .zz))"}, "inside :has(), which is too slow"),
        ({"css": "p:has(:is(a, :HAS(b)))"}, "inside :has(), which is too slow"),
        ({"css": "p:has(~ p ~ p ~ .zz)"}, "inside :has(), which is too slow"),
        ({"css": "p:has(p:nth-child(7))"}, "inside :has(), which is too slow"),
        ({"css": r"p:h\61 s(b)"}, "with a backslash"),
        ({"css": "p" + ":nth-child(2n)" * 5}, "has more than 4 of :has() and :nth-…()"),
        ({"xpath": "//p[$x]"}, "uses a variable"),
        ({"xpath": "string-join(//p, string(/))"}, "calls string-join()"),
        ({"xpath": f"concat({','.join('/' * 40)})"}, "has more than 30 arguments"),
        ({"xpath": "//p["}, "is not an XPath expression"),
    ],
)  # fmt: skip
def test_a_bad_rule_is_refused_by_its_place_with_the_fix(rule: dict[str, Any], words: str) -> None:
    assert words in refusal(a=rule)


def test_names_and_sizes_are_bounded() -> None:
    assert "is not a valid field name; use 1 to 64 letters" in refusal(**{"a b": {"css": "p"}})
    assert f"maximum of {MOST_FIELDS} in total" in refusal(**{f"f{n}": {"css": "p"} for n in range(MOST_FIELDS + 1)})
    deep: dict[str, Any] = {"css": "p"}
    for _ in range(DEEPEST + 1):
        deep = {"css": "p", "each": {"a": deep}}
    assert f"is more than {DEEPEST} levels deep" in refusal(a=deep)
    for _ in range(500):
        deep = {"css": "p", "each": {"a": deep}}
    assert "the rule set" in refusal(a=deep)
    assert "larger than 256 KB" in refusal(**{f"f{n}": {"css": "p" * 1_900} for n in range(150)})


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (b"[fields", "r.toml", "r.toml is not TOML"),
        (b"{", "r.json", "r.json is not JSON"),
        (b"\xff", "r.toml", "r.toml is not TOML"),
        (b"[field.a]\ncss='p'", "r.toml", "r.toml: field is not a known key of a rule set"),
        (b"", "r.toml", "r.toml: fields is missing; write [fields.NAME]"),
        (b"[]", "r.json", "r.json: the rule set is not a table"),
        (b"[fields.a]\ncss=2024-01-01", "r.toml", "r.toml: fields.a.css cannot be '2024-01-01'"),
        (b"[fields" + b".a.each" * 5_000 + b"]\ncss='x'", "r.toml", "a key has more than 50 parts"),
        (b" " * (LARGEST + 1), "r.toml", "r.toml is larger than 256 KB"),
    ],
)
def test_a_file_that_is_not_a_rule_set_is_refused_by_its_name(text: bytes, name: str, words: str) -> None:
    with pytest.raises(InvalidInput, match="r\\.") as caught:
        rules_of(text, name)
    assert words in caught.value.message


def test_toml_and_json_say_the_same() -> None:
    toml = rules_of(b"[fields.a]\ncss = 'p'\nlist = true", "r.toml")
    assert toml == rules_of(json.dumps({"fields": {"a": {"css": "p", "list": True}}}).encode(), "r.json")


def test_a_crawl_refuses_a_bad_rule_set() -> None:
    with pytest.raises(InvalidInput, match=r"rules\.fields\.a\.css is 'p\['"):
        CrawlConfig.read({"seeds": ["http://a.example/"], "rules": {"fields": {"a": {"css": "p["}}}})


def test_long_lists_and_much_data_are_cut() -> None:
    many = take("<p>x</p>" * (MOST_VALUES + 5), all={"css": "p", "list": True})
    assert len(many.data["all"]) == MOST_VALUES
    much = take(f"<p>{'x' * 90_000}</p>" * 20, all={"css": "p", "list": True})
    assert much.data == {"all": None}
    assert much.message == f"The data is larger than {LARGEST_DATA // 1000} KB."


def test_xpath_is_not_tried_on_pages_that_are_too_large_for_it() -> None:
    html = "<p>x</p>" * MAX_XPATH_TAGS
    assert take(html, a={"xpath": "//p"}, b={"css": "p"}).data == {"a": None, "b": "x"}
    assert take(html, a={"xpath": "//p"}).message == "The page is too large to be searched with '//p'."
    deep = "<div>" * MAX_XPATH_DEPTH + "<p>x</p>"
    assert take(deep, a={"xpath": "//p"}, b={"css": "p"}).data == {"a": None, "b": "x"}


NESTED = "<div>" * 50 + "<p>{}</p>" + "<i></i>" * 4_000


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("//*[contains(concat(., .), 'zz')]", "word " * 190_000),
        ("//*//*[contains(., 'zz')]", "word " * 190_000),
        ("//*[.//text()]//*[.//text()]", "x"),
    ],
)
def test_an_xpath_whose_time_grows_faster_than_the_page_is_evaluated_only_on_small_pages(
    expression: str, text: str
) -> None:
    extracted = take(NESTED.format(text), a={"xpath": expression}, b={"xpath": "//p[1]"})
    assert extracted.message == f"The page is too large to be searched with {expression!r}."
    assert extracted.data["b"] is not None
    assert take("<div><p>zz</p></div>", a={"xpath": expression}).message is None


@pytest.mark.parametrize(
    "expression",
    [
        "//div[@class='x']//p[contains(., 'y')]",
        "//div[contains(@class, 'x')]/ancestor::section[@id='a'][last()]//h2[1]",
        "//table//tr[td[1] = 'Price']/td[2]",
        "normalize-space(//h1)",
    ],
)
def test_usual_xpath_is_tried_on_large_pages(expression: str) -> None:
    html = "<div>" * 15 + f"<p>{'word ' * 30_000}</p>" + "<i></i>" * 4_000
    assert take(html, a={"xpath": expression}).message is None


def test_costly_css_is_not_tried_on_large_pages() -> None:
    rules = {"a": {"css": "p:nth-child(1)"}, "b": {"css": "body:has(p) p"}, "c": {"css": "p:not(.x)"}}
    assert take("<p>x</p>", **rules).data == {"a": "x", "b": "x", "c": "x"}
    assert take("<p>x</p>" * MAX_COSTLY_CSS_TAGS, **rules).data == {"a": None, "b": None, "c": "x"}


def test_a_page_that_takes_too_long_is_given_up_between_fields_that_find_nothing() -> None:
    ticks = iter([0.0, 0.5, 9.0])
    reader = RuleReader(read_rules({"fields": {name: {"css": ".zz"} for name in "abcdef"}}), lambda: next(ticks))
    assert reader.read(page("<p>x</p>")).message == "Extraction took longer than 1 s and was stopped."


def test_a_page_that_takes_too_long_is_given_up_between_values() -> None:
    ticks = (tick / 2 for tick in range(100))
    fields = {"a": {"css": "p", "list": True}, "b": {"css": "p"}, "c": {"css": "p", "each": {"d": {}}}}
    reader = RuleReader(read_rules({"fields": fields}), lambda: next(ticks))
    extracted = reader.read(page("<p>x</p>" * 9))
    assert extracted.data == {"a": ["x"], "b": None, "c": []}
    assert extracted.message == "Extraction took longer than 1 s and was stopped."


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "rule",
    [
        {"css": "div", "list": True},
        {"css": "div", "type": "html", "list": True},
        {"css": "div", "each": {"a": {"css": "div", "each": {"b": {}}}}},
        {"regex": "(x)(x)", "list": True},
        {"xpath": f"concat({','.join('/' * 30)})"},
    ],
)
def test_a_page_made_to_take_for_ever_does_not(rule: dict[str, Any]) -> None:
    began = time.process_time()
    take("<div>" * 450 + "x" * 2_000_000, a=rule)
    assert time.process_time() - began < 8


@pytest.mark.parametrize(
    ("text", "whole", "number"),
    [
        ("12 pieces", 12, 12.0), ("1,234.5", None, 1234.5), ("1.234,5", None, 1234.5), ("€ 12,50", None, 12.5),
        ("1.234", 1234, 1.234), ("1,234", 1234, 1234.0), ("1 234 567", 1234567, 1234567.0), ("-3", -3, -3.0),
        ("\N{MINUS SIGN}5", -5, -5.0), ("1'234.50", None, 1234.5), ("1.2.3", None, None), ("x", None, None),
        ("1.5e3", 1500, 1500.0), ("1e999", None, None), (".5", None, 0.5), ("-.0", 0, -0.0), ("99 1/2", 99, 99.0),
        ("12345678901234567", 12345678901234567, 12345678901234567.0), ("9" * 100, None, None), ("", None, None),
    ],
)  # fmt: skip
def test_numbers_are_read_as_people_write_them(text: str, whole: int | None, number: float | None) -> None:
    assert read_int(text) == whole
    assert read_float(text) == number


@pytest.mark.parametrize(
    ("text", "form", "date"),
    [
        ("2024-05-01", None, "2024-05-01"),
        ("2024-05-01T10:00:00+02:00", None, "2024-05-01T10:00:00+02:00"),
        ("Wed, 01 May 2024 10:00:00 GMT", None, "2024-05-01T10:00:00+00:00"),
        ("01.05.2024", "%d.%m.%Y", "2024-05-01"),
        ("01.05.2024", None, None),
        ("yesterday", None, None),
        ("x", "%", None),
    ],
)
def test_dates_become_iso_8601(text: str, form: str | None, date: str | None) -> None:
    assert read_date(text, form) == date


def test_other_value_types_are_converted() -> None:
    assert [read_bool(word) for word in ("Yes", "0", "maybe")] == [True, False, None]
    assert read_url(" ../x ", URL) == "http://shop.example/x"
    assert read_url("http://[", URL) is None
    assert read_url("", URL) is None


@settings(deadline=None)
@given(st.text(max_size=80), st.sampled_from(["%d.%m.%Y", "%", "%Y-%m", None]))
@example("1" * 70, None)
@example("-" + "1" * 18, None)
@example("10000-01-01", None)
@example("Mon, 99 Jan 99999 99:99:99 +9999", None)
def test_no_text_makes_a_value_raise(text: str, form: str | None) -> None:
    for value in (read_int(text), read_float(text), read_bool(text), read_date(text, form), read_url(text, URL)):
        json.dumps(value, allow_nan=False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["@type", "@graph", "a", "@value"]), inner)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.lists(JSON, max_size=3), st.sampled_from(["*", "a", "*.a", "T.a.a", "*.@type"]))
def test_a_path_finds_only_plain_values_in_any_json(blocks: list[Any], path: str) -> None:
    assert not [value for value in find_json_ld(blocks, path) if isinstance(value, dict | list) or value is None]


WORDS = st.sampled_from(
    [
        "css",
        "xpath",
        "jsonld",
        "attribute",
        "regex",
        "transform",
        "type",
        "date_format",
        "list",
        "required",
        "default",
        "each",
        "fields",
        "urls",
    ]
)
SAID = st.sampled_from(
    ["p", "//p", "[", "(", "a b", "", "int", "date", "html", "url", "lower", "%Y", "A.b", "\x00", "é"]
)
RULES = st.recursive(
    SAID | st.booleans() | st.none() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | SAID, inner, max_size=5),
    max_leaves=30,
)


@given(RULES, st.dictionaries(SAID | st.just("a"), st.dictionaries(WORDS, SAID | st.booleans() | RULES, max_size=4)))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_value_given_as_a_rule_set_is_accepted_or_refused_in_words(given: Any, fields: dict[str, Any]) -> None:
    for rules in (given, {"fields": fields}, {"fields": {"a": given}}):
        judged = judge(rules)
        if isinstance(judged, InvalidInput):
            assert "; " in judged.message
        else:
            json.dumps(RuleReader(judged, time.perf_counter).read(page(SHOP)).data)


@settings(deadline=None)
@given(st.text(alphabet="/*[]().@|$'\"abpre:-=<>+, 1&;{}\x00é", max_size=30))
@example("//p[re:test(.,'(a+)+$')]")
@example("p[']']['//']")
@example('"' + "'" + '"[//a]')
@example("a[.//b][//c]")
@example("1/.")
@example("//p[1/.]")
def test_an_expression_that_passes_the_check_runs(expression: str) -> None:
    judged = judge({"fields": {"a": {"xpath": expression, "list": True}}})
    if isinstance(judged, RuleSet):
        json.dumps(RuleReader(judged, time.perf_counter).read(page(SHOP)).data)


@settings(deadline=None)
@given(st.binary(max_size=400))
@example(b"<p>\x00</p><base href='http://['>")
@example(b"<script type=application/ld+json>[[[[[[[[[[[[")
@example(b'<script type=application/ld+json>{"@type":"A","b":"\\ud800"}')
def test_foreign_bytes_raise_nothing(body: bytes) -> None:
    fields = {
        "text": {"css": "*", "list": True},
        "html": {"css": "*", "type": "html"},
        "url": {"xpath": "//@*", "type": "url", "list": True},
        "ld": {"jsonld": "*.b", "list": True},
        "found": {"regex": "(.)(.)", "list": True},
        "each": {"css": "*", "each": {"t": {"type": "date"}}},
    }
    reader = RuleReader(read_rules({"fields": fields}), time.perf_counter)
    json.dumps(reader.read(Source(URL, body, None)).data).encode()

"""Parse and validate rule sets: which data to extract from a page. `shoal.extract.rule_reader` applies them.

    [fields.name]
    css = "h1"
    required = true

    [fields.price]
    css = ".price"
    regex = '[0-9.,]+'
    type = "float"

    [fields.reviews]
    css = "li.review"
    [fields.reviews.each.author]
    css = ".author"

Workers run rule sets that other people stored, so rule sets are untrusted: they can read only the page, and their time
and size are limited.
"""

import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal

import orjson
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from shoal.base.errors import InvalidInput
from shoal.base.parsing import read_toml
from shoal.base.request_form import Form, describe
from shoal.base.text import shorten
from shoal.extract.selectors import check_css, check_json_ld, check_regex, check_xpath

LARGEST: Final = 256_000  # bytes of a rule set
MOST_FIELDS: Final = 200  # fields in total
MOST_URLS: Final = 50
DEEPEST: Final = 4  # nesting of `each`

Words = Annotated[str, Meta(min_length=1, max_length=2_000)]
Type = Literal["text", "int", "float", "bool", "date", "url", "html"]
Transforms = Annotated[list[Literal["lower", "upper", "digits"]], Meta(max_length=5)]
Plain = str | int | float | bool | None
Default = Plain | list[Plain]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_HOW: Final = "write [fields.NAME] with a rule for each field"
_NOT_WITH_EACH: Final = ("jsonld", "attribute", "regex", "transform", "type", "default", "date_format")


class FieldRule(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rule for one field: how to find its value and convert it."""

    css: Annotated[Words | None, describe("CSS selector.")] = None
    xpath: Annotated[Words | None, describe("XPath 1.0 expression; some functions and axes are not allowed.")] = None
    jsonld: Annotated[Words | None, describe("Path into JSON-LD: a type (or *), then keys, such as Product.sku.")] = (
        None
    )
    attribute: Annotated[Words | None, describe("Use this attribute of the element instead of its text.")] = None
    regex: Annotated[
        Words | None,
        describe("Regular expression; its first group, or else the whole match, is the part of the text to use."),
    ] = None
    transform: Annotated[Transforms, describe("Transformations of the text, in order.")] = []  # noqa: RUF012 - each form gets its own
    type: Annotated[Type, describe("Type of the value.")] = "text"
    date_format: Annotated[Words | None, describe("Format of a date, as for strptime.")] = None
    required: Annotated[bool, describe("A page without this field has invalid data.")] = False
    default: Annotated[Default, describe("Value if nothing is found.")] = None
    each: Annotated[dict[str, Any] | None, describe("Return each element found as an object with these fields.")] = None
    list: Annotated[bool, describe("Return all matches instead of the first.")] = False  # last: it shadows `list`


class RuleSet(Struct, frozen=True):
    """The rules of all fields. If `urls` is set, they apply only to pages whose URL matches one of its patterns."""

    fields: dict[str, FieldRule]
    urls: list[str] = field(default_factory=list)


def read_rules(given: Any, called: str = "") -> RuleSet:
    """Parse a rule set from plain data; raise for the first error with its location, prefixed by `called`."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{called}the rule set", "is not a table", _HOW)
    _check_size(given, called)
    for name in given:
        if name not in ("fields", "urls"):
            raise InvalidInput(f"{called}{shorten(name)}", "is not a known key of a rule set", "use fields and urls")
    return _RuleChecker(called).read(given)


def rules_of(text: bytes, name: str) -> dict[str, Any]:
    """Parse and validate a rule set file, and return its plain data: JSON if it is named .json, else TOML."""
    if len(text) > LARGEST:
        raise InvalidInput(name, f"is larger than {LARGEST // 1000} KB", "split the rule set")
    suffix = PurePath(name).suffix.lower()
    try:
        found = (
            json.loads(text, object_pairs_hook=_without_duplicates)
            if suffix == ".json"
            else read_toml(text.decode("utf-8-sig"))
        )
    except ValueError as error:
        kind = "JSON" if suffix == ".json" else "TOML"
        fix = "correct it; .json files are JSON, others TOML"
        raise InvalidInput(name, f"is not {kind} ({shorten(error, 200)})", fix) from None
    read_rules(found, f"{name}: ")
    return dict(found)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Like TOML, raise if it has a key twice, because otherwise only the last value would
    count."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for place, (name, _) in enumerate(pairs) if name in dict(pairs[:place]))
        raise ValueError(f"{shorten(twice)!r} occurs twice in one object")
    return found


def _check_size(given: Mapping[str, Any], called: str) -> None:
    try:
        size = len(orjson.dumps(given))
    except TypeError:
        fix = "reduce the nesting, and write dates as text"
        raise InvalidInput(f"{called}the rule set", "has values that JSON cannot represent", fix) from None
    if size > LARGEST:
        raise InvalidInput(f"{called}the rule set", f"is larger than {LARGEST // 1000} KB", "split it")


class _RuleChecker:
    """Validates one rule set and counts its fields."""

    def __init__(self, called: str) -> None:
        self._called = called
        self._count = 0

    def read(self, given: Mapping[str, Any]) -> RuleSet:
        if "fields" not in given:
            raise self._refusal("fields", "is missing", _HOW)
        urls = given.get("urls", [])
        if not isinstance(urls, list) or len(urls) > MOST_URLS or not all(isinstance(url, str) for url in urls):
            raise self._refusal("urls", "is not valid", f"give a list of at most {MOST_URLS} regular expressions")
        for place, pattern in enumerate(urls):
            self._check(f"urls[{place}]", "regex", pattern)
        return RuleSet(self._fields(given["fields"], "fields", 0), urls)

    def _fields(self, given: Any, where: str, depth: int) -> dict[str, FieldRule]:
        if not isinstance(given, Mapping) or not given:
            raise self._refusal(where, "has no fields", _HOW)
        return {name: self._rule(name, rule, f"{where}.{shorten(name)}", depth) for name, rule in given.items()}

    def _rule(self, name: Any, given: Any, where: str, depth: int) -> FieldRule:
        self._count += 1
        if self._count > MOST_FIELDS:
            raise self._refusal("fields", f"exceed the maximum of {MOST_FIELDS} in total", "remove some")
        if depth > DEEPEST:
            raise self._refusal(where, f"is more than {DEEPEST} levels deep", "reduce the nesting")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            fix = "use 1 to 64 letters, digits, `_` and `-`, not a digit first"
            raise self._refusal(where, "is not a valid field name", fix)
        if not isinstance(given, Mapping):
            raise self._refusal(where, f"cannot be {shorten(given)!r}", 'write a rule, such as {css = "h1"}')
        rule = FieldRule.read(given, called=lambda word: f"{self._called}{where}.{word}")
        self._judge(rule, given, where, depth)
        if rule.each is None:
            return rule
        return replace(rule, each=self._fields(rule.each, f"{where}.each", depth + 1))

    def _judge(self, rule: FieldRule, given: Mapping[str, Any], where: str, depth: int) -> None:
        ways = [name for name in ("css", "xpath", "jsonld") if getattr(rule, name) is not None]
        if len(ways) > 1:
            raise self._refusal(where, f"has both {ways[0]} and {ways[1]}", "keep one of them")
        if not ways and depth == 0 and rule.regex is None:
            raise self._refusal(where, "has no source", "add css, xpath, jsonld or regex")
        self._check_combination(rule, given, where)
        for way in (*ways, "regex"):
            written = getattr(rule, way)
            if written is not None:
                self._check(f"{where}.{way}", way, written)

    def _check_combination(self, rule: FieldRule, given: Mapping[str, Any], where: str) -> None:
        """Reject options that cannot be combined in one rule."""
        if rule.each is not None and given.get("list") is False:
            fix = "leave it out: a field with each is always a list"
            raise self._refusal(f"{where}.list", "cannot be false with each", fix)
        odd = next((name for name in _NOT_WITH_EACH if name in given), None) if rule.each is not None else None
        if odd is not None:
            fix = "move it to a field of each, or leave it out"
            raise self._refusal(f"{where}.{odd}", "cannot be combined with each", fix)
        if rule.jsonld is not None and rule.attribute is not None:
            raise self._refusal(f"{where}.attribute", "cannot be combined with jsonld", "name the key in jsonld")
        if rule.date_format is not None and rule.type != "date":
            raise self._refusal(f"{where}.date_format", "is only for dates", 'set type = "date"')
        if rule.type == "html" and (rule.jsonld is not None or rule.attribute is not None or rule.regex is not None):
            raise self._refusal(
                f"{where}.type", "html cannot be combined with jsonld, attribute or regex", "leave them out"
            )

    def _check(self, where: str, way: str, written: str) -> None:
        try:
            _CHECKS[way](written)
        except ValueError as error:
            problem, _, fix = str(error).partition("; ")
            raise self._refusal(where, f"is {shorten(written)!r}, which {problem}", fix or "correct it") from None

    def _refusal(self, where: str, problem: str, fix: str) -> InvalidInput:
        return InvalidInput(f"{self._called}{where}", problem, fix)


_CHECKS: Final = {"css": check_css, "xpath": check_xpath, "jsonld": check_json_ld, "regex": check_regex}


MOST_PROBLEMS: Final = 10


def missing_fields(rule_set: Mapping[str, Any] | None, url: str, data: Any) -> str | None:
    """Return the missing required fields in one sentence; None if there are none."""
    if not rule_set or not _is_for(rule_set, url):
        return None
    problems: list[str] = []
    if isinstance(data, Mapping):
        _look(rule_set["fields"], data, "", problems)
    elif any(rule.get("required") for rule in rule_set["fields"].values()):
        problems.append("the data is not an object, but the rule set has required fields")
    text = "; ".join(problems[:MOST_PROBLEMS])
    return f"{text}." if text else None


def _is_for(rule_set: Mapping[str, Any], url: str) -> bool:
    if not rule_set.get("urls"):
        return True
    from shoal.extract.selectors import regex

    return any(regex(pattern).search(url) for pattern in rule_set["urls"])


def _look(fields: Mapping[str, Any], data: Mapping[str, Any], where: str, problems: list[str]) -> None:
    for name, rule in fields.items():
        value = data.get(name)
        if rule.get("required") and value in (None, "", []):
            problems.append(f"{where}{name} is required and missing")
        for place, one in enumerate(value if rule.get("each") and isinstance(value, list) else []):
            if isinstance(one, Mapping):
                _look(rule["each"], one, f"{where}{name}[{place}].", problems)

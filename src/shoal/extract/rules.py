"""A rule set: which data to take from a page. Read and judged here; carried out by `shoal.extract.data`.

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

Whoever can store a rule set makes others run it: so it reads nothing but the page, and there is a limit to everything.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shoal.base.errors import InvalidInput
from shoal.base.text import shorten
from shoal.extract.selectors import check_css, check_json_ld, check_regex, check_xpath

LARGEST: Final = 256_000  # bytes of a rule set
MOST_FIELDS: Final = 200  # in all
DEEPEST: Final = 4  # `each` within `each`

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
Words = Annotated[str, Field(min_length=1, max_length=2_000)]
Type = Literal["text", "int", "float", "bool", "date", "url", "html"]
Transform = Literal["lower", "upper", "digits"]
Plain = str | int | float | bool | None


class BadRule(ValueError):
    """A rule set that cannot be used: where, what is so, and what to do."""

    def __init__(self, where: str, problem: str, fix: str) -> None:
        super().__init__(f"{where} {problem}; {fix}")
        self.where = where
        self.problem = problem
        self.fix = fix


class Rule(BaseModel):
    """How one field is found and what it becomes."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    css: Words | None = Field(None, description="A CSS selector.")
    xpath: Words | None = Field(None, description="An XPath 1.0 expression; the common functions, the near axes.")
    jsonld: Words | None = Field(
        None, description="A path into JSON-LD: a type (or *), then keys, such as Product.sku."
    )
    attribute: Name | None = Field(None, description="Take this attribute of the element instead of its text.")
    regex: Words | None = Field(None, description="Take what the first group (or all of it) matches in the text.")
    transform: list[Transform] = Field([], max_length=5, description="Steps on the text, in order.")
    type: Type = Field("text", description="What the text becomes.")
    date_format: Words | None = Field(
        None, description="How a date is written, as for strptime; else ISO or e-mail form."
    )
    many: bool = Field(False, alias="list", description="All that is found, as a list, instead of the first.")
    required: bool = Field(False, description="A page without it has invalid data.")
    default: Plain | list[Plain] = Field(None, description="Stands in when nothing is found.")
    each: "dict[Name, Rule] | None" = Field(None, description="Each element found is an object of these fields.")

    @property
    def selector(self) -> str | None:
        return self.css or self.xpath or self.jsonld


class RuleSet(BaseModel):
    """The fields of a page, each with its rule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    urls: list[Words] = Field(
        [], max_length=50, description="Only pages whose URL matches one of these; none: all pages."
    )
    fields: dict[Name, Rule] = Field(min_length=1, description="The fields by their names.")

    @model_validator(mode="after")
    def _usable(self) -> Self:
        for place, pattern in enumerate(self.urls):
            _check(f"urls[{place}]", "regex", pattern)
        for count, (where, rule, depth) in enumerate(_walk(self.fields, "fields", 0), 1):
            if count > MOST_FIELDS:
                raise BadRule("fields", f"are more than {MOST_FIELDS} in all", "leave some out")
            if depth > DEEPEST:
                raise BadRule(where, f"is more than {DEEPEST} levels deep", "put it nearer to the top")
            _judge(where, rule, depth)
        return self


def read_rules(given: Any) -> RuleSet:
    """A rule set from plain data; `BadRule` names the first thing that is wrong with it."""
    if not isinstance(given, Mapping):
        raise BadRule("the rule set", "is no table", "write [fields.NAME] with a rule for each field")
    try:
        size = len(orjson.dumps(given))
    except TypeError:
        raise BadRule("the rule set", "has values that JSON does not know", "write dates as text") from None
    if size > LARGEST:
        raise BadRule("the rule set", f"is larger than {LARGEST // 1000} KB", "split it")
    try:
        return RuleSet.model_validate(given)
    except ValidationError as error:
        raise _refused(error) from None


def rules_of(text: bytes, name: str) -> dict[str, Any]:
    """The plain data of a rule set's file: TOML, or JSON if its name says so."""
    if len(text) > LARGEST:
        raise InvalidInput(name, f"is larger than {LARGEST // 1000} KB", "split the rule set")
    suffix = PurePath(name).suffix.lower()
    try:
        found = orjson.loads(text) if suffix == ".json" else tomllib.loads(text.decode("utf-8-sig"))
    except ValueError as error:
        kind = "JSON" if suffix == ".json" else "TOML"
        raise InvalidInput(
            name, f"is not {kind} ({shorten(error)})", "correct it; .json files are JSON, others TOML"
        ) from None
    try:
        read_rules(found)
    except BadRule as bad:
        raise InvalidInput(f"{name}: {bad.where}", bad.problem, bad.fix) from None
    return dict(found)


def _walk(fields: Mapping[str, Rule], where: str, depth: int) -> Iterator[tuple[str, Rule, int]]:
    for name, rule in fields.items():
        yield f"{where}.{name}", rule, depth
        if rule.each is not None and depth <= DEEPEST:
            yield from _walk(rule.each, f"{where}.{name}.each", depth + 1)


def _judge(where: str, rule: Rule, depth: int) -> None:
    ways = [name for name in ("css", "xpath", "jsonld") if getattr(rule, name) is not None]
    if len(ways) > 1:
        raise BadRule(where, f"has both {ways[0]} and {ways[1]}", "keep one of them")
    if not ways and depth == 0 and rule.regex is None:
        raise BadRule(where, "does not say where to look", "give it css, xpath, jsonld or regex")
    _judge_company(where, rule)
    for way in (*ways, "regex"):
        written = getattr(rule, way)
        if written is not None:
            _check(f"{where}.{way}", way, written)


def _judge_company(where: str, rule: Rule) -> None:
    """What does not go together in one rule."""
    alone = {"jsonld", "attribute", "regex", "transform", "type", "list", "default", "date_format"}
    if rule.each is not None:
        if not rule.each:
            raise BadRule(f"{where}.each", "has no fields", "give it some, or leave it out")
        for name in sorted(alone):
            if _is_given(rule, name):
                raise BadRule(f"{where}.{name}", "does not go with each", "move it to a field of each, or leave it out")
    if rule.jsonld is not None and rule.attribute is not None:
        raise BadRule(f"{where}.attribute", "does not go with jsonld", "name the key in jsonld")
    if rule.date_format is not None and rule.type != "date":
        raise BadRule(f"{where}.date_format", "is only for dates", 'set type = "date"')
    if rule.type == "html" and (rule.jsonld is not None or rule.attribute is not None or rule.regex is not None):
        raise BadRule(f"{where}.type", "html takes the element itself", "leave out jsonld, attribute and regex")


def _is_given(rule: Rule, name: str) -> bool:
    return ("many" if name == "list" else name) in rule.model_fields_set


_CHECKS: Final = {"css": check_css, "xpath": check_xpath, "jsonld": check_json_ld, "regex": check_regex}


def _check(where: str, way: str, written: str) -> None:
    try:
        _CHECKS[way](written)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise BadRule(where, f"is {shorten(written)!r}, which {problem}", fix or "correct it") from None


def _refused(error: ValidationError) -> BadRule:
    first = error.errors(include_url=False)[0]
    raised = first.get("ctx", {}).get("error")
    if isinstance(raised, BadRule):
        return raised
    where = ".".join(str(part) for part in first["loc"] if part not in ("[key]", "str", "int", "float", "bool"))
    match first["type"]:
        case "extra_forbidden":
            name = str(first["loc"][-1])
            return BadRule(where, "is not a word of a rule set", _nearest(name, top=len(first["loc"]) == 1))
        case "missing":
            return BadRule(where, "is missing", "write [fields.NAME] with a rule for each field")
        case "string_pattern_mismatch":
            return BadRule(where, "is no name", "use 1 to 64 letters, digits, `_` and `-`, not a digit first")
        case _:
            wanted = first["msg"].replace("Input should", "it should", 1)
            return BadRule(where, f"cannot be {shorten(first['input'])!r}", wanted[:1].lower() + wanted[1:])


def _nearest(name: str, *, top: bool) -> str:
    from difflib import get_close_matches

    known = ["urls", "fields"] if top else [field.alias or name for name, field in Rule.model_fields.items()]
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"the nearest one is {close[0]}" if close else f"use one of {', '.join(known)}"

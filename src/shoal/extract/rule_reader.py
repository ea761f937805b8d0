"""Extract data from a page with a rule set. `shoal.extract.rules` validates rule sets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

import orjson
from turbohtml import Element, Node, PlainText

from shoal.base.text import encodable, shorten
from shoal.extract.details import BadJsonLd, json_ld_texts, read_json_ld
from shoal.extract.page_source import Source
from shoal.extract.rules import FieldRule, RuleSet
from shoal.extract.selectors import (
    MAX_COSTLY_CSS_TAGS,
    MAX_XPATH_DEPTH,
    MAX_XPATH_TAGS,
    MAX_XPATH_TEXT,
    count_tags,
    find_by_xpath,
    find_json_ld,
    is_costly_css,
    regex,
    without_literals,
)
from shoal.extract.values import read_bool, read_date, read_float, read_int, read_url
from shoal.extract.xpath_cost import cost_of, depth_of

T = TypeVar("T")

MOST_VALUES: Final = 1_000  # per list
LONGEST_VALUE: Final = 100_000  # characters
LARGEST_DATA: Final = 1_000_000  # bytes of one page's data, as JSON
LONGEST_SECONDS: Final = 1.0  # per page; checked before each search and each value
MOST_PROBLEMS: Final = 10

_AS_TEXT: Final = PlainText(bullet="")
_TRANSFORMS: Final[Mapping[str, Callable[[str], str]]] = {
    "lower": str.lower,
    "upper": str.upper,
    "digits": lambda text: "".join(filter(str.isdecimal, text)),
}


@dataclass(slots=True)
class Extracted:
    """The value of every field of the rule set; `problems` lists missing required fields and exceeded limits."""

    data: dict[str, Any]
    problems: list[str] = field(default_factory=list)

    @property
    def message(self) -> str | None:
        """Return the problems of the data in one sentence; None if there are none."""
        text = "; ".join(self.problems[:MOST_PROBLEMS])
        return f"{text}." if text else None


class RuleReader:
    """Applies one rule set to pages. `timer` returns seconds."""

    def __init__(self, rules: RuleSet, timer: Callable[[], float]) -> None:
        self._rules = rules
        self._timer = timer
        self._urls = [regex(pattern) for pattern in rules.urls]

    def reads(self, url: str) -> bool:
        """Return whether the rule set applies to this page."""
        return not self._urls or any(pattern.search(url) for pattern in self._urls)

    def read(self, source: Source) -> Extracted:
        """Return the data of a page; never raises, whatever the page is."""
        page = _Page(source, self._timer)
        extracted = Extracted({})
        for name, rule in self._rules.fields.items():
            extracted.data[name] = _value(page, source.document, rule, name, extracted.problems)
        for selector in sorted(page.unsuited):
            extracted.problems.append(f"The page is too large to be searched with {shorten(selector)!r}")
        if page.is_late:
            extracted.problems.insert(0, f"Extraction took longer than {LONGEST_SECONDS:g} s and was stopped")
        return _within_bounds(extracted)


class _Page:
    """State shared by the fields of one page, computed on first use."""

    def __init__(self, source: Source, timer: Callable[[], float]) -> None:
        self._source = source
        self._timer = timer
        self._until = timer() + LONGEST_SECONDS
        self.is_late = False
        self.unsuited: set[str] = set()  # selectors that would take too long here
        self._json_ld: list[Any] | None = None

    @property
    def base(self) -> str:
        return self._source.document.base_url(self._source.url) or self._source.url

    @property
    def json_ld(self) -> list[Any]:
        if self._json_ld is None:
            blocks = [read_json_ld(text) for text in json_ld_texts(self._source.document)]
            self._json_ld = [block for block in blocks if not isinstance(block, BadJsonLd)]
        return self._json_ld

    def suits(self, rule: FieldRule) -> bool:
        """Return whether the page is small enough for the rule's selector."""
        if rule.xpath is not None:
            return self._suits_xpath(rule.xpath)
        return rule.css is None or not is_costly_css(rule.css) or self._tags <= MAX_COSTLY_CSS_TAGS

    def _suits_xpath(self, expression: str) -> bool:
        tags, characters = self._tags, len(self._source.text)
        if tags > MAX_XPATH_TAGS or characters > MAX_XPATH_TEXT or self._depth > MAX_XPATH_DEPTH:
            return False
        return cost_of(without_literals(expression)).allows(tags, characters, self._depth)

    @cached_property
    def _tags(self) -> int:
        return count_tags(self._source.document)

    @cached_property
    def _depth(self) -> int:
        return depth_of(self._source.document)

    def has_time(self) -> bool:
        self.is_late = self.is_late or self._timer() > self._until
        return not self.is_late

    def in_time(self, values: Sequence[T]) -> Iterator[T]:
        """Yield values until time runs out: hundreds of nested elements may contain the same long text."""
        for value in values:
            if not self.has_time():
                return
            yield value


def _value(page: _Page, context: Node, rule: FieldRule, name: str, problems: list[str]) -> Any:
    if rule.each is not None:
        elements = [one for one in _found(page, context, rule) if isinstance(one, Element)]
        objects = [
            {part: _value(page, one, inner, f"{name}[{place}].{part}", problems) for part, inner in rule.each.items()}
            for place, one in enumerate(page.in_time(elements))
        ]
        if not objects and rule.required:
            problems.append(f"{name} is required and missing")
        return objects
    unread: list[str] = []
    values = _values(page, context, rule, unread)
    found: Any = list(values) if rule.list else next(values, None)
    if found not in (None, []):
        return found
    if rule.required:
        why = f"is required, and {unread[0]!r} is not a valid {rule.type}" if unread else "is required and missing"
        problems.append(f"{name} {why}")
    return [] if rule.list and rule.default is None else rule.default


def _values(page: _Page, context: Node, rule: FieldRule, unread: list[str]) -> Iterator[Any]:
    """Yield the values of a rule; the first text that could not be parsed is added to `unread`."""
    for found in page.in_time(_found(page, context, rule)):
        for text in _texts(found, rule):
            value = _typed(text, rule, page)
            if value is not None:
                yield value
            elif text and not unread:
                unread.append(shorten(text))


def _found(page: _Page, context: Node, rule: FieldRule) -> Sequence[Any]:
    if not page.has_time():
        return []
    if not page.suits(rule):
        page.unsuited.add(rule.xpath or rule.css or "")
        return []
    if rule.css is not None:
        if rule.list or rule.each is not None or rule.regex is not None or rule.type != "text":
            return context.select(rule.css)[:MOST_VALUES]
        one = context.select_one(rule.css)
        return [] if one is None else [one]
    if rule.xpath is not None:
        return find_by_xpath(rule.xpath, context)[:MOST_VALUES]
    if rule.jsonld is not None:
        return list(find_json_ld(page.json_ld, rule.jsonld))[:MOST_VALUES]
    return [context]


def _texts(found: Any, rule: FieldRule) -> Iterator[str]:
    text = _text(found, rule)
    if text is None:
        return
    text = text[:LONGEST_VALUE]
    if rule.regex is None:
        yield _transformed(text, rule)
        return
    for place, match in enumerate(regex(rule.regex).finditer(text)):
        if place >= MOST_VALUES:
            return
        yield _transformed(match[1] if match.re.groups else match[0], rule)


def _text(found: Any, rule: FieldRule) -> str | None:
    if isinstance(found, Node):
        if rule.attribute is not None:
            return found.attr(rule.attribute) if isinstance(found, Element) else None
        return found.html if rule.type == "html" else " ".join(found.to_text(_AS_TEXT).split())
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, float) and found.is_integer():
        return str(int(found))
    return found if isinstance(found, str) else str(found)


def _transformed(text: str | None, rule: FieldRule) -> str:
    text = text or ""
    for step in rule.transform:
        text = _TRANSFORMS[step](text)
    return text


def _typed(text: str, rule: FieldRule, page: _Page) -> Any:
    match rule.type:
        case "text":
            return " ".join(text.split()) or None
        case "html":
            return text or None
        case "int":
            return read_int(text)
        case "float":
            return read_float(text)
        case "bool":
            return read_bool(text)
        case "date":
            return read_date(text, rule.date_format)
        case "url":
            return read_url(text, page.base)


def _within_bounds(extracted: Extracted) -> Extracted:
    """Make the data valid JSON, and drop its values if it exceeds the size limit."""
    try:
        size = len(orjson.dumps(extracted.data))
    except TypeError:  # a lone surrogate somewhere
        extracted.data = encodable(extracted.data)
        size = 0
    if size <= LARGEST_DATA:
        return extracted
    problem = f"The data is larger than {LARGEST_DATA // 1000} KB"
    return Extracted(dict.fromkeys(extracted.data), [problem, *extracted.problems])

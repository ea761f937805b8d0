"""Extract data from a page with a rule set, and parse the text that a rule found into a typed value.
`shoal.extract.rules` validates rule sets."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, Final, TypeVar

import orjson
from ada_url import join_url
from turbohtml import Element, Node, PlainText

from shoal.base.text import encodable, shorten
from shoal.extract.details import BadJsonLd, json_ld_texts, read_json_ld
from shoal.extract.rules import FieldRule, RuleSet
from shoal.extract.selectors import (
    MAX_COSTLY_CSS_TAGS,
    MAX_XPATH_DEPTH,
    MAX_XPATH_TAGS,
    MAX_XPATH_TEXT,
    cost_of,
    count_tags,
    depth_of,
    find_by_xpath,
    find_json_ld,
    is_costly_css,
    regex,
    without_literals,
)
from shoal.extract.tree import Source

T = TypeVar("T")

MOST_VALUES: Final = 1_000  # values per list
LONGEST_VALUE: Final = 100_000  # characters of one value
LARGEST_DATA: Final = 1_000_000  # bytes of one page's data, as JSON
LONGEST_SECONDS: Final = 1.0  # time per page; checked before each search and each value
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
        """Return the data of a page; a bad page never raises."""
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
        self.unsuited: set[str] = set()  # selectors that would take too long on this page

    @property
    def base(self) -> str:
        return self._source.document.base_url(self._source.url) or self._source.url

    @cached_property
    def json_ld(self) -> list[Any]:
        blocks = [read_json_ld(text) for text in json_ld_texts(self._source.document)]
        return [block for block in blocks if not isinstance(block, BadJsonLd)]

    def suits(self, rule: FieldRule) -> bool:
        """Return whether the page is small enough for the rule's selector."""
        if rule.xpath is None:
            return rule.css is None or not is_costly_css(rule.css) or self._tags <= MAX_COSTLY_CSS_TAGS
        tags, characters = self._tags, len(self._source.text)
        if tags > MAX_XPATH_TAGS or characters > MAX_XPATH_TEXT or self._depth > MAX_XPATH_DEPTH:
            return False
        return cost_of(without_literals(rule.xpath)).allows(tags, characters, self._depth)

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
        """Yield values until time runs out, because hundreds of nested elements may contain the same long text."""
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


LONGEST_NUMBER: Final = 60
LONGEST_INT: Final = 19  # characters, so that the number fits into 64 bits, for stores and JSON parsers

# Matches thousands that are separated by a space or an apostrophe; dots and commas are ambiguous and resolved later.
_NUMBER: Final = re.compile(r"[-+\u2212]?(?:\d{1,3}(?:[\s'\u2019]\d{3})++(?!\d)(?:[.,]\d+)?|[.,]?\d[\d.,]*+)", re.ASCII)
_SCIENTIFIC: Final = re.compile(r"\s*[-+]?\d{1,30}(?:\.\d{1,30})?[eE][-+]?\d{1,3}\s*", re.ASCII)
_MARK: Final = re.compile(r"[.,]")
_GROUPS: Final = re.compile(r"['\u2019\s]")
_TRUE: Final = frozenset({"true", "yes", "on", "1", "y"})
_FALSE: Final = frozenset({"false", "no", "off", "0", "n"})


def read_int(text: str) -> int | None:
    """Return the first number in the text if it is an integer, as in `1.234.567`, `1,234` and `12 pieces`."""
    written = _plain_number(text, three_are_thousands=True)
    if written is None:
        return None
    whole, _, fraction = written.partition(".")
    if fraction.strip("0") or len(whole) >= LONGEST_INT:
        return None
    return int(whole) if whole.strip("-+") else 0


def read_float(text: str) -> float | None:
    """Return the first number in the text, as in `1,234.5`, `1.234,5` and `€ 12,50`."""
    written = _plain_number(text, three_are_thousands=False)
    number = math.nan if written is None else float(written)
    return number if math.isfinite(number) else None


def _plain_number(text: str, *, three_are_thousands: bool) -> str | None:
    """Return the first number in plain decimal notation."""
    if len(text) < LONGEST_NUMBER and _SCIENTIFIC.fullmatch(text):
        return f"{Decimal(text.strip()):f}"
    found = _NUMBER.search(text)
    if found is None or len(found[0]) > LONGEST_NUMBER:
        return None
    digits = _GROUPS.sub("", found[0]).replace("\N{MINUS SIGN}", "-").rstrip(".,")
    mark = _decimal_mark(digits, three_are_thousands)
    whole, _, fraction = digits.rpartition(mark) if mark else (digits, "", "")
    first, *groups = _MARK.split(whole)
    if any(len(group) != 3 for group in groups):  # 1.2.3 is a version
        return None
    return f"{first}{''.join(groups)}.{fraction}" if mark else first + "".join(groups)


def _decimal_mark(digits: str, three_are_thousands: bool) -> str | None:
    """Return the decimal separator: the last of `.` and `,`, unless it occurs more than once. A lone comma before three
    digits separates thousands; a lone dot does so only if an integer is wanted."""
    last = max(digits.rfind("."), digits.rfind(","))
    if last < 0:
        return None
    mark = digits[last]
    if digits.count(mark) > 1:
        return None
    lone = digits.count(".") + digits.count(",") == 1
    if lone and len(digits) - last - 1 == 3 and (mark == "," or three_are_thousands):
        return None
    return mark


def read_bool(text: str) -> bool | None:
    word = text.strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def read_date(text: str, form: str | None = None) -> str | None:
    """Return a date, or a date with time, in ISO 8601."""
    written = text.strip()[:LONGEST_NUMBER]
    ways: tuple[Callable[[str], datetime], ...] = (datetime.fromisoformat, parsedate_to_datetime)
    if form is not None:
        ways = (lambda text: datetime.strptime(text, form),)  # noqa: DTZ007 - the text may have a time zone
    for way in ways:
        try:
            found = way(written)
        except (ValueError, TypeError, IndexError, OverflowError, re.error):
            continue
        plain = found.time() == datetime.min.time() and found.tzinfo is None and ":" not in written
        return found.date().isoformat() if plain else found.isoformat()
    return None


def read_url(text: str, base: str) -> str | None:
    """Return the absolute URL, resolved against the page's base."""
    try:
        return join_url(base, text.strip()) if text.strip() else None
    except ValueError:
        return None

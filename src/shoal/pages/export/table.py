"""Tables: the columns of a file, and the conversion of pages to rows.

A page is one row, or one row per item of a list in its data. Fields of the rule set are columns such as `data.price`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from shoal.base.errors import InvalidInput
from shoal.base.text import nearest, shorten
from shoal.pages.page import RECORD_FIELDS, Page

if TYPE_CHECKING:
    from shoal.extract.rules import FieldRule, RuleSet

Columns = Mapping[str, str]
"""The columns of a table with their types: text, int16, int32, int64, float, bool, time or json; `int64[]` is a list.
The columns `redirects` and `error` have special types."""

_TYPES: Final = {
    **dict.fromkeys(("status",), "int16"),
    **dict.fromkeys(("depth", "word_count", "links_internal", "links_external", "attempt"), "int32"),
    "bytes": "int64",
    "duration_ms": "float",
    "fetched_at": "time",
    "rendered": "bool",
    "redirects": "redirects",
    "error": "error",
    "data": "json",
}
PAGE_COLUMNS: Final[Columns] = {name: _TYPES.get(name, "text") for name in RECORD_FIELDS}
PARTS: Final[Columns] = {"error.code": "text", "error.message": "text"}
LINK_COLUMNS: Final[Columns] = {
    "from": "text",
    "to": "text",
    "text": "text",
    "rel": "text",
    "nofollow": "bool",
    "kind": "text",
    "status": "int16",
    "error": "text",
}
DATA: Final = "data."
_TYPE_OF: Final = {"int": "int64", "float": "float", "bool": "bool"}
_FITTING: Final = {"int64": (int,), "float": (int, float), "bool": (bool,), "text": (str,)}

Row = Mapping[str, Any]


class PageTable:
    """The table of a file: some or all fields of each page, and one row per item of the list `explode`, if it is
    given."""

    def __init__(
        self,
        fields: Sequence[str] | None = None,
        explode: str | None = None,
        *,
        rules: Mapping[str, Any] | None = None,
        is_open: bool = False,
        whole: Sequence[str] = RECORD_FIELDS,
    ) -> None:
        """`rules`: the rule set of the pages; `is_open`: hooks add fields that nobody knows before they run; `whole`:
        the fields of a record if `fields` is None. Raise `InvalidInput` for a field or list that no page can have."""
        data = None
        if rules is not None:
            from shoal.extract.rules import read_rules  # few crawls have rules, so do not import this at start-up

            data = read_rules(rules)
        self._explode = None if explode is None else _list_field(explode.removeprefix(DATA), data, is_open=is_open)
        of_data = _data_columns(data, self._explode, is_open=is_open)
        known = {**PAGE_COLUMNS, **PARTS, **of_data}
        if fields is None:
            self.fields, names = tuple(whole), (*whole, *of_data)  # `data` stays a column, because programs may read it
        else:
            self.fields = names = tuple(_known_field(name, known, is_open=is_open) for name in fields)
        self.columns: Columns = {name: known.get(name, "json") for name in names}

    def check_columns(self) -> None:
        """Raise if two columns differ only in case: many programs cannot tell them apart."""
        seen: dict[str, str] = {}
        for name in self.columns:
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise InvalidInput(
                    "--output",
                    f"would have the columns {other} and {name}, which differ only in case",
                    "rename one of the fields in the rule set, name the columns with --fields, or write .jsonl",
                )

    def records(self, crawl_id: str, pages: Iterable[Page]) -> Iterator[Row]:
        """Yield pages as objects: whole records, or only the chosen fields."""
        return _flat(self._records(crawl_id, pages), self.fields)

    def rows(self, crawl_id: str, pages: Iterable[Page]) -> Iterator[Row]:
        """Yield pages as rows of `columns`."""
        return _flat(self._records(crawl_id, pages), tuple(self.columns))

    def _records(self, crawl_id: str, pages: Iterable[Page]) -> Iterator[Row]:
        for page in pages:
            record = page.record(crawl_id)
            if self._explode is None:
                yield record
                continue
            data = record["data"] or {}
            items = data.get(self._explode)
            for item in items if isinstance(items, list) else () if items is None else (items,):
                yield record | {"data": data | {self._explode: item}}


def read_fields(text: str | None) -> list[str] | None:
    """Parse a list of fields such as `url,title,data.price`."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name:
            raise InvalidInput("--fields", "names nothing", "list fields such as url,title,data.price")
        if names.count(name) > 1:
            raise InvalidInput("--fields", f"names {shorten(name)!r} twice", "list each field once")
    return names


def _flat(records: Iterator[Row], names: tuple[str, ...]) -> Iterator[Row]:
    """Return the records with these fields; a name with dots is a path to a nested field."""
    if names == RECORD_FIELDS:
        return records
    paths = {name: tuple(name.split(".")) for name in names}
    return ({name: _value(record, path) for name, path in paths.items()} for record in records)


def _value(record: Row, path: tuple[str, ...]) -> Any:
    value: Any = record
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _list_field(name: str, rules: "RuleSet | None", *, is_open: bool) -> str:
    rule = None if rules is None else rules.fields.get(name)
    if rule is None and not is_open:
        raise _unknown("--explode", name, [] if rules is None else list(rules.fields))
    if rule is not None and rule.each is None and not rule.list:
        raise InvalidInput(
            "--explode", f"names {shorten(name)!r}, which has one value", "name a field with each, or with list = true"
        )
    return name


def _known_field(name: str, known: Columns, *, is_open: bool) -> str:
    if name in known or (is_open and name.startswith(DATA)):
        return name
    above = name.rpartition(".")[0]
    if above.startswith(DATA) and known.get(above) == "json":
        fix = f"add --explode {above.removeprefix(DATA)}, or name {above}"
        raise InvalidInput("--fields", f"names {shorten(name)!r}, a part of each item of a list", fix)
    raise _unknown("--fields", name, [one for one in known if one.startswith(DATA) or not name.startswith(DATA)])


def _unknown(flag: str, name: str, known: Sequence[str]) -> InvalidInput:
    if not known:
        return InvalidInput(flag, f"names {shorten(name)!r}, but no rule set extracts data", "crawl with --rules FILE")
    meant = nearest(name, known)
    fix = f"did you mean {meant}?" if meant else f"use one of {', '.join(known)}"
    return InvalidInput(flag, f"names {shorten(name)!r}, which is not a field", fix)


def _data_columns(rules: "RuleSet | None", explode: str | None, *, is_open: bool) -> dict[str, str]:
    """Return the columns of the fields of a rule set. For the exploded field, there is a column for each field of its
    items. A hook may replace any value with a value of a different type."""
    columns: dict[str, str] = {}
    for name, rule in {} if rules is None else rules.fields.items():
        if name == explode and rule.each is not None:
            columns |= {f"{DATA}{name}.{part}": _type_of(inner) for part, inner in rule.each.items()}
        else:
            columns[DATA + name] = _type_of(rule, one=name == explode)
    return dict.fromkeys(columns, "json") if is_open else columns


def _type_of(rule: "FieldRule", *, one: bool = False) -> str:
    """Return the type of a field's column; `one`: the column contains one item of the field's list. If the field has a
    default of a different type, the column's type is JSON."""
    name = _TYPE_OF.get(rule.type, "text")
    default = rule.default if isinstance(rule.default, list) else [rule.default]
    fits = all(value is None or type(value) in _FITTING[name] for value in default)
    if rule.each is not None or not fits or (rule.default is not None and isinstance(rule.default, list) != rule.list):
        return "json"
    return f"{name}[]" if rule.list and not one else name

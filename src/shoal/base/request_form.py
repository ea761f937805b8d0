"""Request forms: validation of requests that come as JSON or as flags, with errors that name the invalid field.

A form is a struct whose annotations define the values that each field accepts. The package that defines a form decides
what its fields mean.
"""

import re
import types
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from functools import cache, partial
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, Union, get_args, get_origin

from msgspec import NODEFAULT, Meta, Struct, ValidationError, convert, json, to_builtins
from msgspec.structs import fields, replace

from shoal.base.errors import InvalidInput
from shoal.base.text import has_nul, nearest, shorten

Check = Callable[[Any], Any]
"""A function that takes a value and returns it in the form that is stored. It raises `ValueError` with the end of a
sentence."""

# The wording of msgspec's errors; `tests/unit/test_msgspec_messages.py` covers each message that is parsed here.
_MSGSPEC = ("Expected", "Invalid", "Object", "Number", "Integer")
_PLACE = " - at `$"
_EXPECTED = re.compile(r"Expected `(\w++)[^`]*+`(?: of length ([<>]=) ([0-9]+))?")
_FIELD = re.compile(r"field `([^`]*)`")
_NUL = b"\\u0000"  # NUL as it is written in JSON
_EXACT = 2**53  # larger floats do not represent every integer exactly
_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
    datetime: "a time such as 2026-03-01T09:00:00Z",
}

WORDS = "accepts"
_NAMED = {"array": "a list", "object": "an object"} | {kind.__name__: words for kind, words in _NAMES.items()}


def matching(pattern: str, words: str, **limits: Any) -> Meta:
    """Return a pattern for an annotation. `words` describe the accepted texts in error messages."""
    return Meta(pattern=pattern, extra={WORDS: words}, **limits)


def describe(sentence: str, **limits: Any) -> Meta:
    """Return metadata for the annotation of a field: its description in one sentence, and its limits."""
    return Meta(description=sentence, **limits)


class Form(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of request forms. The constructor trusts its values; `read` validates them."""

    checks: ClassVar[Mapping[str, Check]] = {}
    """By field name: checks that the type of the field cannot express."""
    unquoted: ClassVar[frozenset[str]] = frozenset()
    """Fields whose values are never quoted in errors."""
    other_names: ClassVar[Mapping[str, "str | OtherName"]] = {}
    """Additional names under which callers may send fields."""
    also_called: ClassVar[Mapping[str, str]] = {}
    """Names that other projects use for fields. If a caller sends one, the error suggests the field."""
    raw: ClassVar[frozenset[str]] = frozenset()
    """Fields that may contain a NUL: the code that uses them stores them as JSON, or checks them itself."""

    @classmethod
    def read(cls, values: Mapping[str, Any], *, strict: bool = True, called: Callable[[str], str] = str) -> Self:
        """Validate values and return the form. The error for the first invalid field uses the name the caller knows.

        `strict` is for JSON, where a number must be a number. Otherwise, text is converted to the type of its field.
        """
        if _has_other_names(cls):
            values, given = cls._by_own_names(values, called)
            called = partial(_called_as_given, called, given)
        try:
            return cls._read_at_once(values, strict)
        except (ValidationError, ValueError):
            return cls._read_by_fields(values, strict, called)

    @classmethod
    def own_names(cls, values: Mapping[str, Any], called: Callable[[str], str] = str) -> dict[str, Any]:
        """Return the values with additional field names replaced by the names of the fields."""
        return cls._by_own_names(values, called)[0]

    @classmethod
    def _by_own_names(
        cls, values: Mapping[str, Any], called: Callable[[str], str]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values by field name, and the additional names that the caller used, by field name."""
        own: dict[str, Any] = {}
        given: dict[str, str] = {}
        known = fields_of(cls)
        for name, value in values.items():
            other = None if name in known else cls.other_names.get(name)
            field, read = (name, None) if other is None else (other, None) if isinstance(other, str) else other
            if field in own or (field != name and field in values):
                raise InvalidInput(called(name), f"is another name of {field}", "give one of them")
            if field in known and isinstance(value, dict) and (inner := _form_in(known[field])):
                value = inner.own_names(value, partial(_called_within, called, name))
            try:
                own[field] = value if read is None else read(value)
            except ValueError as error:
                raise InvalidInput(called(name), *_problem_and_fix(error)) from None
            if field != name:
                given[field] = name
        return own, given

    @classmethod
    def _read_at_once(cls, values: Mapping[str, Any], strict: bool) -> Self:
        """Validate all values together. This is many times as fast as field by field, but errors do not name the
        field."""
        form = convert(values, cls, strict=strict)
        if _NUL in json.encode(form):  # accept only values that can be stored
            raise ValueError("contains a NUL character")
        known, kept = fields_of(cls), {}
        for name in values if cls.checks else ():
            if name in cls.checks:
                attribute = known[name].attribute
                kept[attribute] = cls.checks[name](getattr(form, attribute))
        return replace(form, **kept) if kept else form

    @classmethod
    def _read_by_fields(cls, values: Mapping[str, Any], strict: bool, called: Callable[[str], str]) -> Self:
        known = fields_of(cls)
        for name in values:
            if name not in known:
                close = cls.also_called.get(name.replace("-", "_")) or nearest(name, known)
                fix = f"the nearest one is {close}" if close else f"the known ones are {', '.join(known)}"
                raise InvalidInput(called(shorten(name)), "is not a known field", fix if known else "leave it out")
        for name, field in known.items():
            if field.required and name not in values:
                raise InvalidInput(called(name), "is missing", f"give {field.accepts}")
        read = {name: cls._read(known[name], value, strict, called(name)) for name, value in values.items()}
        return cls(**{known[name].attribute: value for name, value in read.items()})

    @classmethod
    def stored(cls, text: str) -> Self:
        """Return the form from its stored text. Fields that a newer version of Shoal has added are ignored."""
        try:
            return json.decode(text, type=cls)
        except ValidationError:
            return convert(known_fields(json.decode(text), cls), cls)

    def text(self) -> str:
        """Return the form as JSON, to be stored."""
        return json.encode(self).decode()

    def plain(self) -> dict[str, Any]:
        """Return the form as built-in types."""
        values: dict[str, Any] = to_builtins(self)
        return values

    @classmethod
    def _read(cls, field: "Field", value: Any, strict: bool, called: str) -> Any:
        try:
            taken = _converted(value, field.annotation, strict)
            text = json.encode(taken)  # accept only values that can be stored
            if _NUL in text and field.name not in cls.raw and has_nul(value):
                raise ValueError("contains a NUL character; remove it")
            check = cls.checks.get(field.name)
            return taken if check is None else check(taken)
        except ValidationError as error:
            raise _refused(field, value, str(error), called, quoted=field.name not in cls.unquoted) from None
        except UnicodeEncodeError:
            raise InvalidInput(
                called, "contains an invalid character (an unpaired surrogate)", "send it as UTF-8"
            ) from None
        except ValueError as error:
            raise InvalidInput(called, *_problem_and_fix(error)) from None


class OtherName(NamedTuple):
    """An additional name of a field, under which values are written in a different way. `read` converts a value to that
    of the field, or raises `ValueError`."""

    field: str
    read: Callable[[Any], Any]


class Field(Struct, frozen=True):
    """One field of a form."""

    name: str
    annotation: Any
    default: Any
    required: bool
    attribute: str  # differs from the name if the name is a Python keyword

    @property
    def description(self) -> str:
        """The one-sentence description."""
        return next((mark.description for mark in _marks(self.annotation) if mark.description), "")

    @property
    def kind(self) -> Any:
        """The type, without the `None` of an optional field."""
        return _bare(self.annotation)

    @property
    def accepts(self) -> str:
        """A description of the accepted values."""
        return accepts(self.annotation)


@cache
def fields_of(form: type[Form]) -> dict[str, Field]:
    """Return the fields of a form by name, in their order of definition."""
    known = {}
    annotations = {name: note for kind in reversed(form.__mro__) for name, note in get_annotations(kind).items()}
    for one in fields(form):
        default = one.default if one.default_factory is NODEFAULT else one.default_factory()
        known[one.encode_name] = Field(one.encode_name, annotations[one.name], default, one.required, one.name)
    return known


def names_of(form: type[Form], field: str) -> list[str]:
    """Return the additional names of a field."""
    other = {name: one if isinstance(one, str) else one.field for name, one in form.other_names.items()}
    return [name for name, own in other.items() if own == field and name not in fields_of(form)]


@cache
def _has_other_names(form: type[Form]) -> bool:
    return bool(form.other_names) or any(
        _has_other_names(inner) for one in fields_of(form).values() if (inner := _form_in(one))
    )


def _form_in(field: "Field") -> type[Form] | None:
    kind = field.kind
    return kind if isinstance(kind, type) and issubclass(kind, Form) else None


def _called_within(called: Callable[[str], str], outer: str, field: str) -> str:
    return called(f"{outer}.{field}")


def _called_as_given(called: Callable[[str], str], given: Mapping[str, str], field: str) -> str:
    return called(given.get(field, field))


def known_fields(value: Any, annotation: Any) -> Any:
    """Return a decoded value without the fields that the structs of an annotation do not have. Unknown fields are
    errors only in requests: a process must be able to read values that a newer version of Shoal has stored."""
    kind = _bare(annotation)
    if isinstance(kind, type) and issubclass(kind, Struct) and isinstance(value, dict):
        types_by_name = {one.encode_name: one.type for one in fields(kind)}
        return {name: known_fields(part, types_by_name[name]) for name, part in value.items() if name in types_by_name}
    inner = get_args(kind)
    if isinstance(value, list) and inner:
        return [known_fields(part, inner[0]) for part in value]
    if isinstance(value, dict) and len(inner) == 2:
        return {name: known_fields(part, inner[1]) for name, part in value.items()}
    return value


def accepts(annotation: Any) -> str:
    """Describe the values that an annotation accepts."""
    kind = _bare(annotation)
    if choices := _choices(kind):
        *most, last = choices
        return f"{', '.join(most)} or {last}" if most else last
    if words := next((mark.extra[WORDS] for mark in _marks(annotation) if mark.extra and WORDS in mark.extra), ""):
        return str(words)
    if samples := [str(one) for mark in _marks(annotation) for one in mark.examples or ()]:
        return f"text such as {' or '.join(samples)}"
    named = _NAMES.get(get_origin(kind) or kind, "an object")
    limits = _limits(_marks(annotation))
    return f"{named} {limits}" if limits else named


def _choices(kind: Any) -> list[str]:
    """Return the values of an enum or a literal; an empty list for other types."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(one.value) for one in kind]
    return [str(one) for one in get_args(kind)] if get_origin(kind) is Literal else []


def _limits(marks: list[Meta]) -> str:
    bounds = {
        name: next((value for mark in marks if (value := getattr(mark, name)) is not None), None)
        for name in ("ge", "gt", "le", "min_length", "max_length")
    }
    if bounds["ge"] is not None and bounds["le"] is not None:
        return f"from {bounds['ge']} to {bounds['le']}"
    if bounds["gt"] is not None and bounds["le"] is not None:
        return f"above {bounds['gt']} and at most {bounds['le']}"
    if bounds["max_length"] is not None:
        return f"of {bounds['min_length'] or 0} to {bounds['max_length']}"
    return ""


def _marks(annotation: Any) -> list[Meta]:
    """Return the metadata of a type and of the members of a union."""
    marks = [mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, Meta)]
    inner = get_args(annotation)[:1] if get_origin(annotation) is Annotated else ()
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else inner
    return marks + [mark for part in parts for mark in _marks(part)]


def _bare(annotation: Any) -> Any:
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            annotation = next(part for part in get_args(annotation) if part is not type(None))
        else:
            return annotation


def _converted(value: Any, annotation: Any, strict: bool) -> Any:
    """Convert a value. In JSON `2.0` and `2` are the same number, so both count as integers."""
    try:
        return convert(value, annotation, strict=strict)
    except ValidationError as error:
        if "got `float`" not in str(error):
            raise
        return convert(_with_integers(value), annotation, strict=strict)


def _with_integers(value: Any, depth: int = 20) -> Any:
    """Convert floats that are whole numbers to integers. No form is nested more deeply than `depth`."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if depth and isinstance(value, list):
        return [_with_integers(part, depth - 1) for part in value]
    if depth and isinstance(value, dict):
        return {name: _with_integers(part, depth - 1) for name, part in value.items()}
    return value


def _problem_and_fix(refusal: object) -> tuple[str, str]:
    """Split the message of a check, such as `is too long; write at most ten`, into problem and fix."""
    problem, _, fix = str(refusal).rpartition("; ")
    return (problem, fix) if problem else (fix, "correct it")


def _inner(message: str) -> tuple[str, str]:
    """Return the problem and the fix for a part of a value, based on the error message of msgspec."""
    if match := _FIELD.search(message):
        lacks = "missing" in message
        name = shorten(match[1])
        return f"has {'no' if lacks else 'an unknown'} field {name}", "give it" if lacks else "leave it out"
    match = _EXPECTED.match(message)
    if match is None:
        return "is not valid", "correct it"
    kind = _NAMED.get(match[1], "something else")
    most = f" of at {'most' if match[2] == '<=' else 'least'} {match[3]}" if match[2] else ""
    return "is not valid", f"give {kind}{most}"


def _refused(field: Field, value: Any, error: str, called: str, *, quoted: bool) -> InvalidInput:
    """Reword an error of msgspec. If a nested form raised the error, keep the wording and add the path of the form."""
    message, mark, place = error.rpartition(_PLACE) if error.endswith("`") else ("", "", "")
    message, place = (message, shorten(place[:-1])) if mark else (error, "")
    if not message.startswith(_MSGSPEC):
        return InvalidInput(called + place, *_problem_and_fix(message))
    if message.startswith("Invalid enum value") and get_origin(field.kind) is list and place.count("[") == 1:
        return InvalidInput(called + place, "is not an allowed value", f"give {accepts(get_args(field.kind)[0])}")
    if place or _FIELD.search(message):
        return InvalidInput(called + place, *_inner(message))
    problem = f"cannot be {shorten(value)!r}" if quoted else "is not valid"
    return InvalidInput(called, problem, f"give {field.accepts}")

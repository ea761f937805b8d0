"""The base class of the structs that endpoints return, the actions on resources, and shared types."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Self, get_type_hints

from msgspec import Meta, Struct

from shoal.access.token import TokenScope
from shoal.base.clock import moment
from shoal.base.request_form import describe

Moment = Annotated[datetime, Meta(tz=True)]
NextPage = Annotated[str | None, describe("Cursor of the next page; null on the last page.")]
NextLater = Annotated[str | None, describe("Cursor for the items that follow; null once no more can follow.")]


class Resource(Struct, kw_only=True):
    """A response, or a part of one. Most resources are named after the value that they show."""

    example: ClassVar[Any] = None  # example response of the endpoints that return this resource
    open_fields: ClassVar[bool] = False  # whether a response may add further fields

    @classmethod
    def of(cls, *values: Any, **given: Any) -> Self:
        """Build the resource from these values. A field that is not passed is copied from the first value that has an
        attribute of this name; a stored time becomes a moment. Subclasses pass the fields that differ."""
        key = (cls, *map(type, values), *given)
        plan = _PLANS.get(key) or _PLANS.setdefault(key, _plan(cls, values, given))
        for place, name, is_time in plan:
            found = getattr(values[place], name)
            given[name] = moment(found) if is_time else found
        return cls(**given)


_PLANS: dict[tuple[object, ...], list[tuple[int, str, bool]]] = {}


def _plan(kind: type[Resource], values: Sequence[object], given: dict[str, Any]) -> list[tuple[int, str, bool]]:
    """List the fields to copy: the position of the value, the field name, and whether the field is a time. If none of
    the values has a field, the field needs a default."""
    hints = get_type_hints(kind)
    return [
        (place, name, hints[name] in (datetime, datetime | None))
        for name in kind.__struct_fields__
        if name not in given
        for place in [place for place, value in enumerate(values) if hasattr(value, name)][:1]
    ]


class CrawlError(Resource, kw_only=True):
    """The error with which a crawl, an analysis or a seed failed."""

    code: Annotated[str | None, describe("Stable code of the error, if it has one.")]
    message: Annotated[str, describe("The error in one sentence.")]


@dataclass(frozen=True, slots=True)
class Verb:
    """An action on a resource: the label of its button, the sentence shown afterwards and, if the action must be
    confirmed first, the question and its explanation. `message` marks these texts for translation."""

    label: str
    done: str = ""
    question: str = ""
    explanation: str = ""
    scope: TokenScope = TokenScope.WRITE

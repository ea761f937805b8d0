"""Lists in pages: how many items, and where the next page begins. What a cursor holds is nobody's business but ours."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from shoal.base.errors import InvalidInput
from shoal.base.request_form import Form, describe

T = TypeVar("T")

MOST_ITEMS = 200
LAST = 2**63 - 1

Cursor = Annotated[str, Meta(max_length=200)]


class Paging(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every list takes."""

    limit: Annotated[int, describe("How many items at most.", ge=1, le=MOST_ITEMS)] = 50
    cursor: Annotated[Cursor | None, describe("`next` of the answer before, to go on after it.")] = None


def cut(found: Sequence[T], limit: int, answer: Callable[[T], Any], place: Callable[[T], str]) -> dict[str, Any]:
    """One page of a list of which one item more than the limit was looked for."""
    shown = found[:limit]
    return {"items": [answer(one) for one in shown], "next": place(shown[-1]) if len(found) > limit else None}


def so_far(found: Sequence[tuple[int, Any]], limit: int, after: int, *, goes_on: bool) -> dict[str, Any]:
    """One page of a list that grows at its end, by numbers: as long as it goes on there is a next page."""
    shown = found[:limit]
    more = len(found) > limit or goes_on
    last = shown[-1][0] if shown else after
    return {"items": [one for _, one in shown], "next": cursor_of(str(last)) if more else None}


def cursor_of(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def text_of(cursor: str) -> str:
    """What a cursor was made from; refused if it was not made by us."""
    try:
        text = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except ValueError:
        raise _foreign() from None
    if not text.isprintable() or cursor_of(text) != cursor:
        raise _foreign()
    return text


def number_of(cursor: str | None, last: int = LAST) -> int | None:
    """The number that a cursor was made from; None without one."""
    if cursor is None:
        return None
    text = text_of(cursor)
    if not text.isdecimal() or len(text) > len(str(last)) or int(text) > last:
        raise _foreign()
    return int(text)


def _foreign() -> InvalidInput:
    return InvalidInput("cursor", "is not one that this list gave", "take it from `next` of the last answer")

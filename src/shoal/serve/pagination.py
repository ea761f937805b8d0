"""Pagination of lists. Cursors are opaque to callers."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from msgspec import Meta

from shoal.base.errors import InvalidInput
from shoal.base.request_form import Form, describe

T = TypeVar("T")

MOST_ITEMS = 200
LAST = 2**63 - 1

Cursor = Annotated[str, Meta(max_length=200)]


class Paging(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query parameters of every list."""

    limit: Annotated[int, describe("Maximum number of items.", ge=1, le=MOST_ITEMS)] = 50
    cursor: Annotated[Cursor | None, describe("`next` of the previous response, to continue after it.")] = None


def page_of(found: Sequence[T], limit: int, key: Callable[[T], object]) -> tuple[Sequence[T], str | None]:
    """Return the items of one page and the cursor of the next. The caller has read one more item than the limit."""
    shown = found[:limit]
    return shown, cursor_of(str(key(shown[-1]))) if len(found) > limit else None


def growing_page_of(
    found: Sequence[T], limit: int, after: int, key: Callable[[T], int], *, growing: bool
) -> tuple[Sequence[T], str | None]:
    """Return one page of a list to which items are appended: while it is growing, there always is a next page."""
    shown = found[:limit]
    if len(found) <= limit and not growing:
        return shown, None
    return shown, cursor_of(str(key(shown[-1]) if shown else after))


def cursor_of(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def text_of(cursor: str) -> str:
    """Decode a cursor; one that this server did not create is refused."""
    try:
        text = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except ValueError:
        raise _foreign() from None
    if not text.isprintable() or cursor_of(text) != cursor:
        raise _foreign()
    return text


def number_of(cursor: str | None, last: int = LAST) -> int | None:
    """Decode the number in a cursor; None without a cursor."""
    if cursor is None:
        return None
    text = text_of(cursor)
    if not text.isdecimal() or len(text) > len(str(last)) or int(text) > last:
        raise _foreign()
    return int(text)


def _foreign() -> InvalidInput:
    return InvalidInput("cursor", "is not a cursor of this list", "use `next` of the previous response")

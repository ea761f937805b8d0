"""Shared parts of endpoints: list cursors and idempotency keys."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, ClassVar, TypeVar

from msgspec import Meta
from starlette.responses import Response

from shoal.access.idempotency import Idempotency, IdempotencyKey, IdempotencyRecord, StoredResponse
from shoal.base.errors import CallerError, InvalidInput, NoWorker
from shoal.base.ids import new_id
from shoal.base.request_form import Form, describe
from shoal.serve.authentication import caller_of
from shoal.serve.endpoint import B, EndpointRequest, Q
from shoal.serve.problems import Json

T = TypeVar("T")

MOST_ITEMS = 200
LAST = 2**63 - 1

Cursor = Annotated[str, Meta(max_length=200)]


class Paging(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query parameters of every list."""

    limit: Annotated[int, describe("Maximum number of items.", ge=1, le=MOST_ITEMS)] = 50
    cursor: Annotated[
        Cursor | None, describe("`next` of the previous response; the list continues after that response.")
    ] = None

    other_names: ClassVar = {"after": "cursor"}


def page_of(found: Sequence[T], limit: int, key: Callable[[T], object]) -> tuple[Sequence[T], str | None]:
    """Return the items of one page and the cursor of the next page. The caller must have read one item more than the
    limit."""
    shown = found[:limit]
    return shown, cursor_of(str(key(shown[-1]))) if len(found) > limit else None


def growing_page_of(
    found: Sequence[T], limit: int, after: int, key: Callable[[T], int], *, growing: bool
) -> tuple[Sequence[T], str | None]:
    """Return one page of a list to which items are appended, and the next cursor. While the list is growing, there
    always is a next page."""
    shown = found[:limit]
    if len(found) <= limit and not growing:
        return shown, None
    return shown, cursor_of(str(key(shown[-1]) if shown else after))


def cursor_of(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def text_of(cursor: str) -> str:
    """Decode a cursor; reject a cursor that this server did not create."""
    try:
        text = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except ValueError:
        raise _foreign() from None
    if not text.isprintable() or cursor_of(text) != cursor:
        raise _foreign()
    return text


def number_of(cursor: str | None, last: int = LAST) -> int | None:
    """Decode the number in a cursor; return None without a cursor."""
    if cursor is None:
        return None
    text = text_of(cursor)
    if not text.isdecimal() or len(text) > len(str(last)) or int(text) > last:
        raise _foreign()
    return int(text)


def _foreign() -> InvalidInput:
    return InvalidInput("cursor", "is not a cursor of this list", "use `next` of the previous response")


HEADER = "Idempotency-Key"
LOCATION = "Location"

Create = Callable[[IdempotencyRecord], Awaitable[Json]]
"""Creates the object with the id in this record. If a request with the same key has already created the object, it is
shown instead."""


async def respond_once(
    idempotency: Idempotency,
    request: EndpointRequest[B, Q],
    prefix: str,
    create: Create,
    content: Callable[[], str] | None = None,
) -> Response:
    """Return the response of `create`, or the stored response if a request with the same key has already completed.
    `content` returns the content of the request if it is not in the JSON body."""
    async with id_once(idempotency, request, prefix, content) as record:
        if record.answer is not None:
            return replay(record.answer)
        response = await create(record)
        if (key := key_of(request)) is None:
            return response
        return replay(await idempotency.end(key, record.subject, stored(response)))


@asynccontextmanager
async def id_once(
    idempotency: Idempotency, request: EndpointRequest[B, Q], prefix: str, content: Callable[[], str] | None = None
) -> AsyncIterator[IdempotencyRecord]:
    """Yield the id for the object that a request creates. Requests with the same key get the same id, unless the
    earlier request failed."""
    fresh, key = new_id(prefix), key_of(request)
    if key is None:
        yield IdempotencyRecord(fresh)
        return
    record = await idempotency.begin(key, request.body.text() if content is None else content(), fresh)
    try:
        yield record
    except (CallerError, NoWorker):
        await idempotency.forget(key, record.subject)
        raise


def key_of(request: EndpointRequest[B, Q]) -> IdempotencyKey | None:
    """Return the idempotency key of a request, if it has one."""
    sent = request.http.headers.get(HEADER)
    if sent is None:
        return None
    return IdempotencyKey(caller_of(request.http).who, f"{request.http.method} {request.http.url.path}", sent)


def stored(response: Json) -> StoredResponse:
    """Return a response in the form in which it is stored with its key."""
    return StoredResponse(response.status_code, bytes(response.body).decode(), response.headers.get(LOCATION))


def replay(answer: StoredResponse) -> Response:
    """Return a stored response as it was sent."""
    headers = {} if answer.location is None else {LOCATION: answer.location}
    return Response(answer.body, answer.status, headers, Json.media_type)

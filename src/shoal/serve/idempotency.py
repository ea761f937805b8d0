"""`Idempotency-Key`: a request repeated with the same key is executed once, and gets the response of the first."""

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from shoal.access.idempotency import Idempotency, IdempotencyKey, StoredResponse
from shoal.base.errors import CallerError
from shoal.base.ids import new_id
from shoal.serve.authentication import caller_of
from shoal.serve.endpoint import B, EndpointRequest, Q
from shoal.serve.problems import Json

HEADER = "Idempotency-Key"
LOCATION = "Location"

Create = Callable[[str], Awaitable[Json]]
"""Creates the object with this id, or shows it if it exists already."""


async def respond_once(
    idempotency: Idempotency,
    request: EndpointRequest[B, Q],
    prefix: str,
    create: Create,
    content: Callable[[], str] | None = None,
    resume: Create | None = None,
) -> Response:
    """Return the response of `create`, or the stored response if a request with the same key has completed before.

    `content` returns what was sent, if that is not the body. `resume` replaces `create` for a key whose first request
    did not complete.
    """
    fresh = new_id(prefix)
    sent = request.http.headers.get(HEADER)
    if sent is None:
        return await create(fresh)
    key = IdempotencyKey(caller_of(request.http).who, f"{request.http.method} {request.http.url.path}", sent)
    record = await idempotency.begin(key, request.body.text() if content is None else content(), fresh)
    if record.answer is not None:
        return _replay(record.answer)
    try:
        response = await (create if resume is None or record.subject == fresh else resume)(record.subject)
    except CallerError:
        await idempotency.forget(key)
        raise
    stored = StoredResponse(response.status_code, bytes(response.body).decode(), response.headers.get(LOCATION))
    return _replay(await idempotency.end(key, stored))


def _replay(stored: StoredResponse) -> Response:
    headers = {} if stored.location is None else {LOCATION: stored.location}
    return Response(stored.body, stored.status, headers, Json.media_type)

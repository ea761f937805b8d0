"""`Idempotency-IdempotencyKey`: a POST that makes something makes it once, and every repeat gets the first answer."""

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

Make = Callable[[str], Awaitable[Json]]
"""Makes what has this id, or shows it if it is there already."""


async def respond_once(
    once: Idempotency,
    ask: EndpointRequest[B, Q],
    prefix: str,
    make: Make,
    content: Callable[[], str] | None = None,
    again: Make | None = None,
) -> Response:
    """What `make` answers, the first time; later the same again. `content`: what was sent, if it is not the body.
    `again` is called instead of `make` for a key that came before and has no answer yet, if that makes a difference."""
    fresh = new_id(prefix)
    sent = ask.request.headers.get(HEADER)
    if sent is None:
        return await make(fresh)
    key = IdempotencyKey(caller_of(ask.request).who, f"{ask.request.method} {ask.request.url.path}", sent)
    kept = await once.begin(key, ask.body.text() if content is None else content(), fresh)
    if kept.answer is not None:
        return _again(kept.answer)
    try:
        made = await (make if again is None or kept.subject == fresh else again)(kept.subject)
    except CallerError:
        await once.forget(key)
        raise
    told = StoredResponse(made.status_code, bytes(made.body).decode(), made.headers.get(LOCATION))
    return _again(await once.end(key, told))


def _again(answer: StoredResponse) -> Response:
    headers = {} if answer.location is None else {LOCATION: answer.location}
    return Response(answer.body, answer.status, headers, Json.media_type)

"""The forms of the console: reading them, and the token that proves that a form comes from a page of ours (CSRF).

The token is a random cookie that every form repeats. It needs no state on the server, so any controller accepts a form
that another one rendered. The gateway checks the origin of each request as well.
"""

import hmac
import secrets
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

from shoal.base.errors import InvalidInput, NotAllowed, TooLarge
from shoal.serve.authentication import is_secure

FORM_TYPE: Final = "application/x-www-form-urlencoded"
FIELD: Final = "csrf"
CONFIRMED: Final = "confirmed"
LONGEST_FORM: Final = 1_000_000
MOST_FIELDS: Final = 2000


class ConsoleForm:
    """The fields of a posted form, in their order; a name may occur several times."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def get(self, name: str, default: str = "") -> str:
        return next((value.strip() for key, value in self._pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        return [value.strip() for key, value in self._pairs if key == name]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Iterate over the fields that a page repeats when it asks for confirmation."""
        return ((name, value) for name, value in self._pairs if name not in (FIELD, CONFIRMED))

    @property
    def is_confirmed(self) -> bool:
        return self.get(CONFIRMED) == "yes"


def csrf_cookie(request: Request) -> str:
    return "__Host-shoal_csrf" if is_secure(request) else "shoal_csrf"


def csrf_token(request: Request) -> str:
    """Return the token of this browser; a new one if it has none."""
    return request.cookies.get(csrf_cookie(request)) or secrets.token_urlsafe(18)


async def read_form(request: Request) -> ConsoleForm:
    """Read a posted form; raise unless it carries the token of this browser."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM_TYPE:
        raise InvalidInput("the body", "is not a form", f"send it as {FORM_TYPE}")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_FORM:
            raise TooLarge("the form", f"{LONGEST_FORM} bytes", "send less")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise InvalidInput("the form", "cannot be read", f"send at most {MOST_FIELDS} fields as UTF-8") from None
    form = ConsoleForm(pairs)
    sent, kept = form.get(FIELD), request.cookies.get(csrf_cookie(request), "")
    if not kept or not hmac.compare_digest(sent.encode(), kept.encode()):
        raise NotAllowed("this form is out of date", "reload the page and send it again")
    return form

"""The parsed parts of console requests: forms, filters, views, searches."""

import hmac
import secrets
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, get_args
from urllib.parse import parse_qsl

from starlette.requests import Request

from shoal.access.token import LOCAL, Caller, TokenScope, allows
from shoal.base.errors import InvalidInput, NotAllowed, TooLarge
from shoal.base.request_form import Form
from shoal.base.text import clean, nearest, shorten
from shoal.serve.authentication import is_secure
from shoal.serve.console.format import Language, languages, preferred
from shoal.serve.endpoint import Handler, endpoint

FORM_TYPE: Final = "application/x-www-form-urlencoded"
FIELD: Final = "csrf"
CONFIRMED: Final = "confirmed"
LONGEST_FORM: Final = 1_000_000
MOST_FIELDS: Final = 2000


class AnyQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The query parameters of a page; unknown parameters are ignored."""


class FilterQuery(AnyQuery, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The filters of a table and its first row. The filters are texts, so that the page can explain invalid values."""

    after: str = ""
    filters: ClassVar[tuple[str, ...]]

    @property
    def given(self) -> dict[str, str]:
        """The filters that are filled in."""
        values = self.plain()
        return {name: value for name in self.filters if (value := values[name].strip())}


def page_endpoint(
    path: str,
    summary: str,
    scope: TokenScope = TokenScope.READ,
    query: type[Form] = AnyQuery,
    expensive: Callable[[Any], bool] = lambda _: False,
) -> Callable[[Handler], Handler]:
    """Add the decorated method to the endpoint table, as a console page or a download of such a page."""
    return endpoint("GET", path, scope=scope, summary=summary, query=query, public=False, expensive=expensive)


def form_endpoint(path: str, summary: str, scope: TokenScope = TokenScope.WRITE) -> Callable[[Handler], Handler]:
    """Add the decorated method to the endpoint table, as the target of a console form."""
    return endpoint("POST", path, scope=scope, summary=summary, file=(FORM_TYPE,), public=False)


class ConsoleForm:
    """The fields of a posted form, in order; a name may occur several times."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def get(self, name: str, default: str = "") -> str:
        return next((value.strip() for key, value in self._pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        return [value.strip() for key, value in self._pairs if key == name]

    def lines(self, name: str) -> list[str]:
        """Return the non-empty lines of a field."""
        return [line.strip() for line in self.get(name).splitlines() if line.strip()]

    def line_of(self, field: str) -> str:
        """Return the name of a list entry, such as `seeds[1]`, as a line of its text field, such as `line 2`."""
        name, _, rest = field.partition("[")
        place, _, rest = rest.partition("]")
        if not place.isdecimal():
            return field
        lines = [number for number, line in enumerate(self.get(name).splitlines(), 1) if line.strip()]
        return f"line {lines[int(place)]}{rest}"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Iterate over the fields that the confirmation page must repeat."""
        return ((name, value) for name, value in self._pairs if name not in (FIELD, CONFIRMED))

    @property
    def is_confirmed(self) -> bool:
        return self.get(CONFIRMED) == "yes"


def csrf_cookie(request: Request) -> str:
    return "__Host-shoal_csrf" if is_secure(request) else "shoal_csrf"


def csrf_token(request: Request) -> str:
    """Return the CSRF token of this browser, or a new token if it has none."""
    return request.cookies.get(csrf_cookie(request)) or secrets.token_urlsafe(18)


async def read_form(request: Request) -> ConsoleForm:
    """Read a posted form; raise unless it contains the CSRF token of this browser."""
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


def number_or_text(text: str, *, is_float: bool = False) -> int | float | str:
    """Return the number in a field. Other text is returned unchanged; the package's form then rejects it and names the
    field."""
    try:
        return float(text) if is_float else int(text)
    except ValueError:
        return text


def row_in(text: str | None, last: int) -> int | None:
    """Return the number of the last row of the previous page, or None if the text is not such a number."""
    if not text or not text.isascii() or not text.isdecimal() or len(text) > 18:
        return None
    return min(int(text), last)


def as_text(value: Any) -> str:
    """Return a value as the text of a form field: one line per list entry, or per mapping entry as `name=value`."""
    if isinstance(value, dict):
        value = [f"{name}={one}" for name, one in value.items()]
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return "" if value is None or value is False else "yes" if value is True else str(value)


Theme = Literal["system", "light", "dark"]
THEMES: Final[tuple[Theme, ...]] = get_args(Theme)
COOKIE: Final = "shoal_view"  # the preferences of a browser, as `theme.language`


@dataclass(frozen=True, slots=True)
class View:
    """The language, the theme and the rights of a reader. Readers with equal views see identical pages."""

    language: Language
    theme: Theme = "system"
    may_write: bool = False
    may_administer: bool = False
    is_signed_in: bool = False

    @property
    def key(self) -> tuple[str, bool, bool]:
        """The values that the live regions of a page depend on."""
        return self.language.code, self.may_write, self.may_administer


def view_of(request: Request) -> View:
    """Return the view of a request. Preferences come from the cookie, or else from the browser's headers; rights come
    from the caller."""
    theme, _, code = request.cookies.get(COOKIE, "").partition(".")
    language = languages().get(code) or preferred(request.headers.get("accept-language", ""))
    caller = getattr(request.state, "caller", None)
    scopes = caller.scopes if isinstance(caller, Caller) else frozenset[TokenScope]()
    return View(
        language=language,
        theme=next((known for known in THEMES if known == theme), "system"),
        may_write=allows(scopes, TokenScope.WRITE),
        may_administer=allows(scopes, TokenScope.ADMIN),
        is_signed_in=isinstance(caller, Caller) and caller.who != LOCAL,
    )


LONGEST = 1000


@dataclass(frozen=True, slots=True)
class Search:
    """A parsed search line."""

    line: str = ""
    values: dict[str, list[str]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def one(self, name: str) -> str | None:
        """Return the value of a qualifier that may be given only once."""
        found = self.values.get(name, [])
        if len(found) > 1:
            raise InvalidInput(f"{name}:", "is given twice", "write it once")
        return found[0] if found else None

    def all(self, name: str) -> list[str]:
        return self.values.get(name, [])

    @property
    def text(self) -> str:
        """The words outside of qualifiers."""
        return " ".join(self.words)

    def with_value(self, name: str, value: str | None) -> str:
        """Return the search line with a different value of one qualifier, for filter links."""
        parts = [f"{key}:{_quoted(one)}" for key, values in self.values.items() if key != name for one in values]
        parts += [] if value is None else [f"{name}:{_quoted(value)}"]
        return " ".join([*parts, *map(_quoted, self.words)])


Suggested = Iterable[str | tuple[str, str]]  # values, some of them with their meaning


def suggestion(hint: str, values: Suggested = ()) -> dict[str, object]:
    """Return the suggestions of the search line for one qualifier: its meaning, and some of its values."""
    pairs = dict.fromkeys((value, "") if isinstance(value, str) else value for value in values)
    return {"hint": hint, "values": [(_quoted(clean(value, 100)), word) for value, word in pairs if value]}


def parse(line: str, known: Collection[str]) -> Search:
    """Parse a search line. For an unknown qualifier, raise an error that names the nearest known qualifier."""
    line = line.strip()[:LONGEST]
    try:
        parts = shlex.split(line.replace("\\", "\\\\"))
    except ValueError:  # unbalanced quotation marks are taken literally
        parts = line.split()
    values: dict[str, list[str]] = {}
    words = []
    for part in parts:
        name, colon, value = part.partition(":")
        if not colon or not name.isalpha() or value.startswith("//"):
            words.append(part)
        elif name.lower() in known:
            if value:
                values.setdefault(name.lower(), []).append(value)
        else:
            close = nearest(name, known)
            hint = (
                f"the nearest one is {close}:"
                if close
                else f"the known ones are {', '.join(f'{one}:' for one in known)}"
            )
            raise InvalidInput(f"{shorten(name)}:", "is not a qualifier of this list", hint)
    return Search(line, values, words)


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text

"""A request and its response, their headers, and the waiting time that a server requests."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from shoal.base.text import HIDDEN, shorten
from shoal.egress.decode import DecodingFault, decode

if TYPE_CHECKING:
    from shoal.base.settings import EgressSettings


HeaderPairs = tuple[tuple[str, str], ...]
PUBLIC_HEADERS: Final = frozenset({"accept", "accept-encoding", "accept-language", "dnt", "sec-gpc", "user-agent"})
"""The lower-case names of headers that never contain secrets."""

BLOCKED: Final = frozenset(
    {
        "address_not_public",
        "self_connection",
        "port_not_allowed",
        "scheme_not_allowed",
        "redirect_scheme",
    }
)


class Limits(Struct, frozen=True):
    """Limits on time and size, named like the settings."""

    connect_timeout: timedelta = timedelta(seconds=10)
    idle_timeout: timedelta = timedelta(seconds=20)
    total_timeout: timedelta = timedelta(seconds=60)
    max_redirects: int = 10
    max_redirect_bytes: int = 64_000
    max_header_bytes: int = 64_000
    max_headers: int = 100
    max_body_bytes: int = 10_000_000
    max_decoded_bytes: int = 30_000_000
    max_encodings: int = 3
    cut_body: bool = False  # truncate a body over the limit instead of failing

    @classmethod
    def of(cls, settings: "EgressSettings") -> "Limits":
        return cls(
            connect_timeout=settings.connect_timeout,
            idle_timeout=settings.idle_timeout,
            total_timeout=settings.total_timeout,
            max_redirects=settings.max_redirects,
            max_header_bytes=settings.max_header_bytes,
            max_headers=settings.max_headers,
            max_body_bytes=settings.max_body_bytes,
            max_decoded_bytes=settings.max_decoded_bytes,
            max_encodings=settings.max_encodings,
        )


class Signer(Struct, frozen=True):
    """The credentials with which the transport signs requests to an object store (AWS Signature 4)."""

    region: str
    access_key: str
    secret_key: str

    def __repr__(self) -> str:  # without the keys
        return f"Signer(region={self.region!r})"

    @property
    def scheme(self) -> str:
        return f"aws:amz:{self.region}:s3"

    @property
    def login(self) -> str:
        return f"{self.access_key}:{self.secret_key}"


LATE: Final = "late_for_slot"
NO_DEADLINE: Final = float("inf")


class Request(NamedTuple):
    """One request. Share `headers` and `limits` objects between requests: setting different ones costs time."""

    url: str
    method: str = "GET"
    headers: HeaderPairs = ()
    body: bytes = b""
    limits: Limits | None = None
    signer: Signer | None = None
    send_by: float = NO_DEADLINE  # by the clock of this process; after this deadline, the request ends as `LATE`


class Hop(NamedTuple):
    """A redirect that was followed: the requested URL and the status of the redirect."""

    url: str
    status: int


class Headers:
    """Header fields as they were sent, parsed on demand."""

    __slots__ = ("_lowered", "block")

    def __init__(self, block: bytes) -> None:
        self.block = block
        self._lowered: bytes | None = None

    def get(self, name: str) -> str | None:
        """Return the first value of a field; None if it is absent."""
        return next(iter(self._find(name)), None)

    def all(self, name: str) -> tuple[str, ...]:
        """Return all values of a field, in the order sent."""
        return tuple(self._find(name))

    def pairs(self) -> HeaderPairs:
        """Return all fields in the order sent."""
        lines = _FOLD.sub(b" ", self.block).split(b"\n")[1:]
        fields = (line.partition(b":") for line in lines if b":" in line)
        return tuple((_text(name), _text(value)) for name, _, value in fields)

    def _find(self, name: str) -> "list[str]":
        lowered = self._lowered
        if lowered is None:
            lowered = self._lowered = self.block.lower()
        needle = b"\n" + name.lower().encode("latin-1", "replace") + b":"
        values: list[str] = []
        at = lowered.find(needle)
        while at >= 0:
            start = at + len(needle)
            end = _FIELD_END.search(self.block, start)
            values.append(_text(self.block[start : end.start() if end else len(self.block)]))
            at = lowered.find(needle, start)
        return values


class Response(Struct):
    """The response of a server, whatever its status. `raw` is the body as it was sent, still encoded."""

    url: str
    status: int
    headers: Headers
    raw: bytes
    address: str
    seconds: float
    redirects: tuple[Hop, ...] = ()

    @property
    def http_version(self) -> str:
        """The HTTP version: `1.1`, `2` and so on."""
        return self.headers.block[5:8].split(b" ")[0].decode("latin-1")

    @property
    def reason(self) -> str:
        """The reason phrase; HTTP/2 has none."""
        words = self.headers.block.partition(b"\n")[0].split(b" ", 2)
        return _text(words[2]) if len(words) > 2 else ""

    def body(self, limits: Limits = Limits()) -> "bytes | Failure":  # noqa: B008 - frozen
        """Return the body without its content encodings, or the failure to decode it."""
        encodings = self.headers.all("content-encoding")
        if not encodings:
            return self.raw
        decoded = decode(
            self.raw, ",".join(encodings), limit=limits.max_decoded_bytes, max_encodings=limits.max_encodings
        )
        if isinstance(decoded, DecodingFault):
            return Failure(decoded.code, decoded.message, retryable=False, url=self.url)
        return decoded


class Failure(Struct):
    """Why there is no response. `message` is public; `operator_detail` names addresses and is for operators only."""

    code: Annotated[str, Meta(description="Stable code of the error.")]
    message: Annotated[str, Meta(description="The error in one sentence.")]
    retryable: Annotated[bool, Meta(description="Whether another attempt may succeed.")]
    operator_detail: Annotated[str, Meta(description="Details such as addresses, for operators only.")] = ""
    url: Annotated[str, Meta(description="URL of the request that failed.")] = ""
    redirects: Annotated[tuple[Hop, ...], Meta(description="Redirects that were followed before it.")] = ()

    @property
    def is_blocked(self) -> bool:
        """Return whether a rule refused the request: permanent, and not the server's fault."""
        return self.code in BLOCKED


Outcome = Response | Failure

# A line that starts with white space continues the previous field, because old servers fold long values.
_FIELD_END: Final = re.compile(rb"\r?\n(?![ \t])")
_FOLD: Final = re.compile(rb"\r?\n[ \t]+")


def _text(value: bytes) -> str:
    return _FOLD.sub(b" ", value).strip().decode("latin-1")


MOST_HEADERS: Final = 50
LONGEST_HEADER: Final = 4096
LONGEST_NAME: Final = 100

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_UNSAFE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")

_FRAMING: Final = (
    *("connection", "content-length", "expect", "keep-alive", "proxy-connection", "te", "trailer"),
    *("transfer-encoding", "upgrade"),
)
_CONDITIONS: Final = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range")

RESERVED: Final = {
    "user-agent": "use user_agent (--user-agent)",
    "host": "name the host in the seed",
    "proxy-authorization": "put it into the proxy URL",
    "range": "pages are always fetched whole",
    **dict.fromkeys(_FRAMING, "Shoal sets it"),
    **dict.fromkeys(_CONDITIONS, "Shoal sends it in recrawls"),
}
"""Headers that callers may not set, and the alternative."""


def check_headers(headers: dict[str, str], reserved: Mapping[str, str] = RESERVED) -> dict[str, str]:
    """Reject headers that would break a request or that Shoal sets; raise `ValueError` with the end of a sentence."""
    if len(headers) > MOST_HEADERS:
        raise ValueError(f"must not be more than {MOST_HEADERS}")
    seen: set[str] = set()
    for name, value in headers.items():
        lowered = name.lower()
        if not _TOKEN.fullmatch(name) or len(name) > LONGEST_NAME:
            raise ValueError(f"have an invalid name: {_quoted(name)}")
        if lowered in reserved:
            raise ValueError(f"must not set {_quoted(name)}: {reserved[lowered]}")
        if lowered in seen:
            raise ValueError(f"name {_quoted(name)} twice")
        if _UNSAFE.search(value):
            raise ValueError(f"have control characters in the value of {_quoted(name)}")
        if len(value) > LONGEST_HEADER:
            raise ValueError(f"have a value of {_quoted(name)} that is longer than {LONGEST_HEADER} characters")
        seen.add(lowered)
    return headers


def _quoted(name: str) -> str:
    return repr(shorten(name))


def split(headers: Mapping[str, str]) -> tuple[HeaderPairs, HeaderPairs]:
    """Split headers into two groups: headers for every host, and headers only for the origins of the requested URLs."""
    public = tuple((name, value) for name, value in headers.items() if name.lower() in PUBLIC_HEADERS)
    private = tuple((name, value) for name, value in headers.items() if name.lower() not in PUBLIC_HEADERS)
    return public, private


def hidden_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return custom headers with secret values redacted."""
    return {name: value if name.lower() in PUBLIC_HEADERS else HIDDEN for name, value in headers.items()}


_SECONDS = re.compile(r"[0-9]{1,10}")


def asked_wait(header: Callable[[str], str | None]) -> str | None:
    """Return the `Retry-After` header of a response. A date is converted to seconds after the response's `Date` header,
    if there is one, so that an error of our clock does not matter."""
    text, sent_at = header("retry-after"), header("date")
    if text is None or sent_at is None or _SECONDS.fullmatch(text.strip()):
        return text
    sent = _date(sent_at)
    wait = None if sent is None else _until(text, sent)
    return text if wait is None else str(max(0, int(wait.total_seconds())))


def parse_retry_after(text: str | None, now: datetime, longest: timedelta) -> timedelta | None:
    """Return how long to wait, from seconds or a date. None if the header is absent, unreadable, in the past, or longer
    than the limit."""
    if text is None:
        return None
    wait = timedelta(seconds=int(text)) if _SECONDS.fullmatch(text.strip()) else _until(text, now)
    return wait if wait is not None and timedelta(0) < wait <= longest else None


def _until(text: str, now: datetime) -> timedelta | None:
    date = _date(text)
    return None if date is None else date - now


def _date(text: str) -> datetime | None:
    from email.utils import parsedate_to_datetime  # slow to import and rarely used

    try:
        date = parsedate_to_datetime(text)
        return date if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None

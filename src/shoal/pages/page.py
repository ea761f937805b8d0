"""The page record, the classes of responses, and the signals about pages."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self, get_args

from msgspec import Struct, field

from shoal.base.clock import to_micros
from shoal.base.signals import Signal
from shoal.base.text import Sentence, joined, message

RECORD_FIELDS = (
    "crawl_id", "url", "final_url", "status", "depth", "parent", "content_type", "encoding", "bytes", "title",
    "description", "canonical", "robots", "lang", "h1", "word_count", "content_hash", "links_internal",
    "links_external", "redirects", "fetched_at", "duration_ms", "attempt", "rendered", "render_wait", "error",
    "data",
)  # fmt: skip

RenderWait = Literal["settled", "selector", "timeout"]
"""How the wait for a rendered page ended. Older records lack this value."""
RENDER_WAITS: Final[tuple[RenderWait, ...]] = get_args(RenderWait)

NOT_MODIFIED = 304
_OTHER_FORM: Final = frozenset({"crawl_id", "error", "fetched_at"})
Blob = bytes  # an alias, because a page has a field `bytes`


class Page(Struct):
    """One fetched URL. `error` is a code and a message; a page with a status got a response from its server."""

    url: str
    depth: int
    fetched_at: int
    attempt: int
    final_url: str | None = None
    status: int | None = None
    parent: str | None = None
    content_type: str | None = None
    encoding: str | None = None
    bytes: int = 0
    title: str | None = None
    description: str | None = None
    canonical: str | None = None
    robots: str | None = None
    lang: str | None = None
    h1: str | None = None
    word_count: int | None = None
    content_hash: str | None = None
    links_internal: int | None = None
    links_external: int | None = None
    redirects: list[dict[str, Any]] = field(default_factory=list)
    duration_ms: float | None = None
    rendered: bool = False
    render_wait: RenderWait | None = None
    error_code: str | None = None
    error_message: str | None = None
    data: dict[str, Any] | None = None
    flags: int = 0  # parsing problems that were tolerated: see `extract.flags`; not part of the record
    text_hash: int | None = None  # 64-bit hash of the visible text; not part of the record
    fingerprint: int | None = None  # 64-bit similarity hash of the text, close for similar pages; only if analysed
    detail: Blob | None = None  # packed data for analyses; stored and read separately from the record
    body_file: str | None = None  # where the raw response is stored, if it is stored: see `bodies`
    body_offset: int | None = None
    body_length: int | None = None
    etag: str | None = None  # validators for conditional requests
    last_modified: str | None = None
    links: Blob | None = None  # keys of the pages to which it links: see `links`
    outlinks: Blob | None = None  # the page's links with URL and text, if the crawl stores links: see `extract.links`

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Return the page of a record. Fields that are never in records, or not in older records, keep their
        defaults."""
        values = {name: record[name] for name in RECORD_FIELDS if name in record and name not in _OTHER_FORM}
        error = record["error"] or {"code": None, "message": None}
        values |= {"error_code": error["code"], "error_message": error["message"]}
        return cls(**values, fetched_at=to_micros(datetime.fromisoformat(record["fetched_at"])))

    @property
    def received(self) -> int:
        """Body bytes received for this page: 0 if it was not modified."""
        return 0 if self.status == NOT_MODIFIED else self.bytes

    @property
    def saved(self) -> int:
        """Body bytes not transferred, because the page was not modified."""
        return self.bytes if self.status == NOT_MODIFIED else 0

    @property
    def answered_at(self) -> str:
        """The URL that sent the last response: the last redirect, if its target was not fetched."""
        if self.redirects and self.status == self.redirects[-1]["status"]:
            return str(self.redirects[-1]["url"])
        return self.final_url or self.url

    @property
    def error(self) -> dict[str, str | None] | None:
        """The error as `{code, message}`, or None."""
        return None if self.error_code is None else {"code": self.error_code, "message": self.error_message}

    def record(self, crawl_id: str | None) -> dict[str, Any]:
        """Return the public record, which is written as one JSON object per line. Its fields are the same everywhere,
        in the order of `RECORD_FIELDS`.

        The fields are written out by hand, because this runs for every page, and a loop over the names takes twice as
        long.
        """
        return {
            "crawl_id": crawl_id,
            "url": self.url,
            "final_url": self.final_url,
            "status": self.status,
            "depth": self.depth,
            "parent": self.parent,
            "content_type": self.content_type,
            "encoding": self.encoding,
            "bytes": self.bytes,
            "title": self.title,
            "description": self.description,
            "canonical": self.canonical,
            "robots": self.robots,
            "lang": self.lang,
            "h1": self.h1,
            "word_count": self.word_count,
            "content_hash": self.content_hash,
            "links_internal": self.links_internal,
            "links_external": self.links_external,
            "redirects": self.redirects,
            # Until the year 2255, a float represents microseconds exactly.
            "fetched_at": datetime.fromtimestamp(self.fetched_at / 1e6, UTC),
            "duration_ms": self.duration_ms,
            "attempt": self.attempt,
            "rendered": self.rendered,
            "render_wait": self.render_wait,
            "error": None if self.error_code is None else self.error,
            "data": self.data,
        }


class PagesSettled(Signal, frozen=True, kw_only=True, tag=True):
    """The pages stored in one commit, by class of HTTP status: `2xx` and so on; `unchanged` for a 304 that confirms a
    page of the previous crawl; `error` without a status."""

    pages: dict[str, int]
    bytes: dict[str, int]


def status_class(status: int | None) -> str:
    return f"{status // 100}xx" if status else "error"


class ResultsTaken(Signal, frozen=True, kw_only=True, tag=True):
    """Results of page jobs were ingested; `timed` of them reported a fetch time, and the signal has the sum of these
    times."""

    kind: str
    count: int
    timed: int
    seconds: float


ResponseClass = Literal["2xx", "3xx", "4xx", "5xx", "none"]

CLASSES: Final[tuple[ResponseClass, ...]] = ("2xx", "3xx", "4xx", "5xx", "none")
UNCHANGED: Final = "unchanged"
_BY_DIGIT: Final[dict[int, ResponseClass]] = {2: "2xx", 3: "3xx", 4: "4xx"}


def response_class(status: int | None) -> ResponseClass:
    """Return the class of a status; `none` without an HTTP response. An unknown class counts as 5xx (RFC 9110, section
    15)."""
    return "none" if status is None else _BY_DIGIT.get(status // 100, "5xx")


def count_responses(statuses: Iterable[int | None]) -> dict[ResponseClass, int]:
    """Count statuses by class; every class is present in the result."""
    counts = dict.fromkeys(CLASSES, 0)
    for status in statuses:
        counts[response_class(status)] += 1
    return counts


def with_unchanged(responses: Mapping[ResponseClass, int], unchanged: int) -> dict[str, int]:
    """Return the counts in the form that people see. `unchanged`: how many of the 3xx responses (304) confirmed a page
    of the previous crawl."""
    counts = {"2xx": responses["2xx"], UNCHANGED: unchanged, "3xx": max(0, responses["3xx"] - unchanged)}
    return counts | {kind: responses[kind] for kind in CLASSES[2:]}


def in_words(responses: Mapping[ResponseClass, int], unchanged: int = 0) -> Sentence:
    """Return a summary such as `2xx 7, unchanged 3, no response 2`; empty if all counts are zero."""
    counts = with_unchanged(responses, unchanged).items()
    return joined(
        (Sentence(_COUNTED.get(kind, kind + " {count}"), {"count": count}) for kind, count in counts if count), ", "
    )


_COUNTED = {"none": message("no response {count}"), UNCHANGED: message("unchanged {count}")}

"""The dump format: a crawl's options, frontier and pages as JSON lines, each validated when it is read.

    {"shoal_frontier": 1, "key_seed": "…", "crawl": {…}, "counts": {…}}    first: the crawl
    {"url": "https://…", "fate": "open", "depth": 2, "due": null, …}         each waiting or quarantined URL
    {"key": "…24 hex digits…", "fate": "depth"}                              each of the other URLs
    {"trap": {…}}                                                            each quarantined pattern
    {"sitemap": {…}}                                                         each sitemap that was requested
    {"redirect": {…}}                                                        each redirect target
    {"page": {…}}                                                            each page
    {"end": {"urls": 3, "keys": 10, "traps": 0, "sitemaps": 1, "pages": 9}}  last: how many lines there were

The store has only the hash of most URLs. The dump includes the hash seed, so that URLs keep their keys when the crawl
is loaded.
"""

from base64 import b64encode
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar

import orjson
from msgspec import Meta, Struct, convert, to_builtins
from msgspec.structs import asdict, replace

from shoal.base.clock import from_micros, span, to_micros
from shoal.base.errors import InvalidInput
from shoal.base.request_form import known_fields
from shoal.base.text import DEEPEST, has_nul, is_nested_too_deeply, shorten
from shoal.base.url import Url, UrlRefusal, UrlRules, canonical, origin
from shoal.crawl.crawl import EARLIER_DEPTH, Counts, Crawl, CrawlConfig
from shoal.crawl.credentials import hidden
from shoal.crawl.frontier.admin_store import LOADING, KeptUrl, KnownKey
from shoal.crawl.frontier.fates import Fate, Trap
from shoal.crawl.frontier.traps import LONGEST_PATTERN
from shoal.crawl.frontier.values import RedirectTarget, SitemapRecord, UrlKind
from shoal.crawl.states import CrawlState
from shoal.extract.details import Details, unpacked
from shoal.extract.links import unpack_links
from shoal.pages.links import unpack
from shoal.pages.page import CLASSES, Page
from shoal.web.page_fetcher import RedirectChain

T = TypeVar("T", bound=Struct)

VERSION = 1
FIX = "use a complete file written by `shoal crawls dump`"
FATES = {fate.word: fate for fate in Fate}
KINDS = {kind.name.lower(): kind for kind in UrlKind}
ANY_URL = UrlRules(max_length=65_536, tracking=(), session=())  # accept every URL that the other store accepted

_SIGN_64, _SIGN_32 = 1 << 63, 1 << 31

BIGGEST = (1 << 63) - 1
BIGGEST_INT = (1 << 31) - 1
LATEST = to_micros(datetime(9999, 12, 30, tzinfo=UTC))
RANGES = {
    "status": (0, 999),
    "depth": (0, BIGGEST_INT),
    "fetched_at": (0, LATEST),
    "attempt": (0, BIGGEST_INT),
    "bytes": (0, BIGGEST),
    "word_count": (0, BIGGEST_INT),
    "links_internal": (0, BIGGEST_INT),
    "links_external": (0, BIGGEST_INT),
    "duration_ms": (0, BIGGEST),
    "flags": (0, 32_767),
    "fingerprint": (-BIGGEST - 1, BIGGEST),
    "text_hash": (-BIGGEST - 1, BIGGEST),
    "listed": (0, BIGGEST_INT),
    "count": (0, BIGGEST_INT),
    "depth_reached": (0, BIGGEST_INT),
    "key": (-BIGGEST - 1, BIGGEST),
    "chk": (-BIGGEST_INT - 1, BIGGEST_INT),
    "asked": (0, 2 * BIGGEST + 1),
    "seconds": (0, BIGGEST_INT),
    **dict.fromkeys(
        ("opened", "settled", "pages", "errors", "not_modified", "bytes_saved", "stayed_empty"), (0, BIGGEST)
    ),
}
"""The ranges of numbers (in pages, sitemaps, traps, redirects and counts) that every store and every export
supports."""
LONGEST_TEXT = 10_000
LENGTHS = {
    **dict.fromkeys(("url", "final_url", "parent", "canonical", "sample"), ANY_URL.max_length),
    "pattern": LONGEST_PATTERN,
    "state_reason": 200,
    "error_code": 200,
    "content_hash": 200,
    "encoding": 200,
}
"""The maximum lengths of texts by field, in characters. The limit of all other fields is `LONGEST_TEXT`."""
MOST_NAMES = 1_000  # maximum number of named hosts, of reasons to skip a URL, and of redirects per page

Natural = Annotated[int, Meta(ge=0, le=BIGGEST)]
Small = Annotated[int, Meta(ge=0, le=32_767)]
Moment = Annotated[datetime, Meta(tz=True)]
Id = Annotated[str, Meta(pattern=r"^(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,64}\Z")]
Half = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]


class _Record(Struct, frozen=True):
    """A line or a part of a line. Fields that a newer version of Shoal has added are ignored."""


class Head(_Record, frozen=True):
    """The first line: the crawl, the seed of its keys, and its counts."""

    class Run(_Record, frozen=True):
        id: Id
        state: CrawlState
        state_reason: str | None
        config: CrawlConfig
        named: Annotated[list[Annotated[str, Meta(max_length=300)]], Meta(max_length=MOST_NAMES)]
        created_at: Moment
        started_at: Moment | None
        finished_at: Moment | None
        policy_id: Id | None = None

        def __post_init__(self) -> None:
            CrawlConfig.read(self.config.plain())
            _in_range(self)
            if self.state_reason == LOADING:
                raise ValueError(f"state_reason {LOADING!r} marks a load that was not finished")

    shoal_frontier: Literal[1]
    key_seed: Half
    crawl: Run
    counts: Counts

    @property
    def seed(self) -> int:
        return int(self.key_seed, 16) & (_SIGN_64 - 1)


class _Url(_Record, frozen=True):
    url: str
    fate: Literal["open", "quarantined"]
    depth: Small
    due: Moment | None
    parent: Half | None
    attempts: Small
    crashes: Small
    kind: Literal["page", "sitemap"] = "page"
    target: str | None = None
    chain: RedirectChain | None = None

    def __post_init__(self) -> None:
        if (self.target is None) != (self.chain is None) or (self.chain is not None and not self.chain.steps):
            raise ValueError("a URL that redirected has both a target and a chain")
        if self.chain is not None:
            _check_hops([_in_range(step).url for step in _in_range(self.chain).steps])

    def value(self) -> KeptUrl:
        return KeptUrl(
            url=_whole_url(self.url),
            depth=self.depth,
            fate=FATES[self.fate],
            due=0 if self.due is None else _micros(self.due),
            parent=None if self.parent is None else int(self.parent, 16) - _SIGN_64,
            attempts=self.attempts,
            crashes=self.crashes,
            kind=KINDS[self.kind],
            target=None if self.target is None else _whole_url(self.target),
            chain=None if self.chain is None else _without_secrets(self.chain),
        )


class _Target(_Record, frozen=True):
    url: str
    via: str
    fate: str

    def value(self) -> RedirectTarget:
        fate = FATES.get(self.fate, Fate.OPEN)
        if fate.waits:
            raise ValueError(f"{self.fate[:50]!r} cannot be the fate of a redirect target")
        return RedirectTarget(_whole_url(self.url), _whole_url(self.via), fate)


class _Key(_Record, frozen=True):
    key: Annotated[str, Meta(pattern=r"^[0-9a-f]{24}\Z")]
    fate: str

    def value(self) -> KnownKey:
        fate = FATES.get(self.fate, Fate.OPEN)
        if fate.waits:
            raise ValueError(f"{self.fate[:50]!r} cannot be the fate of a URL of which only the key is known")
        return KnownKey(int(self.key[:16], 16) - _SIGN_64, int(self.key[16:], 16) - _SIGN_32, fate)


class End(_Record, frozen=True):
    """The last line: the number of lines of each kind."""

    urls: Natural
    keys: Natural
    traps: Natural
    pages: Natural
    sitemaps: Natural = 0
    redirects: Natural = 0

    @classmethod
    def of(cls, written: Counter[type]) -> "End":
        return cls(
            urls=written[KeptUrl],
            keys=written[KnownKey],
            traps=written[Trap],
            sitemaps=written[SitemapRecord],
            redirects=written[RedirectTarget],
            pages=written[Page],
        )


Item = KeptUrl | KnownKey | Trap | SitemapRecord | RedirectTarget | Page
Line = Head | Item | End


def head_record(crawl: Crawl, counts: Counts, *, secrets: bool = False) -> bytes:
    config = crawl.config.plain()
    run = {
        "id": crawl.id,
        "state": crawl.state,
        "state_reason": crawl.state_reason,
        "config": config if secrets else hidden(config),
        "named": sorted(crawl.named),
        "policy_id": crawl.policy_id,
        **{name: _moment(getattr(crawl, name)) for name in ("created_at", "started_at", "finished_at")},
    }
    sums = asdict(counts) | {"walked": span(counts.walked)}
    return orjson.dumps({"shoal_frontier": VERSION, "key_seed": f"{crawl.key_seed:016x}", "crawl": run, "counts": sums})


def record_of(item: Item) -> bytes:
    match item:
        case KeptUrl():
            return orjson.dumps(_url(item))
        case KnownKey():
            key = f"{item.key + _SIGN_64:016x}{item.chk + _SIGN_32:08x}"
            return orjson.dumps({"key": key, "fate": item.fate.word})
        case Trap():
            return orjson.dumps({"trap": asdict(item)})
        case SitemapRecord():
            return orjson.dumps({"sitemap": to_builtins(item)})
        case RedirectTarget():
            return orjson.dumps({"redirect": {"url": item.url, "via": item.via, "fate": item.fate.word}})
        case Page():
            return orjson.dumps({"page": _page(item)})


def _page(page: Page) -> dict[str, Any]:
    values = asdict(page)
    for name, blob in (("links", page.links), ("detail", page.detail), ("outlinks", page.outlinks)):
        if blob is not None:
            values[name] = b64encode(blob).decode()
    return values


def _without_secrets(chain: RedirectChain) -> RedirectChain:
    """Leave out the cookies that redirects set, because they may be secrets, and the stored responses, because bodies
    are not dumped."""
    return replace(chain, cookies=(), members=b"", page=None)


def _url(one: KeptUrl) -> dict[str, Any]:
    redirected = {}
    if one.chain is not None and one.chain.page is None:  # a URL that waits for a different URL is requested again
        redirected = {"target": one.target, "chain": to_builtins(_without_secrets(one.chain))}
    return redirected | {
        "url": one.url,
        "fate": one.fate.word,
        "depth": one.depth,
        "due": _moment(one.due or None),
        "parent": None if one.parent is None else f"{one.parent + _SIGN_64:016x}",
        "attempts": one.attempts,
        "crashes": one.crashes,
        "kind": one.kind.name.lower(),
    }


def end_record(end: End) -> bytes:
    return orjson.dumps({"end": to_builtins(end)})


def read(line: bytes | str, number: int) -> Line:
    """Parse a line; raise InvalidInput with its number if it is not valid."""
    try:
        values = orjson.loads(line)
        if has_nul(values):
            raise ValueError("it has a NUL character")
        return _read(values)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, InvalidInput) as error:
        raise InvalidInput(f"line {number}", f"is not valid ({shorten(error, 500)})", FIX) from None


def _read(values: Any) -> Line:
    match values:
        case {"key": _}:
            return convert(values, _Key).value()
        case {"url": _}:
            return convert(values, _Url).value()
        case {"trap": trap}:
            found = _in_range(convert(trap, Trap))
            _check_url(found.sample)
            return found
        case {"sitemap": sitemap}:
            return _checked_sitemap(convert(sitemap, SitemapRecord))
        case {"redirect": redirect}:
            return convert(redirect, _Target).value()
        case {"page": page}:
            return _checked(convert(page, Page))
        case {"shoal_frontier": version}:
            if version != VERSION:
                raise ValueError(f"it has dump format {str(version)[:20]}, and this version of Shoal reads {VERSION}")
            return _head(values)
        case {"end": end}:
            return convert(end, End)
        case _:
            raise ValueError("expected an object with url, key, trap, sitemap, redirect, page or end")


def _head(values: dict[str, Any]) -> Head:
    """Read the first line. In a dump, the working time of the crawl (`walked`) is a number of microseconds."""
    counts = values.get("counts")
    if isinstance(counts, dict) and "walked" in counts:
        if type(counts["walked"]) is not int or not 0 <= counts["walked"] <= LATEST:
            raise ValueError("counts.walked is out of range")
        counts["walked"] = timedelta(microseconds=counts["walked"])
    if isinstance(run := values.get("crawl"), dict) and isinstance(config := run.get("config"), dict):
        config.setdefault("depth", EARLIER_DEPTH)
    head = convert(known_fields(values, Head), Head)
    sums = _in_range(head.counts)
    if not all(0 <= count <= BIGGEST for count in (*sums.responses.values(), *sums.skipped.values())):
        raise ValueError("a count is out of range")
    if len(sums.skipped) > MOST_NAMES or any(len(reason) > LENGTHS["error_code"] for reason in sums.skipped):
        raise ValueError("counts.skipped has too many or too long names")
    responses = dict.fromkeys(CLASSES, 0) | sums.responses
    return replace(head, counts=replace(sums, responses=responses))


def _checked_sitemap(record: SitemapRecord) -> SitemapRecord:
    _whole_url(record.url)
    if record.entries is not None and len(record.entries) % 8:
        raise ValueError("the length of entries is not a multiple of the key length")
    return _in_range(record)


def _checked(page: Page) -> Page:
    _whole_url(page.url)
    _in_range(page)
    for url in (page.final_url, page.parent):
        if url is not None:
            _check_url(url)
    for step in page.redirects:
        if type(step.get("url")) is not str or type(step.get("status")) is not int or not 0 <= step["status"] <= 999:
            raise ValueError("redirects are not a list of objects with url and status")
    _check_hops([step["url"] for step in page.redirects])
    if is_nested_too_deeply(page.data):
        raise ValueError(f"data has more than {DEEPEST} levels")
    if page.links is not None:
        unpack(page.links)
    if page.outlinks is not None:
        unpack_links(page.outlinks)
    if page.detail is not None:
        convert(to_builtins(unpacked(page.detail)), Details)
    return replace(page, body_file=None, body_offset=None, body_length=None)  # bodies are not dumped


def _in_range(item: T) -> T:
    """Return the item if a store can hold its numbers, times and texts; otherwise raise ValueError."""
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if isinstance(value, str) and len(value) > LENGTHS.get(name, LONGEST_TEXT):
            raise ValueError(f"{name} has more than {LENGTHS.get(name, LONGEST_TEXT):,} characters")
        if isinstance(value, datetime):
            _micros(value)
        low, high = RANGES.get(name, (-BIGGEST - 1, BIGGEST))
        if isinstance(value, int | float) and not low <= value <= high:
            raise ValueError(f"{name} is not between {low} and {high}")
    return item


def _micros(moment: datetime) -> int:
    micros = to_micros(moment)
    if not 0 <= micros <= LATEST:
        raise ValueError(f"{moment} is not a time between 1970 and 9999")
    return micros


def _whole_url(text: str) -> Url:
    url = canonical(text, ANY_URL)
    if url != text:
        raise ValueError(f"{text[:200]!r} is not a canonical URL")
    return Url(text)


def _check_url(text: str) -> None:
    """Raise ValueError unless the text is an http or https URL with a canonical origin. The path need not be
    canonical."""
    url = canonical(text, ANY_URL)
    if isinstance(url, UrlRefusal) or not text.startswith(origin(url) + "/"):
        raise ValueError(f"{text[:200]!r} is not a URL that Shoal requests")


def _check_hops(urls: list[str]) -> None:
    if len(urls) > MOST_NAMES:
        raise ValueError(f"it has more than {MOST_NAMES:,} redirects")
    for url in urls:
        _check_url(url)


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)

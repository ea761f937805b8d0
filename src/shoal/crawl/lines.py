"""A crawl's frontier as JSON lines: how each thing is written, and read back with nothing taken on trust.

    {"shoal_frontier": 1, "key_seed": "…", "crawl": {…}, "counts": {…}}     first: what it is
    {"open": "https://…", "depth": 2, "due": null, "parent": "…", …}         each URL that is not settled
    {"seen": "…24 hex digits…", "fate": "depth"}                              each URL that is
    {"page": {…}}                                                             each page
    {"end": {"open": 3, "seen": 10, "pages": 9}}                              last: it is whole

A settled URL is only known by its hash, so the seed of the hashes goes along and the keys stay what they are.
"""

from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal

import orjson
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from shoal.base.clock import from_micros, to_micros
from shoal.base.errors import InvalidInput
from shoal.base.url import Url, UrlRules, canonical
from shoal.crawl.archive import OpenUrl, SeenKey
from shoal.crawl.crawl import Counts, Crawl, CrawlConfig
from shoal.crawl.fates import Fate
from shoal.crawl.states import CrawlState
from shoal.pages.page import Page

VERSION = 1
FIX = "use a file that Shoal dumped, as it is"
SETTLED = {fate.word: fate for fate in Fate if fate is not Fate.OPEN}
ANY_URL = UrlRules(max_length=65_536, tracking=(), session=())  # what another store's rules let through is let through

_SIGN_64, _SIGN_32 = 1 << 63, 1 << 31
_KEY_PATTERN = r"^[0-9a-f]{24}$"
_HALF_PATTERN = r"^[0-9a-f]{16}$"

Natural = Annotated[int, Field(ge=0, lt=1 << 63)]
Small = Annotated[int, Field(ge=0, le=32_767)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _read_moment(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


Moment = Annotated[AwareDatetime, BeforeValidator(_read_moment)]


class Head(_Line):
    """The first line: the crawl, its keys' seed, and what it had done."""

    class Run(_Line):
        id: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
        state: Annotated[CrawlState, BeforeValidator(CrawlState)]
        state_reason: str | None
        config: CrawlConfig
        named: list[str]
        created_at: Moment
        started_at: Moment | None
        finished_at: Moment | None

    class Tally(_Line):
        opened: Natural
        settled: Natural
        pages: Natural
        errors: Natural
        bytes: Natural
        depth_reached: Small
        skipped: dict[str, Natural]

    shoal_frontier: Literal[1]
    key_seed: str = Field(pattern=_HALF_PATTERN)
    crawl: Run
    counts: Tally

    @property
    def seed(self) -> int:
        return int(self.key_seed, 16) & (_SIGN_64 - 1)

    def tally(self) -> Counts:
        return Counts(**self.counts.model_dump())


class _Open(_Line):
    open: str
    depth: Small
    due: Moment | None
    parent: str | None = Field(pattern=_HALF_PATTERN)
    attempts: Small
    crashes: Small

    def url(self) -> OpenUrl:
        due = 0 if self.due is None else to_micros(self.due)
        parent = None if self.parent is None else int(self.parent, 16) - _SIGN_64
        return OpenUrl(_whole_url(self.open), self.depth, due, parent, self.attempts, self.crashes)


class _Seen(_Line):
    seen: str = Field(pattern=_KEY_PATTERN)
    fate: str

    def key(self) -> SeenKey:
        if self.fate not in SETTLED:
            raise ValueError(f"{self.fate[:50]!r} is not a fate")
        return SeenKey(int(self.seen[:16], 16) - _SIGN_64, int(self.seen[16:], 16) - _SIGN_32, SETTLED[self.fate])


class End(_Line):
    """The last line: how much there was."""

    open: Natural
    seen: Natural
    pages: Natural

    @classmethod
    def of(cls, told: Counter[type]) -> "End":
        return cls(open=told[OpenUrl], seen=told[SeenKey], pages=told[Page])


_PAGE: TypeAdapter[Page] = TypeAdapter(Page)

Thing = Head | OpenUrl | SeenKey | Page | End


def head_line(crawl: Crawl, key_seed: int, counts: Counts) -> bytes:
    run = {
        "id": crawl.id,
        "state": crawl.state,
        "state_reason": crawl.state_reason,
        "config": crawl.config.model_dump(mode="json"),
        "named": sorted(crawl.named),
        **{name: _moment(getattr(crawl, name)) for name in ("created_at", "started_at", "finished_at")},
    }
    return orjson.dumps(
        {"shoal_frontier": VERSION, "key_seed": f"{key_seed:016x}", "crawl": run, "counts": asdict(counts)}
    )


def line_of(thing: OpenUrl | SeenKey | Page) -> bytes:
    match thing:
        case OpenUrl():
            return _open_line(thing)
        case SeenKey():
            key = f"{thing.key + _SIGN_64:016x}{thing.chk + _SIGN_32:08x}"
            return orjson.dumps({"seen": key, "fate": thing.fate.word})
        case Page():
            return orjson.dumps({"page": asdict(thing)})


def _open_line(one: OpenUrl) -> bytes:
    return orjson.dumps(
        {
            "open": one.url,
            "depth": one.depth,
            "due": _moment(one.due or None),
            "parent": None if one.parent is None else f"{one.parent + _SIGN_64:016x}",
            "attempts": one.attempts,
            "crashes": one.crashes,
        }
    )


def end_line(end: End) -> bytes:
    return orjson.dumps({"end": end.model_dump()})


def read(line: bytes | str, number: int) -> Thing:
    """What a line says; refused by its number if it says nothing that we know."""
    try:
        return _read(orjson.loads(line))
    except (orjson.JSONDecodeError, ValidationError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"line {number}", f"cannot be read ({_first(error)})", FIX) from None


def _read(values: Any) -> Thing:
    match values:
        case {"seen": _}:
            return _Seen.model_validate(values).key()
        case {"open": _}:
            return _Open.model_validate(values).url()
        case {"page": dict(page), **rest} if not rest:
            return _PAGE.validate_python(page)
        case {"shoal_frontier": _}:
            return Head.model_validate(values)
        case {"end": dict(end), **rest} if not rest:
            return End.model_validate(end)
        case _:
            raise ValueError("it is none of head, open, seen, page and end")


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def _whole_url(text: str) -> Url:
    url = canonical(text, ANY_URL)
    if url != text:
        raise ValueError(f"{text[:200]!r} is not a canonical URL")
    return Url(text)


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)

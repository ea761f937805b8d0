"""The console: a page that lists crawls and refreshes itself.

The text of every cell is made here, both for the page and for the script that refreshes it; they only display it.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from shoal import __version__
from shoal.access.caller import LOCAL
from shoal.access.scopes import TokenScope
from shoal.base.clock import Clock, SystemClock, from_micros
from shoal.base.request_form import Form, describe
from shoal.base.text import visible
from shoal.crawl.journal.messages import in_words
from shoal.crawl.lifecycle.crawls import Crawls, CrawlStatus
from shoal.crawl.states import CrawlState
from shoal.pages.response_counts import in_words as in_classes
from shoal.serve.authentication import caller_of
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.problems import Json

HERE = Path(__file__).parent
STATIC = HERE / "static"
ROWS = 50
LAST = 2**31 - 1  # the largest number that a crawl can have
Number = Annotated[int, Meta(ge=0, le=LAST)]
LONGEST_SEED = 300
FRESH = {"Cache-Control": "no-store"}

BADGES = {
    CrawlState.PENDING: "Not started",
    CrawlState.QUEUED: "In queue",
    CrawlState.RUNNING: "Running",
    CrawlState.PAUSING: "Pausing",
    CrawlState.PAUSED: "Paused",
    CrawlState.STOPPING: "Stopping",
    CrawlState.STOPPED: "Stopped",
    CrawlState.COMPLETED: "Completed",
    CrawlState.FAILED: "Failed",
}
PLAIN_REASONS = frozenset({None, "asked", "drained"})  # the badge already says so
NOTHING = "\N{EN DASH}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlRow:
    """A crawl as the console shows it. All fields are text, except `link`: a URL that is safe to follow, or None."""

    id: str = ""
    state: str = ""
    badge: str = ""
    reason: str = ""
    seed: str = ""
    link: str | None = None
    more: str = ""
    pages: str = ""
    responses: str = ""
    errors: str = ""
    queued: str = ""
    bytes: str = ""
    took: str = ""
    rate: str = ""
    started: str = ""
    started_exact: str = ""
    started_iso: str = ""


BLANK = CrawlRow()


class ConsoleFeedQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query for a page of rows."""

    after: Annotated[Number | None, describe("Number of the last crawl on the previous page.")] = None


class ConsoleApi:
    """`/`, and the rows that its script fetches."""

    def __init__(self, crawls: Crawls, clock: Clock | None = None) -> None:
        self._crawls = crawls
        self._clock = clock or SystemClock()
        self._page = templates().get_template("crawls.html")

    @endpoint("GET", "/", scope=TokenScope.READ, summary="Show the console.", query=ConsoleFeedQuery, public=False)
    async def show_console(self, request: EndpointRequest[Nothing, ConsoleFeedQuery]) -> HTMLResponse:
        after = request.query.after
        rows, older = await self._rows(after)
        shown = {"rows": rows, "older": older, "summary": summary(rows), "newest": after is None, "blank": BLANK}
        return HTMLResponse(self._page.render(shown, **_about(request.http)), headers=FRESH)

    @endpoint(
        "GET",
        "/console/crawls",
        scope=TokenScope.READ,
        summary="Return the current rows of the console.",
        query=ConsoleFeedQuery,
        public=False,
    )
    async def show_rows(self, request: EndpointRequest[Nothing, ConsoleFeedQuery]) -> Json:
        rows, older = await self._rows(request.query.after)
        answer = {"rows": [asdict(row) for row in rows], "older": older, "summary": summary(rows)}
        return Json(answer, headers=FRESH)

    async def _rows(self, after: int | None) -> tuple[list[CrawlRow], int | None]:
        """Return a page of rows, and where the next one begins if there is one."""
        found = await self._crawls.newest(after=after, limit=ROWS + 1)
        now = self._clock.micros()
        older = found[ROWS - 1].crawl.number if len(found) > ROWS else None
        return [row_of(seen, now) for seen in found[:ROWS]], older


def row_of(seen: CrawlStatus, now: int) -> CrawlRow:
    crawl, counts = seen.crawl, seen.counts
    seed = crawl.config.seeds[0]
    others = len(crawl.config.seeds) - 1
    seconds = _seconds_of(seen, now)
    return CrawlRow(
        id=crawl.id,
        state=crawl.state.value,
        badge=BADGES[crawl.state],
        reason=_reason(crawl.state, crawl.state_reason),
        seed=visible(seed[:LONGEST_SEED]),
        link=seed if seed.lower().startswith(("http://", "https://")) else None,
        more=f"and {others:,} more" if others else "",
        pages=f"{counts.pages:,}",
        responses=in_classes(counts.responses) or NOTHING,
        errors=f"{counts.errors:,}",
        queued=f"{counts.queued:,}",
        bytes=size(counts.bytes),
        took=NOTHING if seconds is None else duration(seconds),
        rate=f"{counts.pages / seconds:,.1f} pages/s" if seconds and counts.pages else "",
        started=NOTHING if crawl.started_at is None else ago((now - crawl.started_at) / 1e6),
        started_exact="" if crawl.started_at is None else f"{from_micros(crawl.started_at):%Y-%m-%d %H:%M:%S} UTC",
        started_iso="" if crawl.started_at is None else f"{from_micros(crawl.started_at):%Y-%m-%dT%H:%M:%SZ}",
    )


def summary(rows: list[CrawlRow]) -> str:
    """Return the number of crawls by state: the line that screen readers announce when it changes."""
    badges = [row.badge for row in rows]
    return ", ".join(f"{badges.count(word)} {word.lower()}" for word in BADGES.values() if word in badges)


def _seconds_of(seen: CrawlStatus, now: int) -> float | None:
    """Return how long the crawl has run; None if unknown, since the time a paused crawl was paused is not stored."""
    crawl = seen.crawl
    if crawl.started_at is None or crawl.state in (CrawlState.PAUSED, CrawlState.QUEUED):
        return None
    return max(0.0, ((crawl.finished_at or now) - crawl.started_at) / 1e6)


def _reason(state: CrawlState, reason: str | None) -> str:
    if state is CrawlState.QUEUED:
        return "waiting for a worker"
    return "" if reason in PLAIN_REASONS else visible(in_words(reason))


def duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 10:
        return f"{max(0.0, seconds):.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} days"


def ago(seconds: float) -> str:
    """Return a coarse age: a cell that changes every second is distracting."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now" if seconds < 10 else f"{int(seconds // 10)}0 s ago"


def size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} TB"


def _about(request: Request) -> dict[str, Any]:
    address = f"{request.url.scheme}://{request.url.netloc}"
    return {"version": __version__, "address": address, "signed_in": caller_of(request).who != LOCAL}


def templates() -> Environment:
    loader = FileSystemLoader(HERE / "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["asset"] = asset
    return environment


def files() -> Mount:
    """Return the mount of the console's static files."""
    return Mount("/static", StaticFiles(directory=STATIC))


def asset(name: str) -> str:
    """Return the URL of a static file; it changes with the content, so that browsers do not use an old copy."""
    return f"/static/{name}?v={crc32((STATIC / name).read_bytes()):08x}"

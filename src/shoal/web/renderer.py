"""The renderer: its contract, a remote one over HTTP, and what it reports and keeps."""

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol
from weakref import WeakSet

from msgspec import DecodeError, Meta, Struct, ValidationError, field, json
from xxhash import xxh3_64_hexdigest

from shoal import __version__
from shoal.base.clock import Clock
from shoal.base.errors import BackendUnavailable, BadConfig, CallerError, TimeError, from_problem
from shoal.base.machine import make_private, open_private
from shoal.base.request_form import Form, describe
from shoal.base.settings import RenderSettings
from shoal.base.signals import Signal
from shoal.base.url import Url, UrlRefusal, UrlRules, canonical
from shoal.egress import AddressRule, Egress, Failure, Limits, Request, Response, endpoint
from shoal.egress.exchange import MOST_HEADERS, check_headers, parse_retry_after

WaitEnd = Literal["load", "settled", "selector", "timeout"]


class RenderCounts(Struct, kw_only=True):
    """The requests that a page made, without the one for the page itself."""

    requests: Annotated[int, describe("Requests that the page tried to make.")] = 0
    refused: Annotated[
        int, describe("Requests refused by robots.txt or the address rule, or because there were too many.")
    ] = 0
    blocked: Annotated[int, describe("Requests that were not sent because of their kind.")] = 0
    bytes: Annotated[int, describe("Bytes received.")] = 0


class RenderedPage(Struct, kw_only=True):
    """A page after its scripts have run."""

    url: Annotated[str, describe("URL after redirects.")]
    status: Annotated[int | None, describe("HTTP status of the page.")]
    headers: Annotated[list[tuple[str, str]], describe("Headers of the response.")] = field(default_factory=list)
    html: Annotated[str, describe("The document after the scripts have run.")] = ""
    is_complete: Annotated[bool, describe("False: the timeout ended the wait, and the page is as it was then.")] = True
    ended: Annotated[
        WaitEnd | None, describe("How the wait ended: `load`, `settled`, `selector` (it matched) or `timeout`.")
    ] = None
    navigations: Annotated[list[str], describe("URLs that scripts tried to open; they were not followed.")] = field(
        default_factory=list
    )
    console_errors: Annotated[list[str], describe("Errors that the console showed.")] = field(default_factory=list)
    seconds: Annotated[float, describe("Duration of the rendering.")] = 0.0
    counts: Annotated[RenderCounts, describe("The requests that the page made.")] = field(default_factory=RenderCounts)
    screenshot: Annotated[bytes | None, describe("The screenshot as PNG, if it was requested.")] = None
    pdf: Annotated[bytes | None, describe("The page as PDF, if it was requested.")] = None


class RenderAnswer(Struct, kw_only=True):
    """The response of the render service: the page, or why it could not be rendered."""

    page: Annotated[RenderedPage | None, describe("The page; null if it could not be rendered.")] = None
    failure: Annotated[Failure | None, describe("Why it could not be rendered.")] = None


Wait = Literal["load", "networkidle", "selector"]
Resource = Literal["images", "fonts", "media"]
Selector = Annotated[str, Meta(min_length=1, max_length=1000)]
Seconds = Annotated[float, Meta(gt=0, le=600)]
Agent = Annotated[str, Meta(min_length=1, max_length=500)]
Label = Annotated[str, Meta(min_length=1, max_length=100)]
MOST_STEPS: Final = 20  # scrolls, or clicks
AS_GIVEN: Final = UrlRules(tracking=(), session=())


class Viewport(Struct, frozen=True, forbid_unknown_fields=True):
    """The size of the window, in CSS pixels."""

    width: Annotated[int, describe("Width.", ge=100, le=4000)] = 1280
    height: Annotated[int, describe("Height.", ge=100, le=4000)] = 800


class RenderCookie(Struct, frozen=True, forbid_unknown_fields=True):
    """A cookie to start with; without a domain, of the page's host."""

    name: Annotated[str, describe("Name of the cookie.", min_length=1, max_length=256)]
    value: Annotated[str, describe("Value of the cookie.", max_length=4096)] = ""
    domain: (
        Annotated[str, describe("Domain of the cookie. Default: the page's host.", min_length=1, max_length=253)] | None
    ) = None
    path: Annotated[str, describe("Path prefix to which it is sent.", max_length=1024)] = "/"


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """The response to the page's own request, which was fetched already: the browser does not request it again."""

    status: Annotated[int, describe("HTTP status.", ge=200, le=599)]
    headers: Annotated[list[tuple[str, str]], describe("Headers.", max_length=1000)]
    body: Annotated[bytes, describe("Body, in base64.")]


def usable_url(text: str) -> str:
    url = canonical(text, AS_GIVEN)
    if isinstance(url, UrlRefusal):
        raise ValueError(url.problem)
    return url


class RenderRequest(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page to render."""

    url: Annotated[str, describe("URL of the page.", min_length=1, max_length=10_000)]
    wait: Annotated[
        Wait,
        describe("Read the page after its load event, once it has settled, or once `selector` matches."),
    ] = "load"
    selector: Annotated[Selector | None, describe("CSS selector to wait for; for `wait: selector`.")] = None
    timeout: Annotated[
        Seconds | None, describe("Seconds after which the page is read as it is; SHOAL_RENDER_TIMEOUT limits it.")
    ] = None
    headers: Annotated[
        dict[str, str], describe("Extra request headers, sent to the origin of the page only.", max_length=MOST_HEADERS)
    ] = {}
    cookies: Annotated[
        list[RenderCookie], describe("Cookies to start with: {name, value, domain, path}.", max_length=200)
    ] = []
    user_agent: Annotated[
        Agent | None, describe("User-Agent header; robots.txt rules are those for SHOAL_USER_AGENT.")
    ] = None
    viewport: Annotated[Viewport, describe("Size of the window: {width, height}.")] = Viewport()
    screenshot: Annotated[bool, describe("Return a picture of the page as PNG, in base64.")] = False
    pdf: Annotated[bool, describe("Return the page as PDF, in base64.")] = False
    block: Annotated[list[Resource], describe("Kinds of resources not to load.", max_length=3)] = []
    scroll: Annotated[bool, describe(f"Scroll to the end first, at most {MOST_STEPS} times while the page grows.")] = (
        False
    )
    click: Annotated[
        Selector | None, describe(f"Click this element first, again while it is there, at most {MOST_STEPS} times.")
    ] = None
    robots: Annotated[Literal["obey", "ignore"], describe("Whether the requests of the page obey robots.txt.")] = "obey"
    connections: Annotated[int, describe("Concurrent requests per origin.", ge=1, le=100)] = 6
    proxy: Annotated[Label | None, describe("Label of a configured proxy.")] = None
    document: Annotated[
        Document | None,
        describe("The page's own response if it was fetched already: {status, headers, body in base64}."),
    ] = None

    unquoted = frozenset({"headers", "cookies", "document"})
    checks = {"url": usable_url, "headers": check_headers}


class BrowserOwner(Protocol):
    """A part of this process that has browsers."""

    @property
    def browsers(self) -> int:
        """The number of browsers that run in this process."""
        ...

    @property
    def active(self) -> int:
        """The number of pages in them."""
        ...

    async def restart(self) -> None:
        """Replace the browsers that run. Pages in progress start again in the new ones; no attempt is counted. Raises
        `BadConfig` if no new one can be started."""
        ...


class Renderer(BrowserOwner, Protocol):
    """Renders pages. A service has browsers, too, but they are not ours to count."""

    async def render(self, request: RenderRequest) -> RenderedPage | Failure:
        """Render one page; a page that cannot be rendered is a failure, not an exception.

        Raises `RateLimited` or `BackendUnavailable` if the page was not tried: that is not the page's fault, and the
        caller tries again later without counting an attempt. A cancelled call stops the page.
        """
        ...

    def abort(self) -> None:
        """End everything immediately, for a process that is about to exit."""
        ...

    async def close(self) -> None:
        """End the browsers, and the pages that they render."""
        ...


BEYOND: Final = timedelta(seconds=60)  # for the queue of the service, and to send the answer
LARGEST_ANSWER: Final = 256_000_000
FIX: Final = "check that it is running and that RENDERER_URL is correct"


class RemoteRenderer:
    """Renders pages on a service that the operator named."""

    browsers = active = 0  # in this process

    def __init__(self, settings: RenderSettings, clock: Clock) -> None:
        url = canonical(settings.url)
        if isinstance(url, UrlRefusal):
            raise BadConfig("RENDERER_URL", url.problem, "write it as http://renderer:3000")
        self._base = url.rstrip("/")
        self._clock = clock
        login = (("Authorization", f"Bearer {settings.token}"),) if settings.token else ()
        self._headers = (*login, ("Content-Type", "application/json"), ("User-Agent", f"Shoal/{__version__}"))
        wait = settings.timeout + BEYOND
        self._limits = Limits(total_timeout=wait, idle_timeout=wait, max_body_bytes=LARGEST_ANSWER)
        self._egress = Egress(AddressRule(named=frozenset([endpoint(url)])), clock=clock)

    async def render(self, request: RenderRequest) -> RenderedPage | Failure:
        answer = await self._post("/render", json.encode(request))
        if answer.failure is not None:
            return answer.failure
        if answer.page is None:
            raise BackendUnavailable("the renderer", "its answer has no page", FIX)
        return answer.page

    async def restart(self) -> None:
        await self._post("/restart", b"{}")

    def abort(self) -> None:
        self._egress.close()

    async def close(self) -> None:
        self._egress.close()

    async def _post(self, path: str, body: bytes) -> RenderAnswer:
        outcome = await self._egress.fetch(Request(f"{self._base}{path}", "POST", self._headers, body, self._limits))
        if not isinstance(outcome, Response):
            raise BackendUnavailable("the renderer", outcome.message.rstrip("."), FIX)
        if outcome.status >= 400:
            raise self._refusal(outcome)
        if outcome.status == 204:
            return RenderAnswer()
        try:
            return json.decode(outcome.raw, type=RenderAnswer)
        except (DecodeError, ValidationError):
            raise BackendUnavailable("the renderer", "the response is not that of a renderer", FIX) from None

    def _refusal(self, response: Response) -> Exception:
        """Return the error of the service. Errors that are not the page's fault are temporary, so the page is
        retried."""
        try:
            problem = json.decode(response.raw, type=dict[str, object])
        except DecodeError:
            problem = {}
        error = from_problem(problem, response.status)
        asked = parse_retry_after(response.headers.get("retry-after"), self._clock.now(), timedelta(hours=1))
        if isinstance(error, TimeError):
            if asked is not None:
                error.facts["retry_after_seconds"] = asked.total_seconds()
            return error
        if isinstance(error, CallerError) and response.status in (401, 403):
            return BadConfig("SHOAL_RENDERER_TOKEN", "was refused by the renderer", "set it to the renderer's token")
        return BackendUnavailable("the renderer", error.message.rstrip("."), FIX)


class BrowserStarted(Signal, frozen=True, kw_only=True):
    """A browser was started. Without a sandbox, a page that breaks out of the browser has the rights of this user."""

    pid: int
    sandbox: bool
    seconds: float


class BrowserEnded(Signal, frozen=True, kw_only=True):
    """A browser was closed (`recycled`, `restarted`, `closed`), or replaced because it crashed or hung."""

    pid: int
    how: str
    pages: int


class BrowsersReaped(Signal, frozen=True, kw_only=True):
    """Browsers that a killed process had left behind were ended."""

    count: int


class PageRendered(Signal, frozen=True, kw_only=True, tag=True):
    """A page was rendered, or could not be: `outcome` is `rendered` or the code of the failure."""

    outcome: str
    seconds: float
    requests: int


LONGEST_NAME = 100


def file_name(url: Url) -> str:
    """Return a file name that a person recognizes, and that differs from those of all other URLs."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", url.partition("://")[2]).strip("-")[:LONGEST_NAME]
    return f"{readable}-{xxh3_64_hexdigest(url.encode())}.png"


async def save_screenshot(folder: Path, url: Url, picture: bytes) -> None:
    """Write the picture of a page; raise `BadConfig` if the folder cannot be written to."""

    def write() -> None:
        make_private(folder)
        with open(folder / file_name(url), "wb", opener=open_private) as file:
            file.write(picture)

    try:
        await asyncio.to_thread(write)
    except OSError as error:
        why = error.strerror or str(error)
        raise BadConfig("SHOAL_SCREENSHOTS", f"cannot be written to ({why})", "choose a writable folder") from None


class LocalBrowsers:
    """All browsers of this process. An owner is forgotten when nothing else refers to it."""

    def __init__(self) -> None:
        self._owners: WeakSet[BrowserOwner] = WeakSet()

    def add(self, owner: BrowserOwner) -> None:
        self._owners.add(owner)

    @property
    def browsers(self) -> int:
        return sum(owner.browsers for owner in self._owners)

    @property
    def pages(self) -> int:
        """The number of pages in the browsers."""
        return sum(owner.active for owner in self._owners)

    async def restart(self) -> None:
        for owner in list(self._owners):
            await owner.restart()

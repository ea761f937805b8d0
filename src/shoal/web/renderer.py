"""The renderer: its interface, a remote renderer over HTTP, its signals, and the screenshots it saves."""

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
    """The requests that a page made, without the request for the page itself."""

    requests: Annotated[int, describe("Requests that the page tried to make.")] = 0
    refused: Annotated[int, describe("Requests refused because of robots.txt, the address rule, or their number.")] = 0
    blocked: Annotated[int, describe("Requests that were not sent because `block` names their kind.")] = 0
    bytes: Annotated[int, describe("Bytes received.")] = 0


class RenderedPage(Struct, kw_only=True):
    """A page after its scripts have run."""

    url: Annotated[str, describe("URL after redirects.")]
    status: Annotated[int | None, describe("HTTP status of the page.")]
    headers: Annotated[list[tuple[str, str]], describe("Headers of the response.")] = field(default_factory=list)
    html: Annotated[str, describe("The document after the scripts have run.")] = ""
    is_complete: Annotated[bool, describe("False if the page was read because of the timeout.")] = True
    ended: Annotated[
        WaitEnd | None, describe("What ended the wait: `load`, `settled`, `selector` (it matched) or `timeout`.")
    ] = None
    navigations: Annotated[list[str], describe("URLs that scripts tried to open; they were not followed.")] = field(
        default_factory=list
    )
    console_errors: Annotated[list[str], describe("Errors in the browser console.")] = field(default_factory=list)
    seconds: Annotated[float, describe("Duration of the rendering.")] = 0.0
    counts: Annotated[RenderCounts, describe("The requests that the page made.")] = field(default_factory=RenderCounts)
    screenshot: Annotated[bytes | None, describe("The screenshot as PNG, if it was requested.")] = None
    pdf: Annotated[bytes | None, describe("The page as PDF, if it was requested.")] = None


class RenderAnswer(Struct, kw_only=True):
    """The response of the render service: the page, or the reason why it could not be rendered."""

    page: Annotated[RenderedPage | None, describe("The page; null if it could not be rendered.")] = None
    failure: Annotated[Failure | None, describe("The reason why the page could not be rendered.")] = None


Wait = Literal["load", "networkidle", "selector"]
Resource = Literal["images", "fonts", "media"]
Selector = Annotated[str, Meta(min_length=1, max_length=1000)]
Seconds = Annotated[float, Meta(gt=0, le=600)]
Agent = Annotated[str, Meta(min_length=1, max_length=500)]
Label = Annotated[str, Meta(min_length=1, max_length=100)]
MOST_STEPS: Final = 20  # maximum number of scrolls, and of clicks
AS_GIVEN: Final = UrlRules(tracking=(), session=())


class Viewport(Struct, frozen=True, forbid_unknown_fields=True):
    """The size of the window, in CSS pixels."""

    width: Annotated[int, describe("Width.", ge=100, le=4000)] = 1280
    height: Annotated[int, describe("Height.", ge=100, le=4000)] = 800


class RenderCookie(Struct, frozen=True, forbid_unknown_fields=True):
    """A cookie to start with. A cookie without a domain belongs to the page's host."""

    name: Annotated[str, describe("Name of the cookie.", min_length=1, max_length=256)]
    value: Annotated[str, describe("Value of the cookie.", max_length=4096)] = ""
    domain: (
        Annotated[str, describe("Domain of the cookie. Default: the page's host.", min_length=1, max_length=253)] | None
    ) = None
    path: Annotated[str, describe("Path prefix to which the cookie is sent.", max_length=1024)] = "/"


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """The response to the page's own request. It was already fetched, so the browser does not request the page
    again."""

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
        describe(
            "When to read the page: `load` (after its load event), `networkidle` (once it has settled) or"
            " `selector` (once `selector` matches)."
        ),
    ] = "load"
    selector: Annotated[Selector | None, describe("CSS selector to wait for with `wait: selector`.")] = None
    timeout: Annotated[
        Seconds | None,
        describe("Read the page as it is after this many seconds, but not later than after `SHOAL_RENDER_TIMEOUT`."),
    ] = None
    headers: Annotated[
        dict[str, str], describe("Extra request headers, sent only to the page's origin.", max_length=MOST_HEADERS)
    ] = {}
    cookies: Annotated[
        list[RenderCookie], describe("Cookies to start with: {name, value, domain, path}.", max_length=200)
    ] = []
    user_agent: Annotated[
        Agent | None, describe("User-Agent header. The robots.txt rules for `SHOAL_USER_AGENT` still apply.")
    ] = None
    viewport: Annotated[Viewport, describe("Size of the window: {width, height}.")] = Viewport()
    screenshot: Annotated[bool, describe("Return a picture of the page as PNG, in base64.")] = False
    pdf: Annotated[bool, describe("Return the page as PDF, in base64.")] = False
    block: Annotated[list[Resource], describe("Kinds of resources not to load.", max_length=3)] = []
    scroll: Annotated[
        bool, describe(f"Before the page is read, scroll to its end while it grows, at most {MOST_STEPS} times.")
    ] = False
    click: Annotated[
        Selector | None,
        describe(f"Before the page is read, click this element until it is gone, at most {MOST_STEPS} times."),
    ] = None
    robots: Annotated[Literal["obey", "ignore"], describe("Whether the requests of the page obey robots.txt.")] = "obey"
    connections: Annotated[int, describe("Concurrent requests per origin.", ge=1, le=100)] = 6
    proxy: Annotated[Label | None, describe("Label of a configured proxy.")] = None
    document: Annotated[
        Document | None,
        describe("The response for the page itself, if already fetched: {status, headers, body in base64}."),
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
        """The number of pages in these browsers."""
        ...

    async def restart(self) -> None:
        """Replace the running browsers. Pages in progress start again in the new browsers; no attempt is counted.
        Raises `BadConfig` if no new browser can be started."""
        ...


class Renderer(BrowserOwner, Protocol):
    """Renders pages. A render service has browsers, too, but they are not counted here."""

    async def render(self, request: RenderRequest) -> RenderedPage | Failure:
        """Render one page. If the page cannot be rendered, return a failure instead of raising an exception.

        Raises `RateLimited` or `BackendUnavailable` if the page was not tried. That is not the page's fault, so the
        caller tries again later without counting an attempt. Cancelling the call stops the page.
        """
        ...

    def abort(self) -> None:
        """End everything immediately, for a process that is about to exit."""
        ...

    async def close(self) -> None:
        """End the browsers and their pages."""
        ...


BEYOND: Final = timedelta(seconds=60)  # extra time for the queue of the service, and for sending the response
LARGEST_ANSWER: Final = 256_000_000
FIX: Final = "check that it is running and that RENDERER_URL is correct"


class RemoteRenderer:
    """Renders pages on a service that the operator named."""

    browsers = active = 0  # this process has no browsers

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
            raise BackendUnavailable("the renderer", "its response contains no page", FIX)
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
            raise BackendUnavailable("the renderer", "its response is not a renderer's response", FIX) from None

    def _refusal(self, response: Response) -> Exception:
        """Return the exception for an error of the service. Errors that are not the page's fault are temporary, so the
        page is retried."""
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
    """A page was rendered or could not be rendered. `outcome` is `rendered` or the failure's code."""

    outcome: str
    seconds: float
    requests: int


LONGEST_NAME = 100


def file_name(url: Url) -> str:
    """Return a file name that a person recognizes, and that is unique to this URL."""
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
    """All browsers of this process. A browser owner is forgotten when nothing else refers to it."""

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

"""The contract of renderers: the request to render a page, its result, and who renders: a pool of browsers in this
process (`pool`) or a render service (`remote_renderer`). A page that could not be rendered is a `Failure`, as for any
other fetch."""

from typing import Annotated, Final, Literal, Protocol

from msgspec import Meta, Struct, field

from shoal.base.request_form import Form, describe
from shoal.base.url import UrlRefusal, UrlRules, canonical
from shoal.egress import Failure
from shoal.egress.exchange import MOST_HEADERS, check_headers


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
    navigations: Annotated[list[str], describe("URLs that scripts tried to open; they were not followed.")] = field(
        default_factory=list
    )
    console_errors: Annotated[list[str], describe("Errors that the console showed.")] = field(default_factory=list)
    seconds: Annotated[float, describe("Duration of the rendering.")] = 0.0
    counts: Annotated[RenderCounts, describe("The requests that the page made.")] = field(default_factory=RenderCounts)
    screenshot: Annotated[bytes | None, describe("The screenshot as PNG, if it was requested.")] = None
    pdf: Annotated[bytes | None, describe("The page as PDF, if it was requested.")] = None


class RenderAnswer(Struct, kw_only=True):
    """The answer of the render service: the page, or why it could not be rendered."""

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
        describe("Read the page after its load event, once its requests have ended, or once `selector` matches."),
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
    user_agent: Annotated[Agent | None, describe("User-Agent header; robots.txt is read as SHOAL_USER_AGENT.")] = None
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


class Renderer(Protocol):
    """Renders pages. A service has browsers, too, but they are not ours to count."""

    @property
    def browsers(self) -> int:
        """The number of browsers that run in this process."""
        ...

    @property
    def active(self) -> int:
        """The number of pages in them."""
        ...

    async def render(self, request: RenderRequest) -> RenderedPage | Failure:
        """Render one page; a page that cannot be rendered is a failure, not an exception.

        Raises `RateLimited` or `BackendUnavailable` if the page was not tried: that is not the page's fault, and the
        caller tries again later without counting an attempt. A cancelled call stops the page.
        """
        ...

    async def restart(self) -> None:
        """Replace the browsers that run. Pages in progress start again in the new ones; no attempt is counted. Raises
        `BadConfig` if no new one can be started."""
        ...

    def abort(self) -> None:
        """End everything at once, for a process that is about to exit."""
        ...

    async def close(self) -> None:
        """End the browsers, and the pages that they render."""
        ...

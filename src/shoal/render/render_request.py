"""The request to render a page, for the render service and for the pool behind it."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from shoal.base.request_form import Form, describe
from shoal.base.url import UrlRefusal, UrlRules, canonical
from shoal.egress.custom_headers import MOST_HEADERS, check_headers

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

    width: Annotated[int, Meta(ge=100, le=4000)] = 1280
    height: Annotated[int, Meta(ge=100, le=4000)] = 800


class RenderCookie(Struct, frozen=True, forbid_unknown_fields=True):
    """A cookie to start with; without a domain, of the page's host."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    value: Annotated[str, Meta(max_length=4096)] = ""
    domain: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    path: Annotated[str, Meta(max_length=1024)] = "/"


class Document(Struct, frozen=True, forbid_unknown_fields=True):
    """The response to the page's own request, which was fetched already: the browser does not request it again."""

    status: Annotated[int, Meta(ge=200, le=599)]
    headers: Annotated[list[tuple[str, str]], Meta(max_length=1000)]
    body: bytes


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

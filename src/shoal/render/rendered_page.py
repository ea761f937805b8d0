"""The result of rendering a page. A page that could not be rendered is a `Failure`, as for any other fetch."""

from msgspec import Struct, field

from shoal.egress import Failure


class RenderCounts(Struct, kw_only=True):
    """The requests that a page made, without the one for the page itself."""

    requests: int = 0  # requests that it tried to make
    refused: int = 0  # refused by robots.txt or the address rule, or because the page had made too many
    blocked: int = 0  # not loaded because of their kind
    bytes: int = 0  # received


class RenderedPage(Struct, kw_only=True):
    """A page after its scripts have run."""

    url: str  # after redirects
    status: int | None
    headers: list[tuple[str, str]] = field(default_factory=list)
    html: str = ""
    is_complete: bool = True  # False: the timeout ended the wait, and the page is as it was then
    navigations: list[str] = field(default_factory=list)  # URLs that scripts tried to open; not followed
    console_errors: list[str] = field(default_factory=list)
    seconds: float = 0.0
    counts: RenderCounts = field(default_factory=RenderCounts)
    screenshot: bytes | None = None
    pdf: bytes | None = None


class RenderAnswer(Struct, kw_only=True):
    """The answer of the render service: the page, or why it could not be rendered."""

    page: RenderedPage | None = None
    failure: Failure | None = None

"""The contract of renderers: a pool of browsers in this process (`pool`), or a render service (`remote_renderer`)."""

from typing import Protocol

from shoal.egress import Failure
from shoal.render.render_request import RenderRequest
from shoal.render.rendered_page import RenderedPage


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

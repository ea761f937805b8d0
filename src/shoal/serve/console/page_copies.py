"""The copies kept of a page beside its record: the response as the server sent it, and a picture."""

import asyncio
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.base.url import Url
from shoal.egress import Response
from shoal.pages.bodies import BodyStore, answer_of
from shoal.pages.page import Page
from shoal.web.renderer import file_name


class PageCopies:
    """Finds the copies of pages. Pictures are found if this controller shares the folder of its workers."""

    def __init__(self, bodies: BodyStore, screenshots: Path | None) -> None:
        self._bodies = bodies
        self._screenshots = screenshots

    async def response(self, page: Page) -> Response | None:
        """Return the stored response; None if there is none, or if it is gone."""
        try:
            return await answer_of(self._bodies, page)
        except ShoalError:
            return None

    async def screenshot(self, page: Page) -> bytes | None:
        """Return the picture of a rendered page as PNG; None if there is none."""
        if self._screenshots is None or not page.rendered:
            return None
        path = self._screenshots / file_name(Url(page.url))
        try:
            return await asyncio.to_thread(path.read_bytes)
        except OSError:
            return None

"""Filter the pages of an export by status."""

import re
from collections.abc import Sequence

from shoal.base.errors import InvalidInput
from shoal.base.text import shorten
from shoal.pages.page import Page

ERROR = "error"
_WORD = re.compile(r"[1-9](\d\d|xx)|error")


class ExportFilter:
    """Accepts pages with one of the given statuses: `200`, `4xx`, or `error` for any error. None given: all pages."""

    def __init__(self, words: Sequence[str]) -> None:
        for word in words:
            if not _WORD.fullmatch(word):
                raise InvalidInput(
                    "--status", f"{shorten(word)!r} is not a status", "use one such as 404, 4xx, or error"
                )
        self.words = frozenset(words)

    def __call__(self, page: Page) -> bool:
        if not self.words or (page.error_code is not None and ERROR in self.words):
            return True
        status = str(page.status)
        return status in self.words or f"{status[0]}xx" in self.words

"""What is read from a page beyond its facts, because its crawl asked for it: details for analyses."""

from dataclasses import dataclass

from shoal.extract.details import packed, read_details
from shoal.extract.source import Source


@dataclass(slots=True)
class Further:
    """What was read. `detail` is packed, as it is stored."""

    detail: bytes | None = None


class FurtherReader:
    """Reads the pages of one crawl. A crawl that asks for nothing has none of these."""

    def __init__(self, *, analyze: bool) -> None:
        self._analyze = analyze

    def read(self, source: Source, *, html: bool) -> Further:
        """All that was asked for; never raises, whatever the page is."""
        further = Further()
        if self._analyze:
            further.detail = packed(read_details(source, html=html))
        return further

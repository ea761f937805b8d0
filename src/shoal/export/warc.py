"""Export pages as a WARC file with a CDXJ index. The stored records are copied unchanged."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shoal import __version__
from shoal.egress import Limits
from shoal.export.cdxj import SortedLines, line_of
from shoal.export.part_file import PartFile
from shoal.pages import warc
from shoal.pages.bodies import BodyLocation, place_of
from shoal.pages.page import Page

ENDING = ".warc.gz"
INDEX_ENDING = ".cdxj"
INDEXED = "response"  # a 304 has nothing to replay: the response that is still valid precedes it


class WarcOutput:
    """`x.warc.gz` with its index `x.cdxj`. Pages without a response are not included."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._file = PartFile(name)
        self._index = PartFile(name.removesuffix(ENDING) + INDEX_ENDING)
        self._lines = SortedLines(Path(name).parent)
        self._end = 0

    @property
    def locations(self) -> str:
        return self._file.locations

    def check(self) -> None:
        self._file.check()
        self._index.check()

    def open(self, crawl_id: str, at: int, limits: Limits) -> None:
        self._file.begin()
        self._index.begin()
        self._lines = SortedLines(Path(self.name).parent)
        facts = [("software", f"Shoal/{__version__}"), ("isPartOf", crawl_id)]
        info = warc.info_member(self._file_name, at, facts)
        self._file.write([info])
        self._end = len(info)

    def write(self, pages: Sequence[Page], bodies: Mapping[BodyLocation, bytes]) -> None:
        runs = [bodies[place] for page in pages if (place := place_of(page))]
        self._lines.add(self._indexed(runs))
        self._file.write(runs)

    def complete(self) -> None:
        self._index.write(self._lines.all())
        self._file.complete()
        self._index.complete()  # last, so that an index never refers to a missing archive

    def leave(self) -> None:
        self._index.leave()
        self._file.leave()

    @property
    def _file_name(self) -> str:
        return Path(self.name).name

    def _indexed(self, runs: list[bytes]) -> Iterator[bytes]:
        file_name = self._file_name
        for run in runs:
            for piece in warc.pieces(run):
                member = run[piece.offset : piece.offset + piece.length]
                if warc.kind_of(member) == INDEXED:
                    yield line_of(warc.read_head(member), file_name, self._end + piece.offset, piece.length)
            self._end += len(run)

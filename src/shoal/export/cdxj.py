"""Write the CDXJ index of a WARC file: one line per response, sorted by SURT key."""

import heapq
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Final

import orjson

from shoal.egress import Headers
from shoal.export.part_file import translated
from shoal.export.surt import surt
from shoal.pages.warc import Record

MOST_LINES: Final = 200_000  # in memory


def line_of(record: Record, file_name: str, offset: int, length: int) -> bytes:
    fields = record.fields
    url = fields["warc-target-uri"]
    head = Headers(record.http()[0])
    entry = {
        "url": url,
        "mime": _mime(head),
        "status": head.block[9:12].decode("latin-1"),
        "digest": fields.get("warc-payload-digest", "-"),
        "length": str(length),
        "offset": str(offset),
        "filename": file_name,
    }
    moment = "".join(character for character in fields["warc-date"] if character.isdecimal())[:14]
    return f"{surt(url)} {moment} ".encode("utf-8", "replace") + orjson.dumps(entry) + b"\n"


def _mime(head: Headers) -> str:
    """Return the media type without parameters; `unk`, as in other CDX indexes, if there is none."""
    words = (head.get("content-type") or "").partition(";")[0].split()
    return words[0].lower() if words else "unk"


class SortedLines:
    """External sort: takes lines in any order, yields them in byte order. Excess lines spill to temporary files."""

    def __init__(self, folder: Path, most: int = MOST_LINES) -> None:
        self._folder = folder
        self._most = most
        self._lines: list[bytes] = []
        self._runs: list[IO[bytes]] = []

    def add(self, lines: Iterable[bytes]) -> None:
        lines = iter(lines)
        while some := list(islice(lines, self._most - len(self._lines))):
            self._lines += some
            if len(self._lines) >= self._most:
                self._put_aside()

    def all(self) -> Iterator[bytes]:
        """Yield all lines in order, then clear them."""
        self._lines.sort()
        for run in self._runs:
            run.seek(0)
        yield from heapq.merge(self._lines, *self._runs)
        for run in self._runs:
            run.close()
        self._lines, self._runs = [], []

    def _put_aside(self) -> None:
        try:
            run = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - it is closed after the merge
            run.writelines(sorted(self._lines))
            run.flush()
        except OSError as error:
            raise translated(str(self._folder), error) from error
        self._runs.append(run)
        self._lines = []

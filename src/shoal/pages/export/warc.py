"""Pages as WARC files, with an index of their URLs (CDXJ) sorted by SURT."""

import heapq
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlsplit

import orjson

from shoal import __version__
from shoal.egress import Headers, Limits
from shoal.pages import warc
from shoal.pages.bodies import BodyLocation, place_of
from shoal.pages.export.output import LARGEST_RECORD
from shoal.pages.export.part_file import PartFile, check_replace, ends_of, translated
from shoal.pages.page import Page
from shoal.pages.warc import Record

_WWW: Final = re.compile(r"^www\d*\.")
_PORTS: Final = {"http": 80, "https": 443}
_KEPT: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "").replace("#", "")
_SESSION_IN_QUERY: Final = re.compile(
    r"(?:^|(?<=&))(?:(?:jsessionid|phpsessid|sid)=[0-9a-z]{32}|aspsessionid[a-z]{8}=[a-z]{24}|cfid=[^&]+&cftoken=[^&]+)"
    r"(?:&|$)"
)
_SESSION_IN_PATH: Final = re.compile(
    r"/\((?:[a-z]\([0-9a-z]{24}\))+\)(?=/[^?]+\.aspx)|/\([0-9a-z]{24}\)(?=/[^?]+\.aspx)"
)
_MOST_ROUNDS: Final = 8


def surt(url: str) -> str:
    parts = urlsplit(url)
    host = _WWW.sub("", (parts.hostname or "").lower().rstrip("."))
    place = host if ":" in host else ",".join(reversed(host.split(".")))
    port = "" if parts.port in (None, _PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"{place}{port}){_path(parts.path)}{_query(parts.query)}"


def _path(path: str) -> str:
    steps: list[str] = []
    for step in _plainest(path).split("/"):
        if step == "..":
            del steps[-1:]
        elif step not in ("", "."):
            steps.append(step)
    return _SESSION_IN_PATH.sub("", ("/" + "/".join(steps)).lower())


def _query(query: str) -> str:
    query = _SESSION_IN_QUERY.sub("", _plainest(query).lower())
    pairs = sorted(part.partition("=") for part in query.split("&"))
    query = "&".join("".join(pair) for pair in pairs)
    return f"?{query}" if query else ""


def _plainest(text: str) -> str:
    """Undo repeated percent-encoding, then escape only what must be escaped."""
    plain = text.encode("utf-8", "replace")
    for _ in range(_MOST_ROUNDS):
        before, plain = plain, unquote_to_bytes(plain)
        if plain == before:
            break
    return quote_from_bytes(plain, _KEPT)


MOST_LINES: Final = 200_000  # lines in memory


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
    """External sort: accepts lines in any order and yields them in byte order. Excess lines spill to temporary
    files."""

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


def is_archive(name: str) -> bool:
    """Return whether a WARC file is empty, or begins with a record that names Shoal."""
    try:
        with Path(name).open("rb") as file:
            first = file.read(LARGEST_RECORD)
        return not first or b"software: Shoal/" in zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(first, 10_000)
    except (OSError, zlib.error):
        return False


ENDING = ".warc.gz"
INDEX_ENDING = ".cdxj"
INDEX_BEGIN = re.compile(rb"\S+ \d{14} \{")
INDEXED = "response"  # a 304 has no content to replay; the response that is still valid precedes it


class WarcOutput:
    """`x.warc.gz` with its index `x.cdxj`. Pages without a response are not included."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._file_name = Path(name).name
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
        name = self._index.name
        check_replace(name, lambda: INDEX_BEGIN.match(ends_of(name)) is not None)

    def may_replace(self) -> bool:
        return is_archive(self.name)

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
        self._index.complete()  # the index is completed last, so that it never refers to a missing archive

    def leave(self) -> None:
        self._index.leave()
        self._file.leave()

    def _indexed(self, runs: list[bytes]) -> Iterator[bytes]:
        for run in runs:
            for piece in warc.pieces(run):
                member = run[piece.offset : piece.offset + piece.length]
                if warc.kind_of(member) == INDEXED:
                    yield line_of(warc.read_head(member), self._file_name, self._end + piece.offset, piece.length)
            self._end += len(run)

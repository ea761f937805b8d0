"""Export pages to a folder of Markdown files: one per page, with front matter and main text, and an index.

The folder is named x.md.part until it is complete. Only empty folders and folders that this module wrote are replaced.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO
from urllib.parse import unquote, urlsplit

import orjson
import xxhash

from shoal.base.machine import sync_folder
from shoal.egress import Failure, Limits
from shoal.extract.content import Content
from shoal.extract.tree import Source
from shoal.pages.bodies import BodyLocation, place_of, source_in
from shoal.pages.export.part_file import check_place, translated, unusable
from shoal.pages.page import Page

INDEX: Final = "index.md"
MARK: Final = "<!-- made by shoal -->"
LEFT_OUT: Final = frozenset({"crawl_id", "bytes", "duration_ms", "attempt", "rendered"})
AS_SENT: Final = "<!-- made from the page as it was sent: its crawl did not store the rendered document -->"
LONGEST_NAME: Final = 80
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>])")


class MarkdownFolder:
    """The output folder `x.md/`, with a subfolder per host."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._folder = Path(name)
        self._part = Path(f"{name}.part")
        self._index: TextIO | None = None
        self._crawl_id = ""
        self._limits = Limits()
        check_place(name)
        self._check_replaceable(self._folder)

    @property
    def locations(self) -> str:
        return self.name if self._index is None else str(self._part)

    def check(self) -> None:
        self._check_replaceable(self._part)

    def may_replace(self) -> bool:
        return True  # checked when the folder was named

    def open(self, crawl_id: str, at: int, limits: Limits) -> None:
        self._crawl_id = crawl_id
        self._limits = limits
        try:
            if self._part.exists():
                shutil.rmtree(self._part)
            self._part.mkdir()
            self._index = (self._part / INDEX).open("w", encoding="utf-8", errors="replace")
            self._index.write(f"{MARK}\n# {crawl_id}\n\n")
            self._index.flush()
        except OSError as error:
            raise self._failed(error) from error

    def write(self, pages: Sequence[Page], bodies: Mapping[BodyLocation, bytes]) -> None:
        assert self._index is not None
        try:
            for page in pages:
                self._index.write(self._write_page(page, bodies))
            self._index.flush()
        except OSError as error:
            raise self._failed(error) from error

    def complete(self) -> None:
        assert self._index is not None
        try:
            self._index.close()
            if self._folder.exists():
                shutil.rmtree(self._folder)
            self._part.replace(self._folder)
            sync_folder(self._folder.parent)
        except OSError as error:
            raise self._failed(error) from error
        self._index = None

    def leave(self) -> None:
        if self._index is None:
            return
        try:
            self._index.close()
        except OSError:  # already reported by the write that failed
            return

    def _write_page(self, page: Page, bodies: Mapping[BodyLocation, bytes]) -> str:
        """Write a page's file and return its line for the index."""
        name = file_name(page.url)
        path = self._part / name
        path.parent.mkdir(exist_ok=True)
        place = place_of(page)
        text = "" if place is None else text_of(source_in(bodies[place], place, self._limits), page)
        path.write_text(f"{front_matter(page, self._crawl_id)}\n{text}", encoding="utf-8", errors="replace")
        return f"- [{_escaped(page.title or page.url)}]({name})\n"

    def _check_replaceable(self, folder: Path) -> None:
        """Reject an existing path, unless it is an empty folder or a folder that this module wrote."""
        if not folder.exists():
            return
        fix = "Markdown is written to a folder: choose one that does not exist"
        if not folder.is_dir():
            raise unusable(self.name, f"{folder} is a file", fix)
        if any(folder.iterdir()) and not _is_ours(folder):
            raise unusable(self.name, f"{folder} contains other files", fix)

    def _failed(self, error: OSError) -> Exception:
        return translated(str(self._part), error)


def _is_ours(folder: Path) -> bool:
    """Return whether the index starts with our mark, or with part of it if writing was interrupted there."""
    try:
        with (folder / INDEX).open("rb") as index:
            found = index.read(len(MARK))
    except OSError:
        return False
    mark = MARK.encode()
    return found == mark or (mark.startswith(found) and [path.name for path in folder.iterdir()] == [INDEX])


def file_name(url: str) -> str:
    """Return the path of a page below its host's folder: readable, safe on every system, and unique per URL."""
    parts = urlsplit(url)
    words = _UNSAFE.sub("-", unquote(parts.path)).strip("-.") or "index"
    host = _UNSAFE.sub("_", parts.netloc.rpartition("@")[2]).strip(".") or "_"
    if host == INDEX:
        host += "_"  # index.md is a valid domain name, which would collide with the index file
    return f"{host[:LONGEST_NAME]}/{words[:LONGEST_NAME]}-{xxhash.xxh3_64_hexdigest(url.encode('utf-8', 'replace'))}.md"


def front_matter(page: Page, crawl_id: str) -> str:
    """Return the record's facts as YAML, with JSON values so that text of the page cannot break out of its quotes."""
    facts = {name: value for name, value in page.record(crawl_id).items() if value not in (None, [], "")}
    lines = [
        f"{name}: {orjson.dumps(value, option=orjson.OPT_UTC_Z).decode()}"
        for name, value in facts.items()
        if name not in LEFT_OUT
    ]
    return "\n".join(["---", *lines, "---", ""])


def text_of(source: Source | Failure, page: Page) -> str:
    """Return the content of a page as Markdown; empty if it is not text."""
    if isinstance(source, Failure):
        return ""
    note = f"{AS_SENT}\n\n" if page.rendered and not source.is_rendered else ""
    return f"{note}{Content(source).markdown.strip()}\n"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))

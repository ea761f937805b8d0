"""Stored bodies in a folder: each writer appends to its own segment, and starts a new one when it is large."""

import asyncio
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from shoal import __version__
from shoal.base.clock import Clock
from shoal.base.errors import BadConfig, BodiesUnavailable, NotFound, ShoalError, StorageFull
from shoal.base.ids import new_id
from shoal.base.machine import NO_SPACE, make_private, open_private, sync_folder, try_write
from shoal.pages.bodies import BodyLocation
from shoal.pages.warc import info_member

SEGMENT_BYTES = 1_000_000_000
NO_WAY = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)  # retrying does not help


class FolderBodies:
    """Implements `pages.bodies.BodyStore`."""

    def __init__(self, root: Path, clock: Clock, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._root = root
        self._clock = clock
        self._segment_bytes = segment_bytes

    def writer(self, crawl_id: str) -> "FolderWriter":
        return FolderWriter(self._root, crawl_id, self._clock.micros, self._segment_bytes)

    async def read(self, place: BodyLocation) -> bytes:
        return await asyncio.to_thread(self._read, place)

    async def forget(self, crawl_id: str) -> None:
        await asyncio.to_thread(self._forget, self._root / folder_of(crawl_id))

    async def check_space(self) -> None:
        try:
            await asyncio.to_thread(try_write, self._root)
        except OSError as error:
            raise _translated(self._root, error) from error

    def close(self) -> None: ...

    def _read(self, place: BodyLocation) -> bytes:
        kept = b""
        if is_safe(place):
            try:
                with (self._root / place.file).open("rb") as file:
                    file.seek(place.offset)
                    kept = file.read(place.length)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise _translated(self._root, error) from error
        if len(kept) != place.length:
            raise NotFound("stored body", place.file, f"it is not in {self._root}; check SHOAL_BODIES")
        return kept

    def _forget(self, folder: Path) -> None:
        import shutil  # imported only when needed

        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _translated(folder, error) from error


class FolderWriter:
    """Implements `pages.bodies.BodyWriter`."""

    def __init__(self, root: Path, crawl_id: str, now: Callable[[], int], segment_bytes: int) -> None:
        self._root = root
        self._crawl_id = crawl_id
        self._now = now
        self._segment_bytes = segment_bytes
        self._name = ""
        self._file: BinaryIO | None = None
        self._end = 0

    async def append(self, data: bytes) -> BodyLocation:
        return await asyncio.to_thread(self._append, data)

    async def close(self) -> None:
        self._leave()

    def _append(self, data: bytes) -> BodyLocation:
        try:
            if self._file is None or self._end >= self._segment_bytes:
                self._begin()
            offset = self._end
            self._write(data)
            return BodyLocation(self._name, offset, len(data))
        except OSError as error:
            self._leave()  # the segment may be half written, so continue in a new file
            raise _translated(self._root, error) from error

    def _begin(self) -> None:
        self._leave()
        self._name = new_file(self._crawl_id)
        path = self._root / self._name
        make_private(path.parent)
        self._file = open(path, "xb", buffering=0, opener=open_private)  # noqa: SIM115 - kept open
        self._end = 0
        sync_folder(path.parent)
        sync_folder(self._root)  # the crawl's folder may be new in the root folder
        self._write(opening(self._name, self._crawl_id, self._now()))

    def _write(self, data: bytes) -> None:
        """Write all data and sync it to disk, so that a row that refers to it is valid even after a power cut."""
        assert self._file is not None
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        os.fsync(self._file.fileno())
        self._end += len(data)

    def _leave(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _translated(place: Path, error: OSError) -> ShoalError:
    if error.errno in NO_SPACE:
        return StorageFull(str(place), "bodies")
    why = error.strerror or type(error).__name__
    if error.errno in NO_WAY:
        return BadConfig("SHOAL_BODIES", f"is {place}, which cannot be used ({why})", "use a writable folder")
    return BodiesUnavailable(str(place), why, "check the folder in SHOAL_BODIES and try again")


_SAFE = re.compile(r"crawl-[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_-]{1,64}\.warc\.gz")


def folder_of(crawl_id: str) -> str:
    """Return the folder name of a crawl. Never `.` or `..`, which are valid crawl ids."""
    return f"crawl-{crawl_id}"


def new_file(crawl_id: str) -> str:
    return f"{folder_of(crawl_id)}/{new_id('seg')}.warc.gz"


def is_safe(place: BodyLocation) -> bool:
    """Return whether a location can be one of ours. It may be forged, because rows are also restored from dumps, which
    are untrusted input."""
    return _SAFE.fullmatch(place.file) is not None and place.offset >= 0 and place.length > 0


def opening(name: str, crawl_id: str, at: int) -> bytes:
    facts = [("software", f"Shoal/{__version__}"), ("isPartOf", crawl_id)]
    return info_member(PurePosixPath(name).name, at, facts)

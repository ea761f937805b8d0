"""A file that is named FILE.part until it is complete, and the translation of disk errors."""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from shoal.base.errors import BackendUnavailable, BadConfig, InvalidInput, ShoalError, StorageFull
from shoal.base.machine import NO_SPACE, open_here, sync_folder
from shoal.base.text import escaped

BUFFER = 1 << 18
MayOverwrite = Callable[[str, str], bool]
"""A function that asks the user whether a file may be replaced; it gets the file's name and a description."""


class PartFile:
    """One file being written. No content on disk changes before `begin`. Only the owner can read a `private` file."""

    def __init__(self, name: str, *, private: bool = False) -> None:
        self.name = name
        self._private = private
        self._part = Path(f"{name}.part")
        self._file: BinaryIO | None = None
        check_place(name)
        if Path(name).is_dir():
            raise unusable(name, "it is a folder")

    @property
    def locations(self) -> str:
        """Return where the file's content is now, for messages."""
        return self.name if self._file is None else str(self._part)

    def check(self) -> None:
        """Raise if the file cannot be written, before any work is done."""
        was_there = self._part.exists()
        try:
            open(self._part, "ab", opener=open_here).close()
        except OSError as error:
            raise unusable(self.name, error.strerror or str(error)) from None
        if not was_there:
            self._part.unlink()

    def begin(self) -> None:
        """Create the temporary file, or truncate an existing one."""
        try:
            if self._private:
                self._part.unlink(missing_ok=True)  # an older file may be readable by other users
                descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                self._file = os.fdopen(descriptor, "wb", buffering=BUFFER)
            else:
                self._file = open(self._part, "wb", BUFFER, opener=open_here)  # noqa: SIM115 - kept open
        except OSError as error:
            raise unusable(self.name, error.strerror or str(error)) from None

    def write(self, pieces: Iterable[bytes]) -> None:
        assert self._file is not None
        try:
            self._file.writelines(pieces)
        except OSError as error:
            raise translated(str(self._part), error) from error

    def complete(self) -> None:
        """Sync the file to disk and rename it to its final name."""
        assert self._file is not None
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self.name)
            sync_folder(self._part.parent)
        except OSError as error:
            raise translated(str(self._part), error) from error
        self._file = None

    def leave(self) -> None:
        """Close an incomplete file; it keeps its temporary name."""
        if self._file is not None:
            with suppress(OSError):  # already reported by the write that failed
                self._file.close()

    def discard(self) -> None:
        """Close and remove an incomplete file."""
        if self._file is not None:
            self.leave()
            with suppress(OSError):
                self._part.unlink()
            self._file = None


class Stdout:
    """Standard output with the interface of `PartFile`."""

    name = "-"
    locations = "stdout"

    def check(self) -> None: ...

    def begin(self) -> None: ...

    def write(self, pieces: Iterable[bytes]) -> None:
        """Write the pieces unchanged. On a terminal, escape control sequences, because page content is untrusted."""
        try:
            if sys.stdout.isatty():
                pieces = [escaped(piece.decode("utf-8", "replace")).encode() for piece in pieces]
            sys.stdout.buffer.writelines(pieces)
            sys.stdout.buffer.flush()  # flush, so that a pipe reader gets each commit immediately
        except OSError as error:
            raise translated("stdout", error) from error

    def complete(self) -> None: ...

    def leave(self) -> None: ...


def check_place(name: str) -> None:
    """Raise if the folder does not exist or is not writable, before anything is crawled."""
    folder = Path(name).parent
    if not folder.is_dir():
        raise unusable(name, "its folder does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise unusable(name, "its folder is not writable")


def check_replace(
    name: str, is_ours: Callable[[], bool], may_overwrite: MayOverwrite | None = None, *, called: str = "--output"
) -> None:
    """Raise if a file exists and must not be replaced. Without `may_overwrite`, it is replaced if it is empty or looks
    like an output of Shoal's, as `is_ours` tells. `called`: the flag that named the file."""
    path = Path(name)
    if not path.is_file():
        return
    known = not path.stat().st_size or is_ours()
    what = "exists" if known else "exists and does not look like an output of Shoal's"
    if not (known if may_overwrite is None else may_overwrite(name, what)):
        raise InvalidInput(called, f"{name!r} {what}", "choose another name, or remove the file first")


def ends_of(name: str, size: int = 4096) -> bytes:
    """Return the beginning and the end of a file, to recognize it; empty if it cannot be read."""
    try:
        with Path(name).open("rb") as file:
            first = file.read(size)
            file.seek(max(len(first), file.seek(0, os.SEEK_END) - size))
            return first + file.read(size)
    except OSError:
        return b""


def unusable(name: str, why: str, fix: str = "use a file in a folder that exists and is writable") -> ShoalError:
    return BadConfig("--output", f"{name!r} cannot be written ({why})", fix)


def translated(place: str, error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return error  # the reader closed the pipe: the CLI handles that
    if error.errno in NO_SPACE:
        return StorageFull(place, "output")
    return BackendUnavailable(place, error.strerror or type(error).__name__, "check the disk and try again")

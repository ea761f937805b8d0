"""Durable and private files: what must survive a power cut, who may read it, and whether the disk has room."""

import errno
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

OWNER_ONLY = 0o600
OWNER_ONLY_FOLDER = 0o700
_OTHERS = 0o007
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PROBE_BYTES = 1_000_000


def try_room(folder: Path, size: int = PROBE_BYTES) -> None:
    """Raise OSError unless a file of this size can be written here. It is really written: only that shows a quota."""
    make_private(folder)
    probe = folder / f".room-{secrets.token_hex(8)}"
    try:
        with probe.open("xb", buffering=0) as file:
            left = memoryview(bytes(size))
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
    finally:
        with suppress(OSError):
            probe.unlink()


def sync_folder(folder: Path) -> None:
    """The names in this folder outlive a power cut: that of a new file, or the last one of a renamed file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents for their owner only; one that exists stays as it is."""
    try:
        folder.mkdir(OWNER_ONLY_FOLDER, exist_ok=True)
    except FileNotFoundError:
        make_private(folder.parent)
        folder.mkdir(OWNER_ONLY_FOLDER, exist_ok=True)


def open_private(path: str, flags: int) -> int:
    """Open a file, which nobody but its owner may read if it is made now: an `opener` for `open`."""
    return os.open(path, flags, OWNER_ONLY)


def readable_by_others(paths: Iterable[Path]) -> list[Path]:
    """Return those that every user of this machine may read: the path is open to them, and so is its folder."""
    found = []
    for path in paths:
        try:
            is_open = path.stat().st_mode & _OTHERS and path.parent.stat().st_mode & _OTHERS
        except OSError:  # it is not there
            continue
        if is_open:
            found.append(path)
    return found

"""Durable and private files: fsync, file permissions, and a check for free disk space."""

import errno
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

OWNER_ONLY = 0o600
OWNER_ONLY_FOLDER = 0o700
_OTHERS = 0o007
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PROBE_BYTES = 1_000_000


def try_write(folder: Path, size: int = PROBE_BYTES) -> None:
    """Raise OSError unless a file of this size can be written here. It is actually written, to detect disk quotas."""
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
    """Sync a folder, so that new and renamed files in it keep their names after a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, accessible only to the owner; existing folders are left unchanged."""
    try:
        folder.mkdir(OWNER_ONLY_FOLDER, exist_ok=True)
    except FileNotFoundError:
        make_private(folder.parent)
        folder.mkdir(OWNER_ONLY_FOLDER, exist_ok=True)


def open_private(path: str, flags: int) -> int:
    """Open a file, and create it readable by its owner only. A symbolic link is refused: in a folder that others can
    write to, it could lead to any file of ours. For use as the `opener` of `open`."""
    return os.open(path, flags | os.O_NOFOLLOW, OWNER_ONLY)


def open_here(path: str, flags: int) -> int:
    """Open a file with the usual permissions, but not through a symbolic link, unless it leads to a device. For use as
    the `opener` of `open`."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        handle = os.open(path, flags & ~(os.O_CREAT | os.O_TRUNC))
        if stat.S_ISCHR(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        raise


def readable_by_others(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that every user of this machine may read: both the path and its folder are open to others."""
    found = []
    for path in paths:
        try:
            is_open = path.stat().st_mode & _OTHERS and path.parent.stat().st_mode & _OTHERS
        except OSError:  # it does not exist
            continue
        if is_open:
            found.append(path)
    return found

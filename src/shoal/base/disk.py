"""What a disk has to be told besides bytes: what must outlive a power cut, and who may read it. What is written is the
caller's."""

import os
from collections.abc import Iterable
from pathlib import Path

OWNER_ONLY = 0o600
OWNER_ONLY_FOLDER = 0o700
_OTHERS = 0o007


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

"""What a disk has to be told besides bytes, so that a power cut takes nothing back, and whether it has room. What is
written is the caller's."""

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PROBE_BYTES = 1_000_000


def try_room(folder: Path, size: int = PROBE_BYTES) -> None:
    """Raise OSError unless a file of this size can be written here. Only writing it shows a quota."""
    folder.mkdir(parents=True, exist_ok=True)
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

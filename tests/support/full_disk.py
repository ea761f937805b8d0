"""Disks that are full."""

import contextlib
from pathlib import Path


def stuff(path: Path) -> None:
    """Fill the disk."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)

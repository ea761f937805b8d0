"""Loaded by every Python process with this folder on its path, so that its wall clock can be set from outside. See
`clocks`."""

import mmap
import os
import struct
import time
from pathlib import Path

if path := os.environ.get("SHOAL_TEST_WALL_CLOCK"):
    with Path(path).open("r+b") as file:
        _shift = mmap.mmap(file.fileno(), 8)
    _time_ns = time.time_ns

    def time_ns() -> int:
        return _time_ns() + int(struct.unpack("<q", _shift[:8])[0])

    time.time_ns = time_ns

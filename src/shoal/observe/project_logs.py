"""Log files per project: `logs/{project}.log`, written in batches and rotated by size.

Several processes may write. Each opens the file for every batch and appends it in one write, so another process can
rotate the file at any time.
"""

import fcntl
import os
import re
from pathlib import Path

from shoal.base.machine import make_private, open_private

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
LOCK = ".rotating"


class ProjectLogs:
    """The folder of log files. A file that reaches `size` bytes is rotated to `.1`, that one to `.2`, and so on; `kept`
    old files are kept."""

    def __init__(self, folder: Path, size: int, kept: int) -> None:
        self._folder = folder
        self._size = size
        self._kept = kept

    def path_of(self, project: str) -> Path:
        return self._folder / f"{safe_name(project)}.log"

    def append(self, project: str, lines: list[bytes]) -> None:
        """Append these lines in one write; on OSError nothing was written, or only what fitted."""
        make_private(self._folder)
        path = self.path_of(project)
        text = b"".join(line + b"\n" for line in lines)
        file = open_private(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            written = os.write(file, text)
            is_large = os.fstat(file).st_size >= self._size
        finally:
            os.close(file)
        if written < len(text):
            raise OSError(f"only {written} of {len(text)} bytes fitted into {path.name}")
        if is_large:
            self._put_aside(path)

    def _put_aside(self, path: Path) -> None:
        """Rotate the file under a lock; a second process finds a small file and does nothing."""
        lock = open_private(str(self._folder / LOCK), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists() or path.stat().st_size < self._size:
                return
            for number in range(self._kept, 0, -1):
                older = self._set_aside_path(path, number)
                if older.exists() and number == self._kept:
                    older.unlink()
                elif older.exists():
                    older.rename(self._set_aside_path(path, number + 1))
            path.rename(self._set_aside_path(path, 1))
        finally:
            os.close(lock)

    def _set_aside_path(self, path: Path, number: int) -> Path:
        return path.with_name(f"{path.name}.{number}")


def safe_name(project: str) -> str:
    """Return a file name that contains no path, is not hidden and not too long."""
    name = _UNSAFE.sub("_", project)[:100]
    return f"_{name}" if not name or name.startswith(".") else name

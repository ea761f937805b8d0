"""Temporary folders that are removed even if their process is killed."""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOCK: Final = ".lock"


class TemporaryFolder:
    """A temporary folder that belongs to this process until `remove`, or until the end of a `with` block.

    A process that is killed leaves its folder behind. The next process that creates one removes such folders. They are
    recognized by a lock, which the kernel releases when the process ends, in whatever container it ran."""

    def __init__(self, name: str = "") -> None:
        _remove_abandoned_folders()
        self.path = Path(tempfile.mkdtemp(prefix=f"shoal-{name}"))
        try:
            unlocked = self.path / f"{_LOCK}.new"
            self._lock = unlocked.open("xb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unlocked.rename(self.path / _LOCK)
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_abandoned_folders() -> None:
    """Remove our user's temporary folders whose processes are gone."""
    with suppress(OSError):
        for lock in Path(tempfile.gettempdir()).glob(f"shoal-*/{_LOCK}"):
            with suppress(OSError):  # it belongs to a different user, to a living process, or has just been removed
                found = lock.parent.lstat()
                if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
                    continue
                with os.fdopen(os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent, ignore_errors=True)

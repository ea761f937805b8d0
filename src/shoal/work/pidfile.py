"""The name of a worker on its machine, and the book of its children: whoever has the name next ends what is left.

A child asks the kernel to be killed with its parent, so there is rarely anything to end; but not every kernel does it.
"""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shoal.base.clock import Clock
from shoal.base.disk import make_private
from shoal.base.errors import BadConfig
from shoal.work.process import started

FOLDER = "workers"
MOST_WORKERS = 1000  # of one machine
DYING_SECONDS = 2.0  # for the last worker of a name that was given: it may be about to end
LOOK_AGAIN = 0.1


class PidFile:
    """One worker's file: locked while it lives, with one line for each child. Without a file it keeps nothing."""

    def __init__(self, node_id: str, file: int | None = None) -> None:
        self.node_id = node_id
        self._file = file
        self._children: dict[int, str] = {}

    def add(self, pid: int) -> None:
        self._children[pid] = started(pid)
        self._write()

    def remove(self, pid: int) -> None:
        self._children.pop(pid, None)
        self._write()

    def reap(self) -> list[int]:
        """Kill the children that the last worker of this name left behind; which they were."""
        left = [pid for pid, began in self._read() if began not in ("", "?") and started(pid) == began]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._write()
        return left

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self) -> Iterator[tuple[int, str]]:
        text = b"" if self._file is None else os.pread(self._file, 1 << 20, 0)
        for line in text.decode(errors="replace").splitlines():
            pid, _, began = line.partition(" ")
            if pid.isdecimal():
                yield int(pid), began

    def _write(self) -> None:
        if self._file is None:
            return
        lines = "".join(f"{pid} {began}\n" for pid, began in self._children.items())
        with suppress(OSError):  # a full disk: only what is left behind would not be ended
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, lines.encode(), 0)


async def claim_name(name: str, folder: Path, clock: Clock, *, given: bool) -> PidFile:
    """The book of a worker. A name that was `given` must be free; else a further worker of this machine is called
    `name-2`, `name-3` and so on."""
    try:
        make_private(folder / FOLDER)
        names = [name] if given else [name, *(f"{name}-{place}" for place in range(2, MOST_WORKERS))]
        file = await _taken(folder / FOLDER, names, clock, patient=given)
    except OSError:  # no folder of its own, as in a container that may write nothing: then nobody else is here either
        return PidFile(name)
    if file is None:
        raise BadConfig(
            "GRPC_NODE_ID",
            f'names "{name}", under which another worker of this machine runs',
            "give each worker a name of its own, or none",
        )
    return file


async def _taken(folder: Path, names: list[str], clock: Clock, *, patient: bool) -> PidFile | None:
    deadline = clock.monotonic() + DYING_SECONDS
    while True:
        for name in names:
            if (file := _locked(folder / name)) is not None:
                return PidFile(name, file)
        if not patient or clock.monotonic() > deadline:
            return None
        await clock.sleep(LOOK_AGAIN)


def _locked(path: Path) -> int | None:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except BaseException:
        os.close(file)
        raise
    return file

"""The pid file of a worker: reserves its name on this machine, and lists the worker and its children.

The next worker with that name kills the children that its predecessor left behind, and knows the pid under which its
predecessor held leases. Children are rarely left behind, because a child asks the kernel to be killed with its parent,
but not every kernel supports that.
"""

import fcntl
import os
import signal
from contextlib import suppress
from pathlib import Path

from shoal.base.clock import Clock
from shoal.base.errors import BadConfig
from shoal.base.machine import make_private, started

FOLDER = "workers"
WORKER = "worker"  # word before the pid of the worker itself
MAX_WORKERS = 1000  # maximum number of workers with the same name on one machine
EXIT_SECONDS = 2.0  # how long to wait for a configured name, because the previous worker may be about to exit
RETRY_SECONDS = 0.1


class PidFile:
    """The file of one worker: The file is locked while the worker runs. It contains the worker's pid, then one line per
    child. Without a file, nothing is recorded."""

    def __init__(self, node_id: str, file: int | None = None) -> None:
        self.node_id = node_id
        self._file = file
        self._children: dict[int, str] = {}
        pids = [int(pid) for name, pid in self._entries() if name == WORKER and pid.isdecimal()]
        self.previous = pids[0] if pids else None  # pid of the last worker with this name, which has ended

    def add(self, pid: int) -> None:
        self._children[pid] = started(pid)
        self._write()

    def remove(self, pid: int) -> None:
        self._children.pop(pid, None)
        self._write()

    def reap(self) -> list[int]:
        """Kill the children that the previous worker of this name left behind, and return their pids."""
        known = [(int(pid), began) for pid, began in self._entries() if pid.isdecimal()]
        left = [pid for pid, began in known if began not in ("", "?") and started(pid) == began]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._write()
        return left

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _entries(self) -> list[tuple[str, str]]:
        text = b"" if self._file is None else os.pread(self._file, 1 << 20, 0)
        lines = [line.partition(" ") for line in text.decode(errors="replace").splitlines()]
        return [(first, rest) for first, _, rest in lines]

    def _write(self) -> None:
        if self._file is None:
            return
        lines = f"{WORKER} {os.getpid()}\n"
        lines += "".join(f"{pid} {began}\n" for pid, began in self._children.items())
        with suppress(OSError):  # the disk is full: at worst, orphaned children are not killed
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, lines.encode(), 0)


async def claim_name(name: str, folder: Path, clock: Clock, *, given: bool) -> PidFile:
    """Reserve a name for a worker and return its pid file. A `given` name must be free. Other names get a suffix if
    they are taken: `name-2`, `name-3` and so on."""
    try:
        make_private(folder / FOLDER)
        names = [name] if given else [name, *(f"{name}-{number}" for number in range(2, MAX_WORKERS))]
        pidfile = await _claim_first(folder / FOLDER, names, clock, wait=given)
    except OSError:  # no writable folder, as in a read-only container: then there is no other worker either
        return PidFile(name)
    if pidfile is None:
        raise BadConfig(
            "GRPC_NODE_ID",
            f'is "{name}", the name of another worker that runs on this machine',
            "give each worker a different name, or unset it",
        )
    return pidfile


async def _claim_first(folder: Path, names: list[str], clock: Clock, *, wait: bool) -> PidFile | None:
    deadline = clock.monotonic() + EXIT_SECONDS
    while True:
        for name in names:
            if (file := _lock(folder / name)) is not None:
                return PidFile(name, file)
        if not wait or clock.monotonic() > deadline:
            return None
        await clock.sleep(RETRY_SECONDS)


def _lock(path: Path) -> int | None:
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

"""Services of the operating system: processes, memory, disk space, private files."""

import errno
import os
import secrets
import signal
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import NamedTuple


def started(pid: int) -> str:
    """Return the start time of a process, in clock ticks since boot. The text is empty if the process does not exist,
    and `?` if the system does not report start times."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]  # a zombie has ended, although its parent has not collected it
    except (OSError, IndexError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except PermissionError:
            return "?"
        return "?"


class ProcessUsage(NamedTuple):
    """The resources of this process and its descendants."""

    cpu_seconds: float  # since this process started, including descendants that have ended
    memory_bytes: int  # resident memory of this process, and private memory of its descendants


def usage() -> ProcessUsage:
    """Measure this process and its descendants, such as converters and browsers. This takes some milliseconds if there
    are many of them. On systems without /proc, living descendants are not included."""
    times = os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    resident, _ = _memory_of("self")
    memory = resident or getrusage(RUSAGE_SELF).ru_maxrss * 1024
    for pid in _descendants():
        cpu += _cpu_of(pid)
        memory += _memory_of(pid)[1]
    return ProcessUsage(cpu, memory)


def _descendants() -> list[str]:
    """Return the pids of the descendants of this process."""
    found = _children("self")
    seen = set(found)
    for pid in found:  # grows
        some = [one for one in _children(pid) if one not in seen]
        seen.update(some)
        found += some
    return found


def _children(pid: str) -> list[str]:
    """Return the pids of a process's children: the system lists them by the thread that started them."""
    found: list[str] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += (thread / "children").read_text().split()
    return list(dict.fromkeys(found))


def _cpu_of(pid: str) -> float:
    """Return the CPU time of a process and of those of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


def _memory_of(pid: str) -> tuple[int, int]:
    """Return the resident memory of a process, and the part of it that is not shared with other processes."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        return resident * os.sysconf("SC_PAGE_SIZE"), (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0, 0


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent process ends, for whatever reason."""
    if sys.platform == "linux":
        import ctypes  # imported here, because only child processes need it

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


OWNER_ONLY = 0o600
OWNER_ONLY_FOLDER = 0o700
_OTHERS = 0o007
_PR_SET_PDEATHSIG = 1
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PROBE_BYTES = 1_000_000


def try_write(folder: Path, size: int = PROBE_BYTES) -> None:
    """Raise `OSError` unless a file of this size can be written here. A file is really written, to detect disk
    quotas."""
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
    """Open a file, and create it readable by its owner only. A symbolic link is refused: in a folder that other users
    can write to, it could point to any of our files. Use this function as the `opener` of `open`."""
    return os.open(path, flags | os.O_NOFOLLOW, OWNER_ONLY)


def open_here(path: str, flags: int) -> int:
    """Open a file with the usual permissions. A symbolic link is refused unless it points to a device. Use this
    function as the `opener` of `open`."""
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
    """Return those of the paths that every user of this machine may read. The permissions of the path and of its folder
    decide."""
    found = []
    for path in paths:
        try:
            is_open = path.stat().st_mode & _OTHERS and path.parent.stat().st_mode & _OTHERS
        except OSError:  # the path does not exist
            continue
        if is_open:
            found.append(path)
    return found


SAME_CTRL_C_SECONDS = 0.2


def on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` on each SIGTERM and each Ctrl-C. Two SIGINTs in quick succession count as one Ctrl-C, because the
    terminal and a launcher may both send the signal."""
    import asyncio  # imported here, because it would double the time of `shoal --help`

    loop = asyncio.get_running_loop()
    last_at = float("-inf")

    def interrupt() -> None:
        nonlocal last_at
        if loop.time() - last_at > SAME_CTRL_C_SECONDS:
            last_at = loop.time()
            stop()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, interrupt)

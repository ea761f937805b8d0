"""The memory of browsers, from the kernel. Systems without /proc report none."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def memory_of(groups: Iterable[int]) -> dict[int, dict[int, int]]:
    """Return the bytes that each process of some process groups has for itself, by group and pid."""
    found: dict[int, dict[int, int]] = {group: {} for group in groups}
    for folder in Path("/proc").iterdir() if found and Path("/proc/self").exists() else ():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError, ValueError, IndexError):
            state, _, group, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(group) in found and state != "Z":
                _, resident, shared, *_ = (folder / "statm").read_text().split()
                found[int(group)][int(folder.name)] = (int(resident) - int(shared)) * PAGE_SIZE
    return found


def kill_process(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)

"""Processes: their identity, since the kernel may reuse a pid, the resources that they and their children use, and the
signals that stop this one."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import NamedTuple

SAME_CTRL_C_SECONDS = 0.2


def started(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; empty if there is none, `?` if the system does not
    report it."""
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
    """The resources of this process and its children."""

    cpu_seconds: float  # since the start, including children that have ended
    memory_bytes: int


def usage() -> ProcessUsage:
    """Measure this process and its children. On systems without /proc, living children are not included."""
    times = os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    memory = _memory_of("self")
    for child in _children():
        cpu += _cpu_of(child)
        memory += _memory_of(child)
    return ProcessUsage(cpu, memory or getrusage(RUSAGE_SELF).ru_maxrss * 1024)


def _children() -> list[str]:
    """Return the children of this process; they have none themselves."""
    found: list[str] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found += task.read_text().split()
    return found


def _cpu_of(pid: str) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return 0.0


def _memory_of(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` on each SIGTERM and each Ctrl-C. A SIGINT right after another counts as the same Ctrl-C: the terminal
    and a launcher may both send it."""
    loop = asyncio.get_running_loop()
    last_at = float("-inf")

    def interrupt() -> None:
        nonlocal last_at
        if loop.time() - last_at > SAME_CTRL_C_SECONDS:
            last_at = loop.time()
            stop()

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, interrupt)

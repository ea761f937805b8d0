"""Measured processes: the cost of a command with all its children, and the cost of a running server so far."""

import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PATIENCE_SECONDS = 1800.0
TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """The resources used by a process and its children. `memory` is the peak of the largest process, in bytes."""

    wall: float
    cpu: float
    memory: int
    code: int
    out: str = ""


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def pinned(command: Sequence[str], on: Sequence[int]) -> list[str]:
    """Return a command that runs on these cores, or the command itself if the machine has no `taskset`."""
    if not on or shutil.which("taskset") is None:
        return list(command)
    return ["taskset", "-c", ",".join(map(str, on)), *command]


def measure(
    command: Sequence[str],
    *,
    on: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    log: Path | None = None,
) -> Cost:
    """Run a command to completion. The command gets its own process session, so that a hanging command can be ended
    together with its children."""
    with (log or Path(os.devnull)).open("w") as errors:
        began = time.perf_counter()
        process = subprocess.Popen(
            pinned(command, on),
            env={**os.environ, **(env or {})},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            text=True,
        )
        late = threading.Timer(PATIENCE_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
        late.start()
        assert process.stdout is not None
        with process.stdout:
            out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        late.cancel()
        wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * _MAXRSS_UNIT, process.returncode, out)


def own_peak_memory() -> int:
    """Return the peak memory of this process in bytes. `Cost.memory` may be higher: a new process begins as a copy of
    the process that starts it, so the memory of that process counts as well."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


class ServerCpu:
    """The CPU time of a server: of its first process, and of all child processes, including those that have ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def seconds(self) -> float:
        own = _times(self._pid)
        children = (_times(pid)[:2] for pid in _children(self._pid))
        return TICK * (sum(own) + sum(sum(times) for times in children))


def _times(pid: int) -> list[int]:
    """Return the user and system time of a process and of its children that have ended."""
    fields = _stat(pid)
    return [int(field) for field in fields[11:15]] if fields else [0, 0, 0, 0]


def _children(pid: int) -> list[int]:
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [number for number in numbers if (fields := _stat(number)) and fields[1] == str(pid)]


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


# Linux reports kilobytes; other systems report bytes.
_MAXRSS_UNIT = 1024 if os.uname().sysname == "Linux" else 1

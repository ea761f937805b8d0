"""Runs a command with limits, and ends everything that it started: `process_guard.py PARENT MEMORY FILE COMMAND…`.

The guard ends these processes when the command ends, on SIGTERM, and when the guard's parent is gone. It is a separate
program for two reasons: the worker's child has threads, so Python must not run code between fork and exec there; and a
killed child could not end the processes that it started.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

LOOK_SECONDS = 1.0
PR_SET_CHILD_SUBREAPER = 36


def main(parent: int, memory: int, file: int, command: list[str]) -> int:
    """Run the command in our process group; return its exit code, or 128 plus the number of the signal that ended
    it."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file, file))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def end(signum: int, frame: object) -> None:
        end_descendants()
        os._exit(128 + signum)

    signal.signal(signal.SIGTERM, end)
    if sys.platform == "linux":  # a process whose parent died becomes our child, even if it is in a different session
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        process = subprocess.Popen(command, preexec_fn=limit)  # noqa: PLW1509 - this process has one thread
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127
    while True:
        try:
            code = process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if os.getppid() != parent:
                end_descendants()
                os.killpg(0, signal.SIGKILL)
        else:
            end_descendants()
            return code if code >= 0 else 128 - code


def end_descendants() -> None:
    """Kill descendants until none are left: a descendant may fork while the others are being killed."""
    while True:
        for pid in descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def descendants() -> list[int]:
    """Return the descendants of this process; an empty list if there is no /proc."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[1-9]*"):
        with contextlib.suppress(OSError):
            parent = int((path / "stat").read_bytes().rpartition(b")")[2].split()[1])  # a name may contain parentheses
            children.setdefault(parent, []).append(int(path.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))

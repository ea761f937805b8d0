"""Runs a command with limits, and ends it when its parent is gone: `process_guard.py PARENT MEMORY COMMAND…`.

A program of its own, because the worker's child has threads, in which Python must not run code between fork and exec;
and because a killed child could not end what it started.
"""

import os
import resource
import signal
import subprocess
import sys

LOOK_SECONDS = 1.0


def main(parent: int, memory: int, command: list[str]) -> int:
    """Run the command in our process group; return its exit code, or 128 and the signal that ended it."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

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
                os.killpg(0, signal.SIGKILL)
        else:
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))

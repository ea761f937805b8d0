"""Run a command and write its peak memory in bytes to a file: `python -m tests.support.peak_memory FILE COMMAND…`.

A separate process, because the kernel also counts the memory of the child before `exec`, when it is a copy of its
parent.
"""

import resource
import subprocess
import sys
from pathlib import Path

UNIT = 1 if sys.platform == "darwin" else 1024


def main(file: str, *command: str) -> int:
    code = subprocess.call(command)
    Path(file).write_text(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * UNIT))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

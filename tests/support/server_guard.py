"""Stops the servers of one run when the run is over, however it ended. `servers.py` starts them.

Runs as a process of its own, with nothing but the standard library. Its standard input is a pipe that only the run
holds: end of file means that the run has closed it, was interrupted, or was killed.
"""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

STOP = "stop.json"
STOP_DEADLINE_SECONDS = 20


def stop_server(note: Path) -> None:
    stop = json.loads(note.read_text())
    identity = {"user": stop["uid"], "group": stop["gid"], "extra_groups": []} if stop["uid"] else {}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            stop["command"],
            cwd=note.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=STOP_DEADLINE_SECONDS,
            check=False,
            **identity,
        )


def main(folder: Path) -> None:
    sys.stdin.buffer.read()
    for note in folder.glob(f"*/{STOP}"):
        stop_server(note)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

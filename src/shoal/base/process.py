"""Identifies processes beyond their pid, which the kernel may give to another process later."""

import os
from pathlib import Path


def started(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; empty if there is none, `?` if the system does not
    tell."""
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

"""Which process is which: a pid alone may be another's by now."""

import os
from pathlib import Path


def started(pid: int) -> str:
    """When a process began, in the kernel's count; empty if there is none, `?` where the kernel does not say."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if facts[0] == "Z" else facts[19]  # a zombie has ended, even if nobody has looked
    except (OSError, IndexError):
        return "?" if _exists(pid) else ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

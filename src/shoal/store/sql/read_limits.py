"""How much of what is large is read at once: rows are looked at with their sizes before they are read."""

from collections.abc import Sequence
from typing import Any

MOST_READ = 16_000_000  # characters in memory at once


def readable(rows: Sequence[Any]) -> list[Any]:
    """Of rows with their sizes the first ones, as many as may be in memory at once; at least one."""
    size, found = 0, list[Any]()
    for row in rows:
        size += row["size"]
        if size > MOST_READ and found:
            break
        found.append(row)
    return found

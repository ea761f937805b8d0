"""Limits how much large data is read at once: the sizes of rows are queried before their contents."""

from collections.abc import Sequence
from typing import Any

MOST_READ = 16_000_000  # characters in memory at once


def readable(rows: Sequence[Any]) -> list[Any]:
    """Return the first rows that fit into memory together, by their sizes; at least one."""
    size, found = 0, list[Any]()
    for row in rows:
        size += row["size"]
        if size > MOST_READ and found:
            break
        found.append(row)
    return found

"""A line of a crawl's journal."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class JournalLevel(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Something to say: what happened, in a word for programs and in words for people."""

    event: str
    message: str
    level: JournalLevel = JournalLevel.INFO
    facts: dict[str, Any] = field(default_factory=dict)

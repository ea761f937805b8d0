"""An entry of a crawl's journal."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class JournalLevel(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A journal entry: the name of the event for programs, and a message for people."""

    event: str
    message: str
    level: JournalLevel = JournalLevel.INFO
    facts: dict[str, Any] = field(default_factory=dict)

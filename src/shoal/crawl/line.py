"""A line of a crawl's journal."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Line:
    """Something to say: what happened, in a word for programs and in words for people."""

    event: str
    message: str
    level: Level = Level.INFO
    facts: dict[str, Any] = field(default_factory=dict)

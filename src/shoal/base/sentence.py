"""Texts for people: worded once, in English, beside what they are about, and translated where they are shown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any


def message(text: str) -> str:
    """Mark a text that is translated later, where it is shown."""
    return text


class Share(float):
    """A share of a whole, shown in percent."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text with places such as `{node}`, and the values of these places: texts, counts, shares, durations
    (`timedelta`), times (`datetime`) or other sentences. `str` returns it in English; the console translates the text
    and formats the values as its reader does. `other`: the text if the value of `{count}` takes the plural."""

    text: str
    values: Mapping[str, Any] = field(default_factory=dict)
    other: str | None = None

    def __str__(self) -> str:
        text = self.text if self.other is None or self.values["count"] == 1 else self.other
        return text.format(**{name: _in_english(value) for name, value in self.values.items()})


def in_percent(share: float) -> tuple[float, int]:
    """Return a share in percent, and how many digits of it to show. 100 % and 0 % mean all and none: shares that would
    be rounded to them are not."""
    if 0.995 <= share < 1:
        return min(99.9, 100 * share), 1
    return (max(0.1, 100 * share), 1) if 0 < share < 0.1 else (100 * share, 0)


def _in_english(value: Any) -> str:
    match value:
        case Share():
            shown, digits = in_percent(value)
            return f"{shown:.{digits}f}%"
        case int():
            return f"{value:,}"
        case timedelta():
            return f"{value.total_seconds():.0f} s"
        case datetime():
            return value.isoformat(timespec="seconds").replace("+00:00", "Z")
        case _:
            return str(value)

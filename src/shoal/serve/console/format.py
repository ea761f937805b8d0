"""Numbers, sizes, durations and times as people read them."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from shoal.base.clock import from_micros, to_micros
from shoal.base.text import Sentence, Share, clean, in_percent, message, redact, visible
from shoal.serve.console.messages import Language

NOTHING: Final = "\N{EN DASH}"
SPACE: Final = "\N{NO-BREAK SPACE}"
LONGEST: Final = 300  # characters of untrusted text in one place
LONGEST_SENTENCE: Final = 500
LONGEST_BLOCK: Final = 100_000
SIZES: Final = ("B", "kB", "MB", "GB", "TB")
AGES: Final = (
    (86400, message("{count} d ago"), message("in {count} d")),
    (3600, message("{count} h ago"), message("in {count} h")),
    (60, message("{count} min ago"), message("in {count} min")),
)


@dataclass(frozen=True, slots=True)
class Formats:
    """Formats values in one language, relative to one moment (microseconds)."""

    language: Language
    now: int

    def number(self, value: float | None, digits: int = 0) -> str:
        return NOTHING if value is None else self.language.number(value, digits)

    def short(self, value: float) -> str:
        """Return a count in at most four characters or so, for charts: `1.2 M`."""
        for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
            if value >= limit:
                scaled = value / (1e3 if unit == "k" else limit)
                return f"{self.language.number(scaled, 0 if scaled >= 100 else 1)}{SPACE}{unit}"
        return self.language.number(value, 0 if value >= 10 or float(value).is_integer() else 1)

    def percent(self, share: float | None) -> str:
        if share is None:
            return NOTHING
        return f"{self.language.number(*in_percent(share))}{SPACE}%"

    def size(self, count: float | None) -> str:
        if count is None:
            return NOTHING
        amount = float(count)
        for unit in SIZES[:-1]:
            if amount < 1000:
                return f"{self.language.number(amount, 0 if unit == 'B' else 1)}{SPACE}{unit}"
            amount /= 1000
        return f"{self.language.number(amount, 1)}{SPACE}{SIZES[-1]}"

    def rate(self, per_second: float | None) -> str:
        return NOTHING if per_second is None else self.language("{rate} pages/s", rate=self.number(per_second, 1))

    def duration(self, seconds: float | None) -> str:
        if seconds is None:
            return NOTHING
        whole = max(0, int(seconds))
        if whole < 10:
            return f"{self.language.number(max(0.0, seconds), 1)}{SPACE}s"
        if whole < 60:
            return f"{whole}{SPACE}s"
        if whole < 3600:
            return f"{whole // 60}{SPACE}min {whole % 60:02}{SPACE}s"
        if whole < 48 * 3600:
            return f"{whole // 3600}{SPACE}h {whole % 3600 // 60:02}{SPACE}min"
        return self.language.plural("{count} day", "{count} days", whole // 86400)

    def span(self, length: timedelta) -> str:
        """Return a length of time that somebody chose, in its largest unit."""
        seconds = length.total_seconds()
        if seconds and seconds % 86400 == 0:
            return self.language.plural("{count} day", "{count} days", int(seconds // 86400))
        if seconds and seconds % 3600 == 0 and seconds < 48 * 3600:
            return f"{int(seconds // 3600)}{SPACE}h"
        return self.duration(seconds)

    def milliseconds(self, value: float | None) -> str:
        if value is None:
            return NOTHING
        return f"{self.number(value)}{SPACE}ms" if value < 10_000 else self.duration(value / 1000)

    def ago(self, at: int | None) -> str:
        """Return a coarse distance to now: a cell that changes every second is distracting."""
        if at is None:
            return NOTHING
        seconds = (self.now - at) / 1e6
        for length, past, future in AGES:
            if abs(seconds) >= length:
                count = int(abs(seconds) // length)
                return self.language(past if seconds > 0 else future, count=count).replace(" ", SPACE)
        if seconds < -10:
            return self.language("in {count} s", count=int(-seconds // 10) * 10).replace(" ", SPACE)
        if seconds < 10:
            return self.language("just now").replace(" ", SPACE)
        return self.language("{count} s ago", count=int(seconds // 10) * 10).replace(" ", SPACE)

    def exact(self, at: int | None) -> str:
        return "" if at is None else f"{from_micros(at):%Y-%m-%d %H:%M:%S} UTC"

    def iso(self, at: int | None) -> str:
        return "" if at is None else f"{from_micros(at):%Y-%m-%dT%H:%M:%SZ}"

    def clock(self, at: int) -> str:
        return f"{from_micros(at):%H:%M:%S}"

    def sentence(self, said: Sentence, longest: int = LONGEST_SENTENCE) -> str:
        """Return a sentence in this language, safe to show."""
        return self.text(self._translated(said), longest)

    def _translated(self, said: Sentence) -> str:
        values = {name: self._value(value) for name, value in said.values.items()}
        if said.other is None:
            return self.language(said.text, **values)
        return self.language.plural(said.text, said.other, said.values["count"], values.pop("count"), **values)

    def _value(self, value: object) -> str:
        match value:
            case Sentence():
                return self._translated(value)
            case Share():
                return self.percent(value)
            case int():
                return self.number(value)
            case timedelta():
                return self.duration(value.total_seconds())
            case datetime():
                return self.exact(to_micros(value))
            case _:
                return str(value)

    def block(self, value: str, longest: int = LONGEST_BLOCK) -> str:
        """Return untrusted text of several lines: line ends and tabs stay, the rest is as in `text`."""
        lines = value[:longest].splitlines()
        shown = "\n".join("\t".join(visible(part) for part in redact(line).split("\t")) for line in lines)
        return shown if len(value) <= longest else f"{shown}…"

    def text(self, value: object, longest: int = LONGEST) -> str:
        """Return untrusted text on one line: secrets are redacted, characters that deceive a reader are made visible,
        long text is cut."""
        return "" if value is None else clean(str(value), longest)

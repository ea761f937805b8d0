"""Formats of the console: numbers, times, badges, translated messages."""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup, escape

from shoal.access import token
from shoal.audit import finding, verdict
from shoal.audit import states as analysis
from shoal.base.clock import from_micros, to_micros
from shoal.base.text import Sentence, Share, clean, in_percent, message, redact, visible
from shoal.crawl import states as crawl
from shoal.crawl.frontier import explain as url
from shoal.events import webhook
from shoal.fleet import states as node
from shoal.plan import policy
from shoal.queue import states as job

LOCALES: Final = Path(__file__).parent / "locales"


@dataclass(frozen=True, slots=True)
class Language:
    """A language: its texts and number format."""

    code: str
    name: str
    thousands: str = ","
    decimal: str = "."
    one_below: int = 2  # counts from `one_from` up to below this value use the singular
    one_from: int = 1
    texts: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, text: str, **values: Any) -> str:
        """Return a text in this language, with values in place of `{name}`."""
        found = self.texts.get(text, text)
        return found.format(**values) if values else found

    def plural(self, one: str, other: str, count: int, shown: str | None = None, **values: Any) -> str:
        """Return the singular or plural text for a count, with the count in place of `{count}`."""
        form = one if self.one_from <= count < self.one_below else other
        return self(form, count=self.number(count) if shown is None else shown, **values)

    def number(self, value: float, digits: int = 0) -> str:
        """Return a number with separators."""
        text = f"{value:,.{digits}f}"
        if self.thousands == ",":
            return text
        return text.replace(",", "\0").replace(".", self.decimal).replace("\0", self.thousands)


ENGLISH: Final = Language("en", "English")


@cache
def languages() -> Mapping[str, Language]:
    """Return every language by its code; English comes first and needs no catalogue."""
    found = {"en": ENGLISH}
    for folder in sorted(path for path in LOCALES.iterdir() if path.is_dir()):
        parts = [tomllib.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.toml"))]
        texts = {text: translated for part in parts for text, translated in part["texts"].items()}
        about = next(part["language"] for part in parts if "language" in part)
        found[folder.name] = Language(folder.name, **about, texts=texts)
    return found


def preferred(accepted: str) -> Language:
    """Return the first available language of an Accept-Language header."""
    wanted = []
    for place, part in enumerate(accepted.split(",")[:20]):
        tag, _, rest = part.strip().partition(";")
        quality = rest.strip().removeprefix("q=")
        weight = float(quality) if quality.replace(".", "", 1).isdecimal() else 1.0
        wanted.append((-weight, place, tag.strip().lower().partition("-")[0]))
    known = languages()
    return next((known[code] for _, _, code in sorted(wanted) if code in known), ENGLISH)


NOTHING: Final = "\N{EN DASH}"
SPACE: Final = "\N{NO-BREAK SPACE}"
LONGEST: Final = 300  # maximum number of characters of one untrusted text
LONGEST_SENTENCE: Final = 500
LONGEST_BLOCK: Final = 100_000
URL_PARTS: Final = re.compile(r"(?<=[/?&=_-])(?<!://)(?=[^/?&=_-])")
SIZES: Final = ("B", "kB", "MB", "GB", "TB")
AGES: Final = (
    (86400, message("{count} d ago"), message("in {count} d")),
    (3600, message("{count} h ago"), message("in {count} h")),
    (60, message("{count} min ago"), message("in {count} min")),
)


@dataclass(frozen=True, slots=True)
class Formats:
    """Formats values in one language, relative to the time `now` (microseconds)."""

    language: Language
    now: int

    def number(self, value: float | None, digits: int = 0) -> str:
        return NOTHING if value is None else self.language.number(value, digits)

    def short(self, value: float) -> str:
        """Return a count in about four characters, for charts: `1.2 M`."""
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
        """Return a configured duration in its largest unit."""
        seconds = length.total_seconds()
        if seconds and seconds % 86400 == 0:
            return self.language.plural("{count} day", "{count} days", int(seconds // 86400))
        if seconds and seconds % 3600 == 0 and seconds < 48 * 3600:
            return f"{int(seconds // 3600)}{SPACE}h"
        return self.duration(seconds)

    def estimate(self, seconds: float) -> str:
        """Return an estimated duration, rounded up and in one unit."""
        for limit, length, unit in ((60, 10, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h")):
            if seconds <= limit:
                count = max(1, math.ceil(seconds / length)) * (length if unit == "s" else 1)
                return f"{count}{SPACE}{unit}"
        return self.duration(seconds)

    def milliseconds(self, value: float | None) -> str:
        if value is None:
            return NOTHING
        return f"{self.number(value)}{SPACE}ms" if value < 10_000 else self.duration(value / 1000)

    def ago(self, at: int | None) -> str:
        """Return the distance to now in a coarse unit, because a cell that changes every second is distracting."""
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
        """Return a sentence in this language, with untrusted values made safe."""
        return self.text(self._translated(said), longest)

    def _translated(self, said: Sentence) -> str:
        values = {name: self._value(value) for name, value in said.values.items()}
        if said.other is None:
            return said.cased(self.language(said.text, **values))
        count = values.pop("count")
        return said.cased(self.language.plural(said.text, said.other, said.values["count"], count, **values))

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
        """Like `text()`, but for untrusted text of several lines: line ends and tabs are kept."""
        lines = value[:longest].splitlines()
        shown = "\n".join("\t".join(visible(part) for part in redact(line).split("\t")) for line in lines)
        return shown if len(value) <= longest else f"{shown}…"

    def text(self, value: object, longest: int = LONGEST) -> str:
        """Return untrusted text on one line: secrets are redacted, deceptive characters are made visible, and long text
        is cut."""
        return "" if value is None else clean(str(value), longest)

    def url(self, value: object, longest: int = LONGEST) -> Markup:
        """Return untrusted text, treated as in `text`, that can be broken after the parts of a URL."""
        return Markup("<wbr>").join(escape(part) for part in URL_PARTS.split(self.text(value, longest)))


def parted(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Divide options into changed options and options with their default."""
    chosen = {name for name, value in options.items() if value != defaults.get(name)}
    return {
        "chosen": {name: value for name, value in options.items() if name in chosen},
        "default": {name: value for name, value in options.items() if name not in chosen},
    }


LABELS: Final[Mapping[type[StrEnum], Mapping[Any, str]]] = {
    crawl.CrawlState: crawl.LABELS,
    url.UrlState: url.LABELS,
    job.JobState: job.LABELS,
    job.GrantEnd: job.GRANT_LABELS,
    node.NodeState: node.LABELS,
    node.CommandState: node.COMMAND_LABELS,
    policy.PolicyState: policy.LABELS,
    analysis.AnalysisState: analysis.LABELS,
    verdict.Outcome: verdict.LABELS,
    finding.Severity: finding.LABELS,
    webhook.WebhookState: webhook.LABELS,
    webhook.DeliveryState: webhook.DELIVERY_LABELS,
    token.TokenState: token.LABELS,
}
COLOURS: Final[Mapping[type[StrEnum], Mapping[str, str]]] = {
    crawl.CrawlState: {state: state for state in crawl.CrawlState},
    url.UrlState: {
        "refused": "failed",
        "waiting": "queued",
        "taken": "running",
        "fetched": "completed",
        "failed": "failed",
        "quarantined": "warning",
    },
    job.JobState: {
        "pending": "queued",
        "locked": "running",
        "done": "completed",
        "failed": "failed",
        "expired": "failed",
    },
    job.GrantEnd: dict.fromkeys(job.GrantEnd, "error") | {"done": "good", "released": "info", "retried": "warning"},
    node.NodeState: {"connected": "good", "paused": "paused", "draining": "warning", "lost": "failed"},
    node.CommandState: {
        "waiting": "queued",
        "sent": "info",
        "applied": "good",
        "unsupported": "warning",
        "failed": "failed",
        "expired": "failed",
    },
    policy.PolicyState: {"active": "running", "late": "failed", "due": "queued", "planned": "good"},
    analysis.AnalysisState: {
        "pending": "queued",
        "running": "running",
        "success": "completed",
        "failed": "failed",
    },
    verdict.Outcome: {"passed": "good", "failed": "failed", "inconclusive": "warning"},
    finding.Severity: {"error": "error", "warning": "warning", "notice": "info"},
    webhook.WebhookState: {"enabled": "good", "failing": "failed"},
    webhook.DeliveryState: {"waiting": "queued", "delivered": "good", "dead": "failed"},
    token.TokenState: {"valid": "good"},
}


def label_of(state: StrEnum) -> str:
    """Return the label of a state, to be translated."""
    return LABELS[type(state)][state]


def colour_of(state: StrEnum) -> str:
    return COLOURS[type(state)].get(state, "")

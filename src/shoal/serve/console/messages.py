"""The languages of the console. English texts are the keys of one catalogue per language: the files in its folder of
`locales/`, one for each part of the console.

A text that is missing from a catalogue is shown in English; a test compares the catalogues with the code.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

LOCALES: Final = Path(__file__).parent / "locales"


@dataclass(frozen=True, slots=True)
class Language:
    """A language: its texts, and how it writes numbers."""

    code: str
    name: str
    thousands: str = ","
    decimal: str = "."
    one_below: int = 2  # counts below it (and above `one_from`) take the singular
    one_from: int = 1
    texts: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, text: str, **values: Any) -> str:
        """Return a text in this language, with values in place of `{name}`."""
        found = self.texts.get(text, text)
        return found.format(**values) if values else found

    def plural(self, one: str, other: str, count: int, shown: str | None = None, **values: Any) -> str:
        """Return the form of a text for a count, with the count as `{count}`."""
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
    """Return the language that an Accept-Language header asks for first, among those we have."""
    wanted = []
    for place, part in enumerate(accepted.split(",")[:20]):
        tag, _, rest = part.strip().partition(";")
        quality = rest.strip().removeprefix("q=")
        weight = float(quality) if quality.replace(".", "", 1).isdecimal() else 1.0
        wanted.append((-weight, place, tag.strip().lower().partition("-")[0]))
    known = languages()
    return next((known[code] for _, _, code in sorted(wanted) if code in known), ENGLISH)

"""The search line of lists: words and qualifiers such as `state:running host:example.com`, kept in the URL."""

import shlex
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from shoal.base.errors import InvalidInput
from shoal.base.text import clean, nearest, shorten

LONGEST = 1000


@dataclass(frozen=True, slots=True)
class Search:
    """A parsed search line."""

    line: str = ""
    values: dict[str, list[str]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def one(self, name: str) -> str | None:
        """Return the value of a qualifier that may be given once."""
        found = self.values.get(name, [])
        if len(found) > 1:
            raise InvalidInput(f"{name}:", "is given twice", "write it once")
        return found[0] if found else None

    def all(self, name: str) -> list[str]:
        return self.values.get(name, [])

    @property
    def text(self) -> str:
        """The words outside of qualifiers."""
        return " ".join(self.words)

    def with_value(self, name: str, value: str | None) -> str:
        """Return the line with another value for a qualifier, for links that filter."""
        parts = [f"{key}:{_quoted(one)}" for key, values in self.values.items() if key != name for one in values]
        parts += [] if value is None else [f"{name}:{_quoted(value)}"]
        return " ".join([*parts, *map(_quoted, self.words)])


Suggested = Iterable[str | tuple[str, str]]  # values, some with what they mean


def suggestion(hint: str, values: Suggested = ()) -> dict[str, object]:
    """Return what the search line suggests for one qualifier: what it means, and some of its values."""
    pairs = dict.fromkeys((value, "") if isinstance(value, str) else value for value in values)
    return {"hint": hint, "values": [(_quoted(clean(value, 100)), word) for value, word in pairs if value]}


def parse(line: str, known: Collection[str]) -> Search:
    """Parse a search line; an unknown qualifier is refused with the nearest known one."""
    line = line.strip()[:LONGEST]
    try:
        parts = shlex.split(line.replace("\\", "\\\\"))
    except ValueError:  # a quotation mark without its partner: take it literally
        parts = line.split()
    values: dict[str, list[str]] = {}
    words = []
    for part in parts:
        name, colon, value = part.partition(":")
        if not colon or not name.isalpha() or value.startswith("//"):
            words.append(part)
        elif name.lower() in known:
            if value:
                values.setdefault(name.lower(), []).append(value)
        else:
            close = nearest(name, known)
            hint = (
                f"the nearest one is {close}:"
                if close
                else f"the known ones are {', '.join(f'{one}:' for one in known)}"
            )
            raise InvalidInput(f"{shorten(name)}:", "is not a qualifier of this list", hint)
    return Search(line, values, words)


def _quoted(text: str) -> str:
    return f'"{text}"' if " " in text else text

"""Parse robots directives: those of `<meta name=robots>` and of the header `X-Robots-Tag`. Pure.

Both are lists such as `noindex, nofollow`. A header may apply to one agent only (`FishBot: nofollow`); a directive with
a value, such as `max-snippet: 20`, has the same syntax and is recognized by its name.
"""

from collections.abc import Iterator, Sequence
from typing import Final

_WITH_VALUE: Final = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_NOT_FOLLOWED: Final = frozenset({"nofollow", "none"})
_LONGEST: Final = 2_000  # characters of all directives


def of_headers(values: Sequence[str], token: str) -> str:
    """Return the directives of `X-Robots-Tag` fields that apply to every agent or to this product token."""
    ours = token.lower()
    return ", ".join(part for value in values for agent, part in _parts(value) if agent in ("", ours))[:_LONGEST]


def combined(meta: str | None, header: str) -> str:
    """Join the directives of meta and header, in that order and without duplicates."""
    known = {part.strip().lower() for part in (meta or "").split(",")}
    new = [part.strip() for part in header.split(",") if part.strip().lower() not in known]
    return ", ".join([*([meta] if meta else []), *new])[:_LONGEST]


def forbids_following(robots: str) -> bool:
    """Return whether the page's links must not be followed; the strictest directive wins."""
    parts = robots.lower().split(",")
    return any(":" not in part and not _NOT_FOLLOWED.isdisjoint(part.split()) for part in parts)


def _parts(value: str) -> Iterator[tuple[str, str]]:
    """Yield each directive of a field with its agent; an agent applies to all directives after it in the field."""
    agent = ""
    for part in value.split(","):
        name, colon, rest = part.partition(":")
        if colon and name.strip().lower() not in _WITH_VALUE and len(name.split()) == 1:
            agent, part = name.strip().lower(), rest
        if part.strip():
            yield agent, part.strip()

"""Parse what headers say about a page: robots directives, which `<meta name=robots>` has, too, and the URLs in `Link:
<…>; rel="canonical"` and `Refresh: 0; url=…`. Pure.

Directives are lists such as `noindex, nofollow`. A header may apply to one agent only (`FishBot: nofollow`); a
directive with a value, such as `max-snippet: 20`, has the same syntax and is recognized by its name. URLs are relative
to the page itself and not to its `<base>`, so they are returned as absolute URLs.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urljoin

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


LONGEST_URL: Final = 4_096

_REL: Final = re.compile(r""";\s*+rel\s*+=\s*+(?:"([^"]*)"|([^\s;,"]++))""", re.IGNORECASE)
_REFRESH: Final = re.compile(r"""\s*+[\d.]++\s*+[;,]?\s*+(?:url\s*+=\s*+)?["']?([^"']+)""", re.IGNORECASE)


def refresh_target(content: str) -> str | None:
    """Return the target of a refresh, as written; None if it reloads the page itself."""
    found = _REFRESH.match(content)
    return found[1].strip() if found else None


def canonical_of(values: Sequence[str], page: str) -> str | None:
    """Return the first canonical URL in the `Link` fields of a page, as an absolute URL."""
    for value in values:
        for part in value.split("<")[1:]:
            target, _, parameters = part.partition(">")
            rel = _REL.search(parameters)
            if rel and "canonical" in (rel[1] or rel[2] or "").lower().split():
                return _absolute(page, target)
    return None


def refresh_of(value: str, page: str) -> str | None:
    """Return the target of a `Refresh` field as an absolute URL."""
    target = refresh_target(value)
    return None if target is None else _absolute(page, target)


def _absolute(page: str, written: str) -> str | None:
    target = _as_sent(written).strip()
    try:
        url = urljoin(page, target) if target else ""
    except ValueError:
        return None
    return url if 0 < len(url) <= LONGEST_URL else None


def _as_sent(value: str) -> str:
    """Decode as UTF-8 a field that was read as Latin-1: many servers send UTF-8 in headers."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value

"""Endless URL spaces: every URL exists and links to more. A rule must stop each of them, not only a size limit."""

from collections.abc import Callable
from urllib.parse import parse_qs

from xxhash import xxh3_64_hexdigest

from tests.support.bad_http_server import Asked

Trap = Callable[[Asked], str]
"""A request -> the page it gets."""


def calendar(asked: Asked) -> str:
    """Months for ever, with nothing in them (B46)."""
    month = int(_value(asked, "month", "1"))
    return _page("No events", *(f"/trap/calendar?month={month + step}" for step in (1, 2, 12)))


def visits(asked: Asked) -> str:
    """A session id that changes with each visit, in a parameter with an unknown name (B47)."""
    visit = _value(asked, "visit", "0")
    return _page("Welcome", *(f"/trap/visits?visit={xxh3_64_hexdigest((visit + turn).encode())}" for turn in "abc"))


def sessions(asked: Asked) -> str:
    """The same page under a new session in every link (B47)."""
    number = xxh3_64_hexdigest(asked.target.encode())
    return _page(
        "Session",
        f"/trap/sessions?sid={number}",
        f"/trap/sessions;jsessionid={number}",
        f"/trap/sessions?PHPSESSID={number}&utm_source={number}",
    )


def deeper(asked: Asked) -> str:
    """A relative link that makes the path longer each time (B49)."""
    return _page(f"Deeper {len(asked.target)}", "deeper/")


def pairs(asked: Asked) -> str:
    """Two segments that take turns (B48)."""
    return _page(f"Pairs {len(asked.target)}", "a/b/", "b/a/")


def segments(asked: Asked) -> str:
    """A new segment each time (B48)."""
    return _page(f"Segments {len(asked.target)}", f"s{asked.target.count('/')}/")


def queries(asked: Asked) -> str:
    """A query that grows (B49)."""
    return _page(f"Queries {len(asked.target)}", f"{asked.target}{'&' if '?' in asked.target else '?'}more=1")


def variants(_asked: Asked) -> str:
    """One page in many spellings (B51)."""
    spellings = (
        "#a",
        "?#b",
        "../variants/",
        "./",
        "//127.0.0.1:{port}/trap/variants/",
        "HTTP://127.1:{port}/trap/variants/",
    )
    return _page("Variants", *spellings)


TRAPS: dict[str, tuple[Trap, int]] = {
    "/trap/calendar": (calendar, 250),
    "/trap/visits": (visits, 250),
    "/trap/sessions": (sessions, 1),
    "/trap/deeper/": (deeper, 3),
    "/trap/pairs/": (pairs, 20),
    "/trap/segments/": (segments, 40),
    "/trap/queries": (queries, 60),
    "/trap/variants/": (variants, 1),
}
"""The start path of each trap, and the maximum number of requests that it may cost."""


def trap_of(path: str) -> Trap | None:
    """Return the trap that this path belongs to, if any."""
    start = next((start for start in TRAPS if path.partition(";")[0].startswith(start)), None)
    return TRAPS[start][0] if start else None


def _value(asked: Asked, name: str, default: str) -> str:
    return parse_qs(asked.target.partition("?")[2]).get(name, [default])[0]


def _page(title: str, *links: str) -> str:
    anchors = "".join(f'<a href="{link}">x</a>' for link in links)
    return f"<!doctype html><title>{title}</title><h1>{title}</h1>{anchors}"

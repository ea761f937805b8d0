"""The responses of the demo site for each path. `server` serves them."""

from dataclasses import dataclass, field
from html import escape
from http import HTTPStatus

SEAS = ("Amber Bay", "Cold Reach", "Glass Sound", "Lantern Deep", "Mirror Strait", "Quiet Shelf")
FISH = ("Bream", "Char", "Dory", "Eelpout", "Goby", "Hake", "Lumpfish", "Pollack", "Wrasse")
HOME = "/"
MOVED = "/old-map"  # redirects home
MISSING = "/seas/atlantis"  # linked, but does not exist
PAGES = 1 + len(SEAS) + len(SEAS) * len(FISH)


@dataclass(frozen=True, slots=True)
class DemoResponse:
    """An HTTP response."""

    status: HTTPStatus
    body: str
    headers: dict[str, str] = field(default_factory=dict)


def answer(path: str) -> DemoResponse:
    """Return the response to a GET of this path."""
    if path == "/robots.txt":
        return DemoResponse(HTTPStatus.OK, "User-agent: *\nAllow: /\n", {"Content-Type": "text/plain"})
    if path == MOVED:
        return DemoResponse(HTTPStatus.MOVED_PERMANENTLY, _page("Moved", "The map has moved.", []), {"Location": HOME})
    if path in SITE:
        return DemoResponse(HTTPStatus.OK, SITE[path])
    return DemoResponse(HTTPStatus.NOT_FOUND, _page("Not on the map", "There is nothing here.", [(HOME, "Home")]))


def _address(sea: str, fish: str | None = None) -> str:
    parts = ["seas", sea, *([fish] if fish else [])]
    return "/" + "/".join(part.lower().replace(" ", "-") for part in parts)


def _home() -> str:
    links = [(_address(sea), sea) for sea in SEAS]
    return _page(
        "The Shoal Atlas", "Six seas, and who lives in them.", [*links, (MOVED, "The old map"), (MISSING, "Atlantis")]
    )


def _sea(sea: str) -> str:
    links = [(_address(sea, fish), f"{fish} of the {sea}") for fish in FISH]
    return _page(sea, f"The {len(FISH)} fish of the {sea}.", [*links, (HOME, "All seas")])


def _fish(sea: str, fish: str) -> str:
    following = FISH[(FISH.index(fish) + 1) % len(FISH)]
    elsewhere = SEAS[(SEAS.index(sea) + 1) % len(SEAS)]
    links = [
        (_address(sea, following), f"{following} of the {sea}"),
        (_address(elsewhere, fish), f"{fish} of the {elsewhere}"),
        (_address(sea), sea),
        (HOME, "All seas"),
    ]
    return _page(f"{fish} of the {sea}", f"The {fish.lower()} swims in the {sea}, mostly at dusk.", links)


def _page(title: str, text: str, links: list[tuple[str, str]]) -> str:
    items = "".join(f'<li><a href="{escape(to)}">{escape(name)}</a></li>' for to, name in links)
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><meta name="description" content="{escape(text)}">'
    body = f"<h1>{escape(title)}</h1><p>{escape(text)}</p><ul>{items}</ul>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


SITE = {
    HOME: _home(),
    **{_address(sea): _sea(sea) for sea in SEAS},
    **{_address(sea, fish): _fish(sea, fish) for sea in SEAS for fish in FISH},
}

"""The site of `shoal demo`: a field guide to fish that do not exist, with defects planted for its audit.

The pages are generated from the tables below with fixed random seeds, so every visitor of an edition sees the same
pages. A new edition changes some pages, adds a few and removes one, so that a recrawl finds differences.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from http import HTTPStatus
from random import Random
from typing import Any, Final

from shoal.base.clock import Clock
from shoal.cli.demo_server import DemoRequest, DemoResponse
from shoal.cli.demo_site_looks import SCRIPT, STYLE, Shape, portrait

NAME: Final = "The Shoal Atlas"
MOTTO: Final = "A field guide to fish that nobody has seen."


@dataclass(frozen=True, slots=True)
class Sea:
    """A sea of the guide; `hue` colours its fish."""

    name: str
    hue: int
    about: str

    @property
    def path(self) -> str:
        return f"/seas/{_slug(self.name)}"


SEAS: Final = (
    Sea("Amber Bay", 36, "Shallow and warm, and at noon as yellow as tea. Fishers say that it hums before rain."),
    Sea("Cold Reach", 205, "A long arm of ice water. What swims here swims slowly, and remembers where it has been."),
    Sea("Copper Narrows", 18, "The tide runs through these straits like a train, and everything in them is narrow."),
    Sea("Glass Sound", 172, "So clear that boats seem to hang in the air. Its fish have learned to be nearly nothing."),
    Sea("Lantern Deep", 282, "No light reaches the bottom, so the bottom has made its own. Best visited at night."),
    Sea(
        "Mirror Strait", 228, "Flat from shore to shore. The birds above it and the fish below it trade places at dawn."
    ),
    Sea("Quiet Shelf", 128, "Sand, weed and silence. Nothing has happened here for a very long time, and it shows."),
    Sea(
        "Thorn Gulf", 340, "Reefs on every side and a current in the middle. Whoever lives here has spines or friends."
    ),
)
KINDS: Final[Mapping[str, Shape]] = {
    "Bream": Shape(tall=34, tail=26, fin=16),
    "Char": Shape(tall=19, tail=22, fin=9),
    "Dory": Shape(tall=42, tail=16, fin=24),
    "Eelpout": Shape(tall=11, tail=8, fin=6),
    "Goby": Shape(tall=16, tail=15, fin=14),
    "Hake": Shape(tall=18, tail=18, fin=8),
    "Lumpfish": Shape(tall=44, tail=12, fin=10),
    "Pollack": Shape(tall=22, tail=24, fin=11),
    "Ray": Shape(tall=38, tail=6, fin=4),
    "Sole": Shape(tall=30, tail=10, fin=30),
    "Tang": Shape(tall=36, tail=30, fin=20),
    "Wrasse": Shape(tall=25, tail=18, fin=17),
}
WORDS: Final = (
    *("Ashen", "Banded", "Bashful", "Brass", "Candle", "Clouded", "Crooked", "Dappled", "Drowsy", "Ember", "Feathered"),
    *("Frosted", "Gilded", "Hollow", "Humming", "Ink", "Ivory", "Lesser", "Marbled", "Midnight", "Painted", "Patient"),
    *("Pebble", "Royal", "Saffron", "Silken", "Sleeping", "Solemn", "Spectral", "Striped", "Velvet", "Wandering"),
)
HABITS: Final = (
    "It sleeps with one eye open and the other eye on the weather, and it has never been late for a tide",
    "Two of them will share a rock for years without a word; a third is asked to leave by sunset",
    "By day it pretends to be a leaf. By night it pretends, with less success, to be a larger leaf",
    "It follows ships for their music and turns back when the cook begins to sing along",
    "When it is startled it swims a perfect circle, looks embarrassed, and then swims another one",
    "It builds a small wall of shells in spring, takes it down in autumn, and keeps the best shells",
    "The young ones travel in rows of seven, and an eighth is always looking for a row",
    "It can tell north from south by taste and considers both of them overrated",
    "Nobody has seen it turn left. It reaches the left side of things by going around them",
    "It greets divers politely, inspects their watches, and disapproves of most of them",
    "In storms it hides below anchors, which is why anchors of this coast are polished on one side",
    "It carries a single pebble through its whole life and gives it away at the end",
)
MEALS: Final = (
    "Its table is plain: sea grass, lamp oil shrimp and now and then a button",
    "It eats only what drifts past at eye height, and waits with great dignity for it",
    "Breakfast is plankton, lunch is better plankton, and supper is skipped on principle",
    "It grazes on moss that grows on old bells, and rings them by accident",
    "Snails are its favourite, provided that they have finished what they were doing",
    "It prefers crumbs of ship's biscuit, and knows the timetable of every ferry",
    "A little sand, a few worms, and anything that falls from a picnic",
    "It hunts in pairs: one of them distracts the crab with questions",
)
STORIES: Final = (
    "The first specimen was drawn by a lighthouse keeper who had run out of ships to draw",
    "Sailors count it as good luck, except on Thursdays, when they count it twice",
    "A museum once owned a jar with one inside. The label is still there, and so is the lid",
    "Children of the coast learn its name before their own street's",
    "Its portrait hangs in the harbour office, slightly crooked, as it would have wanted",
    "Old charts mark its shoals with a small crown, and newer ones with a question mark",
    "An expedition of nine boats looked for it for a month and found that it had been following them",
    "It is on the coat of arms of two villages that have not spoken for a century",
    "The sound it makes was taken for a loose plank until the ship had none left",
    "Every year somebody claims to have caught one, and every year it is a boot",
)
KEEPERS: Final = ("Ada", "Bruno", "Clio", "Dorit", "Emil", "Fanny", "Gus", "Hilde")
FISH_PER_SEA, POSTS_PER_LIST, POSTS, TANKS = 30, 5, 38, 12

HOME, ABOUT, LOGBOOK, TANK_LIST, HOUSE_RULES = "/", "/about", "/logbook", "/tanks", "/keepers/house-rules"
OLD_MAP, OLDER_MAP, COMPASS, NEEDLE, SEASONAL = "/old-map", "/map", "/compass", "/needle", "/fish-of-the-week"
MISSING, SUNKEN, ORPHAN = "/seas/atlantis", "/seas/lemuria", "/ghost-fish"


@dataclass(frozen=True, slots=True)
class Fish:
    """A fish of the guide. Its portrait has the shape of its kind and the colour of its sea."""

    name: str
    kind: str
    sea: Sea
    length: int
    depth: int
    sightings: int

    @property
    def path(self) -> str:
        return f"/fish/{_slug(self.name)}"


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the site. A field that is `None` leaves out its element; most defects are made in this way."""

    title: str | None
    description: str | None
    body: str  # HTML below the heading
    heading: str | None = None  # by default the title
    canonical: str | None = None  # by default the page itself
    head: str = ""
    status: HTTPStatus = HTTPStatus.OK
    location: str = ""
    slow_seconds: float = 0.0
    is_listed: bool = True  # in the sitemap


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")


@cache
def all_fish() -> tuple[Fish, ...]:
    """Return every fish, sea by sea."""
    random = Random("fish")
    names = [f"{word} {kind}" for word in WORDS for kind in KINDS]
    chosen = iter(random.sample(names, len(SEAS) * FISH_PER_SEA))
    return tuple(
        Fish(name, name.rpartition(" ")[2], sea, random.randint(4, 240), random.randint(2, 900), random.randint(1, 99))
        for sea in SEAS
        for name in sorted(next(chosen) for _ in range(FISH_PER_SEA))
    )


def defects() -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """Return the planted defects: for each finding code, a page and the changes that cause the finding."""
    fish = all_fish()[::17]
    return {
        "title_missing": (fish[0].path, {"title": None, "heading": fish[0].name}),
        "title_duplicate": (fish[1].path, {"title": fish[2].name, "heading": fish[1].name}),
        "description_missing": (fish[3].path, {"description": None}),
        "h1_missing": (fish[4].path, {"heading": ""}),
        "image_alt_missing": (fish[5].path, {"body": f'<p><img src="{fish[5].path}.svg"></p>{_profile(fish[5])}'}),
        "thin_content": (fish[6].path, {"body": "<p>To be written.</p>"}),
        "canonical_broken": (fish[7].path, {"canonical": SUNKEN}),
        "structured_data_invalid": (fish[8].path, {"head": '<script type="application/ld+json">{"name":</script>'}),
        "server_error": (fish[9].path, {"status": HTTPStatus.INTERNAL_SERVER_ERROR}),
        "slow_page": (fish[10].path, {"slow_seconds": 2.5}),
        "redirect_chain": (OLD_MAP, {"status": HTTPStatus.MOVED_PERMANENTLY, "location": OLDER_MAP}),
        "redirect_loop": (COMPASS, {"status": HTTPStatus.MOVED_PERMANENTLY, "location": NEEDLE}),
        "redirect_temporary": (SEASONAL, {"status": HTTPStatus.FOUND, "location": fish[11].path}),
    }


ELSEWHERE: Final = {
    "broken_link": MISSING,
    "orphan_page": ORPHAN,
    "sitemap_error": SUNKEN,
    "sitemap_missing_page": "/visitors/1",
    "blocked_page_linked": HOUSE_RULES,
    "page_too_deep": f"{LOGBOOK}/1",
}
"""Defects that do not belong to a single page: for each finding code, a URL."""


def build(edition: int) -> dict[str, Page]:
    """Return the pages of an edition by their paths."""
    gone = {fish.path for fish in all_fish()[5 : 5 + 61 * (edition - 1) : 61]}
    fish = [_seen_again(one, place, edition) for place, one in enumerate(all_fish()) if one.path not in gone]
    pages = {
        HOME: _home(edition),
        ABOUT: Page(f"About {NAME}", "How this guide was made, and why.", _about()),
        TANK_LIST: _tank_list(),
        OLD_MAP: Page(None, None, "", is_listed=False),
        OLDER_MAP: Page(None, None, "", status=HTTPStatus.MOVED_PERMANENTLY, location=HOME, is_listed=False),
        COMPASS: Page(None, None, "", is_listed=False),
        NEEDLE: Page(None, None, "", status=HTTPStatus.MOVED_PERMANENTLY, location=COMPASS, is_listed=False),
        SEASONAL: Page(None, None, "", is_listed=False),
        ORPHAN: Page("The ghost fish", "The only fish that no page of this guide leads to.", _paragraphs(ORPHAN)),
        **{sea.path: _sea_page(sea, fish) for sea in SEAS},
        **{f"/kinds/{_slug(kind)}": _kind_page(kind) for kind in KINDS},
        **{one.path: _fish_page(one, fish) for one in fish},
        **dict(_logbook(POSTS + edition - 1)),
        **{f"{TANK_LIST}/{number}": _tank(number, fish) for number in range(1, TANKS + 1)},
        **{f"/visitors/{number}": _visitor(number) for number in range(1, TANKS + 1)},
    }
    pages |= {path: replace(pages[path], **change) for path, change in defects().values() if path in pages}
    if edition > 1:
        pages[MISSING] = Page("Atlantis", "Found again, to everybody's surprise.", _paragraphs(MISSING))
    for path in gone:
        pages[path] = Page("It has moved on", None, "", status=HTTPStatus.GONE, is_listed=False)
    return pages


def _seen_again(fish: Fish, place: int, edition: int) -> Fish:
    """Return the fish with its sightings since the first edition. In each edition, every ninth fish is seen again."""
    return replace(fish, sightings=fish.sightings + sum((place + one) % 9 == 0 for one in range(2, edition + 1)))


def _home(edition: int) -> Page:
    cards = "".join(
        f'<a class="sea" href="{sea.path}" style="--hue:{sea.hue}"><b>{sea.name}</b><span>{sea.about}</span></a>'
        for sea in SEAS
    )
    kinds = " · ".join(_link(f"/kinds/{_slug(kind)}", kind) for kind in KINDS)
    more = [(SEASONAL, "Fish of the week"), (OLD_MAP, "The old map"), (COMPASS, "The compass"), (MISSING, "Atlantis")]
    links = " · ".join(_link(path, text) for path, text in [*more, (HOUSE_RULES, "House rules")])
    body = f'<p class="motto">{MOTTO} Edition {edition}.</p><div class="seas">{cards}</div>'
    return Page(
        f"{NAME}: {MOTTO[:-1].lower()}",
        f"{len(all_fish())} fish of {len(SEAS)} seas, drawn from memory.",
        f"{body}<h2>By kind</h2><p>{kinds}</p><h2>Also in this guide</h2><p>{links}</p>",
        heading=NAME,
    )


def _about() -> str:
    lines = [
        f"{NAME} is generated by <code>shoal demo</code>: its seas, its fish and their portraits are made up, and all "
        "of it is gone when the demo ends.",
        "It is a site like any other: it has a robots.txt and a sitemap, its pages can be requested conditionally, "
        "some of them are empty without a browser that runs their scripts, and some change with each edition.",
        f"It also has {len(defects()) + len(ELSEWHERE)} kinds of defects, which the audit of the demo finds: links "
        "that lead nowhere, redirects that run in a circle, pages without a title, and others.",
    ]
    return "".join(f"<p>{line}</p>" for line in lines)


def _sea_page(sea: Sea, fish: list[Fish]) -> Page:
    cards = "".join(_card(one) for one in fish if one.sea is sea)
    return Page(
        sea.name, f"The fish of the {sea.name}. {sea.about}", f'<p>{sea.about}</p><div class="cards">{cards}</div>'
    )


def _kind_page(kind: str) -> Page:
    """Return the page of a kind. It also lists fish whose pages later editions have removed."""
    members = [one for one in all_fish() if one.kind == kind]
    about = f"All {len(members)} fish of the guide that are a kind of {kind.lower()}."
    return Page(
        f"Every {kind.lower()}", about, f'<p>{about}</p><div class="cards">{"".join(map(_card, members))}</div>'
    )


def _fish_page(fish: Fish, others: list[Fish]) -> Page:
    place = others.index(fish)
    near = [others[(place + step) % len(others)] for step in (1, 2, 3)]
    picture = f'<img class="portrait" src="{fish.path}.svg" alt="Portrait of the {fish.name}" width="400" height="240">'
    return Page(
        fish.name,
        f"The {fish.name} of the {fish.sea.name}: {fish.length} cm long, seen {fish.sightings} times.",
        f'{picture}{_profile(fish)}<h2>Nearby</h2><div class="cards">{"".join(map(_card, near))}</div>',
    )


def _profile(fish: Fish) -> str:
    facts = {
        "Sea": _link(fish.sea.path, fish.sea.name),
        "Kind": _link(f"/kinds/{_slug(fish.kind)}", fish.kind),
        "Length": f"{fish.length} cm",
        "Depth": f"{fish.depth} m",
        "Sightings": str(fish.sightings),
    }
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{rows}</dl>{_paragraphs(fish.name)}'


def _logbook(count: int) -> Iterator[tuple[str, Page]]:
    """Return the entries of the logbook, and the list pages that link them from the newest to the oldest."""
    for first in range(count, 0, -POSTS_PER_LIST):
        numbers = range(first, max(0, first - POSTS_PER_LIST), -1)
        items = "".join(f'<li><a href="{LOGBOOK}/{number}">{_post_title(number)}</a></li>' for number in numbers)
        place = (count - first) // POSTS_PER_LIST + 1
        older = f'<p><a href="{LOGBOOK}?page={place + 1}">Older entries</a></p>' if numbers[-1] > 1 else ""
        title = "The keepers' logbook" + (f", page {place}" if place > 1 else "")
        body = f"<ul>{items}</ul>{older}{_paragraphs(title)}"
        yield LOGBOOK + (f"?page={place}" if place > 1 else ""), Page(title, f"Entries {numbers[-1]} to {first}.", body)
    for number in range(1, count + 1):
        title = _post_title(number)
        yield f"{LOGBOOK}/{number}", Page(title, f"Entry {number} of the keepers' logbook.", _paragraphs(title))


def _post_title(number: int) -> str:
    random = Random(f"post {number}")
    return f"Watch {number}: {random.choice(KEEPERS)} at the {random.choice(SEAS).name}"


def _tank_list() -> Page:
    items = "".join(f'<li><a href="{TANK_LIST}/{number}">Tank {number}</a></li>' for number in range(1, TANKS + 1))
    text = (
        "Each tank is drawn by a script in your browser; without one it is empty. So a crawler has to run scripts, too."
    )
    return Page(
        "Live tanks", f"{TANKS} tanks that need scripts.", f"<p>{text}</p><ul>{items}</ul>{_paragraphs('tanks')}"
    )


def _tank(number: int, fish: list[Fish]) -> Page:
    """Return a page without content. Its script draws the tank, with a link that is on no other page."""
    inside = Random(f"tank {number}").sample(fish, 5)
    tank = {
        "title": f"Tank {number}",
        "about": f"Five fish that get along, and a visitor. {_sentences(f'tank {number}')}",
        "fish": [{"name": one.name, "path": one.path} for one in inside],
        "visitor": f"/visitors/{number}",
    }
    data = json.dumps(tank).replace("<", "\\u003c")
    body = f'<div id="app"></div><script type="application/json" id="tank">{data}</script>'
    return Page(
        f"Tank {number}", f"What swims in tank {number}.", f'{body}<script src="/tank.js"></script>', heading=""
    )


def _visitor(number: int) -> Page:
    name = Random(f"visitor {number}").choice(KEEPERS)
    return Page(
        f"{name} visits tank {number}",
        f"What {name} saw in tank {number}.",
        _paragraphs(f"visitor {number}"),
        is_listed=False,
    )


def _paragraphs(about: str) -> str:
    return f"<p>{_sentences(about)}</p><p>{_sentences(about + ' again')}</p>"


def _sentences(about: str) -> str:
    random = Random(about)
    return " ".join(f"{random.choice(pool)}." for pool in (HABITS, MEALS, STORIES))


def _card(fish: Fish) -> str:
    picture = f'<img src="{fish.path}.svg" alt="" width="200" height="120" loading="lazy">'
    return f'<a class="card" href="{fish.path}">{picture}<span>{fish.name}</span></a>'


def _link(path: str, text: str) -> str:
    return f'<a href="{path}">{escape(text)}</a>'


FRAME: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
{head}<link rel="stylesheet" href="/atlas.css"></head>
<body><header><a href="/">The Shoal Atlas</a>
<nav><a href="/logbook">Logbook</a> <a href="/tanks">Live tanks</a> <a href="/about">About</a></nav></header>
<main>{main}</main><footer>Made up by <code>shoal demo</code>.</footer></body></html>
"""
NOTHING_HERE: Final = Page("Not in this guide", "", "", status=HTTPStatus.NOT_FOUND)
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


def html(path: str, page: Page) -> str:
    """Return the HTML of a page."""
    canonical = page.canonical or path
    head = [
        "" if page.title is None else f"<title>{escape(page.title)}</title>",
        f'<meta name="description" content="{escape(page.description)}">' if page.description else "",
        "" if page.status >= HTTPStatus.BAD_REQUEST else f'<link rel="canonical" href="{canonical}">',
        page.head,
    ]
    heading = page.title if page.heading is None else page.heading
    main = f"<h1>{escape(heading)}</h1>{page.body}" if heading else page.body
    return FRAME.format(head="".join(head), main=main)


class DemoSite:
    """The site as a visitor sees it: `publish` replaces its pages with those of the next edition."""

    def __init__(self, clock: Clock, seconds_per_page: float) -> None:
        """`seconds_per_page`: average response time, long enough to watch a crawl."""
        self._clock = clock
        self._seconds_per_page = seconds_per_page
        self.edition = 1
        self.pages = build(self.edition)

    def publish(self) -> None:
        self.edition += 1
        self.pages = build(self.edition)

    async def answer(self, request: DemoRequest) -> DemoResponse:
        host = request.headers.get("host", "")
        if (file := self._file(request.path, host)) is not None:
            return file
        page = self.pages.get(request.path, NOTHING_HERE)
        share = Random(request.path).uniform(0.2, 1.8)
        slow = page.slow_seconds if self._seconds_per_page else 0.0
        await self._clock.sleep(share * self._seconds_per_page + slow)
        body = html(request.path, page).encode()
        headers = {"Content-Type": "text/html; charset=utf-8", **HEADERS}
        if page.location:
            headers["Location"] = page.location
        if page.status is HTTPStatus.OK:
            headers["ETag"] = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            if request.headers.get("if-none-match") == headers["ETag"]:
                return DemoResponse(HTTPStatus.NOT_MODIFIED, headers=headers)
        return DemoResponse(page.status, body, headers)

    def _file(self, path: str, host: str) -> DemoResponse | None:
        """Return a file that is not a page: robots.txt, the sitemap, style sheets, scripts or pictures."""
        if path == "/sitemap.xml":
            listed = [path for path, page in self.pages.items() if page.is_listed]
            urls = "".join(f"<url><loc>http://{host}{path}</loc></url>" for path in [*listed, SUNKEN])
            return _text("application/xml", f'<urlset xmlns="{SITEMAPS}">{urls}</urlset>')
        if path in FILES:
            kind, text = FILES[path]
            return _text(kind, text.format(host=host) if kind == "text/plain" else text)
        fish = next((one for one in all_fish() if path in (f"{one.path}.svg", f"{one.path}/swimming.svg")), None)
        if fish is None:
            return None
        picture = portrait(fish.name, fish.sea.hue, KINDS[fish.kind], with_water=path == f"{fish.path}.svg")
        return _text("image/svg+xml", picture)


ROBOTS: Final = """User-agent: *
Disallow: /keepers/
Content-Signal: search=yes, ai-input=yes, ai-train=yes
Sitemap: http://{host}/sitemap.xml
"""
FILES: Final = {
    "/robots.txt": ("text/plain", ROBOTS),
    "/llms.txt": ("text/plain", f"# {NAME}\n\n> {MOTTO}\n\n- [The guide](http://{{host}}/)\n"),
    "/atlas.css": ("text/css", STYLE),
    "/tank.js": ("text/javascript", SCRIPT),
}
SITEMAPS: Final = "http://www.sitemaps.org/schemas/sitemap/0.9"


def _text(kind: str, text: str) -> DemoResponse:
    return DemoResponse(HTTPStatus.OK, text.encode(), {"Content-Type": f"{kind}; charset=utf-8", **HEADERS})

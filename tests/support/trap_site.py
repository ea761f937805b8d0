"""A site with pages that only look like crawler traps, and with traps: each part has its start path and the number of
pages that a crawl of it may fetch."""

import random
from collections.abc import Callable

Part = Callable[[str], str | None]
"""A path -> the page there, or None."""

PHOTOS, PRODUCTS, SHELLS, PAGES = 400, 400, 300, 5_000
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def page(title: str, text: str, *links: str, image: str = "", script: str = "") -> str:
    anchors = "".join(f'<a href="{link}">more</a>' for link in links)
    picture = f'<img src="{image}">' if image else ""
    return f"<!doctype html><title>{title}</title>{script}<body><p>{text}</p>{picture}{anchors}"


def gallery(path: str) -> str | None:
    """Photos without a text, all with the same title."""
    photo = int(path.rpartition("/")[2] or 1)
    around = [f"/gallery/{number}" for number in (photo - 1, photo + 1) if 1 <= number <= PHOTOS]
    return page("Gallery", "", *around, image=f"/images/{photo}.jpg") if photo <= PHOTOS else None


def shop(path: str) -> str | None:
    """Products that differ in their names and numbers, each of which links to the next ones."""
    product = int(path.rpartition("/")[2] or 0)
    others = [f"/shop/{number}" for number in range(product + 1, product + 4) if number <= PRODUCTS]
    return page(f"Product {product}", "Add to cart", *others) if product <= PRODUCTS else None


def shell(path: str) -> str:
    """Views of an application: the same page everywhere."""
    if path == "/app/":
        return page("Views", "All views", *(f"/app/view/{number}" for number in range(SHELLS)))
    return page("Application", "", script='<script src="/bundle.js"></script>')


def calendar(path: str) -> str:
    """Months and days without an end in both directions, with nothing in them."""
    year, month, *day = map(int, path.removeprefix("/calendar/").split("/"))
    if day:
        name = f"{DAYS[sum((year, month, *day)) % 7]}, {day[0]} {MONTHS[month % 9]} {year}"
        return page(name, f"No events on {name}", f"/calendar/{year}/{month:02}")
    months = [year * 12 + month - 1 + step for step in (-1, 1)]
    around = [f"/calendar/{number // 12}/{number % 12 + 1:02}" for number in months]
    name = f"{MONTHS[month % 9]} {year}"
    return page(name, f"{name} Mo Tu We", *around, *(f"/calendar/{year}/{month:02}/{day:02}" for day in (1, 10, 20)))


def sessions(path: str) -> str:
    """Twenty pages, and a new session in every link."""
    dice, number = random.Random(path), path.partition("page=")[2].partition("&")[0] or "0"
    links = [f"/sessions?page={other}&visit={dice.getrandbits(32):08x}" for other in range(20)]
    return page(f"Chapter {MONTHS[int(number) % 9]}", f"Text of chapter {number}", *links)


def maze(path: str) -> str:
    """Random text, and links to random paths."""
    dice = random.Random(path)
    menu = ("/maze/", "/maze/about")
    links = [f"/maze/{_words(dice, 2, '-')}/{_words(dice, 1)}" for _ in range(dice.randint(4, 9))]
    return page(_words(dice, 3), _words(dice, 80), *menu, *links)


def plain(path: str) -> str | None:
    """Numbered pages that differ only in their numbers: each links to the next one, and to two more."""
    number = int(path.rpartition("/")[2] or 1)
    others = [f"/plain/{other}" for other in (number + 1, 2 * number, 2 * number + 1) if other <= PAGES]
    return page(f"Page {number}", f"This is page {number}.", *others) if number <= PAGES else None


def _words(dice: random.Random, count: int, between: str = " ") -> str:
    return between.join(
        "".join(dice.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(dice.randint(3, 9))) for _ in range(count)
    )


PARTS: dict[str, tuple[Part, int, int]] = {
    "/gallery/1": (gallery, PHOTOS, PHOTOS),
    "/shop/0": (shop, PRODUCTS + 1, PRODUCTS + 1),
    "/app/": (shell, SHELLS + 1, SHELLS + 1),
    "/calendar/2026/01": (calendar, 100, 1_200),
    "/sessions?page=0&visit=0": (sessions, 100, 400),
    "/maze/": (maze, 700, 1_300),
    "/plain/1": (plain, PAGES, PAGES),
}
"""The start of each part, and the least and the greatest number of pages that a crawl of it fetches."""


def answer(path: str) -> str | None:
    """Return the page at a path; the front page leads to every part."""
    if path == "/":
        return page("Home", "Welcome", *PARTS)
    for start, (part, _, _) in PARTS.items():
        if path.startswith(start.partition("?")[0].rstrip("0123456789/").partition("/2026")[0]):
            return part(path)
    return None

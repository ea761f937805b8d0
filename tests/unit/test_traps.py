"""Detection of traps, and the memory of URL patterns in a walker."""

import pytest

from shoal.base.url import Url
from shoal.crawl.frontier import traps
from shoal.crawl.frontier.fates import Fate, TrapState
from shoal.crawl.frontier.traps import (
    GROWTH,
    LONGEST_PATTERN,
    REPEAT,
    STORED_FROM,
    TrapWatch,
    areas_of,
    kind_of,
    pattern_of,
    patterns_of,
    trap_of,
)
from shoal.crawl.frontier.values import NewUrl, WalkerBatch
from shoal.extract.page import PageFacts, extract

SITE = "http://example.org"
PATTERN = f"{SITE}/calendar?month="


class Reader:
    """Reads pages of one site with a watch, and adds up the points."""

    def __init__(self) -> None:
        self.watch = TrapWatch(2026)
        self.points: dict[str, int] = {}

    def read(self, path: str, text: str, *links: str, known: int = 0, depth: int = 1, images: int = 0) -> None:
        batch = WalkerBatch()
        facts = extract(f"<title>{text}</title><body>{text}".encode(), "text/html")
        facts.images_hash = images
        new = [NewUrl(0, 0, Url(SITE + link), depth + 1, Fate.OPEN) for link in links]
        self.watch.notice(Url(SITE + path), depth, facts, new, known, batch)
        for pattern, earned in batch.traps.items():
            self.points[pattern] = self.points.get(pattern, 0) + earned.repeats + earned.growth

    def months(self, count: int, text: str = "No events", start: int = 1) -> None:
        for month in range(start, start + count):
            self.read(f"/calendar?month={month}", text.format(month=month), f"/calendar?month={month + 1}")


def test_pages_that_repeat_each_other_and_lead_to_more_of_them_get_points() -> None:
    reader = Reader()
    reader.months(101)
    assert reader.points == {PATTERN: 100 * REPEAT}
    reader.watch.learn({PATTERN: TrapState.QUARANTINED})
    reader.months(10, start=102)
    assert reader.points == {PATTERN: 100 * REPEAT}


def test_few_points_are_not_stored() -> None:
    reader = Reader()
    reader.months(STORED_FROM // REPEAT)
    assert reader.points == {}


def test_pages_that_lead_nowhere_are_not_a_trap() -> None:
    reader = Reader()
    for number in range(1000):
        reader.read(f"/app/{number}", "Application")
    assert reader.points == {}


def test_pages_that_lead_to_pages_of_another_kind_are_not_a_trap() -> None:
    reader = Reader()
    for number in range(1000):
        reader.read(f"/album/{number}", "Album", f"/photo/{number}")
        reader.read(f"/photo/{number}", "Photo", f"/photo/{number + 2000}", images=number + 1)
    assert reader.points == {}


def test_two_kinds_of_pages_that_lead_to_each_other_are_a_trap() -> None:
    reader = Reader()
    for number in range(200):
        reader.read(f"/here/{number}", "Here", f"/there/{number}")
        reader.read(f"/there/{number}", "There", f"/here/{number + 1}")
    assert min(reader.points[f"{SITE}/here/0"], reader.points[f"{SITE}/there/0"]) > 150 * REPEAT


def test_pages_with_texts_of_their_own_take_points_away() -> None:
    reader = Reader()
    reader.months(51)
    for month in range(1000, 1100):
        reader.read(f"/calendar?month={month}", "A party " + "x" * (month - 999), "/more")
    assert reader.points == {PATTERN: 0}


@pytest.mark.parametrize("path", ["/month/{}", "/calendar/{}", "/a/{}/05", "/log?date={}-05-01", "/events?year={}"])
def test_pages_that_differ_only_in_numbers_repeat_each_other_if_their_dates_are_far_away(path: str) -> None:
    reader = Reader()
    for year in range(2030, 2100):
        reader.read(path.format(year), f"Nothing in {year}", path.format(year + 1))
    assert sum(reader.points.values()) == 69 * REPEAT


@pytest.mark.parametrize("path", ["/a/{}", "/weather/{}/05", "/weather?date={}-05-01", "/page?n={}"])
def test_pages_that_differ_only_in_numbers_count_little_otherwise(path: str) -> None:
    reader = Reader()
    for year in range(1950, 2029):
        reader.read(path.format(year), f"{year} degrees", path.format(year + 1))
    assert reader.points == {}


def test_a_page_far_from_the_seeds_counts_without_new_links() -> None:
    reader = Reader()
    for number in range(51):
        reader.read(f"/a/{number}", "Nothing", depth=30)
    assert reader.points == {f"{SITE}/a/0": 50 * REPEAT}


def test_a_part_in_which_all_links_are_new_gets_points_and_one_page_without_takes_some_away() -> None:
    reader = Reader()
    names = ["".join(chr(97 + int(digit)) for digit in str(10_000 + number)) for number in range(2000)]
    for number, name in enumerate(names[:200]):
        links = [f"/maze/{names[5 * number + link + 1]}" for link in range(5)]
        reader.read(f"/maze/{name}", name, *links, known=3)
    assert reader.points == {f"{SITE}/maze/*": 199 * GROWTH, f"{SITE}/*": 199 * GROWTH}
    reader.read("/maze/end", "The end", known=3)
    assert reader.points[f"{SITE}/maze/*"] == 199 * GROWTH + traps.NO_GROWTH
    reader.read("/maze/back", "Back", "/maze/one", "/maze/two", known=10)
    assert reader.points[f"{SITE}/maze/*"] == 199 * GROWTH + 2 * traps.NO_GROWTH


def test_numbered_pages_are_not_a_maze() -> None:
    reader = Reader()
    for number in range(1, 2500):
        reader.read(f"/p/{number}", "x" * number, f"/p/{2 * number}", f"/p/{2 * number + 1}")
    assert reader.points == {}


def test_pages_whose_numbers_of_links_differ_widely_are_not_a_maze() -> None:
    reader = Reader()
    for number in range(2000):
        name = "".join(chr(97 + int(digit)) for digit in str(10_000 + number))
        links = 60 if number % 10 == 0 else 2
        reader.read(f"/pool/{name}", name, *(f"/pool/{name}/{link}" for link in range(links)))
    assert max(reader.points.values(), default=0) < traps.TRAP_SCORE


def test_what_was_read_is_forgotten_with_the_texts_that_were_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traps, "MOST_TEXTS", 300)
    reader = Reader()
    reader.months(9)
    links = [NewUrl(0, 0, Url(f"{SITE}/new"), 2, Fate.OPEN)]
    for number in range(200):
        reader.watch.notice(
            Url(f"{SITE}/other"), 1, PageFacts("", text_hash=number, text=b"x" * number), links, 0, WalkerBatch()
        )
    reader.months(3, start=100)
    assert reader.points == {}


def test_a_pattern_is_never_longer_than_an_index_entry_of_postgresql() -> None:
    url = Url(f"{SITE}/" + "a/" * 30_000)
    assert max(map(len, patterns_of(url))) == LONGEST_PATTERN
    assert len(pattern_of(url)) == LONGEST_PATTERN


def test_a_pattern_has_no_ids() -> None:
    assert kind_of(Url(f"{SITE}/s/3fa9c2b1/page/7")) == f"{SITE}/s/~/page/0"
    assert kind_of(Url(f"{SITE}/s/0b6f2a1e-8f14-4c3d-9a51-1f2e3d4c5b6a?x=1")) == f"{SITE}/s/~?x="
    assert kind_of(Url("http://3fa9c2b1/3fa9c2b1")) == "http://3fa9c2b1/~"
    assert kind_of(Url(f"{SITE}/blog/article123/iphone15")) == f"{SITE}/blog/article0/iphone0"


def test_the_smallest_pattern_that_was_decided_about_decides() -> None:
    url = Url(f"{SITE}/a/b/c/7")
    assert areas_of(url) == [f"{SITE}/a/b/*", f"{SITE}/a/*", f"{SITE}/*"]
    states = {f"{SITE}/*": TrapState.QUARANTINED}
    assert trap_of(url, states) == f"{SITE}/*"
    states[f"{SITE}/a/*"] = TrapState.RELEASED
    assert trap_of(url, states) is None
    states[f"{SITE}/a/b/c/0"] = TrapState.QUARANTINED
    assert trap_of(url, states) == f"{SITE}/a/b/c/0"

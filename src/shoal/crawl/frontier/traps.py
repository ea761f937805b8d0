"""Detects crawler traps: URL patterns whose pages repeat each other, and parts of a site that grow without end.

Every page that is read adds points to its pattern or subtracts points. A pattern with `TRAP_SCORE` points is
quarantined: its URLs wait until a user looks at the pattern and releases it. The points are stored, so that walkers
share them and a resumed crawl still has them. `docs/guides/crawler-traps.md` explains the rules.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.crawl.frontier.fates import TrapState
from shoal.crawl.frontier.values import NewUrl, TrapPoints, WalkerBatch
from shoal.extract.page import PageFacts

TRAP_SCORE: Final = 40_000
REPEAT: Final = 400  # points for a page that repeats an earlier page
NUMBERS_ONLY: Final = 4  # points for a page that differs from an earlier page only in its numbers
# Points for a page that repeats no earlier page. Such a page speaks against a trap, whose pages mostly repeat each
# other.
NEW_TEXT: Final = -400
GROWTH: Final = 50  # points for a page with only new links, in a part of a site that seems to have no end
CHAIN: Final = 4  # points for a page with only one new link: articles that link to the next article look like that
# Points for a page that leads nowhere or to known pages: one such page in fifty prevents a quarantine.
NO_GROWTH: Final = -2_500
STORED_FROM: Final = 4_000  # minimum score that is stored; lower scores are kept only in memory

MOST_TEXTS: Final = 200_000  # total number of texts kept in memory: about 20 MB
MOST_AREAS: Final = 20_000
DEEP: Final = 20  # links from a seed; beyond this depth, a repeating page counts even if it leads to no new URL
CROSS_LINKS: Final = 4  # a page with more than one known link per this number of new links does not count as growing
MEASURED: Final = 50  # number of pages before the spread of their links is judged
# Maximum standard deviation of the number of new links per page, relative to the mean. On pages that people wrote, this
# number varies more.
SPREAD: Final = 0.75
FIRST_YEAR, YEARS_AHEAD = 1900, 3  # the range of years that a real calendar may have

LONGEST_PATTERN: Final = 2_083  # characters: PostgreSQL's index entries have a maximum size of 2,704 bytes
AREA_LEVELS: Final = 3  # a host, and two levels of directories

_DIGITS = re.compile(r"[0-9]+")
_VALUES = re.compile(r"=[^&]*")
_SEGMENT = re.compile(r"(?<=/)(?:[0-9a-z]{8,}+|[0-9a-f-]{36})(?=/|$)", re.IGNORECASE)
_MIXED = re.compile(r"[0-9][a-z]++[0-9]|[a-z][0-9]++[a-z]", re.IGNORECASE)
_WORD = re.compile(r"[a-z]{4}", re.IGNORECASE)
_NAMED = re.compile(r"=[0-9-]*+[^0-9&-]|(?:[0-9][^0-9]*+){6}|[0-9][a-z]++[0-9]")  # more than a small number
_MONTH = re.compile(r"(?<![0-9])([0-9]{4})[-/_.](?:0?[1-9]|1[0-2])(?![0-9])")
_CALENDAR = re.compile(
    r"(?<![a-z])(?:year|month|week|day|date|cal|calendar|calendrier|calendario|kalender|agenda)(?![a-z])", re.IGNORECASE
)
_YEAR = re.compile(r"(?<![0-9])[0-9]{4}(?![0-9])")


def pattern_of(url: Url) -> str:
    """Return the pattern of a URL, which is the part that it has in common with similar URLs."""
    start = url.index("/", 8)
    path, mark, query = url[start:].partition("?")
    values = _VALUES.sub("=", query) if query else query
    return (url[:start] + _DIGITS.sub("0", path) + mark + values)[:LONGEST_PATTERN]


def kind_of(url: Url) -> str:
    """Return the pattern of a URL without ids, such as a session id in the path."""
    start, end = url.index("/", 8), url.find("?")
    path = url[start:] if end < 0 else url[start:end]
    if _SEGMENT.search(path) is None:
        return pattern_of(url)
    return pattern_of(Url(url[:start] + _SEGMENT.sub(_without_id, path) + url[start + len(path) :]))


def _without_id(segment: re.Match[str]) -> str:
    """Return a path segment, or `~` if the segment is machine-generated, such as `3fa9c2b1` or a UUID."""
    text = segment[0]
    is_id = text.count("-") == 4 or (not text.isdigit() and not text.isalpha() and _is_mixed(text))
    return "~" if is_id else text


def _is_mixed(text: str) -> bool:
    return _MIXED.search(text) is not None or _WORD.search(text) is None


def areas_of(url: Url) -> list[str]:
    """Return the patterns of the parts of a site that contain a URL, smallest first: two levels of directories, then
    the host."""
    path, areas, at = url.partition("?")[0], [], 7
    for _ in range(AREA_LEVELS):
        at = path.find("/", at + 1)
        if at < 0 or at >= LONGEST_PATTERN:
            break
        areas.append(path[: at + 1] + "*")
    return areas[::-1]


def is_area(pattern: str) -> bool:
    """Return whether the pattern describes a part of a site, rather than similar URLs."""
    return pattern.endswith("/*")


def trap_of(url: Url, states: Mapping[str, TrapState]) -> str | None:
    """Return the pattern that keeps a URL in quarantine. If there are decisions about several patterns of the URL, the
    smallest of these patterns counts."""
    for pattern in patterns_of(url):
        state = states.get(pattern)
        if state is not None:
            return pattern if state is TrapState.QUARANTINED else None
    return None


def patterns_of(url: Url) -> Iterator[str]:
    """Yield all patterns that may keep a URL in quarantine, the smallest first."""
    pattern, kind = pattern_of(url), kind_of(url)
    yield pattern
    if kind != pattern:
        yield kind
    yield from areas_of(url)


class Area:
    """Statistics about the pages of a part of a site that may grow without end."""

    __slots__ = ("links", "menu", "pages", "squares")

    def __init__(self) -> None:
        # Size of the menu: the smallest number of known links on any page. (The first page does not count: its links
        # are new.)
        self.menu: int | None = None
        # Number of growing pages, sum of their new links, and sum of the squared numbers of new links.
        self.pages = self.links = self.squares = 0

    def add(self, links: int) -> bool:
        """Add a growing page; return whether all growing pages have about the same number of new links."""
        self.pages += 1
        self.links += links
        self.squares += links * links
        if self.pages < MEASURED:
            return True
        mean = self.links / self.pages
        return self.squares / self.pages - mean * mean <= (SPREAD * mean) ** 2


class Scores:
    """The points that one walker gave to patterns, and the points that it has sent to the store."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self.sent: dict[str, int] = {}

    def add(self, pattern: str, points: int) -> int:
        """Change a score, which is never below 0. Return the points to send to the store, which are 0 until the score
        is high enough."""
        score = self.now[pattern] = max(0, self.now.get(pattern, 0) + points)
        sent = self.sent.get(pattern)
        if sent is None and score < STORED_FROM:
            return 0
        self.sent[pattern] = score
        return score - (sent or 0)

    def clear(self) -> None:
        self.now.clear()
        self.sent.clear()


class TrapWatch:
    """Gives points to the patterns of the pages that one walker reads."""

    def __init__(self, year: int) -> None:
        self._last_year = year + YEARS_AHEAD
        self._texts: dict[str, set[int]] = {}
        self._kept = 0
        self._repeated: set[str] = set()  # patterns with a page that repeats an earlier page
        self._repeats = Scores()
        self._growth = Scores()
        self._areas: dict[str, Area] = {}
        self._states: dict[str, TrapState] = {}

    def learn(self, states: dict[str, TrapState]) -> None:
        """Update the pattern states with the stored decisions of all walkers and users."""
        self._states = states

    def holds(self, url: Url) -> bool:
        """Return whether the URL belongs to a pattern in quarantine."""
        return bool(self._states) and trap_of(url, self._states) is not None

    def notice(
        self, url: Url, depth: int, facts: PageFacts | None, new: list[NewUrl], known: int, batch: WalkerBatch
    ) -> None:
        """Add the points of a newly read page to the batch. `new`: the URLs that the page links to and that were not
        known before; `known`: the number of other URLs of the crawl that it links to."""
        is_compared = facts is not None and facts.text_hash is not None and (new or depth > DEEP)
        if not is_compared and not self._growth.now:
            return  # on most sites, most pages lead to no new URLs
        pattern = kind_of(url)
        is_first = pattern not in self._texts
        is_new_text = is_compared and facts is not None and self._compare(pattern, url, depth, facts, new, batch)
        self._measure(url, [pattern] if not is_first else [], len(new) if is_new_text else 0, known, batch)

    def forget(self) -> None:
        """Forget all pages, because pages may be read again, and a page that is read again repeats its own text."""
        for memory in (self._texts, self._repeated, self._repeats, self._growth, self._areas):
            memory.clear()
        self._kept = 0

    def _compare(
        self, pattern: str, url: Url, depth: int, facts: PageFacts, new: list[NewUrl], batch: WalkerBatch
    ) -> bool:
        """Compare a page with earlier pages of its pattern; return whether it repeats none of these pages."""
        texts = self._texts.get(pattern)
        if texts is None:
            texts = self._texts[pattern] = set()
        whole = hash((facts.title, facts.text_hash, facts.images_hash))
        skeleton = hash((facts.skeleton(), facts.images_hash))
        is_repeat, is_similar = whole in texts, skeleton in texts
        if not is_repeat:
            self._keep(texts, whole, skeleton)
        if not is_similar:
            if pattern in self._repeats.now:
                self._add(pattern, url, batch, repeats=NEW_TEXT)
            return True
        is_repeat = is_repeat or self._is_no_date(url)
        self._repeated.add(pattern)
        if depth > DEEP or any(kind_of(one.url) in self._repeated for one in new):
            self._add(pattern, url, batch, repeats=REPEAT if is_repeat else NUMBERS_ONLY)
        return not is_repeat

    def _is_no_date(self, url: Url) -> bool:
        """Return whether a URL contains a date that no real calendar needs: a year far away, or a month or a day
        without a plausible year."""
        if _CALENDAR.search(url):
            return not any(map(self._is_near, _YEAR.findall(url)))
        month = _MONTH.search(url)
        return month is not None and not self._is_near(month[1])

    def _is_near(self, year: str) -> bool:
        return FIRST_YEAR <= int(year) <= self._last_year

    def _measure(self, url: Url, patterns: list[str], links: int, known: int, batch: WalkerBatch) -> None:
        """Check whether a page looks like part of a maze, in which every page has a different text and name and links
        only to new pages.

        `patterns`: the pattern of the page, unless this is the first page with that pattern; `links`: the number of new
        links, or 0 if the page repeats an earlier text. Known links that occur on every page are the menu. Numbered
        pages are not a maze: consecutive numbers show that the site has a finite list of pages.
        """
        areas = areas_of(url)
        if self._states and any(area in self._states for area in areas):
            return  # a user who released a part of a site wants its pages
        is_named = not patterns or _NAMED.search(url, url.index("/", 8)) is not None
        for area in patterns + areas:
            seen = self._areas.get(area)
            if seen is None:
                if links:
                    self._add_area(area)
                continue
            if links and (seen.menu is None or known < seen.menu):
                seen.menu = known
            if not links or (known - (seen.menu or 0)) * CROSS_LINKS > links:
                if self._growth.now.get(area):
                    self._add(area, url, batch, growth=NO_GROWTH)
            elif is_named and seen.add(links):
                self._add(area, url, batch, growth=CHAIN if links == 1 else GROWTH)

    def _add_area(self, area: str) -> None:
        if len(self._areas) >= MOST_AREAS:
            sent = self._growth.sent
            self._areas = {one: seen for one, seen in self._areas.items() if one in sent}
            self._growth.now = dict(sent)
        self._areas[area] = Area()

    def _add(self, pattern: str, url: Url, batch: WalkerBatch, *, repeats: int = 0, growth: int = 0) -> None:
        """Change the scores of a pattern, and add the points to the batch if the score is high enough."""
        if pattern in self._states:
            return
        repeats = self._repeats.add(pattern, repeats) if repeats else 0
        growth = self._growth.add(pattern, growth) if growth else 0
        if repeats or growth:
            earned = batch.traps.setdefault(pattern, TrapPoints(url))
            earned.repeats += repeats
            earned.growth += growth

    def _keep(self, texts: set[int], *found: int) -> None:
        if self._kept >= MOST_TEXTS:
            self.forget()
        texts.update(found)
        self._kept += len(found)


async def trap_states(tx: Tx, crawl: int) -> dict[str, TrapState]:
    """Return the decisions about the patterns of a crawl."""
    return {row["pattern"]: TrapState(row["state"]) for row in await tx.all("traps", crawl=crawl)}


async def count_traps(tx: Tx, crawl: int, urls: list[Url]) -> None:
    """Add URLs that went into quarantine to the counts of their patterns."""
    if not urls:
        return
    states = await trap_states(tx, crawl)
    held = Counter(pattern for url in urls if (pattern := trap_of(url, states)) is not None)
    for pattern, more in sorted(held.items()):
        await tx.execute("count_trap", crawl=crawl, pattern=pattern, count=more)

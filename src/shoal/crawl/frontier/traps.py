"""Crawler traps: URL patterns whose pages repeat each other, and parts of a site that grow without end.

Every page that is read adds points to its pattern, or takes some away. A pattern with `TRAP_SCORE` points is
quarantined: its URLs wait until a user looks at the pattern and releases it. The points are stored, so walkers share
them, and a crawl that is resumed has them. `docs/guides/crawler-traps.md` explains the rules.
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
REPEAT: Final = 400  # points of a page that repeats another one
NUMBERS_ONLY: Final = 4  # points of a page that differs from another one only in its numbers
NEW_TEXT: Final = -400  # points of a page that repeats no other: in a trap, most pages do
GROWTH: Final = 50  # points of a page of which every link is new, in a part of a site without an end
CHAIN: Final = 4  # points of a page with one link, which is new: articles that link to the next one look like that
NO_GROWTH: Final = -2_500  # points of one that leads nowhere, or to pages that are known: one in fifty is enough
STORED_FROM: Final = 4_000  # points; fewer are only remembered

MOST_TEXTS: Final = 200_000  # texts remembered in all: about 20 MB
MOST_AREAS: Final = 20_000
DEEP: Final = 20  # links from a seed; beyond them a page that repeats counts even if it leads to nothing new
CROSS_LINKS: Final = 4  # a page with more than one known link for so many new ones does not grow
MEASURED: Final = 50  # pages, before the spread of their links is judged
SPREAD: Final = 0.75  # of the new links of a page, relative to their mean; pages that people write differ more
FIRST_YEAR, YEARS_AHEAD = 1900, 3  # the dates that a calendar may have

LONGEST_PATTERN: Final = 2_083  # characters: PostgreSQL's index entries have 2,704 bytes at most
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
    """Return the pattern of a URL: what it has in common with others of its kind."""
    start = url.index("/", 8)
    path, mark, query = url[start:].partition("?")
    values = _VALUES.sub("=", query) if query else query
    return (url[:start] + _DIGITS.sub("0", path) + mark + values)[:LONGEST_PATTERN]


def kind_of(url: Url) -> str:
    """Return the pattern of a URL without its ids, such as a session in its path."""
    start, end = url.index("/", 8), url.find("?")
    path = url[start:] if end < 0 else url[start:end]
    if _SEGMENT.search(path) is None:
        return pattern_of(url)
    return pattern_of(Url(url[:start] + _SEGMENT.sub(_without_id, path) + url[start + len(path) :]))


def _without_id(segment: re.Match[str]) -> str:
    """Return a segment of a path, or `~` if nobody wrote it: 3fa9c2b1, or a UUID."""
    text = segment[0]
    is_id = text.count("-") == 4 or (not text.isdigit() and not text.isalpha() and _is_mixed(text))
    return "~" if is_id else text


def _is_mixed(text: str) -> bool:
    return _MIXED.search(text) is not None or _WORD.search(text) is None


def areas_of(url: Url) -> list[str]:
    """Return the patterns of the parts of a site that a URL is in, smallest first: two directories, its host."""
    path, areas, at = url.partition("?")[0], [], 7
    for _ in range(AREA_LEVELS):
        at = path.find("/", at + 1)
        if at < 0 or at >= LONGEST_PATTERN:
            break
        areas.append(path[: at + 1] + "*")
    return areas[::-1]


def is_area(pattern: str) -> bool:
    """Return whether the pattern is a part of a site, and not that of URLs of one kind."""
    return pattern.endswith("/*")


def trap_of(url: Url, states: Mapping[str, TrapState]) -> str | None:
    """Return the pattern that holds a URL in quarantine. The smallest pattern that was decided about decides."""
    for pattern in patterns_of(url):
        state = states.get(pattern)
        if state is not None:
            return pattern if state is TrapState.QUARANTINED else None
    return None


def patterns_of(url: Url) -> Iterator[str]:
    """Yield all patterns that may hold a URL, the smallest first."""
    pattern, kind = pattern_of(url), kind_of(url)
    yield pattern
    if kind != pattern:
        yield kind
    yield from areas_of(url)


class Area:
    """The pages of a part of a site that seem to be without an end."""

    __slots__ = ("links", "menu", "pages", "squares")

    def __init__(self) -> None:
        self.menu: int | None = None  # known links that every page has, except the first: it is where they become known
        self.pages = self.links = self.squares = 0  # pages that grow, their new links, and the squares of these

    def add(self, links: int) -> bool:
        """Add a page that grows; return whether the pages have about the same number of new links."""
        self.pages += 1
        self.links += links
        self.squares += links * links
        if self.pages < MEASURED:
            return True
        mean = self.links / self.pages
        return self.squares / self.pages - mean * mean <= (SPREAD * mean) ** 2


class Scores:
    """The points that one walker gave to patterns, and how many of them it sent to the store."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self.sent: dict[str, int] = {}

    def add(self, pattern: str, points: int) -> int:
        """Change a score, which is never below 0; return what is to be sent: nothing until it is worth it."""
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
        self._repeated: set[str] = set()  # patterns with a page that repeats another one
        self._repeats = Scores()
        self._growth = Scores()
        self._areas: dict[str, Area] = {}
        self._states: dict[str, TrapState] = {}

    def learn(self, states: dict[str, TrapState]) -> None:
        """Take over the decisions of all walkers and people, as stored."""
        self._states = states

    def holds(self, url: Url) -> bool:
        """Return whether the URL belongs to a pattern in quarantine."""
        return bool(self._states) and trap_of(url, self._states) is not None

    def notice(
        self, url: Url, depth: int, facts: PageFacts | None, new: list[NewUrl], known: int, batch: WalkerBatch
    ) -> None:
        """Add the points of a page that was read to the batch. `new`: the URLs that it links to and that were not
        known; `known`: how many other URLs of the crawl it links to."""
        is_compared = facts is not None and facts.text_hash is not None and (new or depth > DEEP)
        if not is_compared and not self._growth.now:
            return  # most pages of most sites lead to nothing new
        pattern = kind_of(url)
        is_first = pattern not in self._texts
        is_new_text = is_compared and facts is not None and self._compare(pattern, url, depth, facts, new, batch)
        self._measure(url, [pattern] if not is_first else [], len(new) if is_new_text else 0, known, batch)

    def forget(self) -> None:
        """Start over: pages may be read again, and a page repeats its own text."""
        for memory in (self._texts, self._repeated, self._repeats, self._growth, self._areas):
            memory.clear()
        self._kept = 0

    def _compare(
        self, pattern: str, url: Url, depth: int, facts: PageFacts, new: list[NewUrl], batch: WalkerBatch
    ) -> bool:
        """Compare a page with the others of its pattern; return whether it repeats none of them."""
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
        """Return whether a URL has a date that no calendar needs: a year far away, or a month or a day without one."""
        if _CALENDAR.search(url):
            return not any(map(self._is_near, _YEAR.findall(url)))
        month = _MONTH.search(url)
        return month is not None and not self._is_near(month[1])

    def _is_near(self, year: str) -> bool:
        return FIRST_YEAR <= int(year) <= self._last_year

    def _measure(self, url: Url, patterns: list[str], links: int, known: int, batch: WalkerBatch) -> None:
        """Compare a page with a maze, in which every page has its own text and name and links only to new ones.

        `patterns`: its pattern, if it is not the first page of it; `links`: new ones, if its text is new. Known links
        that every page has are its menu. Pages that are numbered are not a maze: somebody counted them.
        """
        areas = areas_of(url)
        if self._states and any(area in self._states for area in areas):
            return  # whoever released a part of a site means its pages
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
        """Change the scores of a pattern, and send what is worth it to the store."""
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
    """Return what was decided about the patterns of a crawl."""
    return {row["pattern"]: TrapState(row["state"]) for row in await tx.all("traps", crawl=crawl)}


async def count_traps(tx: Tx, crawl: int, urls: list[Url]) -> None:
    """Count URLs that went into quarantine, by their patterns."""
    if not urls:
        return
    states = await trap_states(tx, crawl)
    held = Counter(pattern for url in urls if (pattern := trap_of(url, states)) is not None)
    for pattern, more in sorted(held.items()):
        await tx.execute("count_trap", crawl=crawl, pattern=pattern, count=more)

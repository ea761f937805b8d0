"""A crawl as columns, the input of all analyzers. A page is identified by its index in the columns, and links refer to
these indexes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypedDict

import numpy as np
import orjson
from numpy.typing import NDArray

from shoal.base.url import Canonicalizer, Url, UrlRefusal, origin
from shoal.crawl.crawl import Crawl
from shoal.crawl.frontier.values import key_of
from shoal.pages.links import LinkFlag

SELF: Final = "\0self"
_AT_ONCE: Final = 20_000  # pages
_LINKS_AT_ONCE: Final = 4_000_000
_DOUBLINGS: Final = 5  # 32 redirects in a row
_LAST: Final = (1 << 63) - 1  # the largest key

Ids = NDArray[np.intp]
Mask = NDArray[np.bool_]

NUMBERS: Final[dict[str, tuple[Any, Any]]] = {
    "number": (np.int64, 0),
    "key": (np.int64, 0),
    "status": (np.int16, 0),
    "depth": (np.int32, 0),
    "duration_ms": (np.float32, np.nan),
    "word_count": (np.int32, -1),
    "bytes": (np.int64, 0),
    "flags": (np.int16, 0),
    "fingerprint": (np.int64, 0),
    "text_hash": (np.int64, 0),
}
"""Numeric columns with their type and the value that means "missing"."""

TEXTS: Final = (
    *("url", "final_url", "content_type", "title", "description", "canonical", "robots", "lang", "h1"),
    *("content_hash", "redirects", "error_code"),
)
"""Text columns; None stands for a missing value."""


class PageColumns:
    """The pages of a crawl in columns, in storage order."""

    def __init__(self, numbers: dict[str, NDArray[Any]], texts: dict[str, list[str | None]]) -> None:
        self._numbers = numbers
        self._texts = texts

    def __len__(self) -> int:
        return len(self._numbers["number"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a numeric column: see `NUMBERS`."""
        return self._numbers[name]

    def text(self, name: str) -> list[str | None]:
        """Return a text column: see `TEXTS`."""
        return self._texts[name]

    def has(self, name: str) -> Mask:
        """Return where a text column has a value."""
        return np.fromiter((value is not None for value in self._texts[name]), np.bool_, len(self))

    def hashes(self, name: str) -> NDArray[np.int64]:
        """Return a hash of each value of a text column. Equal texts have equal hashes, but only within this process."""
        return np.fromiter(map(hash, self._texts[name]), np.int64, len(self))

    def url(self, page: int) -> str:
        """Return the URL under which a page was found."""
        return self._texts["url"][page] or ""

    def answered_at(self, page: int) -> str:
        """Return the URL that sent the content of a page."""
        return self._texts["final_url"][page] or self.url(page)

    def redirects(self, page: int) -> list[dict[str, Any]]:
        """Return the redirects that led to the content, each with `url` and `status`."""
        written = self._texts["redirects"][page]
        return [] if written is None else list(orjson.loads(written))

    @cached_property
    def is_redirected(self) -> Mask:
        """Mark where a page was reached through redirects, or ends with one."""
        status = self["status"]
        is_redirect: Mask = (status >= 300) & (status < 400) & (status != 304)
        return self.has("redirects") | is_redirect

    @cached_property
    def is_good(self) -> Mask:
        """Mark where a page answered with content: 200, or 304 to a conditional request."""
        good: Mask = np.isin(self["status"], (200, 304))
        return good

    @cached_property
    def is_html(self) -> Mask:
        """Mark where a page answered with HTML that was read. Only these have titles, headings and so on."""
        return self.is_good & (self["word_count"] >= 0)

    @cached_property
    def is_noindex(self) -> Mask:
        """Mark where search engines are asked not to index a page."""
        return np.fromiter((_forbids_indexing(robots) for robots in self._texts["robots"]), np.bool_, len(self))

    @cached_property
    def is_https(self) -> Mask:
        """Mark where the content was sent over https."""
        addresses = zip(self._texts["final_url"], self._texts["url"], strict=True)
        return np.fromiter(((final or url or "").startswith("https:") for final, url in addresses), np.bool_, len(self))


def _forbids_indexing(robots: str | None) -> bool:
    if robots is None:
        return False
    parts = {part.strip() for part in robots.lower().split(",")}
    return "noindex" in parts or "none" in parts


class LinkGraph:
    """The links between pages in compressed rows: the links of page p are `targets[offsets[p]:offsets[p + 1]]`.

    A target is an index of `link_targets`: a page, a URL that was only fetched as the target of a redirect, a URL that
    robots.txt forbids, or -1 for any other URL. `page_of[target]` is the page that a target stands for, or -1.
    """

    def __init__(
        self,
        offsets: NDArray[np.int64],
        targets: NDArray[np.int32],
        flags: NDArray[np.uint8],
        link_targets: "LinkTargets",
    ) -> None:
        self.offsets = offsets
        self.targets = targets
        self.flags = flags
        self.link_targets = link_targets

    def __len__(self) -> int:
        return len(self.targets)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of links to each target, without links from a page to itself."""
        return self._count(None)

    @cached_property
    def followed_counts(self) -> NDArray[np.int64]:
        """The number of links to each target, without links marked nofollow and links from a page to itself."""
        return self._count(LinkFlag.NOFOLLOW)

    def _count(self, without: int | None) -> NDArray[np.int64]:
        counts = np.zeros(len(self.link_targets) + 1, np.int64)
        pages = len(self.offsets) - 1
        for first in range(0, pages, _AT_ONCE):
            last = min(first + _AT_ONCE, pages)
            low, high = self.offsets[first], self.offsets[last]
            targets = self.targets[low:high]
            sources = np.repeat(np.arange(first, last), np.diff(self.offsets[first : last + 1]))
            keep = sources != targets
            if without is not None:
                keep &= self.flags[low:high] & without == 0
            counts += np.bincount(targets[keep] + 1, minlength=len(counts))
        return counts[1:]

    def clicks_from(self, seeds: Ids, lands_on: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the number of clicks from the nearest seed to each page; -1 if no links lead there. `lands_on`: for
        each page, the page at which its visitors arrive: the page itself, or the redirect target if the page only
        redirects."""
        pages = len(self.offsets) - 1
        clicks = np.full(pages, -1, np.int32)
        sizes = np.diff(self.offsets)
        padded = np.append(self.link_targets.page_of, np.int32(-1))  # the extra last entry is for target -1
        front, distance = np.union1d(seeds, lands_on[seeds]), 0
        clicks[front] = 0
        while len(front):
            distance += 1
            reached = np.zeros(pages + 1, np.bool_)
            for first in range(0, len(front), _AT_ONCE):
                some = front[first : first + _AT_ONCE]
                size = sizes[some]
                begin = np.repeat(self.offsets[some] - np.concatenate([[0], np.cumsum(size)[:-1]]), size)
                reached[padded[self.targets[begin + np.arange(size.sum())]]] = True
            reached[lands_on[np.flatnonzero(reached[:pages])]] = True
            front = np.flatnonzero(reached[:pages] & (clicks < 0))
            clicks[front] = distance
        return clicks

    def sources(self, wanted: Mask, most: int) -> dict[int, list[int]]:
        """Return the first pages that link to each of the wanted targets, at most `most` for each."""
        found: dict[int, list[int]] = {}
        padded = np.append(wanted, False)
        for first in range(0, len(self.targets), _LINKS_AT_ONCE):
            targets = self.targets[first : first + _LINKS_AT_ONCE]
            places = np.flatnonzero(padded[targets])
            pages = np.searchsorted(self.offsets, places + first, side="right") - 1
            for target, page in zip(targets[places].tolist(), pages.tolist(), strict=True):
                linking = found.setdefault(target, [])
                if len(linking) < most and page != target and page not in linking[-1:]:
                    linking.append(page)
        return found


class LinkTargets:
    """Everything that a link may lead to, by key: the pages first, then aliases of pages, then blocked URLs."""

    def __init__(self, pages: NDArray[np.int64], aliases: dict[int, int], blocked: Sequence[int]) -> None:
        """`aliases`: the page of each key that was only fetched as the target of a redirect."""
        own = set(pages.tolist()) if aliases or blocked else set()
        extra = [(key, page) for key, page in aliases.items() if key not in own]
        known = own | {key for key, _ in extra}
        extra += [(key, -1) for key in blocked if key not in known]
        keys = np.concatenate([pages, np.array([key for key, _ in extra], np.int64)])
        self.page_of = np.concatenate(
            [np.arange(len(pages), dtype=np.int32), np.array([page for _, page in extra], np.int32)]
        )
        self.pages = len(pages)
        self.keys = keys
        order = np.argsort(keys, kind="stable").astype(np.int32)
        self._order = order
        self._sorted = np.append(keys[order], np.int64(_LAST))
        # Keys are uniform hashes, so the upper bits of a key give its position to within a few places.
        self._shift = np.uint64(64 - max(1, len(keys)).bit_length() - 1)
        buckets = np.arange(2 << max(1, len(keys)).bit_length(), dtype=np.uint64) << self._shift
        self._starts = np.searchsorted(_unsigned(self._sorted[:-1]), buckets).astype(np.int32)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def is_blocked(self) -> Mask:
        return self.page_of < 0

    def find(self, keys: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the target of each key; -1 for unknown ones."""
        places = self._starts[_unsigned(keys) >> self._shift]
        behind = np.flatnonzero(self._sorted[places] < keys)
        while len(behind):
            places[behind] += 1
            behind = behind[self._sorted[places[behind]] < keys[behind]]
        is_found = (self._sorted[places] == keys) & (places < len(self._order))
        return (
            np.where(is_found, self._order[np.where(is_found, places, 0)], -1).astype(np.int32)
            if len(self)
            else (np.full(len(keys), -1, np.int32))
        )


def _unsigned(keys: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return signed keys as unsigned ones in the same order."""
    return keys.view(np.uint64) ^ np.uint64(1 << 63)


@dataclass(frozen=True, slots=True)
class SitemapRead:
    """A sitemap that was read, or could not be."""

    url: str
    status: int | None
    problem: str | None
    entries: NDArray[np.int64]  # keys


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The response of a host to a probe. `status` is None if there was no response; `error` may contain the reason.
    `moved`: the response was reached through redirects."""

    url: str
    status: int | None
    content_type: str | None = None
    body: bytes = b""
    duration_ms: float | None = None
    error: str | None = None
    moved: bool = False

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def is_broken(self) -> bool:
        return self.status is None or self.status >= 400

    @property
    def outcome(self) -> dict[str, Any]:
        """The response as evidence."""
        return {"error": self.error} if self.status is None else {"status": self.status}


class SiteUrls:
    """Normalizes URLs as the crawl does."""

    def __init__(self, crawl: Crawl, max_length: int) -> None:
        self._key_seed = crawl.key_seed
        self._urls = Canonicalizer(crawl.config.url_rules(max_length))

    def resolve(self, base: str, written: Sequence[str]) -> list[str | None]:
        """Return the canonical form of links as a page wrote them; None for those that are not valid."""
        page = self._urls.canonical(base)
        if isinstance(page, UrlRefusal):
            return [None] * len(written)
        return [None if isinstance(url, UrlRefusal) else url for url in self._urls.resolve(page, written)]

    def key(self, url: str) -> int:
        """Return the key of a canonical URL."""
        return key_of(Url(url), self._key_seed)[0]


class Unanswered(TypedDict):
    """Requests of an analyzer that got no response: URLs, and paths of hosts."""

    targets: int
    probes: int


@dataclass
class Site:
    """The parts of a crawl that an analysis loaded. Parts that no analyzer needs are empty."""

    pages: PageColumns
    urls: SiteUrls
    details: dict[str, dict[str, list[Any]]] = field(default_factory=dict)  # by analyzer and column, one value per page
    load_errors: dict[str, str] = field(default_factory=dict)  # by analyzer: why its detail columns or URLs are missing
    has_details: bool = True
    link_targets: LinkTargets | None = None
    links: LinkGraph | None = None
    sitemaps: list[SitemapRead] = field(default_factory=list)
    robots: dict[str, str | None] = field(default_factory=dict)  # by origin; None: the host has none
    probes: dict[str, ProbeAnswer] = field(default_factory=dict)  # by URL
    asked: dict[str, ProbeAnswer] = field(default_factory=dict)  # by URL: responses to requests of analyzers
    unanswered: dict[str, Unanswered] = field(default_factory=dict)  # by analyzer
    blocked_urls: dict[int, str] = field(default_factory=dict)  # by target; only those that are known
    references: Counter[str] | None = None  # images and other resources of pages; None if no details were read
    previous: PageColumns | None = None
    quarantined: int = 0

    @cached_property
    def origins(self) -> list[str]:
        """The origins that pages of the crawl have, the most frequent first."""
        counts: dict[str, int] = {}
        for url in self.pages.text("url"):
            name = origin(Url(url or ""))
            counts[name] = counts.get(name, 0) + 1
        return sorted(counts, key=lambda name: -counts[name])

    @cached_property
    def clicks(self) -> NDArray[np.int32]:
        """The number of clicks from the nearest seed to each page; -1 if no links lead there.

        The depth in a page record differs: it belongs to the path that the crawl found first, which may begin at a
        sitemap.
        """
        assert self.links is not None, "the link graph is always loaded"
        pages, page_of = self.pages, self.links.link_targets.page_of
        lands_on = np.arange(len(pages), dtype=np.int32)
        moved = np.flatnonzero((pages["status"] >= 300) & (pages["status"] < 400) & (pages["status"] != 304))
        targets = self.find([pages.answered_at(page) for page in moved.tolist()])
        known = np.where(targets >= 0, page_of[targets], -1) if len(moved) else targets
        lands_on[moved] = np.where(known >= 0, known, moved)
        for _ in range(_DOUBLINGS):
            lands_on = lands_on[lands_on]
        return self.links.clicks_from(np.flatnonzero(pages["depth"] == 0), lands_on)

    @cached_property
    def listed_targets(self) -> Mask:
        """Mark the targets that sitemaps list."""
        assert self.link_targets is not None, "an analyzer that needs sitemaps says so"
        listed = np.zeros(len(self.link_targets) + 1, np.bool_)
        for sitemap in self.sitemaps:
            listed[self.link_targets.find(sitemap.entries)] = True  # unknown keys are -1: the extra last entry
        return listed[:-1]

    @property
    def is_listed_itself(self) -> Mask:
        """Mark where a sitemap lists the URL under which a page was found."""
        return self.listed_targets[: len(self.pages)]

    @cached_property
    def in_sitemap(self) -> Mask:
        """Mark where a sitemap lists a page, under its own URL or under the URL that sent its content."""
        assert self.link_targets is not None
        listed = self.is_listed_itself.copy()
        others = self.link_targets.page_of[len(self.pages) :][self.listed_targets[len(self.pages) :]]
        listed[others[others >= 0]] = True
        return listed

    @cached_property
    def canonical_targets(self) -> NDArray[np.int32]:
        """The target of each page's canonical URL: -1 if it declares none, -2 if the crawl does not know that URL. A
        page that declares itself has its own number."""
        targets = np.full(len(self.pages), -1, np.int32)
        finals, urls = self.pages.text("final_url"), self.pages.text("url")
        others: dict[int, str] = {}
        for page, written in enumerate(self.pages.text("canonical")):
            if written is None:
                continue
            if written in (finals[page], urls[page]):
                targets[page] = page
            else:
                others[page] = written
        if others:
            resolved = [self._canonical(page, written) for page, written in others.items()]
            found = self.find([None if url is SELF else url for url in resolved])
            own = [url is SELF for url in resolved]
            places = np.array(list(others), np.intp)
            targets[places] = np.where(own, places, np.where(found < 0, -2, found))
        return targets

    def _canonical(self, page: int, written: str) -> str | None:
        """Return the canonical URL that a page declares, or SELF."""
        base = self.pages.answered_at(page)
        url, own = self.urls.resolve(base, [written, base])
        return SELF if url is not None and url == own else url

    @cached_property
    def canonical_pages(self) -> NDArray[np.int32]:
        """The page that each page declares as canonical: -1 if it declares none, -2 if that page is not known."""
        targets = self.canonical_targets
        if self.link_targets is None or not len(targets):
            return targets
        pages = np.where(targets >= 0, self.link_targets.page_of[np.maximum(targets, 0)], targets)
        return np.where((targets >= 0) & (pages < 0), -2, pages).astype(np.int32)

    @cached_property
    def unknown_canonicals(self) -> dict[int, str]:
        """The canonical URLs of HTML pages that were not crawled, by page."""
        pages, written = np.flatnonzero(self.pages.is_html & (self.canonical_pages == -2)), self.pages.text("canonical")
        urls = {page: self._canonical(page, written[page] or "") for page in pages.tolist()}
        return {page: url for page, url in urls.items() if url is not None and url is not SELF}

    @cached_property
    def canonical_moves(self) -> Mask:
        """Mark where the canonical URL itself redirects."""
        targets = self.canonical_targets
        is_page = (targets >= 0) & (targets < len(self.pages)) & (targets != np.arange(len(targets)))
        moves: Mask = is_page & self.pages.is_redirected[np.where(is_page, targets, 0)] if len(targets) else is_page
        return moves

    @cached_property
    def points_away(self) -> Mask:
        """Mark where a page declares a different page as canonical."""
        target = self.canonical_pages
        away: Mask = (target != -1) & (target != np.arange(len(target)))
        return away

    @cached_property
    def is_indexable(self) -> Mask:
        """Mark where a page is HTML that search engines may index under its own URL."""
        return self.pages.is_html & ~self.pages.is_noindex & ~self.points_away

    def numbers_of(self, analyzer: str, column: str) -> NDArray[np.int32]:
        """Return a numeric detail column; -1 for pages without details."""
        values = self.details[analyzer][column]
        return np.fromiter((-1 if value is None else value for value in values), np.int32, len(values))

    def url_of(self, target: int) -> str | None:
        """Return the URL of a target; None for a blocked one whose text is not known."""
        assert self.link_targets is not None
        if target < len(self.pages):
            return self.pages.url(target)
        page = int(self.link_targets.page_of[target])
        return self.blocked_urls.get(target) if page < 0 else self.pages.answered_at(page)

    def find(self, urls: Sequence[str | None]) -> NDArray[np.int32]:
        """Return the target of each URL, which must be canonical; -1 for unknown ones and for None."""
        assert self.link_targets is not None, "an analyzer that looks URLs up needs links"
        keys = np.fromiter((0 if url is None else self.urls.key(url) for url in urls), np.int64, len(urls))
        targets = self.link_targets.find(keys)
        targets[[place for place, url in enumerate(urls) if url is None]] = -1
        return targets

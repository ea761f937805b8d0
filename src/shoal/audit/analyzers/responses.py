"""How URLs responded: errors, links to them, redirects, soft 404s, robots.txt, speed."""

import re
import secrets
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import re2

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Ids, Mask, Site
from shoal.extract.page import extract

LOOPS = frozenset({"too_many_redirects", "redirect_loop"})


class Responses:
    """Reports server errors and pages without a response. Redirect loops are left to `redirects`."""

    name = "responses"
    codes = BY_ANALYZER["responses"]
    needs = Needs()

    def analyze(self, site: Site) -> Iterator[Found]:
        pages = site.pages
        broken = np.flatnonzero(pages["status"] >= 500)
        yield Found("server_error", broken, evidence=lambda place: {"status": int(pages["status"][broken[place]])})
        errors = pages.text("error_code")
        silent = np.flatnonzero(pages["status"] == 0)
        lost = silent[[errors[page] not in LOOPS for page in silent.tolist()]] if len(silent) else silent
        yield Found("page_unreachable", lost, evidence=lambda place: {"error": errors[int(lost[place])]})


MOST_SOURCES = 10  # linking pages in the evidence


class Links:
    name = "links"
    codes = BY_ANALYZER["links"]
    needs = Needs(links=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        assert site.links is not None
        targets = site.links.link_targets
        pages, page_of = site.pages, targets.page_of
        is_linked = (site.links.counts > 0) & (page_of >= 0)
        status = np.where(page_of >= 0, pages["status"][page_of], 0) if len(pages) else np.zeros(len(targets), np.int16)
        is_loop = np.fromiter((code in LOOPS for code in pages.text("error_code")), np.bool_, len(pages))
        # Status 429 means that we were too fast, not that the page is gone.
        is_broken = is_linked & (status >= 400) & (status < 500) & (status != 429)
        is_silent = is_linked & (status == 0) & ~is_loop[page_of]
        is_moved = is_linked & (status > 0) & (status < 400)
        is_moved[: len(pages)] &= pages.is_redirected
        is_moved[len(pages) :] = False
        for code, mask in (
            ("broken_link", is_broken),
            ("link_to_unreachable", is_silent),
            ("link_to_redirect", is_moved),
        ):
            yield found_links(site, code, mask)


def found_links(site: Site, code: str, wanted: Mask) -> Found:
    """Return a finding for each of these targets, with the pages that link there."""
    assert site.links is not None
    graph, pages = site.links, site.pages
    targets: Ids = np.flatnonzero(wanted)
    sources = graph.sources(wanted, MOST_SOURCES) if len(targets) else {}

    def evidence(place: int) -> dict[str, Any]:
        target = int(targets[place])
        page = int(graph.link_targets.page_of[target])
        facts: dict[str, Any] = {}
        if page >= 0:
            status, error = int(pages["status"][page]), pages.text("error_code")[page]
            facts = {"status": status} if status else {"error": error}
            if code == "link_to_redirect":
                facts["redirects_to"] = pages.answered_at(page)
        linking = [pages.answered_at(source) for source in sources.get(target, [])]
        return {**facts, "links": int(graph.counts[target]), "linked_from": linking}

    return Found(code, urls=[site.url_of(int(target)) for target in targets], evidence=evidence)


TEMPORARY = frozenset({302, 303, 307})
LONGEST = 20  # redirects that are followed through other records


class Redirects:
    name = "redirects"
    codes = BY_ANALYZER["redirects"]
    needs = Needs(links=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        pages, errors = site.pages, site.pages.text("error_code")
        chains = {int(page): _chain(site, int(page)) for page in np.flatnonzero(pages.has("redirects"))}
        ends = {page: int(hops[-1]["status"]) for page, hops in chains.items()}
        loops = [page for page in range(len(pages)) if errors[page] in LOOPS] if any(errors) else []
        looping = set(loops)
        broken = [page for page, status in ends.items() if page not in looping and (status >= 400 or (status == 0))]
        long = [page for page, hops in chains.items() if len(hops) > 2 and page not in looping]
        temporary = [page for page, hops in chains.items() if any(hop["status"] in TEMPORARY for hop in hops[:-1])]
        for code, found in (
            ("redirect_loop", loops),
            ("redirect_broken", broken),
            ("redirect_chain", long),
            ("redirect_temporary", temporary),
        ):
            yield _found(site, code, found, chains)


def _chain(site: Site, page: int) -> list[dict[str, Any]]:
    """Follow the redirects of a page through the records of other pages; return them, and the response at their end."""
    pages, hops, seen = site.pages, [], {page}
    while True:
        hops += pages.redirects(page)
        status = int(pages["status"][page])
        follows = 300 <= status < 400 and status != 304 and len(hops) <= LONGEST
        target = int(site.find([pages.answered_at(page)])[0]) if follows else -1
        further = -1 if target < 0 or site.link_targets is None else int(site.link_targets.page_of[target])
        if further < 0 or further in seen:
            break
        seen.add(further)
        page = further
    if follows and hops:  # the target was not fetched: out of scope, or forbidden
        return [*hops, {"url": pages.answered_at(page), "status": 200}]
    return [*hops, {"url": pages.answered_at(page), "status": status}]


def _found(site: Site, code: str, found: list[int], chains: dict[int, list[dict[str, Any]]]) -> Found:
    def evidence(place: int) -> dict[str, Any]:
        hops = chains.get(found[place]) or [*site.pages.redirects(found[place])]
        return {"redirects": hops[:LONGEST]}

    return Found(code, urls=[site.pages.url(page) for page in found], evidence=evidence)


_SIGNAL: Final = re.compile(r"^[ \t]*content-signal[ \t]*:", re.IGNORECASE | re.MULTILINE)


class RobotsTxt:
    name = "robots_txt"
    codes = BY_ANALYZER["robots_txt"]
    needs = Needs(links=True, blocked=True, robots=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        assert site.links is not None
        wanted = site.links.link_targets.is_blocked & (site.links.counts > 0)
        yield found_links(site, "blocked_page_linked", wanted)
        silent = [origin for origin, text in site.robots.items() if text is None or not _SIGNAL.search(text)]
        yield Found("content_signal_missing", urls=[f"{origin}/robots.txt" for origin in silent])


# RE2 searches for all alternatives in one pass, in linear time.
_SAYS_SO: Final = re2.compile(
    r"(?i)\b404\b|\bnot found\b|\b(page|seite|product) (does not|doesn't) exist\b|\bnicht gefunden\b|\bintrouvable\b"
    r"|\bno encontrad[oa]\b|\bnon trovata\b|\bn[ãa]o encontrada\b|\bniet gevonden\b|ページが見つかりません|页面不存在"
)
FEWEST_WORDS: Final = 5  # an error page with fewer words is not compared with pages
SIMILAR_LENGTH: Final = 0.2  # share of words by which the lengths may differ: an error page may contain the path


class Soft404:
    """Compares pages with their host's response to a path that does not exist, and with pages that answer 404."""

    name = "soft_404"
    codes = BY_ANALYZER["soft_404"]

    def __init__(self) -> None:
        self._path = f"/{secrets.token_hex(16)}"
        self.needs = Needs(pages=("title", "h1"), probes=(self._path,))

    def analyze(self, site: Site) -> Iterator[Found]:
        pages = site.pages
        hashes, words = pages["text_hash"], pages["word_count"]
        is_error = np.isin(pages["status"], (404, 410)) & (words >= FEWEST_WORDS) & (hashes != 0)
        starts = pages.is_html & self._starts(site)
        missing = np.setdiff1d(hashes[is_error], hashes[starts])  # some sites show their start page with a 404
        same = pages.is_html & np.isin(hashes, missing) | self._as_for_nothing(site, starts)
        titles, found = pages.text("title"), np.flatnonzero(same)
        yield Found("soft_404", found, evidence=lambda place: {"title": (titles[int(found[place])] or "")[:200]})
        says = self._saying(site, "title") | self._saying(site, "h1")
        told = np.flatnonzero(pages.is_html & says & ~same)
        yield Found("soft_404_title", told, evidence=lambda place: {"title": (titles[int(told[place])] or "")[:200]})

    @staticmethod
    def _starts(site: Site) -> Mask:
        """Mark seeds, and the page `/` of each host."""
        roots = {f"{origin}/" for origin in site.origins}
        is_root: Mask = np.fromiter((url in roots for url in site.pages.text("url")), np.bool_, len(site.pages))
        is_root |= site.pages["depth"] == 0
        return is_root

    def _as_for_nothing(self, site: Site, starts: Mask) -> Mask:
        """Mark the pages that match their host's response to a path that does not exist. They have the same text as
        this error page, or the same title and heading and about as many words: error pages often contain the path, so
        their texts differ."""
        pages, found = site.pages, np.zeros(len(site.pages), np.bool_)
        hashes, words = pages["text_hash"], pages["word_count"]
        titles, headings = pages.hashes("title"), pages.hashes("h1")
        for host in site.origins:
            answer = site.probes.get(host + self._path)
            if answer is None or answer.status is None:
                continue
            facts = extract(answer.body, answer.content_type)
            if facts.word_count is None or facts.word_count < FEWEST_WORDS:
                continue
            alike = hashes == facts.text_hash
            if facts.title and facts.h1:
                is_similar = np.abs(words - facts.word_count) <= SIMILAR_LENGTH * facts.word_count
                alike |= (titles == hash(facts.title)) & (headings == hash(facts.h1)) & is_similar
            alike &= pages.is_html
            alike[alike] = [pages.answered_at(page).startswith(f"{host}/") for page in np.flatnonzero(alike).tolist()]
            if not (alike & starts).any():  # the host answers every path with its start page
                found |= alike
        return found

    @staticmethod
    def _saying(site: Site, column: str) -> Mask:
        """Mark the texts that contain words such as "not found". All texts are searched in one call, one text per line:
        a call for each text would take longer than the search itself."""
        texts = [text or "" for text in site.pages.text(column)]
        ends = np.cumsum(np.fromiter((len(text) + 1 for text in texts), np.int64, len(texts)))
        found = np.zeros(len(texts), np.bool_)
        starts = [match.start() for match in _SAYS_SO.finditer("\n".join(texts))]
        found[np.searchsorted(ends, starts, side="right")] = True
        return found


class Speed:
    name = "speed"
    codes = BY_ANALYZER["speed"]
    needs = Needs()

    def __init__(self, slow_ms: float = 2_000) -> None:
        self._slow_ms = slow_ms

    def analyze(self, site: Site) -> Iterator[Found]:
        times = site.pages["duration_ms"]
        slow = np.flatnonzero((times > self._slow_ms) & (site.pages["status"] > 0))
        yield Found("slow_page", slow, evidence=lambda place: {"response_ms": round(float(times[slow[place]]), 1)})

"""Decides whether a fetched page needs a browser. Pure code.

A page without scripts never needs a browser. An empty page whose scripts would fill it always needs a browser. Of all
other pages, one page of each kind (with the same path pattern) is rendered as a probe. If the probe finds new links or
much more text, all pages of its kind are rendered.
"""

import re
from enum import Enum
from typing import Final

from shoal.base.url import Url
from shoal.extract.page import PageFacts

PROBES: Final = 2  # after this many probes of a kind found nothing new, the other pages of that kind are not rendered
MOST_KINDS: Final = 20_000
FEW_WORDS: Final = 20
LONG_NAME, NAME_PARTS = 25, 2  # a path segment with at least this many characters, and hyphens, counts as a name
ANY_WORDS: Final = 200
GAIN: Final = 1.5  # rendering helps if it finds this many times as many words

_SCRIPT: Final = re.compile(rb"<script[\s>]", re.I)
_EMPTY_ROOT: Final = re.compile(
    rb"\bid=[\"']?(?:root|app|__next|__nuxt|___gatsby|svelte|application|q-app)[\"']?[^<>]{0,15}>\s{0,15}</|"
    rb"<(?:app-root|my-app|ember-app)[^<>]{0,15}>\s{0,15}</",
    re.I,
)
_ASKS_FOR_SCRIPTS: Final = re.compile(
    rb"(?:enable|turn on|requires?|needs?|activate[rz]?|aktivieren)\s(?:\w+\s){0,3}javascript|"
    rb"javascript\s(?:\w+\s){0,3}(?:is\s)?(?:required|disabled|enabled|aktiviert|requis)",
    re.I,
)
_BUILDS_PAGES: Final = re.compile(
    rb"data-reactroot|ng-version=|ng-app|data-v-app|__NEXT_DATA__|__NUXT__|__INITIAL_STATE__|__APOLLO_STATE__|"
    rb"data-sveltekit|astro-island|x-data=|type=[\"']?module|createElement\(|innerHTML|insertAdjacentHTML|"
    rb"\.append(?:Child)?\(|document\.write|\bfetch\(|XMLHttpRequest|"
    rb"\b(?:main|app|bundle|index|runtime|chunk|vendors?)(?:[.-]\w{1,15})?(?:[.-]\w{1,15})?\.m?js\b",
    re.I,
)
_DIGITS: Final = re.compile(r"[0-9]+")


class Evidence(Enum):
    """How strongly a fetched page suggests that scripts create its content."""

    NONE = "none"
    SCRIPTS = "scripts"  # the page has scripts, but nothing else suggests that it needs a browser
    LIKELY = "likely"  # the page's scripts may add links or text
    PROOF = "proof"  # the page is empty without its scripts


def evidence_of(body: bytes, facts: PageFacts) -> Evidence:
    """Return the evidence in a page as fetched."""
    if _SCRIPT.search(body) is None:
        return Evidence.NONE
    if is_shell(body, facts):
        return Evidence.PROOF
    has_links = bool(facts.links or facts.nofollow)
    return Evidence.LIKELY if not has_links or _BUILDS_PAGES.search(body) else Evidence.SCRIPTS


def is_shell(body: bytes, facts: PageFacts) -> bool:
    """Return whether a page as fetched is an application shell, which is empty without its scripts."""
    words = facts.word_count
    if words is None or words >= ANY_WORDS or _SCRIPT.search(body) is None:
        return False
    return is_empty(facts) or (_EMPTY_ROOT.search(body) or _ASKS_FOR_SCRIPTS.search(body)) is not None


def is_empty(facts: PageFacts) -> bool:
    """Return whether a page has hardly any content: no links, and a sentence or two at most."""
    return not facts.links and not facts.nofollow and (facts.word_count or 0) < FEW_WORDS


def stays_empty(html: bytes, facts: PageFacts) -> bool:
    """Return whether a rendered page is empty although it has scripts, which should have filled it."""
    return is_empty(facts) and _SCRIPT.search(html) is not None


def has_gained(before: PageFacts, after: PageFacts, navigations: int = 0) -> bool:
    """Return whether rendering found links or text that the fetched page did not have."""
    if navigations or set(after.links) - set(before.links):
        return True
    return (after.word_count or 0) > GAIN * (before.word_count or 0) + FEW_WORDS


def kind_of(url: Url) -> str:
    """Return the path pattern of a URL, in which numbers, ids and names are replaced and the query is left out."""
    start = url.index("/", 8)
    parts = url[start:].partition("?")[0].split("/")
    kinds = ["*" if len(part) >= LONG_NAME or part.count("-") >= NAME_PARTS else part for part in parts]
    return url[:start] + _DIGITS.sub("0", "/".join(kinds))


class Choice(Enum):
    """The decision whether to render a page."""

    SKIP = "skip"
    RENDER = "render"
    PROBE = "probe"  # render the page to learn about its kind
    WAIT = "wait"  # wait for the probes of its kind


class PageKinds:
    """Knowledge of one walker about the kinds of pages in its crawl."""

    def __init__(self) -> None:
        self._needs: dict[str, bool] = {}
        self._probed: dict[str, int] = {}  # number of probes that found nothing new
        self._probing: dict[str, int] = {}

    def choose(self, kind: str, evidence: Evidence) -> Choice:
        """Return the decision about a page of a kind."""
        if evidence is Evidence.NONE:
            return Choice.SKIP
        if evidence is Evidence.PROOF:
            return Choice.RENDER
        known = self._needs.get(kind)
        if known is not None:
            return Choice.RENDER if known else Choice.SKIP
        if evidence is Evidence.SCRIPTS:
            return Choice.SKIP
        if self._probing.get(kind, 0) + self._probed.get(kind, 0) >= PROBES:
            return Choice.WAIT
        self._probing[kind] = self._probing.get(kind, 0) + 1
        return Choice.PROBE

    def learn(self, kind: str, choice: Choice, gained: bool | None) -> bool:
        """Learn from a rendered page. Return whether waiting pages of the same kind can be decided now. `gained` is
        None if the page could not be rendered."""
        if choice is Choice.PROBE:
            self._probing[kind] -= 1
        if len(self._needs) >= MOST_KINDS:
            self._needs.clear()
        if gained:
            self._needs[kind] = True
        elif gained is False and choice is Choice.PROBE:
            self._probed[kind] = self._probed.get(kind, 0) + 1
            if self._probed[kind] >= PROBES:
                self._needs.setdefault(kind, False)
        return choice is Choice.PROBE or kind in self._needs


def without_noscript(html: bytes) -> bytes:
    """Return a rendered page without the content that is meant for browsers without scripts."""
    lowered, kept, at = html.lower(), [], 0
    while (start := lowered.find(b"<noscript", at)) >= 0 and (end := lowered.find(b"</noscript>", start)) >= 0:
        kept.append(html[at:start])
        at = end + len(b"</noscript>")
    return b"".join(kept) + html[at:] if kept else html

"""Language versions: links that are not returned, broken ones, invalid codes, pages that do not name themselves."""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.details import PageDetails
from shoal.audit.site import Site

_LANGUAGE: Final = re.compile(r"x-default|[a-z]{2,3}(-[a-z]{4})?(-([a-z]{2}|[0-9]{3}))?", re.IGNORECASE)


def _alternates(details: PageDetails) -> list[tuple[str, str]] | None:
    return [(one.lang, one.url) for one in details.hreflang] or None


class Hreflang:
    name = "hreflang"
    codes = BY_ANALYZER["hreflang"]

    def __init__(self) -> None:
        self.needs = Needs(details={"alternates": _alternates}, links=True, urls=self._find_unknown)
        self._targets_of: dict[int, dict[int, str]] = {}  # by page
        self._unknown: list[tuple[int, str, str]] = []  # page, language and URL of alternates that were not crawled

    def _find_unknown(self, site: Site) -> Iterator[str]:
        self._targets_of, self._unknown = {}, []
        is_html = site.pages.is_html
        for page, alternates in enumerate(site.details[self.name]["alternates"]):
            if alternates and is_html[page]:
                self._targets_of[page] = self._targets(site, page, alternates)
        return (url for _, _, url in self._unknown)

    def analyze(self, site: Site) -> Iterator[Found]:
        written, targets = site.details[self.name]["alternates"], self._targets_of
        unreturned, broken, invalid, selfless = [], [], [], []
        for page, found in targets.items():
            others = {target: lang for target, lang in found.items() if target not in (page, -1)}
            selfless += [(page, "")] if page not in found else []
            invalid += [(page, lang) for lang, _ in written[page] if not _LANGUAGE.fullmatch(lang)]
            for target, lang in others.items():
                if not site.pages.is_good[target]:
                    broken.append((page, f"{lang} {site.pages.answered_at(target)}"))
                elif page not in targets.get(target, {}):
                    unreturned.append((page, f"{lang} {site.pages.answered_at(target)}"))
        for page, lang, url in self._unknown:
            if (answer := site.asked.get(url)) is not None and answer.is_broken:
                broken.append((page, f"{lang} {url}"))
        for code, pairs in (
            ("hreflang_no_return", unreturned),
            ("hreflang_broken", broken),
            ("hreflang_invalid", invalid),
            ("hreflang_no_self", selfless),
        ):
            yield _found(code, pairs)

    def _targets(self, site: Site, page: int, alternates: list[tuple[str, str]]) -> dict[int, str]:
        """Return the pages that the alternates lead to, each with its language; -1 stands for unknown ones, which are
        listed."""
        assert site.link_targets is not None
        base = site.pages.answered_at(page)
        urls = site.urls.resolve(base, [url for _, url in alternates])
        targets = site.find(urls)
        own = set(site.urls.resolve(base, [base]))
        found = {}
        for (lang, _), url, target in zip(alternates, urls, targets.tolist(), strict=True):
            other = page if url in own else int(site.link_targets.page_of[target]) if target >= 0 else -1
            found[other] = lang
            if other < 0 and url is not None:
                self._unknown.append((page, lang, url))
        return found


def _found(code: str, pairs: list[tuple[int, str]]) -> Found:
    return Found(
        code,
        np.array([page for page, _ in pairs], np.intp),
        evidence=lambda place: {"hreflang": pairs[place][1]} if pairs[place][1] else {},
        identity=lambda place: pairs[place][1],
    )

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
    needs = Needs(details={"alternates": _alternates}, links=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        written = site.details[self.name]["alternates"]
        is_html = site.pages.is_html
        targets = {
            page: self._targets(site, page, alternates)
            for page, alternates in enumerate(written)
            if alternates and is_html[page]
        }
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
        for code, pairs in (
            ("hreflang_no_return", unreturned),
            ("hreflang_broken", broken),
            ("hreflang_invalid", invalid),
            ("hreflang_no_self", selfless),
        ):
            yield _found(code, pairs)

    @staticmethod
    def _targets(site: Site, page: int, alternates: list[tuple[str, str]]) -> dict[int, str]:
        """Return the pages that the alternates lead to, each with its language; -1 stands for unknown ones."""
        assert site.link_targets is not None
        base = site.pages.answered_at(page)
        urls = site.urls.resolve(base, [url for _, url in alternates])
        targets = site.find(urls)
        own = set(site.urls.resolve(base, [base]))
        return {
            page if url in own else int(site.link_targets.page_of[target]) if target >= 0 else -1: lang
            for (lang, _), url, target in zip(alternates, urls, targets.tolist(), strict=True)
        }


def _found(code: str, pairs: list[tuple[int, str]]) -> Found:
    return Found(
        code,
        np.array([page for page, _ in pairs], np.intp),
        evidence=lambda place: {"hreflang": pairs[place][1]} if pairs[place][1] else {},
        identity=lambda place: pairs[place][1],
    )

"""Analyzers of the parts of a site that machines read: canonical URLs, hreflang, indexing rules, structured data,
llms.txt."""

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.details import PageDetails
from shoal.audit.site import ProbeAnswer, Site
from shoal.extract.page import canonical_of


def _declared(details: PageDetails) -> tuple[list[str], str | None] | None:
    """Return the canonical URLs in the page and its Link header; None if the page certainly declares at most one."""
    header = details.headers.get("link")
    return (details.canonicals, header) if header is not None or len(details.canonicals) > 1 else None


class Canonicals:
    name = "canonicals"
    codes = BY_ANALYZER["canonicals"]
    needs = Needs(
        pages=("canonical",),
        details={"declared": _declared},
        links=True,
        urls=lambda site: site.unknown_canonicals.values(),
    )

    def analyze(self, site: Site) -> Iterator[Found]:
        pages, target = site.pages, site.canonical_pages
        own = np.arange(len(pages))
        candidates = pages.is_html & ~pages.is_noindex
        yield Found("canonical_missing", np.flatnonzero(candidates & ~pages.has("canonical")))
        known = pages.is_html & (target >= 0) & (target != own)
        other = np.where(known, target, 0)
        status = pages["status"][other] if len(pages) else np.zeros(0)
        is_moved = known & site.canonical_moves
        is_broken = known & ((status >= 400) | (status == 0))
        is_chain = known & ~is_broken & (target[other] >= 0) & (target[other] != other)
        for page, url in site.unknown_canonicals.items():
            if answer := site.asked.get(url):
                is_broken[page], is_moved[page] = answer.is_broken, answer.moved
        yield self._found(site, "canonical_broken", is_broken)
        yield self._found(site, "canonical_redirect", is_moved & ~is_broken)
        yield self._found(site, "canonical_chain", is_chain)
        yield self._conflicts(site)

    def _found(self, site: Site, code: str, mask: Any) -> Found:
        found, written = np.flatnonzero(mask), site.pages.text("canonical")

        def evidence(place: int) -> dict[str, Any]:
            page = int(found[place])
            target = int(site.canonical_pages[page])
            if target < 0:
                return {"canonical": written[page], **site.asked[site.unknown_canonicals[page]].outcome}
            return {"canonical": written[page], "status": int(site.pages["status"][target])}

        return Found(code, found, evidence=evidence)

    def _conflicts(self, site: Site) -> Found:
        conflicts: dict[int, list[str]] = {}
        for page, declared in enumerate(site.details[self.name]["declared"]):
            if declared is not None and site.pages.is_html[page]:
                written, header = declared
                url = site.pages.answered_at(page)
                in_header = None if header is None else canonical_of([header], url)
                urls = site.urls.resolve(url, [*written, *([in_header] if in_header else [])])
                if len(set(urls)) > 1:
                    conflicts[page] = sorted({url for url in urls if url is not None})
        found = np.array(list(conflicts), np.intp)
        return Found(
            "canonical_conflict", found, evidence=lambda place: {"canonicals": conflicts[int(found[place])][:5]}
        )


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
        """Return the pages that the alternates lead to, each with its language; -1 stands for a page that was not
        crawled, and the URL of that page is added to `_unknown`."""
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


class Indexability:
    name = "indexability"
    codes = BY_ANALYZER["indexability"]
    needs = Needs(pages=("canonical",), links=True, sitemap=True, blocked=True)

    def analyze(self, site: Site) -> Iterator[Found]:
        pages, target = site.pages, site.canonical_pages
        own, noindex, is_html = np.arange(len(pages)), pages.is_noindex, pages.is_html
        points_away = is_html & site.points_away
        yield self._found(site, "noindex_with_canonical", noindex & points_away)
        known = points_away & (target >= 0)
        yield self._found(site, "canonical_to_noindex", known & ~noindex & noindex[np.where(known, target, 0)])
        listed, status = site.in_sitemap, pages["status"]
        moved = site.is_listed_itself & pages.is_redirected
        yield self._found(site, "sitemap_noindex", listed & is_html & noindex)
        yield self._found(site, "sitemap_not_canonical", listed & points_away & (target != own) & ~noindex)
        broken = np.flatnonzero(site.is_listed_itself & ((status >= 400) | (status == 0)) & (status != 429))
        errors = pages.text("error_code")
        yield Found(
            "sitemap_error",
            urls=[pages.url(int(page)) for page in broken],
            evidence=lambda place: {
                "status": int(status[broken[place]]) or None,
                "error": errors[int(broken[place])],
            },
        )
        redirects = np.flatnonzero(moved & (status > 0) & (status < 400))
        yield Found(
            "sitemap_redirect",
            urls=[pages.url(int(page)) for page in redirects],
            evidence=lambda place: {"redirects_to": pages.answered_at(int(redirects[place]))},
        )
        yield self._blocked(site)

    @staticmethod
    def _blocked(site: Site) -> Found:
        """Return the sitemaps that list forbidden URLs; the text of such a URL is known only if a page links to it."""
        assert site.link_targets is not None
        found: list[tuple[str, int, list[str]]] = []
        for sitemap in site.sitemaps:
            targets = site.link_targets.find(sitemap.entries)
            blocked = targets[(targets >= 0) & site.link_targets.is_blocked[targets]].tolist()
            if blocked:
                known = [url for target in blocked[:100] if (url := site.url_of(target)) is not None]
                found.append((sitemap.url, len(blocked), known[:5]))
        return Found(
            "sitemap_blocked",
            urls=[url for url, _, _ in found],
            evidence=lambda place: {"urls": found[place][1], "examples": found[place][2]},
        )

    @staticmethod
    def _found(site: Site, code: str, mask: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Found:
        found, robots, canonical = np.flatnonzero(mask), site.pages.text("robots"), site.pages.text("canonical")

        def evidence(place: int) -> dict[str, str]:
            page = int(found[place])
            values = {"robots": robots[page], "canonical": canonical[page]}
            return {name: value for name, value in values.items() if value is not None}

        return Found(code, found, evidence=evidence)


DEEPEST: Final = 8
REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "Article": ("headline",),
    "BlogPosting": ("headline",),
    "BreadcrumbList": ("itemListElement",),
    "Event": ("name", "startDate", "location"),
    "FAQPage": ("mainEntity",),
    "JobPosting": ("title", "description", "datePosted", "hiringOrganization"),
    "LocalBusiness": ("name", "address"),
    "NewsArticle": ("headline",),
    "Offer": ("price", "priceCurrency"),
    "Organization": ("name",),
    "Product": ("name",),
    "Recipe": ("name", "image"),
    "VideoObject": ("name", "thumbnailUrl", "uploadDate"),
}
"""The properties that search engines require of a type."""

_ALTERNATIVES: Final = {
    "price": ("price", "priceSpecification"),
    "priceCurrency": ("priceCurrency", "priceSpecification"),
}


def _problems(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, list):
        for part in value:
            yield from _problems(part, depth)
        return
    if not isinstance(value, dict) or depth > DEEPEST:
        return
    kinds = value.get("@type")
    if depth == 0 and kinds is None and "@graph" not in value:
        yield "@type"
    for kind in [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else ():
        for name in REQUIRED.get(str(kind), ()):
            if not any(value.get(other) for other in _ALTERNATIVES.get(name, (name,))):
                yield f"{kind}.{name}"
    for name, part in value.items():
        if name != "@context":
            yield from _problems(part, depth + 1)


class StructuredData:
    name = "structured_data"
    codes = BY_ANALYZER["structured_data"]
    needs = Needs(
        details={
            "errors": lambda details: details.json_ld_errors or None,
            "lacking": lambda details: sorted(set(_problems(details.json_ld))) or None,
        }
    )

    def analyze(self, site: Site) -> Iterator[Found]:
        for code, column in (("structured_data_invalid", "errors"), ("structured_data_incomplete", "lacking")):
            values = site.details[self.name][column]
            has = np.fromiter((one is not None for one in values), np.bool_, len(values))
            yield _values(code, column, np.flatnonzero(has & site.pages.is_html), values)


def _values(code: str, name: str, found: "np.ndarray[Any, np.dtype[np.intp]]", values: list[Any]) -> Found:
    return Found(code, found, evidence=lambda place: {name: values[int(found[place])][:10]})


PATH: Final = "/llms.txt"
_TITLE: Final = re.compile(r"\ufeff?\s*# \S")


class LlmsTxt:
    name = "llms_txt"
    codes = BY_ANALYZER["llms_txt"]
    needs = Needs(probes=(PATH,))

    def analyze(self, site: Site) -> Iterator[Found]:
        answers = [answer for answer in site.probes.values() if answer.url.endswith(PATH)]
        yield Found("llms_txt_missing", urls=[answer.url for answer in answers if answer.status in (404, 410)])
        invalid = [answer for answer in answers if answer.status == 200 and _problem(answer)]
        yield Found(
            "llms_txt_invalid",
            urls=[answer.url for answer in invalid],
            evidence=lambda place: {"problem": _problem(invalid[place])},
        )


def _problem(answer: ProbeAnswer) -> str | None:
    kind = (answer.content_type or "").partition(";")[0].strip().lower()
    if kind not in ("text/plain", "text/markdown", "text/x-markdown", ""):
        return f"is served as {kind}"
    return None if _TITLE.match(answer.text) else "does not begin with a # title"

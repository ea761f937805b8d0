"""JSON-LD that cannot be parsed, or lacks what its type requires."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.details import PageDetails
from shoal.audit.site import Site

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


def _lacking(details: PageDetails) -> list[str] | None:
    return sorted({problem for block in details.json_ld for problem in _problems(block, 0)}) or None


def _problems(value: Any, depth: int) -> Iterator[str]:
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
    needs = Needs(details={"errors": lambda details: details.json_ld_errors or None, "lacking": _lacking})

    def analyze(self, site: Site) -> Iterator[Found]:
        for code, column in (("structured_data_invalid", "errors"), ("structured_data_incomplete", "lacking")):
            values = site.details[self.name][column]
            has = np.fromiter((one is not None for one in values), np.bool_, len(values))
            yield _found(code, column, np.flatnonzero(has & site.pages.is_html), values)


def _found(code: str, name: str, found: "np.ndarray[Any, np.dtype[np.intp]]", values: list[Any]) -> Found:
    return Found(code, found, evidence=lambda place: {name: values[int(found[place])][:10]})

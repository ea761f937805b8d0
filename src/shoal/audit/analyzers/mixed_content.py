"""Pages sent over https that load or submit something over http."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.details import PageDetails
from shoal.audit.site import Site

MOST_URLS: Final = 5  # in the evidence
_LOADED: Final = frozenset(
    {"script", "iframe", "frame", "video", "audio", "source", "track", "embed", "object", "stylesheet", "icon",
     "manifest", "preload", "modulepreload"}
)  # fmt: skip


def _loaded(details: PageDetails) -> list[str] | None:
    urls = [one.url for one in details.resources if one.url[:5].lower() == "http:" and one.kind in _LOADED]
    return urls + [image.url for image in details.images if image.url[:5].lower() == "http:"] or None


def _submitted(details: PageDetails) -> list[str] | None:
    return [one.url for one in details.resources if one.kind == "form" and one.url[:5].lower() == "http:"] or None


class MixedContent:
    name = "mixed_content"
    codes = BY_ANALYZER["mixed_content"]
    needs = Needs(details={"loaded": _loaded, "submitted": _submitted})

    def analyze(self, site: Site) -> Iterator[Found]:
        yield self._found(site, "mixed_content", "loaded")
        yield self._found(site, "insecure_form", "submitted")

    def _found(self, site: Site, code: str, column: str) -> Found:
        urls = site.details[self.name][column]
        has = np.fromiter((one is not None for one in urls), np.bool_, len(urls))
        found = np.flatnonzero(has & site.pages.is_https & site.pages.is_good)
        return Found(
            code,
            found,
            evidence=lambda place: {
                "count": len(urls[int(found[place])]),
                "urls": urls[int(found[place])][:MOST_URLS],
            },
        )

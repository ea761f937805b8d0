"""Images without alternative text."""

from collections.abc import Iterator

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.details import PageDetails
from shoal.audit.site import Site

MOST_URLS = 5  # in the evidence


def _silent(details: PageDetails) -> list[str] | None:
    return [image.url for image in details.images if image.alt is None] or None


class Images:
    name = "images"
    codes = BY_ANALYZER["images"]
    needs = Needs(details={"silent": _silent})

    def analyze(self, site: Site) -> Iterator[Found]:
        urls = site.details[self.name]["silent"]
        has = np.fromiter((one is not None for one in urls), np.bool_, len(urls))
        found = np.flatnonzero(has & site.pages.is_html)
        yield Found(
            "image_alt_missing",
            found,
            evidence=lambda place: {
                "images": len(urls[int(found[place])]),
                "urls": urls[int(found[place])][:MOST_URLS],
            },
        )

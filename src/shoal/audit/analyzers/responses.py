"""Pages that answer with a server error, or not at all."""

from collections.abc import Iterator

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Site

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

"""robots.txt: pages that are linked but forbidden, and hosts that declare no Content-Signal."""

import re
from collections.abc import Iterator
from typing import Final

from shoal.audit.analyzer import Found, Needs
from shoal.audit.analyzers.links import found_links
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.site import Site

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

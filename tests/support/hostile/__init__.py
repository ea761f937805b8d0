"""A site that sends every kind of hostile response, together with the expected result of its crawl.

    with HostileSite() as site:
        …crawl site.seeds with site.settings…
        assert complaints(site, records) == []

    site.good, site.bad, site.statuses   what each URL must come to
    site.asked, site.touched             what was asked for, and what must never have been reached

`site` has the listeners and the site map, `answers` invalid responses, `pages` unusual pages, `traps` endless URL
spaces, `maps` sitemaps; `judge` reports what a crawl did wrong.
"""

from tests.support.hostile.check import complaints
from tests.support.hostile.site import HostileSite

__all__ = ["HostileSite", "complaints"]

"""Response headers that protect visitors, and headers that reveal too much."""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.details import PageDetails
from shoal.audit.site import Site

_VERSION: Final = re.compile(r"[a-z]/?\s*v?[0-9]", re.IGNORECASE)


# Which protections a response has, as bits of plain integers: this runs for every page, and IntFlag is much slower.
_HSTS, _CSP, _NOSNIFF, _FRAMES, _REFERRER = 1, 2, 4, 8, 16
MISSING: Final = (
    ("csp_missing", _CSP),
    ("content_type_options_missing", _NOSNIFF),
    ("frame_options_missing", _FRAMES),
    ("referrer_policy_missing", _REFERRER),
)


def _protections(details: PageDetails) -> int:
    headers, metas = details.headers, details.metas
    policy = headers.get("content-security-policy", "")
    found = _HSTS if "strict-transport-security" in headers else 0
    if policy or "content-security-policy" in metas:
        found |= _CSP
    if headers.get("x-content-type-options", "").strip().lower() == "nosniff":
        found |= _NOSNIFF
    if "x-frame-options" in headers or "frame-ancestors" in policy:
        found |= _FRAMES
    if "referrer-policy" in headers or "referrer" in metas:
        found |= _REFERRER
    return found


def _versions(details: PageDetails) -> list[str] | None:
    told = [
        f"{name}: {details.headers[name]}"[:200]
        for name in ("server", "x-powered-by", "x-aspnet-version")
        if name in details.headers and (name != "server" or _VERSION.search(details.headers[name]))
    ]
    return told or None


class SecurityHeaders:
    name = "security_headers"
    codes = BY_ANALYZER["security_headers"]
    needs = Needs(details={"protections": _protections, "versions": _versions})

    def analyze(self, site: Site) -> Iterator[Found]:
        has = site.numbers_of(self.name, "protections")
        is_known = site.pages.is_html & (has >= 0)
        is_open = is_known & site.pages.is_https & (has & _HSTS == 0)
        yield Found("hsts_missing", np.flatnonzero(is_open))
        for code, header in MISSING:
            yield Found(code, np.flatnonzero(is_known & (has & header == 0)))
        versions = site.details[self.name]["versions"]
        tells = np.fromiter((one is not None for one in versions), np.bool_, len(versions))
        found = np.flatnonzero(tells & is_known)
        yield Found("version_disclosed", found, evidence=lambda place: {"headers": versions[int(found[place])]})

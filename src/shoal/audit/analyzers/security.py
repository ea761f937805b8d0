"""Security headers, cookies and mixed content."""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from shoal.audit.analyzer import Found, Needs
from shoal.audit.codes import BY_ANALYZER
from shoal.audit.details import CookieFacts, PageDetails
from shoal.audit.site import Site

_VERSION: Final = re.compile(r"[a-z]/?\s*v?[0-9]", re.IGNORECASE)


# Each protection of a response is a bit of a plain integer: this runs for every page, and IntFlag is much slower.
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


class Cookies:
    name = "cookies"
    codes = BY_ANALYZER["cookies"]
    needs = Needs(details={"cookies": lambda details: details.cookies or None})

    def analyze(self, site: Site) -> Iterator[Found]:
        problems: dict[str, list[tuple[int, str]]] = {code.code: [] for code in self.codes}
        is_https = site.pages.is_https
        for page, cookies in enumerate(site.details[self.name]["cookies"]):
            for cookie in cookies or ():
                for code in _problems(cookie, bool(is_https[page])):
                    problems[code].append((page, cookie.name))
        for code, found in problems.items():
            yield _found(code, found)


def _problems(cookie: CookieFacts, is_https: bool) -> Iterator[str]:
    same_site = (cookie.same_site or "").lower()
    if same_site == "none" and not cookie.secure:
        yield "cookie_invalid"
    elif is_https and not cookie.secure:
        yield "cookie_not_secure"
    if not cookie.http_only:
        yield "cookie_not_http_only"
    if not same_site:
        yield "cookie_no_same_site"


def _found(code: str, found: list[tuple[int, str]]) -> Found:
    return Found(
        code,
        np.array([page for page, _ in found], np.intp),
        evidence=lambda place: {"cookie": found[place][1]},
        identity=lambda place: found[place][1],
    )


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
